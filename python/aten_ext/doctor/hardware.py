"""Checks of GPUs, driver, CUDA toolkit and compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from aten_ext._load import REBUILD
from aten_ext.doctor.finding import Finding, note, ok, problem, warning
from aten_ext.doctor.installation import kernels_or_none, torch_or_none


def output(*command: str, seconds: float = 20) -> str | None:
    """What a command prints, stderr included, or None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def driver() -> Iterator[Finding]:
    """The NVIDIA driver."""
    version = _driver_version()
    if version:
        yield ok("driver", f"NVIDIA {version}")
    else:
        yield note("driver", "no NVIDIA driver (nvidia-smi did not answer)")


def gpus() -> Iterator[Finding]:
    """Each GPU, and whether the kernels were built for it."""
    torch, kernels = torch_or_none(), kernels_or_none()
    if torch is None:
        return
    if torch.version.cuda is None:
        if _driver_version():
            advice = f"install torch with CUDA, then: {REBUILD}"
            yield warning("GPU", "there is an NVIDIA driver, but torch is built for the CPU", advice)
        else:
            yield note("GPU", "none")
        return
    if not torch.cuda.is_available():
        if _driver_version():
            advice = "see https://pytorch.org/get-started for a torch that fits the driver, or update it"
            yield problem("GPU", f"there is a driver, but torch cannot use it: {_why_no_cuda()}", advice)
        else:
            yield note("GPU", "none, though torch is built for CUDA")
        return
    for index in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(index)
        text = f"{index}: {torch.cuda.get_device_name(index)}, compute capability {major}.{minor}"
        if kernels is None:
            yield note("GPU", f"{text}; what was built is not known")
        elif not kernels.built_for_cuda:
            advice = f"with nvcc of CUDA {torch.version.cuda.partition('.')[0]} installed: {REBUILD}"
            yield problem("GPU", f"{text}; aten_ext was built without its CUDA kernels", advice)
        else:
            yield _fit(text, (major, minor), kernels.cuda_arch_list)


def runs_on(capability: tuple[int, int], architectures: str) -> bool | None:
    """Whether kernels for ``architectures`` run on a GPU; None if the list cannot be read.

    "sm_86" is machine code: for 8.x with x >= 6. "sm_90a" is for 9.0 alone, "sm_100f" for its family, here
    taken as 10.x. "compute_120" is PTX: for everything from 12.0 on.
    https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/#gpu-compilation
    """
    found = re.findall(r"\b(sm|compute)_(\d+)(\d)([af]?)(?!\w)", architectures)
    if not found:
        return None
    for kind, major, minor, suffix in found:
        built = (int(major), int(minor))
        if suffix == "a":
            fits = capability == built
        elif kind == "compute" and not suffix:
            fits = capability >= built
        else:
            fits = capability[0] == built[0] and capability[1] >= built[1]
        if fits:
            return True
    return False


def toolkit() -> Iterator[Finding]:
    """The CUDA toolkit, which only a build needs."""
    torch = torch_or_none()
    wanted = torch.version.cuda if torch else None
    nvcc = _nvcc()
    release = re.search(r"release (\d+\.\d+)", output(nvcc, "--version") or "") if nvcc else None
    if release is None:
        text = "no nvcc (looked at CUDA_HOME, the PATH and /usr/local/cuda)"
        if wanted is None or not _driver_version():
            yield note("CUDA toolkit", f"{text}; only a build with CUDA kernels needs it")
        else:
            yield warning("CUDA toolkit", text, f"to rebuild, install the toolkit of CUDA {wanted}")
    elif wanted and release.group(1).partition(".")[0] != wanted.partition(".")[0]:
        text = f"{nvcc} is of CUDA {release.group(1)}, torch of {wanted}"
        yield warning("CUDA toolkit", text, f"to rebuild, set CUDA_HOME to a toolkit of CUDA {wanted}")
    else:
        yield ok("CUDA toolkit", f"{release.group(1)} ({nvcc})")


def compiler() -> Iterator[Finding]:
    """The C++ compiler, which a build needs, and the benchmark of the entry."""
    command = (os.environ.get("CXX") or "c++").split()
    version = output(*command, "--version")
    if version and version.strip():
        yield ok("compiler", version.splitlines()[0])
    else:
        text = f"no C++ compiler ({' '.join(command)} did not answer)"
        yield warning("compiler", text, "to build, install one (on Debian and Ubuntu: g++), or set CXX")


def _fit(text: str, capability: tuple[int, int], architectures: str) -> Finding:
    fits = runs_on(capability, architectures)
    if fits is None:
        return note("GPU", f"{text}; built for {architectures or 'unknown'}, which cannot be compared")
    if fits:
        return ok("GPU", f"{text}, which the kernels were built for")
    advice = f"TORCH_CUDA_ARCH_LIST={capability[0]}.{capability[1]} {REBUILD}"
    return problem("GPU", f"{text}; the kernels were built for {architectures}", advice)


def _driver_version() -> str | None:
    lines = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return lines.splitlines()[0].strip() if lines and lines.strip() else None


def _why_no_cuda() -> str:
    torch = torch_or_none()
    try:
        if torch is not None:
            torch.cuda.init()
    except Exception as error:  # whatever torch says is the answer
        return str(error).splitlines()[0]
    return "no device is visible"


def _nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates: Sequence[str] = [f"{home}/bin/nvcc"] if home else ["nvcc", "/usr/local/cuda/bin/nvcc"]
    found = (shutil.which(candidate) for candidate in candidates)
    return next((str(Path(path)) for path in found if path), None)
