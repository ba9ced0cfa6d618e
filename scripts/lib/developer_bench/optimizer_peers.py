"""AdamW's whole step against two others that users turn to for many small tensors.

The same optimizer compiled with ``torch.compile``, and DeepSpeed's ``FusedAdam`` (its multi_tensor_adam)
where that is installed and builds. In these rows the column of upstream is the other, with the overrides off,
and the ratio its time over ours; no limit applies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from aten_ext.bench import harness
from aten_ext.bench.case import Call, Case, Settings
from aten_ext.bench.interleave import CallClock
from aten_ext.bench.ops import optimizer_step
from aten_ext.bench.result import Result, Samples
from aten_ext.bench.route import Overrides


@dataclass
class BesideResult(Result):
    """A comparison with something that the overrides do not replace."""

    def failures(self, never_slower: float) -> list[str]:
        """None: that ours is never slower is said of upstream alone."""
        del never_slower
        return []


def cases(device: str, full: bool) -> list[Case]:
    """AdamW over a thousand small tensors and over a ResNet-50's; nothing on a CPU."""
    del full
    if device != "cuda":
        return []
    return [beside(name, rival, make) for rival, make in RIVALS.items() for name in ("1000x1024", "resnet50")]


def beside(name: str, rival: str, make_rival: Callable[..., Call]) -> Case:
    """AdamW's step over the parameters ``name``, beside what ``make_rival`` makes."""
    case = optimizer_step.step_of("AdamW", name)
    return replace(
        case,
        op="optimizer_peers",
        name=f"{case.name} beside {rival}",
        measure=partial(_measure_beside, name, make_rival),
    )


def _make_compiled(name: str, device: str) -> Call:
    """AdamW as PyTorch's tutorial on compiled optimizers has it: with the rate in a tensor."""
    import torch

    rate = torch.tensor(1e-4, device=device)
    optimizer = torch.optim.AdamW(
        optimizer_step.parameters(name, device), lr=rate, foreach=True, capturable=True
    )
    compiled: Call = torch.compile(optimizer.step, fullgraph=False)
    return compiled


def _make_deepspeed(name: str, device: str) -> Call:
    from deepspeed.ops.adam import FusedAdam  # type: ignore[import-not-found, unused-ignore]

    optimizer = FusedAdam(
        optimizer_step.parameters(name, device), lr=1e-4, weight_decay=0.01, adam_w_mode=True
    )
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
