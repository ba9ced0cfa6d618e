"""Cases of recurrent layers in inference: whole layers through ``nn.GRU`` and its kin, one step, and cells.

Bytes: the weights once, input, states and output once; what passes between the kernels of one call is not
counted. FLOPs: 2 for each weight, step and row. A long sequence is bound by neither, but by the time that a
step takes before the next can begin: microseconds a step are what to look at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from aten_ext.bench.case import ITEMSIZE, Call, Case

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float16", "bfloat16")
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}


@dataclass(frozen=True)
class Layers:
    """A call of ``nn.GRU``, ``nn.LSTM`` or ``nn.RNN`` in evaluation, without gradients."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int = 1
    directions: int = 1
    dtype: str = "float32"
    variant: str = ""
    """What is unusual about it, for its name."""
    batch_first: bool = False
    bias: bool = True
    series: str = ""
    """Of which line in the plot of the time of a step."""
    cell: str = "GRU"

    @property
    def weights(self) -> int:
        """Elements of all parameters."""
        widths = [self.inputs] + [self.hidden * self.directions] * (self.layers - 1)
        rows = GATES[self.cell] * self.hidden
        return sum(rows * (width + self.hidden + 2) for width in widths) * self.directions

    def case(self) -> Case:
        """The call as a case."""
        size = ITEMSIZE[self.dtype]
        rows = self.steps * self.batch
        sequences = rows * (self.inputs + self.hidden * self.directions)
        states = 2 * self.layers * self.directions * self.batch * self.hidden * (1 + (self.cell == "LSTM"))
        bytes_ = (self.weights + sequences + states) * size
        shape = f"T={self.steps} B={self.batch} I={self.inputs} H={self.hidden}"
        kind = " ".join(
            filter(None, [f"L={self.layers}" if self.layers > 1 else "", "bi" if self.directions > 1 else ""])
        )
        return Case(
            op="gru",
            name=" ".join(filter(None, [self.cell, shape, kind, self.variant])),
            dtype=self.dtype,
            override="_cudnn_rnn",
            make=partial(_make_layers, self),
            bytes=bytes_,
            footprint=bytes_,
            flops=2 * rows * self.weights,
            sizes={"hidden": self.hidden, "steps": self.steps} if self.series else {},
            series=self.series,
        )


@dataclass(frozen=True)
class Cell:
    """A call of ``nn.GRUCell``, ``nn.LSTMCell`` or ``nn.RNNCell`` without gradients."""

    batch: int
    inputs: int
    hidden: int
    dtype: str = "float32"
    cell: str = "GRU"

    def case(self) -> Case:
        """The call as a case."""
        weights = GATES[self.cell] * self.hidden * (self.inputs + self.hidden + 2)
        states = 2 * (1 + (self.cell == "LSTM"))
        bytes_ = (weights + self.batch * (self.inputs + states * self.hidden)) * ITEMSIZE[self.dtype]
        return Case(
            op="gru",
            name=f"{self.cell}Cell B={self.batch} I={self.inputs} H={self.hidden}",
            dtype=self.dtype,
            override={"GRU": "gru_cell", "LSTM": "lstm_cell", "RNN": "rnn_tanh_cell"}[self.cell],
            make=partial(_make_cell, self),
            bytes=bytes_,
            footprint=bytes_,
            flops=2 * self.batch * weights,
        )


@dataclass(frozen=True)
class Gates:
    """What ``nn.GRUCell`` computes after its two products, where gradients are wanted or rows are many."""

    batch: int
    hidden: int
    dtype: str = "float32"

    def case(self) -> Case:
        """The call as a case."""
        # Both products' three gates, the state and the biases; the new state and five saved for the backward.
        elements = self.batch * self.hidden * (6 + 1 + 1 + 5) + 6 * self.hidden
        bytes_ = elements * ITEMSIZE[self.dtype]
        return Case(
            op="gru",
            name=f"gates B={self.batch} H={self.hidden}",
            dtype=self.dtype,
            override="_thnn_fused_gru_cell",
            make=partial(_make_gates, self),
            bytes=bytes_,
            footprint=bytes_,
            flops=0,
        )


def cases(device: str, full: bool) -> list[Case]:
    """Decoding steps, encoders, long sequences; with ``full`` a sweep over sizes. None on the CPU."""
    if device == "cpu":
        return []
    layers = [replace(case, dtype=dtype) for case in (*_SHORT, *_OTHERS) for dtype in DTYPES]
    cells = [
        Cell(batch, size, size, dtype, cell)
        for cell in GATES
        for batch, size in ((1, 512), (1, 1024), (8, 512))
        for dtype in DTYPES
    ]
    if full:
        layers += _sweep()
        cells += [
            Cell(batch, size, size) for batch, size in ((32, 512), (64, 1024), (3, 333), (1, 64), (1, 2048))
        ]
    gates = [Gates(*shape, dtype) for shape in _GATES[: None if full else 3] for dtype in DTYPES]
    return (
        [case.case() for case in layers] + [case.case() for case in cells] + [case.case() for case in gates]
    )


