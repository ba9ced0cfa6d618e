"""Graphs as Inductor has them when its passes begin, and operands with special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule

import aten_ext
from aten_ext import _inductor_pass

F = torch.nn.functional
aten = torch.ops.aten
Function = Callable[..., Any]


def trace(
    function: Function, *shapes: tuple[int, ...], dtype: torch.dtype, device: str = "cuda"
) -> GraphModule:
    """What Inductor has of ``function`` when its passes begin, on a GPU that need not be there."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        graph: GraphModule = make_fx(function, select_decomp_table())(*inputs)
    return graph


def targets(graph: GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def rewritten(graph: GraphModule) -> list[dict[str, Any]]:
    """Rewrites, and gives the keyword arguments of what was put in."""
    aten_ext.reset_counts()
    _inductor_pass.rewrite(graph.graph)
    graph.graph.lint()
    graph.recompile()
    new = [node for node in graph.graph.nodes if node.target is aten._addmm_activation.default]
    assert aten_ext.passes()[0].rewrites == len(new)
    return [dict(node.kwargs) for node in new]


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight, bias)


SHAPES = [(8, 64), (32, 64), (32,)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


PLACES = ("x", "weight", "bias")


def special_operands(
    place: str, rows: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight and bias; one holds NaN, both infinities and -0, the others zeros where they meet."""
    generator = torch.Generator().manual_seed(rows)
    shapes = {"x": (rows, 64), "weight": (32, 64), "bias": (32,)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for name, values in tensors.items():
        if name == place:
            # In x by rows, as far as there are; in the weight by columns of the result.
            for i, value in enumerate((torch.nan, torch.inf, -torch.inf, -0.0)):
                at = i % len(values)
                values[at if name == "bias" else (at, 7 * i)] = value
        elif name != "bias":
            values[-1, 7] = 0  # times an infinity: NaN
            values[-1, 14] = -0.0
    x, weight, bias = (values.to(device, dtype) for values in tensors.values())
    return x, weight, bias


def classes(t: torch.Tensor) -> torch.Tensor:
    """0: a number; 1, -1: an infinity; 2: NaN."""
    return t.isnan() * 2 + t.isinf() * t.sign().nan_to_num()


def assert_special(results: torch.Tensor, place: str) -> None:
    """The inputs are what they are for: an activation that dropped a NaN would be seen."""
    assert results.isnan().any()
    # Of a single row x makes all NaN, and the weight may make the infinities negative.
    assert (results == torch.inf).any() or (place != "bias" and len(results) < 4)
