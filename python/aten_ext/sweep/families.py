"""The families of a sweep, and where their cases are drawn."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol, cast

from aten_ext._cli import CommandError
from aten_ext.bench.case import Case

FAMILIES = {
    "cat": 250,
    "cat_programs": 150,
    "linear": 400,
    "linear_programs": 200,
    "linear_between": 100,
    "gru": 90,
    "gru_cell": 50,
    "rnn_training": 150,
    "rnn_packed": 60,
    "rnn_short": 100,
    "rnn_stacks": 60,
    "rnn_odd_inputs": 60,
    "rnn_cpu": 300,
    "fused_adam": 30,
}
"""Family -> its share of the cases. The names are modules of this package."""


class Generator(Protocol):
    """What a family's module provides."""

    def case(self, random: Random, device: str) -> Case | None:
        """The next call, or None where the family has nothing to measure on ``device``."""


def chosen(names: Sequence[str]) -> list[str]:
    """The families that were asked for; none: all.

    Raises:
        CommandError: there is no such family.
    """
    for name in names:
        if name not in FAMILIES:
            raise CommandError(f"unknown family {name!r}; choose from: {', '.join(FAMILIES)}")
    return list(dict.fromkeys(names or FAMILIES))


def draw(names: Sequence[str], device: str, seed: int, cases: int) -> Iterator[Case]:
    """About ``cases`` calls, dealt out to the families by their shares; the same for the same seed.

    Raises:
        CommandError: none of the families has anything to measure on ``device``.
    """
    modules = {name: cast(Generator, importlib.import_module(f"aten_ext.sweep.{name}")) for name in names}
    modules = {name: module for name, module in modules.items() if module.case(Random(0), device) is not None}
    if not modules:
        raise CommandError(f"{', '.join(names)}: nothing to measure on {device}")
    shares = sum(FAMILIES[name] for name in modules)
    for name, module in modules.items():
        random = Random(f"{name} {seed}")
        for _ in range(max(1, round(cases * FAMILIES[name] / shares))):
            case = module.case(random, device)
            assert case is not None
            yield replace(case, op=name)
