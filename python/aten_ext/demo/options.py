"""The options of ``python -m aten_ext demo``, and what is wrong with them if anything is."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aten_ext._cli import CommandError

if TYPE_CHECKING:
    import torch


class Sizes(NamedTuple):
    """What depends on the kind of device."""

    words: int
    batch_size: int
    hidden: int


SIZES = {"cpu": Sizes(24_000, 16, 96), "cuda": Sizes(40_000, 64, 256)}
"""About three minutes on two slow cores. In larger layers matrix products take most of the time there."""


@dataclass(frozen=True)
class Options:
    """What to train. ``device`` is canonical: ``cpu``, or ``cuda:N`` with a device that is there."""

    device: str = "cpu"
    words: int = SIZES["cpu"].words
    epochs: int = 3
    batch_size: int = SIZES["cpu"].batch_size
    hidden: int = SIZES["cpu"].hidden
    seed: int = 0

    @property
    def torch_device(self) -> torch.device:
        """``device`` as torch's type."""
        import torch

        return torch.device(self.device)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options. They stay text here: :func:`read` can say in one line what is wrong with them."""
    default = Options()
    for name, what in (
        ("words", "words to draw from the dictionary; one in twenty, at most 2000, is held out"),
        ("batch-size", "words in a batch"),
        ("hidden", "size of the GRU states"),
    ):
        values = ((getattr(sizes, name.replace("-", "_")), kind) for kind, sizes in SIZES.items())
        text = ", ".join(f"{value} on {kind}" for value, kind in values)
        parser.add_argument(f"--{name}", metavar="N", help=f"{what} (default: {text})")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where there is a GPU)")
    for name, what in (
        ("epochs", "how often to go through the training words"),
        ("seed", "decides words, initial weights and order"),
    ):
        value = getattr(default, name)
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
    sizes = SIZES[device.partition(":")[0]]
    words, batch_size, hidden = (
        str(value) if given is None else given
        for given, value in zip((arguments.words, arguments.batch_size, arguments.hidden), sizes, strict=True)
    )
    return Options(
        words=_integer("--words", words, at_least=2),
        epochs=_integer("--epochs", arguments.epochs),
        batch_size=_integer("--batch-size", batch_size),
        hidden=_integer("--hidden", hidden, at_most=16_384),
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