_GATES = (
    (32, 512),
    (256, 1024),
    (4096, 1024),
    (1, 16),
    (8, 512),
    (7, 333),
    (64, 64),
    (1024, 256),
    (128, 2048),
)
"""(B, H)."""
_SHORT = (
    Layers(1, 1, 256, 512),
    Layers(1, 1, 1280, 512),
    Layers(1, 32, 1280, 512),
    Layers(1, 64, 640, 256),
    Layers(50, 1, 256, 512),
    Layers(50, 32, 256, 512, directions=2),
    Layers(256, 1, 1024, 1024),
    Layers(256, 16, 1024, 1024),
    Layers(256, 64, 1024, 1024, layers=2),
    Layers(1000, 8, 128, 256),
    Layers(1000, 64, 128, 128, layers=2, directions=2),
    Layers(128, 128, 2048, 2048),
)
_OTHERS = (
    Layers(1, 1, 256, 512, cell="LSTM"),
    Layers(50, 1, 256, 512, cell="LSTM"),
    Layers(50, 32, 256, 512, directions=2, cell="LSTM"),
    Layers(50, 64, 512, 512, layers=2, cell="LSTM"),
    Layers(256, 16, 1024, 1024, cell="LSTM"),
    Layers(400, 32, 80, 800, directions=2, cell="LSTM"),
    Layers(1000, 8, 128, 256, cell="LSTM"),
    Layers(50, 32, 256, 512, directions=2, cell="RNN"),
    Layers(1000, 8, 128, 256, cell="RNN"),
)
"""LSTM and RNN layers."""


def _sweep() -> list[Layers]:
    """Hidden sizes 16 to 2048, odd ones too, batches 1 to 256, 1 to 2000 steps; dtypes in turn for most."""
    result = []
    hidden_sizes = (
        16,
        33,
        64,
        65,
        100,
        128,
        129,
        192,
        200,
        256,
        257,
        320,
        384,
        512,
        513,
        640,
        641,
        768,
        1000,
        1024,
        1536,
        2048,
    )
    for i, hidden in enumerate(hidden_sizes):
        for j, batch in enumerate((1, 4, 16, 64, 256)):
            steps = (2, 10, 100, 400)[(i + j) % 4]
            result.append(
                Layers(steps, batch, (64, 256, 333)[(i + j) % 3], hidden, dtype=DTYPES[(i + 2 * j) % 3])
            )
    # The time of a step against the hidden size, by rows of the batch.
    for dtype in ("float32", "bfloat16"):
        for hidden in (64, 128, 256, 512, 768, 1024, 2048):
            result += [
                Layers(200, batch, 128, hidden, dtype=dtype, series=f"B={batch}") for batch in (1, 8, 32)
            ]
    for dtype in DTYPES:
        result += [
            Layers(2000, 1, 128, 256, dtype=dtype),
            Layers(2000, 8, 64, 512, dtype=dtype),
            Layers(1, 8, 512, 512, dtype=dtype),
            Layers(1, 9, 512, 512, dtype=dtype),
            Layers(1, 128, 512, 512, dtype=dtype),
            Layers(1, 256, 64, 64, dtype=dtype),
            Layers(1, 16, 128, 128, dtype=dtype),
            Layers(1, 96, 384, 384, dtype=dtype),
            Layers(1, 24, 1024, 1024, dtype=dtype),
            Layers(1, 4, 2048, 2048, dtype=dtype),
            Layers(20, 3, 17, 99, layers=3, directions=2, dtype=dtype),
            Layers(50, 8, 256, 256, dtype=dtype, variant="batch_first", batch_first=True),
            Layers(50, 8, 256, 256, dtype=dtype, variant="no bias", bias=False),
        ]
    return result


def _make_layers(case: Layers, device: str) -> Call:
    import torch

    dtype: torch.dtype = getattr(torch, case.dtype)
    kind = getattr(torch.nn, case.cell)
    layers = kind(
        case.inputs, case.hidden, case.layers,
        bias=case.bias, batch_first=case.batch_first, bidirectional=case.directions == 2,
        device=device, dtype=dtype,
    )  # fmt: skip
    # As a program would have them: flattened by cuDNN where PyTorch flattens that dtype.
    layers = layers.eval().requires_grad_(False)
    shape = (case.batch, case.steps) if case.batch_first else (case.steps, case.batch)
    x = torch.randn(*shape, case.inputs, device=device).to(dtype)
    h = torch.randn(case.layers * case.directions, case.batch, case.hidden, device=device).to(dtype)
    return partial(layers, x, (h, h.clone()) if case.cell == "LSTM" else h)


def _make_cell(case: Cell, device: str) -> Call:
    import torch

    dtype: torch.dtype = getattr(torch, case.dtype)
    kind = getattr(torch.nn, f"{case.cell}Cell")
    cell = kind(case.inputs, case.hidden, device=device, dtype=dtype).requires_grad_(False)
    x = torch.randn(case.batch, case.inputs, device=device).to(dtype)
    h = torch.randn(case.batch, case.hidden, device=device).to(dtype)
    return partial(cell, x, (h, h.clone()) if case.cell == "LSTM" else h)


def _make_gates(case: Gates, device: str) -> Call:
    import torch

    dtype: torch.dtype = getattr(torch, case.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    rows, width = case.batch, 3 * case.hidden
    return partial(
        torch.ops.aten._thnn_fused_gru_cell.default,
        *(normal(rows, width), normal(rows, width), normal(rows, case.hidden), normal(width), normal(width)),
    )
