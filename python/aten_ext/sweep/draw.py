"""Random sizes, as the sweeps of all families draw them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def log_uniform(random: Random, low: int, high: int) -> int:
    """From ``low`` to ``high``, every octave as likely as another."""
    return min(high, int(math.exp(random.uniform(math.log(low), math.log(high + 1)))))


def awkward(random: Random, low: int, high: int) -> int:
    """Log-uniform; often rounded to what programs have, multiples of 8 and powers of two."""
    size = log_uniform(random, low, high)
    kind = random.random()
    if kind < 0.4:
        return size
    if kind < 0.75:
        return min(high, max(low, (size + 7) // 8 * 8))
    return min(high, max(low, 1 << round(math.log2(size))))


def entry(random: Random, table: Mapping[str, Sequence[T]]) -> tuple[str, T]:
    """A model's name and one of its layers; every model as likely as another."""
    name = random.choice(list(table))
    return name, random.choice(table[name])
