"""compute-sanitizer over the tests that need a GPU, one tool after the other."""

from __future__ import annotations

import collections
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from sanitizer_kind import LEFT_OUT, PYTEST, Kind, Slice, Step, Unavailable, test_files
from scratch import ROOT, BuildError, Scratch

HERE = ROOT / "scripts" / "sanitizers"
# Of CUDA 13.3. Those of CUDA 13.0 end themselves in racecheck ("failed to handle a hardware exception") where
# blocks of a cluster store into each other's shared memory.
OLDEST = (2026, 3)
FAULT = 86

# The kernels of the plugin alone: what upstream's do is upstream's (cuDNN's GRU cell reads memory that was
# never written). initcheck keeps track of what theirs write all the same.
OURS = ("--kernel-name", "kns=aten_ext")
TOOLS = {
    # Unfiltered: a library's kernel that goes astray may have been given wrong arguments. Padding: what is
    # past the end of a tensor is then not in another one.
    "memcheck": ("--padding", "1024"),
    # Of one cluster of each launch, or block: all of them do the same, and the whole takes hours.
    "racecheck": (*OURS, "--racecheck-filter-cluster-id", "0"),
    # Global memory. Shared memory is read before it is written where rows are multiplied that a tensor does
    # not have; nobody reads their products (tests/device_on_host, where such memory is NaN).
    "initcheck": (*OURS, "--show-backtrace", "device", "--print-limit", "100000"),
    "synccheck": OURS,
}
# What a copy of the plugin is compiled with for a tool (ops/rnn/grid.cuh says why).
DEFINED = {"racecheck": "ATEN_EXT_RACECHECK"}
# Each tensor an allocation of its own: past its end is then past the end of something.
ISOLATED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "HYPOTHESIS_PROFILE": "short"}

# Of the asynchronous stores with which the blocks of a cluster hand data round, racecheck knows nothing: it
# does not report one that nobody waits for (tests/device_on_host does). So only that it takes them for no
# fault.
FAULTS = {tool: [tool] for tool in TOOLS} | {"racecheck": ["racecheck", "cluster"]}
FIXED = {**FAULTS, "racecheck": ["racecheck", "cluster", "exchange"]}

# Nor those that start processes of their own, look at the GPU through another tool, or do the same steps or
# upstream's operators by the thousand.
GPU_LEFT_OUT = LEFT_OUT | {
    "commands/bench/test_ceilings.py",
    "core/test_environment.py",
    "core/test_faults.py",
    "ops/linear/test_inductor.py",
    "commands/test_profile.py",
    "watch/test_profiler.py",
    "programs/test_compile.py",
    "programs/test_processes.py",
    "torch_databases/test_databases.py",
    "watch/test_trace.py",
    "programs/test_training.py",
}
# Nor what fills the memory, works on much of it, or captures a graph, in which nothing may be allocated.
NOT = ("2_31", "gradients", "memory", "capture", "graph", "long_lists")
NOT_OF = {
    # The first reads what upstream's matrix products wrote (see NO_FAULT). With four threads that allocate
    # and launch, initcheck loses track: in one of two runs it took memory for unwritten that at::zeros had
    # filled on the same stream.
    "initcheck": ("transformer_encoder", "streams_and_threads"),
    # Hours: hundreds of steps.
    "racecheck": ("sizes_of_the_benchmark",),
}
# Hours: upstream's operators around our kernels.
FILES_NOT_OF = {"racecheck": {"programs/test_transforms.py", "ops/linear/test_lt.py"}}

# What is reported and no fault, by a pattern of the report, and why: counted, shown, and not a failure.
NO_FAULT = {
    "initcheck": {
        r"cuda::copy_async_4\(": "input projections of a GRU, which a matrix product of upstream's has "
        "written through the tensor memory accelerator: initcheck does not see that, whoever reads them",
        r"fused_sgd_kernel<\w+, \(bool\)1": "momentum buffers at the first step, which torch.optim.SGD "
        "leaves unwritten; read beside the rest and not used, as by upstream's kernel (not to read them took "
        "up to 14 % longer, at every step)",
    }
}


def find_tool() -> str:
    """compute-sanitizer: of the Python package ``nvidia-cuda-sanitizer-api``, or of CUDA.

    Raises:
        Unavailable: there is none, or only one that is too old.
    """
    spec = importlib.util.find_spec("nvidia")
    places = [
        Path(folder) / "cu13/bin/compute-sanitizer"
        for folder in getattr(spec, "submodule_search_locations", None) or ()
    ]
    found = [str(place) for place in places if place.exists()]
    program = next(iter(found), None) or shutil.which("compute-sanitizer")
    hint = "pip install 'nvidia-cuda-sanitizer-api>=13.3'"
    if program is None:
        raise Unavailable(f"compute-sanitizer was not found; {hint}")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Version (\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < OLDEST:
        what = match[0] if match else "of unknown version"
        raise Unavailable(f"compute-sanitizer {what} is older than {'.'.join(map(str, OLDEST))}; {hint}")
    return program


def reports(log: Path) -> Iterator[str]:
    """The first two lines of each report in a log: what happened, and in which kernel."""
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [
        line.removeprefix("=========").strip() for line in text.splitlines() if line.startswith("=========")
    ]
    report: list[str] = []
    for line in [*lines, ""]:
        if line and not line.startswith(
            ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "Target ")
        ):
            report.append(line)
        elif report:
            yield " ".join(report[:2])
            report = []


