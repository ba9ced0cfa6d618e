"""Random recurrent layers and cells on the CPU, in inference and in training."""

from __future__ import annotations

from random import Random

from aten_ext.bench.case import Case
from aten_ext.bench.layer_stack import SPREADS, LayerStack
from aten_ext.bench.ops.rnn_cpu import DTYPES, cell
from aten_ext.sweep import draw

MAX_PRODUCTS = 1 << 28
"""Multiply-adds of a forward, so that a case takes milliseconds."""
CELLS = ("GRU", "LSTM", "RNN_TANH", "RNN_RELU")


def case(random: Random, device: str) -> Case | None:
    """A call of a layer stack, or of a cell. None: these overrides are the CPU's."""
    if device != "cpu":
        return None
    inputs, hidden = draw.awkward(random, 1, 1024), draw.awkward(random, 1, 1024)
    batch = draw.log_uniform(random, 1, 256)
    dtype = random.choice(("float32", *DTYPES))
    if random.random() < 0.15:
        return cell(batch, inputs, hidden, dtype, random.choice(("GRU", "LSTM", "RNN")))
    kind = random.choice(CELLS)
    gates = {"GRU": 3, "LSTM": 4}.get(kind, 1)
    layers, directions = random.choice((1, 1, 1, 2, 3)), random.choice((1, 1, 2))
    steps = draw.log_uniform(random, 1, 400)
    training = random.random() < 0.6
    while (
        gates * hidden * (hidden + inputs) * batch * layers * directions * (3 if training else 1)
        > MAX_PRODUCTS
    ):
        inputs, hidden, batch = max(1, inputs // 2), max(1, hidden * 2 // 3), max(1, batch * 2 // 3)
    step = gates * hidden * (hidden + inputs) * batch * layers * directions * (3 if training else 1)
    steps = max(1, min(steps, MAX_PRODUCTS // step, 400 // layers // directions))
    return LayerStack(
        kind,
        steps,
        batch,
        inputs,
        hidden,
        layers,
        directions,
        dtype,
        training=training,
        shortest=random.randint(1, steps) if random.random() < 0.35 else 0,
        spread=random.choice(SPREADS),
        batch_first=random.random() < 0.5,
        bias=random.random() < 0.85,
        dropout=random.choice((0.0, 0.2)) if layers > 1 else 0.0,
    ).case("rnn_cpu")
