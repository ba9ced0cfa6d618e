"""AddressSanitizer with UBSan, and ThreadSanitizer: flags, harnesses, builds, and tests against them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sanitizer_kind import LEFT_OUT, PYTEST, Kind, Slice, Step, Unavailable, test_files
from scratch import ROOT, BuildError, Scratch

HERE = ROOT / "scripts" / "sanitizers"
COMPILER = os.environ.get("CXX", "g++")


@dataclass(frozen=True)
class Sanitizer:
    """One build."""

    flags: tuple[str, ...]
    library: str
    """What has to be loaded before Python, which is not instrumented itself."""
    options: dict[str, str]
    """Environment; ``{log}`` is where reports go."""
    canaries: tuple[str, ...]
    tests: tuple[str, ...]
    """Arguments of pytest; none: every file but LEFT_OUT."""


SANITIZERS = {
    "address": Sanitizer(
        flags=(
            "-fsanitize=address,undefined",
            # torch's classes have no type information that is the same in both libraries.
            "-fno-sanitize=vptr",
            "-fno-omit-frame-pointer",
        ),
        library="libasan.so",
        options={
            # Leaks: Python's own, at exit, by the thousand. Containers: torch's are not annotated, and a
            # vector that crosses over looks as if it had too many elements. Null: tests ask for more memory
            # than there is.
            "ASAN_OPTIONS": "detect_leaks=0:detect_container_overflow=0:allocator_may_return_null=1:"
            "log_path={log}",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:log_path={log}",
            "OMP_NUM_THREADS": "2",
            "OMP_WAIT_POLICY": "passive",
            # The CUDA kernels that run on the CPU: UBSan alone, AddressSanitizer does not follow their
            # threads from stack to stack. With `null`, functions' addresses are not the constants that torch
            # expects.
            "ATEN_EXT_ON_HOST_CFLAGS": "-fsanitize=undefined -fno-sanitize-recover=all "
            "-fno-sanitize=vptr,null,nonnull-attribute,returns-nonnull-attribute "
            "-fdelete-null-pointer-checks",
            "ATEN_EXT_ON_HOST_LDFLAGS": "-fsanitize=undefined",
        },
        canaries=("canary_address", "canary_undefined"),
        tests=(),
    ),
    "thread": Sanitizer(
        flags=("-fsanitize=thread",),
        library="libtsan.so",
        options={
            "TSAN_OPTIONS": "halt_on_error=0:exitcode=66:log_path={log}",
            # libgomp waits in ways that ThreadSanitizer does not see: threads of Python's alone, and the
            # sharing-out of a list in kernel_threads.cpp.
            "OMP_NUM_THREADS": "1",
        },
        canaries=("canary_thread",),
        tests=(
            "tests/core/test_registry.py",
            "tests/core/test_faults.py",
            "tests/ops/optimizer/test_adam_parity.py",
            "-k",
            "thread or toggled",
        ),
    ),
}


def torch_include() -> str:
    """The folder of torch's headers."""
    from torch.utils import cpp_extension

    return str(cpp_extension.include_paths()[0])


