"""``python -m aten_ext tune``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from aten_ext._cli import CommandError, prepare_folder, write_atomically

if TYPE_CHECKING:
    import torch

    from aten_ext._measured_tables import Gpu

FAMILIES = ("linear",)
EXAMPLES = """examples:
  python -m aten_ext tune                   write the tables where every process of this user finds them
  python -m aten_ext tune --json h200.json  write them to a file
  python -m aten_ext tune --thorough        measure nearly six times as many layers
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``tune``."""
    parser = subparsers.add_parser(
        "tune",
        help="measure this GPU for two to three minutes; the rules decide by what was measured",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"{', '.join(FAMILIES)} (default: all)")
    parser.add_argument(
        "--json", metavar="FILE", help="write the tables to FILE, not where every process looks for them"
    )
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="measure every cell, as for the shipped tables, which takes about twenty minutes",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and write."""
    for family in arguments.families:
        if family not in FAMILIES:
            raise CommandError(f"unknown family {family!r}; choose from: {', '.join(FAMILIES)}")
    import torch

    import aten_ext
    from aten_ext import _measured_tables as tables
    from aten_ext.bench.command import require_rich

    if not torch.cuda.is_available():
        raise CommandError("there is no CUDA device here")
    if not aten_ext.is_active():
        raise CommandError("nothing is registered with ATEN_EXT=0, so there is nothing to measure")
    require_rich()
    device = torch.device("cuda", torch.cuda.current_device())
    gpu = tables.Gpu(*torch.ops.aten_ext.table_gpu(device))
    path = Path(arguments.json) if arguments.json else tables.cache_folder() / gpu.file_name
    prepare_folder(path.parent)
    percent = _measure(gpu, device, arguments.thorough)
    table = tables.Table(gpu, str(torch.__version__), percent)
    write_atomically(path, tables.encode(table))
    tables.register(table, of_user=True)
    print(f"wrote {os.fspath(path)}")
    for family, cells in percent.items():
        faster = float((cells > 100).float().mean())
        print(f"{family}: ours is faster in {faster:.0%} of {cells.numel():,} cells")
    return 0


def _measure(gpu: Gpu, device: torch.device, thorough: bool) -> dict[str, torch.Tensor]:
    """The tables of the linear layers, with every shape let through while they are measured."""
    import torch
    from rich.console import Console
    from rich.progress import Progress

    import aten_ext
    from aten_ext import _measured_tables as tables
    from aten_ext._registry import restored
    from aten_ext.tune import linear

    shape = list(torch.ops.aten_ext.table_shape("linear"))
    all_faster = {family: torch.full(shape, 255, dtype=torch.uint8) for family in linear.TABLES}
    tables.register(tables.Table(gpu, "", all_faster), of_user=True)
    console = Console(stderr=True)
    try:
        with (
            restored(),
            Progress(console=console, transient=True, disable=not console.is_terminal) as bar,
        ):
            aten_ext.enable("mm", "addmm")
            grid = linear.THOROUGH if thorough else linear.QUICK
            task = bar.add_task("linear", total=sum(1 for _ in linear.cells(grid)))
            return linear.measure(device, grid, lambda: bar.advance(task))
    finally:
        for family in linear.TABLES:
            torch.ops.aten_ext.remove_table(family, gpu.name, gpu.multiprocessors)
