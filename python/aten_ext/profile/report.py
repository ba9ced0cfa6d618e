"""Both records side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Side = Mapping[str, Any]


def show(to: Console, off: Side, on: Side, top: int) -> None:
    """Print the ``top`` operators of either side, the share that overrides can touch, and what they did."""
    from rich import box
    from rich.table import Table

    by_step = off["window"]["kind"] == on["window"]["kind"] == "steps"
    device = bool(off["device_us"] or on["device_us"])
    unit = "a step" if by_step else "in all"
    table = Table(title=f"operators, {unit}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("operator", overflow="fold", min_width=24)
    columns = ["calls off", "on", "CPU ms off", "on"] + (["GPU ms off", "on"] if device else [])
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    rows = [{row["name"]: row for row in side["operators"]} for side in (off, on)]
    scales = [1 / side["window"]["steps"] if by_step else 1.0 for side in (off, on)]
    for name in _top(off, on, top, device):
        cells = []
        for key, scale in (("calls", 1.0), ("self_cpu_us", 1e-3), ("self_device_us", 1e-3))[: 2 + device]:
            for side, each in zip(rows, scales, strict=True):
                value = side[name][key] * scale * each if name in side else None
                cells.append("" if value is None else f"{value:.4g}" if key == "calls" else f"{value:.3f}")
        mark = " *" if any(side.get(name, {}).get("overridden") for side in rows) else ""
        table.add_row(f"{name}{mark}", *cells)
    to.print(table)
    for line in (*_notes(off, on, by_step), *_shares(off), *_counts(on)):
        to.print(line, markup=False, soft_wrap=True)


def _top(off: Side, on: Side, count: int, device: bool) -> list[str]:
    """The operators that take most time without those inside them, on either side, most first."""
    key = "self_device_us" if device else "self_cpu_us"
    most: dict[str, float] = {}
    for side in (off, on):
        for row in side["operators"]:
            most[row["name"]] = max(most.get(row["name"], 0.0), row[key] / (side["window"]["seconds"] or 1.0))
    ranked = sorted(most, key=lambda name: -most[name])
    # One that overrides can touch is what this is about, however little time it takes.
    rest = [name for name in ranked[count:] if any(_is_overridden(side, name) for side in (off, on))]
    return ranked[:count] + rest


def _is_overridden(side: Side, name: str) -> bool:
    return any(row["overridden"] for row in side["operators"] if row["name"] == name)


def _notes(off: Side, on: Side, by_step: bool) -> list[str]:
    lines = ["time without the operators inside; * has an override"]
    for side, name in ((off, "off"), (on, "on")):
        window = side["window"]
        if window["kind"] == "steps":
            what = f"{window['steps']} of {window['steps_made']} optimizer steps"
        else:
            what = f"from the program's start, with {window['steps']} optimizer steps"
        lines.append(f"overrides {name}: recorded {window['seconds']:.3f} s, {what}")
    if not by_step:
        lines.append("the two records need not hold the same work: compare calls before times")
    lines.append("one run each, and a profiler slows calls down: python -m aten_ext bench measures times")
    return lines


def _shares(off: Side) -> list[str]:
    cpu, device = off["share_of_time"], off["share_of_device_time"]
    lines = [
        f"overrides can touch {cpu or 0:.2%} of the recorded time (CPU time of * over time, overrides off)"
    ]
    if device is not None:
        lines.append(f"and {device:.2%} of the GPU time")
    return lines


def _counts(on: Side) -> list[str]:
    if not on["counts"]:
        return ["with the overrides on, no call in the record reached one"]
    lines = []
    for name, count in on["counts"].items():
        parts = [f"{count['ran']} ran fused"]
        parts += [f"{count['disabled']} went upstream, disabled"] if count["disabled"] else []
        parts += [f"{calls} went upstream: {reason}" for reason, calls in count["declined"].items()]
        lines.append(f"{name}: {'; '.join(parts)}")
    return lines
