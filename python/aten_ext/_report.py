"""``aten_ext.report()``: how long fused kernels took, and what they saved as far as samples tell."""

from __future__ import annotations

import dataclasses
import math
import statistics
import threading
from typing import Any

from aten_ext import _C
from aten_ext._registry import is_active
from aten_ext._tables import table

FEWEST_SAMPLES = 5
"""Fewer say nothing about their own scatter, so there is no interval."""
CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Saved:
    """What the fused calls of one override saved, estimated from the sampled ones.

    Attributes:
        us: upstream's time less ours, in microseconds, over all calls beside which upstream could be called.
            Negative where ours took longer.
        error_us: half the width of the 95 % confidence interval; None for fewer than 5 samples.
        ratio: upstream's time over ours, in the samples.
    """

    us: float
    error_us: float | None
    ratio: float


@dataclasses.dataclass(frozen=True)
class ReportRow:
    """Fused calls of one override at one dispatch key.

    Attributes:
        override: its name, e.g. ``"cat.out"``.
        key: ``"CPU"``: times of the CPU's clock; ``"CUDA"``: of the GPU's, between two events of the stream.
        calls: fused calls since the report was enabled.
        timed: those that were timed.
        inside: not timed by themselves: made inside another fused call, whose time contains theirs.
        captured: not timed: a CUDA graph was being captured.
        shadowed: not timed: shadow mode compared them.
        ours_us: time of the timed ones, in microseconds.
        comparable: timed calls beside which upstream could be called. Not so where ours records the gradient,
            and for a backward that reads what a fused forward kept.
        comparable_us: time of ours in those.
        sampled: those beside which upstream was called.
        failed: those where upstream, or a copy for it, raised.
        error: the first line of the first such error.
        sums: over the samples: ours, upstream, ours squared, upstream squared, ours times upstream.
    """

    override: str
    key: str
    calls: int
    timed: int
    inside: int
    captured: int
    shadowed: int
    ours_us: float
    comparable: int
    comparable_us: float
    sampled: int
    failed: int
    error: str
    sums: tuple[float, float, float, float, float]

    @property
    def saved(self) -> Saved | None:
        """The estimate; None where nothing was sampled."""
        ours, upstream, *_ = self.sums
        if not self.sampled or ours <= 0:
            return None
        ratio = upstream / ours
        error = self._error(ratio)
        return Saved((ratio - 1) * self.comparable_us, error, ratio)

    def _error(self, ratio: float) -> float | None:
        """Of a ratio estimate (Cochran, Sampling Techniques, 6.4), by Student's t.

        Every call is its own draw, so calls of different sizes need no strata: what scatters is upstream's
        time less ``ratio`` times ours.
        """
        n = self.sampled
        if n < FEWEST_SAMPLES:
            return None
        ours, _, ours2, upstream2, product = self.sums
        residuals = max(0.0, upstream2 - 2 * ratio * product + ratio * ratio * ours2)
        of_ratio = math.sqrt(residuals / (n - 1) / n) / (ours / n)
        return student_t(n - 1) * of_ratio * self.comparable_us


def student_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t, by the expansion of Cornish and Fisher (1 % off for 4)."""
    z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
    z3, z5, z7 = z**3, z**5, z**7
    first = (z3 + z) / 4
    second = (5 * z5 + 16 * z3 + 3 * z) / 96
    third = (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


class Report:
    """What :func:`report` found. ``str()`` gives one table."""

    def __init__(self, rows: list[ReportRow], enabled: bool, sample_every: int | None) -> None:
        """Keep ``rows``."""
        self.rows = rows
        """One for each override and dispatch key that a fused call reached, most time first."""
        self.enabled = enabled
        """Whether times were taken."""
        self.sample_every = sample_every
        """Upstream is called beside one fused call in so many; None: never."""

    def __str__(self) -> str:
        """A line for each row, a sum, and what the figures leave out."""
        if not is_active():
            return "nothing was timed: nothing is registered (ATEN_EXT=0)"
        if not self.enabled:
            return "nothing was timed: call aten_ext.enable_report() first, or set ATEN_EXT_REPORT=time"
        if not self.rows:
            return "no fused kernel ran"
        return _render(self.rows, self.sample_every)


class _Current:
    """The one session of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session = 0
        self.sample_every: int | None = None


_current = _Current()


def _every_of_environment(value: str) -> int | None:
    return int(value) if value.isdigit() and int(value) else None


def adopt(session: int, value: str) -> None:
    """Take over the session that ``ATEN_EXT_REPORT=value`` has started."""
    with _current.lock:
        _current.session, _current.sample_every = session, _every_of_environment(value)


