"""When a layer in training (_cudnn_rnn, _cudnn_rnn_backward) runs fused: every reason of the rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aten_ext
from ops.rnn.cases import DTYPES, GRU, ask_layer, documented, flattened, meta, names, weights


def ask_backward(
    *,
    steps: int = 3,
    batch: int = 2,
    inputs: int = 6,
    hidden: int = 8,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    batch_first: bool = False,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> Any:
    """What _cudnn_rnn_backward answers for meta tensors; ``changes`` replaces arguments."""
    directions = 2 if bidirectional else 1
    shape = (batch, steps) if batch_first else (steps, batch)
    output = meta(*shape, directions * hidden, dtype=dtype)
    state = meta(layers * directions, batch, hidden, dtype=dtype)
    listed = weights(inputs, hidden, layers, directions, bias, dtype=dtype)
    inner = -(-output.numel() * dtype.itemsize // 256) * 256
    arguments: dict[str, Any] = {
        "input": meta(*shape, inputs, dtype=dtype),
        "weight": listed,
        "weight_stride0": 4 if bias else 2,
        "weight_buf": flattened(listed, bias=bias)[0],
        "hx": state,
        "cx": None,
        "output": output,
        "grad_output": output,
        "grad_hy": state,
        "grad_cy": None,
        "mode": GRU,
        "hidden_size": hidden,
        "proj_size": 0,
        "num_layers": layers,
        "batch_first": batch_first,
        "dropout": 0.0,
        "train": True,
        "bidirectional": bidirectional,
        "batch_sizes": [],
        "dropout_state": None,
        "reserve": meta(1, (layers - 1) * inner, dtype=torch.uint8),
        "output_mask": [True, True, False, True],
    }
    return aten_ext.explain("_cudnn_rnn_backward", key="CUDA", **arguments | changes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"layers": 3, "bidirectional": True},
        {"layers": 2, "batch_first": True, "bias": False},
        {"grad_output": None},
        {"grad_hy": None, "grad_output": None},
        {"output_mask": [False, False, False, True]},
        {"grad_output": torch.empty((), device="meta").expand(3, 2, 8)},
    ],
    ids=names,
)
def test_backward_runs(dtype: torch.dtype, sizes: dict[str, Any]) -> None:
    if "grad_output" in sizes and sizes["grad_output"] is not None:
        sizes = {"grad_output": torch.empty((), device="meta", dtype=dtype).expand(3, 2, 8)}
    assert ask_backward(dtype=dtype, **sizes).reason == ""


def test_saved_weights_may_lie_anywhere() -> None:
    """Saved tensors come back as copies: no views of weight_buf, also where autocast made columns of them."""
    columns = [w.flatten()[:, None] for w in weights(6, 8)]
    assert ask_backward(weight=columns).reason == ""
    assert ask_backward(weight=columns[:3]).reason == "weight list that does not fit the layers"


NOT_OURS = [
    ("reserve of another size", {"layers": 2, "reserve": meta(1, 1, dtype=torch.uint8)}),
    ("reserve of another size", {"reserve": meta(2, 0, dtype=torch.uint8)}),
    ("reserve of another size", {"reserve": torch.empty(1, 0, dtype=torch.uint8)}),
    ("output of another size", {"output": meta(3, 2, 9)}),
    ("output of another size", {"output": meta(2, 3, 8)}),
    ("gradient of another size", {"grad_output": meta(3, 2, 9)}),
    ("gradient of another size", {"grad_hy": meta(1, 2, 9)}),
    ("more than one dtype", {"grad_hy": meta(1, 2, 8).half()}),
    ("more than one device", {"grad_output": torch.empty(3, 2, 8)}),
    ("more than one dtype", {"output": meta(3, 2, 8).half()}),
    ("initial state that is not contiguous or of another size", {"hx": meta(1, 3, 8)}),
]


@pytest.mark.parametrize(("reason", "changes"), NOT_OURS, ids=names)
def test_backward_that_does_not_fit(reason: str, changes: dict[str, Any]) -> None:
    assert ask_backward(**changes).reason == documented(reason)


def test_forward_in_training() -> None:
    for dtype in DTYPES:
        for steps in (1, 2, 4):
            assert ask_layer(train=True, steps=steps, dtype=dtype) == ""
        assert ask_layer(train=True, steps=2, layers=2, dtype=dtype) == ""
    assert ask_layer(train=True, steps=2, dropout=0.5) == "", "of one layer there is none"
    assert ask_layer(train=True, steps=2, layers=2, dropout=0.5) == "dropout between layers"
    assert ask_layer(steps=2, layers=2, dropout=0.5) == "", "it acts in training alone"
    assert ask_layer(train=True, steps=1, batch=9) == "one step of a large batch", "as in inference"
