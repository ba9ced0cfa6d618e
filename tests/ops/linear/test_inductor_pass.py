"""The graph pass inductor_addmm_activation: what it rewrites, and what it leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from aten_ext import _inductor_pass
from device_on_host import library
from ops.linear.graphs import (
    DTYPES,
    PLACES,
    SHAPES,
    F,
    Function,
    assert_special,
    aten,
    classes,
    gelu_tanh,
    linear,
    rewritten,
    special_operands,
    targets,
    trace,
)
from ops.linear.test_on_host import load


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("act", "use_gelu"), [(torch.relu, False), (gelu_tanh, True)], ids=["relu", "gelu"])
@pytest.mark.parametrize("shape", [(8, 64), (2, 4, 64), (1, 1, 1, 64)], ids=str)
def test_rewrites(dtype: torch.dtype, act: Function, use_gelu: bool, shape: tuple[int, ...]) -> None:
    """Also through the views that nn.Linear makes of an input of more than two dimensions."""
    graph = trace(lambda x, w, b: act(linear(x, w, b)), shape, *SHAPES[1:], dtype=dtype)
    assert aten.addmm.default in targets(graph)
    old = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    assert rewritten(graph) == [{"use_gelu": use_gelu}]
    assert not {aten.addmm.default, aten.relu.default, aten.tanh.default}.intersection(targets(graph))
    new = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    value, expected = new.meta["val"], old.meta["val"]
    assert (value.shape, value.stride(), value.dtype, value.device) == (
        expected.shape,
        expected.stride(),
        dtype,
        expected.device,
    )


def test_the_value_is_the_same() -> None:
    """The rewritten graph computes what the old one did (ReLU, which the CPU has in the same form)."""
    graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)).sum(0), *SHAPES, dtype=torch.float32)
    inputs = [torch.randn(shape) for shape in SHAPES]
    expected = graph(*inputs)
    assert len(rewritten(graph)) == 1
    torch.testing.assert_close(graph(*inputs), expected)


def run_with(graph: GraphModule, operator: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """The rewritten graph with another operator in the place of ``_addmm_activation``."""
    for node in graph.graph.nodes:
        if node.target is aten._addmm_activation.default:
            node.target = operator
    graph.recompile()
    result: torch.Tensor = graph(*inputs)
    return result


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", [1, 4, 8, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values_by_the_cpus_kernel(dtype: torch.dtype, rows: int, place: str) -> None:
    """ReLU of the rewritten graph keeps NaN and infinities as the eager modules do."""
    if dtype == torch.float32 and rows > 32:
        pytest.skip("not rewritten")
    operands = special_operands(place, rows, dtype)
    graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)), *map(shape_of, operands), dtype=dtype)
    assert len(rewritten(graph)) == 1
    eager = torch.relu(linear(*operands))
    assert_special(eager, place)
    assert torch.equal(classes(graph(*operands)), classes(eager))


def shape_of(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(t.shape)


@pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")
@pytest.mark.parametrize(("act", "use_gelu"), [(torch.relu, False), (gelu_tanh, True)], ids=["relu", "gelu"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values_on_host(
    dtype: torch.dtype, rows: int, place: str, act: Function, use_gelu: bool
) -> None:
    """The same with the override's own kernel for few rows, run by the CPU."""
    load()
    operands = special_operands(place, rows, dtype)
    graph = trace(lambda x, w, b: act(linear(x, w, b)), *map(shape_of, operands), dtype=dtype)
    assert rewritten(graph) == [{"use_gelu": use_gelu}]
    ours = run_with(graph, torch.ops.aten_ext_on_host._addmm_activation, *operands)
    eager = act(linear(*operands))
    assert_special(eager, place)
    assert torch.equal(classes(ours), classes(eager))


def test_alpha_and_beta_stay() -> None:
    graph = trace(
        lambda b, x, w: torch.relu(torch.addmm(b, x, w, beta=2, alpha=0.5)),
        (32,),
        (8, 64),
        (64, 32),
        dtype=torch.float32,
    )
    assert rewritten(graph) == [{"beta": 2, "alpha": 0.5, "use_gelu": False}]


def test_a_whole_network() -> None:
    def network(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for act in (torch.relu, gelu_tanh, F.gelu, torch.relu, torch.sigmoid):
            x = act(linear(x, w, b))
        return x

    graph = trace(network, (8, 64), (64, 64), (64,), dtype=torch.bfloat16)
    assert [kwargs["use_gelu"] for kwargs in rewritten(graph)] == [False, True, False]
    assert targets(graph).count(aten.addmm.default) == 2 and aten.erf.default in targets(graph)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.gelu(linear(x, w, b)),
        lambda x, w, b: F.silu(linear(x, w, b)),
        lambda x, w, b: 0.5 * linear(x, w, b) * (1 + torch.tanh(0.79 * linear(x, w, b))),
        lambda x, w, b: torch.relu(x @ w.t()),
        lambda x, w, b: (y := linear(x, w, b), torch.relu(y)),
        lambda x, w, b: gelu_tanh(y := linear(x, w, b)) + y,
        lambda x, w, b: torch.relu((y := linear(x, w, b)).view(2, 4, 32)).sum() + y.sum(),
        lambda x, w, b: torch.relu(linear(x, w, b).t()),
    ],
    ids=["erf", "silu", "almost", "mm", "output", "used again", "view used again", "transposed"],
)
def test_leaves(function: Function) -> None:
    graph = trace(function, *SHAPES, dtype=torch.float32)
    before = targets(graph)
    assert rewritten(graph) == []
    assert targets(graph) == before


@pytest.mark.parametrize(
    ("rows", "dtype", "device"),
    [(8, torch.float64, "cuda"), (8, torch.float32, "cpu")],
)
def test_leaves_what_the_override_does_not_take(rows: int, dtype: torch.dtype, device: str) -> None:
    graph = trace(
        lambda x, w, b: torch.relu(linear(x, w, b)), (rows, 64), *SHAPES[1:], dtype=dtype, device=device
    )
    assert rewritten(graph) == []


@pytest.mark.parametrize("act", [torch.relu, gelu_tanh], ids=["relu", "gelu"])
@pytest.mark.parametrize(
    ("dtype", "rows", "is_faster"),
    [
        (torch.float32, 1, True),
        (torch.float32, 32, True),
        (torch.float32, 33, False),
        (torch.float32, 2048, False),
        *((dtype, rows, True) for dtype in DTYPES[1:] for rows in (1, 64, 65, 2048)),
    ],
    ids=str,
)
def test_rewrites_where_it_is_faster(dtype: torch.dtype, rows: int, is_faster: bool, act: Function) -> None:
    """Both sides of each edge of what was measured; batch times sequence counts as rows."""
    for shape in [(rows, 64), (1, rows, 64)]:
        graph = trace(lambda x, w, b: act(linear(x, w, b)), shape, *SHAPES[1:], dtype=dtype)
        assert len(rewritten(graph)) == is_faster


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_that_cublaslt_does_not_add(dtype: torch.dtype) -> None:
    """In 16 bits more than a vector, or scaled, is upstream's slow way; in fp32 the kernel takes any."""
    for bias, beta in [((8, 32), 1), ((1, 32), 1), ((1,), 1), ((32,), 2), ((32,), 0)]:

        def layer(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor, beta: int = beta) -> torch.Tensor:
            return torch.relu(torch.addmm(b, x, w, beta=beta))

        graph = trace(lambda b, x, w: layer(b, x, w), bias, (8, 64), (64, 32), dtype=dtype)
        assert len(rewritten(graph)) == (dtype == torch.float32), (bias, beta)


def test_tf32_is_left() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        for dtype, count in ((torch.float32, 0), (torch.half, 1)):
            graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)), *SHAPES, dtype=dtype)
            assert len(rewritten(graph)) == count
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("columns", "is_faster"), [(4096, True), (4104, False)])
def test_one_row_of_fp32_is_cublas_s_where_the_weight_is_large(columns: int, is_faster: bool) -> None:
    shapes = [(1, 4096), (columns, 4096), (columns,)]
    graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)), *shapes, dtype=torch.float32)
    assert len(rewritten(graph)) == is_faster
    several = [(2, 4096), *shapes[1:]]
    graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)), *several, dtype=torch.float32)
    assert len(rewritten(graph)) == 1


def test_leaves_what_has_no_fixed_number_of_rows() -> None:
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(
        lambda x, w, b: torch.relu(linear(x, w, b)), select_decomp_table(), tracing_mode="symbolic"
    )(*(torch.empty(shape) for shape in SHAPES))
    for node in graph.graph.nodes:
        assert "val" not in node.meta or node.meta["val"].device.type == "cpu"
    assert aten.addmm.default in targets(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_inductor_pass, "DEVICES", ("cpu",))
        assert rewritten(graph) == []
