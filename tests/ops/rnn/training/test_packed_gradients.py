"""Gradients of packed sequences on a GPU: route, repeatability, and values against upstream and float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import aten_ext
from ops.rnn.cases import DTYPES, FLOOR, assert_ran, tf32_allowed
from ops.rnn.training.relu_reference import gradients as relu_gradients
from ops.rnn.training.relu_reference import zeros_are_seen
from ops.rnn.training.test_gradients import BACKWARD, FORWARD, new_module, no_less_accurate

pytestmark = pytest.mark.gpu

LENGTHS = {
    "descending": [31, 30, 17, 17, 9, 2, 1],
    "equal": [12] * 5,
    "one row": [40],
    "one step": [1, 1, 1],
    "one long row": [40, 12, 12, 11, 3, 3, 3, 2],
    "shrinks at every step": list(range(24, 0, -1)),
}


def gradients(
    rnn: torch.nn.RNNBase, x: PackedSequence, states: list[torch.Tensor], grads: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Of the rows of x, the states and all weights."""
    dtype = rnn._flat_weights[0].dtype
    data, *states = (t.detach().to(dtype).requires_grad_() for t in (x.data, *states))
    given_states: Any = None if not states else states[0] if len(states) == 1 else tuple(states)
    y, after = rnn(x._replace(data=data), given_states)
    outputs = [y.data, *(after if isinstance(after, tuple) else (after,))]
    wanted = [data, *states, *rnn._flat_weights]
    return list(torch.autograd.grad(outputs, wanted, [g.to(dtype) for g in grads]))


