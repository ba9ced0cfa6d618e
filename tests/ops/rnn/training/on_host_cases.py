"""What the tests of a backward on the CPU share: the kernels, compiled, and a problem with its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ops.rnn.cases import flattened
from ops.rnn.on_host_cases import load as load_layers

MODES = {"relu": 0, "tanh": 1, "lstm": 2, "gru": 3}
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Both types of 16 bits have the same kernels: of layers that take long, each cell has one of them.
OF_LARGE_LAYERS = [
    ("gru", torch.float32),
    ("gru", torch.bfloat16),
    ("lstm", torch.float32),
    ("lstm", torch.float16),
]


def load() -> Any:
    """The operator ``_cudnn_rnn_backward``, and what gradient_ops.cpp adds to it, which is returned."""
    load_layers()
    return torch.ops.aten_ext_on_host_rnn_gradients


def saved_bytes(cell: str, rows: int, hidden: int, dtype: torch.dtype) -> int:
    """Of a layer and direction, what a forward saves of ``rows`` steps of rows, in the reserve."""
    coefficients = {"gru": 5, "lstm": 6}[cell]
    return -(-rows * hidden * coefficients * dtype.itemsize // 256) * 256


@dataclass
class Sizes:
    """Of a layer stack."""

    cell: str = "gru"
    steps: int = 3
    batch: int = 2
    inputs: int = 5
    hidden: int = 7
    layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    batch_first: bool = False
    dtype: torch.dtype = torch.float32


def module(sizes: Sizes) -> torch.nn.RNNBase:
    """In float64."""
    options: dict[str, Any] = {
        "bias": sizes.bias,
        "batch_first": sizes.batch_first,
        "bidirectional": sizes.bidirectional,
    }
    arguments = (sizes.inputs, sizes.hidden, sizes.layers)
    if sizes.cell == "gru":
        return torch.nn.GRU(*arguments, **options).double()
    if sizes.cell == "lstm":
        return torch.nn.LSTM(*arguments, **options).double()
    return torch.nn.RNN(*arguments, nonlinearity=sizes.cell, **options).double()


class Problem:
    """A layer stack with inputs, what autograd would save of its forward, and its gradients in float64.

    Everything is of values that the dtype has; outputs are those of float64, rounded.
    """

    def __init__(self, ops: Any, sizes: Sizes, seed: int = 0) -> None:
        """Run forward and backward in float64."""
        torch.manual_seed(seed)
        self.sizes = sizes
        self.directions = 2 if sizes.bidirectional else 1
        dtype = sizes.dtype
        self.rnn = module(sizes)
        for w in self.rnn._flat_weights:
            w.data.copy_(w.data.to(dtype))
        self.weights = [w.detach().to(dtype) for w in self.rnn._flat_weights]
        shape = [sizes.steps, sizes.batch]
        if sizes.batch_first:
            shape.reverse()
        self.x = torch.randn(*shape, sizes.inputs).to(dtype)
        states = (sizes.layers * self.directions, sizes.batch, sizes.hidden)
        self.hx, self.cx = torch.randn(states).to(dtype), torch.randn(states).to(dtype)
        self.grad_output = torch.randn(*shape, self.directions * sizes.hidden).to(dtype)
        self.grad_hy, self.grad_cy = torch.randn(states).to(dtype), torch.randn(states).to(dtype)
        self.outputs = self._forward_by_layers()
        self.reserve = self._reserve(ops)

    def _forward_by_layers(self) -> list[torch.Tensor]:
        """Each layer's output in order of time, in the dtype; the next layer reads it rounded."""
        sizes = self.sizes
        x = self.x.double()
        if sizes.batch_first:
            x = x.transpose(0, 1)
        outputs = []
        per_layer = self.directions * (4 if sizes.bias else 2)
        for layer in range(sizes.layers):
            one = module(Sizes(**{**vars(sizes), "layers": 1, "inputs": x.shape[2], "batch_first": False}))
            for to, w in zip(one._flat_weights, self.weights[layer * per_layer :], strict=False):
                to.data.copy_(w)
            state = slice(layer * self.directions, (layer + 1) * self.directions)
            h, c = self.hx[state].double(), self.cx[state].double()
            with torch.no_grad():
                y = one(x, (h, c) if sizes.cell == "lstm" else h)[0].to(sizes.dtype)
            outputs.append(y)
            x = y.double()
        return outputs

    def _reserve(self, ops: Any) -> torch.Tensor:
        sizes = self.sizes
        total, *offsets = ops.reserve_of(
            sizes.dtype != torch.float32,
            sizes.steps,
            sizes.batch,
            sizes.hidden,
            sizes.layers,
            self.directions,
        )
        reserve = torch.full((1, total), 0xFF, dtype=torch.uint8)
        for y, offset in zip(self.outputs, offsets, strict=False):
            data = y.contiguous().view(torch.uint8).flatten()
            reserve[0, offset : offset + data.numel()] = data
        return reserve

    def exact(self, grads: tuple[bool, bool, bool] = (True, True, True)) -> list[torch.Tensor]:
        """Gradients of x, hx, cx (LSTM) and the weights, by float64's autograd."""
        sizes = self.sizes
        x, h, c = (t.double().requires_grad_() for t in (self.x, self.hx, self.cx))
        lstm = sizes.cell == "lstm"
        y, states = self.rnn(x, (h, c) if lstm else h)
        hy, cy = states if lstm else (states, None)
        outputs, gradients = [], []
        for output, gradient, given in zip(
            (y, hy, cy), (self.grad_output, self.grad_hy, self.grad_cy), grads, strict=True
        ):
            if output is not None and given:
                outputs.append(output)
                gradients.append(gradient.double())
        inputs = [x, h, *([c] if lstm else []), *self.rnn._flat_weights]
        found = torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)
        return [torch.zeros_like(i) if g is None else g for g, i in zip(found, inputs, strict=True)]

    def ours(
        self,
        ops: Any,
        *,
        grads: tuple[bool, bool, bool] = (True, True, True),
        mask: tuple[bool, bool, bool, bool] = (True, True, True, True),
        chunk: int = 0,
        part: int = 0,
        tf32: bool = False,
        one_launch: bool = False,
        few_rows: bool = False,
        buffer: bool = True,
        columns: bool = False,
        **changes: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, list[torch.Tensor]]:
        """The operator's four results by our kernels; ``changes`` replaces arguments."""
        sizes = self.sizes
        lstm = sizes.cell == "lstm"
        packed, views = flattened(self.weights, bias=sizes.bias, columns=columns)
        output = self.outputs[-1]
        arguments: dict[str, Any] = {
            "input": self.x,
            "weight": views if buffer else self.weights,
            "weight_stride0": 4 if sizes.bias else 2,
            "weight_buf": packed,
            "hx": self.hx,
            "cx": self.cx if lstm else None,
            "output": output.transpose(0, 1) if sizes.batch_first else output,
            "grad_output": self.grad_output if grads[0] else None,
            "grad_hy": self.grad_hy if grads[1] else None,
            "grad_cy": self.grad_cy if grads[2] and lstm else None,
            "mode": MODES[sizes.cell],
            "hidden": sizes.hidden,
            "layers": sizes.layers,
            "batch_first": sizes.batch_first,
            "bidirectional": sizes.bidirectional,
            "reserve": self.reserve,
            "mask": [mask[0], mask[1], mask[2] and lstm, mask[3]],
            "chunk": chunk,
            "part": part,
            "tf32": tf32,
            "one_launch": one_launch,
            "few_rows": few_rows,
            "batch_sizes": [],
        }
        result: tuple[Any, Any, Any, list[torch.Tensor]] = ops.backward(*(arguments | changes).values())
        return result
