"""The options of ``python -m aten_ext demo``, and what is wrong with them if anything is."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aten_ext._cli import CommandError

if TYPE_CHECKING:
    import torch


WORDS = {"cpu": 16_000, "cuda": 40_000}
"""By kind of device: about three minutes on two slow cores."""


@dataclass(frozen=True)
class Options:
    """What to train. ``device`` is canonical: ``cpu``, or ``cuda:N`` with a device that is there."""

    device: str = "cpu"
    words: int = WORDS["cpu"]
    epochs: int = 3
    batch_size: int = 64
    hidden: int = 256
    seed: int = 0

    @property
    def torch_device(self) -> torch.device:
        """``device`` as torch's type."""
        import torch

        return torch.device(self.device)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options. They stay text here: :func:`read` can say in one line what is wrong with them."""
    default = Options()
    words = ", ".join(f"{count} on {kind}" for kind, count in WORDS.items())
    parser.add_argument(
        "--words",
        metavar="N",
        help="words to draw from the dictionary; one in twenty, at most 2000, is held out "
        f"(default: {words})",
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is a GPU)")
    for name, what in (
        ("epochs", "how often to go through the training words"),
        ("batch-size", "words in a batch"),
        ("hidden", "size of the GRU states"),
        ("seed", "decides words, initial weights and order"),
    ):
        value = getattr(default, name.replace("-", "_"))
        parser.add_argument(f"--{name}", default=str(value), metavar="N", help=f"{what} (default: {value})")
    parser.add_argument(
        "--output", default="demo_output", metavar="FOLDER", help="for the results (default: ./demo_output)"
    )


def read(arguments: argparse.Namespace) -> Options:
    """The options as numbers and an existing device. ``words`` is checked later, when the dictionary is read.

    Raises:
        CommandError: an option is no integer or out of range, or the device is not there.
    """
    device = _device(arguments.device)
    words = WORDS[device.partition(":")[0]] if arguments.words is None else arguments.words
    return Options(
        words=_integer("--words", str(words), at_least=2),
        epochs=_integer("--epochs", arguments.epochs),
        batch_size=_integer("--batch-size", arguments.batch_size),
        hidden=_integer("--hidden", arguments.hidden, at_most=16_384),
        seed=_integer("--seed", arguments.seed, at_least=0),
        device=device,
    )


def _integer(option: str, text: str, at_least: int = 1, at_most: int = 2**63 - 1) -> int:
    try:
        value = int(text)
    except ValueError:
        raise CommandError(f"{option} must be an integer, not {text!r}") from None
    if not at_least <= value <= at_most:
        raise CommandError(f"{option} must be from {at_least} to {at_most}, not {value}")
    return value


def _device(text: str | None) -> str:
    import torch

    if text is None:
        text = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(text)
    except RuntimeError:
        raise CommandError(f"--device must be cpu, cuda or cuda:N, not {text!r}") from None
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        raise CommandError(f"--device must be cpu, cuda or cuda:N, not {text!r}")
    if not torch.cuda.is_available():
        raise CommandError(f"--device {text}: torch {torch.__version__} finds no usable GPU here")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise CommandError(f"--device {text}: there are {torch.cuda.device_count()} GPUs, counted from 0")
    return f"cuda:{index}"
