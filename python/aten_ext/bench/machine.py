"""The machine, the versions and the commit that a measurement was made with."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

Description = dict[str, object]

_DEFAULT_CPU_CACHE = 32 << 20


def describe() -> Description:
    """What a report says of its origin: ``machine``, ``versions``, ``date`` (ISO 8601, UTC) and ``commit``.

    Memory sizes are in bytes; ``load`` is how many processes wanted to run during the last minute. What
    cannot be found out is None. Neither host nor user name is included.
    """
    return {
        "machine": _machine(),
        "versions": _versions(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
    }


def cache_bytes(device: str) -> int:
    """Size of the last cache before memory: the GPU's L2, or the largest cache that the first core sees."""
    if device == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    sizes = []
    # sysconf() adds up the caches of a whole socket; sysfs tells what one core can use.
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = _read(path).strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:])
        if unit is not None and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * unit)
    return max(sizes, default=_DEFAULT_CPU_CACHE)


def free_bytes(device: str) -> int | None:
    """Memory that a case may take, in bytes, or None if that is not known."""
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])
    kibibytes = _field("/proc/meminfo", "MemAvailable").split()
    return int(kibibytes[0]) * 1024 if kibibytes else None


def commit() -> str | None:
    """The commit that this package is checked out at, "-dirty" appended if tracked files differ, or None."""
    package = Path(__file__).resolve().parent.parent
    # An installed copy may lie below some other project's checkout: only a tracked file counts.
    if _output("git", "-C", str(package), "ls-files", "__main__.py") is None:
        return None
    head = _output("git", "-C", str(package), "rev-parse", "HEAD")
    if head is None:
        return None
    changes = _output("git", "-C", str(package), "status", "--porcelain", "--untracked-files=no")
    return f"{head}-dirty" if changes else head


def _machine() -> Description:
    import torch

    description: Description = {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": None,
        "gpu_memory": None,
        "gpu_l2": None,
        "gpu_multiprocessors": None,
        "compute_capability": None,
    }
    if torch.cuda.is_available():
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        description |= {
            "gpu": gpu.name,
            "gpu_memory": gpu.total_memory,
            "gpu_l2": gpu.L2_cache_size,
            "gpu_multiprocessors": gpu.multi_processor_count,
            "compute_capability": f"{gpu.major}.{gpu.minor}",
        }
    return description


def _versions() -> Description:
    import torch

    import aten_ext

    cudnn: Any = torch.backends.cudnn  # torch leaves its functions without types
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": cudnn.version() if cudnn.is_available() else None,
        "aten_ext": aten_ext.__version__,
        "driver": _driver() if torch.cuda.is_available() else None,
    }


def _driver() -> str | None:
    lines = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return lines.splitlines()[0].strip() if lines else None


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _field(path: str, name: str) -> str:
    """The value of the first line "name : value" of a file under /proc, or nothing."""
    for line in _read(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _output(*command: str) -> str | None:
    """What a command prints, or None if it is missing, fails, hangs or prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
