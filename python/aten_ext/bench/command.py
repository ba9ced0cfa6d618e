"""``python -m aten_ext bench``: upstream and fused kernels timed against each other."""

from __future__ import annotations

import argparse
import gc
import math
from collections.abc import Sequence
from pathlib import Path

from aten_ext._cli import CommandError, prepare_folder, write_atomically
from aten_ext.bench import ceiling, compare, document, harness, index, machine, plot, registry, report, route
from aten_ext.bench.case import Case, Settings
from aten_ext.bench.ceiling import Ceilings
from aten_ext.bench.result import Result

DEVICES = ("cpu", "cuda")
SECONDS = 1.5
"""Time for each case that was asked for."""
SHORT_RUN_SECONDS = 30.0
"""Time that all cases share when nothing was asked for; with everything around them an H200 took 244 s."""
EXAMPLES = """examples:
  python -m aten_ext bench                          the short list of every op, in about four minutes
  python -m aten_ext bench fused_adam --filter gpt2 --never-slower 0.98
  python -m aten_ext bench fused_adam --full --json new.json --plot plots
  python -m aten_ext bench fused_adam --compare old.json
  python -m aten_ext bench --from new.json --compare old.json
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``bench``."""
    parser = subparsers.add_parser(
        "bench",
        help="time the fused kernels against upstream, interleaved in one process",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "ops",
        nargs="*",
        metavar="OP",
        help=f"{', '.join(registry.OPS)} (default: all that need not compile first, as "
        f"{', '.join(registry.COMPILING)} must)",
    )
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is a GPU)")
    parser.add_argument("--dtype", action="append", default=[], help="only this dtype; may be repeated")
    parser.add_argument(
        "--filter", default="", metavar="SUBSTRING", help="only cases whose name contains this"
    )
    parser.add_argument("--full", "--all", action="store_true", help="the whole sweep, not the short list")
    parser.add_argument("--list", action="store_true", help="list the cases instead of measuring them")
    parser.add_argument(
        "--seconds",
        type=float,
        help=f"time to spend on each case, after warm-up (default: {SECONDS}, or less if no OP is named)",
    )
    parser.add_argument(
        "--one-set",
        action="store_true",
        help="do not rotate operands past the cache: call over one set again and again",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the measurements to FILE")
    parser.add_argument(
        "--never-slower",
        type=float,
        metavar="RATIO",
        help="exit with 1 if upstream time / our time is below RATIO in a case measured three times",
    )
    parser.add_argument(
        "--plot", metavar="FOLDER", help="also draw the measurements as PNG files into FOLDER"
    )
    parser.add_argument(
        "--compare",
        metavar="OLD",
        help="also compare with the document OLD; exit with 1 if a case has become slower",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=compare.THRESHOLD,
        metavar="FACTOR",
        help="with --compare: the least new ratio / old ratio that passes (default: %(default)s)",
    )
    parser.add_argument(
        "--force", action="store_true", help="with --compare: also if machine, dtype or command differ"
    )
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="plot or compare the document FILE instead of measuring"
    )
    parser.add_argument(
        "--index",
        metavar="FOLDER",
        help="make FOLDER/index.md and its plots from the documents there, and end",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write; 1 if a case is slower than ``--never-slower`` or ``--compare`` allows."""
    if arguments.index:
        for path in index.write(arguments.index):
            print(f"wrote {path}")
        return 0
    threshold = _positive("--threshold", arguments.threshold)
    old = document.read(arguments.compare) if arguments.compare else None
    if arguments.plot:
        plot.require()
        prepare_folder(arguments.plot)
    if arguments.source:
        return _from_file(arguments, old, threshold)
    device = choose_device(arguments.device)
    cases = registry.select(
        arguments.ops, device, full=arguments.full, dtypes=arguments.dtype, text=arguments.filter
    )
    if arguments.list:
        for case in cases:
            print(f"{case.op:12} {case.label:44} {case.footprint / 1e6:10.3f} MB")
        return 0
    settings = Settings(
        device=device,
        seconds=_seconds(arguments, len(cases)),
        never_slower=(
            None if arguments.never_slower is None else _positive("--never-slower", arguments.never_slower)
        ),
        one_set=arguments.one_set,
    )
    require_rich()
    if arguments.json:
        prepare_file(Path(arguments.json))
    origin, asked = machine.describe(), _asked(arguments, settings)
    if old is not None:
        compare.check(old, {**origin, "settings": asked}, arguments.force)

    console = report.console()
    console.print(report.headline(origin), markup=False)
    if warning := report.busy(origin):
        console.print(warning, markup=False)
    ceilings, results = _measure(cases, settings)
    if ceilings:
        console.print(report.ceilings_line(ceilings), markup=False)
    limit = settings.never_slower
    report.show(console, results, limit, ceilings)
    made = document.build(origin, asked, results, limit, ceilings)
    if arguments.json:
        write_atomically(arguments.json, document.to_bytes(made))
    if arguments.plot:
        _plot(made, arguments.plot)
    slower = old is not None and compare.show(console, old, made, threshold)
    return int(slower or (limit is not None and any(result.failures(limit) for result in results)))


def _from_file(arguments: argparse.Namespace, old: document.Document | None, threshold: float) -> int:
    """Plot or compare an older run."""
    if arguments.ops or arguments.json:
        raise CommandError("--from measures nothing: it takes no OP and no --json")
    if old is None and not arguments.plot:
        raise CommandError("--from needs --plot or --compare")
    require_rich()
    made = document.read(arguments.source)
    if old is not None:
        compare.check(old, made, arguments.force)
    if arguments.plot:
        _plot(made, arguments.plot)
    return int(old is not None and compare.show(report.console(), old, made, threshold))


def _plot(made: document.Document, folder: str) -> None:
    for name, picture in plot.draw(made).items():
        write_atomically(Path(folder) / name, picture)
        print(f"wrote {Path(folder) / name}")


def _seconds(arguments: argparse.Namespace, cases: int) -> float:
    """Time for each case: what was asked for, or a share of the short run's."""
    if arguments.seconds is not None:
        return _positive("--seconds", arguments.seconds)
    if arguments.ops or arguments.full:
        return SECONDS
    return round(min(SECONDS, SHORT_RUN_SECONDS / cases), 2)


def _measure(cases: Sequence[Case], settings: Settings) -> tuple[Ceilings | None, list[Result]]:
    """The ceilings and every case in turn, with a progress bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Redrawn only between cases: a thread that wakes up within one would disturb what is measured.
    with (
        route.Overrides() as switch,
        Progress(
            *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
        ) as bar,
    ):
        task = bar.add_task("ceilings", total=len(cases))
        bar.refresh()
        # What is measured in a process of its own costs nanoseconds: there is no ceiling to compare it with.
        any_here = any(case.measure is None for case in cases)
        ceilings = ceiling.measure(settings.device) if any_here else None
        gc.freeze()  # each capture of a graph collects, which would take longer than a case of the short list
        results = []
        for case in cases:
            bar.update(task, description=f"{case.op}: {case.label}", refresh=True)
            results.append(harness.measure(case, settings, switch))
            bar.advance(task)
    return ceilings, results


def _asked(arguments: argparse.Namespace, settings: Settings) -> dict[str, object]:
    """The settings of the run as the JSON document gives them."""
    import torch

    return {
        "ops": registry.chosen(arguments.ops, arguments.full),
        "device": settings.device,
        "dtype": list(arguments.dtype),
        "filter": arguments.filter,
        "full": arguments.full,
        "seconds": settings.seconds,
        "never_slower": settings.never_slower,
        "one_set": settings.one_set,
        "threads": torch.get_num_threads(),
        "cache_bytes": machine.cache_bytes(settings.device),
    }


def choose_device(asked: str | None) -> str:
    """The device to measure on.

    Raises:
        CommandError: it is unknown or not there.
    """
    if asked is not None and asked not in DEVICES:
        raise CommandError(f"unknown device {asked!r}; choose from: {', '.join(DEVICES)}")
    if asked == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if asked == "cuda":
        raise CommandError("there is no CUDA device here; choose from: cpu")
    return "cpu"


def _positive(option: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise CommandError(f"{option} must be a positive number, not {value:g}")
    return value


def prepare_file(path: Path) -> None:
    """Find out before hours of measuring that ``path`` cannot be written."""
    if path.is_dir():
        raise CommandError(f"cannot write {str(path)!r}: it is a folder")
    prepare_folder(path.parent)


def require_rich() -> None:
    """One line instead of a traceback where the tables cannot be drawn."""
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise CommandError("the tables need the package rich: pip install rich") from error
