"""Build aten_ext: generate the entries, then compile ``_kernels.abi3.so`` and ``_C``.

Environment:

* ``ATEN_EXT_BUILD_CUDA``: ``1`` makes it an error when the CUDA kernels cannot be built, ``0`` leaves them
  out. Unset: they are built when the installed torch has CUDA and a toolkit of the same major version is
  found, otherwise one line says why not.
* ``TORCH_CUDA_ARCH_LIST``: the GPU architectures, as for any PyTorch extension. Unset: those of the GPUs
  that are present. ``all``, or no GPU: everything from sm_75 to the newest that the toolkit knows, with 9.0a
  for Hopper, and PTX of the last.
* ``ATEN_EXT_BUILD_FAMILIES``: ``cat,rnn`` builds the overrides of these families alone, for work on one of
  them. Unset: all.
* ``CUDA_HOME``, ``MAX_JOBS``: as for any PyTorch extension.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
SOURCES = Path("aten_ext")
GENERATED = Path("build") / "generated"
BINDINGS = SOURCES / "core" / "bindings.cpp"

FAMILIES = [
    name for name in os.environ.get("ATEN_EXT_BUILD_FAMILIES", "").replace(" ", "").split(",") if name
]

try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    sys.exit(
        f"aten_ext: expected torch >= 2.11 in the environment that builds, got: {error}; "
        "install torch first, then: pip install --no-build-isolation ."
    )

# Some compilers link libstdc++ statically. Hidden, that copy cannot mix with the one that torch has loaded: a
# number written to a stream would take a facet of the other's locale, and crash.
OWN_LIBSTDCXX = "-Wl,--exclude-libs,libstdc++.a"
TORCH_VERSION = ".".join(torch.__version__.split(".")[:2])
if tuple(int(part) for part in TORCH_VERSION.split(".")) < (2, 11):
    sys.exit(f"aten_ext: expected torch >= 2.11, got {torch.__version__}")

# Vectorised CPU kernels: compiled for an instruction set that not every machine has, chosen at run time.
# Each: the sources, the flags. AVX2 alone where memory is the limit: AVX-512 measured no faster there.
CAPABILITIES: dict[str, tuple[str, list[str]]] = {}
if platform.machine() in ("x86_64", "AMD64"):
    # Fused multiply-adds are written out where they are wanted; the compiler is to make no others.
    avx2 = ["-mavx2", "-mfma", "-mf16c", "-ffp-contract=off"]
    # GCC 12 warns of its own header there.
    avx512 = [*avx2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")), "-Wno-maybe-uninitialized"]
    CAPABILITIES["AVX2"] = ("**/cpu/*_kernel.cpp", avx2)
    CAPABILITIES["AVX512"] = ("ops/rnn/cpu/*_kernel.cpp", avx512)

WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def say(text: str) -> None:
    """One line for the person who builds."""
    print(f"aten_ext: {text}", file=sys.stderr, flush=True)


def find_toolkit() -> Path | None:
    """The root of the CUDA toolkit: CUDA_HOME, or what the nvcc on the PATH says of itself."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return Path(home) if (Path(home) / "bin" / "nvcc").exists() else None
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return Path("/usr/local/cuda") if Path("/usr/local/cuda/bin/nvcc").exists() else None
    # nvcc may be a wrapper script elsewhere than in its toolkit.
    trace = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", "-E", os.devnull], capture_output=True, text=True, check=False
    )
    top = re.search(r"^#\$ TOP=(.*)$", trace.stderr, re.MULTILINE)
    return Path(top.group(1)).resolve() if top else Path(nvcc).resolve().parent.parent


def nvcc_output(toolkit: Path, argument: str) -> str:
    """What the toolkit's nvcc prints for one argument."""
    return subprocess.run(
        [toolkit / "bin" / "nvcc", argument], capture_output=True, text=True, check=True
    ).stdout


