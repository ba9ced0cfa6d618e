"""Cases of ``torch.optim``: a whole ``step()`` from Python, with what Python does around the operators.

On CUDA, with ``full``, AdamW's step is also held against two others that users turn to for many small
tensors: the same optimizer compiled with ``torch.compile``, and DeepSpeed's ``FusedAdam`` (its
multi_tensor_adam) where that is installed and builds. There "upstream" is the other, and the ratio its time
over ours; no limit applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aten_ext.bench import harness
from aten_ext.bench.case import Call, Case, Settings
from aten_ext.bench.interleave import CallClock
from aten_ext.bench.parameter_sets import PARAMETER_SETS
from aten_ext.bench.result import Result, Samples
from aten_ext.bench.route import Overrides
from aten_ext.bench.tensors import random_tensors

if TYPE_CHECKING:
    import torch

ACCESSES = {"AdamW": (7, 4), "SGD": (5, 3), "Adagrad": (5, 3)}
"""Memory accesses per parameter, and operands, of each optimizer as it is used here."""
OPTIONS: dict[str, dict[str, Any]] = {"AdamW": {}, "SGD": {"momentum": 0.9}, "Adagrad": {}}
OVERRIDES = {"AdamW": "_fused_adamw_", "SGD": "_fused_sgd_", "Adagrad": "_fused_adagrad_"}


@dataclass
class BesideResult(Result):
    """A comparison with something that the overrides do not replace."""

    def failures(self, never_slower: float) -> list[str]:
        """None: that ours is never slower is said of upstream alone."""
        del never_slower
        return []


def cases(device: str, full: bool) -> list[Case]:
    """AdamW over a thousand small tensors; with ``full`` other lists, other optimizers, and the rivals."""
    chosen = [("AdamW", "1000x1024")]
    if full:
        chosen += [("AdamW", name) for name in ("1x10", "resnet50", "4000x64", "gru_seq2seq")]
        chosen.append(("SGD", "1000x1024"))
        if device == "cpu":  # torch.optim.Adagrad(fused=True) takes no CUDA parameters
            chosen.append(("Adagrad", "1000x1024"))
    result = [_case(kind, name) for kind, name in chosen]
    if full and device == "cuda":
        for rival, make in RIVALS.items():
            result += [_case("AdamW", name, rival, make) for name in ("1000x1024", "resnet50")]
    return result


def _case(kind: str, name: str, rival: str = "", make_rival: Callable[..., Call] | None = None) -> Case:
    elements = sum(math.prod(shape) for shape in PARAMETER_SETS[name]())
    accesses, operands = ACCESSES[kind]
    return Case(
        op="optimizer_step",
        name=f"{kind}.step {name}" + (f" beside {rival}" if rival else ""),
        dtype="float32",
        override=OVERRIDES[kind],
        make=partial(_make, kind, name),
        bytes=4 * accesses * elements,
        footprint=4 * operands * elements,
        measure=None if make_rival is None else partial(_measure_beside, name, make_rival),
    )


def _parameters(name: str, device: str) -> list[torch.nn.Parameter]:
    """Parameters with gradients, both magnitudes in [0.05, 0.15]."""
    import torch

    shapes = PARAMETER_SETS[name]()
    new = partial(random_tensors, shapes, torch.float32, device, 0.1, 0)
    parameters = [torch.nn.Parameter(t) for t in new()]
    for parameter, gradient in zip(parameters, new(), strict=True):
        parameter.grad = gradient
    return parameters


def _make(kind: str, name: str, device: str) -> Call:
    import torch

    optimizer = getattr(torch.optim, kind)(_parameters(name, device), lr=1e-4, fused=True, **OPTIONS[kind])
    optimizer.step()  # makes the states
    call: Call = optimizer.step
    return call


def _make_compiled(name: str, device: str) -> Call:
    """AdamW as PyTorch's tutorial on compiled optimizers has it: with the rate in a tensor."""
    import torch

    rate = torch.tensor(1e-4, device=device)
    optimizer = torch.optim.AdamW(_parameters(name, device), lr=rate, foreach=True, capturable=True)
    compiled: Call = torch.compile(optimizer.step, fullgraph=False)
    return compiled


def _make_deepspeed(name: str, device: str) -> Call:
    from deepspeed.ops.adam import FusedAdam  # type: ignore[import-not-found, unused-ignore]

    optimizer = FusedAdam(_parameters(name, device), lr=1e-4, weight_decay=0.01, adam_w_mode=True)
    call: Call = optimizer.step
    return call


RIVALS: dict[str, Callable[..., Call]] = {"torch.compile": _make_compiled, "DeepSpeed": _make_deepspeed}


class _Turn:
    """The switch of a comparison: whose turn it is."""

    def __init__(self, rival: Call, ours: Call, overrides: Overrides) -> None:
        self._calls, self._overrides = {False: rival, True: ours}, overrides
        self.enabled = False

    def set(self, enabled: bool) -> None:
        """Ours with the overrides on, the other with them off."""
        self.enabled = enabled
        self._overrides.set(enabled)

    def call(self) -> object:
        """The step of whose turn it is."""
        return self._calls[self.enabled]()


def _measure_beside(name: str, make_rival: Callable[..., Call], case: Case, settings: Settings) -> Result:
    """Both steps in turns; skipped where the other cannot be made or run."""
    result = BesideResult(case, settings.device, route="fused")
    try:
        rival = make_rival(name, settings.device)
        for _ in range(3):  # compiles
            rival()
    except Exception as error:
        lines = str(error).strip().splitlines()
        result.skipped = f"{type(error).__name__}: {lines[0] if lines else ''}"
        return result
    with Overrides() as overrides:
        turn = _Turn(rival, case.make(settings.device), overrides)
        clock = CallClock([turn.call], turn)

        def sample() -> None:
            clock.sample(result.clocks.setdefault("eager", Samples()), settings.seconds)

        return harness.settle(result, sample, settings.never_slower)
