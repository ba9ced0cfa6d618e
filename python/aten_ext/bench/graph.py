"""GPU time of a call: replays of a CUDA graph of several calls, so that launch gaps shrink, timed by events.

``triton.testing.do_bench_cudagraph`` measures the same for one function; it cannot interleave two, nor rotate
through buffers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aten_ext.bench.case import Call
from aten_ext.bench.interleave import enough
from aten_ext.bench.result import Samples
from aten_ext.bench.route import Switch

if TYPE_CHECKING:
    import torch

GRAPH_SECONDS = 2e-3
MOST_CALLS = 256
ORDER = (False, True, True, False) * 2
"""One batch of replays: each side follows itself as often as it follows the other."""


class CaptureError(Exception):
    """The call cannot be captured in a CUDA graph; the text says why."""


def calls_per_graph(seconds_per_call: float, copies: int, seconds: float = GRAPH_SECONDS) -> int:
    """How many calls to capture: about ``seconds`` of them, and whole laps through the sets of operands."""
    calls = min(MOST_CALLS, math.ceil(seconds / max(seconds_per_call, 1e-9)))
    return copies * math.ceil(max(calls, 1) / copies)


def _seconds_per_call(calls: Sequence[Call]) -> float:
    """A rough time of one call, in seconds: of a lap after the first, or of several where they are short."""
    import torch

    for call in calls:
        call()
    torch.cuda.synchronize()
    made = 0
    start = time.perf_counter()
    while made < 8 and time.perf_counter() - start < GRAPH_SECONDS:
        for call in calls:
            call()
        made += len(calls)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / made


def forget_broken_capture() -> None:
    """Undo what a capture that broke leaves of the current device's state.

    The default generator believes that it is still under way: every later random number would be an error. A
    fresh state, seeded anew, does not. And ``torch.cuda.graph`` leaves its own stream the current one.
    """
    import torch

    generator: Any = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(torch.Generator("cuda").graphsafe_get_state())
    torch.cuda.set_stream(torch.cuda.default_stream())


def _capture(
    calls: Sequence[Call], count: int, stream: torch.cuda.Stream | None, pool: Any
) -> torch.cuda.CUDAGraph:
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            for index in range(count):
                calls[index % len(calls)]()
    except RuntimeError as error:
        # Ending a broken capture raises a second error; the first one says what the call did.
        first: BaseException = error
        while first.__context__ is not None:
            first = first.__context__
        torch.cuda.synchronize()
        forget_broken_capture()
        raise CaptureError(f"cannot be captured: {str(first).splitlines()[0]}") from error
    return graph


class GraphClock:
    """Times two graphs of the same calls, one captured with the overrides off and one with them on."""

    reason: str | None = None
    """Why upstream ran in the graph although the override was on, where a rule leaves it captured calls."""

    def __init__(
        self,
        calls: Sequence[Call],
        switch: Switch,
        seconds: float = GRAPH_SECONDS,
        override: str = "",
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """Capture graphs of about ``seconds``; ``CaptureError`` if the calls do not allow it.

        ``stream``: where; by default one that torch keeps for it.
        """
        import torch

        import aten_ext

        rough = []
        for enabled in (False, True):
            switch.set(enabled)
            rough.append(_seconds_per_call(calls))
        self._count = calls_per_graph(min(rough), len(calls), seconds)
        self._graphs = []
        # Both write to the same memory, so that where a result lies makes no difference between them.
        pool = torch.cuda.graph_pool_handle()
        for enabled in (False, True):
            switch.set(enabled)
            aten_ext.reset_counts()
            self._graphs.append(_capture(calls, self._count, stream, pool))
        captured = aten_ext.counts("CUDA").get(override)
        if captured is not None and captured.declined and not captured.ran:
            self.reason = "; ".join(captured.declined)

    def sample(self, samples: Samples, seconds: float) -> None:
        """Add samples for about ``seconds``."""
        start = time.perf_counter()
        pairs = 0
        while not enough(pairs, time.perf_counter() - start, seconds):
            self._batch(samples)
            pairs += len(ORDER) // 2

    def _batch(self, samples: Samples) -> None:
        """Queue all replays of a batch behind one that is not timed, so that no event waits for the CPU."""
        import torch

        event_type: Any = torch.cuda.Event  # torch leaves its constructor without types
        events = [event_type(enable_timing=True) for _ in range(len(ORDER) + 1)]
        self._graphs[ORDER[-1]].replay()
        events[0].record()
        for enabled, event in zip(ORDER, events[1:], strict=True):
            self._graphs[enabled].replay()
            event.record()
        torch.cuda.synchronize()
        for enabled, before, after in zip(ORDER, events, events[1:], strict=False):
            samples.add(enabled, before.elapsed_time(after) * 1e3 / self._count)
