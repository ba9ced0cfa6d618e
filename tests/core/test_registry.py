"""Names, toggles, counts, status and the environment."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest
import torch

import aten_ext
import processes
from ops.optimizer.adam_reference import OVERRIDES, call, make_state

STATE = [(4,), (5,)]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter with these variables set."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ATEN_EXT")}
    return processes.python("-c", code, env=inherited | environment)


def enabled() -> set[str]:
    return {override.name for override in aten_ext.overrides() if override.enabled}


def test_overrides_describe_themselves() -> None:
    overrides = {override.name: override for override in aten_ext.overrides()}
    assert set(OVERRIDES) <= set(overrides)
    for override in overrides.values():
        assert override.enabled and override.summary
        assert set(override.keys) <= {"CPU", "CUDA"}
    assert "CPU" in overrides["_fused_adamw_"].keys
    has_cuda = any("CUDA" in override.keys for override in overrides.values())
    assert has_cuda or torch.version.cuda is None, "built against a torch with CUDA, but without CUDA kernels"


def test_disable_and_enable_flip_the_route() -> None:
    aten_ext.disable("_fused_adamw_")
    assert enabled() == set(OVERRIDES) - {"_fused_adamw_"} | (enabled() - set(OVERRIDES))
    call("_fused_adamw_", make_state(STATE))
    aten_ext.enable("_fused_adamw_")
    call("_fused_adamw_", make_state(STATE))
    counts = aten_ext.counts("CPU")["_fused_adamw_"]
    assert (counts.ran, counts.disabled, dict(counts.declined)) == (1, 1, {})


def test_wildcards_and_all() -> None:
    every = enabled()
    unmeasured = {o.name for o in aten_ext.overrides() if set(o.enabled_keys) <= set(o.unmeasured)}
    aten_ext.disable("_fused_adam_*")
    assert every - enabled() == {"_fused_adam_", "_fused_adam_.tensor_lr"}
    aten_ext.disable()
    assert enabled() == set()
    aten_ext.enable()
    assert every - enabled() == unmeasured, "they are turned on by their exact names"
    aten_ext.enable(*every)
    assert enabled() == every


def test_a_name_is_one_overload() -> None:
    aten_ext.disable("_fused_adamw_")
    assert "_fused_adamw_.tensor_lr" in enabled()


def test_disabled_restores_what_was() -> None:
    aten_ext.disable("_fused_adam_")
    before = enabled()
    with pytest.raises(RuntimeError, match="inside"), aten_ext.disabled():
        assert enabled() == set()
        raise RuntimeError("inside")
    assert enabled() == before


@pytest.mark.parametrize("function", [aten_ext.enable, aten_ext.disable])
def test_unknown_name_changes_nothing(function: object) -> None:
    assert callable(function)
    before = enabled()
    with pytest.raises(ValueError, match=r"expected names of overrides \(.*_fused_adamw_.*\), got 'catt'"):
        function("_fused_adamw_", "catt")
    assert enabled() == before
    with pytest.raises(ValueError, match="got 'catt'"), aten_ext.disabled("catt"):
        pass


def test_counts_by_key_and_reset() -> None:
    call("_fused_adamw_", make_state(STATE))
    assert aten_ext.counts()["_fused_adamw_"].ran == 1
    assert aten_ext.counts("CPU")["_fused_adamw_"].ran == 1
    assert aten_ext.counts("CUDA")["_fused_adamw_"].ran == 0
    with pytest.raises(ValueError, match="expected key 'CPU' or 'CUDA', got 'XPU'"):
        aten_ext.counts("XPU")
    aten_ext.reset_counts()
    assert aten_ext.counts()["_fused_adamw_"].ran == 0


def test_counts_are_a_snapshot() -> None:
    before = aten_ext.counts()["_fused_adamw_"]
    call("_fused_adamw_", make_state(STATE))
    assert before.ran == 0


def test_declines_are_added_up_by_reason() -> None:
    for _ in range(3):
        state = make_state(STATE)
        state.steps = [step.double() for step in state.steps]
        call("_fused_adamw_", state)
    assert dict(aten_ext.counts()["_fused_adamw_"].declined) == {
        "step that is not one float32 on the parameters' device": 3
    }


def test_counts_of_many_threads_add_up() -> None:
    """Toggled by one thread while others call: every call is counted once, somewhere."""
    calls, workers = 2000, 4
    stop = threading.Event()

    def work() -> None:
        state = make_state([(4,)])
        for _ in range(calls):
            call("_fused_adamw_", state)

    def toggle() -> None:
        while not stop.is_set():
            aten_ext.disable("_fused_adamw_")
            aten_ext.enable("_fused_adamw_")

    toggler = threading.Thread(target=toggle)
    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in (toggler, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    toggler.join()
    counts = aten_ext.counts("CPU")["_fused_adamw_"]
    assert counts.ran + counts.disabled == calls * workers


def test_status_says_what_ran() -> None:
    call("_fused_adamw_", make_state(STATE))
    aten_ext.disable("_fused_adam_")
    lines = aten_ext.status().splitlines()
    assert torch.__version__ in lines[0] and "active" in lines[0]
    row = next(line.split() for line in lines if line.startswith("_fused_adamw_ "))
    assert "on" in row and "1" in row
    assert "off" in next(line for line in lines if line.startswith("_fused_adam_ "))


def test_status_command() -> None:
    run = processes.python("-m", "aten_ext", "status")
    assert run.returncode == 0 and "_fused_adamw_" in run.stdout and not run.stderr


# ---- environment ------------------------------------------------------------------------------------

STEP = """
import torch, aten_ext
def step(name):
    one = lambda: [torch.ones(3)]
    getattr(torch, name)(one(), one(), one(), one(), [], [torch.tensor(1.)], lr=0.1, beta1=0.9, beta2=0.99,
                         weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
step("_fused_adamw_"); step("_fused_adam_")
counts = aten_ext.counts()
print(*((counts[n].ran, counts[n].disabled) for n in ("_fused_adamw_", "_fused_adam_")))
"""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "(1, 0) (1, 0)"),
        ({"ATEN_EXT": "1"}, "(1, 0) (1, 0)"),
        ({"ATEN_EXT": "0"}, "(0, 0) (0, 0)"),
        ({"ATEN_EXT_DISABLE": "_fused_adamw_, _fused_adam_.tensor_lr"}, "(0, 1) (1, 0)"),
        ({"ATEN_EXT_DISABLE": ""}, "(1, 0) (1, 0)"),
        ({"ATEN_EXT_ONLY": "_fused_adam_"}, "(0, 1) (1, 0)"),
        ({"ATEN_EXT_ONLY": "_fused_*", "ATEN_EXT_DISABLE": "_fused_adam_"}, "(1, 0) (0, 1)"),
    ],
)
def test_environment(environment: dict[str, str], expected: str) -> None:
    run = python(STEP, **environment)
    assert (run.stdout.strip(), run.stderr, run.returncode) == (expected, "", 0)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("ATEN_EXT", "yes", "expected 0 or 1, got 'yes'"),
        ("ATEN_EXT_DISABLE", "_fused_adamw_,nonsense", "got 'nonsense'"),
        ("ATEN_EXT_ONLY", "nonsense", "got 'nonsense'"),
    ],
)
def test_environment_that_makes_no_sense(variable: str, value: str, expected: str) -> None:
    """One line that names the variable and what is valid; torch goes on without the overrides."""
    code = """
import torch
try:
    import aten_ext
except ImportError as error:
    print(error)
one = lambda: [torch.ones(3)]
torch._fused_adamw_(one(), one(), one(), one(), [], [torch.tensor(1.)], lr=0.1, beta1=0.9, beta2=0.99,
                    weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
print(torch._C._dispatch_dump("aten::_fused_adamw_").count("entries.cpp"))
"""
    run = python(code, **{variable: value})
    assert (run.returncode, run.stderr) == (0, "")
    message, replaced = run.stdout.strip().splitlines()
    assert message.startswith(f"[aten_ext] {variable}: ") and expected in message
    if variable != "ATEN_EXT":
        assert "_fused_adamw_" in message
    assert replaced == "0"


def test_nothing_is_registered_with_aten_ext_0() -> None:
    code = """
import torch, aten_ext
print(aten_ext.is_active(), {o.enabled for o in aten_ext.overrides() if not o.unmeasured})
print(torch._C._dispatch_dump("aten::_fused_adamw_").count("entries.cpp"))
aten_ext.disable("_fused_adamw_")
try:
    aten_ext.enable()
except RuntimeError as error:
    print(error)
"""
    run = python(code, ATEN_EXT="0")
    assert run.stdout.splitlines() == [
        "False {False}",
        "0",
        "[enable] expected overrides to be registered, got ATEN_EXT=0 at import",
    ]
    assert python(code).stdout.splitlines()[:2] == [
        "True {True}",
        str(len([o for o in aten_ext.overrides() if o.name == "_fused_adamw_" for _ in o.keys])),
    ]


@pytest.mark.parametrize("arguments", ["demo --nonsense", "nonsense", "bench nonsense", "status extra", ""])
def test_mistakes_at_the_command_line_are_one_line(arguments: str) -> None:
    run = processes.python("-m", "aten_ext", *arguments.split())
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert "Traceback" not in run.stderr


def test_bad_environment_at_the_command_line_is_one_line() -> None:
    run = processes.python("-m", "aten_ext", "status", env=os.environ | {"ATEN_EXT_DISABLE": "nonsense"})
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert run.stderr.startswith("[aten_ext] ATEN_EXT_DISABLE: expected names of overrides")
