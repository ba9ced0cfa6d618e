"""python -m aten_ext profile: what is recorded, how it is boiled down, and the command from end to end."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

import aten_ext
from aten_ext.__main__ import build_parser, main
from aten_ext.profile import _worker, command, report, summary
from aten_ext.profile.window import Window

TRAIN = """
import sys
import torch

print("out of the program", sys.argv[1:], __name__)
torch.set_num_threads(1)
weights = [torch.nn.Parameter(torch.randn(8, 8)) for _ in range(3)]
optimizer = torch.optim.AdamW(weights, fused=True)
other = torch.optim.SGD([torch.nn.Parameter(torch.randn(2))])
for step in range(int(sys.argv[1])):
    sum((weight @ weight).sum() for weight in weights).backward()
    optimizer.step()
    other.step()
"""


@pytest.fixture(autouse=True)
def no_hooks_left() -> Iterator[None]:
    yield
    from torch.optim import optimizer

    optimizer._global_optimizer_post_hooks.clear()


@dataclass
class Done:
    """What the command left: of itself and, on stderr, of the program."""

    returncode: int
    stdout: str
    stderr: str


Profile = Callable[..., Done]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Profile:
    """The command in this process, which saves an import of torch; the programs have their own."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("ATEN_EXT")]:
        monkeypatch.delenv(name)

    def run(*arguments: str) -> Done:
        code = main(["profile", *arguments])
        return Done(code, *capfd.readouterr())

    return run


# The window


class Loop:
    """A training loop of one parameter and a fused optimizer."""

    def __init__(self) -> None:
        """Make both."""
        self.weight = torch.nn.Parameter(torch.randn(4))
        self.optimizer = torch.optim.AdamW([self.weight], fused=True)

    def run(self, steps: int, seconds: float = 0.0) -> None:
        """Step; each step takes ``seconds`` or more."""
        for _ in range(steps):
            self.weight.square().sum().backward()
            time.sleep(seconds)
            self.optimizer.step()


def calls(window: Window, name: str) -> int:
    assert window.profile is not None
    rows = summary.operators(window.profile, set())["operators"]
    return next((int(row["calls"]) for row in rows if row["name"] == name), 0)


def test_steps_are_recorded_after_the_first_ones() -> None:
    window = Window(skip=2, steps=3, seconds=60)
    window.start()
    Loop().run(10)
    window.finish()
    assert (window.recorded, window.made) == (3, 10)
    assert calls(window, "aten::_fused_adamw_") == 3
    assert calls(window, "aten::square") == 3
    assert window.counts["_fused_adamw_"]["ran"] == 3
    assert window.duration > 0


def test_a_second_optimizer_is_no_step() -> None:
    window, first, second = Window(skip=1, steps=2, seconds=60), Loop(), Loop()
    window.start()
    for _ in range(5):
        first.run(1)
        second.run(1)
    window.finish()
    assert (window.recorded, window.made) == (2, 5)
    # From the end of one step of the first to the end of its second next.
    assert calls(window, "aten::_fused_adamw_") == 4


def test_slow_steps_end_with_the_time() -> None:
    window = Window(skip=1, steps=100, seconds=0.05)
    window.start()
    Loop().run(6, seconds=0.03)
    window.finish()
    assert 1 <= window.recorded <= 2


def test_too_few_steps_are_no_record() -> None:
    window = Window(skip=5, steps=3, seconds=60)
    window.start()
    Loop().run(4)
    window.finish()
    assert (window.profile, window.recorded, window.made) == (None, 0, 4)


def test_a_program_without_steps_is_recorded_for_a_time() -> None:
    window = Window(skip=5, steps=3, seconds=0.1, from_start=True)
    window.start()
    torch.ones(2).sin()
    deadline = time.monotonic() + 30
    while window.duration == 0.0 and time.monotonic() < deadline:
        pass
    torch.ones(2).cos()
    window.finish()
    assert window.made == 0
    assert window.duration >= 0.1
    assert (calls(window, "aten::sin"), calls(window, "aten::cos")) == (1, 0)


def test_from_the_start_steps_are_counted_and_end_nothing() -> None:
    window = Window(skip=1, steps=2, seconds=60, from_start=True)
    window.start()
    Loop().run(7)
    window.finish()
    assert (window.recorded, window.made, calls(window, "aten::_fused_adamw_")) == (7, 7, 7)


# The summary


def event(name: str, cpu: float, parent: Any = None, device: float = 0.0, **more: Any) -> Any:
    return SimpleNamespace(
        **{
            "name": name,
            "cpu_time_total": cpu,
            "cpu_parent": parent,
            "self_device_time_total": device,
            "device_time_total": device,
            "device_type": DeviceType.CPU,
            "is_user_annotation": False,
            **more,
        }
    )


