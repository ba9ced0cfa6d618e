"""The sweep: what it draws, how it judges, and what its command says."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch

import processes
from aten_ext._cli import CommandError
from aten_ext.bench.case import Case
from aten_ext.bench.result import Result, Samples
from aten_ext.bench.route import Overrides
from aten_ext.sweep import cat_programs, command, families, known_layers, linear_programs, look, verdict
from paths import TESTS


def sweep(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return processes.python("-m", "aten_ext", "sweep", *arguments, cwd=TESTS, timeout=300)


def made_up(**clocks: tuple[float, float]) -> Result:
    """A result whose clocks have one sample each: upstream, ours."""
    case = Case("cat", "name", "float32", "cat", lambda device: lambda: None, bytes=7, footprint=4)
    samples = {name: Samples([upstream], [ours]) for name, (upstream, ours) in clocks.items()}
    return Result(case, "cuda", "fused", clocks=samples)


def sizes(cases: list[Case], name: str, missing: int = 1) -> list[int]:
    """Of each case, the number behind ``name=``."""
    found = (re.search(rf"\b{name}=(\d+)", case.name) for case in cases)
    return [int(one[1]) if one else missing for one in found]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_seed_is_a_set_of_cases(device: str) -> None:
    first, again, other = (
        [(c.op, c.label) for c in families.draw(families.chosen([]), device, seed, 100)] for seed in (3, 3, 4)
    )
    assert first == again != other
    on_cpu = {"cat", "cat_programs", "fused_adam", "rnn_cpu"}
    measured = on_cpu if device == "cpu" else set(families.FAMILIES) - {"rnn_cpu"}
    assert {op for op, _ in first} == measured
    assert len(set(first)) > 90


def test_a_family_alone_draws_what_it_draws_among_others() -> None:
    """A loser can be looked at again without the rest."""
    among = [c.label for c in families.draw(["linear", "cat"], "cuda", 1, 65) if c.op == "cat"]
    alone = [c.label for c in families.draw(["cat"], "cuda", 1, len(among))]
    assert alone == among


def test_real_models() -> None:
    names = {*known_layers.LINEAR, *known_layers.GRU, *known_layers.CAT}
    assert len(names) >= 40
    drawn = [c.name for c in families.draw(families.chosen(["linear", "gru", "cat"]), "cuda", 0, 400)]
    of_models = sum(any(name.startswith(model) for model in names) for name in drawn)
    assert 0.35 * len(drawn) < of_models < 0.65 * len(drawn)


def test_few_rows_mostly() -> None:
    """What the kernel of linear layers is for: up to 64 rows. The rest are cuBLASLt's."""
    drawn = [c.name for c in families.draw(["linear"], "cuda", 0, 400)]
    rows = [int(found[1]) for name in drawn if (found := re.search(r"\bM=(\d+)", name))]
    assert len(rows) == len(drawn)
    assert 0.75 * len(rows) < sum(m <= 64 for m in rows) < len(rows)


@pytest.mark.parametrize("family", ["cat", "cat_programs", "fused_adam", "rnn_cpu"])
def test_cases_run(family: str) -> None:
    """On a CPU, the smaller ones; a call can be made again."""
    ran = 0
    for case in families.draw([family], "cpu", 11, 40):
        if case.footprint < 1 << 20:
            call = case.make("cpu")
            call()
            call()
            ran += 1
    assert ran >= 5


@pytest.mark.parametrize("family", ["gru", "rnn_training"])
def test_cases_of_a_gpu_can_be_made(family: str) -> None:
    """The smallest ones, on a CPU: packed, padded, in training."""
    kinds = set()
    for case in families.draw([family], "cuda", 5, 120):
        if case.footprint < 1 << 19:
            case.make("cpu")()
            kinds.add("packed" in case.label)
    assert kinds == {True, False}


@pytest.mark.parametrize("kind", cat_programs.KINDS, ids=lambda kind: kind.__name__.strip("_"))
def test_what_programs_join(kind: Callable[[Random], cat_programs.Drawn]) -> None:
    """As many elements as said, whatever the sizes."""
    drawn = [kind(Random(seed)) for seed in range(200)]
    small = [one for one in drawn if one.elements < 1 << 16]
    assert len(small) > 5 and len({one.what for one in drawn}) > 20
    for one in small:
        made = list(one.inputs(lambda *sizes: torch.ones(sizes)))
        assert torch.cat(made, one.dim).sum() == one.elements