def check(
    lengths: list[int],
    dtype: torch.dtype,
    *,
    cell: str,
    inputs: int,
    hidden: int,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    given_state: bool = True,
) -> bool:
    """Whether ours ran."""
    torch.manual_seed(0)
    rnn = new_module(cell, inputs, hidden, layers, bidirectional=bidirectional, bias=bias).to("cuda", dtype)
    x = pack_padded_sequence(
        torch.randn(max(lengths), len(lengths), inputs, device="cuda").to(dtype),
        torch.tensor(lengths),
        enforce_sorted=False,
    )
    directions = 2 if bidirectional else 1
    state = (layers * directions, len(lengths), hidden)
    kinds = 2 if cell == "lstm" else 1
    grads = [torch.randn(sum(lengths), directions * hidden, device="cuda").to(dtype)]
    grads += [torch.randn(state, device="cuda").to(dtype) for _ in range(kinds)]
    states = [torch.randn(state, device="cuda").to(dtype) for _ in range(kinds)] if given_state else []
    # cuDNN may take TF32 for a packed sequence where it does not for a padded one.
    with tf32_allowed(False):
        relu = cell == "relu" and layers == 1
        with aten_ext.disabled():
            theirs = gradients(rnn, x, states, grads)
            outputs = [rnn(x, *states)[0].data] if relu else []
        aten_ext.reset_counts()
        ours = gradients(rnn, x, states, grads)
        counts = aten_ext.counts("CUDA")
        assert counts[FORWARD].ran == counts[BACKWARD].ran
        if counts[FORWARD].ran == 0:
            return False
        if relu:
            outputs.insert(0, rnn(x, *states)[0].data)
        with aten_ext.disabled():
            twin = copy.deepcopy(rnn).double()
            if relu:
                exact = [relu_gradients(twin, x, states, [*grads], y) for y in outputs]
            else:
                exact = [gradients(twin, x, states, grads)] * 2
    jumps, terms = cell == "relu" and not relu, max(sum(lengths), hidden, inputs)
    for mine, upstreams, *truth in zip(ours, theirs, *exact, strict=True):
        assert torch.equal(mine.isfinite(), upstreams.isfinite())
        pair = (truth[0], truth[1])
        no_less_accurate(mine, upstreams, pair, FLOOR[dtype], terms, hidden, jumps=jumps)
    return True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh", "relu"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_lengths(lengths: list[int], cell: str, dtype: torch.dtype) -> None:
    assert check(lengths, dtype, cell=cell, inputs=40, hidden=256, layers=2, bidirectional=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    dtype=st.sampled_from(DTYPES),
    cell=st.sampled_from(["gru", "lstm", "tanh", "relu"]),
    inputs=st.integers(1, 200),
    hidden=st.one_of(st.sampled_from([1, 16, 64, 128, 129, 256, 512]), st.integers(1, 700)),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    given_state=st.booleans(),
)
def test_random_lengths(lengths: list[int], dtype: torch.dtype, **case: Any) -> None:
    tf32 = torch.backends.cudnn.allow_tf32
    assume(zeros_are_seen(case["cell"], dtype, case["layers"], tf32=tf32))
    check(lengths, dtype, **case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
def test_same_bits_every_time(cell: str, dtype: torch.dtype) -> None:
    rnn = new_module(cell, 64, 300, 2, bidirectional=True).to("cuda", dtype)
    lengths = torch.tensor([30, 29, 29, 14, 8, 8, 3, 2, 2, 1])
    x = pack_padded_sequence(torch.randn(30, 10, 64, device="cuda").to(dtype).requires_grad_(), lengths)
    y = rnn(x)[0].data
    first = torch.autograd.grad(y.sum(), [*rnn.parameters()], retain_graph=True)
    for _ in range(10):
        again = torch.autograd.grad(y.sum(), [*rnn.parameters()], retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_all_lengths_equal_are_the_padded_sequence() -> None:
    """The same rows: gradients of the two differ by the order of sums at most."""
    torch.manual_seed(0)
    rnn = torch.nn.LSTM(32, 96, bidirectional=True).cuda()
    x = torch.randn(20, 6, 32, device="cuda")
    packed = pack_padded_sequence(x, torch.tensor([20] * 6))
    aten_ext.reset_counts()
    with tf32_allowed(False):
        a = torch.autograd.grad(rnn(packed)[0].data.square().sum(), [*rnn.parameters()])
        b = torch.autograd.grad(rnn(x)[0].square().sum(), [*rnn.parameters()])
    assert aten_ext.counts("CUDA")[BACKWARD].ran == 2
    for mine, other in zip(a, b, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())


def test_in_a_graph() -> None:
    """Forward and backward are captured; the lengths are part of what is captured."""
    torch.manual_seed(0)
    rnn = torch.nn.GRU(32, 64, bidirectional=True).cuda()
    x = pack_padded_sequence(torch.randn(20, 5, 32, device="cuda"), torch.tensor([20, 13, 13, 4, 1]))

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(rnn(x)[0].data.square().sum(), [*rnn.parameters()])

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


class Tagger(torch.nn.Module):
    """Says for each token whether the sum of the signs so far is positive."""

    def __init__(self, kind: type[torch.nn.RNNBase]) -> None:
        """Of two layers in both directions of this kind."""
        super().__init__()
        self.embed = torch.nn.Embedding(8, 32)
        self.rnn = kind(32, 64, num_layers=2, batch_first=True, bidirectional=True)
        self.out = torch.nn.Linear(128, 1)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Logits, [batch, steps], of tokens [batch, steps]."""
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.out(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]).squeeze(2)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU], ids=["lstm", "gru"])
def test_training_reaches_upstreams_loss(kind: type[torch.nn.RNNBase]) -> None:
    """A tagger of sentences of many lengths, new ones at every step.

    Until they drift apart, as two runs of upstream do whose weights differ by a rounding, the losses are the
    same.
    """

    def train(steps: int = 160) -> list[float]:
        torch.manual_seed(0)
        model = Tagger(kind).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(steps):
            lengths = torch.randint(1, 31, (24,))
            tokens = torch.randint(8, (24, int(lengths.max()))).cuda()
            target = (torch.where(tokens < 4, -1.0, 1.0).cumsum(1) > 0).float()
            mask = torch.arange(tokens.shape[1], device="cuda") < lengths.cuda()[:, None]
            logits = model(tokens, lengths)[mask]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target[mask])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        return losses

    with tf32_allowed(False):
        aten_ext.reset_counts()
        ours = train()
        assert_ran(FORWARD, len(ours))
        assert_ran(BACKWARD, len(ours))
        with aten_ext.disabled():
            theirs = train()
    for first in range(0, 80, 20):
        mine, upstreams = (sum(losses[first : first + 20]) for losses in (ours, theirs))
        assert mine == pytest.approx(upstreams, rel=0.02), first
    assert max(sum(losses[-20:]) for losses in (ours, theirs)) < 0.5 * sum(theirs[:20]), "both learn"
