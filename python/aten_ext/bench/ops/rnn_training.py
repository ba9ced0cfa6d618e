"""Cases of recurrent layers in training: forward and backward, gradients of the input and of all parameters.

Sequences are padded here; ``rnn_packed`` has the packed ones. What upstream's calls take from Python is
mostly the CPU's time.
"""

from __future__ import annotations

from dataclasses import replace

from aten_ext.bench.case import Case
from aten_ext.bench.layer_stack import LayerStack
from aten_ext.bench.ops.gru import DTYPES


def cases(device: str, full: bool) -> list[Case]:
    """Single steps as reinforcement learning calls them, encoders, long sequences. None on the CPU."""
    del full
    if device == "cpu":
        return []
    stacks = [replace(stack, dtype=dtype, training=True) for stack in _STACKS for dtype in DTYPES]
    return [stack.case("rnn_training") for stack in stacks]


_STACKS = (
    LayerStack("GRU", 1, 8, 128, 256),
    LayerStack("GRU", 50, 1, 256, 512),
    LayerStack("GRU", 50, 32, 256, 512, directions=2),
    LayerStack("GRU", 100, 16, 128, 256, layers=2, directions=2),
    LayerStack("GRU", 256, 16, 1024, 1024),
    LayerStack("GRU", 1000, 8, 128, 256),
    LayerStack("GRU", 64, 256, 128, 128),
    LayerStack("GRU", 400, 32, 80, 800, directions=2),
    LayerStack("LSTM", 1, 8, 128, 256),
    LayerStack("LSTM", 50, 32, 256, 512, directions=2),
    LayerStack("LSTM", 256, 16, 1024, 1024),
    LayerStack("LSTM", 1000, 8, 128, 256),
    LayerStack("RNN_TANH", 1000, 8, 128, 256),
)
