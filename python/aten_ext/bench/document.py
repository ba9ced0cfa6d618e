"""The JSON document of a run, which is the format of ``docs/benchmarks/``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence

from aten_ext.bench.case import Case
from aten_ext.bench.result import CLOCKS, Result, spread


def encode(
    origin: Mapping[str, object],
    settings: Mapping[str, object],
    results: Sequence[Result],
    never_slower: float | None,
) -> bytes:
    """The document as text, keys in a fixed order. ``origin`` is what ``machine.describe()`` found."""
    document = {
        **origin,
        "settings": dict(settings),
        "cases": [encode_case(result, never_slower) for result in results],
    }
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def encode_case(result: Result, never_slower: float | None) -> dict[str, object]:
    """One entry of ``cases``; every key is always there, null where it does not apply."""
    case = result.case
    wall = result.clocks.get("wall")
    return {
        "op": case.op,
        "name": case.name,
        "device": result.device,
        "dtype": case.dtype,
        "override": case.override,
        "bytes": case.bytes,
        "flops": case.flops,
        "footprint": case.footprint,
        "route": result.route or None,
        "reason": result.reason,
        "rotated": result.copies > 1,
        "copies": result.copies,
        "cache": result.cache,
        "upstream": _side(case, {name: samples.upstream for name, samples in result.clocks.items()}),
        "ours": _side(case, {name: samples.ours for name, samples in result.clocks.items()}),
        "ratio": _rounded(result.ratio),
        "ratios": {
            name: _rounded(result.clocks[name].ratio) if name in result.clocks else None for name in CLOCKS
        },
        "difference_ns": _rounded(wall.difference_ns) if wall and result.limit_ns is not None else None,
        "limit_ns": result.limit_ns,
        "checked": result.checked,
        "passed": None if never_slower is None or result.skipped else not result.failures(never_slower),
        "measured": result.measured,
        "missing": dict(result.missing),
        "skipped": result.skipped,
    }


def rate(amount: int, microseconds: float) -> float:
    """``amount`` bytes or FLOPs in ``microseconds``, as TB/s or TFLOP/s."""
    return amount / microseconds / 1e6


def _side(case: Case, clocks: Mapping[str, list[float]]) -> dict[str, object]:
    """Medians in microseconds, spreads (interquartile range / median), sample counts and achieved rates."""
    side: dict[str, object] = {}
    best: float | None = None
    for name in CLOCKS:
        values = clocks.get(name)
        middle = statistics.median(values) if values else None
        best = middle if best is None else best
        side[f"{name}_us"] = _rounded(middle)
        side[f"{name}_spread"] = _rounded(spread(values)) if values else None
        side[f"{name}_samples"] = len(values) if values else 0
    side["tb_per_s"] = _rounded(rate(case.bytes, best)) if best and case.bytes else None
    side["tflop_per_s"] = _rounded(rate(case.flops, best)) if best and case.flops else None
    return side


def _rounded(value: float | None) -> float | None:
    """Five significant digits: finer than any spread, and the file's differences stay readable."""
    return None if value is None else float(f"{value:.5g}")