@pytest.mark.parametrize("kind", linear_programs.KINDS)
@pytest.mark.parametrize("rows", [1, 4])
def test_what_programs_multiply(kind: str, rows: int) -> None:
    """Each call reaches the override that it names, once."""
    override, build = linear_programs.KINDS[kind]
    made = build(functools.partial(torch.randn, dtype=torch.bfloat16), rows, 24, 16)
    recorder = look._recorder(override)
    with torch.no_grad(), recorder:
        made()
        made()
    assert len(recorder.calls) == 2


def test_a_kernel_between_layers() -> None:
    """Each call makes the layer's result and, behind it, changes other memory."""
    small = [c for c in families.draw(["linear_between"], "cuda", 4, 100) if c.footprint < 1 << 20]
    assert len(small) > 5
    for case in small:
        layer, between = look._recorder(case.override), look._recorder("neg_")
        call = case.make("cpu")
        with torch.no_grad(), layer, between:
            result = call()
        assert isinstance(result, torch.Tensor) and result.isfinite().all()
        assert len(layer.calls) == len(between.calls) == 1


def test_short_sequences() -> None:
    """Half of them have up to four steps; a quarter are in fp32 and beyond what a cluster of blocks takes."""
    drawn = list(families.draw(["rnn_short"], "cuda", 2, 200))
    steps, hidden = sizes(drawn, "T"), sizes(drawn, "H")
    assert len(drawn) == 200
    assert 80 < sum(t <= 4 for t in steps) < 125 and max(steps) <= 50
    large = [c.dtype for c, t, h in zip(drawn, steps, hidden, strict=True) if t > 16 or (t > 4 and h > 1300)]
    assert len(large) > 20 and set(large) == {"float32"}
    for case in drawn:
        if case.footprint < 1 << 19:
            case.make("cpu")()


@pytest.mark.parametrize("family", ["rnn_stacks", "rnn_odd_inputs"])
def test_a_third_of_some_layers_is_in_training(family: str) -> None:
    """And the smallest ones run, on a CPU."""
    drawn = list(families.draw([family], "cuda", 6, 200))
    assert 45 < sum(c.override == "_cudnn_rnn_backward" for c in drawn) < 90
    for case in drawn:
        if case.footprint < 1 << 19:
            case.make("cpu")()


def test_stacks() -> None:
    """Several layers of many units, up to many rows."""
    drawn = list(families.draw(["rnn_stacks"], "cuda", 2, 200))
    assert set(sizes(drawn, "L")) == {2, 3, 4, 5}
    assert min(sizes(drawn, "H")) >= 200 and min(sizes(drawn, "T")) >= 2
    assert sum(rows > 64 for rows in sizes(drawn, "B")) > 40


def test_odd_inputs() -> None:
    """None of them is a whole number of vectors of fp32, and half of the layers are in fp32 at least."""
    drawn = list(families.draw(["rnn_odd_inputs"], "cuda", 2, 200))
    assert all(columns % 4 for columns in sizes(drawn, "I"))
    assert sum(units % 4 == 0 for units in sizes(drawn, "H")) > 100
    assert 100 < sum(c.dtype == "float32" for c in drawn) < 170


def test_layouts_of_cat() -> None:
    """Each layout is what its name says, and nothing is all zeros."""
    from aten_ext.sweep.cat import Input

    plain, narrowed, strided, expanded, permuted = (
        Input((3, 4, 50), layout, 1).make("cpu")
        for layout in ("plain", "narrowed", "strided", "expanded", "permuted")
    )
    assert all(t.shape == (3, 4, 50) and t.any() for t in (plain, narrowed, strided, expanded, permuted))
    assert plain.is_contiguous() and not permuted.is_contiguous()
    assert narrowed.storage_offset() == 2 and narrowed.stride()[-1] == 1
    assert strided.stride()[-1] == 3
    assert expanded.stride()[1] == 0


def test_limits() -> None:
    assert look.failed(made_up(gpu=(0.949, 1.0), eager=(0.94, 1.0))) == ["gpu"]
    assert look.failed(made_up(gpu=(0.96, 1.0), eager=(0.92, 1.0))) == ["eager"]
    assert look.failed(made_up(wall=(0.96, 1.0))) == []


def test_verdict() -> None:
    good = [made_up(gpu=(1.1, 1.0))] * 199
    assert verdict.failures([*good, made_up(gpu=(0.97, 1.0))]) == []
    assert verdict.failures([*good, made_up(gpu=(0.94, 1.0))]) == ["1 of 200 cases below 0.95 (gpu)"]
    assert verdict.failures([*good, *[made_up(gpu=(0.97, 1.0))] * 2]) == [
        "2 of 201 cases below 0.98, more than 0.5%"
    ]
    found = verdict.distributions([*good, made_up(gpu=(0.94, 1.0))])["cat", "gpu"]
    assert (found.cases, found.fused, found.below_good, found.below_limit) == (200, 200, 1, 1)
    assert found.least == 0.94 and found.median == 1.1


