"""Cases of recurrent layers in training: forward and backward, gradients of the input and of all parameters.

Bytes: the parameters read by the forward and by the backward, their gradients written; input, output and the
gradients of both once. FLOPs: six for each weight, step and row. What upstream's calls take from Python is
mostly the CPU's time.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from aten_ext.bench.case import ITEMSIZE, Call, Case
from aten_ext.bench.gru import DTYPES, Layers

if TYPE_CHECKING:
    import torch


def cases(device: str, full: bool) -> list[Case]:
    """Single steps as reinforcement learning calls them, encoders, long sequences. None on the CPU."""
    del full
    if device == "cpu":
        return []
    return [_case(replace(layers, dtype=dtype)) for layers in _LAYERS for dtype in DTYPES]


_LAYERS = (
    Layers(1, 8, 128, 256),
    Layers(50, 1, 256, 512),
    Layers(50, 32, 256, 512, directions=2),
    Layers(100, 16, 128, 256, layers=2, directions=2),
    Layers(256, 16, 1024, 1024),
    Layers(1000, 8, 128, 256),
    Layers(64, 256, 128, 128),
    Layers(400, 32, 80, 800, directions=2),
    Layers(1, 8, 128, 256, cell="LSTM"),
    Layers(50, 32, 256, 512, directions=2, cell="LSTM"),
    Layers(256, 16, 1024, 1024, cell="LSTM"),
    Layers(1000, 8, 128, 256, cell="LSTM"),
    Layers(1000, 8, 128, 256, cell="RNN"),
)


def _case(layers: Layers) -> Case:
    forward = layers.case()
    sequences = layers.steps * layers.batch * (layers.inputs + layers.hidden * layers.directions)
    bytes_ = (3 * layers.weights + 2 * sequences) * ITEMSIZE[layers.dtype]
    return replace(
        forward,
        op="rnn_training",
        override="_cudnn_rnn_backward",
        make=partial(_make, layers),
        bytes=bytes_,
        footprint=bytes_,
        flops=3 * forward.flops,
        series="",
    )


def _make(case: Layers, device: str) -> Call:
    import torch

    dtype: torch.dtype = getattr(torch, case.dtype)
    kind = getattr(torch.nn, case.cell)
    module = kind(case.inputs, case.hidden, case.layers, bidirectional=case.directions == 2).to(device, dtype)
    x = torch.randn(case.steps, case.batch, case.inputs, device=device).to(dtype).requires_grad_()
    grad = torch.randn(case.steps, case.batch, case.directions * case.hidden, device=device).to(dtype)
    wanted = [x, *module.parameters()]

    def step() -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            return torch.autograd.grad(module(x)[0], wanted, grad)

    return step
