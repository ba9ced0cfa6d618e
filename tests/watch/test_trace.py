"""Which calls were made: trace_calls(), and what ATEN_EXT_TRACE and ATEN_EXT_SHADOW print."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path

import pytest
import torch

import aten_ext
import processes
from aten_ext import _C
from ops.optimizer.adam_reference import call, make_state

NOT_FLOAT = "step that is not one float32 on the parameters' device"


def declined(device: str = "cpu") -> None:
    state = make_state([(4,)], device=device)
    state.steps = [step.double() for step in state.steps]
    call("_fused_adamw_", state)


def test_nobody_watches_afterwards() -> None:
    """What a session costs each call ends with the last of them."""
    assert not _C.is_watched()
    with aten_ext.trace_calls(), aten_ext.trace_calls(sites=True):
        assert _C.is_watched()
    assert not _C.is_watched()
    with aten_ext.shadow():
        assert _C.is_watched()
    assert not _C.is_watched()
    aten_ext.enable_report(sample_every=3)
    assert _C.is_watched()
    aten_ext.enable_report()
    aten_ext.disable_report()
    assert not _C.is_watched()


def test_routes_reasons_and_counts(device: str) -> None:
    key = device.upper()
    with aten_ext.trace_calls() as trace:
        for lr in (1e-3, 1e-2):  # a learning-rate schedule does not make calls distinct
            call("_fused_adamw_", make_state([(4,)], device=device), lr=lr)
        declined(device)
        with aten_ext.disabled("_fused_adamw_"):
            call("_fused_adamw_", make_state([(4,)], device=device))
        assert len(trace.rows) == 3, "readable inside"
    call("_fused_adamw_", make_state([(4,)], device=device))
    found = [(row.override, row.key, row.route, row.reason, row.count) for row in trace.rows]
    assert found == [
        ("_fused_adamw_", key, "fused", "", 2),
        ("_fused_adamw_", key, "declined", NOT_FLOAT, 1),
        ("_fused_adamw_", key, "disabled", "", 1),
    ]
    counts = aten_ext.counts(key)["_fused_adamw_"]
    assert (counts.ran, counts.disabled, dict(counts.declined)) == (3, 1, {NOT_FLOAT: 1})
    lines = str(trace).splitlines()
    assert lines[0].startswith(f"2 x _fused_adamw_ {key} fused: self=[float32[4]")
    assert lines[1].startswith(f"1 x _fused_adamw_ {key} declined: {NOT_FLOAT}: self=")


def signature_of(state_changes: dict[str, object] | None = None, **changes: object) -> str:
    state = make_state(**(state_changes or {"shapes": [(4,)]}))  # type: ignore[arg-type]
    with aten_ext.trace_calls() as trace:
        call("_fused_adamw_", state, **changes)
    (row,) = trace.rows
    return row.signature


def test_signatures() -> None:
    assert signature_of() == (
        "self=[float32[4]], grads=[float32[4]], exp_avgs=[float32[4]], exp_avg_sqs=[float32[4]], "
        "max_exp_avg_sqs=[], state_steps=[float32[]], amsgrad=False, maximize=False"
    )
    strided = signature_of({"shapes": [(3, 4)], "permutation": (1, 0), "dtype": torch.bfloat16})
    assert strided.startswith("self=[bfloat16[3, 4](1, 3)], ")
    assert signature_of(grad_scale=torch.tensor(2.0)).endswith(", grad_scale=float32[]")
    assert "lr=float32[]" in signature_of(lr=torch.tensor(0.1))
    assert signature_of(lr=0.5) == signature_of()


def test_long_lists_are_short_and_distinct() -> None:
    first = signature_of({"shapes": [(n,) for n in range(1, 51)]})
    other = signature_of({"shapes": [*((n,) for n in range(1, 50)), (51,)]})
    shown = r"self=\[float32\[1\], float32\[2\], float32\[3\], …\] x50 #[0-9a-f]{8}, "
    assert re.match(shown, first) and re.match(shown, other)
    assert first != other
    assert first == signature_of({"shapes": [(n,) for n in range(1, 51)]})


def test_memory_is_bounded() -> None:
    """After 4096 rows the rest of an override is one row; what is there already goes on counting."""
    limit, more = 4096, 20
    state = make_state([(2,)])
    with aten_ext.trace_calls() as trace:
        call("_fused_adamw_", state)
        for n in range(limit + more - 1):
            empty = torch.empty(0, n + 1)
            torch._fused_adamw_(
                *([[empty]] * 4), [], [state.steps[0]], amsgrad=False, maximize=False,
                lr=0.0, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1e-8,
            )  # fmt: skip
        call("_fused_adamw_", state)
    rows = trace.rows
    assert len(rows) == limit + 1
    others = next(row for row in rows if row.signature == "other signatures")
    assert (others.override, others.count) == ("_fused_adamw_", more)
    assert sum(row.count for row in rows) == aten_ext.counts("CPU")["_fused_adamw_"].ran == limit + more + 1


def test_threads() -> None:
    def work(size: int) -> None:
        state = make_state([(size,)])
        for _ in range(100):
            call("_fused_adamw_", state)

    with aten_ext.trace_calls() as trace:
        threads = [threading.Thread(target=work, args=(size % 2 + 1,)) for size in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [row.count for row in trace.rows] == [200, 200]


# ---- at exit ----------------------------------------------------------------------------------------

STEP = """
import os, sys
import torch, aten_ext
def step(name, dtype=torch.float32):
    one = lambda: [torch.ones(3)]
    getattr(torch, name)(one(), one(), one(), one(), [], [torch.tensor(1., dtype=dtype)], lr=0.1, beta1=0.9,
                         beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ATEN_EXT")}
    return processes.python("-c", STEP + code, env=inherited | environment)


def test_summary_at_exit() -> None:
    code = """
for _ in range(3): step("_fused_adamw_")
step("_fused_adamw_", torch.float64)
with aten_ext.disabled(): step("_fused_adam_")
"""
    run = python(code, ATEN_EXT_TRACE="1")
    assert (run.returncode, run.stdout) == (0, "")
    header, *table = run.stderr.splitlines()
    assert re.fullmatch(r"\[aten_ext\] process \d+: summary", header)
    assert [re.split(r"\s{2,}", line) for line in table] == [
        ["override", "key", "calls", "share", "outcome"],
        ["_fused_adamw_", "CPU", "3", "75.0%", "ran"],
        ["", "1", "25.0%", f"declined: {NOT_FLOAT}"],
        ["_fused_adam_", "CPU", "1", "100.0%", "disabled"],
    ]


def test_calls_and_shadow_at_exit_of_parent_and_child(tmp_path: Path) -> None:
    """Each process says what it did itself; a child that ends with os._exit() says nothing."""
    code = """
import threading
step("_fused_adamw_")
# A thread that holds the lock of the trace now and then, while the process forks.
stop = threading.Event()
def busy():
    while not stop.is_set(): step("_fused_adam_.tensor_lr".partition(".")[0])
thread = threading.Thread(target=busy); thread.start()
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        if number == 2:
            os._exit(0)
        if number == 1:
            for _ in range(5): step("_fused_adamw_")
        sys.exit(0)
    children.append(child)
statuses = [os.waitpid(child, 0)[1] for child in children]
stop.set(); thread.join()
print(os.getpid(), *children, *statuses)
"""
    path = tmp_path / "trace.txt"
    quiet_python = {"PYTHONWARNINGS": "ignore::DeprecationWarning"}  # of a fork beside threads
    run = python(
        code, ATEN_EXT_TRACE="calls", ATEN_EXT_SHADOW="1", ATEN_EXT_TRACE_FILE=str(path), **quiet_python
    )
    assert (run.returncode, run.stderr) == (0, "")
    parent, quiet, loud, gone, *statuses = run.stdout.split()
    assert statuses == ["0", "0", "0"]
    text = path.read_text()
    for process, parts in ((parent, 1), (loud, 1), (quiet, 0), (gone, 0)):
        for part in ("calls", "summary", "shadow"):
            assert text.count(f"[aten_ext] process {process}: {part}\n") == parts, (process, part, text)
    of_child = text[text.index(f"process {loud}: calls") :]
    assert of_child.splitlines()[1].startswith("5 x _fused_adamw_ CPU fused: self=[float32[3]]")
    assert "_fused_adam_ " not in of_child[: of_child.index("shadow")], "the parent's calls are not repeated"
    of_parent = text[text.index(f"process {parent}: shadow") :].splitlines()
    row = next(line.split() for line in of_parent if " _fused_adamw_ " in line)
    assert row[:5] == ["1", "_fused_adamw_", "CPU", "1", "0"]


def test_a_file_that_cannot_be_written() -> None:
    run = python('step("_fused_adamw_")', ATEN_EXT_TRACE="1", ATEN_EXT_TRACE_FILE="/nowhere/trace.txt")
    line, *rest = run.stderr.splitlines()
    assert run.returncode == 0
    assert (
        line == "[aten_ext] ATEN_EXT_TRACE_FILE: cannot write '/nowhere/trace.txt': No such file or directory"
    )
    assert len(rest) == 3 and "Traceback" not in run.stderr


def test_nothing_to_say() -> None:
    run = python("", ATEN_EXT_TRACE="calls", ATEN_EXT_SHADOW="0", ATEN_EXT="0")
    assert run.stderr.count("no call reached an override: nothing is registered (ATEN_EXT=0)") == 2
    assert "shadow" not in run.stderr


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("ATEN_EXT_TRACE", "yes", "expected 0, 1 or calls, got 'yes'"),
        ("ATEN_EXT_SHADOW", "nan", "expected the fraction of calls to compare, 0 to 1, got 'nan'"),
    ],
)
def test_environment_that_makes_no_sense(variable: str, value: str, expected: str) -> None:
    """One line, and no override is registered; see tests/core/test_registry.py for the other variables."""
    run = processes.python("-m", "aten_ext", "status", env=os.environ | {variable: value})
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"[aten_ext] {variable}: {expected}") and run.stderr.count("\n") == 1
