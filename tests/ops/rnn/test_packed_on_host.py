"""Packed sequences (_cudnn_rnn) with their CUDA kernels, run on the CPU, against PyTorch's own modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from device_on_host import library
from ops.rnn.cases import CELLS, GRU, LSTM, RELU, TANH, new_module
from ops.rnn.on_host_cases import DTYPES, TOLERANCE, load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Any:
    return load()


def pack(lengths: list[int], inputs: int, dtype: torch.dtype = torch.float32) -> PackedSequence:
    padded = torch.randn(lengths[0], len(lengths), inputs)
    return pack_padded_sequence(padded.to(dtype), torch.tensor(lengths))


def check(
    lengths: list[int],
    *,
    mode: int = GRU,
    inputs: int = 7,
    hidden: int = 16,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
    given_c: bool = True,
    strided: bool = False,
    batch_first: bool = False,
) -> None:
    torch.manual_seed(0)
    module = new_module(mode, inputs, hidden, layers, bias=bias, bidirectional=bidirectional).to(dtype)
    packed = pack(lengths, inputs, dtype)
    directions = 2 if bidirectional else 1
    h = torch.randn(layers * directions, len(lengths), hidden).to(dtype)
    c = torch.randn_like(h) if mode == LSTM and given_c else None
    data = torch.cat([packed.data, packed.data], 1)[:, ::2] if strided else packed.data
    weights = [w.detach() for w in module._flat_weights]
    y, hy, cy, reserve, _ = torch.ops.aten_ext_on_host._cudnn_rnn(
        data, weights, 4 if bias else 2, None, h, c, mode, hidden, 0, layers, batch_first, 0.0, False,
        bidirectional, packed.batch_sizes.tolist(), None,
    )  # fmt: skip
    exact_module = module.double()
    exact_input = PackedSequence(data.double(), packed.batch_sizes)
    with torch.no_grad():
        if mode == LSTM:
            zero = torch.zeros_like(h) if c is None else c
            exact_y, (exact_h, exact_c) = exact_module(exact_input, (h.double(), zero.double()))
        else:
            exact_y, exact_h = exact_module(exact_input, h.double())
            exact_c = None
    scale = max(1.0, exact_y.data.abs().max().item())
    for ours, exact in ((y, exact_y.data), (hy, exact_h), (cy, exact_c)):
        if exact is None or (ours is cy and c is None):
            assert ours.shape == (0,)
            continue
        assert ours.dtype == dtype and ours.shape == exact.shape and ours.is_contiguous()
        # A state that was given may be of any size, and so may its roundings.
        allowed = TOLERANCE[dtype] * max(scale, exact.abs().max().item())
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=allowed)
    assert reserve.shape == (0,) and reserve.dtype == torch.uint8


LENGTHS = {
    "descending": [6, 5, 3, 1],
    "equal": [4, 4, 4],
    "one row": [5],
    "one step": [1, 1, 1],
    "long and short": [9, 2, 2, 1, 1],
    "every step fewer": [8, 7, 6, 5, 4, 3, 2, 1],
}


@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_lengths(lengths: list[int], bidirectional: bool, mode: int) -> None:
    check(lengths, mode=mode, bidirectional=bidirectional)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", [GRU, LSTM], ids=["gru", "lstm"])
def test_dtypes_and_layers(mode: int, dtype: torch.dtype) -> None:
    check([5, 4, 4, 2], mode=mode, dtype=dtype, layers=3, bidirectional=True, inputs=12, hidden=20)


@pytest.mark.parametrize(
    "case",
    [
        {"bias": False},
        {"strided": True},
        {"batch_first": True},
        {"mode": LSTM, "given_c": False, "bidirectional": True},
        {"mode": LSTM, "hidden": 130, "inputs": 3},
        {"mode": RELU, "hidden": 40},
        {"mode": TANH, "hidden": 1, "inputs": 1},
        {"mode": GRU, "hidden": 260, "dtype": torch.bfloat16},
    ],
    ids=str,
)
def test_arguments(case: dict[str, Any]) -> None:
    check([4, 3, 1], **case)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=9),
    mode=st.sampled_from(list(CELLS.values())),
    bidirectional=st.booleans(),
    inputs=st.integers(1, 20),
    hidden=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
)
def test_random_lengths(
    lengths: list[int], mode: int, bidirectional: bool, inputs: int, hidden: int, dtype: torch.dtype
) -> None:
    lengths.sort(reverse=True)
    if sum(lengths) * 8 < lengths[0] * len(lengths):
        return
    check(lengths, mode=mode, bidirectional=bidirectional, inputs=inputs, hidden=hidden, dtype=dtype)


def test_equal_lengths_are_the_padded_sequence() -> None:
    """The same kernels on the same values: the same bits."""
    torch.manual_seed(0)
    x, h = torch.randn(6, 3, 8), torch.randn(2, 3, 24)
    weights = [w.detach() for w in torch.nn.GRU(8, 24, bidirectional=True)._flat_weights]

    def call(data: torch.Tensor, sizes: list[int]) -> Any:
        return torch.ops.aten_ext_on_host._cudnn_rnn(
            data, weights, 4, None, h, None, GRU, 24, 0, 1, False, 0.0, False, True, sizes, None
        )

    padded, packed = call(x, []), call(x.view(18, 8), [3] * 6)
    assert torch.equal(padded[0].view(18, 48), packed[0]) and torch.equal(padded[1], packed[1])


def test_many_steps() -> None:
    """More numbers than the arguments of one launch hold."""
    check([1300, 1299, 700], hidden=4, inputs=2, bidirectional=True)