def compiler_file(name: str) -> str:
    """A library of the compiler's.

    Raises:
        Unavailable: it has none of this name.
    """
    if shutil.which(COMPILER) is None:
        raise Unavailable(f"{COMPILER} was not found")
    path = subprocess.run(
        [COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(path).is_absolute():
        raise Unavailable(f"{COMPILER} has no {name}")
    return str(Path(path).resolve())


def harnesses(kind: Kind, sanitizer: Sanitizer, environment: dict[str, str]) -> None:
    """The registry and the kernels under std::thread: instrumented to the last byte, no torch, no Python."""
    common = [COMPILER, "-std=c++20", "-O1", "-g", *sanitizer.flags, "-pthread", "-I", ROOT / "aten_ext"]
    avx2 = [
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-ffp-contract=off",
        "-DCPU_CAPABILITY=AVX2",
        "-DCPU_CAPABILITY_AVX2",
    ]
    programs: dict[str, list[str | Path]] = {
        "registry": [HERE / "registry_threads.cpp", ROOT / "aten_ext/core/registry.cpp"],
        "kernel": [
            *avx2,
            "-isystem",
            torch_include(),
            HERE / "kernel_threads.cpp",
            ROOT / "aten_ext/ops/optimizer/cpu/fused_adam_kernel.cpp",
        ],
        "recurrent_kernels": [
            *avx2,
            "-isystem",
            torch_include(),
            HERE / "rnn_threads.cpp",
            ROOT / "aten_ext/ops/rnn/cpu/forward_kernel.cpp",
            ROOT / "aten_ext/ops/rnn/cpu/backward_kernel.cpp",
        ],
    }
    for name, sources in programs.items():
        program = kind.folder / name
        kind.check(f"compile {name}", [*common, *sources, "-o", program])
        if kind.steps[-1].passed:
            kind.check(f"run {name}", [program], environment=os.environ | environment)


def canaries(kind: Kind, sanitizer: Sanitizer, environment: dict[str, str]) -> None:
    """A fault on purpose, in a library loaded by the same Python in the same way, must be reported."""
    library = kind.folder / "canary.so"
    kind.check(
        "compile canary",
        [
            COMPILER,
            "-std=c++20",
            "-O1",
            "-g",
            *sanitizer.flags,
            "-shared",
            "-fPIC",
            HERE / "canary.cpp",
            "-o",
            library,
        ],
    )
    for canary in sanitizer.canaries:
        code = f"import ctypes; ctypes.CDLL({str(library)!r}).{canary}(5)"
        before = kind.reports()
        failed = kind.run(canary, [sys.executable, "-c", code], environment=environment) != 0
        new = kind.reports() - before
        for report in new:
            (kind.folder / report).rename(kind.folder / f"expected.{canary}.{report}.txt")
        kind.steps.append(
            Step(f"{canary} is reported", failed and bool(new), "" if new else "nothing reported")
        )


def _exit_code(part: Slice, code: int) -> str:
    # 5: none of the slice's tests was there.
    return f"exit code {code}" if code not in (0, 1, 5) else ""


def build_and_test(name: str, folder: Path, jobs: int) -> Kind:
    """Harnesses, canaries, then the tests against a build with this sanitizer."""
    sanitizer = SANITIZERS[name]
    preload = f"{compiler_file(sanitizer.library)}:{compiler_file('libstdc++.so')}"
    kind = Kind(name, folder)
    log = kind.folder / "report"
    options = {k: v.format(log=log) for k, v in sanitizer.options.items()}
    harnesses(kind, sanitizer, options)

    scratch = Scratch(ROOT / "build" / "sanitize" / name)
    # libstdc++ as well: without it the sanitizer does not find __cxa_throw when Python starts.
    environment = scratch.environment(
        LD_PRELOAD=preload,
        HYPOTHESIS_PROFILE="short",
        ATEN_EXT_SANITIZER=name,
        CUDA_VISIBLE_DEVICES="",
        **options,
    )
    canaries(kind, sanitizer, environment)
    flags = " ".join(sanitizer.flags)
    print(f"{name}: build ...", file=sys.stderr, flush=True)
    try:
        scratch.build(CFLAGS=f"{flags} -g1", CXXFLAGS=f"{flags} -g1", LDFLAGS=flags, ATEN_EXT_BUILD_CUDA="0")
    except BuildError as error:
        (kind.folder / "build.log").write_text(str(error))
        kind.steps.append(Step("build", False, "see build.log"))
        return kind
    for library in sorted((scratch.folder / "python/aten_ext").glob("*.so")):
        symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
        instrumented = "__asan_" in symbols if name == "address" else "__tsan_" in symbols
        kind.steps.append(Step(f"{library.name} is instrumented", instrumented))
    before = kind.reports()
    kind.check_tests(
        list(sanitizer.tests) or test_files(scratch.folder, LEFT_OUT),
        # What is written past Python's own output shall come to the log.
        command=lambda part: [*PYTEST, "-p", "no:faulthandler", "--capture=sys", *part.tests],
        problem=_exit_code,
        environment=environment,
        cwd=scratch.folder,
        jobs=jobs,
    )
    reports = sorted(kind.reports() - before)
    kind.steps.append(Step("nothing is reported", not reports, ", ".join(reports)))
    return kind
