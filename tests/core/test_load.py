"""Importing: quiet, once, only under the torch that it was built for; autoload; a checkout's root."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import aten_ext
import processes
from aten_ext import _C, _load
from paths import ROOT


def python(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ATEN_EXT")}
    return processes.python(*arguments, cwd=cwd, env=inherited | environment)


def test_import_is_silent() -> None:
    command = [sys.executable, "-W", "error", "-c", "import torch, aten_ext; print(aten_ext.is_active())"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (run.stdout, run.stderr) == ("True\n", "")


def test_torchs_own_warning_is_left_to_others() -> None:
    """The dispatcher warns once a process about a replaced kernel: that once is not ours to use up.

    Where it does: torch 2.15 says nothing, with aten_ext or without.
    """
    code = """
import torch, aten_ext
library = torch.library.Library("aten", "IMPL")
library.impl("_fused_sgd_", lambda *args, **kwargs: None, "CPU")
"""
    warning = "Overriding a previously registered kernel"
    alone = python("-c", code.replace("torch, aten_ext", "torch")).stderr
    assert (warning in python("-c", code).stderr) == (warning in alone)
    assert warning in alone or tuple(map(int, torch.__version__.split(".")[:2])) > (2, 13)


def test_warnings_are_heard_again() -> None:
    """What hears C++ warnings outside calls from Python is the same after the import as before it."""
    code = """
import ctypes, torch
handler = ctypes.CDLL("libc10.so")._ZN3c1012WarningUtils19get_warning_handlerEv
handler.restype = ctypes.c_void_p
before = handler()
import aten_ext
print(before == handler())
"""
    assert python("-c", code).stdout == "True\n"


def test_one_openmp_runtime() -> None:
    """at::parallel_for here and in torch share one pool of threads."""
    libraries = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line
    }
    assert len(libraries) == 1


def test_kernels_use_no_python() -> None:
    """A C++ program can dlopen the library, and one file serves every Python version."""
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", _load.kernels_path()], capture_output=True, text=True, check=True
    ).stdout
    python_symbols = [
        line.split()[-1] for line in symbols.splitlines() if line.split()[-1].startswith(("Py", "_Py"))
    ]
    assert python_symbols == []
    library = ctypes.CDLL(str(_load.kernels_path()))
    library.aten_ext_load_error.restype = ctypes.c_char_p
    assert library.aten_ext_load_error() == b""


def test_entries_have_external_names() -> None:
    """A debugger can break on an entry, and on its choose and run."""
    symbols = subprocess.run(
        ["nm", "-D", "-C", "--defined-only", _load.kernels_path()], capture_output=True, text=True, check=True
    ).stdout
    for override in aten_ext.overrides():
        for key in override.keys:
            symbol = f"{override.name.replace('.', '_')}_{key.lower()}"
            operator = override.name.replace(".", "_")
            assert f"aten_ext::entry::{symbol}(" in symbols
            for function in ("choose", "run"):
                assert f"aten_ext::{key.lower()}::{function}(aten_ext::args::{operator} const&" in symbols


# ---- the version guard ------------------------------------------------------------------------------


@pytest.mark.parametrize("running", ["2.12.0", "3.13.0", "2.1.0", "2.110.0"])
def test_other_torch_is_refused_before_loading(running: str) -> None:
    with pytest.raises(
        ImportError, match=rf"built for torch 2\.11, running under torch {running}; rebuild it.*pip"
    ):
        _load.check_versions("2.11", running)


@pytest.mark.parametrize("running", ["2.11.0", "2.11.1+cu130", "2.11.0a0+git123"])
def test_same_minor_is_accepted(running: str) -> None:
    _load.check_versions("2.11", running)


@pytest.mark.parametrize(
    ("built_for_cuda", "running", "cuda", "problem", "wheel"),
    [
        ("13.0", "2.11.0+cpu", None, "with CUDA 13.0, .* 2.11.0+cpu without CUDA", "pt211cpu"),
        ("13.0", "2.11.0+cu126", "12.6", "with CUDA 13.0, .* 2.11.0+cu126 with CUDA 12.6", "pt211cu126"),
        ("1.0", "2.11.0", "12.8", "with CUDA 1.0, .* with CUDA 12.8", "pt211cu128"),
        ("13.0", "2.13.0", "13.0", "built for torch 2.11, running under torch 2.13.0;", "pt213cu130"),
        ("", "2.13.0+cpu", None, "built for torch 2.11, running under torch 2.13.0+cpu;", "pt213cpu"),
        ("12.8", "2.13.0+cpu", None, "with CUDA 12.8, .* 2.13.0+cpu without CUDA;", "pt213cpu"),
    ],
)
def test_other_build_is_refused_with_the_name_of_the_right_wheel(
    built_for_cuda: str, running: str, cuda: str | None, problem: str, wheel: str
) -> None:
    with pytest.raises(ImportError, match=problem.replace("+", r"\+")) as refused:
        _load.check_versions("2.11", running, built_for_cuda, cuda)
    assert f"+{wheel})" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("built_for_cuda", "cuda"), [("", None), ("", "13.0"), ("13.0", "13.0"), ("12.8", "12.6")]
)
def test_fitting_build_is_accepted(built_for_cuda: str, cuda: str | None) -> None:
    """Kernels of the CPU alone under a torch with CUDA; another minor version of CUDA."""
    _load.check_versions("2.11", "2.11.0", built_for_cuda, cuda)


def test_built_for_this_torch() -> None:
    assert torch.__version__.startswith(_C.built_for_torch + ".")


def test_library_looks_at_the_version_itself(tmp_path: Path) -> None:
    """With the Python check out of the way, the library still refuses, and registers nothing.

    The function that it asks for torch's version is answered for it by a library loaded before torch.
    """
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "other_torch.cpp"
    source.write_text(
        'extern "C" unsigned long long aoti_torch_abi_version() { return 99ull << 56 | 7ull << 48; }'
    )
    library = tmp_path / "other_torch.so"
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    code = """
import torch
try:
    import aten_ext
