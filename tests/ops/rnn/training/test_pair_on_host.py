"""Forward in training and its backward, by both operators, with their CUDA kernels run on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.cases import GRU, flattened
from ops.rnn.training.on_host_cases import DTYPES, MODES, Problem, Sizes, load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("steps", [1, 3, 9])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (1, True), (3, True)])
@pytest.mark.parametrize(("bias", "batch_first", "buffer"), [(True, False, True), (False, True, False)])
def test_forward_and_backward(
    ops: Any,
    dtype: torch.dtype,
    steps: int,
    layers: int,
    bidirectional: bool,
    bias: bool,
    batch_first: bool,
    buffer: bool,
) -> None:
    # Smaller ones of one direction are cuDNN's, but for bf16.
    hidden = 16 if bidirectional or dtype == torch.bfloat16 else 144
    sizes = Sizes("gru", steps, 3, 6, hidden, layers, bidirectional, bias, batch_first, dtype)
    problem = Problem(ops, sizes)
    packed, views = flattened(problem.weights, bias=bias)
    weights, weight_buf = (views, packed) if buffer else (problem.weights, None)
    stride = 4 if bias else 2

    def options(train: bool) -> tuple[Any, ...]:
        return (GRU, hidden, 0, layers, batch_first, 0.0, train, bidirectional, [], None)

    forward = torch.ops.aten_ext_on_host._cudnn_rnn
    arguments = (problem.x, weights, stride, weight_buf, problem.hx, None)
    y, hy, cy, reserve, returned = forward(*arguments, *options(train=True))
    inference = forward(*arguments, *options(train=False))
    assert torch.equal(y, inference[0]) and torch.equal(hy, inference[1]), "the same kernels"
    assert inference[3].shape == (0,) and cy.shape == (0,)
    inner = -(-y.numel() * y.element_size() // 256) * 256
    assert reserve.shape == (1, (layers - 1) * inner) and reserve.dtype == torch.uint8
    grads = (problem.grad_output, problem.grad_hy, None)
    kept = reserve.clone()
    mask = [True, True, False, True]
    saved = (
        problem.x,
        weights,
        stride,
        returned,
        problem.hx,
        None,
        y,
        *grads,
        *options(train=True),
        kept,
        mask,
    )
    dx, dhx, dcx, dw = torch.ops.aten_ext_on_host._cudnn_rnn_backward(*saved)
    assert dcx is None and torch.equal(kept, reserve)
    for mine, truth in zip([dx, dhx, *dw], problem.exact(), strict=True):
        assert mine.shape == truth.shape
        error = (mine.double() - truth).abs().max().item()
        assert error <= TOLERANCE[dtype] * max(1.0, truth.abs().max().item())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("steps", [1, 9])
@pytest.mark.parametrize("cell", ["lstm", "tanh", "relu"])
def test_other_cells(ops: Any, cell: str, dtype: torch.dtype, steps: int) -> None:
    """Smaller ones are cuDNN's, and so is one step of several layers of an LSTM in bf16."""
    lstm = cell == "lstm"
    layers = 1 if lstm and steps == 1 and dtype == torch.bfloat16 else 2
    problem = Problem(ops, Sizes(cell, steps, 3, 8, 192, layers, dtype=dtype))
    cx = problem.cx if lstm else None
    packed, _ = flattened(problem.weights)
    options = (MODES[cell], 192, 0, layers, False, 0.0, True, False, [], None)
    first = (problem.x, problem.weights, 4)
    y, _, cy, reserve, _ = torch.ops.aten_ext_on_host._cudnn_rnn(*first, None, problem.hx, cx, *options)
    assert cy.shape == (problem.cx.shape if lstm else (0,))
    grads = (problem.grad_output, problem.grad_hy, problem.grad_cy if lstm else None)
    dx, dhx, dcx, dw = torch.ops.aten_ext_on_host._cudnn_rnn_backward(
        *first, packed, problem.hx, cx, y, *grads, *options, reserve, [True, True, lstm, True]
    )
    factor = 10 if cell == "relu" else 1  # a state that is rounded to 0 has another gradient
    found = [dx, dhx, *([dcx] if lstm else []), *dw]
    for mine, truth in zip(found, problem.exact(), strict=True):
        error = (mine.double() - truth).abs().max().item()
        assert error <= factor * TOLERANCE[dtype] * max(1.0, truth.abs().max().item())


def test_nothing_is_kept_of_inner_layers_memory(ops: Any) -> None:
    """Their outputs are in the reserve alone: a forward in training takes no more memory than it has to."""
    problem = Problem(ops, Sizes("gru", 4, 2, 6, 128, 2))
    options = (GRU, 128, 0, 2, False, 0.0, True, False, [], None)
    arguments = (problem.x, problem.weights, 4, None, problem.hx, None)
    y, _, _, reserve, _ = torch.ops.aten_ext_on_host._cudnn_rnn(*arguments, *options)
    inner = reserve[0, : y.numel() * 4].view(torch.float32).view(y.shape)
    torch.testing.assert_close(inner, problem.outputs[0], rtol=0, atol=1e-5)
