"""Bytes and FLOPs of a call, by formula: what ``explain`` compares with the machine's limits.

Bytes: each input read once and each output written once, whatever caches do. FLOPs: each addition,
multiplication, division, square root, exponential, tanh and maximum counts as one, a fused multiply-add as
two.
A new override adds its formula to :data:`FORMULAS`; a test asks for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

Arguments = Mapping[str, Any]
"""The arguments of a call by their names in the schema, defaults filled in."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a call has to do.

    Attributes:
        bytes: bytes that it has to move through memory.
        flops: floating-point operations.
        dtype: of its tensors, e.g. ``"float32"``.
    """

    bytes: int
    flops: int
    dtype: str


def _cost(moved: int, flops: int, dtype: torch.dtype) -> Cost:
    return Cost(moved, flops, str(dtype).removeprefix("torch."))


def _nbytes(tensors: Iterable[torch.Tensor | None]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def _numel(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() for t in tensors)


def _cat(a: Arguments) -> Cost:
    """All inputs read, the result written in their common dtype. [N_i, …] -> [sum N_i, …]."""
    tensors = a["tensors"]
    out = a.get("out")
    dtype = out.dtype if out is not None else tensors[0].dtype
    if out is None:
        for tensor in tensors[1:]:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return _cost(_nbytes(tensors) + _numel(tensors) * dtype.itemsize, 0, dtype)


def _adam(a: Arguments) -> Cost:
    """p, g, m, v read; p, m, v written; amsgrad reads and writes a fifth; grad_scale writes g back.

    FLOPs an element: decay 2, m 3, v 4, denominator 3, step 3 (formulas: ops/optimizer/cuda/fused_adam.cu).
    """
    params = a["self"]
    scaled, amsgrad = a["grad_scale"] is not None, bool(a["amsgrad"])
    decay = 2 * (a["weight_decay"] != 0)
    flops = 13 + decay + amsgrad + scaled + bool(a["maximize"])
    return _cost(_nbytes(params) * (7 + 2 * amsgrad + scaled), _numel(params) * flops, params[0].dtype)


def _sgd(a: Arguments) -> Cost:
    """p, g read, p written; momentum reads (after the first step) and writes a buffer.

    g += weight_decay * p; b = momentum * b + (1 - dampening) * g; g = g + momentum * b (nesterov) or b;
    p -= lr * g. (torch.optim.SGD.)
    """
    params = a["self"]
    scaled, momentum, first = a["grad_scale"] is not None, a["momentum"] != 0, bool(a["is_first_step"])
    accesses = 3 + scaled + momentum * (1 if first else 2)
    flops = 2 + 2 * (a["weight_decay"] != 0) + scaled + bool(a["maximize"])
    flops += 3 * (momentum and not first) + 2 * (momentum and bool(a["nesterov"]))
    return _cost(_nbytes(params) * accesses, _numel(params) * flops, params[0].dtype)


def _adagrad(a: Arguments) -> Cost:
    """p, g, s read; p, s written.

    s += g * g; p -= lr * g / (sqrt(s) + eps). (Duchi et al. 2011.)
    """
    params = a["self"]
    scaled = a["grad_scale"] is not None
    flops = 7 + 2 * (a["weight_decay"] != 0) + scaled + bool(a["maximize"])
    return _cost(_nbytes(params) * (5 + scaled), _numel(params) * flops, params[0].dtype)


def _foreach_add(a: Arguments) -> Cost:
    """``self`` read and written, a list ``other`` read; alpha other than 1 multiplies."""
    own, other = a["self"], a.get("other")
    listed = _nbytes(other) if isinstance(other, (list, tuple)) else 0
    flops = 1 + (a.get("alpha", 1) != 1)
    return _cost(2 * _nbytes(own) + listed, flops * _numel(own), own[0].dtype)


def _gru_cell(a: Arguments) -> Cost:
    """Gates of input and state [B, 3H] and the state [B, H] read; new state and workspace [B, 5H] written.

    An element: two sigmoids of a sum (1 + 4 each), tanh(i + r * h) (3), n + z * (h - n) (3); biases add 6.
    """
    gates, state, biases = a["input_gates"], a["hx"], (a["input_bias"], a["hidden_bias"])
    read = _nbytes((gates, a["hidden_gates"], state, *biases))
    flops = 16 + (6 if biases[0] is not None else 0)
    return _cost(read + 6 * _nbytes((state,)), flops * state.numel(), gates.dtype)


def _gru_cell_backward(a: Arguments) -> Cost:
    """Workspace [B, 5H] and the gradient [B, H] read; those of both gates [B, 3H], state and biases written.

    An element: 1 - z, 1 - n * n (2), new (2), its hidden gate, reset (4), update (5), state; biases sum 4.
    """
    grad, has_bias = a["grad_hy"], bool(a["has_bias"])
    moved = _nbytes((a["workspace"],)) + 8 * _nbytes((grad,))
    biases = 6 * grad.shape[-1] * grad.element_size() if has_bias else 0
    return _cost(moved + biases, (16 + 4 * has_bias) * grad.numel(), grad.dtype)


def _lstm_cell(a: Arguments) -> Cost:
    """Gates of input and state [B, 4H] and cx read; hy, cy and the gates [B, 4H] written.

    An element: three sigmoids and a tanh of a sum (1 + 4 and 1 + 1), f * c + i * g (3), o * tanh(c) (2);
    biases add 8.
    """
    gates, state, biases = a["input_gates"], a["cx"], (a["input_bias"], a["hidden_bias"])
    read = _nbytes((gates, a["hidden_gates"], state, *biases))
    flops = 22 + (8 if biases[0] is not None else 0)
    return _cost(read + 6 * _nbytes((state,)), flops * state.numel(), gates.dtype)


def _lstm_cell_backward(a: Arguments) -> Cost:
    """Workspace [B, 4H], cx, cy and the gradients that are given read; those of gates, cx and bias written.

    An element: tanh(cy), dc (5), the gradients of the gates i (4), f (4), g (4), o (4), cx; biases sum 4.
    """
    state, has_bias = a["cx"], bool(a["has_bias"])
    read = _nbytes((a["workspace"], state, a["cy"], a["grad_hy"], a["grad_cy"]))
    biases = 4 * state.shape[-1] * state.element_size() if has_bias else 0
    return _cost(read + 5 * _nbytes((state,)) + biases, (23 + 4 * has_bias) * state.numel(), state.dtype)


def _rnn(a: Arguments) -> Cost:
    """Input, weights, states read once; output and states written. What is kept for backward is left out.

    A layer and direction: 2 * T * B * gates * H * (inputs + H) FLOPs of matrix products; activations are not
    counted. Gates: 1 (ReLU, tanh), 4 (LSTM), 3 (GRU). With a projection the state has P numbers, and each
    step 2 * H * P more. Input [T, B, I], [B, T, I], or packed [sum of the lengths, I].
    """
    inputs, hidden, projected = a["input"], a["hidden_size"], a["proj_size"]
    gates = {0: 1, 1: 1, 2: 4, 3: 3}[a["mode"]]
    directions, layers = 2 if a["bidirectional"] else 1, a["num_layers"]
    state = projected or hidden
    steps = math.prod(inputs.shape[:-1])  # T * B, or the sum of the lengths
    flops, width = 0, inputs.shape[-1]
    for _ in range(layers):
        products = gates * hidden * (width + state) + (hidden * projected if projected else 0)
        flops += directions * 2 * steps * products
        width = directions * state
    states = 2 * _nbytes((a["hx"], a["cx"]))
    moved = _nbytes((inputs, *a["weight"])) + states + steps * width * inputs.element_size()
    return _cost(moved, flops, inputs.dtype)


def _layers(a: Arguments) -> Cost:
    """Input, weights, states read once; output and states written. What a backward needs is left out.

    A row of a step: 2 FLOPs for each weight of the matrices; biases and activations are not counted.
    """
    inputs, weights = a["input"] if "input" in a else a["data"], a["params"]
    states = list(a["hx"]) if isinstance(a["hx"], (list, tuple)) else [a["hx"]]
    rows = math.prod(inputs.shape[:-1])  # T * B, or the sum of the lengths
    flops = 2 * rows * sum(weight.numel() for weight in weights if weight.dim() == 2)
    width = states[0].shape[-1] * (2 if a["bidirectional"] else 1)
    moved = _nbytes((inputs, *weights)) + 2 * _nbytes(states) + rows * width * inputs.element_size()
    return _cost(moved, flops, inputs.dtype)


def _rnn_backward(a: Arguments) -> Cost:
    """What a forward reads, the output and its gradients read; those of ``output_mask`` written.

    Each product of a forward is made three times: the gates' again, the gradient of what it read, the
    gradient of the weight. An RNN, whose state says what its gate was, makes the first not again.
    """
    inputs, hidden = a["input"], a["hidden_size"]
    gates = {0: 1, 1: 1, 2: 4, 3: 3}[a["mode"]]
    directions, again = 2 if a["bidirectional"] else 1, gates > 1
    of_input, _, _, of_weights = a["output_mask"]
    steps = math.prod(inputs.shape[:-1])
    flops, width = 0, inputs.shape[-1]
    for layer in range(a["num_layers"]):
        product = directions * 2 * steps * gates * hidden
        flops += product * hidden * (1 + again + of_weights)
        flops += product * width * (again + of_weights + (of_input or layer > 0))
        width = directions * hidden
    grads = _nbytes((a["output"], a["grad_output"], a["grad_hy"], a["grad_cy"], a["hx"], a["cx"]))
    results = of_weights * _nbytes(a["weight"]) + of_input * _nbytes((inputs,)) + _nbytes((a["hx"], a["cx"]))
    return _cost(_nbytes((inputs, *a["weight"])) + grads + results, flops, inputs.dtype)


def _composite_cell(a: Arguments, gates: int, gate_flops: int) -> Cost:
    """Input [B, I], states [B, H], weights [gates * H, I] and [gates * H, H], biases read; states written.

    2 * B * gates * H * (I + H) FLOPs of matrix products, and ``gate_flops`` an element; biases add 2 a gate.
    """
    inputs, weights = a["input"], (a["w_ih"], a["w_hh"])
    states = tuple(a["hx"]) if isinstance(a["hx"], (list, tuple)) else (a["hx"],)
    flops = 2 * inputs.shape[0] * sum(weight.numel() for weight in weights)
    flops += (gate_flops + (2 * gates if a["b_ih"] is not None else 0)) * states[0].numel()
    read = _nbytes((inputs, *states, *weights, a["b_ih"], a["b_hh"]))
    return _cost(read + _nbytes(states), flops, inputs.dtype)


def _composite_gru_cell(a: Arguments) -> Cost:
    """The gates as in :func:`_gru_cell`."""
    return _composite_cell(a, 3, 16)


def _composite_lstm_cell(a: Arguments) -> Cost:
    """Three sigmoids and a tanh of a sum (5 each, 2), f * c + i * g (3), o * tanh(c) (2)."""
    return _composite_cell(a, 4, 22)


def _composite_rnn_cell(a: Arguments) -> Cost:
    """A sum and its activation."""
    return _composite_cell(a, 1, 2)


def _product(left: torch.Tensor, right: torch.Tensor) -> tuple[int, int, int]:
    """Bytes, FLOPs and results of [N, K] @ [K, M] -> [N, M]."""
    results = left.shape[0] * right.shape[1]
    moved = _nbytes((left, right)) + results * left.element_size()
    return moved, 2 * results * left.shape[1], results


def _mm(a: Arguments) -> Cost:
    """[N, K] @ [K, M]: 2 * N * K * M FLOPs."""
    moved, flops, _ = _product(a["self"], a["mat2"])
    return _cost(moved, flops, a["self"].dtype)


def _addmm(a: Arguments) -> Cost:
    """The product: beta * self + alpha * (mat1 @ mat2), and where there is one an activation.

    ReLU is a maximum; GELU in its tanh form takes 9: 0.5 * x * (1 + tanh(c * (x + 0.044715 * x * x * x))).
    """
    moved, flops, results = _product(a["mat1"], a["mat2"])
    beta, alpha = a["beta"], a["alpha"]
    each = (beta != 0) * (1 + (beta != 1)) + (alpha != 1)
    if "use_gelu" in a:
        each += 9 if a["use_gelu"] else 1
    moved += _nbytes((a["self"],)) if beta != 0 else 0
    return _cost(moved, flops + each * results, a["mat1"].dtype)


FORMULAS: dict[str, Callable[[Arguments], Cost]] = {
    "_addmm_activation": _addmm,
    "_cudnn_rnn": _rnn,
    "_cudnn_rnn_backward": _rnn_backward,
    "_foreach_add_": _foreach_add,
    "_fused_adagrad_": _adagrad,
    "_fused_adam_": _adam,
    "_fused_adamw_": _adam,
    "_fused_sgd_": _sgd,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "addmm": _addmm,
    "cat": _cat,
    "gru": _layers,
    "gru_cell": _composite_gru_cell,
    "lstm": _layers,
    "lstm_cell": _composite_lstm_cell,
    "mm": _mm,
    "rnn_relu": _layers,
    "rnn_relu_cell": _composite_rnn_cell,
    "rnn_tanh": _layers,
    "rnn_tanh_cell": _composite_rnn_cell,
}
"""By the operator's name; one for all its overloads."""


def cost(name: str, arguments: Arguments) -> Cost | None:
    """What a call of the override ``name`` has to do; None for an override without a formula."""
    formula = FORMULAS.get(name.partition(".")[0])
    return formula(arguments) if formula else None
