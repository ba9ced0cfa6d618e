"""Random stacks of large recurrent layers on a GPU, in inference and training.

cuDNN runs the layers of a stack beside one another, where ours run one after the other. Sweeps over all
layers, or packed sequences, seldom draw several layers, many units and many rows together.
"""

from __future__ import annotations

from random import Random

from aten_ext.bench.case import Case
from aten_ext.bench.layer_stack import SPREADS, LayerStack
from aten_ext.bench.ops.gru import DTYPES
from aten_ext.sweep import draw
from aten_ext.sweep.rnn_training import CELLS

MAX_WORK = 1 << 29
"""Units squared times steps, rows and layers, so that a case takes milliseconds."""


def case(random: Random, device: str) -> Case | None:
    """A call of two to five layers, a third of them in training, a third packed.

    None: there is nothing to measure on a CPU.
    """
    if device != "cuda":
        return None
    hidden, batch = draw.awkward(random, 200, 1600), draw.log_uniform(random, 2, 512)
    layers, directions = random.choice((2, 2, 3, 4, 5)), random.choice((1, 1, 1, 2))
    most = max(2, MAX_WORK // (hidden * max(128, hidden) * layers * max(1, batch // 16)))
    steps = min(draw.log_uniform(random, 2, 300), most)
    return LayerStack(
        random.choice(CELLS),
        steps,
        batch,
        hidden if random.random() < 0.3 else draw.awkward(random, 4, 1300),
        hidden,
        layers,
        directions,
        random.choice(DTYPES),
        training=random.random() < 1 / 3,
        shortest=random.randint(1, steps) if random.random() < 1 / 3 else 0,
        spread=random.choice(SPREADS),
    ).case("rnn_stacks")