def decide_cuda() -> Path | None:
    """The toolkit to build the CUDA kernels with, or None after one line that says why they are left out."""
    wanted = os.environ.get("ATEN_EXT_BUILD_CUDA", "")
    if wanted not in ("", "0", "1"):
        sys.exit(f"aten_ext: ATEN_EXT_BUILD_CUDA: expected 0 or 1, got {wanted!r}")
    toolkit = find_toolkit()
    if wanted == "0":
        missing = "ATEN_EXT_BUILD_CUDA=0"
    elif torch.version.cuda is None:
        missing = f"torch {torch.__version__} is a build without CUDA"
    elif toolkit is None:
        missing = "no nvcc found (looked at CUDA_HOME, the PATH and /usr/local/cuda)"
    else:
        release = re.search(r"release (\d+)\.(\d+)", nvcc_output(toolkit, "--version"))
        found = release.group(1) if release else "unknown"
        if found == torch.version.cuda.partition(".")[0]:
            return toolkit
        missing = (
            f"nvcc in {toolkit} is of CUDA {found}, torch {torch.__version__} of CUDA {torch.version.cuda}"
        )
    if wanted == "1":
        sys.exit(f"aten_ext: ATEN_EXT_BUILD_CUDA=1, but {missing}")
    say(f"building the CPU kernels only: {missing}")
    return None


def gpus_here() -> list[int]:
    """The compute capabilities of the GPUs present, 90 for 9.0; empty where there is none."""
    if not torch.cuda.is_available():
        return []
    capabilities = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    return sorted({10 * major + minor for major, minor in capabilities})


def machine_code(number: int) -> str:
    """The -gencode flag for it. 9.0a: the instructions that only Hopper has (setmaxnreg, wgmma)."""
    name = "90a" if number == 90 else str(number)
    return f"-gencode=arch=compute_{name},code=sm_{name}"