def architecture() -> str:
    """The GPU's compute capability as TORCH_CUDA_ARCH_LIST has it: 8.0, 9.0a."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"{major}.{minor}{'a' if major >= 9 else ''}"


def canaries(kind: Kind, tool: str, program: str) -> None:
    """Faults on purpose, in a program of their own, must be reported; the same mended must not."""
    from torch.utils import cpp_extension

    nvcc = Path(cpp_extension.CUDA_HOME or "/usr/local/cuda") / "bin" / "nvcc"
    if not nvcc.exists():
        raise Unavailable("nvcc was not found, which compiles the faults on purpose")
    canary = kind.folder / "canary"
    sm = architecture()
    flags = ["-std=c++20", "-lineinfo", f"-arch=sm_{sm.replace('.', '')}", "-I", ROOT / "aten_ext"]
    compile_canary = [nvcc, *flags, HERE / "canary.cu"]
    kind.check("compile canary", [*compile_canary, "-o", canary])
    for state, names in ("fault", FAULTS[tool]), ("fixed", FIXED[tool]):
        for name in names:
            if not sm.endswith("a") and name in ("cluster", "exchange"):
                continue
            step = f"{name} {state}"
            log = kind.folder / f"{step.replace(' ', '_')}.txt"
            options = ["--tool", tool, *TOOLS[tool], "--error-exitcode", str(FAULT), "--log-file", log]
            code = kind.run(step, [program, *options, canary, name, state])
            reported = code == FAULT and any("aten_ext" in report for report in reports(log))
            as_expected = reported if state == "fault" else code == 0
            kind.steps.append(
                Step(step, as_expected, "" if as_expected else f"exit code {code}, see {log.name}")
            )


def compute_sanitizer(tool: str, folder: Path, jobs: int) -> Kind:
    """The GPU tests under one tool of compute-sanitizer, each of whose reports is a failure.

    Raises:
        Unavailable: no GPU, no compute-sanitizer, no nvcc.
    """
    import torch

    if not torch.cuda.is_available():
        raise Unavailable("no CUDA device")
    program = find_tool()
    kind = Kind(tool, folder)
    canaries(kind, tool, program)
    place = ROOT
    environment = os.environ | ISOLATED
    if tool in DEFINED:
        print(f"{tool}: build ...", file=sys.stderr, flush=True)
        scratch = Scratch(ROOT / "build" / "sanitize" / tool)
        try:
            scratch.build(
                NVCC_APPEND_FLAGS=f"-D{DEFINED[tool]} -lineinfo",
                ATEN_EXT_BUILD_CUDA="1",
                TORCH_CUDA_ARCH_LIST=architecture(),
            )
        except BuildError as error:
            (kind.folder / "build.log").write_text(str(error))
            kind.steps.append(Step("build", False, "see build.log"))
            return kind
        place = scratch.folder
        environment = scratch.environment(**ISOLATED)

    def log(part: Slice) -> Path:
        return kind.folder / f"{part.name.replace(' ', '_')}.txt"

    def command(part: Slice) -> list[str | Path]:
        options = ["--tool", tool, *TOOLS[tool], "--error-exitcode", str(FAULT), "--log-file", log(part)]
        return [program, *options, *PYTEST, *part.tests]

    no_fault = collections.Counter[str]()

    def problem(part: Slice, code: int) -> str:
        faults = []
        for report in reports(log(part)):
            why = next((why for text, why in NO_FAULT.get(tool, {}).items() if re.search(text, report)), None)
            if why is None:
                faults.append(report)
            else:
                no_fault[why] += 1
        if faults:
            return f"{len(faults)} reports, the first: {faults[0]} ({log(part).name})"
        return f"exit code {code}" if code not in (0, 1, FAULT) else ""

    tests = test_files(ROOT, GPU_LEFT_OUT | FILES_NOT_OF.get(tool, set()))
    left_out = " and ".join(f"not {name}" for name in (*NOT, *NOT_OF.get(tool, ())))
    kind.check_tests(
        ["-m", "gpu", "-k", left_out, *tests],
        command=command,
        problem=problem,
        environment=environment,
        cwd=place,
        jobs=jobs,
    )
    kind.steps += [Step(f"{count} reports left out:", True, why) for why, count in no_fault.items()]
    return kind
