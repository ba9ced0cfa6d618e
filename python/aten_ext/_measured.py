"""What the benchmarks measured: ``measured.json``, made from docs/benchmarks by scripts/measured."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import platform
from pathlib import Path

import torch

from aten_ext._cost import Cost

PATH = Path(__file__).with_name("measured.json")
FARTHEST = 2.0
"""A case of more than so many times the bytes, or less than that part of them, says nothing about a call."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """One benchmark case, upstream and aten_ext in turns.

    Attributes:
        override: e.g. ``"_fused_adamw_"``.
        case: its name in the benchmark, e.g. ``"adamw resnet50"``.
        dtype: of its tensors, e.g. ``"float32"``.
        machine: the GPU or CPU.
        torch: the version.
        clock: ``"gpu"`` (the kernels alone) or ``"wall"`` (calls from Python).
        bytes: bytes that one call has to move.
        upstream_us: median time of upstream, µs a call.
        ours_us: median time of the fused kernel, µs a call.
        file: the file in docs/benchmarks.
    """

    override: str
    case: str
    dtype: str
    machine: str
    torch: str
    clock: str
    bytes: int
    upstream_us: float
    ours_us: float
    file: str


@functools.cache
def cases() -> tuple[Measured, ...]:
    """Every case; none if the file is missing."""
    try:
        rows = json.loads(PATH.read_text())["cases"]
    except OSError:
        return ()
    return tuple(Measured(**row) for row in rows)


def machine_name(device: torch.device) -> str | None:
    """What the benchmark calls the machine that ``device`` is of; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else None
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def nearest(name: str, cost: Cost, machine: str | None) -> tuple[Measured | None, str]:
    """The case of this override, dtype and machine that is nearest in bytes; None, and why there is none."""
    alike = [
        case for case in cases() if case.override == name and case.dtype == cost.dtype and cost.bytes > 0
    ]
    here = [case for case in alike if case.machine == machine]
    if not here:
        elsewhere = ", ".join(sorted({case.machine for case in alike})) or "no machine"
        return (
            None,
            f"{name} in {cost.dtype} is measured on {elsewhere}, not on {machine or 'a GPU elsewhere'}",
        )
    best = min(here, key=lambda case: abs(math.log(case.bytes / cost.bytes)))
    if not 1 / FARTHEST <= best.bytes / cost.bytes <= FARTHEST:
        return None, f"the nearest case measured here, {best.case}, moves {best.bytes:,} bytes"
    return best, ""
