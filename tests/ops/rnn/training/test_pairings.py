"""A forward in training, its backward, and what programs do in between: every cell, padded and packed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint

import aten_ext
from ops.rnn.training.test_gradients import BACKWARD, FORWARD, new_module

pytestmark = pytest.mark.gpu

LENGTHS = torch.tensor([12, 9, 9, 3, 1])
EACH_CELL = pytest.mark.parametrize("cell", ["gru", "lstm", "tanh", "relu"])
PACKED = pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])

Gradients = list[torch.Tensor]


class Layers:
    """Two layers of two directions and their input; made anew they are the same."""

    def __init__(self, cell: str, packed: bool) -> None:
        """On the GPU, with a leaf for an input."""
        torch.manual_seed(0)
        self.rnn = new_module(cell, 16, 32, 2, bidirectional=True).cuda()
        padded = torch.randn(12, 5, 16)
        self.packed = pack_padded_sequence(padded, LENGTHS) if packed else None
        self.x = (self.packed.data if self.packed else padded).cuda().requires_grad_()

    def given(self, x: torch.Tensor) -> torch.Tensor | PackedSequence:
        """What the module takes."""
        return x if self.packed is None else self.packed._replace(data=x)

    def output(self, x: torch.Tensor, call: Callable[[Any], Any] | None = None) -> torch.Tensor:
        """Of the module, or of ``call`` in its place."""
        y = (call or self.rnn)(self.given(x))[0]
        return y if self.packed is None else y.data

    def loss(self) -> torch.Tensor:
        """The gradients of its parts are all different."""
        return self.output(self.x).square().sum()

    def inputs(self) -> Gradients:
        """What gradients are wanted of."""
        return [self.x, *self.rnn.parameters()]

    def gradients_of(self, loss: torch.Tensor, **options: bool) -> Gradients:
        """Of the input and all weights."""
        return list(torch.autograd.grad(loss, self.inputs(), **options))

    def accumulated(self) -> Gradients:
        """What ``backward`` has left in the leaves."""
        return [leaf.grad for leaf in self.inputs() if leaf.grad is not None]


def ran() -> tuple[int, int]:
    """Forwards and backwards that ran here."""
    counts = aten_ext.counts("CUDA")
    return counts[FORWARD].ran, counts[BACKWARD].ran


def plain(cell: str, packed: bool) -> Gradients:
    """What every program should get."""
    layers = Layers(cell, packed)
    expected = layers.gradients_of(layers.loss())
    assert ran() == (1, 1)
    aten_ext.reset_counts()
    return expected


def equal(ours: Gradients, expected: Gradients) -> None:
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def disabled_before_the_backward(layers: Layers) -> Gradients:
    loss = layers.loss()
    with aten_ext.disabled():
        return layers.gradients_of(loss)


def checkpointed(reentrant: bool, layers: Layers) -> Gradients:
    checkpoint(layers.output, layers.x, use_reentrant=reentrant).square().sum().backward()
    return layers.accumulated()


def with_saved_tensors(hooks: Callable[[], AbstractContextManager[Any]], layers: Layers) -> Gradients:
    with hooks():
        loss = layers.loss()
    return layers.gradients_of(loss)


def twice(layers: Layers) -> Gradients:
    loss = layers.loss()
    first = layers.gradients_of(loss, retain_graph=True)
    second = layers.gradients_of(loss)
    equal(second, first)
    return second


def accumulated_twice(layers: Layers) -> Gradients:
    loss = layers.loss()
    loss.backward(retain_graph=True)
    loss.backward()
    return [g / 2 for g in layers.accumulated()]  # exact


def beside_another_graph(enabled: bool, layers: Layers) -> Gradients:
    loss = layers.loss()
    with nullcontext() if enabled else aten_ext.disabled():
        other = layers.output(layers.x * 2).square().sum()
    layers.gradients_of(other)
    return layers.gradients_of(loss)


def of_a_copy(layers: Layers) -> Gradients:
    layers.gradients_of(layers.loss())
    layers.rnn = copy.deepcopy(layers.rnn)
    return layers.gradients_of(layers.loss())


def in_another_thread_and_stream(layers: Layers) -> Gradients:
    forward, backward = torch.cuda.Stream(), torch.cuda.Stream()
    forward.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(forward):
        loss = layers.loss()
    results: list[Gradients] = []

    def work() -> None:
        with torch.cuda.stream(backward):
            backward.wait_stream(forward)
            results.append(layers.gradients_of(loss))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    return results[0]


def with_anomalies_looked_for(layers: Layers) -> Gradients:
    with torch.autograd.detect_anomaly(check_nan=True):
        return layers.gradients_of(layers.loss())


def freed_meanwhile(layers: Layers) -> Gradients:
    """What the forward allocated for itself alone is somebody else's by then."""
    loss = layers.loss()
    others = [torch.full((size,), torch.nan, device="cuda") for size in [1 << 10, 1 << 14, 1 << 18] * 16]
    result = layers.gradients_of(loss)
    assert len(others) == 48
    return result