except ImportError as error:
    print(error)
print(torch._C._dispatch_dump("aten::_fused_adamw_").count("entries.cpp"))
"""
    run = python("-c", code, LD_PRELOAD=f"{os.environ.get('LD_PRELOAD', '')}:{library}")
    message, replaced = run.stdout.strip().splitlines()
    assert f"built for torch {_C.built_for_torch}, running under torch 99.7; rebuild it" in message
    assert "pip install" in message and replaced == "0"


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    """The package on its own, so that its files can be spoilt."""
    package = tmp_path / "site" / "aten_ext"
    shutil.copytree(Path(_load.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


@pytest.mark.parametrize("spoil", ["missing", "corrupt"])
@pytest.mark.parametrize("file", ["_C", "_kernels"])
def test_missing_or_corrupt_library(package_copy: Path, spoil: str, file: str) -> None:
    """One line that names the file and the command; torch keeps working."""
    path = next(package_copy.glob(f"{file}.*so"))
    path.unlink()
    if spoil == "corrupt":
        path.write_bytes(b"not a library")
    code = f"""
import sys
sys.path.insert(0, {str(package_copy.parent)!r})
import torch
try:
    import aten_ext
except ImportError as error:
    print(error)
print(torch.ones(2).sum().item())
"""
    run = python("-c", code)
    message, result = run.stdout.strip().splitlines()
    assert message.startswith("[aten_ext] ") and file in message and "pip install" in message
    assert (result, run.stderr) == ("2.0", "")


# ---- autoload ---------------------------------------------------------------------------------------

ACTIVE = "import sys; print('aten_ext' in sys.modules and sys.modules['aten_ext'].is_active())"


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "value", "expected"),
    [
        ("import torch", "1", "True"),
        ("import torch", "0", "False"),
        ("import torch", "", "False"),
        ("import aten_ext", "1", "True"),
        ("import aten_ext, torch", "0", "True"),
    ],
)
def test_autoload(first: str, value: str, expected: str) -> None:
    run = python("-W", "error", "-c", f"{first}; {ACTIVE}", ATEN_EXT_AUTOLOAD=value)
    assert (run.stdout.strip(), run.stderr) == (expected, "")


def test_failing_autoload_is_a_warning() -> None:
    run = python(
        "-c", "import torch; print(torch.ones(2).sum().item())", ATEN_EXT_AUTOLOAD="1", ATEN_EXT="yes"
    )
    assert run.stdout.strip() == "2.0"
    assert "aten_ext was not loaded: [aten_ext] ATEN_EXT: expected 0 or 1, got 'yes'" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize("error", ["RuntimeError", "OSError", "AttributeError", "ValueError"])
def test_any_failure_of_autoload_is_a_warning(tmp_path: Path, error: str) -> None:
    """Not ImportError alone: a package that is broken in any way must not take `import torch` with it."""
    broken = tmp_path / "aten_ext"
    broken.mkdir()
    (broken / "__init__.py").write_text(f"raise {error}('broken on purpose')\n")
    code = "import aten_ext_autoload as a; a.activate(); print('alive')"
    run = python("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}", ATEN_EXT_AUTOLOAD="1")
    assert run.stdout.strip() == "alive", run.stderr
    assert "ATEN_EXT_AUTOLOAD=1: aten_ext was not loaded: broken on purpose" in run.stderr


def test_autoload_module_imports_nothing() -> None:
    source = Path(sys.modules["aten_ext"].__path__[0]).parent / "aten_ext_autoload.py"
    top_level = [line for line in source.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert top_level == ["from __future__ import annotations"]


# ---- from the root of a checkout --------------------------------------------------------------------


def test_root_of_the_checkout_finds_the_installed_package() -> None:
    run = python("-c", "import aten_ext; print(aten_ext.is_active(), aten_ext.__file__)", cwd=ROOT)
    assert (
        run.stdout.startswith("True ") and run.stdout.strip().endswith("python/aten_ext/__init__.py")
    ) or ("site-packages" in run.stdout)


def test_root_of_the_checkout_without_the_package() -> None:
    """Not an empty namespace package that overrides nothing, but an error that says what to do."""
    code = f"""
import sys
here = {str(ROOT)!r}
sys.path = [here] + [p for p in sys.path if p not in ("", here) and not p.endswith("/python")
                     and "site-packages" not in p]
sys.meta_path = [f for f in sys.meta_path if "editable" not in repr(f)]
try:
    import aten_ext
except ImportError as error:
    print(error)
"""
    run = python("-S", "-c", code, cwd=ROOT)
    assert "the Python package is not installed" in run.stdout and "pip install" in run.stdout, run.stderr
