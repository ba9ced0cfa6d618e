"""Forwards that save the coefficients of the gradients, and the backward of that, run on the CPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.cases import flattened, tf32_allowed
from ops.rnn.training.on_host_cases import DTYPES, MODES, OF_LARGE_LAYERS, Problem, Sizes, load, saved_bytes

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

# Of the largest gradient. Saved in 16 bits, a coefficient is rounded once more than a gradient of a gate.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
TF32_TOLERANCE = 5e-3


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


def forward(ops: Any, problem: Problem, saves: bool) -> Any:
    """y, hy, cy, reserve and weight_buf; and the arguments of a backward behind cx."""
    sizes = problem.sizes
    packed, views = flattened(problem.weights)
    cx = problem.cx if sizes.cell == "lstm" else None
    given = (problem.x, views, 4, packed, problem.hx, cx)
    options = (MODES[sizes.cell], sizes.hidden, sizes.layers, sizes.bidirectional, [], saves)
    return given, ops.forward(*given, *options)


def backward(problem: Problem, given: Any, y: torch.Tensor, reserve: torch.Tensor) -> list[torch.Tensor]:
    sizes = problem.sizes
    lstm = sizes.cell == "lstm"
    options = (
        MODES[sizes.cell],
        sizes.hidden,
        0,
        sizes.layers,
        False,
        0.0,
        True,
        sizes.bidirectional,
        [],
        None,
    )
    grads = (problem.grad_output, problem.grad_hy, problem.grad_cy if lstm else None)
    dx, dhx, dcx, dw = torch.ops.aten_ext_on_host._cudnn_rnn_backward(
        *given, y, *grads, *options, reserve, [True, True, lstm, True]
    )
    return [dx, dhx, *([dcx] if lstm else []), *dw]


def worst(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest error of the largest gradient."""
    return max(
        (mine.double() - truth).abs().max().item() / max(1.0, truth.abs().max().item())
        for mine, truth in zip(found, exact, strict=True)
    )


# A block, a cluster and the whole GPU, by multiply-adds and by tensor cores, several turns of rows in each.
SMALL = [(7, 3, 16, 2, True), (5, 37, 64, 1, False), (5, 2, 144, 2, True)]
LARGE = [(5, 21, 200, 1, True), (6, 3, 400, 1, False), (6, 1, 656, 1, False)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "dtype", "steps", "batch", "hidden", "layers", "bidirectional"),
    [
        *((*of, *sizes) for of in itertools.product(("gru", "lstm"), DTYPES) for sizes in SMALL),
        *((*of, *sizes) for of in OF_LARGE_LAYERS for sizes in LARGE),
    ],
)
def test_saved_and_computed_again(
    ops: Any,
    cell: str,
    dtype: torch.dtype,
    steps: int,
    batch: int,
    hidden: int,
    layers: int,
    bidirectional: bool,
) -> None:
    problem = Problem(ops, Sizes(cell, steps, batch, 6, hidden, layers, bidirectional, dtype=dtype))
    with tf32_allowed(False):
        given, (y, hy, cy, reserve, _) = forward(ops, problem, saves=True)
        _, again = forward(ops, problem, saves=False)
        assert all(torch.equal(a, b) for a, b in zip((y, hy, cy), again[:3], strict=True))
        of_directions = layers * problem.directions
        saved = saved_bytes(cell, steps * batch, hidden, dtype)
        assert reserve.numel() == again[3].numel() + of_directions * saved
        kept = reserve.clone()
        found = backward(problem, given, y, reserve)
        assert torch.equal(kept, reserve)
        exact = problem.exact()
        assert worst(found, exact) <= TOLERANCE[dtype]
        assert worst(found, [t.double() for t in backward(problem, given, y, again[3])]) <= TOLERANCE[dtype]
        # It is what was saved that is read, of each layer and direction.
        for i in range(of_directions):
            reserve.copy_(kept)
            end = reserve.numel() - i * saved
            reserve[0, end - saved : end].zero_()
            assert worst(backward(problem, given, y, reserve), exact) > 10 * TOLERANCE[dtype]


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(5, 20, 256), (5, 18, 512)])
def test_tf32(ops: Any, cell: str, steps: int, batch: int, hidden: int) -> None:
    problem = Problem(ops, Sizes(cell, steps, batch, 8, hidden))
    with tf32_allowed(True):
        given, (y, _, _, reserve, _) = forward(ops, problem, saves=True)
        found = backward(problem, given, y, reserve)
    assert worst(found, problem.exact()) <= TF32_TOLERANCE
    with tf32_allowed(False):  # another backward, of the same reserve
        assert worst(backward(problem, given, y, reserve), problem.exact()) <= TF32_TOLERANCE


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("value", [1e6, 3e38, float("inf"), float("nan")])
def test_states_beyond_fp16(ops: Any, cell: str, value: float) -> None:
    """A coefficient that is a multiple of the state has the range of bf16, as the state."""
    problem = Problem(ops, Sizes(cell, 6, 2, 6, 64, bidirectional=True, dtype=torch.bfloat16))
    (problem.cx if cell == "lstm" else problem.hx)[:, 1] = value
    given, (y, _, _, reserve, _) = forward(ops, problem, saves=True)
    _, again = forward(ops, problem, saves=False)
    found = backward(problem, given, y, reserve)
    expected = backward(problem, given, y, again[3])
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine.isnan(), other.isnan()) and torch.equal(mine.isinf(), other.isinf())
        finite = other.isfinite()
        if finite.any():
            largest = max(1.0, other[finite].abs().max().item())
            assert (mine - other)[finite].abs().max().item() <= TOLERANCE[torch.bfloat16] * largest


def test_who_saves(ops: Any) -> None:
    """Only where gradients can come, and of an even number of units in 16 bits."""
    problem = Problem(ops, Sizes("gru", 6, 3, 6, 144))
    packed, views = flattened(problem.weights)
    options = (MODES["gru"], 144, 0, 1, False, 0.0, True, False, [], None)

    def reserve(x: torch.Tensor) -> int:
        result = torch.ops.aten_ext_on_host._cudnn_rnn(x, views, 4, packed, problem.hx, None, *options)
        return int(result[3].numel())

    assert reserve(problem.x) == 0
    x = problem.x.clone().requires_grad_()
    with torch.no_grad():
        assert reserve(x) == 0
    assert reserve(x) == saved_bytes("gru", 18, 144, torch.float32)
    odd = Problem(ops, Sizes("gru", 6, 3, 6, 145, bidirectional=True, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="no kernel that saves"):
        forward(ops, odd, saves=True)
