"""The benchmark of the entry, what a call costs that goes upstream: its worker, its route, its compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aten_ext.__main__ import main
from aten_ext.bench.ops import entry
from commands.bench.runs import bench, complaints


def test_route_of_the_entry() -> None:
    assert entry.route("disabled", {"ran": 0, "disabled": 7}) == ("disabled", None)
    assert entry.route("declining", {"ran": 0, "declined: why": 7}) == ("upstream: why", "why")
    with pytest.raises(RuntimeError, match="went elsewhere: ran"):
        entry.route("declining", {"ran": 7, "disabled": 0})


def test_entry_is_skipped_without_a_compiler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "_worker", entry.Worker)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["bench", "entry", "--never-slower", "0.98"]) == 0
    printed = capsys.readouterr().out
    assert "needs a C++ compiler" in printed and "not checked" in printed


WORKER_WITHOUT_COMPILER = """
import os, runpy, sys, time, warnings
import torch
import torch.utils.benchmark

fork = os.fork


def fork_of_python_312():
    warnings.warn("use of fork() may lead to deadlocks in the child", DeprecationWarning, stacklevel=2)
    return fork()


os.fork = fork_of_python_312


class PythonTimer:
    def __init__(self, *snippets, **options):
        pass

    def timeit(self, calls):
        dtype = getattr(torch, os.environ.get("ATEN_EXT_BENCH_STEPS", "float32"))
        tensors = [[torch.ones(4)] for _ in range(4)]
        betas = dict(beta1=0.9, beta2=0.999)
        options = dict(lr=1e-3, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
        torch._fused_adamw_(*tensors, [], [torch.ones((), dtype=dtype)], **betas, **options)
        self.median = 1e-6
        return self


torch.utils.benchmark.Timer = PythonTimer
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_entry_worker_without_its_compiler() -> None:
    """The two forks, their registration and their counts; the call is made from Python, its time made up."""
    requests = [{"sys_path": sys.path}, *({"state": state, "seconds": 0.0} for state in entry.STATES)]
    script = str(Path(entry.__file__).with_name("_entry_worker.py"))
    done = subprocess.run(
        [sys.executable, "-c", WORKER_WITHOUT_COMPILER, script],
        input="".join(f"{json.dumps(request)}\n" for request in requests),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(script).parents[3],
    )
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    ready, disabled, declining = (json.loads(line) for line in done.stdout.splitlines())
    assert ready == {}
    assert entry.route("disabled", disabled["counts"]) == ("disabled", None)
    assert entry.route("declining", declining["counts"])[0].startswith("upstream: ")
    for answer in (disabled, declining):
        assert answer["upstream"] == answer["ours"] == [1.0] * 15


@pytest.mark.skipif(
    "ATEN_EXT_TEST_SLOW" not in os.environ, reason="compiles for a minute: ATEN_EXT_TEST_SLOW=1"
)
def test_entry_measures_both_states(tmp_path: Path) -> None:
    """The time is not judged here: other work on the machine would make this test fail now and then."""
    file = tmp_path / "entry.json"
    done = bench("entry", "--seconds", "0.1", "--json", str(file), ATEN_EXT_DISABLE="_fused_adamw_")
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    disabled, declining = json.loads(file.read_text())["cases"]
    assert disabled["route"] == "disabled"
    assert declining["route"] == f"upstream: {declining['reason']}"
    for case in (disabled, declining):
        assert case["limit_ns"] == 20 and abs(case["difference_ns"]) < 10_000
        assert 0 < case["upstream"]["wall_us"] < 1000
