"""Faults: toggling under load, memory that runs out, and what can be wrong with the place that it runs in."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

import aten_ext
from aten_ext import _C, _load
from fused_adam_reference import State, call, make_state

ROOT = Path(__file__).parent.parent

STEP = """
one = lambda: [torch.ones(3)]
def step():
    torch._fused_adamw_(one(), one(), one(), one(), [], [torch.tensor(1.)], lr=0.1, beta1=0.9, beta2=0.99,
                        weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False)
"""
LOAD_AND_STEP = f"""
import torch
try:
    import aten_ext
except ImportError as error:
    print(error)
else:
    print("loaded")
{STEP}
step()
print(torch._C._dispatch_dump("aten::_fused_adamw_").count("entries.cpp"))
"""


def python(code: str, **environment: str | bytes) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter with these variables set."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ATEN_EXT")}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={os.fsencode(k): os.fsencode(v) for k, v in (inherited | environment).items()},
        capture_output=True,
        timeout=120,
    )
    return subprocess.CompletedProcess(run.args, run.returncode, run.stdout.decode(), run.stderr.decode())


# ---- toggling ---------------------------------------------------------------------------------------

TOGGLES = 100_000
CALLERS: list[tuple[str, str]] = [
    ("_fused_adamw_", "float"),
    ("_fused_adam_", "float"),
    ("_fused_adamw_", "tensor"),
    ("_fused_adam_", "tensor"),
]


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
        names = [override.name for override in aten_ext.overrides()]
        turns = itertools.cycle(
            [*((aten_ext.disable, n) for n in names), *((aten_ext.enable, n) for n in names)]
        )
        try:
            for (function, name), _ in zip(turns, range(TOGGLES), strict=False):
                function(name)
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
    sources = [ROOT / "scripts/sanitizers/registry_threads.cpp", ROOT / "aten_ext/registry.cpp"]
    program = tmp_path / "registry_threads"
    command = [compiler, "-std=c++20", "-O2", "-pthread", "-I", ROOT / "aten_ext", *sources, "-o", program]
    subprocess.run(command, check=True, timeout=120)
    run = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, "registry: every call counted once\n")


def test_sharing_out_a_list(tmp_path: Path) -> None:
    """The fused Adam kernel alone, on threads that start and end within a tensor, at each place there is."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("needs a C++ compiler and AVX2")
    sources = [ROOT / "scripts/sanitizers/kernel_threads.cpp", ROOT / "aten_ext/cpu/fused_adam_kernel.cpp"]
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
    assert c.ran + sum(c.declined.values()) == 1
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
    assert not any(torch.equal(p.detach().cpu(), b) for p, b in zip(parameters, before, strict=True))


# ---- the place that it runs in ----------------------------------------------------------------------

RUBBISH = [b"nonsense", b"[", b"*nonsense*", b"a" * 5000, b",,,x", b"'; DROP", b"\xff\xfe", b"two\nlines"]


@pytest.mark.parametrize("variable", ["ATEN_EXT", "ATEN_EXT_DISABLE", "ATEN_EXT_ONLY", "ATEN_EXT_ENABLE"])
def test_rubbish_in_the_environment(variable: str) -> None:
    """One line that names the variable; nothing is registered, and torch goes on."""
    # torch is imported once; each value is then read by a fork of its own.
    code = f"""
import os, sys, torch
for value in {RUBBISH!r}:
    sys.stdout.flush()
    if os.fork() == 0:
        os.environb[b"{variable}"] = value
        exec({LOAD_AND_STEP!r})
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0, value
"""
    run = python(code)
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert len(lines) == 2 * len(RUBBISH), "one line each, and the number of entries registered"
    for message, replaced in zip(lines[::2], lines[1::2], strict=True):
        assert message.startswith(f"[aten_ext] {variable}: expected ") and replaced == "0"


@pytest.mark.parametrize("value", ["yes", "2", " 1", b"\xff"], ids=repr)
def test_rubbish_in_autoload(value: str | bytes) -> None:
    """Not silently off: a warning, and torch goes on."""
    code = "import sys, torch; print(torch.ones(2).sum().item(), 'aten_ext' in sys.modules)"
    run = python(code, ATEN_EXT_AUTOLOAD=value)
    assert (run.returncode, run.stdout) == (0, "2.0 False\n")
    assert "ATEN_EXT_AUTOLOAD: expected 0 or 1, got" in run.stderr and "Traceback" not in run.stderr


