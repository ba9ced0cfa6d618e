"""Measures a case: the same calls with the overrides off and on, interleaved in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from aten_ext.bench import machine, operands
from aten_ext.bench.case import Call, Case, Settings
from aten_ext.bench.graph import CaptureError, GraphClock
from aten_ext.bench.interleave import CallClock
from aten_ext.bench.result import Result, Samples
from aten_ext.bench.route import Switch, routes

MOST_MEASUREMENTS = 3
WARM_UP_SECONDS = 0.1


class Clock(Protocol):
    """Adds interleaved samples of one kind of time."""

    def sample(self, samples: Samples, seconds: float) -> None:
        """Add samples for about ``seconds``."""


def settle(result: Result, sample: Callable[[], None], never_slower: float | None) -> Result:
    """Sample once, or while the pooled medians fall below the limit up to ``MOST_MEASUREMENTS`` times."""
    for _ in range(1 if never_slower is None else MOST_MEASUREMENTS):
        sample()
        result.measured += 1
        if never_slower is None or not result.failures(never_slower):
            break
    return result


def measure(case: Case, settings: Settings, switch: Switch) -> Result:
    """Time ``case``; a case that cannot run here comes back with ``skipped`` set."""
    if case.measure is not None:
        return case.measure(case, settings)
    device = settings.device
    rotation = operands.rotation(case.footprint, machine.cache_bytes(device), settings.one_set)
    result = Result(case, device, copies=rotation.copies, cache=rotation.cache)
    if why := operands.too_large(case, device):
        result.skipped = why
        return result
    calls = operands.make(case, device, rotation.copies)
    for enabled in (False, True):
        switch.set(enabled)
        _warm_up(calls, device)
    result.route, result.reason = routes(calls[0], case.override, device, switch)
    clocks = _clocks(calls, switch, result)

    def sample() -> None:
        for name, clock in clocks.items():
            clock.sample(result.clocks.setdefault(name, Samples()), settings.seconds / len(clocks))

    return settle(result, sample, settings.never_slower)


def _clocks(calls: Sequence[Call], switch: Switch, result: Result) -> dict[str, Clock]:
    """The clocks that apply; one that does not leaves its reason in ``result.missing``."""
    if result.device == "cpu":
        return {"wall": CallClock(calls, switch)}
    clocks: dict[str, Clock] = {}
    try:
        clocks["gpu"] = clock = GraphClock(calls, switch, override=result.case.override)
        result.reason_in_graph = clock.reason
    except CaptureError as error:
        result.missing["gpu"] = str(error)
    clocks["eager"] = CallClock(calls, switch)
    return clocks


def _warm_up(calls: Sequence[Call], device: str) -> None:
    """Load modules, fill caches and bring up the clocks; every set of operands is used at least once."""
    import torch

    start = time.perf_counter()
    while True:
        for call in calls:
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        if time.perf_counter() - start > WARM_UP_SECONDS:
            return
