"""Random recurrent layers in evaluation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from aten_ext.bench.case import Case
from aten_ext.bench.layer_stack import SPREADS, LayerStack
from aten_ext.bench.ops.gru import DTYPES, Layers
from aten_ext.sweep import draw, known_layers

MAX_STEP_ROWS = 1 << 18
"""Steps times rows, so that a case takes milliseconds."""


def case(random: Random, device: str) -> Case | None:
    """A call of ``nn.GRU``, ``nn.LSTM`` or ``nn.RNN``, a fifth of them packed.

    None: there is nothing to measure on a CPU.
    """
    if device != "cuda":
        return None
    cell = random.choice(("GRU", "LSTM", "LSTM", "RNN"))
    if random.random() < 0.5:
        known = known_layers.LSTM if cell == "LSTM" else known_layers.GRU
        model, (inputs, hidden, layers, directions) = draw.entry(random, known)
    else:
        model, inputs, hidden = "", draw.awkward(random, 1, 2048), draw.awkward(random, 8, 2048)
        layers, directions = random.choice((1, 1, 1, 2)), random.choice((1, 1, 2))
    batch = draw.log_uniform(random, 1, 512)
    steps = min(draw.log_uniform(random, 1, 1000), max(1, MAX_STEP_ROWS // (batch * max(1, hidden // 128))))
    sizes = (steps, batch, inputs, hidden, layers, directions, random.choice(DTYPES))
    batch_first, bias = random.random() < 0.5, random.random() < 0.9
    if random.random() < 0.2:
        kind = random.choice(("RNN_TANH", "RNN_RELU")) if cell == "RNN" else cell
        shortest = random.randint(1, steps)
        spread = random.choice(SPREADS)
        packed = LayerStack(
            kind, *sizes, shortest=shortest, spread=spread, batch_first=batch_first, bias=bias
        )
        drawn = packed.case("gru")
    else:
        drawn = Layers(*sizes, batch_first=batch_first, bias=bias, cell=cell).case()
    return replace(drawn, name=" ".join(filter(None, (model, drawn.name))))
