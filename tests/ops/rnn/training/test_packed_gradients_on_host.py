"""Gradients of packed sequences by their CUDA kernels, run on the CPU, against float64's autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from device_on_host import library
from ops.rnn.cases import flattened
from ops.rnn.training.on_host_cases import DTYPES, MODES, Sizes, load, module
from ops.rnn.training.test_gradients_on_host import TOLERANCE, flat

pytestmark = [
    pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or ""),
]

LENGTHS = {
    "descending": [6, 5, 3, 1],
    "equal": [4, 4, 4],
    "one row": [5],
    "one step": [1, 1, 1],
    "long and short": [9, 2, 2, 1, 1],
}


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


class Problem:
    """A layer stack over a packed sequence, what autograd would save of its forward, and its gradients."""

    def __init__(self, ops: Any, lengths: list[int], sizes: Sizes) -> None:
        """Outputs are those of float64, rounded."""
        torch.manual_seed(0)
        self.sizes, self.directions = sizes, 2 if sizes.bidirectional else 1
        self.rnn = module(sizes)
        for w in self.rnn._flat_weights:
            w.data.copy_(w.data.to(sizes.dtype))
        self.weights = [w.detach().to(sizes.dtype) for w in self.rnn._flat_weights]
        padded = torch.randn(lengths[0], len(lengths), sizes.inputs)
        self.x, self.batch_sizes, *_ = pack_padded_sequence(padded.to(sizes.dtype), torch.tensor(lengths))
        states = (sizes.layers * self.directions, len(lengths), sizes.hidden)
        self.hx, self.cx, self.grad_hy, self.grad_cy = torch.randn(4, *states).to(sizes.dtype)
        self.grad_output = torch.randn(len(self.x), self.directions * sizes.hidden).to(sizes.dtype)
        *inner, self.output = self._outputs()
        total, *offsets = ops.reserve_of(
            sizes.dtype != torch.float32, len(self.x), 1, sizes.hidden, sizes.layers, self.directions
        )
        self.reserve = torch.full((1, total), 0xFF, dtype=torch.uint8)
        for y, offset in zip(inner, offsets, strict=True):
            data = y.view(torch.uint8).flatten()
            self.reserve[0, offset : offset + data.numel()] = data

    def _outputs(self) -> list[torch.Tensor]:
        sizes, x, outputs = self.sizes, self.x.double(), []
        per_layer = self.directions * (4 if sizes.bias else 2)
        for layer in range(sizes.layers):
            one = module(Sizes(**{**vars(sizes), "layers": 1, "inputs": x.shape[1]}))
            for to, w in zip(one._flat_weights, self.weights[layer * per_layer :], strict=False):
                to.data.copy_(w)
            state = slice(layer * self.directions, (layer + 1) * self.directions)
            h, c = self.hx[state].double(), self.cx[state].double()
            with torch.no_grad():
                y = one(PackedSequence(x, self.batch_sizes), (h, c) if sizes.cell == "lstm" else h)[0]
            outputs.append(y.data.to(sizes.dtype))
            x = outputs[-1].double()
        return outputs

    def exact(self, grads: tuple[bool, bool, bool]) -> list[torch.Tensor]:
        lstm = self.sizes.cell == "lstm"
        x, h, c = (t.double().requires_grad_() for t in (self.x, self.hx, self.cx))
        y, states = self.rnn(PackedSequence(x, self.batch_sizes), (h, c) if lstm else h)
        hy, cy = states if lstm else (states, None)
        given_all = zip((y.data, hy, cy), (self.grad_output, self.grad_hy, self.grad_cy), grads, strict=True)
        pairs = [(o, g.double()) for o, g, wanted in given_all if o is not None and wanted]
        inputs = [x, h, *([c] if lstm else []), *self.rnn._flat_weights]
        found = torch.autograd.grad([o for o, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True)
        return [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs, strict=True)]

    def arguments(self, grads: tuple[bool, bool, bool], mask: tuple[bool, bool, bool, bool]) -> list[Any]:
        sizes, lstm = self.sizes, self.sizes.cell == "lstm"
        buffer, views = flattened(self.weights, bias=sizes.bias)
        return [
            self.x, views, 4 if sizes.bias else 2, buffer, self.hx, self.cx if lstm else None, self.output,
            self.grad_output if grads[0] else None, self.grad_hy if grads[1] else None,
            self.grad_cy if grads[2] and lstm else None, MODES[sizes.cell], sizes.hidden, sizes.layers,
            False, sizes.bidirectional, self.reserve, [mask[0], mask[1], mask[2] and lstm, mask[3]],
        ]  # fmt: skip


def check(
    ops: Any,
    lengths: list[int],
    sizes: Sizes,
    *,
    grads: tuple[bool, bool, bool] = (True, True, True),
    mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
    chunk: int = 0,
    part: int = 0,
    one_launch: bool = False,
    small_pieces: bool = False,
) -> None:
    problem = Problem(ops, lengths, sizes)
    kept = problem.reserve.clone()
    result = ops.backward(
        *problem.arguments(grads, mask),
        chunk,
        part,
        False,
        one_launch,
        False,
        problem.batch_sizes.tolist(),
        small_pieces=small_pieces,
    )
    assert torch.equal(kept, problem.reserve)
    lstm = sizes.cell == "lstm"
    kinds = [mask[0], mask[1], *([mask[2]] if lstm else []), *[mask[3]] * len(problem.weights)]
    exact = [e for e, wanted in zip(problem.exact(grads), kinds, strict=True) if wanted]
    ours = flat(result)
    assert len(ours) == len(exact)
    for i, (mine, truth) in enumerate(zip(ours, exact, strict=True)):
        assert mine.shape == truth.shape and mine.dtype == sizes.dtype, i
        error = (mine.double() - truth).abs().max().item()
        assert error <= 2 * TOLERANCE[sizes.dtype] * max(1.0, truth.abs().max().item()), (i, error)


CELLS = pytest.mark.parametrize("cell", list(MODES))


@CELLS
@pytest.mark.parametrize("one_launch", [False, True], ids=["steps", "one launch"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_lengths(ops: Any, cell: str, lengths: list[int], bidirectional: bool, one_launch: bool) -> None:
    if one_launch and lengths[0] == 1:
        pytest.skip("a single step has no recurrence")
    check(ops, lengths, Sizes(cell, inputs=5, hidden=16, bidirectional=bidirectional), one_launch=one_launch)


@CELLS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("chunk", "part"), [(0, 0), (3, 1), (2, 2), (7, 3)])
@pytest.mark.parametrize("one_launch", [False, True], ids=["steps", "one launch"])
def test_chunks(ops: Any, cell: str, dtype: torch.dtype, chunk: int, part: int, one_launch: bool) -> None:
    sizes = Sizes(cell, inputs=6, hidden=16, layers=2, bidirectional=True, dtype=dtype)
    check(ops, [7, 6, 3, 3, 1], sizes, chunk=chunk, part=part, one_launch=one_launch)


@CELLS
@pytest.mark.parametrize(
    ("dtype", "lengths"),
    [
        *[(torch.float32, LENGTHS[name]) for name in ("descending", "one row", "long and short")],
        *[(dtype, [11, 9, 8, 6, 5, 3, 1]) for dtype in DTYPES],
    ],
    ids=str,
)
@pytest.mark.parametrize(("chunk", "part"), [(0, 0), (2, 1)])
@pytest.mark.parametrize("one_launch", [False, True], ids=["steps", "one launch"])
def test_pieces(
    ops: Any,
    cell: str,
    dtype: torch.dtype,
    lengths: list[int],
    chunk: int,
    part: int,
    one_launch: bool,
) -> None:
    """Computed again in pieces of fewer and fewer rows."""
    if cell == "relu" and dtype != torch.float32:
        pytest.skip("states of 16 bits that are rounded to 0 have another gradient")
    sizes = Sizes(cell, inputs=6, hidden=16, layers=2, bidirectional=True, dtype=dtype)
    check(ops, lengths, sizes, chunk=chunk, part=part, one_launch=one_launch, small_pieces=True)


@CELLS
@pytest.mark.parametrize(
    "grads", [(True, False, False), (False, True, False), (False, False, True), (True, True, False)]
)
@pytest.mark.parametrize("one_launch", [False, True], ids=["steps", "one launch"])
@pytest.mark.parametrize("small_pieces", [False, True], ids=["whole", "in pieces"])
def test_gradients_that_are_not_given(
    ops: Any, cell: str, grads: tuple[bool, bool, bool], one_launch: bool, small_pieces: bool
) -> None:
    if grads == (False, False, True) and cell != "lstm":
        pytest.skip("no cell state")
    sizes = Sizes(cell, inputs=4, hidden=8, layers=2, bidirectional=True)
    check(ops, [5, 2, 1], sizes, grads=grads, one_launch=one_launch, small_pieces=small_pieces)


@CELLS
@pytest.mark.parametrize(
    "mask", [(True, False, False, False), (False, True, True, False), (False, False, False, True)]
)
def test_gradients_that_are_not_wanted(ops: Any, cell: str, mask: tuple[bool, bool, bool, bool]) -> None:
    check(
        ops, [5, 2, 1], Sizes(cell, inputs=4, hidden=8, layers=2, bidirectional=True, bias=False), mask=mask
    )


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    cell=st.sampled_from(list(MODES)),
    bidirectional=st.booleans(),
    inputs=st.integers(1, 20),
    hidden=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    chunk=st.integers(0, 5),
    small_pieces=st.booleans(),
)
def test_random_lengths(
    lengths: list[int],
    cell: str,
    bidirectional: bool,
    inputs: int,
    hidden: int,
    dtype: torch.dtype,
    chunk: int,
    small_pieces: bool,
) -> None:
    lengths.sort(reverse=True)
    sizes = Sizes(cell, inputs=inputs, hidden=hidden, bidirectional=bidirectional, dtype=dtype)
    check(load(), lengths, sizes, chunk=min(chunk, lengths[0]), small_pieces=small_pieces)