def test_times_of_nested_ranges() -> None:
    """The runtime's calls and the fused kernel's own range count for the operator around them."""
    outer = event("aten::cat", 100.0, device_time_total=30.0)
    fused = event("aten_ext::cat", 60.0, outer, device=20.0)
    launch = event("cudaLaunchKernel", 5.0, fused, device=10.0)
    inner = event("aten::copy_", 25.0, fused)
    again = event("aten::cat", 10.0, inner)
    step = event("Optimizer.step#AdamW.step", 500.0)
    other = event("aten::mm", 40.0, step, device=70.0)
    kernels = [
        event("kernel a", 0.0, device=30.0, device_type=DeviceType.CUDA),
        event("kernel b", 0.0, device=70.0, device_type=DeviceType.CUDA),
        event("annotation", 0.0, device=900.0, device_type=DeviceType.CUDA, is_user_annotation=True),
    ]
    events = [step, other, outer, fused, launch, inner, again, *kernels]
    found = summary.operators(SimpleNamespace(events=lambda: events), {"aten::cat"})  # type: ignore[arg-type]
    rows = {row["name"]: row for row in found["operators"]}
    assert set(rows) == {"aten::cat", "aten::copy_", "aten::mm"}
    # 100 less the copy inside, and the 10 of the inner one.
    assert (rows["aten::cat"]["self_cpu_us"], rows["aten::cat"]["cpu_us"]) == (85.0, 100.0)
    assert rows["aten::cat"]["calls"] == 2 and rows["aten::cat"]["self_device_us"] == 30.0
    assert rows["aten::copy_"]["self_cpu_us"] == 15.0
    assert rows["aten::mm"]["self_cpu_us"] == 40.0
    assert [row["name"] for row in found["operators"]] == ["aten::mm", "aten::cat", "aten::copy_"]
    assert (found["touched_cpu_us"], found["touched_device_us"], found["device_us"]) == (100.0, 30.0, 100.0)


def test_overridden_operators_are_named_as_the_profiler_does() -> None:
    assert {"aten::_fused_adamw_", "aten::_fused_adam_"} <= summary.overridden()
    assert not any("." in name for name in summary.overridden())


def side(**changes: Any) -> dict[str, Any]:
    row = {"name": "aten::mm", "overridden": False, "calls": 4, "self_cpu_us": 8000, "self_device_us": 2000}
    return {
        "window": {"kind": "steps", "seconds": 1.0, "steps": 2, "steps_made": 9},
        "operators": [row, {**row, "name": "aten::cat", "overridden": True, "self_cpu_us": 1}],
        "device_us": 4000.0,
        "share_of_time": 0.25,
        "share_of_device_time": 0.5,
        "counts": {"cat": {"ran": 3, "disabled": 0, "declined": {"not dense": 1}}},
        **changes,
    }


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    report.show(Console(width=120), side(), side(operators=side()["operators"][:1]), top=1)
    text = capsys.readouterr().out
    (row,) = (line for line in text.splitlines() if "aten::mm" in line)
    assert row.split() == ["aten::mm", "2", "2", "4.000", "4.000", "1.000", "1.000"]
    assert "aten::cat *" in text, "what has an override is shown, however little time it takes"
    assert "25.00% of the recorded time" in text and "50.00% of the GPU time" in text
    assert "cat: 3 ran fused; 1 went upstream: not dense" in text
    whole = {"kind": "program", "seconds": 1.0, "steps": 3, "steps_made": 3}
    report.show(Console(width=120), side(window=whole, device_us=0.0), side(device_us=0.0), top=5)
    text = capsys.readouterr().out
    assert (
        "need not hold the same work" in text
        and "start, with 3 optimizer steps" in text
        and "GPU ms" not in text
    )


# The command


@pytest.mark.long
def test_both_sides_traces_and_routes(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    options = ["--skip", "1", "--steps", "4", "--json", "--output", "out"]
    done = profile(*options, "train.py", "8", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("out of the program ['8', '--json'] __main__") == 2
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "out" / "profile.json").read_text())
    assert document["program"] == ["train.py", "8", "--json"]
    for name in ("off", "on"):
        found = document[name]
        assert (found["window"]["kind"], found["window"]["steps"], found["window"]["steps_made"]) == (
            "steps",
            4,
            8,
        )
        rows = {row["name"]: row for row in found["operators"]}
        assert rows["aten::mm"]["calls"] == 36  # three products forward, six backward, four steps
        assert rows["aten::_fused_adamw_"]["calls"] == 4 and rows["aten::_fused_adamw_"]["overridden"]
        assert 0 < found["share_of_time"] < 1
        assert found["share_of_device_time"] is None or torch.cuda.is_available()
        with gzip.open(tmp_path / "out" / f"{name}.trace.json.gz") as file:
            names = [event.get("name") for event in json.load(file)["traceEvents"]]
        assert names.count("aten::_fused_adamw_") == 4
    # The route: upstream without a word when off, fused in every recorded step when on.
    assert document["off"]["counts"] == {}
    all_ran = {"ran": 4, "disabled": 0, "declined": {}}
    counts = document["on"]["counts"]  # of the step and of what counts the steps
    assert "_fused_adamw_" in counts and list(counts.values()) == [all_ran, all_ran]


