"""Compile the CUDA side of an override for the CPU and call it.

``load("cat", "ops/cat/cuda.cpp", "ops/cat/runs.cu", ...)`` compiles these files as C++ against the stand-ins
in ``include/`` and makes the ``run`` functions found there into operators
``torch.ops.aten_ext_on_host.<overload>`` with the schema of the operator that they override; they take CPU
tensors. What this can show and what not is said in ``runtime.h``. PTX is out of reach: it stands in headers
of its own, each with a twin of the same functions at the same place below ``include/``.
"""

from __future__ import annotations

import contextlib
import fcntl
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

import aten_headers
from paths import ROOT

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
    """Why nothing can be compiled here, or is not to be (ATEN_EXT_ON_HOST=0), or None."""
    if os.environ.get("ATEN_EXT_ON_HOST") == "0":
        return "ATEN_EXT_ON_HOST=0"
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


# An override that decides and runs, with neither its entry nor upstream. Compiled with the GPU's kernels.
_CALL = """
template <class Result, class Args>
Result decide_and_run(const Args& arguments) {
  const auto choice = aten_ext::cuda::choose(arguments);
  TORCH_CHECK(choice.reason() == nullptr, "declined: ", choice.reason());
  auto ran = aten_ext::cuda::run(arguments, choice.plan());
  TORCH_CHECK(!ran.refused(), "declined late");
  return static_cast<Result>(ran.take());
}
"""


def _bindings(source: str, families: set[str]) -> str:
    """C++ that registers every override at CUDA of which ``source`` defines ``run``."""
    if not families:  # kernels with operators of a test's own
        return "#include <torch/library.h>\n"
    codegen = _codegen()
    upstream = codegen.Upstream()
    headers = "".join(f'#include "ops/{family}/overrides.h"\n' for family in sorted(families))
    blocks = []
    for override in codegen.read_table(ROOT / "native_functions_ext.yaml", upstream):
        spelled = re.search(rf"\bargs::{re.escape(override.operator)}\b", source)
        if override.key == "CUDA" and override.family in families and spelled:
            blocks.append(
                f'  m.def("{upstream.function(override.name).func}");\n'
                f'  m.impl("{override.name}", c10::DispatchKey::CPU, []({override.arguments})'
                f" -> {override.returns} {{\n    return decide_and_run<{override.returns}>("
                f"aten_ext::args::{override.operator}{{{override.argument_names}}});\n  }});\n"
            )
    return (
        f"#include <torch/library.h>\n\n{headers}{_CALL}\n"
        f"TORCH_LIBRARY_FRAGMENT(aten_ext_on_host, m) {{\n{''.join(blocks)}}}\n"
    )


