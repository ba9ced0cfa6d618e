"""The benchmark's command line on a tiny case: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aten_ext.__main__ import main
from aten_ext._cli import CommandError
from aten_ext.bench import command, interleave, registry, report
from aten_ext.bench.case import Case
from aten_ext.bench.ops import fused_adam
from commands.bench.runs import bench, complaints


def tiny_case(device: str, full: bool) -> list[Case]:
    """In place of the cases of ``fused_adam``: one that takes microseconds."""
    return [fused_adam.Step("1x10").case()]


def test_measures_prints_and_writes(tmp_path: Path) -> None:
    file = tmp_path / "new" / "out.json"
    options = ["fused_adam", "--full", "--filter", "adamw 1x10", "--dtype", "float32", "--seconds", "0.05"]
    done = bench(*options, "--device", "cpu", "--json", str(file))
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    assert "adamw 1x10 float32" in done.stdout and "fused" in done.stdout
    assert "\x1b" not in done.stdout and max(map(len, done.stdout.splitlines())) <= report.WIDTH

    document = json.loads(file.read_text())
    assert list(document) == [
        "schema",
        "machine",
        "versions",
        "date",
        "commit",
        "settings",
        "ceilings",
        "cases",
    ]
    assert document["ceilings"]["streams"]["copy"]["tb_per_s"] > 0
    assert document["versions"]["torch"] == torch.__version__
    assert document["settings"]["filter"] == "adamw 1x10"
    (case,) = document["cases"]
    expected = {"op": "fused_adam", "name": "adamw 1x10", "device": "cpu", "dtype": "float32", "bytes": 280}
    assert {key: case[key] for key in expected} == expected
    assert (case["route"], case["reason"], case["override"]) == ("fused", None, "_fused_adamw_")
    assert (case["rotated"], case["cache"], case["measured"], case["passed"]) == (False, "resident", 1, None)
    for side in (case["upstream"], case["ours"]):
        assert side["wall_us"] > 0 and side["wall_samples"] >= interleave.FEWEST_PAIRS
        assert side["tb_per_s"] == pytest.approx(280 / side["wall_us"] / 1e6, rel=1e-3)
        assert side["gpu_us"] is None
    assert case["ratio"] == pytest.approx(case["upstream"]["wall_us"] / case["ours"]["wall_us"], rel=1e-3)


def test_never_slower_fails_after_printing_and_writing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused_adam, "cases", tiny_case)
    file = tmp_path / "out.json"
    options = ["bench", "fused_adam", "--device", "cpu", "--seconds", "0.02", "--json", str(file)]
    assert main([*options, "--never-slower", "1000"]) == 1
    printed = capsys.readouterr().out
    assert "adamw 1x10 float32" in printed and "FAILED" in printed and "measured 3 times" in printed
    (case,) = json.loads(file.read_text())["cases"]
    assert (case["passed"], case["measured"], case["checked"]) == (False, 3, ["wall"])
    assert main([*options, "--never-slower", "0.001"]) == 0
    assert "passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], f"unknown op 'nonsense'; choose from: {', '.join(registry.OPS)}"),
        (["--device", "tpu"], "unknown device 'tpu'; choose from: cpu, cuda"),
        (
            ["fused_adam", "--device", "cpu", "--filter", "zzz"],
            "no case contains 'zzz'; there are: adamw gru",
        ),
        (["--device", "cpu", "--dtype", "int8"], "no case has dtype int8; there are: bfloat16, float32"),
        (["--device", "cpu", "--seconds", "0"], "--seconds must be a positive number, not 0"),
        (["--device", "cpu", "--never-slower", "-1"], "--never-slower must be a positive number, not -1"),
        (["--device", "cpu", "--json", "/proc/none/out.json"], "cannot write to folder '/proc/none'"),
        (["--device", "cpu", "--json", "/"], "cannot write '/': it is a folder"),
    ],
)
def test_mistakes_are_explained_before_measuring(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("it measured"))
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"aten_ext bench: {message}")
    assert captured.err.count("\n") == 1 and captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "x.json"], "--from needs --plot or --compare"),
        (["fused_adam", "--from", "x.json", "--plot", "p"], "--from measures nothing"),
        (["--threshold", "0"], "--threshold must be a positive number"),
        (["--index", "/nowhere"], "there is no folder '/nowhere'"),
        (["--plot", "/proc/none"], "cannot write to folder '/proc/none'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("it measured"))
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"aten_ext bench: {message}") and captured.err.count("\n") == 1
    assert captured.out == ""


def test_mistake_ends_with_code_2_and_no_traceback() -> None:
    done = bench("nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_nothing_to_compare_without_overrides() -> None:
    done = bench("--device", "cpu", ATEN_EXT="0")
    assert done.returncode == 2 and "ATEN_EXT=0" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "gpu", "device"), [("cpu", True, "cpu"), (None, True, "cuda"), (None, False, "cpu")]
)
def test_the_device_that_is_measured(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, gpu: bool, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert command.choose_device(asked) == device


def test_list_does_not_measure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("it measured"))
    assert main(["bench", "--list", "--device", "cpu", "--filter", "4000x64"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["fused_adam", "adamw", "4000x64", "float32", "4.096", "MB"] in rows


def test_an_op_without_cases_on_a_device_says_so() -> None:
    with pytest.raises(CommandError, match=r"^linear: nothing to measure on cpu$"):
        registry.select(["linear"], "cpu")


def test_what_is_measured_when_nothing_is_asked_for() -> None:
    """Nothing that compiles first, and little time for each case of many."""
    assert registry.chosen([], full=False) == [op for op in registry.OPS if op not in registry.COMPILING]
    assert registry.chosen([], full=True) == list(registry.OPS)
    assert registry.chosen(["entry", "entry"], full=False) == ["entry"]

    def seconds(cases: int, **given: Any) -> float:
        asked = {"seconds": None, "ops": [], "full": False, **given}
        return command._seconds(SimpleNamespace(**asked), cases)  # type: ignore[arg-type]

    assert seconds(10) == command.SECONDS
    assert seconds(100) * 100 == pytest.approx(command.SHORT_RUN_SECONDS)
    assert seconds(100, ops=["fused_adam"]) == seconds(100, full=True) == command.SECONDS
    assert seconds(100, seconds=7.0) == 7.0
