"""What tests of recurrent layers on the CPU share: layers, calls with gradients, and how they are judged."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import aten_ext
from paths import DOCS
from upstream_versions import PACKED_LSTM_IS_ONEDNNS

DOCUMENTATION = (DOCS / "overrides.md").read_text()
CELLS = ("gru", "rnn_tanh", "rnn_relu", "lstm")
# Beyond upstream's own error, of the typical element: a part of a rounding, and what the error of few
# elements, sums that may cancel, varies by.
FLOOR, FLOOR_OF_FEW = 3e-8, 4e-6


def documented(reason: str) -> str:
    """``reason``, if docs/overrides.md has it, word for word."""
    assert f"| `{reason}` |" in DOCUMENTATION, reason
    return reason


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer stack and its input."""

    cell: str
    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int = 1
    bidirectional: bool = False
    batch_first: bool = False
    bias: bool = True
    dropout: float = 0.0
    lengths: tuple[int, ...] | None = None  # of a packed sequence, longest first
    given_state: bool = True
    seed: int = 0

    @property
    def name(self) -> str:
        """The override that takes it."""
        return f"{self.cell}.{'input' if self.lengths is None else 'data'}"

    @property
    def of_onednn(self) -> bool:
        """Whether upstream runs it by oneDNN: an LSTM whose rows are of one length."""
        even = self.lengths is None or (PACKED_LSTM_IS_ONEDNNS and self.lengths[-1] == self.steps)
        return self.cell == "lstm" and even

    def module(self, dtype: torch.dtype = torch.float32) -> torch.nn.RNNBase:
        """The layers, the same for each dtype up to rounding."""
        torch.manual_seed(self.seed)
        options: dict[str, Any] = {
            "num_layers": self.layers,
            "bidirectional": self.bidirectional,
            "batch_first": self.batch_first,
            "bias": self.bias,
            "dropout": self.dropout,
        }
        if self.cell == "gru":
            made: torch.nn.RNNBase = torch.nn.GRU(self.inputs, self.hidden, **options)
        elif self.cell == "lstm":
            made = torch.nn.LSTM(self.inputs, self.hidden, **options)
        else:
            made = torch.nn.RNN(self.inputs, self.hidden, nonlinearity=self.cell[4:], **options)
        return made.to(dtype)

    def tensors(self, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        """Input and initial states."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        outer = (self.batch, self.steps) if self.batch_first else (self.steps, self.batch)
        shapes = [(*outer, self.inputs)]
        if self.given_state:
            of_state = (self.layers * (1 + self.bidirectional), self.batch, self.hidden)
            shapes += [of_state] * (2 if self.cell == "lstm" else 1)
        return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def call(case: Case, module: torch.nn.RNNBase, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Output and last states."""
    x: Any = tensors[0]
    if case.lengths is not None:
        x = pack_padded_sequence(x, list(case.lengths), batch_first=case.batch_first)
    states: Any = None if len(tensors) == 1 else tensors[1] if len(tensors) == 2 else tuple(tensors[1:])
    out, last = module(x, states)
    return [
        out.data if isinstance(out, PackedSequence) else out,
        *(last if isinstance(last, tuple) else (last,)),
    ]


def with_gradients(case: Case, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Results of a call, then the gradients of all inputs and parameters by a random sum of the results."""
    module = case.module(dtype)
    tensors = [t.requires_grad_() for t in case.tensors(dtype)]
    torch.manual_seed(case.seed + 2)
    results = call(case, module, tensors)
    generator = torch.Generator().manual_seed(case.seed + 3)
    weights = [torch.randn(r.shape, generator=generator).to(dtype) for r in results]
    gradients = torch.autograd.grad(results, [*tensors, *module.parameters()], weights)
    return [*(r.detach() for r in results), *gradients]


def assert_ran(name: str, times: int = 1) -> None:
    """The override ran that often since the counts were reset, and never otherwise."""
    count = aten_ext.counts("CPU")[name]
    assert (count.ran, dict(count.declined), count.late, count.disabled) == (times, {}, 0, 0)


def assert_route(case: Case) -> None:
    """It ran, unless it is an LSTM that oneDNN runs as fast."""
    reason = documented("LSTM on one thread, which oneDNN runs as fast")
    if not case.of_onednn or reason not in aten_ext.counts("CPU")[case.name].declined:
        assert_ran(case.name)
        return
    projection = case.steps * case.batch * case.inputs * 4 * case.hidden
    assert case.batch * 4 * case.hidden**2 > 60_000 or projection > 12e6
    assert aten_ext.counts("CPU")[case.name].ran == 0


def assert_close(
    ours: list[torch.Tensor],
    theirs: list[torch.Tensor],
    exact: list[torch.Tensor] | None = None,
    *,
    of_few: float = FLOOR_OF_FEW,
) -> None:
    """No further from float64, on average, than 1.25 times upstream; near upstream without.

    ``of_few``: of one element, relative; an average of few is chance.
    """
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), index
        scale = float(b.abs().max()) + 1e-30
        if exact is None:
            assert float((a - b).abs().max()) <= 1e-5 * scale, index
            continue
        error, yardstick = (float((t - exact[index]).square().mean().sqrt()) for t in (a, b))
        typical = float(exact[index].square().mean().sqrt())
        floor = (FLOOR + of_few / a.numel() ** 0.5) * typical
        assert error <= 1.25 * yardstick + floor, (index, error, yardstick, typical)
