"""Two documents of the benchmark compared: what has become slower, and runs that cannot be compared."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from aten_ext.__main__ import main
from aten_ext.bench import command, compare
from commands.bench.runs import cost, made_up, write


def test_a_case_that_has_become_slower_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.json", made_up({"1x10": 2.0, "4000x64": 3.0, "odd": 1.0}))
    new = write(tmp_path / "new.json", made_up({"4000x64": 2.7, "1x10": 2.1, "gpt2": 1.0}))
    arguments = ["bench", "--from", new, "--compare", old]
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "SLOWER fused_adam: adamw 4000x64 float32: ratio 3.000 -> 2.700, 0.90 of what it was" in text
    assert text.count("SLOWER") == 1
    assert "in the old run only: fused_adam adamw odd float32" in text
    assert "in the new run only: fused_adam adamw gpt2 float32" in text
    assert re.search(r"adamw 1x10 float32\s+wall\s+2\.00\s+2\.10\s+1\.05x\s+1000\s+1000", text)
    assert main([*arguments, "--threshold", "0.9"]) == 0
    assert "passed: no ratio of 2 below 0.9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("then", "now", "code"), [(5.0, 12.0, 0), (5.0, 25.0, 1), (25.0, 26.0, 0), (25.0, 5.0, 0)]
)
def test_a_cost_is_held_against_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], then: float, now: float, code: int
) -> None:
    old, new = write(tmp_path / "old.json", cost(then)), write(tmp_path / "new.json", cost(now))
    assert main(["bench", "--from", new, "--compare", old]) == code
    assert (f"cost {then:.1f} -> {now:.1f} ns, over 20" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("machine", "gpu", "GPU Y"), ("settings", "dtype", ["float32"]), ("settings", "full", True)],
)
def test_other_machines_and_commands_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, name: str, value: object
) -> None:
    one = made_up({"1x10": 2.0})
    other = copy.deepcopy(one)
    other[part][name] = value
    arguments = ["bench", "--from", write(tmp_path / "new.json", one)]
    arguments += ["--compare", write(tmp_path / "old.json", other)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert f"the runs differ in {name} {value!r} and {one[part][name]!r}" in error and error.count("\n") == 1
    assert main([*arguments, "--force"]) == 0


def test_other_times_and_versions_are_compared() -> None:
    old, new = made_up({"1x10": 2.0}), made_up({"1x10": 2.0})
    new["versions"]["torch"], new["settings"]["seconds"], new["machine"]["load"] = "2.14", 9, 5
    assert compare.differences(old, new) == []


def test_every_clock_that_counts_is_compared() -> None:
    old = made_up({"1x10": 2.0})
    (case,) = old["cases"]
    case["checked"], case["ratios"] = ["gpu", "eager"], {"gpu": 2.0, "eager": 2.0, "wall": None}
    for side in (case["upstream"], case["ours"]):
        side["gpu_us"] = side["eager_us"] = 1.0
    new = copy.deepcopy(old)
    new["cases"][0]["ratios"]["eager"] = 1.0
    both, gone, added = compare.changes(old, new)
    assert [(change.clock, change.slower(0.95)) for change in both] == [("gpu", False), ("eager", True)]
    assert gone == added == []


def test_runs_without_a_common_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (write(tmp_path / f"{name}.json", made_up({name: 1.0})) for name in ("1x10", "odd"))
    assert main(["bench", "--from", new, "--compare", old]) == 2
    assert "no case in common" in capsys.readouterr().err


def test_a_run_that_cannot_be_compared_is_refused_before_it_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("it measured"))
    old = write(tmp_path / "old.json", made_up({"1x10": 1.0}))
    assert main(["bench", "fused_adam", "--device", "cpu", "--compare", old]) == 2
    assert "the runs differ in cpu 'CPU X'" in capsys.readouterr().err
