"""How many sets of operands a case needs for its calls to miss the cache, and whether they fit in memory."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

from aten_ext.bench import machine
from aten_ext.bench.case import Call, Case

MOST_COPIES = 64


@dataclass(frozen=True)
class Rotation:
    """How the calls of a case walk through memory."""

    copies: int
    cache: str
    """"exceeded" or "resident"; see ``Result.cache``."""


def rotation(footprint: int, cache_bytes: int, one_set: bool = False) -> Rotation:
    """Enough sets of ``footprint`` bytes to fill the cache twice; one where even the most would not.

    With ``one_set`` always one: what a loop sees that does nothing else in between.
    """
    copies = max(1, math.ceil(2 * cache_bytes / max(footprint, 1)))
    if copies > MOST_COPIES or (one_set and copies > 1):
        return Rotation(1, "resident")
    return Rotation(copies, "exceeded")


def too_large(case: Case, device: str) -> str | None:
    """Why the operands do not fit, counting half as much again for making them; None where they do."""
    free = machine.free_bytes(device)
    needed = case.footprint * 3 // 2
    if free is None or needed <= free:
        return None
    return f"needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"


def make(case: Case, device: str, copies: int) -> list[Call]:
    """Make ``copies`` calls of the case, without the garbage collector walking over ever more tensors."""
    import torch

    torch.manual_seed(0)
    collecting = gc.isenabled()
    gc.disable()
    try:
        return [case.make(device) for _ in range(copies)]
    finally:
        if collecting:
            gc.enable()
