"""What a sweep found: the distribution of each family, the losers, and whether it passes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from aten_ext.bench.document import Document, rounded
from aten_ext.bench.result import CLOCKS, Result
from aten_ext.sweep.look import GOOD, LIMITS, failed

SHARE = 0.005
"""Of all cases, how many may have a ratio below ``GOOD`` on the clock that says most."""
SCHEMA = 1


@dataclass(frozen=True)
class Distribution:
    """Ratios upstream / ours of a family's cases, by one clock."""

    cases: int
    fused: int
    """Cases that the fused kernel ran."""
    least: float
    fifth_percent: float
    median: float
    geometric_mean: float
    below_good: int
    below_limit: int


def distributions(results: Sequence[Result]) -> dict[tuple[str, str], Distribution]:
    """(family, clock) -> distribution."""
    found: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for result in results:
        for clock in CLOCKS:
            if clock in result.clocks:
                key = (result.case.op, clock)
                found.setdefault(key, []).append((result.clocks[clock].paired_ratio, result.route == "fused"))
    return {key: _distribution(rows, LIMITS[key[1]]) for key, rows in found.items()}


def _distribution(rows: list[tuple[float, bool]], limit: float) -> Distribution:
    ratios = sorted(ratio for ratio, _ in rows)
    return Distribution(
        len(rows),
        sum(fused for _, fused in rows),
        ratios[0],
        ratios[len(ratios) // 20],
        statistics.median(ratios),
        statistics.geometric_mean(ratios),
        sum(ratio < GOOD for ratio in ratios),
        sum(ratio < limit for ratio in ratios),
    )


def losers(results: Sequence[Result]) -> list[Result]:
    """The cases below ``GOOD``, or below a limit, the worst first."""
    slow = [r for r in results if failed(r) or (r.paired_ratio is not None and r.paired_ratio < GOOD)]
    return sorted(slow, key=lambda r: min(samples.paired_ratio for samples in r.clocks.values()))


def failures(results: Sequence[Result]) -> list[str]:
    """Why the sweep does not pass, a line each; nothing if it does."""
    timed = [result for result in results if result.clocks]
    lines = []
    if wrong := sum(result.differs for result in results):
        lines.append(f"{wrong} of {len(timed)} cases with another result than upstream's")
    for clock, limit in LIMITS.items():
        if count := sum(clock in failed(result) for result in timed):
            lines.append(f"{count} of {len(timed)} cases below {limit:g} ({clock})")
    below = sum(result.paired_ratio is not None and result.paired_ratio < GOOD for result in timed)
    if below > SHARE * len(timed):
        lines.append(f"{below} of {len(timed)} cases below {GOOD:g}, more than {SHARE:.1%}")
    return lines


def build(origin: Document, settings: Document, results: Sequence[Result], plans: dict[int, str]) -> Document:
    """The document of a sweep. ``plans``: of the losers, by the case's place in ``results``."""
    return {
        "schema": SCHEMA,
        "kind": "sweep",
        **origin,
        "settings": settings,
        "passed": not failures(results),
        "failures": failures(results),
        "distributions": [
            {"op": op, "clock": clock, **_numbers(found)}
            for (op, clock), found in distributions(results).items()
        ],
        "sweep": [_encode(result, plans.get(i)) for i, result in enumerate(results)],
    }


def _numbers(found: Distribution) -> Document:
    return {key: rounded(x) if isinstance(x, float) else x for key, x in vars(found).items()}


def _encode(result: Result, plan: str | None) -> Document:
    times = {
        clock: [
            rounded(statistics.median(samples.upstream)),
            rounded(statistics.median(samples.ours)),
            rounded(samples.paired_ratio),
        ]
        for clock, samples in result.clocks.items()
    }
    case: Document = {"op": result.case.op, "name": result.case.label, "route": result.route, **times}
    case |= {"differs": True} if result.differs else {}
    return case | ({"plan": plan} if plan else {}) | ({"skipped": result.skipped} if result.skipped else {})
