"""What one case measured: samples by clock, their medians, and whether they pass."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from aten_ext.bench.case import Case

CLOCKS = ("gpu", "eager", "wall")
"""GPU time of the kernels, time of calls from Python that end in a synchronisation, and time on the CPU."""


def spread(values: list[float]) -> float:
    """Interquartile range over median: 0.01 means that the middle half of the samples lies within 1 %."""
    if len(values) < 2:
        return 0.0
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / middle


@dataclass
class Samples:
    """Interleaved samples of one clock, in microseconds per call."""

    upstream: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    def add(self, enabled: bool, microseconds: float) -> None:
        """Keep one sample."""
        (self.ours if enabled else self.upstream).append(microseconds)

    @property
    def ratio(self) -> float:
        """Median upstream time over median time of ours: above 1 is faster than upstream."""
        return statistics.median(self.upstream) / statistics.median(self.ours)

    @property
    def paired_ratio(self) -> float:
        """Median, over pairs of samples, of upstream's time over that of ours.

        A pair takes milliseconds, and mostly meets one speed of the machine. Where it has two, such as a CPU
        whose clock changes, the medians of the two sides may be of one each.
        """
        return statistics.median(u / o for u, o in zip(self.upstream, self.ours, strict=True))

    @property
    def difference_ns(self) -> float:
        """Median time of ours less median upstream time, in nanoseconds."""
        return (statistics.median(self.ours) - statistics.median(self.upstream)) * 1e3


@dataclass
class Result:
    """One case on one device."""

    case: Case
    device: str
    route: str = ""
    """"fused", "disabled", or "upstream: " and the reason."""
    reason: str | None = None
    """Why upstream ran although the override was on."""
    reason_in_graph: str | None = None
    """Why it ran in a captured call, where a call from Python is fused: the clock of the GPU has that."""
    copies: int = 1
    """Sets of operands that the calls rotated through."""
    cache: str = "resident"
    """"exceeded" when consecutive uses of one set are further apart than the last-level cache is large."""
    clocks: dict[str, Samples] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a clock has no samples."""
    measured: int = 0
    """Times that the case was measured; the samples of all of them are pooled."""
    skipped: str | None = None
    """Why the case was not measured at all."""
    differs: bool = False
    """Whether the result was looked at and is not upstream's."""
    details: dict[str, object] = field(default_factory=dict)
    """What else a benchmark of whole programs found."""
    limit_ns: float | None = None
    """For the cost of an entry: the difference that passes, in nanoseconds. It stands in for the ratio."""

    @property
    def routes(self) -> str:
        """The route, and that of a captured call where it is another."""
        if self.route == "fused" and self.reason_in_graph:
            return f"fused; in a CUDA graph upstream: {self.reason_in_graph}"
        return self.route

    @property
    def headline(self) -> str | None:
        """The clock that says most about the kernel."""
        return next((clock for clock in CLOCKS if clock in self.clocks), None)

    @property
    def ratio(self) -> float | None:
        """The ratio of the headline clock."""
        return self.clocks[self.headline].ratio if self.headline else None

    @property
    def paired_ratio(self) -> float | None:
        """The paired ratio of the headline clock."""
        return self.clocks[self.headline].paired_ratio if self.headline else None

    @property
    def checked(self) -> list[str]:
        """The clocks that may fail the case.

        The eager time counts where issuing the call, not the kernel, takes the time, or where it is all that
        is known; elsewhere it is the GPU time with more noise.
        """
        clocks: list[str] = [clock for clock in ("gpu", "wall") if clock in self.clocks]
        if eager := self.clocks.get("eager"):
            gpu = self.clocks.get("gpu")
            if gpu is None or any(
                statistics.median(slow) > 1.2 * statistics.median(fast)
                for slow, fast in ((eager.upstream, gpu.upstream), (eager.ours, gpu.ours))
            ):
                clocks.append("eager")
        return clocks

    def failures(self, never_slower: float) -> list[str]:
        """What is slower than allowed, one phrase each; nothing for a case that passes."""
        if self.limit_ns is not None:
            over = [samples.difference_ns for samples in self.clocks.values()]
            return [
                f"costs {cost:.1f} ns, more than {self.limit_ns:g}" for cost in over if cost > self.limit_ns
            ]
        ratios = {clock: self.clocks[clock].ratio for clock in self.checked}
        return [f"{clock} ratio {ratio:.3f}" for clock, ratio in ratios.items() if not ratio >= never_slower]
