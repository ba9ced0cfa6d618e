"""Cases of ``nn.LSTMCell`` and ``nn.GRUCell`` in training: a step's gates, their backward, and whole cells.

Bytes of gates: each operand and result once; the sums of biases read nothing again. Of a whole cell: the
weights and what is kept three times, as for layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aten_ext.bench.case import ITEMSIZE, Call, Case
from aten_ext.bench.ops.gru import GATES

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16")
SAVED = {"GRU": 5, "LSTM": 4}
"""Values a unit in the workspace."""
FORWARD = {"GRU": "_thnn_fused_gru_cell", "LSTM": "_thnn_fused_lstm_cell"}
BACKWARD = {"GRU": "_thnn_fused_gru_cell_backward", "LSTM": "_thnn_fused_lstm_cell_backward_impl"}


@dataclass(frozen=True)
class Gates:
    """The gates of one step, forward or backward, by their operators."""

    cell: str
    """GRU or LSTM."""
    batch: int
    hidden: int
    dtype: str = "float32"
    backward: bool = False
    bias: bool = True

    def case(self) -> Case:
        """The call as a case."""
        gates, states = GATES[self.cell], 1 + (self.cell == "LSTM")
        if self.backward:
            # Of an LSTM: workspace, cx, cy, two gradients; those of gates and cx. Of a GRU: workspace, one
            # gradient; those of two times the gates and hx.
            each = SAVED[self.cell] + (4 + gates + 1 if self.cell == "LSTM" else 1 + 2 * gates + 1)
            biases = gates if self.cell == "LSTM" else 2 * gates
        else:
            each = 2 * gates + 1 + states + SAVED[self.cell]
            biases = 2 * gates
        elements = self.batch * self.hidden * each + self.bias * biases * self.hidden
        bytes_ = elements * ITEMSIZE[self.dtype]
        words = [self.cell, "gates", "backward" if self.backward else "", f"B={self.batch} H={self.hidden}"]
        return Case(
            op="rnn_cell_training",
            name=" ".join(filter(None, [*words, "" if self.bias else "no bias"])),
            dtype=self.dtype,
            override=(BACKWARD if self.backward else FORWARD)[self.cell],
            make=partial(_make_gates, self),
            bytes=bytes_,
            footprint=bytes_,
        )


@dataclass(frozen=True)
class Cell:
    """A call of ``nn.GRUCell`` or ``nn.LSTMCell`` and its backward: input, states and all parameters."""

    cell: str
    batch: int
    hidden: int
    dtype: str = "float32"

    def case(self) -> Case:
        """The call as a case."""
        gates, states = GATES[self.cell], 1 + (self.cell == "LSTM")
        weights = gates * self.hidden * (2 * self.hidden + 2)
        kept = self.batch * self.hidden * (1 + 2 * states + SAVED[self.cell] + 2 * gates)
        bytes_ = 3 * (weights + kept) * ITEMSIZE[self.dtype]
        return Case(
            op="rnn_cell_training",
            name=f"{self.cell}Cell training B={self.batch} I={self.hidden} H={self.hidden}",
            dtype=self.dtype,
            override=BACKWARD[self.cell],
            make=partial(_make_cell, self),
            bytes=bytes_,
            footprint=bytes_,
            flops=6 * self.batch * weights,
        )


def cases(device: str, full: bool) -> list[Case]:
    """Few rows as a policy has them, many as a batch of environments. None on the CPU."""
    if device == "cpu":
        return []
    sizes = [(batch, hidden) for batch in (1, 8, 64, 512, 4096) for hidden in (128, 512, 1024)]
    if not full:
        sizes = [(1, 512), (64, 512), (4096, 1024)]
    found = []
    for dtype in DTYPES:
        for size in sizes:
            gates = [
                Gates("LSTM", *size, dtype),
                Gates("LSTM", *size, dtype, backward=True),
                Gates("GRU", *size, dtype, backward=True),
            ]
            found += [case.case() for case in gates]
            found += [Cell(cell, *size, dtype).case() for cell in ("LSTM", "GRU")]
        found += [Gates(cell, 64, 512, dtype, backward=True, bias=False).case() for cell in ("LSTM", "GRU")]
    return found


def _make_gates(case: Gates, device: str) -> Call:
    import torch

    dtype: torch.dtype = getattr(torch, case.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    rows, units, width = case.batch, case.hidden, GATES[case.cell] * case.hidden
    if not case.backward:
        biases = [normal(width), normal(width)] if case.bias else [None, None]
        forward = getattr(torch.ops.aten, FORWARD[case.cell]).default
        return partial(forward, normal(rows, width), normal(rows, width), normal(rows, units), *biases)
    workspace = normal(rows, SAVED[case.cell] * units)
    backward = getattr(torch.ops.aten, BACKWARD[case.cell]).default
    if case.cell == "GRU":
        return partial(backward, normal(rows, units), workspace, case.bias)
    return partial(backward, *(normal(rows, units) for _ in range(4)), workspace, case.bias)


def _make_cell(case: Cell, device: str) -> Call:
    import torch

    dtype: torch.dtype = getattr(torch, case.dtype)
    cell = getattr(torch.nn, f"{case.cell}Cell")(case.hidden, case.hidden).to(device, dtype)
    states = 2 if case.cell == "LSTM" else 1
    x, *given = (
        torch.randn(case.batch, case.hidden, device=device).to(dtype).requires_grad_()
        for _ in range(1 + states)
    )
    grads = [torch.randn(case.batch, case.hidden, device=device).to(dtype) for _ in range(states)]
    wanted = [x, *given, *cell.parameters()]

    def step() -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            after = cell(x, tuple(given) if states == 2 else given[0])
            return torch.autograd.grad(after, wanted, tuple(grads) if states == 2 else grads[0])

    return step
