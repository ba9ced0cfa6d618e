"""The projection of a layer's input, run on the CPU against a stand-in for cuBLASLt (include/cublasLt.h).

The stand-in counts how often its heuristic is asked, and takes an algorithm only for the problem and the
alignments that it was chosen for. Which compute type it is told is in test_flags.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.cases import GRU, tf32_allowed
from ops.rnn.on_host_cases import DTYPES, TOLERANCE, load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

MIB = 1 << 20


@pytest.fixture
def ops() -> Iterator[Any]:
    ops = load()
    with tf32_allowed(False):
        yield ops
    ops.set_lt(True, True, True, 0)


def call(
    gru: torch.nn.GRU, x: torch.Tensor, weights: list[torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """y, and how far it is from float64."""
    directions = 2 if gru.bidirectional else 1
    h = torch.zeros(directions, x.shape[1], gru.hidden_size, dtype=x.dtype)
    options = (GRU, gru.hidden_size, 0, 1, False, 0.0, False, gru.bidirectional, [], None)
    weights = gru._flat_weights if weights is None else weights
    y: torch.Tensor = torch.ops.aten_ext_on_host._cudnn_rnn(x, weights, 4, None, h, None, *options)[0]
    exact = torch.nn.GRU(gru.input_size, gru.hidden_size, bidirectional=gru.bidirectional).double()
    for parameter, w in zip(exact._flat_weights, weights, strict=True):
        parameter.data.copy_(w)
    with torch.no_grad():
        return y, (y.double() - exact(x.double(), h.double())[0]).abs().max()


def layer(inputs: int, hidden: int, bidirectional: bool = False) -> torch.nn.GRU:
    torch.manual_seed(inputs)
    return torch.nn.GRU(inputs, hidden, bidirectional=bidirectional).requires_grad_(False)


def test_the_heuristic_is_asked_once(ops: Any) -> None:
    gru, x = layer(13, 20), torch.randn(70, 2, 13)
    ops.lt()
    results = [call(gru, x)[0] for _ in range(3)]
    assert ops.lt()[:2] == [1, 3]
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    call(gru, torch.randn(90, 2, 13))
    assert ops.lt()[:2] == [1, 1], "another length"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", ["in order", "second first", "between vectors", "the same"])
def test_weights_of_both_directions_lie_anywhere(ops: Any, dtype: torch.dtype, place: str) -> None:
    """One product over the distance between them, where both begin at whole vectors."""
    inputs, hidden = 12, 20
    size = 3 * hidden * inputs
    at = {
        "in order": (0, 4 * size),
        "second first": (size, 0),
        "between vectors": (1, size + 2),
        "the same": (0, 0),
    }[place]
    gru = layer(inputs, hidden, bidirectional=True).to(dtype)
    memory = torch.empty(max(at) + size + 64, dtype=dtype)
    first = -memory.data_ptr() % 64 // dtype.itemsize
    weights = list(gru._flat_weights)
    for i, offset in zip((0, 4), at, strict=True):
        matrix = memory[first + offset : first + offset + size].view(3 * hidden, inputs)
        weights[i] = matrix.normal_(std=hidden**-0.5)
    ops.lt()
    _, error = call(gru, torch.randn(6, 30, inputs).to(dtype), weights)
    _, products, _, count, *_ = ops.lt()
    assert (products, count) == ((2, 1) if place == "between vectors" else (1, 2))
    assert error < 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("steps", "batch", "inputs"), [(6, 2, 13), (9, 2, 64), (32, 4, 12), (5, 25, 100)])
def test_few_rows_are_a_kernel_of_our_own(
    ops: Any, steps: int, batch: int, inputs: int, bidirectional: bool
) -> None:
    """In fp32, both directions in one launch; more rows, and 16 bits, are a library's."""
    gru = layer(inputs, 20, bidirectional)
    ops.lt()
    assert call(gru, torch.randn(steps, batch, inputs))[1] < 2e-6
    assert ops.lt()[:2] == [0, 0]
    call(gru.bfloat16(), torch.randn(steps, batch, inputs).bfloat16())
    assert ops.lt()[1] > 0
    assert call(gru.float(), torch.randn(steps, 128 // steps + 1, inputs))[1] < 2e-6
    assert ops.lt()[1] > 0


def test_input_that_is_not_aligned(ops: Any) -> None:
    gru = layer(5, 20)
    x = torch.randn(6 * 2 * 5 + 1)[1:].view(6, 2, 5)
    assert call(gru, x)[1] < 2e-6


@pytest.mark.parametrize("workspace", [0, 4096])
def test_workspace_is_the_calls_own(ops: Any, workspace: int) -> None:
    """At most 32 MiB are asked for, as much as PyTorch gives cuBLAS."""
    ops.set_lt(True, True, True, workspace)
    gru = layer(14 + workspace % 7, 20)
    assert call(gru, torch.randn(6, 30, gru.input_size))[1] < 2e-6
    given, allowed = ops.lt()[4:]
    assert (given, allowed) == (workspace, 32 * MIB)


@pytest.mark.parametrize(("answers", "runs"), [(False, True), (True, False)])
def test_without_an_algorithm_upstream_runs(ops: Any, answers: bool, runs: bool) -> None:
    gru = layer(17 if answers else 18, 20)
    x = torch.randn(6, 30, gru.input_size)
    ops.set_lt(answers, runs, True, 0)
    with pytest.raises(RuntimeError, match="declined late"):
        call(gru, x)
    ops.set_lt(True, True, True, 0)
    assert call(gru, torch.randn(8, 30, gru.input_size))[1] < 2e-6