# Which order the threads of a block get their turns in: 0 forward, 1 backward, 2 shuffled by a seed.
_CONTROL = """
#include <torch/library.h>

#include "core/gpu.h"
#include "runtime.h"

namespace {

// A GPU for the rules and for the launches, its facts as aten_ext::pretend_gpu takes them.
void set_gpu(at::IntArrayRef facts) {
  device_on_host::Device& device = device_on_host::device();
  const int driver = device.driver;
  device = {};
  device.driver = driver;
  aten_ext::pretend_gpu(facts);
  if (facts.empty()) {
    return;
  }
  const auto fact = [&](size_t i) { return static_cast<int>(facts[i]); };
  device.number = 1000;
  device.compute_major = fact(0) / 10;
  device.compute_minor = fact(0) % 10;
  device.code = fact(1);
  device.multiprocessors = fact(2);
  device.shared_bytes_per_block = fact(3);
  device.shared_bytes_per_multiprocessor = fact(4);
  for (size_t i = 0; i < 5; ++i) {
    device.clusters[i] = fact(5 + i);
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_NAME, m) {
  m.def("set_gpu(int[] facts) -> ()", set_gpu);
  m.def("refuse(int count, int after=0) -> ()", [](int64_t count, int64_t after) {
    device_on_host::device().refused = static_cast<int>(count);
    device_on_host::device().refused_after = static_cast<int>(after);
  });
  m.def("set_order", [](int64_t order, int64_t seed) {
    device_on_host::set_order(static_cast<device_on_host::Order>(order), static_cast<uint64_t>(seed));
  });
  m.def("launched() -> str[]", [] {
    c10::List<std::string> names;
    for (const std::string& name : device_on_host::take_launched()) {
      names.push_back(name);
    }
    return names;
  });
  m.def("overlaps() -> bool[]", [] {
    c10::List<bool> result;
    for (const bool overlaps : device_on_host::take_overlaps()) {
      result.push_back(overlaps);
    }
    return result;
  });
  m.def("threads() -> int[]", [] {
    c10::List<int64_t> result;
    for (const int64_t threads : device_on_host::take_threads()) {
      result.push_back(threads);
    }
    return result;
  });
  m.def("capture(int number, int other_launches=0) -> ()", [](int64_t number, int64_t other_launches) {
    device_on_host::Device& device = device_on_host::device();
    const auto wanted = static_cast<unsigned long long>(number);
    device.captured = device.capture == wanted ? device.captured : 0;
    device.captured += static_cast<uintptr_t>(other_launches);
    device.capture = wanted;
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


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time. torch's own lock there outlives a process that is killed; this one does not."""
    with (folder / "process_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        yield


def _flags() -> list[str]:
    include = cuda_include_folder()
    assert include is not None, why_not()
    return [
        "-O1",
        "-std=c++20",
        # A CUDA build has the same kernels: without this and -Bsymbolic the loader would take static
        # variables of templates from there.
        "-fno-gnu-unique",
        f"-isystem{include}",
        "-U_FORTIFY_SOURCE",  # its longjmp takes a jump between stacks for an attack
        "-ffp-contract=off",
        # A call of the C library for each fmaf otherwise, of which kernels are made.
        *(["-mavx2", "-mfma"] if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") else []),
        # A GPU has no misaligned access, and no array an index beyond its own: misuse.cpp says what becomes
        # of them.
        "-fsanitize=alignment,bounds",
        "-fno-sanitize-recover=alignment,bounds",
        "-DATEN_EXT_WITH_CUDA",
        "-DATEN_EXT_DEVICE_ON_HOST",
        "-Wno-unknown-pragmas",
        "-Wno-attributes",
        *os.environ.get("ATEN_EXT_ON_HOST_CFLAGS", "").split(),
    ]


def _wrapped(file: Path, generated: Path) -> Path:
    """What the compiler, which decides by the suffix, takes for ``file``: a .cu is included by a .cpp."""
    wrapper = generated / f"{file.parent.name}_{file.stem}{file.suffix.replace('.', '_')}.cpp"
    if file.suffix != ".cu":
        return aten_headers.behind_them(file, wrapper)
    _write(wrapper, f'#include <cuda_runtime.h>\n#include "{file}"\n')
    return wrapper


def _build(name: str, sources: list[Path], folder: Path, link: list[str]) -> None:
    folders = [HERE / "include", HERE, SOURCES, folder / "generated"]
    with _nothing_preloaded(), _alone(folder):
        torch.utils.cpp_extension.load(  # type: ignore[no-untyped-call]
            f"aten_ext_on_host_{name}",
            [str(source) for source in sources],
            extra_include_paths=[*map(str, folders)],
            extra_cflags=aten_headers.flags(_flags()),
            extra_ldflags=[
                "-Wl,-Bsymbolic",
                *aten_headers.LINK,
                *link,
                *os.environ.get("ATEN_EXT_ON_HOST_LDFLAGS", "").split(),
            ],
            build_directory=str(folder),
            is_python_module=False,
        )


# What every library has a copy of, for it has state: the device, and what the project asks of it.
_DEVICE = ("runtime.cpp", "launch.cpp", "misuse.cpp")
_ASKED = ("core/gpu.cpp", "core/tables.cpp", "core/query_gpu.cu")


@functools.cache
def _objects(of_device: bool) -> list[str]:
    """Object files of these, compiled once for all libraries; the last flag tells the linker of new ones."""
    folder = _folder("device" if of_device else "asked")
    files = [HERE / file for file in _DEVICE] if of_device else [SOURCES / file for file in _ASKED]
    sources = [_wrapped(file, folder / "generated") for file in files]
    _build(folder.name, sources, folder, [] if of_device else _objects(True))
    objects = [folder / f"{source.stem}.o" for source in sources]
    written = "-".join(str(file.stat().st_mtime_ns) for file in objects)
    return [*map(str, objects), f"-Dwritten={written}"]


def _compile(name: str, files: list[Path], folder: Path, objects: list[str]) -> None:
    _build(name, [_wrapped(file, folder / "generated") for file in files], folder, objects)


def _folder(name: str) -> Path:
    version = f"torch{'.'.join(torch.__version__.split('.')[:2])}-{sys.implementation.cache_tag}"
    folder = Path(os.environ.get("ATEN_EXT_ON_HOST_BUILD", ROOT / "build" / "on_host")) / version / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def load(name: str, *files: str) -> None:
    """Compile files below ``aten_ext/`` and make their ``run`` functions operators.

    ``torch.ops.aten_ext_on_host_<name>.set_order(order, seed)`` sets the order of threads for what follows:
    0 forward, 1 backward, 2 shuffled. ``set_driver(version)`` sets what CUDA's driver says its version is;
    ``set_gpu(facts)`` makes the device another GPU, for rules and launches both (``[]``: an H200 again);
    ``refuse(count, after)`` lets the device refuse so many launches, after so many that it takes;
    ``launched()`` lists the launches since it was asked last, each as the types of its arguments;
    ``overlaps()``, whether each may overlap with the one before; ``threads()``, how many each has.
    ``capture(number, other_launches)`` begins a capture, or adds launches to it; 0 ends it.

    Args:
        name: of the library that is made.
        *files: e.g. ``"ops/rnn/cluster.cu"``; an absolute path may lie elsewhere, and its overrides are none.

    Raises:
        RuntimeError: it does not compile.
    """
    folder = _folder(name)
    generated = folder / "generated"
    paths = [SOURCES / file for file in files]
    families = {file.split("/")[1] for file in files if file.startswith("ops/")}
    _codegen().generate(ROOT / "native_functions_ext.yaml", generated, with_cuda=True, families=families)
    bindings = generated / "bindings.cpp"
    text = "".join(path.read_text() for path in paths)
    _write(bindings, _bindings(text, families) + _CONTROL.replace("NAME", name))
    _compile(name, [bindings, *paths], folder, [*_objects(True), *_objects(False)])


@functools.cache
def load_selftest() -> None:
    """Compile ``selftest.cu``: ``torch.ops.aten_ext_on_host_selftest``."""
    _compile("selftest", [HERE / "selftest.cu"], _folder("selftest"), _objects(True))
