"""Looks at one case: upstream and ours in turns, and once more, for longer, where ours seems slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aten_ext.bench import machine, operands
from aten_ext.bench.case import Call, Case
from aten_ext.bench.graph import CaptureError, GraphClock
from aten_ext.bench.harness import Clock
from aten_ext.bench.interleave import CallClock
from aten_ext.bench.result import Result, Samples
from aten_ext.bench.route import Switch, routes

if TYPE_CHECKING:
    from torch._ops import OpOverload

LIMITS: Mapping[str, float] = {"gpu": 0.95, "wall": 0.95, "eager": 0.93}
"""The least ratio upstream / ours of a case, by clock: ``Samples.paired_ratio``."""
GOOD = 0.98
"""Nearly all cases are to have at least this, see ``verdict.SHARE``. What has less is looked at again."""
SECONDS = 0.012
SECONDS_AGAIN = {"cpu": 1.0, "cuda": 0.25}
"""On a CPU a case can last 0.1 s, and a handful of samples says little."""
GRAPH_SECONDS = 1e-3


def look(
    case: Case, device: str, switch: Switch, *, one_set: bool = False, gpu_clock_alone: bool = False
) -> Result:
    """Time ``case``. A case that cannot run here comes back with ``skipped`` set.

    ``one_set`` does not rotate operands past the cache. ``gpu_clock_alone`` leaves the time from Python out
    where the GPU's is to be had.
    """
    rotation = operands.rotation(case.footprint, machine.cache_bytes(device), one_set)
    result = Result(case, device, copies=rotation.copies, cache=rotation.cache)
    if why := operands.too_large(case, device):
        result.skipped = why
        return result
    calls = operands.make(case, device, rotation.copies)
    made: list[object] = []
    for enabled in (False, True):
        switch.set(enabled)
        for call in calls:
            call()
        if case.exact:
            made.append(calls[0]())
    result.differs = case.exact and not _have_same_bits(*made)
    made.clear()
    result.route, result.reason = routes(calls[0], case.override, device, switch)
    clocks = _clocks(calls, switch, result, gpu_clock_alone)
    for name, clock in clocks.items():
        clock.sample(result.clocks.setdefault(name, Samples()), SECONDS)
    result.measured = 1
    for name, clock in clocks.items():
        if result.clocks[name].paired_ratio < GOOD:
            result.measured = 2
            result.clocks[name] = Samples()
            clock.sample(result.clocks[name], SECONDS_AGAIN[result.device])
    return result


def failed(result: Result) -> list[str]:
    """The clocks by which a case is below its limit."""
    return [name for name, samples in result.clocks.items() if samples.paired_ratio < LIMITS[name]]


def plan(case: Case, device: str) -> str:
    """The plan of the case's override, or nothing where the call does not show its arguments."""
    import torch

    import aten_ext

    recorder = _recorder(case.override)
    with torch.no_grad(), recorder:
        case.make(device)()
    for function, args, kwargs in recorder.calls[:1]:
        return aten_ext.explain(function, *args, key=device.upper(), **kwargs).plan or ""
    return ""


def _have_same_bits(theirs: Any, ours: Any) -> bool:
    """Whether two tensors are alike, NaN for NaN, and lie in memory alike."""
    import torch

    if (theirs.dtype, theirs.stride()) != (ours.dtype, ours.stride()):
        return False
    one, other = (t.contiguous().view(torch.uint8) for t in (theirs, ours))
    return torch.equal(one, other)


def _clocks(calls: Sequence[Call], switch: Switch, result: Result, gpu_clock_alone: bool) -> dict[str, Clock]:
    if result.device == "cpu":
        return {"wall": CallClock(calls, switch)}
    clocks: dict[str, Clock] = {}
    try:
        clocks["gpu"] = clock = GraphClock(calls, switch, GRAPH_SECONDS, result.case.override)
        result.reason_in_graph = clock.reason
    except CaptureError as error:
        result.missing["gpu"] = str(error)
    if not (clocks and gpu_clock_alone):
        clocks["eager"] = CallClock(calls, switch)
    return clocks


def _recorder(override: str) -> Any:
    """A mode that keeps the calls of ``override`` and makes them."""
    from torch.utils import _python_dispatch

    mode: Any = _python_dispatch.TorchDispatchMode  # torch leaves it without types

    class Recorder(mode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[tuple[OpOverload, tuple[Any, ...], dict[str, Any]]] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            name = func._schema.name.partition("::")[2]
            overload = func._schema.overload_name
            if override == (f"{name}.{overload}" if overload else name):
                self.calls.append((func, args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    return Recorder()