def test_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "a_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "program.py").write_text("import sys; print(__name__, sys.argv[1:])\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    request = {"script": None, "module": "a_package.program", "arguments": ["--epochs", "1"]}
    assert _worker._exists("a_package.program") and not _worker._exists("a_package.other.program")
    assert _worker.run_program(request) == 0
    assert capsys.readouterr().out == "__main__ ['--epochs', '1']\n"
    words = ["profile", "--steps", "3", "-m", "a_package.program", "--epochs", "1"]
    arguments = build_parser().parse_args(words)
    program = command._program(arguments)
    assert {key: program[key] for key in request} == request and arguments.steps == 3


@pytest.mark.long
def test_a_program_without_steps_runs_once_more(profile: Profile, tmp_path: Path) -> None:
    """Two runs off, of which the first leaves no record, and one on."""
    (tmp_path / "infer.py").write_text("import torch; torch.ones(2).sin()\nopen('runs', 'a').write('x')\n")
    done = profile("--json", "infer.py")
    assert done.returncode == 0, done.stderr
    assert "no optimizer step: once more, recorded from its start" in done.stderr
    assert (tmp_path / "runs").read_text() == "xxx"
    document = json.loads(done.stdout)
    for name in ("off", "on"):
        assert document[name]["window"]["kind"] == "program" and document[name]["counts"] == {}
        assert "aten::sin" in [row["name"] for row in document[name]["operators"]]


def test_a_program_that_fails(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    raise ValueError('mine')\nf()\n")
    done = profile("bad.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "aten_ext profile: the program ended with 1, overrides off"
    # Its own frames and no others.
    assert 'bad.py", line 2, in f' in done.stderr and "ValueError: mine" in done.stderr
    assert "_worker.py" not in done.stderr and "runpy" not in done.stderr


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('sorry')", "sorry", ""),
        ("import sys; sys.exit()", None, ""),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("def f(:", 1, "SyntaxError"),
        ("import sys; print(sys.argv[1:])", 0, ""),
    ],
)
def test_what_a_program_ends_with(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: str,
    code: int | str | None,
    said: str,
) -> None:
    script = tmp_path / "program.py"
    script.write_text(f"{program}\n")
    monkeypatch.setattr(sys, "argv", [])
    assert _worker.run_program({"script": str(script), "module": None, "arguments": ["a", "-b"]}) == code
    assert said in capsys.readouterr().err
    assert sys.argv == [str(script), "a", "-b"]


def test_a_program_that_fails_with_the_overrides_on_only(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.py").write_text("")
    monkeypatch.setattr(command, "_run_side", lambda side, *_: (0, {}) if side == "off" else (139, None))
    done = profile("bad.py")
    assert (done.returncode, done.stdout) == (139, "")
    assert done.stderr.splitlines()[-1] == "aten_ext profile: the program ended with 139, overrides on"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([(0, None)], "the program ended without leaving a record, overrides off (os._exit?)"),
        ([(0, {}), (0, {"too_few_steps": 1})], "the program made 1 optimizer steps with the overrides on"),
    ],
)
def test_a_program_without_a_record(
    profile: Profile, monkeypatch: pytest.MonkeyPatch, found: list[Any], message: str
) -> None:
    answers = iter(found)
    monkeypatch.setattr(command, "_run_side", lambda *_: next(answers))
    done = profile(__file__)
    assert done.returncode == 2 and done.stderr.startswith(f"aten_ext profile: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a script, or a module with -m"),
        (["-m"], "-m needs the name of a module"),
        (["/nowhere.py", "--epochs", "1"], "there is no script '/nowhere.py'"),
        (["--steps", "0", "x.py"], "--steps must be at least 1, not 0"),
        (["--skip", "0", "x.py"], "--skip must be at least 1, not 0"),
        (["--seconds", "nan", "x.py"], "--seconds must be a positive number, not nan"),
        (["--output", "/proc/none", __file__], "cannot write to folder '/proc/none'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_run_side", lambda *_: pytest.fail("it ran"))
    assert main(["profile", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"aten_ext profile: {message}")
    assert captured.err.count("\n") == 1 and captured.out == ""


def test_an_unknown_option_is_not_taken_for_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["profile", "--bogus", "train.py"])
    assert "unrecognized arguments: --bogus" in capsys.readouterr().err


def test_a_missing_module(profile: Profile) -> None:
    done = profile("-m", "no_such_module")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "aten_ext profile: there is no module 'no_such_module'"
    assert "Traceback" not in done.stderr


def test_nothing_to_compare(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aten_ext, "is_active", lambda: False)
    assert main(["profile", __file__]) == 2
    assert "ATEN_EXT=0" in capsys.readouterr().err
