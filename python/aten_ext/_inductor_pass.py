"""The graph pass ``inductor_addmm_activation``: relu(addmm) and gelu(addmm) become ``_addmm_activation``.

An eager model cannot say "ReLU of a linear layer" in one call; a compiled graph can be rewritten so that it
does. The pass runs first among Inductor's passes after autograd (``post_grad_custom_pre_pass``): one of the
later ones takes ``addmm`` apart on GPUs.

GELU is decomposed by then. What it looks like is taken from torch's own decomposition of
``gelu(approximate="tanh")``, traced when the pass first runs; the erf form, which is another function, does
not look like it and stays.

Only where that is faster than what Inductor makes of the same nodes, a product by cuBLAS and a kernel for the
rest (:func:`_is_faster`).

This module imports much of Inductor; ``_inductor_slot`` imports it when the pass first runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor.pattern_matcher import (
    CallFunction,
    KeywordArg,
    Match,
    PatternMatcherPass,
    fwd_only,
    gen_pattern,
    register_graph_pattern,
)
from torch.fx import Graph, Node

from aten_ext import _C
from aten_ext._inductor_slot import NAME

DEVICES = ("cuda",)
"""Not the CPU: there _addmm_activation's GELU is the erf form."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FLOAT_ROWS = range(1, 33)
"""Numbers of rows for which the fused fp32 layer is the faster one: beyond, cuBLAS's own product is."""
FLOAT_ROW_WEIGHTS = 4096 * 4096
"""Elements of the weight up to which it is with one row: cuBLAS has a kernel of its own for a vector."""

_aten = torch.ops.aten
_VIEWS = (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)


def _is_faster(addmm: Node) -> bool:
    """Whether ``_addmm_activation`` beats Inductor's own output, as measured on an H200 (docs/overrides.md).

    In 16 bits it does with every number of rows, as long as cuBLASLt can add the bias: a vector, beta 1. In
    fp32 cuBLASLt's kernels with an epilogue are slower than cuBLAS's without one; only the override's own
    kernel for few rows is faster than both. TF32 has not been measured.
    """
    value, (bias, _, weight) = addmm.meta["val"], addmm.args[:3]
    rows: int = value.shape[0]
    if value.dtype == torch.float32:
        if rows not in FLOAT_ROWS or torch.get_float32_matmul_precision() != "highest":
            return False
        weight_value = weight.meta.get("val") if isinstance(weight, Node) else None
        if not isinstance(weight_value, torch.Tensor):
            return False
        return rows > 1 or weight_value.numel() <= FLOAT_ROW_WEIGHTS
    bias_value = bias.meta.get("val") if isinstance(bias, Node) else None
    if not isinstance(bias_value, torch.Tensor) or addmm.kwargs.get("beta", 1) != 1:
        return False
    return tuple(bias_value.shape) == (value.shape[1],)


def _addmm_behind(x: Node, inside: Sequence[Node]) -> tuple[Node, list[Node]] | None:
    """The addmm that ``x`` is, or a view of, and the views in order; None if it must stay.

    It must where anything outside of the nodes ``inside`` needs its result.
    """
    views: list[Node] = []
    node, users = x, set(x.users)
    if not users.issubset(inside):
        return None
    while node.target in _VIEWS:
        views.insert(0, node)
        source = node.args[0]
        if not isinstance(source, Node) or len(source.users) != 1:
            return None
        node = source
    value = node.meta.get("val")
    if node.target is not _aten.addmm.default or not isinstance(value, torch.Tensor):
        return None
    taken = (
        value.device.type in DEVICES
        and value.dtype in DTYPES
        and isinstance(value.shape[0], int)  # not a symbol, of which the size is not known
        and value.shape[0] > 0
    )
    return (node, views) if taken and _is_faster(node) else None


def _fits(match: Match) -> bool:
    return _addmm_behind(match.kwargs["x"], match.nodes) is not None


def _replace(match: Match, x: Node, use_gelu: bool) -> None:
    """Put ``_addmm_activation`` and the same views of it in the place of what matched."""
    found = _addmm_behind(x, match.nodes)
    assert found is not None
    addmm, views = found
    graph, output = match.graph, match.output_node()
    with graph.inserting_before(output):
        new = graph.call_function(
            _aten._addmm_activation.default, addmm.args, {**addmm.kwargs, "use_gelu": use_gelu}
        )
        new.meta.update(addmm.meta)
        for view in views:
            new = graph.call_function(view.target, (new, *view.args[1:]), dict(view.kwargs))  # type: ignore[arg-type]
            new.meta.update(view.meta)
    output.replace_all_uses_with(new)
    for node in (*reversed(match.nodes), *reversed(views), addmm):
        if not node.users:
            graph.erase_node(node)
    _C.add_ran(NAME)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate="tanh")


@functools.cache
def _patterns() -> PatternMatcherPass:
    patterns = PatternMatcherPass(NAME)

    def register(pattern: Any, use_gelu: bool) -> None:
        decorate: Callable[[Callable[..., None]], object] = register_graph_pattern(
            pattern, extra_check=_fits, pass_dict=patterns
        )
        decorate(functools.partial(_replace, use_gelu=use_gelu))

    register(CallFunction(_aten.relu.default, KeywordArg("x")), use_gelu=False)
    for dtype in DTYPES:
        register(gen_pattern(_gelu, [torch.empty(2, 2, dtype=dtype)], fwd_only), use_gelu=True)
    return patterns


def rewrite(graph: Graph) -> None:
    """Rewrite every place in ``graph`` that fits, whether the pass is on or not."""
    _patterns().apply(graph)
