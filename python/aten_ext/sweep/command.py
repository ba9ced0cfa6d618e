"""``python -m aten_ext sweep``: random calls, timed against upstream, and a verdict."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from aten_ext._cli import CommandError, write_atomically
from aten_ext.bench import command as bench
from aten_ext.bench import machine, report, route
from aten_ext.bench.case import Case
from aten_ext.bench.result import Result, Samples
from aten_ext.sweep import families, verdict
from aten_ext.sweep.look import look, plan

CASES = 820
WORST = 25
EXAMPLES = """examples:
  python -m aten_ext sweep                            every family
  python -m aten_ext sweep cat linear --seed 7 --cases 500 --json sweep.json
  python -m aten_ext sweep cat --list
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``sweep``."""
    parser = subparsers.add_parser(
        "sweep",
        help="time random calls against upstream; exit with 1 if fused kernels are slower",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "families", nargs="*", metavar="FAMILY", help=f"{', '.join(families.FAMILIES)} (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same cases for the same seed (default: 0)")
    parser.add_argument(
        "--cases", type=int, default=CASES, help="how many, dealt out to the families (default: %(default)s)"
    )
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is a GPU)")
    parser.add_argument(
        "--one-set",
        action="store_true",
        help="do not rotate operands past the cache: several times as many cases a minute",
    )
    parser.add_argument(
        "--gpu-clock-alone",
        action="store_true",
        help="leave the time from Python out: several times as many recurrent layers a minute",
    )
    parser.add_argument("--json", metavar="FILE", help="also write all cases to FILE")
    parser.add_argument(
        "--worst", type=int, default=WORST, metavar="K", help="losers to print (default: %(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="list the cases instead of measuring them")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 1 if the sweep does not pass."""
    names = families.chosen(arguments.families)
    if arguments.cases < 1:
        raise CommandError(f"--cases must be at least 1, not {arguments.cases}")
    if arguments.worst < 0:
        raise CommandError(f"--worst must not be negative, not {arguments.worst}")
    if arguments.list and arguments.device in bench.DEVICES:
        device = arguments.device
    else:
        device = bench.choose_device(arguments.device)
    cases = list(families.draw(names, device, arguments.seed, arguments.cases))
    if arguments.list:
        for case in cases:
            print(f"{case.op:10} {case.label}")
        return 0
    bench.require_rich()
    if arguments.json:
        bench.prepare_file(Path(arguments.json))
    origin = machine.describe()
    console = report.console()
    console.print(report.headline(origin), markup=False)
    quicker = {"one_set": arguments.one_set, "gpu_clock_alone": arguments.gpu_clock_alone}
    results, plans = _measure(cases, device, arguments.worst, quicker)
    _show(results, plans, arguments.worst)
    if arguments.json:
        drawn = {"families": names, "device": device, "seed": arguments.seed, "cases": arguments.cases}
        made = verdict.build(origin, {**drawn, **quicker}, results, plans)
        write_atomically(arguments.json, (json.dumps(made, indent=0, allow_nan=False) + "\n").encode())
    found = verdict.failures(results)
    for line in found or ["passed"]:
        console.print(f"FAILED: {line}" if found else line, markup=False)
    return int(bool(found))


def _measure(
    cases: Sequence[Case], device: str, worst: int, quicker: Mapping[str, bool]
) -> tuple[list[Result], dict[int, str]]:
    """Every case in turn, and the plans of the losers by the case's place."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawn between cases alone: a thread that wakes up within one would disturb what is measured.
    with (
        route.Overrides() as switch,
        Progress(
            *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
        ) as bar,
    ):
        task = bar.add_task("", total=len(cases))
        gc.freeze()  # each capture of a graph collects, which would take longer than the case
        results = []
        for case in cases:
            bar.update(task, description=case.op, refresh=True)
            results.append(look(case, device, switch, **quicker))
            bar.advance(task)
        switch.set(True)
        slow = verdict.losers(results)[:worst]
        places = {id(result): i for i, result in enumerate(results)}
        plans = {places[id(result)]: plan(result.case, device) for result in slow}
    return results, plans


def _times(clock: str, samples: Samples) -> str:
    upstream, ours = statistics.median(samples.upstream), statistics.median(samples.ours)
    return f"{clock} {upstream:.2f} -> {ours:.2f} us, {samples.paired_ratio:.3f}"


def _show(results: Sequence[Result], plans: dict[int, str], worst: int) -> None:
    from rich import box
    from rich.table import Table

    console = report.console()
    table = Table(title="upstream / ours", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("family", "clock"):
        table.add_column(name)
    for name in ("cases", "fused", "least", "5 %", "median", "geomean", "< good", "< limit"):
        table.add_column(name, justify="right")
    for (op, clock), d in verdict.distributions(results).items():
        ratios = [f"{x:.3f}" for x in (d.least, d.fifth_percent, d.median, d.geometric_mean)]
        counts = [str(d.below_good), str(d.below_limit)]
        table.add_row(op, clock, str(d.cases), str(d.fused), *ratios, *counts)
    console.print(table)
    for i, result in enumerate(results):
        if i in plans:
            times = "; ".join(_times(clock, samples) for clock, samples in result.clocks.items())
            text = f"{result.case.op}: {result.case.label}: {times}; {result.routes}"
            console.print(f"{text}; {plans[i]}" if plans[i] else text, markup=False)
    for result in results:
        if result.differs:
            label = f"{result.case.op}: {result.case.label}"
            console.print(f"{label}: another result than upstream's; {result.route}", markup=False)
    if skipped := sum(result.skipped is not None for result in results):
        console.print(f"skipped, too large for this device: {skipped}", markup=False)
