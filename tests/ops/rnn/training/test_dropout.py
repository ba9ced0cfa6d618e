"""Dropout between layers on a GPU: cuDNN's masks bit for bit, its states afterwards, gradients by them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import aten_ext
from ops.rnn.cases import DTYPES, FLOOR, documented, flattened, peak
from ops.rnn.training.dropout_cases import exact, masks_in
from ops.rnn.training.on_host_cases import MODES, Sizes
from ops.rnn.training.test_gradients import no_less_accurate
from paths import ROOT

FORWARD, BACKWARD = "_cudnn_rnn", "_cudnn_rnn_backward"
GATES = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}
LENGTHS = [20, 18, 18, 11, 7, 7, 7, 2, 1]


def new_states(p: float, seed: int = 1234) -> torch.Tensor:
    """Of cuDNN's generator."""
    return torch._cudnn_init_dropout_state(p, True, seed, dtype=torch.uint8, device="cuda")


def packed_sizes(lengths: list[int]) -> list[int]:
    return [sum(length > step for length in lengths) for step in range(lengths[0])]


def counts() -> tuple[tuple[int, int], dict[str, int], dict[str, int]]:
    """How often ours ran, and what was declined; the counts begin again."""
    of = aten_ext.counts("CUDA")
    result = (of[FORWARD].ran, of[BACKWARD].ran), dict(of[FORWARD].declined), dict(of[BACKWARD].declined)
    aten_ext.reset_counts()
    return result


@dataclass
class Stack:
    """Arguments of a layer stack, small numbers at random."""

    cell: str = "lstm"
    steps: int = 20
    batch: int = 9
    inputs: int = 40
    hidden: int = 160
    layers: int = 2
    bidirectional: bool = False
    dtype: torch.dtype = torch.float32
    p: float = 0.2
    batch_first: bool = False
    lengths: list[int] | None = None
    seed: int = 0
    weights: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        """Make the tensors."""
        torch.manual_seed(self.seed)
        d = 2 if self.bidirectional else 1
        n = GATES[self.cell] * self.hidden
        listed = []
        for layer in range(self.layers):
            columns = self.inputs if layer == 0 else d * self.hidden
            for _ in range(d):
                shapes = ((n, columns), (n, self.hidden), (n,), (n,))
                listed += [(torch.rand(s, device="cuda") - 0.5) / self.hidden**0.5 * 2 for s in shapes]
        self.buffer, self.weights = flattened([w.to(self.dtype) for w in listed])
        self.sizes_of_steps = [] if self.lengths is None else packed_sizes(self.lengths)
        rows = (sum(self.lengths),) if self.lengths is not None else (self.steps, self.batch)
        rows = rows[::-1] if self.batch_first else rows
        self.x = torch.randn(*rows, self.inputs, device="cuda").to(self.dtype)
        states = (4, self.layers * d, self.batch, self.hidden)
        self.hx, self.cx, self.grad_hy, self.grad_cy = torch.randn(states, device="cuda").to(self.dtype)
        self.grad_output = torch.randn(*rows, d * self.hidden, device="cuda").to(self.dtype)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def lstm(self) -> bool:
        return self.cell == "lstm"

    def leaves(self) -> list[torch.Tensor]:
        tensors = [self.x, self.hx, *([self.cx] if self.lstm else []), *self.weights]
        return [t.detach().requires_grad_() for t in tensors]

    def call(self, states: torch.Tensor, leaves: list[torch.Tensor] | None = None, train: bool = True) -> Any:
        x, hx, *rest = self.leaves() if leaves is None else leaves
        cx = rest.pop(0) if self.lstm else None
        return torch._cudnn_rnn(
            x, rest, 4, self.buffer, hx, cx, MODES[self.cell], self.hidden, 0, self.layers, self.batch_first,
            self.p, train, self.bidirectional, self.sizes_of_steps, states,
        )  # fmt: skip

    def outputs(self, result: Any) -> list[torch.Tensor]:
        return list(result[: 3 if self.lstm else 2])

    def grads(self) -> list[torch.Tensor]:
        return [self.grad_output, self.grad_hy, *([self.grad_cy] if self.lstm else [])]

    def train(self, states: torch.Tensor) -> tuple[Any, list[torch.Tensor]]:
        """The operator's results, and gradients of x, states and weights."""
        leaves = self.leaves()
        result = self.call(states, leaves)
        return result, list(torch.autograd.grad(self.outputs(result), leaves, self.grads()))


