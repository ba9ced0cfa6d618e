"""Cases of recurrent layers and cells on the CPU, in inference and in training.

Bytes and FLOPs are counted as for the GPU; on a CPU neither is near a limit of
the machine, and the ratio to upstream is what to look at.
"""

from __future__ import annotations

from dataclasses import replace

from aten_ext.bench.case import Case
from aten_ext.bench.layer_stack import LayerStack
from aten_ext.bench.ops.gru import GATES, Cell

DTYPES = ("float32", "bfloat16")


def cell(batch: int, inputs: int, hidden: int, dtype: str, kind: str) -> Case:
    """A call of ``nn.GRUCell`` and its kin in inference."""
    made = replace(Cell(batch, inputs, hidden, dtype, kind).case(), op="rnn_cpu")
    return replace(made, name=f"{made.name} inference")


_SIZES = (
    (50, 32, 64, 64),
    (50, 32, 256, 256),
    (20, 1, 256, 512),
    (100, 64, 32, 128),
    (25, 128, 256, 512),
)
"""Steps, batch, inputs, hidden: a small and a large encoder, one row, a long sequence, wide steps."""


def cases(device: str, full: bool) -> list[Case]:
    """Layers of five sizes and a packed sequence; cells of one row and of a batch. None on a GPU."""
    del full
    if device != "cpu":
        return []
    made = []
    for dtype in DTYPES:
        for kind in ("GRU", "RNN_TANH", "LSTM"):
            for training in (False, True):
                made += [LayerStack(kind, *sizes, dtype=dtype, training=training) for sizes in _SIZES]
                made.append(LayerStack(kind, 50, 32, 64, 64, dtype=dtype, training=training, shortest=10))
    cells = [
        cell(batch, size, size, dtype, kind)
        for dtype in DTYPES
        for kind in GATES
        for batch, size in ((1, 64), (1, 512), (32, 256))
    ]
    return [layers.case("rnn_cpu") for layers in made] + cells
