"""Operands of the optimizers' cases."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aten_ext.bench.parameter_sets import Shapes

if TYPE_CHECKING:
    import torch


def random_tensors(
    shapes: Shapes, dtype: torch.dtype, device: str, scale: float, offset: int, positive: bool = False
) -> list[torch.Tensor]:
    """Random tensors, each with a storage of its own; magnitudes are uniform in [0.5, 1.5] of ``scale``."""
    import torch

    sizes = [math.prod(shape) for shape in shapes]
    values = torch.rand(sum(sizes), dtype=dtype, device=device)
    if positive:
        values.add_(0.5)
    else:
        values.mul_(2).sub_(1)
        values.add_(torch.copysign(torch.ones((), dtype=dtype, device=device), values), alpha=0.5)
    values.mul_(scale)
    tensors = [
        torch.empty(size + offset, dtype=dtype, device=device)[offset:].view(shape)
        for size, shape in zip(sizes, shapes, strict=True)
    ]
    # One call for all: thousands of single copies would take longer than the measurement.
    parts = [part.view(shape) for part, shape in zip(torch.split(values, sizes), shapes, strict=True)]
    torch._foreach_copy_(tensors, parts)
    return tensors