# ---- masks ---------------------------------------------------------------------------------------------


def passing(stack: Stack) -> None:
    """Make a ReLU stack show what is dropped: its first layer puts out ones, each later one passes them on.

    Each unit adds the input's unit of one direction and three times that of the other.
    """
    d, h = stack.directions, stack.hidden
    for t in (stack.x, stack.hx, stack.buffer):
        t.zero_()
    for i in range(d):
        stack.weights[4 * i + 2].fill_(1.0)
    for layer in range(1, stack.layers):
        for i in range(d):
            w_ih = stack.weights[4 * (layer * d + i)]
            for part in range(d):
                w_ih[:, part * h : (part + 1) * h] = torch.eye(h, device="cuda") * (1 + 2 * part)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["padded", "packed"])
@pytest.mark.parametrize(
    ("layers", "hidden", "p"), [(2, 160, 0.5), (3, 257, 0.5), (2, 512, 0.2), (2, 160, 0.9)]
)
def test_masks_are_cudnns(
    dtype: torch.dtype, bidirectional: bool, lengths: list[int] | None, layers: int, hidden: int, p: float
) -> None:
    """Of the first call and of the second; with and without gradients; the states are the same bytes."""
    stack = Stack(
        "relu", hidden=hidden, layers=layers, bidirectional=bidirectional, dtype=dtype, p=p, lengths=lengths
    )
    passing(stack)
    start = new_states(p)
    ours, theirs = start.clone(), start.clone()
    aten_ext.reset_counts()
    for gradients in (True, False, True):
        with torch.set_grad_enabled(gradients):
            y = stack.call(ours)[0].detach()
            with aten_ext.disabled():
                expected = stack.call(theirs)[0].detach()
        assert torch.equal(y > 0, expected > 0)
        torch.testing.assert_close(y, expected, rtol=0 if p == 0.5 else 2e-2, atol=0)
        assert torch.equal(ours, theirs) and not torch.equal(ours, start)
    (ran, _), declined, _ = counts()
    assert ran == 3 and not {k: n for k, n in declined.items() if n}


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_dropped_is_nothing(bidirectional: bool, value: float) -> None:
    """An output that is no number: where it is dropped, and only there, others are numbers. As upstream's."""
    stack = Stack("relu" if value == float("inf") else "tanh", bidirectional=bidirectional, p=0.5)
    passing(stack)
    stack.weights[2][3] = value
    start = new_states(0.5)
    aten_ext.reset_counts()
    y = stack.call(start.clone())[0]
    with aten_ext.disabled():
        theirs = stack.call(start.clone())[0]
    assert counts()[0][0] == 1
    # What follows in time is no number either, and with two directions what came before.
    assert 0 < theirs.isfinite().sum() < theirs.numel()
    assert torch.equal(y.isnan(), theirs.isnan()) and torch.equal(y.isinf(), theirs.isinf())


@pytest.mark.gpu
def test_what_leaves_the_states_alone() -> None:
    """Evaluation, one layer, a backward; and a call that is declined draws once, upstream."""
    stack = Stack()
    start = new_states(stack.p)
    states = start.clone()
    stack.call(states, train=False)
    Stack(layers=1).call(states)
    assert torch.equal(states, start)
    leaves = stack.leaves()
    result = stack.call(states, leaves)
    moved = states.clone()
    first = torch.autograd.grad(stack.outputs(result), leaves, stack.grads(), retain_graph=True)
    second = torch.autograd.grad(stack.outputs(result), leaves, stack.grads())
    assert torch.equal(states, moved) and not torch.equal(states, start)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.gpu
def test_all_of_it_is_upstreams() -> None:
    stack = Stack(p=1.0)
    reason = documented("dropout that is not between 0 and 1")
    aten_ext.reset_counts()
    stack.train(new_states(0.5))
    assert counts() == ((0, 0), {reason: 1}, {"forward that ran upstream": 1})


# ---- values and gradients ------------------------------------------------------------------------------

