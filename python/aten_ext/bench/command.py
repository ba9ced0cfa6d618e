"""``python -m aten_ext bench``: upstream and fused kernels timed against each other."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from aten_ext._cli import CommandError, prepare_folder, write_atomically
from aten_ext.bench import document, harness, machine, registry, report, route
from aten_ext.bench.case import Case, Settings
from aten_ext.bench.result import Result

DEVICES = ("cpu", "cuda")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``bench``."""
    parser = subparsers.add_parser(
        "bench",
        help="time the fused kernels against upstream, interleaved in one process",
        epilog="example: python -m aten_ext bench fused_adam --filter gpt2 --never-slower 0.98",
    )
    parser.add_argument("ops", nargs="*", metavar="OP", help=f"{', '.join(registry.OPS)} (default: all)")
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is a GPU)")
    parser.add_argument("--dtype", action="append", default=[], help="only this dtype; may be repeated")
    parser.add_argument(
        "--filter", default="", metavar="SUBSTRING", help="only cases whose name contains this"
    )
    parser.add_argument("--full", "--all", action="store_true", help="the whole sweep, not the short list")
    parser.add_argument("--list", action="store_true", help="list the cases instead of measuring them")
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="time to spend on each case, after warm-up (default: 1.5)"
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write; 1 if ``--never-slower`` was asked for and a case is slower."""
    device = _device(arguments.device)
    cases = registry.select(
        arguments.ops, device, full=arguments.full, dtypes=arguments.dtype, text=arguments.filter
    )
    if arguments.list:
        for case in cases:
            print(f"{case.op:12} {case.label:44} {case.footprint / 1e6:10.3f} MB")
        return 0
    settings = Settings(
        device=device,
        seconds=_positive("--seconds", arguments.seconds),
        never_slower=(
            None if arguments.never_slower is None else _positive("--never-slower", arguments.never_slower)
        ),
        one_set=arguments.one_set,
    )
    _require_rich()
    if arguments.json:
        _prepare_file(Path(arguments.json))

    origin = machine.describe()
    console = report.console()
    console.print(report.headline(origin), markup=False)
    if warning := report.busy(origin):
        console.print(warning, markup=False)
    results = _measure(cases, settings)
    report.show(console, results, settings.never_slower)
    if arguments.json:
        asked = _asked(arguments, settings)
        write_atomically(arguments.json, document.encode(origin, asked, results, settings.never_slower))
    limit = settings.never_slower
    return int(limit is not None and any(result.failures(limit) for result in results))


def _measure(cases: Sequence[Case], settings: Settings) -> list[Result]:
    """Every case in turn, with a progress bar on stderr where that is a terminal."""
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
        task = bar.add_task("", total=len(cases))
        results = []
        for case in cases:
            bar.update(task, description=f"{case.op}: {case.label}", refresh=True)
            results.append(harness.measure(case, settings, switch))
            bar.advance(task)
    return results


def _asked(arguments: argparse.Namespace, settings: Settings) -> dict[str, object]:
    """The settings of the run as the JSON document gives them."""
    import torch

    return {
        "ops": list(arguments.ops) or list(registry.OPS),
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


def _device(asked: str | None) -> str:
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


def _prepare_file(path: Path) -> None:
    """Find out before hours of measuring that ``path`` cannot be written."""
    if path.is_dir():
        raise CommandError(f"cannot write {str(path)!r}: it is a folder")
    prepare_folder(path.parent)


def _require_rich() -> None:
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise CommandError("the tables need the package rich: pip install rich") from error
