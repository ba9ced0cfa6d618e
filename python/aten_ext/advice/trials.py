"""Times what the program does and what it could do instead, in turns, on tensors of the same shapes.

A trial runs when the program is over, in its process. It says what a call alone would save on an otherwise
idle machine; caches and other work of the program are not there.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from aten_ext.advice.finding import Estimate
from aten_ext.advice.observe import OptimizerFact, RecurrentFact, TensorFact, TrainModeFact

SECONDS = 0.4
"""For one trial."""
MOST_BYTES = 2 << 30
"""A trial that needs more is not made."""
HOW = "timed on tensors of these shapes"


class TooLarge(Exception):
    """The trial would need more memory than is taken for one."""


class _Turn:
    """Whose turn it is, in the form of the benchmarks' switch."""

    def __init__(self, now: Callable[[], object], instead: Callable[[], object]) -> None:
        self._calls = {False: now, True: instead}
        self._enabled = False

    def set(self, enabled: bool) -> None:
        """The other way if ``enabled``."""
        self._enabled = enabled

    def call(self) -> object:
        """Make the call."""
        return self._calls[self._enabled]()


def compare(now: Callable[[], object], instead: Callable[[], object], seconds: float = SECONDS) -> Estimate:
    """What ``instead`` saves: the median of the differences of pairs, and a 95 % interval of that median."""
    from aten_ext.bench.interleave import CallClock
    from aten_ext.bench.result import Samples

    turn = _Turn(now, instead)
    for enabled in (False, True, False, True):  # memory is allocated, algorithms are chosen
        turn.set(enabled)
        turn.call()
    samples = Samples()
    CallClock([turn.call], turn).sample(samples, seconds)
    differences = sorted(a - b for a, b in zip(samples.upstream, samples.ours, strict=True))
    n = len(differences)
    # Ranks of an interval of the median, by the binomial distribution.
    rank = max(0, int(n / 2 - 0.98 * n**0.5))
    return Estimate(
        statistics.median(differences),
        differences[rank],
        differences[n - 1 - rank],
        statistics.median(samples.upstream),
        HOW,
    )


