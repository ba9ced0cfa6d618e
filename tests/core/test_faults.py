"""Faults: toggling under load, threads that share a list, and memory that runs out."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

import aten_ext
from aten_ext import _C
from ops.optimizer.adam_reference import State, call, make_state
from paths import ROOT

# ---- toggling ---------------------------------------------------------------------------------------

TOGGLES = 100_000
CALLERS: list[tuple[str, str]] = [
    ("_fused_adamw_", "float"),
    ("_fused_adam_", "float"),
    ("_fused_adamw_", "tensor"),
    ("_fused_adam_", "tensor"),
]


@pytest.mark.long
def test_toggled_a_hundred_thousand_times() -> None:
    """Four threads call while a fifth toggles: every value is right, and every call is counted once."""
    shapes = [(5,), (64,), (3, 3)]
    finished = threading.Event()
    calls = [0] * len(CALLERS)
    states = [make_state(shapes, seed=seed) for seed in range(len(CALLERS))]
    starts = [state.clone() for state in states]
    options = [{"lr": torch.tensor(1e-3)} if lr == "tensor" else {} for _, lr in CALLERS]

    def work(index: int) -> None:
        name = CALLERS[index][0]
        while not finished.is_set():
            call(name, states[index], **options[index])
            calls[index] += 1

    def toggle() -> None:
        # What enable() and disable() come to: they check the name first, for as long as a dozen calls take.
        names = [override.name for override in aten_ext.overrides()]
        turns = itertools.cycle(itertools.product((False, True), names))
        try:
            for (enabled, name), _ in zip(turns, range(TOGGLES), strict=False):
                _C.set_enabled(name, enabled)
        finally:
            finished.set()

    # Python changes threads every 5 ms otherwise: hundreds of toggles in a row, hundreds of calls in a row.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(CALLERS))]
        threads.append(threading.Thread(target=toggle))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=300)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)

    counts = aten_ext.counts("CPU")
    for index, (name, lr) in enumerate(CALLERS):
        c = counts[f"{name}.tensor_lr" if lr == "tensor" else name]
        assert (c.ran + c.disabled, dict(c.declined)) == (calls[index], {})
        assert c.ran and c.disabled, "both routes were taken"
    with aten_ext.disabled():
        for index, (name, _) in enumerate(CALLERS):
            for _ in range(calls[index]):
                call(name, starts[index], **options[index])
    for ours, theirs in zip(states, starts, strict=True):
        assert_same(ours, theirs)


def test_counting_loses_nothing(tmp_path: Path) -> None:
    """The registry alone, in C++, where threads meet far more often than from Python."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = [ROOT / "scripts/sanitizers/registry_threads.cpp", ROOT / "aten_ext/core/registry.cpp"]
    program = tmp_path / "registry_threads"
    command = [compiler, "-std=c++20", "-O2", "-pthread", "-I", ROOT / "aten_ext", *sources, "-o", program]
    subprocess.run(command, check=True, timeout=120)
    run = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "registry: every call counted once\n")


@pytest.mark.long
def test_sharing_out_a_list(tmp_path: Path) -> None:
    """The fused Adam kernel alone, on threads that start and end within a tensor, at each place there is."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("needs a C++ compiler and AVX2")
    sources = [
        ROOT / "scripts/sanitizers/kernel_threads.cpp",
        ROOT / "aten_ext/ops/optimizer/cpu/fused_adam_kernel.cpp",
    ]
    flags = ["-std=c++20", "-O1", "-pthread", "-mavx2", "-mfma", "-mf16c", "-ffp-contract=off"]
    flags += ["-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"]
    includes = ["-I", ROOT / "aten_ext", "-isystem", cpp_extension.include_paths()[0]]
    program = tmp_path / "kernel_threads"
    subprocess.run([compiler, *flags, *includes, *sources, "-o", program], check=True, timeout=300)
    run = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout.count("\n")) == (0, 1), run.stdout


def assert_same(ours: State, theirs: State) -> None:
    for mine, other in zip(ours.lists().values(), theirs.lists().values(), strict=True):
        for a, b in zip(mine, other, strict=True):
            assert torch.equal(a, b)


# ---- memory that runs out ---------------------------------------------------------------------------

Inputs = list[torch.Tensor]


def cat_inputs(device: str) -> Inputs:
    # A view of one element that claims many: the result would be 2^47 bytes.
    return [torch.ones(1, device=device).expand(2**44), torch.ones(1, device=device).expand(2**44)]


# Calls whose result does not fit, by the override that they reach. What allocates nothing cannot fail so: the
# fused optimizers work on what is there, which test_optimizer_without_memory shows.
TOO_LARGE: dict[str, tuple[Callable[[str], Inputs], Callable[[Inputs], object]]] = {
    "cat": (cat_inputs, torch.cat),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_result_that_does_not_fit(name: str, device: str) -> None:
    """Upstream's own error, type and text, and inputs as they were."""
    key = device.upper()
    if name not in aten_ext.counts(key):
        pytest.skip(f"{name} is not overridden at {key}")
    make, function = TOO_LARGE[name]
    inputs = make(device)

    def outcome() -> tuple[type[BaseException], str]:
        with pytest.raises(RuntimeError) as raised:
            function(inputs)
        # Beyond the first sentences there are numbers of bytes that differ from call to call.
        return raised.type, str(raised.value).partition(". GPU ")[0]

    with aten_ext.disabled():
        theirs = outcome()
    aten_ext.reset_counts()
    assert outcome() == theirs
    c = aten_ext.counts(key)[name]
    # What raised did not run; what went upstream was counted before.
    assert (c.ran, sum(c.declined.values())) in ((0, 0), (0, 1))
    if device == "cuda":
        assert theirs[0] is torch.OutOfMemoryError
    assert all(torch.equal(t[:1], torch.ones_like(t[:1])) for t in inputs)


@pytest.mark.gpu
def test_optimizer_without_memory() -> None:
    """No memory left: the first step, which makes the states, fails as upstream's does and changes nothing.

    With the states there, the fused step needs no more memory, and runs.
    """
    parameters = [torch.nn.Parameter(torch.ones(1 << 20, device="cuda")) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)

    def outcome(enabled: bool) -> tuple[str, str]:
        optimizer = torch.optim.AdamW(parameters, fused=True)
        overrides = nullcontext() if enabled else aten_ext.disabled()
        with overrides, pytest.raises(torch.OutOfMemoryError) as raised:
            optimizer.step()
        return raised.type.__name__, str(raised.value).partition(". GPU ")[0]

    ready = torch.optim.AdamW(parameters, fused=True)
    ready.step()
    torch.cuda.synchronize()
    before = [parameter.detach().cpu() for parameter in parameters]
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 1) / total)
    hoard = []  # what is free inside of segments that other tests' tensors keep
    for size in (1 << bits for bits in range(30, 19, -1)):
        with suppress(torch.OutOfMemoryError):
            while True:
                hoard.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    try:
        theirs = outcome(enabled=False)
        aten_ext.reset_counts()
        assert outcome(enabled=True) == theirs
        assert aten_ext.counts("CUDA")["_fused_adamw_"].ran == 0, "it failed before the step itself"
        assert all(torch.equal(p.detach().cpu(), b) for p, b in zip(parameters, before, strict=True))
        ready.step()
        assert aten_ext.counts("CUDA")["_fused_adamw_"].ran == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        hoard.clear()
    assert not any(torch.equal(p.detach().cpu(), b) for p, b in zip(parameters, before, strict=True))