STACKS = {
    "small": {},
    "few rows": {"steps": 5, "batch": 3},
    "one step": {"steps": 1, "batch": 5},
    "two steps": {"steps": 2, "batch": 3},
    "three layers": {"layers": 3, "hidden": 65, "p": 0.7},
    "cluster of 16": {"hidden": 400, "batch": 33},
    "whole GPU": {"hidden": 700, "batch": 4},
    "batch first": {"batch_first": True},
    "packed": {"lengths": LENGTHS},
    "long": {"steps": 900, "batch": 2, "hidden": 64},
    "many rows": {"steps": 4, "batch": 600, "hidden": 128},
}


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
@pytest.mark.parametrize("case", STACKS.values(), ids=STACKS)
def test_values_and_gradients(
    cell: str, dtype: torch.dtype, bidirectional: bool, case: dict[str, Any]
) -> None:
    """No further from float64 with the masks that were kept than upstream, whose masks these are."""
    stack = Stack(cell, dtype=dtype, bidirectional=bidirectional, **case)
    start = new_states(stack.p)
    ours, theirs = start.clone(), start.clone()
    aten_ext.reset_counts()
    result, gradients = stack.train(ours)
    (ran, back), declined, _ = counts()
    assert (ran, back) in ((1, 1), (0, 0)) and ran + sum(declined.values()) == 1
    if ran == 0:
        pytest.skip(f"upstream's: {declined}")
    with aten_ext.disabled():
        upstream, upstream_gradients = stack.train(theirs)
    assert torch.equal(ours, theirs)
    sizes = Sizes(
        cell, stack.steps, stack.batch, stack.inputs, stack.hidden, stack.layers, bidirectional, dtype=dtype
    )
    in_time = [t.transpose(0, 1) if stack.batch_first else t for t in (stack.x, stack.grad_output)]
    masks = masks_in(result[3], in_time[1].shape, stack.layers, stack.directions)
    batch_sizes = torch.tensor(stack.sizes_of_steps) if stack.lengths is not None else None
    grads = [in_time[1], *stack.grads()[1:]]
    given = (stack.weights, in_time[0], stack.hx, stack.cx)
    results, truths = exact(sizes, *given, grads, masks, stack.p, batch_sizes)
    if stack.batch_first:
        results[0], truths[0] = results[0].transpose(0, 1), truths[0].transpose(0, 1)
    terms = max(stack.steps * stack.batch, stack.hidden)
    mine = [*stack.outputs(result), *gradients]
    others = [*stack.outputs(upstream), *upstream_gradients]
    for a, b, truth in zip(mine, others, [*results, *truths], strict=True):
        exactly = (truth.cuda(), truth.cuda())
        no_less_accurate(a.detach(), b.detach(), exactly, FLOOR[dtype], terms, stack.hidden)


@pytest.mark.gpu
def test_gradients_of_a_part() -> None:
    """Of weights alone, of the input alone, of nothing that is before dropout."""
    for bidirectional in (False, True):
        stack = Stack(bidirectional=bidirectional)
        start = new_states(stack.p)
        _, everything = stack.train(start.clone())
        for wanted in ((0,), (3, 4, 5, 6), tuple(range(3, 3 + 8 * stack.directions))):
            leaves = [t if i in wanted else t.detach() for i, t in enumerate(stack.leaves())]
            result = stack.call(start.clone(), leaves)
            found = torch.autograd.grad(stack.outputs(result), [leaves[i] for i in wanted], stack.grads())
            for i, gradient in zip(wanted, found, strict=True):
                torch.testing.assert_close(gradient, everything[i], rtol=1e-3, atol=1e-3)


# ---- programs ------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_modules() -> None:
    for cell in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        module = cell(64, 256, num_layers=2, dropout=0.2, bidirectional=True).cuda()
        x = torch.randn(30, 8, 64, device="cuda", requires_grad=True)
        aten_ext.reset_counts()
        module(x)[0].sum().backward()
        assert counts() == ((1, 1), {}, {})
        with torch.autocast("cuda", torch.bfloat16):
            module(x)[0].sum().backward()
        assert counts() == ((1, 1), {}, {})
        checkpoint(module, x, use_reentrant=False)[0].sum().backward()
        assert counts() == ((2, 1), {}, {})
        with torch.no_grad():
            module(x)
        assert counts() == ((1, 0), {}, {})


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
def test_in_a_graph(bidirectional: bool) -> None:
    """Each replay draws masks of its own, as eager calls of upstream's do."""
    stack = Stack(bidirectional=bidirectional, steps=40, batch=20, hidden=256)
    start = new_states(stack.p)
    states, theirs = start.clone(), start.clone()
    stack.train(states)  # asks cuDNN
    aten_ext.reset_counts()
    states.copy_(start)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        stack.train(states)
        states.copy_(start)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result, gradients = stack.train(states)
    assert counts()[0] == (2, 2)
    assert torch.equal(states, start), "nothing runs while it is captured"
    for _ in range(3):
        graph.replay()
        with aten_ext.disabled():
            upstream, upstream_gradients = stack.train(theirs)
        assert torch.equal(states, theirs)
        pairs = zip([result[0], *gradients], [upstream[0], *upstream_gradients], strict=True)
        for mine, other in pairs:
            torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-2 * max(1.0, other.abs().max().item()))