PROGRAMS: dict[str, tuple[Callable[[Layers], Gradients], tuple[int, int]]] = {
    "disabled before the backward": (disabled_before_the_backward, (1, 1)),
    "checkpointed": (partial(checkpointed, False), (2, 1)),
    "checkpointed, reentrant": (partial(checkpointed, True), (2, 1)),
    "saved on the CPU": (partial(with_saved_tensors, save_on_cpu), (1, 1)),
    "saved in pinned memory": (partial(with_saved_tensors, partial(save_on_cpu, pin_memory=True)), (1, 1)),
    "saved as copies": (
        partial(with_saved_tensors, partial(saved_tensors_hooks, torch.clone, torch.clone)),
        (1, 1),
    ),
    "twice": (twice, (1, 2)),
    "accumulated twice": (accumulated_twice, (1, 2)),
    "beside another graph": (partial(beside_another_graph, True), (2, 2)),
    "beside a graph of upstream's": (partial(beside_another_graph, False), (1, 1)),
    "of a copy": (of_a_copy, (2, 2)),
    "in another thread and stream": (in_another_thread_and_stream, (1, 1)),
    "with anomalies looked for": (with_anomalies_looked_for, (1, 1)),
    "memory reused": (freed_meanwhile, (1, 1)),
}


@pytest.mark.parametrize("program", PROGRAMS)
@PACKED
@EACH_CELL
def test_gradients_are_those_of_a_plain_call(cell: str, packed: bool, program: str) -> None:
    """To the last bit."""
    expected = plain(cell, packed)
    run, counts = PROGRAMS[program]
    ours = run(Layers(cell, packed))
    assert ran() == counts
    equal(ours, expected)


@PACKED
@EACH_CELL
def test_weights_that_are_no_leaves(cell: str, packed: bool) -> None:
    """As of weight drop: weights lie each for itself, and gradients go through to the leaves."""
    expected = plain(cell, packed)
    layers = Layers(cell, packed)
    weights = {name: p * 1.0 for name, p in layers.rnn.named_parameters()}
    loss = layers.output(layers.x, lambda x: functional_call(layers.rnn, weights, (x,))).square().sum()
    ours = layers.gradients_of(loss)
    assert ran() == (1, 1)
    for mine, other in zip(ours, expected, strict=True):  # products may be other kernels' by the addresses
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-3 * other.abs().max().item())


@PACKED
@EACH_CELL
def test_frozen_weights(cell: str, packed: bool) -> None:
    expected = plain(cell, packed)
    layers = Layers(cell, packed)
    for name, parameter in layers.rnn.named_parameters():
        parameter.requires_grad_("hh" not in name)
    layers.loss().backward()  # type: ignore[no-untyped-call]
    assert ran() == (1, 1)
    for (name, parameter), other in zip(layers.rnn.named_parameters(), expected[1:], strict=True):
        if "hh" in name:
            assert parameter.grad is None
        else:
            assert parameter.grad is not None and torch.equal(parameter.grad, other), name


@PACKED
@EACH_CELL
def test_only_the_input(cell: str, packed: bool) -> None:
    expected = plain(cell, packed)
    layers = Layers(cell, packed)
    layers.rnn.requires_grad_(False)
    layers.loss().backward()  # type: ignore[no-untyped-call]
    assert ran() == (1, 1)
    assert layers.x.grad is not None and torch.equal(layers.x.grad, expected[0])


@PACKED
@EACH_CELL
def test_threads_that_train_at_once(cell: str, packed: bool) -> None:
    """Each with a stream of its own."""
    expected = plain(cell, packed)
    failures: list[int] = []
    made = [Layers(cell, packed) for _ in range(4)]
    torch.cuda.synchronize()

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                ours = made[index].gradients_of(made[index].loss())
                if not all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True)):
                    failures.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert ran() == (80, 80)


@PACKED
@EACH_CELL
def test_whole_step_in_a_graph(cell: str, packed: bool) -> None:
    """Forward, backward, optimizer: after replays the weights are those of as many steps from Python."""
    warm_up, replays = 2, 3

    def make() -> tuple[Layers, Callable[[], None]]:
        layers = Layers(cell, packed)
        optimizer = torch.optim.AdamW(layers.rnn.parameters(), lr=1e-2, fused=True, capturable=True)

        def step() -> None:
            optimizer.zero_grad()
            loss: Any = layers.output(layers.x.detach()).square().sum()
            loss.backward()
            optimizer.step()

        return layers, step

    expected, step = make()
    for _ in range(warm_up + replays):
        step()
    aten_ext.reset_counts()
    layers, step = make()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(replays):
        graph.replay()
    torch.cuda.synchronize()
    assert ran() == (warm_up + 1, warm_up + 1)
    equal(list(layers.rnn.parameters()), list(expected.rnn.parameters()))


class Output(torch.nn.Module):
    """The output of recurrent layers alone."""

    def __init__(self, rnn: torch.nn.RNNBase) -> None:
        """Of these."""
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, B, I] to [T, B, 2 H]."""
        y: torch.Tensor = self.rnn(x)[0]
        return y


@EACH_CELL
def test_make_graphed_callables(cell: str) -> None:
    """Forward and backward are a graph each."""
    expected = plain(cell, packed=False)
    layers = Layers(cell, packed=False)
    graphed: Any = torch.cuda.make_graphed_callables(  # type: ignore[no-untyped-call]
        Output(layers.rnn), (torch.zeros_like(layers.x).requires_grad_(),)
    )
    forwards, backwards = ran()
    assert forwards == backwards > 0
    for _ in range(2):
        equal(layers.gradients_of(graphed(layers.x).square().sum()), expected)
    assert ran() == (forwards, backwards), "replays ask nobody"