def test_other_version_of_torch() -> None:
    """Refused in one line, before the library is opened."""
    code = LOAD_AND_STEP.replace("import torch\n", "import torch\ntorch.__version__ = '2.99.0'\n", 1)
    run = python(code)
    assert (run.returncode, run.stderr) == (0, "")
    message, replaced = run.stdout.splitlines()
    assert f"built for torch {_C.built_for_torch}, running under torch 2.99.0; rebuild it" in message
    assert replaced == "0"


def spoil_truncated(path: Path) -> None:
    """Inside what is loaded: the dynamic loader alone would let the process die of it."""
    path.write_bytes(path.read_bytes()[:100_000])


def spoil_headers(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def spoil_empty(path: Path) -> None:
    path.write_bytes(b"")


def spoil_other(path: Path) -> None:
    """A library, but not this one: an older build without what is asked of it."""
    shutil.copyfile(next(path.parent.glob("_C.*so")), path)


def spoil_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoil_unreadable(path: Path) -> None:
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")


@pytest.mark.parametrize(
    "spoil",
    [spoil_truncated, spoil_headers, spoil_empty, spoil_other, spoil_folder, spoil_unreadable],
    ids=lambda s: s.__name__,
)
def test_spoilt_kernels(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """One line that names the file and the command that builds it; torch goes on."""
    package = tmp_path / "aten_ext"
    shutil.copytree(Path(_load.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    spoil(package / "_kernels.abi3.so")
    run = python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{LOAD_AND_STEP}")
    assert (run.returncode, run.stderr) == (0, "")
    message, replaced = run.stdout.splitlines()
    assert message.startswith("[aten_ext] cannot load _kernels.abi3.so: ") and "pip install" in message
    assert replaced == "0"


COUNT = f"""
import torch, aten_ext
{STEP}
step()
print(aten_ext.counts("CPU")["_fused_adamw_"].ran, torch.cuda.is_available(), "active" in aten_ext.status())
"""


def test_no_visible_gpu() -> None:
    """The CPU's kernels run; nothing asks for a GPU."""
    run = python(COUNT, CUDA_VISIBLE_DEVICES="")
    assert (run.returncode, run.stdout, run.stderr) == (0, "1 False True\n", "")


@pytest.mark.gpu
def test_importing_leaves_the_gpu_alone() -> None:
    """No CUDA context before the program makes one: a process that forks later still can."""
    run = python("import torch, aten_ext; aten_ext.status(); print(torch.cuda.is_initialized())")
    assert (run.returncode, run.stdout, run.stderr) == (0, "False\n", "")


@pytest.mark.gpu
def test_gpu_that_the_kernels_were_not_built_for(tmp_path: Path) -> None:
    """Upstream runs, with a reason, instead of "no kernel image" at the first launch.

    The CUDA runtime's answer about the kernels is given for it by a library loaded before.
    """
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, library = tmp_path / "old_gpu.cpp", tmp_path / "old_gpu.so"
    # cudaErrorNoKernelImageForDevice
    source.write_text('extern "C" int cudaFuncGetAttributes(void*, const void*) { return 209; }')
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    code = """
import torch, aten_ext
from fused_adam_reference import call, make_state, upstream
state = make_state([(1003,), (5,)], device="cuda")
theirs = upstream("_fused_adamw_", state)
aten_ext.reset_counts()
call("_fused_adamw_", state)
counts = aten_ext.counts("CUDA")["_fused_adamw_"]
print(counts.ran, dict(counts.declined), torch.equal(state.params[0], theirs.params[0]))
"""
    run = python(f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n{code}", LD_PRELOAD=str(library))
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "0 {'GPU that the kernels were not built for': 1} True\n"


@pytest.mark.parametrize("home", ["/proc", "/nonexistent/home"])
def test_home_that_cannot_be_written(home: str) -> None:
    """Nothing is kept there; a home under /proc, because root may write where a mode forbids it."""
    folders = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home)
    run = python(COUNT, PYTHONDONTWRITEBYTECODE="1", **folders)
    assert (run.returncode, run.stderr) == (0, "") and run.stdout.startswith("1 ")
    command = subprocess.run(
        [sys.executable, "-m", "aten_ext", "status"],
        env=os.environ | folders,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (command.returncode, command.stderr) == (0, "") and "_fused_adamw_" in command.stdout