FIRST_IN_CAPTURE = """
    import sys

    sys.path[:0] = sys.argv[1:]
    import torch

    import aten_ext
    from ops.rnn.training.test_dropout import Stack, counts, new_states

    stack = Stack()
    start = new_states(stack.p)
    states = start.clone()
    with torch.no_grad():
        Stack(p=0.0).call(states)
        with aten_ext.disabled():
            stack.call(states)  # cuDNN is there
        states.copy_(start)
        aten_ext.reset_counts()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = stack.call(states)[0]
        late = aten_ext.counts("CUDA")["_cudnn_rnn"].late
        assert late == 1, late
        graph.replay()
        with aten_ext.disabled():
            theirs = start.clone()
            expected = stack.call(theirs)[0]
        assert torch.equal(states, theirs) and torch.equal(y, expected)
        aten_ext.reset_counts()
        stack.call(states)  # now it is asked
        assert counts()[0] == (1, 0)
    print("done")
"""


@pytest.mark.gpu
def test_first_call_in_a_capture() -> None:
    """CuDNN cannot be asked there: upstream is captured, and asked later."""
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(FIRST_IN_CAPTURE),
            str(ROOT / "tests"),
            str(ROOT / "scripts/lib"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT / "tests",
    )
    assert run.returncode == 0 and run.stdout.endswith("done\n"), run.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("keep", ["ours", "upstream"])
def test_shadow_mode_draws_once(keep: str) -> None:
    """Upstream beside it draws from a copy of the states, and the same masks."""
    stack = Stack(bidirectional=True)
    start = new_states(stack.p)
    states, once = start.clone(), start.clone()
    stack.call(once)
    with torch.no_grad(), aten_ext.shadow(**({"keep": keep} if keep == "upstream" else {})) as report:
        stack.call(states)
    assert torch.equal(states, once)
    (row,) = report.rows
    assert row.compared == 1 and row.error == "" and row.max_absolute < 1e-3


@pytest.mark.gpu
def test_streams_and_threads_draw_in_order() -> None:
    """The states move on in the order of the stream, without waiting for it."""
    stack = Stack()
    start = new_states(stack.p)
    states, theirs = start.clone(), start.clone()
    stack.call(states)
    states.copy_(start)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        stack.call(states)
        states.copy_(start)
        stream.synchronize()
        torch.cuda._sleep(50_000_000)
        for _ in range(3):
            stack.call(states)
        assert not stream.query(), "it did not wait"
    stream.synchronize()
    with aten_ext.disabled():
        for _ in range(3):
            stack.call(theirs)
    assert torch.equal(states, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize(("steps", "batch", "hidden"), [(400, 32, 512), (100, 64, 256)])
@pytest.mark.parametrize("gradients", [True, False])
def test_peak_memory_is_near_upstreams(
    cell: str, dtype: torch.dtype, bidirectional: bool, steps: int, batch: int, hidden: int, gradients: bool
) -> None:
    stack = Stack(
        cell, steps=steps, batch=batch, hidden=hidden, inputs=256, dtype=dtype, bidirectional=bidirectional
    )
    states = new_states(stack.p)
    peaks = []
    for off in (True, False):
        aten_ext.disable() if off else aten_ext.enable(FORWARD, BACKWARD)
        aten_ext.reset_counts()
        with torch.set_grad_enabled(gradients):
            for _ in range(2):  # the first asks how cuDNN draws, and loads
                mib = peak(lambda: stack.train(states) if gradients else stack.call(states))
        peaks.append(mib)
    assert aten_ext.counts("CUDA")[FORWARD].ran == 2
    # Long LSTMs of several layers save six values a unit, cuDNN five: docs/kernels/rnn.md.
    assert peaks[1] <= max(1.12 * peaks[0], peaks[0] + 32), peaks
