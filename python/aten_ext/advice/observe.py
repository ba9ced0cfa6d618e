"""Watches a program: its optimizers, recurrent layers, dropout, and the calls that overrides did not take.

Everything kept is a fact about shapes and options; tensors and modules are let go. What looks at numbers, as
the search for padding does, looks at a few calls of each line only, because on a GPU it waits.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from aten_ext._site import calling_line, frames, line_outside
from aten_ext._trace import CallTrace, TracedCall

LOOKS = 8
"""Calls of one line whose numbers are looked at."""

TensorFact = tuple[tuple[int, ...], torch.dtype, torch.device]


def fact_of(tensor: torch.Tensor) -> TensorFact:
    """What is kept of a tensor."""
    return tuple(tensor.shape), tensor.dtype, tensor.device


@dataclass
class OptimizerFact:
    """An optimizer that has stepped."""

    kind: type[torch.optim.Optimizer]
    site: str
    groups: list[tuple[dict[str, Any], list[TensorFact]]]
    """Options, and the parameters that had a gradient."""
    sparse: bool = False
    steps: int = 0


@dataclass
class RecurrentFact:
    """Calls of one recurrent layer from one line."""

    kind: type[nn.RNNBase]
    site: str
    options: dict[str, Any]
    dtype: torch.dtype
    device: torch.device
    flat: bool
    shape: tuple[int, ...] = ()
    """Of the last input that was looked at."""
    trained: bool = False
    """Whether the calls recorded gradients."""
    packed: bool = False
    calls: int = 0
    looked: int = 0
    padded: int = 0
    lengths: list[int] = field(default_factory=list)
    """Of the padded batch whose share of padding was largest."""
    elements: int = 0
    padding: int = 0


@dataclass
class TrainModeFact:
    """Calls of modules in training mode without gradients, by the line that called the outermost of them."""

    site: str
    model: str
    without_grad: bool
    """Whether recording was off (no_grad, inference_mode), or on and never used."""
    counts: dict[int, int] = field(default_factory=dict)
    """Calls by module."""
    modules: dict[str, int] = field(default_factory=dict)
    """What they are, and how many."""
    parts: list[tuple[type[nn.Module], dict[str, Any], TensorFact]] = field(default_factory=list)
    """For a trial: kind, options and input of each module."""

    @property
    def calls(self) -> int:
        """Calls of the outermost module, which calls each of its modules once, or more often."""
        return min(self.counts.values())


@dataclass
class Facts:
    """All that was seen."""

    optimizers: list[OptimizerFact] = field(default_factory=list)
    recurrent: list[RecurrentFact] = field(default_factory=list)
    train_mode: list[TrainModeFact] = field(default_factory=list)
    calls: list[TracedCall] = field(default_factory=list)
    backwards: int = 0


def are_flat(weights: list[torch.Tensor]) -> bool:
    """Whether weights lie in one piece of memory, as cuDNN and ``flatten_parameters`` want them."""
    if len({weight.untyped_storage().data_ptr() for weight in weights}) != 1:
        return False
    places = sorted((weight.storage_offset(), weight.numel()) for weight in weights)
    return all(begin + length <= following for (begin, length), (following, _) in itertools.pairwise(places))


RECURRENT_OPTIONS = [
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "batch_first",
    "dropout",
    "bidirectional",
    "proj_size",
    "nonlinearity",
]


def options_of(module: nn.RNNBase) -> dict[str, Any]:
    """What another such module is made with."""
    options = {name: getattr(module, name) for name in RECURRENT_OPTIONS if hasattr(module, name)}
    if not isinstance(module, nn.RNN):
        options.pop("nonlinearity", None)
    if not isinstance(module, nn.LSTM):
        options.pop("proj_size", None)
    return options


class Observer:
    """Watches between :meth:`start` and :meth:`stop`, which may follow one another again."""

    def __init__(self) -> None:
        """Watch nothing yet; but note from now on where optimizers are made."""
        self._lock = threading.Lock()
        self._optimizers: dict[int, OptimizerFact] = {}
        self._recurrent: dict[tuple[Any, ...], RecurrentFact] = {}
        self._train_mode: dict[tuple[str, bool], TrainModeFact] = {}
        self._made_at: dict[int, str] = {}
        self._calls: list[TracedCall] = []
        self._removers: list[Callable[[], None]] = []
        self._trace: CallTrace | None = None
        self._backwards = 0
        self._restore = self._patch()

    def _patch(self) -> Callable[[], None]:
        """Optimizers say nothing of where they were made, and nobody tells of a backward."""
        made = torch.optim.Optimizer.__init__
        backward, grad = torch.autograd.backward, torch.autograd.grad

        @functools.wraps(made)
        def make(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            self._made_at[id(optimizer)] = calling_line()

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def back(*args: Any, **kwargs: Any) -> Any:
                self._backwards += 1
                return function(*args, **kwargs)

            return back

        torch.optim.Optimizer.__init__ = make  # type: ignore[method-assign,assignment]
        torch.autograd.backward, torch.autograd.grad = counted(backward), counted(grad)

        def restore() -> None:
            torch.optim.Optimizer.__init__ = made  # type: ignore[method-assign]
            torch.autograd.backward, torch.autograd.grad = backward, grad

        return restore

    def start(self) -> None:
        """Watch."""
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from aten_ext import _C

        if self._removers:
            return
        _C.set_find_site(calling_line)
        self._trace = CallTrace(_C.start_trace(True))
        self._removers = [
            register_module_forward_pre_hook(self._called).remove,
            register_optimizer_step_pre_hook(self._stepped).remove,
        ]

    def stop(self) -> None:
        """Watch no more for now."""
        for remove in self._removers:
            remove()
        self._removers = []
        if self._trace is not None:
            self._trace.close()
            self._calls += self._trace.rows
            self._trace = None

    def close(self) -> Facts:
        """Undo everything, and tell what was seen."""
        self.stop()
        self._restore()
        return Facts(
            list(self._optimizers.values()),
            list(self._recurrent.values()),
            [fact for fact in self._train_mode.values() if fact.without_grad or not self._backwards],
            self._calls,
            self._backwards,
        )

    def _stepped(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        fact = self._optimizers.get(id(optimizer))
        if fact is None:
            site = self._made_at.get(id(optimizer)) or calling_line()
            fact = self._optimizers[id(optimizer)] = OptimizerFact(type(optimizer), site, [])
        if not fact.steps:
            for group in optimizer.param_groups:
                own = [parameter for parameter in group["params"] if parameter.grad is not None]
                options = {
                    name: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
                    for name, value in group.items()
                    if name != "params"
                }
                fact.groups.append((options, [fact_of(parameter) for parameter in own]))
                fact.sparse |= any(parameter.grad.is_sparse for parameter in own)
        fact.steps += 1

    def _called(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        recurrent = isinstance(module, nn.RNNBase)
        dropout = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        if not (recurrent or dropout) or not args or torch.compiler.is_compiling():
            return
        with self._lock:
            if recurrent:
                self._recurrent_called(cast(nn.RNNBase, module), args[0])
            if module.training and (not torch.is_grad_enabled() or not self._backwards):
                self._train_mode_called(module, args[0])

    def _recurrent_called(self, module: nn.RNNBase, given: Any) -> None:
        weight = cast(torch.Tensor, module.weight_ih_l0)
        packed = isinstance(given, nn.utils.rnn.PackedSequence)
        inputs = given.data if packed else given
        if not isinstance(inputs, torch.Tensor):
            return
        trained = torch.is_grad_enabled() and (
            inputs.requires_grad or any(parameter.requires_grad for parameter in module.parameters())
        )
        site = calling_line()
        key = (site, id(module), trained, packed)
        fact = self._recurrent.get(key)
        if fact is None:
            fact = self._recurrent[key] = RecurrentFact(
                type(module), site, options_of(module), weight.dtype, weight.device, True, (), trained, packed
            )
        fact.calls += 1
        fact.flat &= are_flat([weight for weight in module._flat_weights if weight is not None])
        if packed or inputs.dim() != 3 or fact.looked >= LOOKS or _is_capturing(inputs):
            return
        fact.looked += 1
        fact.shape = tuple(inputs.shape)
        batch = inputs.detach() if module.batch_first else inputs.detach().transpose(0, 1)
        lengths = padded_lengths_of(batch)
        fact.elements += batch.shape[0] * batch.shape[1]
        if lengths is not None:
            fact.padded += 1
            fact.padding += batch.shape[0] * batch.shape[1] - sum(lengths)
            if not fact.lengths or sum(lengths) * len(fact.lengths) < sum(fact.lengths) * len(lengths):
                fact.lengths = lengths

    def _train_mode_called(self, module: nn.Module, given: Any) -> None:
        stack = frames()
        if any(f.f_code.co_filename.endswith(("torch/utils/checkpoint.py",)) for f in stack):
            return  # it runs the forward without gradients on purpose
        site, outermost = line_outside(stack)
        root = outermost if isinstance(outermost, nn.Module) else module
        key = (site, not torch.is_grad_enabled())
        fact = self._train_mode.setdefault(key, TrainModeFact(site, type(root).__name__, key[1]))
        first = id(module) not in fact.counts
        fact.counts[id(module)] = fact.counts.get(id(module), 0) + 1
        if not first:
            return
        kind = type(module).__name__
        name = f"{kind}(p={module.p:g})" if hasattr(module, "p") else kind
        fact.modules[name] = fact.modules.get(name, 0) + 1
        if isinstance(given, torch.Tensor):
            options = options_of(module) if isinstance(module, nn.RNNBase) else {"p": module.p}
            fact.parts.append((type(module), options, fact_of(given)))


def padded_lengths_of(batch: torch.Tensor) -> list[int] | None:
    """:func:`padded_lengths`, without a trace of its own in the watched program."""
    from aten_ext.advice.sequences import padded_lengths

    with torch.no_grad():
        return padded_lengths(batch)


def _is_capturing(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
