"""What the graph pass ``inductor_addmm_activation`` changes in a compiled linear layer with ReLU or GELU.

Both sides are ``torch.compile``'s output of the same function, compiled with the overrides and the pass off
(the column of upstream) and on. Where the pass leaves a graph as it is, both are the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from aten_ext.bench import harness
from aten_ext.bench.case import Call, Case, Settings
from aten_ext.bench.ops import linear
from aten_ext.bench.result import Result
from aten_ext.bench.route import Overrides
from developer_bench import linear_peers

FLOAT_ROWS = (1, 8, 16, 32, 64)
HALF_ROWS = (1, 16, 64, 256, 2048)


def cases(device: str, full: bool) -> list[Case]:
    """Rows from 1 to 2048, ReLU and GELU, three dtypes; with ``full`` in every shape. Nothing on a CPU."""
    if device != "cuda":
        return []
    return [_case(layer) for layer in _layers(linear.SHAPES if full else linear.SHAPES[:2])]


def _layers(shapes: tuple[tuple[int, int], ...]) -> Iterator[linear.Linear]:
    for i, (k, n) in enumerate(shapes):
        yield from (linear.Linear(m, k, n, "float32") for m in FLOAT_ROWS)
        yield from (linear.Linear(m, k, n, "bfloat16") for m in HALF_ROWS)
        if i < 2:
            yield from (linear.Linear(m, k, n, "float16") for m in HALF_ROWS[::2])
            yield from (linear.Linear(m, k, n, "float32", activation="gelu") for m in FLOAT_ROWS[::2])
            yield from (linear.Linear(m, k, n, "bfloat16", activation="gelu") for m in HALF_ROWS)


def _case(layer: linear.Linear) -> Case:
    case = layer.case()
    return replace(
        case,
        op="inductor_pass",
        name=f"compiled {case.name}",
        sizes={},
        series="",
        measure=partial(_measure, layer),
    )


def _measure(layer: linear.Linear, case: Case, settings: Settings) -> Result:
    """The harness, switching between the two compiled functions."""
    import torch

    with Overrides() as overrides:
        torch.compiler.reset()
        versus = linear_peers.Versus(overrides)
        # Two functions, because what is compiled once stays as it is.
        before, after = (linear_peers.compiled(layer, "default") for _ in range(2))

        def make(device: str) -> Call:
            operands: Any = linear.make(layer, device)
            return partial(versus.call, partial(before, *operands.args), partial(after, *operands.args))

        return harness.measure(replace(case, measure=None, make=make), settings, versus)
