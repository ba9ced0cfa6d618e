"""Random short sequences on a GPU in evaluation, and layers too large for a cluster of blocks.

Launches, projections and the loading of weights decide there, and sizes that sweeps over all layers seldom
draw together: a few steps of many rows, rows that are no whole vectors, one hidden size beyond a limit.
"""

from __future__ import annotations

from random import Random

from aten_ext.bench.case import Case
from aten_ext.bench.layer_stack import LayerStack
from aten_ext.bench.ops.gru import DTYPES
from aten_ext.sweep import draw
from aten_ext.sweep.rnn_training import CELLS


def case(random: Random, device: str) -> Case | None:
    """A call of a layer stack. None: there is nothing to measure on a CPU.

    Half of them have up to four steps, a quarter up to 16, and a quarter more than 512 units in fp32.
    """
    if device != "cuda":
        return None
    kind = random.random()
    if kind < 0.75:
        steps = random.randint(1, 4) if kind < 0.5 else random.randint(5, 16)
        hidden, batch, dtype = draw.awkward(random, 64, 1300), draw.log_uniform(random, 1, 250), None
    else:
        steps = draw.log_uniform(random, 5, 50)
        hidden, batch, dtype = draw.awkward(random, 513, 2048), draw.log_uniform(random, 1, 64), "float32"
    inputs = hidden if random.random() < 0.3 else draw.awkward(random, 8, 1300)
    layers, directions = random.choice((1, 1, 1, 2, 3)), random.choice((1, 1, 2))
    return LayerStack(
        random.choice(CELLS),
        steps,
        batch,
        inputs,
        hidden,
        layers,
        directions,
        dtype or random.choice(DTYPES),
    ).case("rnn_short")