def enable_report(sample_every: int | None = None) -> None:
    """Take the time of every fused call from now on, and of upstream beside some; begin at zero.

    Args:
        sample_every: call upstream, too, beside one fused call in so many, chosen at random without torch's
            generators. Upstream writes to copies, draws no random number that the program would have drawn,
            and its errors are counted and go no further; such a call takes the copies and upstream's time
            longer. None: never, and then nothing is said of what was saved.

    Raises:
        ValueError: ``sample_every`` is not a whole number of at least 1.
    """
    if sample_every is not None and (
        not isinstance(sample_every, int) or isinstance(sample_every, bool) or sample_every < 1
    ):
        raise ValueError(f"[enable_report] expected sample_every of at least 1 or None, got {sample_every!r}")
    with _current.lock:
        before = _current.session
        _current.session = _C.start_times(1 / sample_every if sample_every else 0.0)
        _current.sample_every = sample_every
        if before:
            _C.stop_watching(before)


def disable_report() -> None:
    """Take no more times, and forget those taken."""
    with _current.lock:
        session, _current.session, _current.sample_every = _current.session, 0, None
        if session:
            _C.stop_watching(session)


def report() -> Report:
    """How long fused kernels took since :func:`enable_report`, and what they saved; goes on counting.

    On a GPU it waits for the last timed call.
    """
    with _current.lock:
        session, every = _current.session, _current.sample_every
        rows = [_row(fields) for fields in _C.timed_calls(session)] if session else []
    return Report(sorted(rows, key=lambda row: -row.ours_us), bool(session), every)


def clear() -> None:
    """Begin at zero: a forked child has its own calls to report."""
    if _current.session:
        _C.clear_watched(_current.session)


def _row(fields: dict[str, Any]) -> ReportRow:
    names = ("sum_ours", "sum_upstream", "sum_ours_ours", "sum_upstream_upstream", "sum_ours_upstream")
    sums = tuple(fields.pop(name) for name in names)
    return ReportRow(**fields, sums=sums)


def _milliseconds(us: float) -> str:
    return f"{us * 1e-3:.4g}"


def _cells(row: ReportRow) -> tuple[str, ...]:
    saved = row.saved
    if saved is None:
        estimate = ("not sampled", "", "")
    elif saved.error_us is None:
        estimate = (_milliseconds(saved.us), "too few samples", f"{saved.ratio:.2f}")
    else:
        estimate = (_milliseconds(saved.us), f"± {_milliseconds(saved.error_us)}", f"{saved.ratio:.2f}")
    return (
        row.override,
        "GPU" if row.key == "CUDA" else row.key,
        str(row.calls),
        _milliseconds(row.ours_us),
        str(row.sampled),
        *estimate,
    )


def _render(rows: list[ReportRow], every: int | None) -> str:
    columns = ("override", "clock", "calls", "ours ms", "samples", "saved ms", "95 %", "upstream / ours")
    cells = [_cells(row) for row in rows]
    cells += [_sum(clock, group) for clock, group in _by_clock(rows) if len(group) > 1]
    lines = [table(columns, cells, right=columns[2:])]
    for row in rows:
        parts = [
            f"{number} {what}"
            for number, what in (
                (row.inside, "inside another fused call, whose time has theirs"),
                (row.captured, "not timed, in a graph capture"),
                (row.shadowed, "not timed, in shadow mode"),
                (row.timed - row.comparable, "timed, but upstream cannot be called beside them (gradients)"),
            )
            if number
        ]
        if every is not None and row.failed:
            parts.append(f"{row.failed} samples failed: {row.error}")
        if parts:
            lines.append(f"{row.override}: {'; '.join(parts)}")
    if every is None:
        lines.append(
            "upstream was not called: aten_ext.enable_report(sample_every=100) estimates what is saved"
        )
    else:
        lines.append(
            f"saved: estimated from about one call in {every} beside which upstream ran on copies, for the "
            "calls of which that can be done; its error is that of sampling"
        )
    return "\n".join(lines)


def _by_clock(rows: list[ReportRow]) -> list[tuple[str, list[ReportRow]]]:
    return [
        (clock, [row for row in rows if (row.key == "CUDA") == (clock == "GPU")]) for clock in ("CPU", "GPU")
    ]


def _sum(clock: str, rows: list[ReportRow]) -> tuple[str, ...]:
    """Of one clock: errors of different overrides are independent. Only what was sampled is in the saving."""
    saved = [row.saved for row in rows]
    known = [each for each in saved if each is not None]
    total = _milliseconds(sum(each.us for each in known)) if known else "not sampled"
    error = ""
    if known:
        errors = [each.error_us for each in known]
        if all(each is not None for each in errors):
            error = f"± {_milliseconds(math.hypot(*(each or 0.0 for each in errors)))}"
        else:
            error = "too few samples"
    return (
        "together" if len(known) in (0, len(rows)) else "together, as far as sampled",
        clock,
        str(sum(row.calls for row in rows)),
        _milliseconds(sum(row.ours_us for row in rows)),
        str(sum(row.sampled for row in rows)),
        total,
        error,
        "",
    )
