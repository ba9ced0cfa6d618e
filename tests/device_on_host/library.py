"""Compile the CUDA side of an override for the CPU and call it.

``load("fused_adam")`` compiles ``aten_ext/cuda/fused_adam.cpp`` and ``.cu`` as C++ against the stand-ins in
``include/`` and makes the ``run`` functions found there into operators
``torch.ops.aten_ext_on_host.<overload>`` with the schema of the operator that they override; they take CPU
tensors. What this can show and what not is said in ``runtime.h``. PTX is out of reach: it stands in headers
of its own under ``aten_ext/cuda/device``, each with a twin of the same functions in
``include/cuda/device``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
import torch.utils.cpp_extension

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
SOURCES = ROOT / "aten_ext"


def cuda_include_folder() -> Path | None:
    """Where the toolkit's headers are (types, fp16 and bf16); None where there is none."""
    candidates = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    nvcc = shutil.which("nvcc")
    if nvcc:
        candidates.append(str(Path(nvcc).resolve().parent.parent))
    candidates.append(str(torch.utils.cpp_extension.CUDA_HOME or ""))
    folders = [Path(c) / "include" for c in candidates if c]
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        folders.extend(sorted(Path(place).glob("cu*/include")))
        folders.append(Path(place) / "cuda_runtime" / "include")
    return next((f for f in folders if (f / "cuda_bf16.h").exists()), None)


def why_not() -> str | None:
    """Why nothing can be compiled here, or None."""
    if cuda_include_folder() is None:
        return "the headers of the CUDA toolkit are not installed"
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return "no C++ compiler"
    return None


@functools.cache
def _codegen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("aten_ext_codegen", ROOT / "scripts" / "codegen.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _bindings(source: str) -> str:
    """C++ that registers every ``run`` function that ``source`` defines."""
    codegen = _codegen()
    upstream = codegen.Upstream()
    lines = ['#include <torch/library.h>\n\n#include "overrides.h"\n\n']
    blocks = []
    for override in codegen.read_table(ROOT / "native_functions_ext.yaml", upstream):
        function = str(upstream.function(override.name).func)
        # A run function may be spelled by a macro that pastes the operator's name: look for that too.
        base = override.name.partition(".")[0]
        spelled = re.search(rf"\brun::{re.escape(override.symbol)}\b", source)
        pasted = re.search(rf"^[A-Z_]+RUN\({re.escape(base)}\b", source, re.MULTILINE)
        if override.key == "CUDA" and (spelled or pasted):
            blocks.append(
                f'  m.def("{function}");\n  m.impl("{override.name}", c10::DispatchKey::CPU, '
                f"TORCH_FN(aten_ext::run::{override.symbol}));\n"
            )
    lines.append(f"TORCH_LIBRARY_FRAGMENT(aten_ext_on_host, m) {{\n{''.join(blocks)}}}\n")
    return "".join(lines)


# Which order the threads of a block get their turns in: 0 forward, 1 backward, 2 shuffled by a seed.
_CONTROL = """
#include <torch/library.h>

#include "runtime.h"

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_NAME, m) {
  m.def("set_order", [](int64_t order, int64_t seed) {
    device_on_host::set_order(static_cast<device_on_host::Order>(order), static_cast<uint64_t>(seed));
  });
  m.def("set_driver", [](int64_t version) {
    device_on_host::device().driver = static_cast<int>(version);
  });
}
"""


@contextlib.contextmanager
def _nothing_preloaded() -> Iterator[None]:
    """A sanitizer that Python was started with is none of the compiler's business."""
    preloaded = os.environ.pop("LD_PRELOAD", None)
    try:
        yield
    finally:
        if preloaded is not None:
            os.environ["LD_PRELOAD"] = preloaded


def _compile(name: str, files: list[Path], folder: Path) -> None:
    generated = folder / "generated"
    sources = [HERE / "runtime.cpp"]
    for file in files:
        # The compiler decides by the suffix: a .cu is included by a .cpp.
        wrapper = generated / f"{file.stem}_cu.cpp"
        if file.suffix == ".cu":
            _write(wrapper, f'#include <cuda_runtime.h>\n#include "{file}"\n')
        sources.append(wrapper if file.suffix == ".cu" else file)
    include = cuda_include_folder()
    assert include is not None, why_not()
    folders = [HERE / "include", HERE, SOURCES, generated]
    with _nothing_preloaded():
        torch.utils.cpp_extension.load(  # type: ignore[no-untyped-call]
            f"aten_ext_on_host_{name}",
            [str(source) for source in sources],
            extra_include_paths=[*map(str, folders)],
            extra_cflags=[
                "-O1",
                "-std=c++20",
                f"-isystem{include}",
                "-U_FORTIFY_SOURCE",  # its longjmp takes a jump between stacks for an attack
                "-ffp-contract=off",
                "-DATEN_EXT_WITH_CUDA",
                "-DATEN_EXT_DEVICE_ON_HOST",
                "-Wno-unknown-pragmas",
                "-Wno-attributes",
                *os.environ.get("ATEN_EXT_ON_HOST_CFLAGS", "").split(),
            ],
            extra_ldflags=os.environ.get("ATEN_EXT_ON_HOST_LDFLAGS", "").split(),
            build_directory=str(folder),
            is_python_module=False,
        )


def _folder(name: str) -> Path:
    version = f"torch{'.'.join(torch.__version__.split('.')[:2])}-{sys.implementation.cache_tag}"
    folder = Path(os.environ.get("ATEN_EXT_ON_HOST_BUILD", ROOT / "build" / "on_host")) / version / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def load(name: str, *more: str) -> None:
    """Compile ``aten_ext/cuda/<name>.cpp`` and ``.cu`` and make their ``run`` functions operators.

    ``torch.ops.aten_ext_on_host_<name>.set_order(order, seed)`` sets the order of threads for what follows:
    0 forward, 1 backward, 2 shuffled. ``set_driver(version)`` sets what CUDA's driver says its version is.

    Args:
        name: the override's file name.
        *more: further files under ``aten_ext/``, e.g. ``"cuda/gru_cluster.cu"``.

    Raises:
        RuntimeError: it does not compile.
    """
    folder = _folder(name)
    generated = folder / "generated"
    _codegen().generate(ROOT / "native_functions_ext.yaml", generated, with_cuda=True)
    files = [SOURCES / file for file in (f"cuda/{name}.cpp", f"cuda/{name}.cu", *more)]
    bindings = generated / "bindings.cpp"
    text = "".join(file.read_text() for file in files)
    _write(bindings, _bindings(text) + _CONTROL.replace("NAME", name))
    _compile(name, [bindings, *(file for file in files if file.exists())], folder)


@functools.cache
def load_selftest() -> None:
    """Compile ``selftest.cu``: ``torch.ops.aten_ext_on_host_selftest``."""
    _compile("selftest", [HERE / "selftest.cu"], _folder("selftest"))
