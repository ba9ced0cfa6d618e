"""What can be wrong with the place that it runs in: one clear line each, and torch goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import processes
from aten_ext import _C, _load
from paths import TESTS

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
    """Run ``code`` in a process of its own with these variables set."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ATEN_EXT")}
    return processes.python(
        "-c", code, env=inherited | {name: os.fsdecode(value) for name, value in environment.items()}
    )


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


def test_other_build_of_cuda() -> None:
    """Refused in one line that names the right wheel, before the library is opened."""
    code = f"""
import importlib, torch
torch.version.cuda = None
real = importlib.import_module
def import_module(name, package=None):
    module = real(name, package)
    if name == "aten_ext._C":
        module.built_for_cuda = "99.1"
    return module
importlib.import_module = import_module
{LOAD_AND_STEP}"""
    run = python(code)
    assert (run.returncode, run.stderr) == (0, "")
    message, replaced = run.stdout.splitlines()
    assert "with CUDA 99.1, running under torch" in message and "without CUDA; rebuild it" in message
    assert f"+pt{_C.built_for_torch.replace('.', '')}cpu)" in message
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
    run = python(
        "import os, warnings, torch, aten_ext\n"
        "warnings.simplefilter('ignore')  # of forking with threads, which NVML's library has left\n"
        "status = aten_ext.status().splitlines()[0]\n"
        "print(torch.cuda.is_initialized(), ' GPU' in status, flush=True)\n"
        "if os.fork() == 0:\n"
        "    print(torch.ones(2, device='cuda').sum().item(), flush=True)\n"
        "    os._exit(0)\n"
        "print(os.wait()[1])\n"
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "False True\n2.0\n0\n", "")


@pytest.mark.gpu
def test_status_names_the_gpu_in_use() -> None:
    run = python(
        "import torch, aten_ext\n"
        "torch.cuda.init()\n"
        "print(torch.cuda.get_device_name() in aten_ext.status().splitlines()[0])"
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")


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
from ops.optimizer.adam_reference import call, make_state, upstream
state = make_state([(1003,), (5,)], device="cuda")
theirs = upstream("_fused_adamw_", state)
aten_ext.reset_counts()
call("_fused_adamw_", state)
counts = aten_ext.counts("CUDA")["_fused_adamw_"]
print(counts.ran, dict(counts.declined), torch.equal(state.params[0], theirs.params[0]))
"""
    run = python(
        f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{code}",
        LD_PRELOAD=f"{os.environ.get('LD_PRELOAD', '')}:{library}",
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "0 {'GPU that the kernels were not built for': 1} True\n"


@pytest.mark.parametrize("home", ["/proc", "/nonexistent/home"])
def test_home_that_cannot_be_written(home: str) -> None:
    """Nothing is kept there; a home under /proc, because root may write where a mode forbids it."""
    folders = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home)
    run = python(COUNT, PYTHONDONTWRITEBYTECODE="1", **folders)
    assert (run.returncode, run.stderr) == (0, "") and run.stdout.startswith("1 ")
    command = processes.python("-m", "aten_ext", "status", env=os.environ | folders)
    assert (command.returncode, command.stderr) == (0, "") and "_fused_adamw_" in command.stdout
