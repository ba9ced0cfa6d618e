"""Both operators over a packed sequence, by their CUDA kernels run on the CPU, against float64's autograd."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.cases import tf32_allowed
from ops.rnn.training.on_host_cases import DTYPES, MODES, OF_LARGE_LAYERS, Sizes, load, saved_bytes
from ops.rnn.training.test_gradients_on_host import TOLERANCE, flat
from ops.rnn.training.test_packed_gradients_on_host import Problem

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.mark.long
@pytest.mark.parametrize("cell", list(MODES))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("saves", [False, True])
def test_both_operators(ops: Any, cell: str, dtype: torch.dtype, layers: int, saves: bool) -> None:
    """The forward in training, by the plan for a padded sequence, and its backward."""
    hidden = 16 if cell == "gru" else 200
    if cell == "relu" and dtype != torch.float32:
        pytest.skip("states of 16 bits that are rounded to 0 have another gradient")
    if saves and cell in ("tanh", "relu"):
        pytest.skip("a state says all of its step")
    sizes = Sizes(cell, inputs=6, hidden=hidden, layers=layers, bidirectional=True, dtype=dtype)
    problem = Problem(ops, [5, 4, 2, 2, 1], sizes)
    lstm = cell == "lstm"
    options = [MODES[cell], hidden, 0, layers, False, 0.0, True, True, problem.batch_sizes.tolist(), None]
    x, views, stride, buffer, hx, cx = problem.arguments((True, True, True), (True,) * 4)[:6]
    sizes_of_steps = problem.batch_sizes.tolist()
    y, hy, cy, reserve, _ = ops.forward(
        x, views, stride, buffer, hx, cx, MODES[cell], hidden, layers, True, sizes_of_steps, saves
    )
    inference = torch.ops.aten_ext_on_host._cudnn_rnn(
        x, views, stride, buffer, hx, cx, *[*options[:6], False, *options[7:]]
    )
    assert torch.equal(y, inference[0]) and torch.equal(hy, inference[1]) and torch.equal(cy, inference[2])
    saved = 2 * layers * saved_bytes(cell, 5 * 5, hidden, dtype) if saves else 0
    assert reserve.shape == (1, problem.reserve.shape[1] + saved)
    kept = reserve.clone()
    grads = (problem.grad_output, problem.grad_hy, problem.grad_cy if lstm else None)
    with tf32_allowed(False):
        found = torch.ops.aten_ext_on_host._cudnn_rnn_backward(
            x, views, stride, buffer, hx, cx, y, *grads, *options, reserve, [True, True, lstm, True]
        )
    assert torch.equal(kept, reserve)
    for mine, truth in zip(flat(found), problem.exact((True, True, True)), strict=True):
        error = (mine.double() - truth).abs().max().item()
        assert error <= 4 * TOLERANCE[dtype] * max(1.0, truth.abs().max().item())


LENGTHS = {
    "descending": [11, 9, 8, 6, 5, 3, 1],
    "one long": [13, 2, 2, 2, 1],
    "half": [8, 8, 8, 4, 4, 4],
    "equal but one": [6, 6, 6, 4],
    "short": [5, 5, 1],
}


def new_sizes(cell: str, hidden: int, dtype: torch.dtype) -> Sizes:
    """Both directions of two layers, or of one where it is large and takes long."""
    layers = 2 if hidden == 16 else 1
    return Sizes(cell, inputs=6, hidden=hidden, layers=layers, bidirectional=True, dtype=dtype)


SMALL_PIECES = [(name, chunk) for name in LENGTHS if name != "short" for chunk in (0, 2)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "lengths", "chunk"),
    [
        *((*of, 16, *how) for of in itertools.product(("gru", "lstm"), DTYPES) for how in SMALL_PIECES),
        *((*of, 200, "equal but one", 2) for of in OF_LARGE_LAYERS),
        *((*of, 200, "one long", 0) for of in OF_LARGE_LAYERS),
        *((*of, 520, "short", 0) for of in OF_LARGE_LAYERS),
    ],
)
def test_saved_in_pieces(
    ops: Any, cell: str, dtype: torch.dtype, hidden: int, lengths: str, chunk: int
) -> None:
    """A forward that saves, and its backward, in pieces of fewer and fewer rows; ``chunk``: steps at once."""
    sizes = new_sizes(cell, hidden, dtype)
    problem = Problem(ops, LENGTHS[lengths], sizes)
    lstm, batch_sizes = cell == "lstm", problem.batch_sizes.tolist()
    arguments = problem.arguments((True, True, True), (True, True, lstm, True))
    x, views, stride, buffer, hx, cx = arguments[:6]
    state = [x, views, stride, buffer, hx, cx, MODES[cell], hidden, sizes.layers, True, batch_sizes, True]
    with tf32_allowed(False):
        whole = ops.forward(*state)
        y, hy, cy, reserve, _ = ops.forward(*state, chunk=chunk, small_pieces=True)
    for mine, one in zip((y, hy, cy), whole[:3], strict=True):
        assert torch.equal(mine, one)
    assert reserve.numel() < whole[3].numel(), "as much padding as without pieces"
    kept = reserve.clone()
    grads = (problem.grad_output, problem.grad_hy, problem.grad_cy if lstm else None)
    found = ops.backward(
        x, views, stride, buffer, hx, cx, y, *grads, MODES[cell], hidden, sizes.layers, False, True, reserve,
        [True, True, lstm, True], 0, 0, False, True, False, batch_sizes, saved=True, small_pieces=True,
    )  # fmt: skip
    assert torch.equal(kept, reserve)
    for mine, truth in zip(flat(found), problem.exact((True, True, True)), strict=True):
        error = (mine.double() - truth).abs().max().item()
        assert error <= 4 * TOLERANCE[dtype] * max(1.0, truth.abs().max().item())


def counted(call: Callable[[], Any]) -> tuple[Any, int, int]:
    """What the call returns, its launches, and the products among them and of the library."""
    ops, kernels = load(), torch.ops.aten_ext_on_host_cudnn_rnn
    kernels.launched(), ops.products()
    result = call()
    launched = kernels.launched()
    return result, len(launched), ops.products() + sum("GateProduct" in name for name in launched)


OF_SMALL_LAYERS = list(itertools.product(("gru", "lstm", "tanh"), DTYPES))


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "dtype", "hidden", "lengths", "chunk"),
    [
        *((*of, 16, *how) for of in OF_SMALL_LAYERS for how in SMALL_PIECES),
        *((*of, 200, "short", 2) for of in (*OF_LARGE_LAYERS, ("tanh", torch.bfloat16))),
        *((*of, 520, "short", 0) for of in (*OF_LARGE_LAYERS, ("tanh", torch.float32))),
    ],
)
def test_a_forward_alone_in_pieces(
    ops: Any, cell: str, dtype: torch.dtype, hidden: int, lengths: str, chunk: int
) -> None:
    """Nothing is saved: the bits of one piece, by more launches."""
    sizes = new_sizes(cell, hidden, dtype)
    problem = Problem(ops, LENGTHS[lengths], sizes)
    x, views, stride, buffer, hx, cx = problem.arguments((True, True, True), (True, True, True, True))[:6]
    batch_sizes = problem.batch_sizes.tolist()
    state = [x, views, stride, buffer, hx, cx, MODES[cell], hidden, sizes.layers, True, batch_sizes, False]
    whole, of_one, products_of_one = counted(lambda: ops.forward(*state))
    pieces, launches, products = counted(lambda: ops.forward(*state, chunk=chunk, small_pieces=True))
    assert launches > of_one > 0
    together, launches, at_once = counted(lambda: ops.forward(*state, chunk=chunk, short_pieces=True))
    assert launches > of_one
    assert products > at_once == products_of_one > 0, "one product of the input of all pieces"
    for mine, at_once, one in zip(pieces[:3], together[:3], whole[:3], strict=True):
        assert torch.equal(mine, one) and torch.equal(at_once, one)
