"""Gradients of recurrent layers by their CUDA kernels, run on the CPU, against float64's autograd."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.cases import flattened
from ops.rnn.training.on_host_cases import DTYPES, MODES, Problem, Sizes, load

pytestmark = [
    pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or ""),
]

# Of the largest gradient: the sums of a few steps, and the roundings of gates' gradients.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


def flat(result: Any) -> list[torch.Tensor]:
    dx, dhx, dcx, dw = result
    return [t for t in (dx, dhx, dcx, *dw) if t is not None]


def close(
    ours: list[torch.Tensor], exact: list[torch.Tensor], dtype: torch.dtype, factor: float = 1.0
) -> None:
    assert len(ours) == len(exact)
    for i, (mine, truth) in enumerate(zip(ours, exact, strict=True)):
        assert mine.shape == truth.shape and mine.dtype == dtype, i
        error = (mine.double() - truth).abs().max().item()
        assert error <= factor * TOLERANCE[dtype] * max(1.0, truth.abs().max().item()), (i, error)


CELLS = pytest.mark.parametrize("cell", list(MODES))


@CELLS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (1, 5), (2, 1), (4, 3), (9, 2)])
@pytest.mark.parametrize(("inputs", "hidden"), [(1, 1), (5, 7), (8, 16)])
def test_one_layer(
    ops: Any, cell: str, dtype: torch.dtype, steps: int, batch: int, inputs: int, hidden: int
) -> None:
    problem = Problem(ops, Sizes(cell, steps, batch, inputs, hidden, dtype=dtype))
    close(flat(problem.ours(ops)), problem.exact(), dtype)


@CELLS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, True), (2, False), (3, True)])
@pytest.mark.parametrize(("bias", "batch_first"), [(True, False), (False, True)])
def test_stacks(
    ops: Any, cell: str, dtype: torch.dtype, layers: int, bidirectional: bool, bias: bool, batch_first: bool
) -> None:
    for steps, hidden in ((1, 4), (6, 5)):
        sizes = Sizes(cell, steps, 3, 4, hidden, layers, bidirectional, bias, batch_first, dtype)
        problem = Problem(ops, sizes)
        result = problem.ours(ops)
        close(flat(result), problem.exact(), dtype, factor=2.0)
        dx = result[0]
        assert dx is not None and (dx.transpose(0, 1) if batch_first else dx).is_contiguous()


@CELLS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (1, 9), (1, 32), (5, 7)])
@pytest.mark.parametrize(("inputs", "hidden", "layers"), [(5, 7, 1), (40, 48, 2), (200, 176, 1)])
def test_few_rows(
    ops: Any, cell: str, dtype: torch.dtype, steps: int, batch: int, inputs: int, hidden: int, layers: int
) -> None:
    """Products by kernels of our own are as good as the library's, whatever is asked for."""
    bidirectional = (inputs + steps) % 2 == 0
    sizes = Sizes(cell, steps, batch, inputs, hidden, layers, bidirectional, batch != 9, dtype=dtype)
    problem = Problem(ops, sizes)
    library_products = flat(problem.ours(ops))
    ops.products()
    own = problem.ours(ops, few_rows=True)
    assert ops.products() == (0 if steps == 1 else layers * (2 if bidirectional else 1) * steps)
    close(flat(own), [t.double() for t in library_products], dtype)
    for mask in ((False, True, True, True), (True, False, False, False), (False, False, False, True)):
        some = problem.ours(ops, few_rows=True, mask=mask)
        kept = [t for t, wanted in zip(own[:3], mask, strict=False) if wanted and t is not None]
        for mine, whole in zip(flat(some), [*kept, *(own[3] if mask[3] else [])], strict=True):
            assert torch.equal(mine, whole)