def _check_size(facts: list[TensorFact], copies: int) -> None:
    size = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype, _ in facts) * copies
    most = MOST_BYTES
    if any(device.type == "cuda" for *_, device in facts):
        most = min(most, torch.cuda.mem_get_info()[0] // 2)
    if size > most:
        raise TooLarge(f"a trial would need {size / 1e9:.1f} GB")


@contextlib.contextmanager
def _own_random_numbers() -> Iterator[None]:
    """The program is over, but its exit handlers may draw."""
    with torch.random.fork_rng(), torch.enable_grad():
        yield


def fused_is_possible(fact: OptimizerFact) -> bool:
    """Whether torch takes ``fused=True`` for such parameters: it is asked, on one number of each kind."""
    if fact.sparse or not any(tensors for _, tensors in fact.groups):
        return False
    for options, tensors in fact.groups:
        kinds = sorted({(dtype, device) for _, dtype, device in tensors}, key=str)
        try:
            one = [nn.Parameter(torch.zeros(1, dtype=dtype, device=device)) for dtype, device in kinds]
            if one:
                step = _optimizer(fact.kind, one, options, fused=True)
                for parameter in one:
                    parameter.grad = torch.zeros_like(parameter)
                step()
        except Exception:  # torch says no, each optimizer in its own way
            return False
    return True


def _optimizer(
    kind: type[torch.optim.Optimizer], parameters: list[nn.Parameter], options: dict[str, Any], **other: Any
) -> Callable[[], object]:
    import inspect

    names = inspect.signature(kind.__init__).parameters
    chosen = {name: value for name, value in options.items() if name in names}
    if other.get("fused"):
        chosen["foreach"] = None
    made: Any = kind(parameters, **{**chosen, **other})
    step: Callable[[], object] = made.step
    return step


def fused(fact: OptimizerFact) -> Estimate:
    """A step as it is, against one with ``fused=True``.

    Raises:
        TooLarge: too many parameters.
    """
    everything = [tensor for _, tensors in fact.groups for tensor in tensors]
    _check_size(everything, 8)
    with _own_random_numbers():
        steps: list[list[Callable[[], object]]] = [[], []]
        for options, tensors in fact.groups:
            if not tensors:
                continue
            for place, other in enumerate(({}, {"fused": True})):
                parameters = [
                    nn.Parameter(torch.randn(shape, device=device).to(dtype))
                    for shape, dtype, device in tensors
                ]
                for parameter in parameters:
                    parameter.grad = torch.randn_like(parameter) * 1e-3
                # So small a rate that the numbers stay what they are, and are never denormal.
                tame = {**options, "lr": 1e-9, "weight_decay": options.get("weight_decay", 0.0)}
                steps[place].append(_optimizer(fact.kind, parameters, tame, **other))
        return compare(lambda: [step() for step in steps[0]], lambda: [step() for step in steps[1]])


def _layer(fact: RecurrentFact) -> nn.RNNBase:
    layer: nn.RNNBase = _plain(fact.kind)(**fact.options)
    return layer.to(device=fact.device, dtype=fact.dtype)


def _plain(kind: type[nn.RNNBase]) -> Any:
    return next(base for base in (nn.LSTM, nn.GRU, nn.RNN) if issubclass(kind, base))


def packing(fact: RecurrentFact) -> Estimate:
    """The padded batch as it is, against the same batch packed; with a backward where the program trains.

    Raises:
        TooLarge: the batch is.
    """
    _check_size([(fact.shape, fact.dtype, fact.device)], 32)
    with _own_random_numbers():
        layer = _layer(fact).train(fact.trained)
        inputs = torch.randn(fact.shape, device=fact.device).to(fact.dtype)
        lengths = torch.tensor([max(1, length) for length in fact.lengths])

        def run(packs: bool) -> None:
            given: Any = inputs
            if packs:
                first = fact.options["batch_first"]
                given = pack_padded_sequence(inputs, lengths, batch_first=first, enforce_sorted=False)
            with torch.set_grad_enabled(fact.trained):
                output = layer(given)[0]
                if fact.trained:
                    layer.zero_grad(set_to_none=True)
                    (output.data if packs else output).sum().backward()

        return compare(lambda: run(False), lambda: run(True))


def flattening(fact: RecurrentFact) -> Estimate:
    """Weights in pieces against weights in one."""
    _check_size([(fact.shape, fact.dtype, fact.device)], 32)
    with _own_random_numbers():
        flat, pieces = _layer(fact), _layer(fact)
        for name, weight in list(pieces.named_parameters()):
            setattr(pieces, name, nn.Parameter(weight.detach().clone()))
        inputs = torch.randn(fact.shape, device=fact.device).to(fact.dtype)

        def run(layer: nn.RNNBase) -> None:
            with torch.set_grad_enabled(fact.trained):
                layer(inputs)

        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says the same
            return compare(lambda: run(pieces), lambda: run(flat))


def evaluating(fact: TrainModeFact) -> Estimate:
    """Every module of a call in training mode, against evaluation, without gradients on both sides."""
    _check_size([tensor for *_, tensor in fact.parts], 4)
    with _own_random_numbers(), torch.no_grad():
        modules = []
        for kind, options, (shape, dtype, device) in fact.parts:
            if issubclass(kind, nn.RNNBase):
                module: nn.Module = _plain(kind)(**options).to(device=device, dtype=dtype)
            else:
                module = kind(options["p"])
            modules.append((module, torch.randn(shape, device=device).to(dtype)))

        def run(training: bool) -> None:
            for module, given in modules:
                module.training = training
                module(given)

        return compare(lambda: run(True), lambda: run(False))
