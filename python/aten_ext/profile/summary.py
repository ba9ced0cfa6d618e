"""One record boiled down: time by operator, and the part of it that overrides can touch.

An operator is a range with a namespace, ``aten::mm`` or ``autograd::engine::…``. What else has a range in the
record, a call of the CUDA runtime for example, counts for the operator around it, and so does a range of the
fused kernel itself (``aten_ext::…``): both sides then have the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def overridden() -> set[str]:
    """The operators that this build has an override of, as the profiler names them: without an overload."""
    import aten_ext

    return {f"aten::{override.name.partition('.')[0]}" for override in aten_ext.overrides() if override.keys}


def operators(profile: torch.profiler.profile, touched: set[str]) -> dict[str, Any]:
    """Times in microseconds.

    Returns:
        ``operators``: for each name ``calls``, ``cpu_us`` and ``device_us`` (with the operators inside it)
        and ``self_cpu_us`` and ``self_device_us`` (without), most of the latter two first; ``device_us``: all
        GPU time; ``touched_cpu_us`` and ``touched_device_us``: in the operators named in ``touched``, one
        inside another counted once.
    """
    from torch._C._autograd import DeviceType

    events: Any = profile.events  # torch leaves it without types
    rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    totals = {"device_us": 0.0, "touched_cpu_us": 0.0, "touched_device_us": 0.0}
    for event in events() or ():
        if event.device_type != DeviceType.CPU:
            if not event.is_user_annotation:
                totals["device_us"] += event.self_device_time_total
            continue
        around = [parent for parent in _parents(event) if _is_operator(parent)]
        if not _is_operator(event):
            # Its CPU time is in the operator around it already, as time that no operator inside it has taken.
            if around:
                rows[around[0].name]["self_device_us"] += event.self_device_time_total
            continue
        row = rows[event.name]
        row["calls"] += 1
        row["self_cpu_us"] += event.cpu_time_total
        row["self_device_us"] += event.self_device_time_total
        if not any(parent.name == event.name for parent in around):
            row["cpu_us"] += event.cpu_time_total
            row["device_us"] += event.device_time_total
        if around:
            rows[around[0].name]["self_cpu_us"] -= event.cpu_time_total
        if event.name in touched and not any(parent.name in touched for parent in around):
            totals["touched_cpu_us"] += event.cpu_time_total
            totals["touched_device_us"] += event.device_time_total
    names = ("calls", "cpu_us", "self_cpu_us", "device_us", "self_device_us")
    ranked = sorted(rows.items(), key=lambda item: (-item[1]["self_device_us"], -item[1]["self_cpu_us"]))
    table = [
        {"name": name, "overridden": name in touched, **{key: round(row[key], 3) for key in names}}
        for name, row in ranked
    ]
    return {"operators": table, **{key: round(value, 3) for key, value in totals.items()}}


def share(part: float, whole: float) -> float | None:
    """``part`` of ``whole``, or None of nothing."""
    return round(part / whole, 6) if whole else None


def _is_operator(event: Any) -> bool:
    return "::" in event.name and not event.name.startswith("aten_ext::")


def _parents(event: Any) -> Iterable[Any]:
    while (event := event.cpu_parent) is not None:
        yield event