def test_a_machine_with_two_speeds() -> None:
    """Each pair has one speed; by the medians one side would be 1.4 times as fast."""
    found = made_up(eager=(1.0, 1.0))
    found.clocks["eager"] = Samples([10, 10, 14, 14, 14], [10.1, 10.1, 10.1, 14.1, 14.1])
    assert found.clocks["eager"].ratio == 14 / 10.1
    assert 0.99 < found.clocks["eager"].paired_ratio < 1
    assert look.failed(found) == [] and verdict.losers([found]) == []
    slow = made_up(eager=(1.0, 1.0))
    slow.clocks["eager"] = Samples([9, 9, 12, 12], [10, 10, 14, 14])
    assert look.failed(slow) == ["eager"]


def test_losers_come_worst_first() -> None:
    slow, slower, fine = made_up(gpu=(0.97, 1)), made_up(gpu=(0.5, 1)), made_up(gpu=(0.99, 1))
    assert verdict.losers([slow, fine, slower]) == [slower, slow]


def test_a_loser_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look replaces the first."""
    looks: list[float] = []

    class Clock:
        def sample(self, samples: Samples, seconds: float) -> None:
            looks.append(seconds)
            for _ in range(3):
                samples.add(False, 0.5 if len(looks) == 1 else 1.0)
                samples.add(True, 1.0)

    monkeypatch.setattr(look, "_clocks", lambda calls, switch, result, alone: {"wall": Clock()})
    case = next(c for c in families.draw(["cat"], "cpu", 11, 40) if c.footprint < 1 << 16)
    with Overrides() as switch:
        result = look.look(case, "cpu", switch)
    assert looks == [look.SECONDS, look.SECONDS_AGAIN["cpu"]]
    assert result.measured == 2 and result.clocks["wall"].ratio == 1.0


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(c for c in families.draw(["cat"], "cpu", 11, 40) if c.footprint < 1 << 16)
    theirs, ours = torch.tensor([0.0, float("nan")]), torch.tensor([-0.0, float("nan")])
    answers = itertools.chain([theirs, theirs], itertools.repeat(ours))
    other = dataclasses.replace(case, make=lambda device: lambda: next(answers))
    with Overrides() as switch:
        assert not look.look(case, "cpu", switch).differs
        monkeypatch.setattr(look, "routes", lambda *arguments: ("fused", None))
        result = look.look(other, "cpu", switch, one_set=True)
    assert result.differs
    assert "1 of 1 cases with another result than upstream's" in verdict.failures([result])
    command._show([result], {}, 0)
    assert f"cat: {case.label}: another result than upstream's; fused" in capsys.readouterr().out


def test_one_set_of_operands() -> None:
    case = next(c for c in families.draw(["cat"], "cpu", 11, 40) if 1 << 20 < c.footprint < 1 << 22)
    with Overrides() as switch:
        assert look.look(case, "cpu", switch, one_set=True).copies == 1


def test_the_plan_of_a_call() -> None:
    def make(device: str) -> object:
        tensors = [torch.ones(3)] * 200
        return lambda: torch.cat(tensors)

    case = Case("cat", "many", "float32", "cat", make, bytes=0, footprint=0)  # type: ignore[arg-type]
    assert "200 inputs" in look.plan(case, "cpu")


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    done = sweep("cat", "--device", "cpu", "--cases", "3", "--seed", "5", "--json", str(path))
    assert done.returncode in (0, 1), done.stderr  # a busy machine may lose
    document = json.loads(path.read_text())
    assert document["passed"] is (done.returncode == 0) is not bool(document["failures"])
    assert len(document["sweep"]) == 3 and document["settings"]["seed"] == 5
    drawn = [c.label for c in families.draw(["cat"], "cpu", 5, 3)]
    assert [row["name"] for row in document["sweep"]] == drawn
    assert ("passed" in done.stdout.splitlines()) is document["passed"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["dog"], f"unknown family 'dog'; choose from: {', '.join(families.FAMILIES)}"),
        (["--cases", "0"], "--cases must be at least 1, not 0"),
        (["--worst", "-1"], "--worst must not be negative, not -1"),
        (["linear", "--device", "cpu"], "linear: nothing to measure on cpu"),
        (["--device", "tpu"], "unknown device 'tpu'; choose from: cpu, cuda"),
    ],
)
def test_mistakes(arguments: list[str], line: str) -> None:
    done = sweep(*arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"aten_ext sweep: {line}"


def test_nothing_is_left_changed() -> None:
    with pytest.raises(CommandError):
        families.chosen(["cats"])
    assert families.chosen([]) == list(families.FAMILIES)