@CELLS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("hidden", "bidirectional"), [(7, True), (64, False), (136, True)])
def test_one_launch(ops: Any, cell: str, dtype: torch.dtype, hidden: int, bidirectional: bool) -> None:
    """The sequential part by one launch, in chunks too, is as good as step by step."""
    sizes = Sizes(
        cell, 6, 3, 5, hidden, 1 if hidden > 100 else 2, bidirectional, batch_first=True, dtype=dtype
    )
    problem = Problem(ops, sizes)
    exact = problem.exact()
    # A state of ReLU that is rounded to 0 has another gradient.
    factor = 12.0 if cell == "relu" and dtype != torch.float32 else 2.0
    whole = flat(problem.ours(ops, one_launch=True))
    close(whole, exact, dtype, factor=factor)
    for changes in ({"one_launch": True, "chunk": 4}, {}):
        others = flat(problem.ours(ops, **changes))
        close(others, exact, dtype, factor=factor)
        close(others, [t.double() for t in whole], dtype)
    masked = problem.ours(ops, one_launch=True, mask=(False, False, False, True))
    assert masked[:3] == (None, None, None)
    assert all(torch.equal(a, b) for a, b in zip(masked[3], whole[-len(masked[3]) :], strict=True))


@CELLS
@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
@pytest.mark.parametrize("part", [1, 2, 3])
def test_pieces(ops: Any, cell: str, chunk: int, part: int) -> None:
    """The same bits, but for the cell state's."""
    problem = Problem(ops, Sizes(cell, 7, 2, 4, 8, bidirectional=True))
    whole = flat(problem.ours(ops, chunk=7, part=7))
    pieces = flat(problem.ours(ops, chunk=chunk, part=min(part, chunk)))
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))
    close(pieces, problem.exact(), torch.float32)


@CELLS
@pytest.mark.parametrize("steps", [1, 5])
def test_gradients_that_are_not_given(ops: Any, cell: str, steps: int) -> None:
    problem = Problem(ops, Sizes(cell, steps, 2, 4, 6, layers=2, bidirectional=True))
    for grads in itertools.product((False, True), repeat=3):
        if any(grads[: 3 if cell == "lstm" else 2]):
            close(flat(problem.ours(ops, grads=grads)), problem.exact(grads), torch.float32)
    dx, dhx, dcx, dw = problem.ours(ops, grads=(False, False, False))
    assert (dx, dhx, dcx) == (None, None, None) and dw == [None] * len(problem.weights)


@CELLS
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_masks(ops: Any, cell: str, steps: int, dtype: torch.dtype) -> None:
    """What is not asked for is undefined and not computed; the rest has the same bits."""
    problem = Problem(ops, Sizes(cell, steps, 2, 4, 6, layers=2, bidirectional=True, dtype=dtype))
    whole = problem.ours(ops)
    ops.products()
    problem.ours(ops)
    all_products = ops.products()
    for mask in itertools.product((False, True), repeat=4):
        dx, dhx, dcx, dw = problem.ours(ops, mask=mask)
        products = ops.products()
        for mine, theirs, wanted in zip((dx, dhx, dcx), whole, mask, strict=False):
            assert (mine is not None) == (wanted and theirs is not None)
            assert mine is None or torch.equal(mine, theirs)
        assert len(dw) == (len(problem.weights) if mask[3] else 0)
        assert all(torch.equal(a, b) for a, b in zip(dw, whole[3], strict=False))
        if not mask[0] or not mask[3]:
            assert products < all_products


