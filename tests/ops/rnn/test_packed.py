"""Packed sequences on a GPU: route, and values against upstream and float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import aten_ext
from ops.rnn.cases import CELLS, DTYPES, FLOOR, assert_ran, new_module, no_less_accurate, states, tf32_allowed

pytestmark = pytest.mark.gpu


def run(module: torch.nn.RNNBase, x: PackedSequence) -> list[torch.Tensor]:
    with torch.no_grad():
        y, *last = states(module(x))
    assert torch.equal(y.batch_sizes, x.batch_sizes)  # type: ignore[attr-defined]
    return [y.data, *last]


def check(module: torch.nn.RNNBase, x: PackedSequence) -> None:
    """In fp32: cuDNN may take TF32 for a packed sequence where it does not for a padded one."""
    dtype = x.data.dtype
    # A relu hands on sums as they are, so the roundings of those count: by the square root of their number.
    terms = module.input_size + module.hidden_size
    sums_count = isinstance(module, torch.nn.RNN) and module.nonlinearity == "relu" and dtype == torch.float32
    of_sums = math.sqrt(terms) if sums_count else 1.0
    with tf32_allowed(False):
        aten_ext.reset_counts()
        ours = run(module, x)
        assert_ran("_cudnn_rnn")
        with aten_ext.disabled():
            theirs = run(module, x)
            exact = run(module.double(), x._replace(data=x.data.double()))
    module.to(dtype)
    for a, b, c in zip(ours, theirs, exact, strict=True):
        no_less_accurate(a, b, c, FLOOR[dtype] * of_sums)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("hidden", [24, 256, 520])
def test_matches_upstream(hidden: int, mode: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = new_module(mode, 40, hidden, 2, bidirectional=True).to("cuda", dtype).eval()
    lengths = torch.tensor([31, 30, 17, 17, 9, 2, 1])
    check(module, pack_padded_sequence(torch.randn(31, 7, 40, device="cuda").to(dtype), lengths))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
def test_weights_beyond_the_registers(mode: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = new_module(mode, 24, 1040).to("cuda", dtype).eval()
    lengths = torch.tensor([23, 11])
    check(module, pack_padded_sequence(torch.randn(23, 2, 24, device="cuda").to(dtype), lengths))


@pytest.mark.parametrize("rows", [40, 100])
@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
def test_rows_of_several_turns(mode: int, rows: int) -> None:
    """A group has more rows than it works on at once, and in many steps none of the last ones."""
    torch.manual_seed(0)
    module = new_module(mode, 24, 128, bidirectional=True).cuda().eval()
    lengths = torch.tensor([25, *torch.randint(1, 25, (rows - 1,)).tolist()]).sort(descending=True).values
    check(module, pack_padded_sequence(torch.randn(25, rows, 24, device="cuda"), lengths))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=24),
    mode=st.sampled_from(list(CELLS.values())),
    bidirectional=st.booleans(),
    inputs=st.integers(1, 70),
    hidden=st.integers(1, 300),
    dtype=st.sampled_from(DTYPES),
    batch_first=st.booleans(),
)
def test_random_lengths(
    lengths: list[int],
    mode: int,
    bidirectional: bool,
    inputs: int,
    hidden: int,
    dtype: torch.dtype,
    batch_first: bool,
) -> None:
    """In any order: PyTorch sorts them around the call."""
    if 8 * sum(lengths) < max(lengths) * len(lengths) or max(lengths) <= 3:  # few steps are upstream's
        return
    torch.manual_seed(0)
    module = new_module(mode, inputs, hidden, bidirectional=bidirectional, batch_first=batch_first)
    module = module.to("cuda", dtype).eval()
    shape = (len(lengths), max(lengths)) if batch_first else (max(lengths), len(lengths))
    padded = torch.randn(*shape, inputs, device="cuda").to(dtype)
    packed = pack_padded_sequence(padded, torch.tensor(lengths), batch_first, enforce_sorted=False)
    check(module, packed)


@pytest.mark.parametrize(
    ("reason", "module", "steps"),
    [
        ("layer that cuDNN keeps on the chip", torch.nn.LSTM(8, 56), 8),
        ("packed sequence of few steps", torch.nn.GRU(8, 56), 3),
    ],
    ids=["padded", "packed"],
)
def test_a_graph_goes_by_the_time_of_the_gpu(reason: str, module: torch.nn.RNNBase, steps: int) -> None:
    """Where upstream takes less of it, it runs in a graph; from Python launches take longer."""
    module = module.cuda().eval()
    padded = torch.randn(steps, 2, 8, device="cuda")
    lengths = torch.tensor([steps, 1])
    x = pack_padded_sequence(padded, lengths) if "packed" in reason else padded
    with torch.no_grad():
        module(x)
        aten_ext.reset_counts()
        module(x)
        assert_ran("_cudnn_rnn")
        aten_ext.reset_counts()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            module(x)
    assert dict(aten_ext.counts("CUDA")["_cudnn_rnn"].declined) == {reason: 1}


def test_in_a_graph() -> None:
    """The lengths are part of what is captured."""
    torch.manual_seed(0)
    module = torch.nn.LSTM(32, 64, bidirectional=True).cuda().eval()
    packed = pack_padded_sequence(torch.randn(20, 5, 32, device="cuda"), torch.tensor([20, 13, 13, 4, 1]))
    expected = run(module, packed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(module, packed)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


def test_through_pad_packed_sequence() -> None:
    """What a program sees of it."""
    torch.manual_seed(0)
    module = torch.nn.GRU(16, 48, batch_first=True).cuda().eval()
    x, lengths = torch.randn(6, 25, 16, device="cuda"), torch.tensor([3, 25, 8, 25, 1, 19])

    def program() -> torch.Tensor:
        with torch.no_grad():
            y, _ = module(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return pad_packed_sequence(y, batch_first=True)[0]

    with tf32_allowed(False):
        aten_ext.reset_counts()
        ours = program()
        assert_ran("_cudnn_rnn")
        with aten_ext.disabled():
            theirs = program()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert torch.equal(ours == 0, theirs == 0), "padding"
