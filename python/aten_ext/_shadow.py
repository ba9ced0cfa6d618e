"""Shadow mode: run upstream beside the fused kernels and say how far apart the results are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from aten_ext import _C
from aten_ext._registry import is_active
from aten_ext._tables import table


@dataclasses.dataclass(frozen=True)
class ShadowRow:
    """Shadowed calls of one override that look alike; differences are the largest of all of them.

    Attributes:
        override: its name, e.g. ``"cat.out"``.
        key: the dispatch key, ``"CPU"`` or ``"CUDA"``.
        signature: the arguments, as in :class:`aten_ext.TracedCall`.
        compared: calls that were compared.
        differing: those of them with any difference.
        captured: calls left alone because a CUDA graph was being captured.
        failed: calls without a comparison because upstream or the comparison raised.
        error: the first line of the first such error.
        elements: numbers compared.
        different: numbers whose bits differ, NaN taken for NaN.
        max_absolute: ``|ours - upstream|``, in float64.
        max_relative: the same over ``|upstream|``; infinite where only upstream's is 0.
        max_ulp: how many numbers of the dtype lie in between (and -0 lies one below 0); for integers the
            difference.
        worst: the result with the largest ``max_ulp``, e.g. ``"exp_avgs[2]"``.
        nan: numbers that are NaN on one side alone; they count in no maximum.
        layouts: results whose dtype, shape, strides or device differ.
        layout: the first of them, in words.
    """

    override: str
    key: str
    signature: str
    compared: int
    differing: int
    captured: int
    failed: int
    error: str
    elements: int
    different: int
    max_absolute: float
    max_relative: float
    max_ulp: float
    worst: str
    nan: int
    layouts: int
    layout: str

    @property
    def exact(self) -> bool:
        """Whether something was compared and nothing differed, and nothing failed."""
        return self.compared > 0 and self.differing == 0 and self.failed == 0


class ShadowReport:
    """What :func:`shadow` found. ``str()`` gives a table."""

    def __init__(self, session: int) -> None:
        """Read from ``session`` until it is closed."""
        self._session = session
        self._final: list[ShadowRow] | None = None

    @property
    def rows(self) -> list[ShadowRow]:
        """A snapshot, in the order of the first call."""
        if self._final is not None:
            return self._final
        return [ShadowRow(**row) for row in _C.shadowed_calls(self._session)]

    @property
    def exact(self) -> bool:
        """Whether calls were compared and every result had upstream's bits and layout."""
        rows = [row for row in self.rows if row.compared or row.failed]
        return bool(rows) and all(row.exact for row in rows)

    def close(self) -> None:
        """Keep the rows and end the session."""
        self._final = self.rows
        _C.stop_watching(self._session)

    def __str__(self) -> str:
        """A line of numbers for each row, and below the table what the calls look like."""
        return _render(self.rows)


def _render(rows: list[ShadowRow]) -> str:
    if not rows:
        return "no fused call was compared" + ("" if is_active() else ": nothing is registered (ATEN_EXT=0)")
    numbers = ("compared", "differ", "max abs", "max rel", "max ulp", "NaN")
    columns = ("#", "override", "key", *numbers, "worst result")
    cells = []
    notes = []
    for number, row in enumerate(rows, 1):
        cells.append(
            (
                str(number),
                row.override,
                row.key,
                str(row.compared),
                str(row.differing),
                f"{row.max_absolute:.3g}",
                f"{row.max_relative:.3g}",
                f"{row.max_ulp:.6g}",
                str(row.nan),
                row.worst or "-",
            )
        )
        notes.append(f"#{number} {row.signature}")
        if row.layouts:
            notes.append(f"   layout differs: {row.layouts} x {row.layout}")
        if row.captured:
            notes.append(f"   not compared, in a graph capture: {row.captured}")
        if row.failed:
            notes.append(f"   not compared, failed: {row.failed} x {row.error}")
    return "\n".join([table(columns, cells, right=("#", *numbers)), *notes])


@contextmanager
def shadow(rate: float = 1.0, *, keep: Literal["fused", "upstream"] = "fused") -> Iterator[ShadowReport]:
    """Run upstream, too, whenever a fused kernel runs in a ``with`` block, and compare the results.

    What a call writes to is copied before it (with strides and shared memory), and upstream runs on the
    copies; both then draw the same random numbers, and the generator goes on from where the fused kernel
    left it. Sees the calls of all threads. A compared call costs the copies, upstream's run and the
    comparison; on a GPU it synchronises. During the capture of a CUDA graph calls are left alone and
    counted. An error in what shadow mode itself does is counted, and the call goes on.

    Args:
        rate: the fraction of fused calls to compare, chosen at random without torch's generators.
        keep: whose result the caller gets for compared calls: ``"fused"``, or ``"upstream"``.

    Yields:
        The :class:`ShadowReport`, whose ``rows`` may be read inside the block and after it.

    Raises:
        ValueError: ``rate`` is not in 0 to 1, or ``keep`` is neither.
    """
    if not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
        raise ValueError(f"[shadow] expected a rate from 0 to 1, got {rate!r}")
    if keep not in ("fused", "upstream"):
        raise ValueError(f"[shadow] expected keep='fused' or keep='upstream', got {keep!r}")
    report = ShadowReport(_C.start_shadow(float(rate), keep == "upstream"))
    try:
        yield report
    finally:
        report.close()