def arch_flags(toolkit: Path) -> list[str]:
    """The default -gencode flags; none where TORCH_CUDA_ARCH_LIST names some: torch reads it.

    Those of the GPUs present, if the toolkit knows them. Otherwise all: machine code of x.y also runs on x.z
    for z > y, so one of each major version is enough to cover it; 8.6 and 8.9 are there for speed, and the
    PTX of the newest for what comes after.
    """
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if wanted not in ("", "all"):
        return []
    numbers = [int(n) for n in re.findall(r"compute_(\d+)\b", nvcc_output(toolkit, "--list-gpu-arch"))]
    known = sorted(n for n in set(numbers) if n >= 75)
    here = [] if wanted else gpus_here()
    if here and set(here) <= set(known):
        return [machine_code(n) for n in here]
    first_of_major = {n // 10: n for n in reversed(known)}
    chosen = sorted({*first_of_major.values(), *({86, 89} & set(known))})
    newest = f"-gencode=arch=compute_{known[-1]},code=compute_{known[-1]}"
    return [*map(machine_code, chosen), newest]


def compression(toolkit: Path) -> list[str]:
    """The nvcc flags that make the machine code small; by itself nvcc leaves it as it is.

    What "size" writes takes a driver of CUDA 12.4 or newer to read, which CUDA 12 as such does not ask for.
    """
    release = re.search(r"release (\d+)\.", nvcc_output(toolkit, "--version"))
    if release and int(release.group(1)) >= 13:
        return ["--compress-mode=size"]
    return ["-Xfatbin", "-compress-all"]


def debug_info() -> list[str]:
    """No debug information, which is three times the code, unless CFLAGS or CXXFLAGS ask for some.

    Function names stay in the symbol table. NVCC_APPEND_FLAGS=-lineinfo is the same for the GPU's side.
    """
    asked = shlex.split(f"{os.environ.get('CFLAGS', '')} {os.environ.get('CXXFLAGS', '')}")
    return [] if any(flag.startswith("-g") for flag in asked) else ["-g0"]


def architectures(toolkit: Path) -> str:
    """What the kernels are built for, as nvcc names it: sm_90a is machine code, compute_120 is PTX."""
    flags = arch_flags(toolkit) or cpp_extension._get_cuda_arch_flags()
    return " ".join(dict.fromkeys(name for flag in flags for name in re.findall(r",code=\[?(\w+)", flag)))


def system_include(folders: list[str]) -> list[str]:
    """Flags that make the headers there other people's: our warnings do not apply to them."""
    return [flag for folder in folders for flag in ("-isystem", folder)]


def torch_includes(toolkit: Path | None) -> list[str]:
    """Header folders of torch, of the toolkit, and of the CUDA libraries that torch's wheel brings."""
    includes = [str(path) for path in cpp_extension.include_paths()]
    if toolkit is not None:
        includes.append(str(toolkit / "include"))
        site_packages = Path(torch.__file__).parent.parent
        includes += sorted(str(path) for path in site_packages.glob("nvidia/cu*/include"))
    return includes


def find_cuda_library(toolkit: Path, name: str) -> Path:
    """A library of CUDA to link: the toolkit's, or the one in torch's wheel. torch has loaded it already."""
    site_packages = Path(torch.__file__).parent.parent
    for folder in (toolkit / "lib64", *site_packages.glob("nvidia/cu*/lib")):
        for library in sorted(folder.glob(f"{name}.so*")):
            return library
    sys.exit(f"aten_ext: no {name}.so in {toolkit}/lib64 or in the packages beside torch")


def generate_sources(with_cuda: bool) -> list[str]:
    """Run scripts/codegen.py; an error in the table is one line, not a traceback."""
    path = ROOT / "scripts" / "codegen.py"
    spec = importlib.util.spec_from_file_location("aten_ext_codegen", path)
    if not path.exists() or spec is None or spec.loader is None:
        sys.exit("aten_ext: scripts/codegen.py is missing")
    codegen = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = codegen  # dataclasses look their module up
    spec.loader.exec_module(codegen)
    try:
        files = codegen.generate(
            ROOT / "native_functions_ext.yaml", ROOT / GENERATED, with_cuda=with_cuda, families=FAMILIES
        )
    except codegen.TableError as error:
        sys.exit(f"aten_ext: {error}")
    return [str(file.relative_to(ROOT)) for file in files]


def sources_matching(pattern: str) -> list[str]:
    """The sources that a glob pattern below aten_ext/ finds, sorted; of the families that are built."""
    paths = (path.relative_to(SOURCES) for path in SOURCES.glob(pattern))
    return sorted(
        str(SOURCES / path)
        for path in paths
        if not FAMILIES or path.parts[0] != "ops" or path.parts[1] in FAMILIES
    )


def extensions() -> list[Extension]:
    """The two extension modules."""
    toolkit = decide_cuda()
    cuda = toolkit is not None
    by_capability = {name: sources_matching(pattern) for name, (pattern, _) in CAPABILITIES.items()}
    # The ATen side of CUDA holds rules too, which a CPU build has as well: aten_ext.explain asks them.
    # bindings.cpp is the other module's; registry.cpp and watch.cpp are in both.
    apart_sources = {*(source for found in by_capability.values() for source in found), str(BINDINGS)}
    sources = [*generate_sources(cuda), *(s for s in sources_matching("**/*.cpp") if s not in apart_sources)]
    # (folder of the objects, sources, further flags for the host compiler)
    apart: list[tuple[str, list[str], list[str]]] = [
        (
            name.lower(),
            found,
            [f"-DCPU_CAPABILITY={name}", f"-DCPU_CAPABILITY_{name}", *CAPABILITIES[name][1]],
        )
        for name, found in by_capability.items()
        if found
    ]

    common = [
        "-O3",
        *debug_info(),
        f"-I{ROOT / SOURCES}",
        f"-I{ROOT / GENERATED}",
        *system_include(torch_includes(toolkit)),
    ]
    # -fopenmp: at::parallel_for is a template; without it, it is a serial loop here. The library is the one
    # that torch has loaded already (same soname), so there is one pool of threads.
    host = [*common, *WARNINGS, "-fvisibility-inlines-hidden", "-fno-semantic-interposition", "-fopenmp"]
    # -Bsymbolic: calls within the library are direct, not through a table that another could redirect.
    link = ["-Wl,--no-undefined", "-Wl,-Bsymbolic", "-fopenmp", OWN_LIBSTDCXX]
    kernels: dict[str, Any] = {"name": "aten_ext._kernels", "py_limited_api": True}
    if toolkit is not None:
        os.environ.setdefault("CUDA_HOME", str(toolkit))
        cpp_extension.CUDA_HOME = str(toolkit)
        # Apart, because op.cpp and op.cu in one folder would both become op.o.
        apart.append(("device", sources_matching("**/*.cu"), []))
        say(f"compiling CUDA kernels for {architectures(toolkit)} (TORCH_CUDA_ARCH_LIST chooses)")
        host.append("-DATEN_EXT_WITH_CUDA")
        device = ["-O3", f"-I{ROOT / SOURCES}", *system_include(torch_includes(toolkit))]
        device += ["-Xcompiler", ",".join(WARNINGS), "-Xptxas", "-warn-spills", *arch_flags(toolkit)]
        device += compression(toolkit)
        for name in ("libcudart", "libcublas", "libcublasLt"):
            library = find_cuda_library(toolkit, name)
            link += [f"-L{library.parent}", f"-l:{library.name}"]
        link += [
            "-ldl",  # apart from the C library before glibc 2.34
            # Nothing refers to it by name until the dispatcher does.
            "-Wl,--no-as-needed",
            "-ltorch_cuda",
        ]
        extension = cpp_extension.CUDAExtension(
            sources=sources, extra_compile_args={"cxx": host, "nvcc": device}, extra_link_args=link, **kernels
        )
        extension.libraries.remove("cudart")
    else:
        extension = cpp_extension.CppExtension(
            sources=sources, extra_compile_args={"cxx": host}, extra_link_args=link, **kernels
        )
    extension.apart = apart

    import pybind11

    definitions = {
        "ATEN_EXT_BUILT_FOR_TORCH": TORCH_VERSION,
        "ATEN_EXT_BUILT_FOR_CUDA": (torch.version.cuda or "") if cuda else "",
        "ATEN_EXT_CUDA_ARCH_LIST": architectures(toolkit) if toolkit is not None else "",
    }
    bindings = Extension(
        "aten_ext._C",
        [str(BINDINGS), str(SOURCES / "core" / "registry.cpp"), str(SOURCES / "watch" / "watch.cpp")],
        language="c++",
        extra_link_args=[OWN_LIBSTDCXX],
        extra_compile_args={
            "cxx": [
                "-O2",
                "-g0",
                "-fvisibility=hidden",
                *WARNINGS,
                f"-I{ROOT / SOURCES}",
                *system_include([pybind11.get_include()]),
                *(f'-D{name}="{value}"' for name, value in definitions.items()),
            ]
        },
    )
    return [extension, bindings]


class Build(cpp_extension.BuildExtension):
    """BuildExtension that compiles some sources apart from the others: see :attr:`apart` in extensions()."""

    def finalize_options(self) -> None:
        """Keep the objects of each torch and Python apart, in a folder that lasts: pip's own is temporary."""
        super().finalize_options()
        tag = f"torch{torch.__version__}-{sys.implementation.cache_tag}"
        self.build_temp = str(ROOT / "build" / f"temp-{tag}")

    def build_extension(self, ext: Extension) -> None:
        """Compile what is apart first, then hand the objects to the ordinary build."""
        for folder, sources, cxx_flags in getattr(ext, "apart", []):
            flags = {**ext.extra_compile_args, "cxx": [*ext.extra_compile_args["cxx"], *cxx_flags]}
            ext.extra_objects += self.compiler.compile(
                sources,
                output_dir=os.path.join(self.build_temp, folder),
                extra_postargs=flags,
                depends=ext.depends,
            )
        # An extension each: both compile registry.cpp, with other flags.
        whole, self.build_temp = self.build_temp, os.path.join(self.build_temp, ext.name.rpartition(".")[2])
        try:
            super().build_extension(ext)
        finally:
            self.build_temp = whole


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": Build},
    install_requires=[f"torch=={TORCH_VERSION}.*", "rich>=13"],
)
