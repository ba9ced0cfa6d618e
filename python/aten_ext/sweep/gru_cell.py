"""Random calls of cells without gradients, and of the gates of a step with their backwards."""

from __future__ import annotations

from random import Random

from aten_ext.bench.case import Case
from aten_ext.bench.ops.gru import DTYPES, Cell, Gates
from aten_ext.bench.ops.rnn_cell_training import Gates as TrainingGates
from aten_ext.sweep import draw, known_layers


def case(random: Random, device: str) -> Case | None:
    """A cell, or the gates after its products. None: there is nothing to measure on a CPU."""
    if device != "cuda":
        return None
    if random.random() < 0.5:
        _, (inputs, hidden, *_) = draw.entry(random, known_layers.GRU)
    else:
        inputs, hidden = draw.awkward(random, 1, 2048), draw.awkward(random, 8, 2048)
    rows, dtype = draw.log_uniform(random, 1, 4096), random.choice(DTYPES)
    kind = random.random()
    if kind < 0.2:
        return Gates(rows, hidden, dtype).case()
    if kind < 0.5:
        cell, backward = random.choice((("GRU", True), ("LSTM", False), ("LSTM", True)))
        return TrainingGates(cell, rows, hidden, dtype, backward, random.random() < 0.8).case()
    return Cell(rows, inputs, hidden, dtype, random.choice(("GRU", "LSTM", "RNN"))).case()
