"""Blocks of calls with the overrides off and on, in turns, so that a change of clocks or load meets both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import cycle

from aten_ext.bench.case import Call
from aten_ext.bench.result import Samples
from aten_ext.bench.route import Switch

BLOCK_SECONDS = 2e-3
"""The least time of one block: the clock and the synchronisation at its end are then well under 1 % of it."""
PAIRS = 15
FEWEST_PAIRS = 5
CALL_LIMIT = 1_000_000


def calls_per_block(time_block: Callable[[int], float], at_least: float = BLOCK_SECONDS) -> int:
    """How many calls last ``at_least`` seconds, where ``time_block(n)`` is the time of n calls in seconds."""
    calls = 1
    while (seconds := time_block(calls)) < at_least and calls < CALL_LIMIT:
        factor = 1.2 * at_least / max(seconds, 1e-9)
        calls = min(CALL_LIMIT, math.ceil(calls * min(10.0, max(2.0, factor))))
    return calls


def enough(pairs: int, elapsed: float, seconds: float) -> bool:
    """Whether to stop: the time is spent and there are enough pairs, or few of them but the case is slow."""
    return (pairs >= PAIRS and elapsed >= seconds) or (pairs >= FEWEST_PAIRS and elapsed >= 2 * seconds)


def alternate(time_block: Callable[[bool], float], samples: Samples, seconds: float) -> None:
    """Add pairs of samples for about ``seconds``; each pair starts with the side that ended the last one.

    ``time_block(enabled)`` is one sample, in microseconds per call.
    """
    start = time.perf_counter()
    pairs = 0
    while not enough(pairs, time.perf_counter() - start, seconds):
        for enabled in ((False, True), (True, False))[pairs % 2]:
            samples.add(enabled, time_block(enabled))
        pairs += 1


class CallClock:
    """Times blocks of Python calls with ``torch.utils.benchmark.Timer``.

    Its clock synchronises the GPU where there is one, so this is "eager" time there and "wall" time on the
    CPU; the garbage collector is off within a block.
    """

    def __init__(self, calls: Sequence[Call], switch: Switch) -> None:
        """Choose a block that is long enough on both sides; the calls are made in turn."""
        import torch
        from torch.utils.benchmark import Timer

        self._switch = switch
        self._timer = Timer(
            "next(calls)()", globals={"calls": cycle(calls)}, num_threads=torch.get_num_threads()
        )
        counts = []
        for enabled in (False, True):
            switch.set(enabled)
            counts.append(calls_per_block(self._block_seconds))
        self._count = max(counts)

    def _block_seconds(self, calls: int) -> float:
        return float(self._timer.timeit(calls).median) * calls

    def _time_block(self, enabled: bool) -> float:
        self._switch.set(enabled)
        return self._block_seconds(self._count) / self._count * 1e6

    def sample(self, samples: Samples, seconds: float) -> None:
        """Add samples for about ``seconds``."""
        alternate(self._time_block, samples, seconds)
