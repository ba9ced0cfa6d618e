"""What tests of the recurrent layers share: arguments of a layer, its rule's answer, how to judge results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import aten_ext
from gpus import pretended_capture
from paths import DOCS

DOCUMENTATION = (DOCS / "overrides.md").read_text()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FLOOR = {torch.float32: 1e-7, torch.float16: 2.5e-4, torch.bfloat16: 2e-3}
MANY = 256
"""Elements of which the mean error is no chance."""
RELU, TANH, LSTM, GRU = range(4)
CELLS = {"relu": RELU, "tanh": TANH, "lstm": LSTM, "gru": GRU}
"""Names of PyTorch's modes."""
MIB = 1 << 20
GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}


def documented(reason: str) -> str:
    """``reason``, if docs/overrides.md has it, word for word."""
    assert f"| `{reason}` |" in DOCUMENTATION, reason
    return reason


@contextmanager
def tf32_allowed(allowed: bool) -> Iterator[None]:
    """Whether cuDNN may use TF32 in a ``with`` block."""
    before = torch.backends.cudnn.allow_tf32
    # Not through torch.backends, which torch.testing._internal locks for a whole process.
    torch._C._set_cudnn_allow_tf32(allowed)
    try:
        yield
    finally:
        torch._C._set_cudnn_allow_tf32(before)


def names(value: object) -> str:
    """Short names of a test's parameters."""
    return ", ".join(value) if isinstance(value, dict) else str(value)


def meta(*shape: int, **options: Any) -> torch.Tensor:
    """A tensor that has a shape and no memory."""
    return torch.empty(*shape, device="meta", **options)


def new_module(mode: int, inputs: int, hidden: int, layers: int = 1, **options: Any) -> torch.nn.RNNBase:
    """``nn.GRU``, ``nn.LSTM`` or ``nn.RNN``."""
    if mode == GRU:
        return torch.nn.GRU(inputs, hidden, layers, **options)
    if mode == LSTM:
        return torch.nn.LSTM(inputs, hidden, layers, **options)
    return torch.nn.RNN(inputs, hidden, layers, nonlinearity="tanh" if mode == TANH else "relu", **options)


def states(result: Any) -> list[torch.Tensor]:
    """Output and final states of a module's call: hy, and of an LSTM cy too."""
    y, last = result
    return [y, *(last if isinstance(last, tuple) else [last])]


def weights(
    inputs: int,
    hidden: int,
    layers: int = 1,
    directions: int = 1,
    bias: bool = True,
    mode: int = GRU,
    **options: Any,
) -> list[torch.Tensor]:
    """The list that _cudnn_rnn takes, on the meta device."""
    result = []
    gates = GATES.get(mode, 3) * hidden
    for layer in range(layers):
        for _ in range(directions):
            columns = inputs if layer == 0 else hidden * directions
            shapes = [
                (gates, columns),
                (gates, hidden),
                *([(gates,), (gates,)] if bias else []),
            ]
            result += [torch.empty(*shape, device="meta", **options) for shape in shapes]
    return result


def flattened(
    tensors: list[torch.Tensor], *, bias: bool = True, columns: bool = False
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The one buffer that cuDNN keeps weights in, and the list as views of it.

    All matrices, then all biases, zeros for layers without: what a flattened ``nn.GRU`` on a GPU has
    (test_weight_buf.py).

    Args:
        tensors: the list that _cudnn_rnn takes.
        bias: whether there are biases among them.
        columns: the views are one column each, as autocast passes them.
    """
    stride = 4 if bias else 2
    gates = tensors[0].shape[0]
    places: dict[int, int] = {}
    end = 0
    for kinds in ((0, 1), (2, 3)):
        for first in range(0, len(tensors), stride):
            for kind in kinds:
                if kind < stride:
                    places[first + kind] = end
                end += tensors[first + kind].numel() if kind < stride else gates
    buffer = tensors[0].new_zeros(end)
    views = []
    for i, t in enumerate(tensors):
        view = buffer[places[i] : places[i] + t.numel()]
        view.copy_(t.detach().flatten())
        views.append(view[:, None] if columns else view.view(t.shape))
    return buffer, views


def explain_layer(
    *,
    steps: int = 5,
    batch: int = 2,
    inputs: int = 6,
    hidden: int = 8,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    batch_first: bool = False,
    dtype: torch.dtype = torch.float32,
    mode: int = GRU,
    captured: bool = True,
    **changes: Any,
) -> aten_ext.Explanation:
    """The explanation of ``_cudnn_rnn`` for a layer on the meta device; ``changes`` replaces arguments.

    Into a CUDA graph, if not said otherwise: the GPU's time alone decides there.
    """
    directions = 2 if bidirectional else 1
    shape = (batch, steps, inputs) if batch_first else (steps, batch, inputs)
    stride = 4 if bias else 2
    arguments: dict[str, Any] = {
        "input": torch.empty(shape, device="meta", dtype=dtype),
        "weight": weights(inputs, hidden, layers, directions, bias, mode, dtype=dtype),
        "weight_stride0": stride,
        "weight_buf": None,
        "hx": torch.empty(layers * directions, batch, hidden, device="meta", dtype=dtype),
        "cx": meta(layers * directions, batch, hidden, dtype=dtype) if mode == LSTM else None,
        "mode": mode,
        "hidden_size": hidden,
        "proj_size": 0,
        "num_layers": layers,
        "batch_first": batch_first,
        "dropout": 0.0,
        "train": False,
        "bidirectional": bidirectional,
        "batch_sizes": [],
        "dropout_state": None,
    }
    with pretended_capture(captured):
        return aten_ext.explain("_cudnn_rnn", key="CUDA", **arguments | changes)


def ask_layer(**changes: Any) -> str:
    """The reason that ``_cudnn_rnn`` gives, "" if the fused kernel runs; as :func:`explain_layer`."""
    explanation = explain_layer(**changes)
    assert (explanation.route == "upstream") == bool(explanation.reason)
    return documented(explanation.reason) if explanation.reason else ""


def with_gradients(
    *, steps: int, batch: int, inputs: int, dtype: torch.dtype = torch.float32, **case: Any
) -> str:
    """What the rule answers about a layer whose input wants a gradient."""
    x = torch.empty(steps, batch, inputs, device="meta", dtype=dtype, requires_grad=True)
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "inputs": inputs, "dtype": dtype}
    return ask_layer(train=True, **sizes, **case, input=x)


def assert_ran(name: str, times: int = 1) -> None:
    """The fused kernel of this override ran so often, and nothing went upstream."""
    counts = aten_ext.counts("CUDA")[name]
    assert (counts.ran, dict(counts.declined)) == (times, {})


def no_less_accurate(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, floor: float) -> None:
    """Mean error at most 1.5 times upstream's, the largest, which is chance, 2.5; a rounding is none.

    Args:
        ours: what the fused kernel gave.
        theirs: what upstream gave.
        exact: in float64.
        floor: a rounding of a result of up to 1. A state that was given may be larger, and its roundings too.
    """
    assert ours.shape == theirs.shape and ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
    floor *= max(1.0, exact.abs().max().item())
    chance = 3.0 if exact.numel() < MANY else 1.0  # upstream's largest of few may be small by chance
    for measure, most, least in ((torch.max, 2.5, chance * floor), (torch.mean, 1.5, floor)):
        mine, upstreams = (measure((t.double() - exact).abs()).item() for t in (ours, theirs))
        assert mine <= most * upstreams + least, (measure.__name__, mine, upstreams)


def peak(call: Callable[[], object]) -> float:
    """MiB that a call takes at most beyond what there is."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB
