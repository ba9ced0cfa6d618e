"""An LSTM's gates and the backwards of gates with their CUDA kernels, on the CPU, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from device_on_host import library
from gpus import GPUS, pretended
from ops.rnn.on_host_cases import DTYPES, ORDERS, load, order_of_threads

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

ALL_DTYPES = [*DTYPES, torch.float64]
SIZES = [(1, 1, 0), (3, 7, 0), (2, 16, 1), (5, 256, 0), (64, 33, 0), (65, 66, 0), (200, 40, 1)]
"""Rows, units, elements by which everything is off alignment. Up to 64 rows are summed by one block."""


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    size = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    return {"rtol": size, "atol": size}


def numbers(dtype: torch.dtype, offset: int, *shape: int) -> torch.Tensor:
    """Standard normal numbers, ``offset`` elements behind where the allocator begins."""
    return torch.randn(torch.Size(shape).numel() + offset).to(dtype)[offset:].view(shape)


def lstm_gates(i: torch.Tensor, h: torch.Tensor, biases: list[torch.Tensor | None]) -> torch.Tensor:
    """The four gates in float64, as the workspace has them."""
    total = i.double() + h.double() + sum(b.double() for b in biases if b is not None)
    ingate, forget, cell, out = total.chunk(4, 1)
    return torch.cat([ingate.sigmoid(), forget.sigmoid(), cell.tanh(), out.sigmoid()], 1)


def lstm_backward(
    grad_hy: torch.Tensor, grad_cy: torch.Tensor, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of gates and cx in float64 from what the kernel reads."""
    grad_hy, grad_cy, cx, cy, workspace = (t.double() for t in (grad_hy, grad_cy, cx, cy, workspace))
    i, f, g, o = workspace.chunk(4, 1)
    y = cy.tanh()
    c = grad_hy * o * (1 - y * y) + grad_cy
    gates = [c * g * (1 - i) * i, c * cx * (1 - f) * f, c * i * (1 - g * g), grad_hy * y * (1 - o) * o]
    return torch.cat(gates, 1), c * f


def gru_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_hy = grad_hy.double()
    r, z, n, hx, hn = workspace.double().chunk(5, 1)
    new = grad_hy * (1 - z) * (1 - n * n)
    shared = [new * hn * (1 - r) * r, grad_hy * (hx - n) * (1 - z) * z]
    return torch.cat([*shared, new], 1), torch.cat([*shared, new * r], 1), grad_hy * z


ROUNDING = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}


def assert_is_sum(bias: torch.Tensor, grads: torch.Tensor) -> None:
    """Of what was stored, in fp32 or fp64 with a few roundings of the terms' size, and rounded once."""
    exact, size = grads.double().sum(0), grads.double().abs().sum(0)
    of_terms = ROUNDING[torch.float64 if bias.dtype == torch.float64 else torch.float32]
    allowed = 8 * of_terms * size + 1.01 * ROUNDING[bias.dtype] * exact.abs() + 2.0**-25
    assert ((bias.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "hidden", "offset"), SIZES)
def test_lstm_forward(ops: Any, dtype: torch.dtype, bias: bool, batch: int, hidden: int, offset: int) -> None:
    torch.manual_seed(0)
    i, h = (numbers(dtype, offset, batch, 4 * hidden) for _ in range(2))
    cx = numbers(dtype, offset, batch, hidden)
    biases = [numbers(dtype, offset, 4 * hidden) if bias else None for _ in range(2)]
    hy, cy, workspace = ops.lstm_gates(i, h, cx, *biases)
    gates = lstm_gates(i, h, biases)
    exact_c = gates.chunk(4, 1)[1] * cx.double() + gates.chunk(4, 1)[0] * gates.chunk(4, 1)[2]
    torch.testing.assert_close(workspace.double(), gates, **tolerance(dtype))
    torch.testing.assert_close(cy.double(), exact_c, **tolerance(dtype))
    torch.testing.assert_close(hy.double(), gates.chunk(4, 1)[3] * exact_c.tanh(), **tolerance(dtype))


def incoming(kind: str, dtype: torch.dtype, offset: int, batch: int, hidden: int) -> torch.Tensor | None:
    """A gradient as autograd gives it: none, dense, of a sum, of stacked or of transposed outputs."""
    if kind == "none":
        return None
    if kind == "sum":
        return numbers(dtype, 0, 1)[0].expand(batch, hidden)
    if kind == "stacked":
        return numbers(dtype, offset, batch, 3, hidden)[:, 1]
    if kind == "transposed":
        return numbers(dtype, offset, hidden, batch).t()
    return numbers(dtype, offset, batch, hidden)


KINDS = ["dense", "sum", "stacked", "transposed"]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "hidden", "offset"), SIZES)
def test_lstm_backward(
    ops: Any, dtype: torch.dtype, bias: bool, batch: int, hidden: int, offset: int
) -> None:
    torch.manual_seed(0)
    cx, cy = (numbers(dtype, offset, batch, hidden) for _ in range(2))
    # Gates of any size: what is computed is a polynomial of them.
    workspace = numbers(dtype, offset, batch, 4 * hidden)
    for kinds in [("dense", "dense"), ("dense", "none"), ("none", "dense"), ("sum", "stacked")]:
        given = [incoming(kind, dtype, offset, batch, hidden) for kind in kinds]
        ours = ops.lstm_gates_backward(*given, cx, cy, workspace, bias)
        zeros = [torch.zeros_like(cx) if grad is None else grad for grad in given]
        exact = lstm_backward(zeros[0], zeros[1], cx, cy, workspace)
        for mine, wanted in zip(ours[:2], exact, strict=True):
            assert mine.dtype == dtype and mine.is_contiguous()
            torch.testing.assert_close(mine.double(), wanted, **tolerance(dtype))
        assert (ours[2] is not None) == bias
        if bias:
            assert ours[2].shape == (4 * hidden,) and ours[2].dtype == dtype
            assert_is_sum(ours[2], ours[0])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "hidden", "offset"), SIZES)
def test_gru_backward(ops: Any, dtype: torch.dtype, bias: bool, batch: int, hidden: int, offset: int) -> None:
    torch.manual_seed(0)
    workspace = numbers(dtype, offset, batch, 5 * hidden)
    for kind in KINDS:
        grad = incoming(kind, dtype, offset, batch, hidden)
        assert grad is not None
        ours = ops.gru_gates_backward(grad, workspace, bias)
        for mine, wanted in zip(ours[:3], gru_backward(grad, workspace), strict=True):
            assert mine.dtype == dtype and mine.is_contiguous()
            torch.testing.assert_close(mine.double(), wanted, **tolerance(dtype))
        assert [t is not None for t in ours[3:]] == [bias, bias]
        if bias:
            for mine, grads in zip(ours[3:], ours[:2], strict=True):
                assert mine.shape == (3 * hidden,)
                assert_is_sum(mine, grads)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_two_units_of_16_bits(ops: Any, dtype: torch.dtype) -> None:
    """A thread takes two from 200,000 units on."""
    torch.manual_seed(0)
    batch, hidden = 200, 1024
    workspace = numbers(dtype, 0, batch, 5 * hidden)
    for kind in ("dense", "stacked"):
        grad = incoming(kind, dtype, 0, batch, hidden)
        assert grad is not None
        ours = ops.gru_gates_backward(grad, workspace, True)
        for mine, wanted in zip(ours[:3], gru_backward(grad, workspace), strict=True):
            torch.testing.assert_close(mine.double(), wanted, **tolerance(dtype))
        assert_is_sum(ours[3], ours[0])
    i, h, cx = (numbers(dtype, 0, batch, width) for width in (4 * hidden, 4 * hidden, hidden))
    hy, cy, gates = ops.lstm_gates(i, h, cx, None, None)
    torch.testing.assert_close(gates.double(), lstm_gates(i, h, []), **tolerance(dtype))
    gradients = ops.lstm_gates_backward(hy, None, cx, cy, gates, True)
    exact = lstm_backward(hy, torch.zeros_like(hy), cx, cy, gates)
    torch.testing.assert_close(gradients[0].double(), exact[0], **tolerance(dtype))
    assert_is_sum(gradients[2], gradients[0])


def test_one_row_is_its_own_sum(ops: Any) -> None:
    """To the bit, and a sum of minus zero alone is zero, as upstream's."""
    torch.manual_seed(0)
    workspace, grad = torch.randn(1, 5 * 34), torch.randn(1, 34)
    grad[0, 3] = -0.0
    ours = ops.gru_gates_backward(grad, workspace, True)
    for bias, grads in zip(ours[3:], ours[:2], strict=True):
        assert torch.equal(bias, grads[0])
        assert not (bias.signbit() & (bias == 0)).any()


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_special_values(ops: Any, dtype: torch.dtype) -> None:
    """NaN and infinities are where float64 has them, and nowhere else."""
    torch.manual_seed(0)
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e4, -1e4, 1e-6], dtype=dtype)
    i = special.repeat(4).expand(2, -1).contiguous()
    h, cx = torch.zeros_like(i), special.roll(3).expand(2, -1).contiguous()
    hy, cy, workspace = ops.lstm_gates(i, h, cx, None, None)
    gates = lstm_gates(i, h, [])
    a, f, g, o = gates.chunk(4, 1)
    exact_c = f * cx.double() + a * g
    for mine, wanted in ((workspace, gates), (cy, exact_c), (hy, o * exact_c.tanh())):
        torch.testing.assert_close(mine.double(), wanted, equal_nan=True, **tolerance(dtype))
    state = torch.tensor([0.0, 1.0, 0.5, torch.nan, 0.0, 1.0, 0.5, 0.25], dtype=dtype)
    saved = state.repeat(5).expand(2, -1).contiguous()
    for grad in (special.expand(2, -1).contiguous(), special.expand(2, -1)):
        ours = ops.gru_gates_backward(grad, saved, True)
        for mine, wanted in zip(ours[:3], gru_backward(grad, saved), strict=True):
            torch.testing.assert_close(mine.double(), wanted, equal_nan=True, **tolerance(dtype))
        assert torch.equal(ours[3].isnan(), ours[0].sum(0).isnan())
        assert torch.equal(ours[3].isinf(), ours[0].sum(0).isinf())
    quarter = state.repeat(4).expand(2, -1).contiguous()
    grad = special.expand(2, -1).contiguous()
    lstm = ops.lstm_gates_backward(grad, None, cx, cx, quarter, True)
    exact = lstm_backward(grad, torch.zeros_like(grad), cx, cx, quarter)
    for mine, wanted in zip(lstm[:2], exact, strict=True):
        torch.testing.assert_close(mine.double(), wanted, equal_nan=True, **tolerance(dtype))


@pytest.mark.parametrize("order", ORDERS)
def test_any_order_of_threads(ops: Any, order: str) -> None:
    torch.manual_seed(0)
    for batch in (7, 150):  # one part, several
        workspace, grad = torch.randn(batch, 5 * 40), torch.randn(batch, 40)
        expected = ops.gru_gates_backward(grad, workspace, True)
        with order_of_threads(*ORDERS[order]):
            ours = ops.gru_gates_backward(grad, workspace, True)
        for mine, wanted in zip(ours, expected, strict=True):
            assert torch.equal(mine, wanted)


@pytest.mark.parametrize("name", ["sm_75", "sm_90", "sm_120"])
def test_on_other_gpus(ops: Any, name: str) -> None:
    """Parts go by the number of multiprocessors."""
    torch.manual_seed(0)
    workspace, grad = torch.randn(600, 5 * 70), torch.randn(600, 70)
    with pretended(GPUS[name], torch.ops.aten_ext_on_host_cudnn_rnn.set_gpu):
        ours = ops.gru_gates_backward(grad, workspace, True)
    for bias, grads in zip(ours[3:], ours[:2], strict=True):
        assert_is_sum(bias, grads)


@pytest.mark.parametrize("after", [0, 1])
def test_refused_launches_go_upstream(ops: Any, after: int) -> None:
    """The kernel's launch, and that which adds the parts."""
    workspace, grad = torch.randn(100, 5 * 8), torch.randn(100, 8)
    gates, state = torch.randn(100, 32), torch.randn(100, 8)
    for call in (
        lambda: ops.gru_gates_backward(grad, workspace, True),
        lambda: ops.lstm_gates_backward(grad, None, state, state, gates, True),
    ):
        torch.ops.aten_ext_on_host_cudnn_rnn.refuse(1, after)
        with pytest.raises(RuntimeError, match="declined late"):
            call()
    torch.ops.aten_ext_on_host_cudnn_rnn.refuse(1, 0)
    with pytest.raises(RuntimeError, match="declined late"):
        ops.lstm_gates(gates, gates, state, None, None)
    assert ops.lstm_gates(gates, gates, state, None, None)[0].isfinite().all()
