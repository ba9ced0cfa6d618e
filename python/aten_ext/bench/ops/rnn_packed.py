"""Cases of packed sequences whose rows have from all to a quarter of the steps, and the same padded.

Padded, every row has all steps: what a program would pay that does not pack. Bytes and FLOPs of a packed
sequence are those of the steps that exist.
"""

from __future__ import annotations

from dataclasses import replace

from aten_ext.bench.case import Case
from aten_ext.bench.layer_stack import LayerStack


def cases(device: str, full: bool) -> list[Case]:
    """Encoders and acoustic models, in inference and in training. None on the CPU: ``rnn_cpu`` has those."""
    del full
    if device == "cpu":
        return []
    return [
        replace(stack, training=training, shortest=shortest).case("rnn_packed")
        for stack in _STACKS
        for training in (False, True)
        for shortest in (stack.steps // 4, 0)
    ]


_STACKS = (
    LayerStack("LSTM", 50, 32, 256, 512, directions=2),
    LayerStack("LSTM", 200, 16, 128, 256, directions=2, dtype="bfloat16"),
    LayerStack("LSTM", 200, 16, 128, 256, directions=2),
    LayerStack("LSTM", 100, 64, 512, 512, layers=2, dtype="bfloat16"),
    LayerStack("GRU", 200, 16, 128, 256, directions=2),
    LayerStack("GRU", 400, 16, 161, 800, directions=2, dtype="bfloat16"),
    LayerStack("RNN_TANH", 200, 16, 128, 256, directions=2, dtype="float16"),
)
