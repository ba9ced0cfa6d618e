"""Random linear layers with another kernel behind each, as programs have them.

In a graph of linear layers alone a launch begins while the one before it ends. Between other kernels it does
not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from aten_ext.bench.case import Call, Case
from aten_ext.sweep import linear

ELEMENTS = 1 << 15
"""Of the kernel behind a layer: it takes little more than its launch."""


def case(random: Random, device: str) -> Case | None:
    """A layer as ``linear`` draws it, and an elementwise kernel. None: the operators are upstream's there."""
    layer = linear.case(random, device)
    return layer and replace(layer, op="linear_between", make=partial(_make, layer.make))


def _make(make: Callable[[str], Call], device: str) -> Call:
    import torch

    layer = make(device)
    other = torch.ones(ELEMENTS, device=device)

    def both() -> object:
        result = layer()
        other.neg_()
        return result

    return both
