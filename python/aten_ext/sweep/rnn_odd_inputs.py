"""Random recurrent layers on a GPU whose inputs are no whole vectors: coordinates, prices, features by hand.

cuDNN chooses between fp32, TF32 and its kernels of small layers by such numbers of columns, and ours reads
them word by word.
"""

from __future__ import annotations

from random import Random

from aten_ext.bench.case import Case
from aten_ext.bench.layer_stack import LayerStack
from aten_ext.bench.ops.gru import DTYPES
from aten_ext.sweep import draw
from aten_ext.sweep.rnn_training import CELLS, MAX_STEP_ROWS

VECTOR = 4
"""Columns that a vector of fp32 has."""


def case(random: Random, device: str) -> Case | None:
    """A call of a layer stack, half of them in fp32, a third in training.

    None: there is nothing to measure on a CPU.
    """
    if device != "cuda":
        return None
    inputs = draw.log_uniform(random, 1, 400)
    inputs += inputs % VECTOR == 0
    hidden, batch = draw.awkward(random, 8, 1024), draw.log_uniform(random, 1, 512)
    most = max(1, MAX_STEP_ROWS // (batch * max(1, hidden // 128)))
    return LayerStack(
        random.choice(CELLS),
        min(draw.log_uniform(random, 1, 500), most),
        batch,
        inputs,
        hidden,
        random.choice((1, 1, 2, 3)),
        random.choice((1, 1, 2)),
        "float32" if random.random() < 0.5 else random.choice(DTYPES),
        training=random.random() < 1 / 3,
        batch_first=random.random() < 0.5,
    ).case("rnn_odd_inputs")