@pytest.mark.parametrize("layout", ["expanded", "zero strides", "transposed", "columns", "odd"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_layouts_of_gradients_and_inputs(ops: Any, layout: str, batch_first: bool) -> None:
    problem = Problem(ops, Sizes("gru", 4, 3, 6, 8, batch_first=batch_first))
    g = problem.grad_output

    def strange(t: torch.Tensor) -> torch.Tensor:
        if layout == "transposed":
            return t.transpose(0, 1).contiguous().transpose(0, 1)
        if layout == "columns":
            return t.repeat_interleave(2, -1)[..., ::2]
        if layout == "odd":
            return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)
        return t

    if layout == "expanded":
        problem.grad_output = g[:1, :1].expand_as(g)
    elif layout == "zero strides":
        problem.grad_output = torch.ones(()).expand_as(g)
    exact = problem.exact()
    problem.grad_output = strange(problem.grad_output)
    problem.grad_hy = strange(problem.grad_hy)
    problem.x = strange(problem.x)
    if layout == "odd":
        problem.hx = strange(problem.hx)
    output = problem.outputs[-1].transpose(0, 1) if batch_first else problem.outputs[-1]
    result = problem.ours(ops, output=strange(output))
    close(flat(result), exact, torch.float32)


def test_gradients_of_weights_are_views_of_one_buffer(ops: Any) -> None:
    """In the order of weight_buf, of the shapes that the weights came in."""
    for cell, columns, layers in itertools.product(MODES, (False, True), (1, 2)):
        problem = Problem(ops, Sizes(cell, 2, 2, 4, 6, layers=layers, bidirectional=True))
        dw = problem.ours(ops, columns=columns)[3]
        _, views = flattened(problem.weights, columns=columns)
        assert len({w.untyped_storage().data_ptr() for w in dw}) == 1
        assert dw[0].untyped_storage().nbytes() == 4 * sum(w.numel() for w in problem.weights)
        assert [(w.shape, w.storage_offset()) for w in dw] == [(v.shape, v.storage_offset()) for v in views]
        plain = problem.ours(ops)[3]
        assert all(torch.equal(a.flatten(), b.flatten()) for a, b in zip(dw, plain, strict=True))
        without = Problem(ops, Sizes(cell, 2, 2, 4, 6, layers=layers, bidirectional=True, bias=False))
        assert len({w.untyped_storage().data_ptr() for w in without.ours(ops)[3]}) == len(without.weights)


def test_weights_that_are_no_views_of_the_buffer(ops: Any) -> None:
    problem = Problem(ops, Sizes("gru", 3, 2, 4, 6, layers=2))
    one, other = flat(problem.ours(ops, buffer=True)), flat(problem.ours(ops, buffer=False))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@CELLS
def test_reserve_and_inputs_are_only_read(ops: Any, cell: str) -> None:
    """And a second call gives the same bits."""
    problem = Problem(ops, Sizes(cell, 5, 3, 4, 6, layers=3, bidirectional=True))
    tensors = [problem.x, problem.hx, problem.cx, problem.reserve, problem.outputs[-1], problem.grad_output]
    before = [t.clone() for t in tensors]
    first, second = (flat(problem.ours(ops)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


def test_lstm_without_a_cell_state(ops: Any) -> None:
    """It begins at zero, and has no gradient."""
    problem = Problem(ops, Sizes("lstm", 5, 3, 4, 6))
    problem.cx.zero_()
    problem.outputs = problem._forward_by_layers()
    problem.reserve = problem._reserve(ops)
    exact = problem.exact((True, True, False))
    del exact[2]
    for chunk in (5, 2):
        result = problem.ours(
            ops, cx=None, grad_cy=None, mask=[True, True, False, True], grads=(True, True, False), chunk=chunk
        )
        assert result[2] is None
        close(flat(result), exact, torch.float32)


def test_tf32(ops: Any) -> None:
    problem = Problem(ops, Sizes("gru", 3, 4, 8, 16))
    exact = problem.exact()
    plain, tf32 = flat(problem.ours(ops)), flat(problem.ours(ops, tf32=True))
    close(plain, exact, torch.float32)
    close(tf32, exact, torch.float32, factor=2000.0)
    assert not any(torch.equal(a, b) for a, b in zip(plain[2:4], tf32[2:4], strict=True))


def test_scaled_gradients_in_fp16(ops: Any) -> None:
    """With a scale of 65536, sums that fit stay finite."""
    problem = Problem(ops, Sizes("gru", 8, 4, 8, 16, dtype=torch.float16))
    problem.grad_output = (problem.grad_output * 1000).half()
    problem.grad_hy = (problem.grad_hy * 1000).half()
    ours, exact = flat(problem.ours(ops)), problem.exact()
    assert all(t.isfinite().all() for t in ours)
    close(ours, exact, torch.float16)
