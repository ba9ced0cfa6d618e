"""The tables in the terminal."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aten_ext.bench.ceiling import Ceilings
from aten_ext.bench.document import rate
from aten_ext.bench.result import Result, Samples, spread

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WIDTH = 120
TITLES = {"gpu": "GPU us", "eager": "eager us", "wall": "wall us"}


def console() -> Console:
    """The console that the tables go to: as wide as the terminal, 120 plain columns when piped."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def headline(origin: Mapping[str, object]) -> str:
    """One line with what was measured and where."""
    machine, versions = origin["machine"], origin["versions"]
    assert isinstance(machine, Mapping) and isinstance(versions, Mapping)
    parts = [machine["gpu"], f"{machine['cpu']} ({machine['cores']} cores)", f"torch {versions['torch']}"]
    parts += [f"driver {versions['driver']}" if versions["driver"] else None, origin["date"]]
    parts += [f"commit {str(origin['commit'])[:12]}" if origin["commit"] else None]
    return ", ".join(str(part) for part in parts if part)


def busy(origin: Mapping[str, object]) -> str | None:
    """A warning if other work takes more than a quarter of the cores, else None."""
    machine = origin["machine"]
    assert isinstance(machine, Mapping)
    load, cores = machine["load"], machine["cores"]
    if load <= cores / 4:
        return None
    return f"other work is running (load {load:g} on {cores} cores): compare these times with each other only"


def ceilings_line(ceilings: Ceilings) -> str:
    """One line with the rates that the shares in the tables are of."""
    streams = [
        f"{name.replace('_', '-')} {rate.per_second * 1e3:.4g} GB/s"
        for name, rate in ceilings.streams.items()
    ]
    gemm = [f"{dtype} {rate.per_second:.3g} TFLOP/s" for dtype, rate in ceilings.gemm.items()]
    return f"ceilings measured now: {', '.join(streams)}; matrix product {', '.join(gemm)}"


def show(
    to: Console, results: Sequence[Result], never_slower: float | None, ceilings: Ceilings | None = None
) -> None:
    """Print one table per op and device, then notes, then what is slower than allowed."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.case.op, result.device), []).append(result)
    for (op, device), group in groups.items():
        costs = group[0].limit_ns is not None
        to.print(
            _cost_table(op, group) if costs else _time_table(f"{op} on {device}", group, device, ceilings)
        )
    lines = _notes(results, ceilings) + (_verdict(results, never_slower) if never_slower is not None else [])
    for line in lines:
        to.print(line, markup=False)


def _table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("case", overflow="fold", min_width=16)
    table.add_column("route", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _time_table(title: str, results: Sequence[Result], device: str, ceilings: Ceilings | None) -> Table:
    clocks = ("gpu", "eager") if device == "cuda" else ("wall",)
    columns = [column for clock in clocks for column in (TITLES[clock], "ours", "ratio")]
    unit, scale = ("TB/s", 1.0) if device == "cuda" else ("GB/s", 1e3)
    if compute := all(result.case.flops for result in results):
        unit, scale = ("TFLOP/s", 1.0)
    table = _table(title, *columns, unit, "ours", "sets")
    for result in results:
        if result.skipped:
            table.add_row(result.case.label, f"skipped: {result.skipped}")
            continue
        cells = [cell for clock in clocks for cell in _cells(result.clocks.get(clock))]
        amount = result.case.flops if compute else result.case.bytes
        rates = _rates(amount, result, scale, ceilings)
        sets = f"{result.copies}{'' if result.cache == 'exceeded' else ' *'}"
        table.add_row(result.case.label, result.routes, *cells, *rates, sets)
    return table


def _cost_table(op: str, results: Sequence[Result]) -> Table:
    table = _table(
        f"{op}: cost per call on the CPU, measured in C++", "upstream ns", "ours ns", "cost ns", "limit"
    )
    for result in results:
        samples = result.clocks.get("wall")
        if samples is None:
            table.add_row(result.case.name, f"skipped: {result.skipped}")
            continue
        sides = [_time([value * 1e3 for value in side]) for side in (samples.upstream, samples.ours)]
        table.add_row(
            result.case.name, result.route, *sides, f"{samples.difference_ns:+.1f}", f"{result.limit_ns:g}"
        )
    return table


def _cells(samples: Samples | None) -> tuple[str, str, str]:
    if samples is None:
        return "n/a", "n/a", "n/a"
    return _time(samples.upstream), _time(samples.ours), f"{samples.ratio:.2f}"


def _time(values: list[float]) -> str:
    """The median with three digits at least, and the spread in per cent."""
    median = statistics.median(values)
    digits = max(0, 2 - len(str(int(median))) + 1) if median >= 1 else 3
    return f"{median:.{digits}f} {spread(values):.0%}"


def _rates(amount: int, result: Result, scale: float, ceilings: Ceilings | None) -> tuple[str, str]:
    """Achieved rates of both sides by the headline clock, and their shares of the ceiling."""
    if result.headline is None or not amount:
        return "", ""
    case, samples = result.case, result.clocks[result.headline]
    upstream, ours = (statistics.median(side) for side in (samples.upstream, samples.ours))

    def cell(microseconds: float) -> str:
        text = f"{rate(amount, microseconds) * scale:.3f}"[:4].rstrip(".")
        share = ceilings.share(case.dtype, case.bytes, case.flops, microseconds) if ceilings else None
        return text if share is None else f"{text} {share:.0%}"

    return cell(upstream), cell(ours)


def _notes(results: Sequence[Result], ceilings: Ceilings | None) -> list[str]:
    timed = [result for result in results if result.clocks and result.limit_ns is None]
    lines = []
    if timed:
        lines.append(
            "medians and interquartile ranges; ratio = upstream / ours, above 1 is faster than upstream;"
            " sets = how many sets of operands the calls rotated through to miss the cache"
        )
    if timed and ceilings:
        lines.append(
            "% after a rate: of the ceiling, the time that bytes and FLOPs need at least by the rates above"
        )
    if any(result.cache == "resident" for result in timed):
        lines.append(
            "* the operands stay in the cache (too small to rotate, or --one-set): memory is no ceiling"
        )
    for result in results:
        for clock, why in result.missing.items():
            lines.append(f"{result.case.label}: {TITLES[clock]} n/a, {why}")
    return lines


def _verdict(results: Sequence[Result], never_slower: float) -> list[str]:
    lines = [
        f"FAILED {result.case.op}: {result.case.label}: {failure} (measured {_times(result.measured)})"
        for result in results
        for failure in result.failures(never_slower)
    ]
    if not lines:
        lines = [f"passed: no case below {never_slower:g} of upstream's speed"]
    if skipped := sum(result.skipped is not None for result in results):
        lines.append(f"not checked, because skipped: {skipped} of {len(results)} cases")
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
