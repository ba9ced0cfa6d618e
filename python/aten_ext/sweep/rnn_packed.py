"""Random packed sequences on a GPU: inference, and training twice as often."""

from __future__ import annotations

from random import Random

from aten_ext.bench.case import Case
from aten_ext.sweep import rnn_training


def case(random: Random, device: str) -> Case | None:
    """A call of a layer stack. None: there is nothing to measure on a CPU."""
    if device != "cuda":
        return None
    return rnn_training.stack(random, packed=1.0, training=random.random() < 2 / 3)
