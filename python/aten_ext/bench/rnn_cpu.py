"""Cases of recurrent layers and cells on the CPU, in inference and in training.

Bytes and FLOPs are counted as for the GPU (``gru``, ``rnn_training``); on a CPU neither is near a limit of
the machine, and the ratio to upstream is what to look at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aten_ext.bench.case import ITEMSIZE, Call, Case
from aten_ext.bench.gru import GATES, Cell
from aten_ext.bench.gru import Layers as Sizes

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class Layers:
    """A call of ``nn.GRU``, ``nn.LSTM`` or ``nn.RNN``, padded or packed."""

    cell: str
    """GRU, LSTM, RNN_TANH or RNN_RELU."""
    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int = 1
    directions: int = 1
    dtype: str = "float32"
    training: bool = False
    """Forward and backward, with the gradients of the input and of all parameters."""
    shortest: int = 0
    """Of a packed sequence whose rows have from ``steps`` to so many steps; 0: padded."""
    batch_first: bool = False
    bias: bool = True
    dropout: float = 0.0

    @property
    def lengths(self) -> list[int]:
        """Of the rows of a packed sequence, the longest first."""
        last = max(1, self.batch - 1)
        return [self.steps - i * (self.steps - self.shortest) // last for i in range(self.batch)]

    def case(self) -> Case:
        """The call as a case."""
        family = self.cell.partition("_")[0]
        steps = sum(self.lengths) // self.batch if self.shortest else self.steps
        of_gpu = Sizes(
            steps,
            self.batch,
            self.inputs,
            self.hidden,
            self.layers,
            self.directions,
            self.dtype,
            cell=family,
        )
        sizes = of_gpu.case()
        name = [
            f"{self.cell} T={self.steps}",
            f"B={self.batch} I={self.inputs} H={self.hidden}",
            f"packed to {self.shortest}" if self.shortest else "",
            f"L={self.layers}" if self.layers > 1 else "",
            "bi" if self.directions > 1 else "",
            "batch_first" if self.batch_first else "",
            "" if self.bias else "no bias",
            f"dropout {self.dropout:g}" if self.dropout else "",
            "training" if self.training else "inference",
        ]
        times = 3 if self.training else 1
        kept = steps * self.batch * self.directions * self.hidden * self.layers * (GATES[family] + 2)
        return replace(
            sizes,
            op="rnn_cpu",
            name=" ".join(filter(None, name)),
            override=f"{self.cell.lower()}.{'data' if self.shortest else 'input'}",
            make=partial(_make_layers, self),
            footprint=times * sizes.footprint + (kept * ITEMSIZE[self.dtype] if self.training else 0),
            bytes=times * sizes.bytes + (2 * kept * ITEMSIZE[self.dtype] if self.training else 0),
            flops=times * sizes.flops,
            sizes={},
            series="",
        )


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
                made += [Layers(kind, *sizes, dtype=dtype, training=training) for sizes in _SIZES]
                made.append(Layers(kind, 50, 32, 64, 64, dtype=dtype, training=training, shortest=10))
    cells = [
        cell(batch, size, size, dtype, kind)
        for dtype in DTYPES
        for kind in GATES
        for batch, size in ((1, 64), (1, 512), (32, 256))
    ]
    return [layers.case() for layers in made] + cells


def _make_layers(case: Layers, device: str) -> Call:
    import torch
    from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

    dtype: torch.dtype = getattr(torch, case.dtype)
    family, _, activation = case.cell.partition("_")
    options: dict[str, Any] = {"nonlinearity": activation.lower()} if activation else {}
    module = getattr(torch.nn, family)(
        case.inputs, case.hidden, case.layers,
        bias=case.bias, batch_first=case.batch_first, dropout=case.dropout,
        bidirectional=case.directions == 2, **options,
    ).to(device, dtype).train(case.training)  # fmt: skip
    shape = (case.batch, case.steps) if case.batch_first else (case.steps, case.batch)
    x = torch.randn(*shape, case.inputs, device=device).to(dtype)
    given: Any = pack_padded_sequence(x, case.lengths, case.batch_first) if case.shortest else x
    leaf: torch.Tensor = given.data if case.shortest else given
    if not case.training:
        module.requires_grad_(False)
        return partial(module, given)
    leaf.requires_grad_()
    wanted = [leaf, *module.parameters()]
    width = case.directions * case.hidden
    grad = torch.randn(*leaf.shape[:-1], width, device=device).to(dtype)

    def step() -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            y = module(given)[0]
            return torch.autograd.grad(y.data if isinstance(y, PackedSequence) else y, wanted, grad)

    return step
