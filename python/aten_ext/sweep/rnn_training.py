"""Random recurrent layers on a GPU in training: forward and backward, padded and packed."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from aten_ext.bench.case import Case
from aten_ext.bench.layer_stack import SPREADS, LayerStack
from aten_ext.bench.ops.gru import DTYPES
from aten_ext.sweep import draw, known_layers

MAX_STEP_ROWS = 1 << 16
"""Steps times rows, so that a case takes milliseconds and its gradients fit beside others'."""
CELLS = ("GRU", "LSTM", "RNN_TANH", "RNN_RELU")


def case(random: Random, device: str) -> Case | None:
    """A forward of a layer stack and its backward. None: there is nothing to measure on a CPU."""
    return stack(random, packed=0.25, training=True) if device == "cuda" else None


def stack(random: Random, *, packed: float, training: bool) -> Case:
    """A call of a layer stack, packed with this probability.

    A third has at most four steps, as reinforcement learning and decoders call them.
    """
    kind = random.choice(CELLS)
    if random.random() < 0.4:
        known = known_layers.LSTM if kind == "LSTM" else known_layers.GRU
        model, (inputs, hidden, layers, directions) = draw.entry(random, known)
    else:
        model, inputs, hidden = "", draw.awkward(random, 1, 1024), draw.awkward(random, 1, 1024)
        layers, directions = random.choice((1, 1, 1, 2, 3)), random.choice((1, 1, 2))
    batch = draw.log_uniform(random, 1, 512)
    steps = random.randint(1, 4) if random.random() < 1 / 3 else draw.log_uniform(random, 1, 1000)
    steps = min(steps, max(1, MAX_STEP_ROWS // (batch * max(1, hidden // 128))))
    drawn = LayerStack(
        kind,
        steps,
        batch,
        inputs,
        hidden,
        layers,
        directions,
        random.choice(DTYPES),
        training=training,
        shortest=random.randint(1, steps) if random.random() < packed else 0,
        spread=random.choice(SPREADS),
        batch_first=random.random() < 0.5,
        bias=random.random() < 0.9,
        dropout=random.choice((0.0, 0.0, 0.2)) if layers > 1 else 0.0,
    ).case("rnn_training")
    name = " ".join(filter(None, (model, drawn.name)))
    return replace(drawn, name=name)
