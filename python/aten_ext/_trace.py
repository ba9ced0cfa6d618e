"""Which calls were made: ``aten_ext.trace_calls()``, and the summaries that ``ATEN_EXT_TRACE`` prints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from aten_ext import _C
from aten_ext._registry import LATE, Counts
from aten_ext._site import calling_line
from aten_ext._tables import table

TracedRoute = Literal["fused", "declined", "disabled", "declined late"]

CountsByKey = Mapping[tuple[str, str], Counts]
"""(override, dispatch key) -> what its calls did."""


@dataclasses.dataclass(frozen=True)
class TracedCall:
    """Calls of one override that look alike.

    Attributes:
        override: its name, e.g. ``"cat.out"``.
        key: the dispatch key, ``"CPU"`` or ``"CUDA"``.
        route: which way they went: ``"fused"``, or upstream because the override was ``"disabled"`` or
            ``"declined"``.
        reason: why it declined; empty otherwise.
        signature: the arguments: a tensor as ``dtype[sizes]``, with ``(strides)`` where it is not contiguous
            and ``@device`` where that is not the CPU; of a list of more than 4 the first 3, the length and a
            hash. Floating-point numbers and what is None are left out. ``"other signatures"`` adds up what
            came after 4096 different rows, by route, whatever the reason.
        count: how many such calls there were.
        site: the line of the program that made them, ``"file:line"``; empty without ``sites=True``.
        microseconds: their time on the CPU's clock, from the entry to its return; 0 likewise.
    """

    override: str
    key: str
    route: TracedRoute
    reason: str
    signature: str
    count: int
    site: str = ""
    microseconds: float = 0.0

    def __str__(self) -> str:
        """One line."""
        route = f"{self.route}: {self.reason}" if self.reason else self.route
        at = f" at {self.site}" if self.site else ""
        return f"{self.count} x {self.override} {self.key} {route}: {self.signature}{at}"


def traced_calls(session: int) -> list[TracedCall]:
    """The rows of a session, the most frequent first."""
    rows = [TracedCall(*row) for row in _C.traced_calls(session)]
    return sorted(rows, key=lambda row: -row.count)


class CallTrace:
    """What :func:`trace_calls` writes down. ``str()`` gives one line for each row."""

    def __init__(self, session: int) -> None:
        """Read from ``session`` until it is closed."""
        self._session = session
        self._final: list[TracedCall] | None = None

    @property
    def rows(self) -> list[TracedCall]:
        """A snapshot, the most frequent first."""
        return traced_calls(self._session) if self._final is None else self._final

    def close(self) -> None:
        """Keep the rows and end the session."""
        self._final = self.rows
        _C.stop_watching(self._session)

    def __str__(self) -> str:
        """One line for each row."""
        return "\n".join(map(str, self.rows)) or "no call reached an override"


@contextmanager
def trace_calls(sites: bool = False) -> Iterator[CallTrace]:
    """Write down the shapes, strides, dtypes and route of the calls in a ``with`` block.

    Sees the calls of all threads. Rows are per distinct signature and at most 4096, so that memory stays
    bounded. A traced call takes some microseconds longer, more for lists of many tensors.

    Args:
        sites: also tell apart, and say, which line of the program made the calls, and how long they took.

    Yields:
        The :class:`CallTrace`, whose ``rows`` may be read inside the block and after it.
    """
    if sites:
        _C.set_find_site(calling_line)
    trace = CallTrace(_C.start_trace(sites))
    try:
        yield trace
    finally:
        trace.close()


def counts_by_key() -> CountsByKey:
    """The counts of each row of the registry."""
    return {
        (name, key): Counts(row.ran, row.disabled, dict(row.declined), row.late)
        for name, key, row in _C.counts()
    }


def summary(since: CountsByKey) -> str:
    """What the calls of each override did after the counts were ``since``, as a table; "" for no calls."""

    def after(now: int, before: int) -> int:
        return now - before if now >= before else now  # reset_counts() in between

    rows: list[tuple[str, str, str, str, str]] = []
    for (name, key), now in counts_by_key().items():
        before = since.get((name, key), Counts(0, 0, {}))
        outcomes = {"ran": after(now.ran, before.ran), "disabled": after(now.disabled, before.disabled)}
        for reason, number in now.declined.items():
            outcomes[f"declined: {reason}"] = after(number, before.declined.get(reason, 0))
        outcomes[LATE] = after(now.late, before.late)
        calls = sum(outcomes.values())
        first = True
        for outcome, number in outcomes.items():
            if number:
                share = f"{number / calls:.1%}"
                rows.append((name if first else "", key if first else "", str(number), share, outcome))
                first = False
    if not rows:
        return ""
    columns = ("override", "key", "calls", "share", "outcome")
    return table(columns, rows, right=("calls", "share"))
