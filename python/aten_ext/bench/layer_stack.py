"""A layer stack as a benchmark calls it: padded or packed, in inference or in training, on a CPU or a GPU.

Bytes: the weights once, input, states and output once; in training three times, and what is kept for the
backward twice. FLOPs: 2 for each weight, step and row, and 6 in training. A long sequence is bound by
neither.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aten_ext.bench.case import ITEMSIZE, Call, Case
from aten_ext.bench.ops.gru import GATES
from aten_ext.bench.ops.gru import Layers as Sizes

if TYPE_CHECKING:
    import torch

SPREADS = ("even", "geometric", "one long")


@dataclass(frozen=True)
class LayerStack:
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
    spread: str = "even"
    """Of :data:`SPREADS`: how the lengths of a packed sequence lie between the longest and the shortest."""
    batch_first: bool = False
    bias: bool = True
    dropout: float = 0.0

    @property
    def lengths(self) -> list[int]:
        """Of the rows of a packed sequence, the longest first."""
        last = max(1, self.batch - 1)
        if self.spread == "one long":
            return [self.steps] + [self.shortest] * (self.batch - 1)
        if self.spread == "geometric":
            ratio = self.shortest / self.steps
            return [max(1, round(self.steps * ratio ** (i / last))) for i in range(self.batch)]
        return [self.steps - i * (self.steps - self.shortest) // last for i in range(self.batch)]

    def case(self, op: str) -> Case:
        """The call as a case of the benchmark ``op``: ``rnn_cpu``, or one of those for a GPU."""
        family = self.cell.partition("_")[0]
        steps = max(1, sum(self.lengths) // self.batch) if self.shortest else self.steps
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
            self.spread if self.shortest and self.spread != "even" else "",
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
            op=op,
            name=" ".join(filter(None, name)),
            override=self._override(on_cpu=op == "rnn_cpu"),
            make=partial(_make, self),
            footprint=times * sizes.footprint + (kept * ITEMSIZE[self.dtype] if self.training else 0),
            bytes=times * sizes.bytes + (2 * kept * ITEMSIZE[self.dtype] if self.training else 0),
            flops=times * sizes.flops,
            sizes={},
            series="",
        )

    def _override(self, *, on_cpu: bool) -> str:
        if on_cpu:
            return f"{self.cell.lower()}.{'data' if self.shortest else 'input'}"
        return "_cudnn_rnn_backward" if self.training else "_cudnn_rnn"


def _make(case: LayerStack, device: str) -> Call:
    import torch
    from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

    dtype: torch.dtype = getattr(torch, case.dtype)
    family, _, activation = case.cell.partition("_")
    options: dict[str, Any] = {"nonlinearity": activation.lower()} if activation else {}
    module = getattr(torch.nn, family)(
        case.inputs, case.hidden, case.layers,
        bias=case.bias, batch_first=case.batch_first, dropout=case.dropout,
        bidirectional=case.directions == 2, device=device, dtype=dtype, **options,
    ).train(case.training)  # fmt: skip
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
