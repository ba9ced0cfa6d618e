"""When a layer in training (_cudnn_rnn, _cudnn_rnn_backward) runs fused: every reason of the rule."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

import aten_ext
from gpus import GPUS, lacks, pretended
from ops.rnn.cases import (
    DTYPES,
    GRU,
    LSTM,
    TANH,
    ask_layer,
    documented,
    flattened,
    meta,
    names,
    tf32_allowed,
    weights,
    with_gradients,
)


def backward_arguments(
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
) -> dict[str, Any]:
    """Of _cudnn_rnn_backward, on the meta device; ``changes`` replaces some."""
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
    return arguments | changes


def ask_backward(**case: Any) -> Any:
    """What the rule answers: :func:`backward_arguments`."""
    return aten_ext.explain("_cudnn_rnn_backward", key="CUDA", **backward_arguments(**case))


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


KEPT = "layer that upstream trains in less time"


def test_forward_in_training() -> None:
    for dtype in DTYPES:
        for steps in (1, 4, 5, 300):
            assert ask_layer(train=True, steps=steps, dtype=dtype, hidden=256) == (
                KEPT if (steps, dtype) == (1, torch.float16) else ""
            )
        assert ask_layer(train=True, steps=5, layers=2, dtype=dtype, bidirectional=True) == ""
    assert ask_layer(train=True, hidden=256, dropout=0.5) == "", "of one layer there is none"
    assert ask_layer(steps=2, layers=2, dropout=0.5) == "", "it acts in training alone"
    for captured in (False, True):
        one: dict[str, Any] = {"train": True, "steps": 1, "captured": captured}
        assert ask_layer(**one, batch=1024) == "", "as in inference"
        assert ask_layer(**one, batch=1025) == "one step of a large batch"


def test_four_steps_of_an_lstm_in_fp16() -> None:
    """In a graph; from Python upstream's launches take longer. Smaller layers cuDNN keeps on the chip."""

    def asked(hidden: int, batch: int, inputs: int = 512, **changes: Any) -> str:
        x = meta(4, batch, inputs, dtype=torch.float16).requires_grad_()
        layer: dict[str, Any] = {"mode": LSTM, "dtype": torch.float16, "train": True, "steps": 4}
        return ask_layer(**layer, hidden=hidden, batch=batch, inputs=inputs, input=x, **changes)

    assert [asked(128, batch) for batch in (79, 80, 256, 257)] == ["", KEPT, KEPT, ""]
    assert [asked(hidden, 100, inputs=8) for hidden in (120, 128, 129)] == [KEPT, KEPT, ""]
    assert asked(128, 192, captured=False) == ""


def test_dropout_between_layers() -> None:
    """With cuDNN's states, of a probability that leaves something."""
    states = meta(512, dtype=torch.uint8)
    for dtype in DTYPES:
        stack: dict[str, Any] = {"train": True, "layers": 2, "hidden": 256, "dtype": dtype}
        assert ask_layer(**stack, dropout=0.2, dropout_state=states) == ""
        assert ask_layer(**stack, dropout=0.2, dropout_state=states, bidirectional=True) == ""
        lengths: dict[str, Any] = {"input": meta(12, 6, dtype=dtype), "batch_sizes": [2] * 4 + [1] * 4}
        assert ask_layer(**stack, **lengths, dropout=0.2, dropout_state=states) == (
            "" if dtype == torch.float32 else ask_layer(**stack, **lengths)
        )
    stack = {"train": True, "layers": 2, "hidden": 256}
    few = documented("few steps with dropout between layers")
    for steps, captured, answer in ((4, False, ""), (4, True, few), (5, True, "")):
        asked = ask_layer(**stack, steps=steps, captured=captured, dropout=0.2, dropout_state=states)
        assert asked == answer, (steps, captured)
        assert ask_layer(**stack, steps=steps, captured=captured) == "", "without dropout"
    for p in (1.0, 1 - 1e-12, 1e-60, -0.1, 1.5, float("nan")):
        answer = ask_layer(**stack, dropout=p, dropout_state=states)
        assert answer == "dropout that is not between 0 and 1", p
    for others in (
        None,
        states.float(),
        states[::2],
        states.view(2, 256),
        torch.empty(512, dtype=torch.uint8),
    ):
        answer = ask_layer(**stack, dropout=0.2, dropout_state=others)
        assert answer == "dropout without cuDNN's states"
    large = {"steps": 4000, "batch": 530, "layers": 2, "hidden": 1024, "dtype": torch.bfloat16}
    assert ask_layer(**large, train=True, dropout=0.2, dropout_state=states) == "sizes beyond 32 bits"
    assert ask_layer(**large, train=True) != "sizes beyond 32 bits"


def test_dropout_is_explained() -> None:
    explanation = aten_ext.explain(
        "_cudnn_rnn", key="CUDA", **stack_arguments(), dropout=0.2, dropout_state=meta(512, dtype=torch.uint8)
    )
    assert str(explanation.plan).endswith(", dropout 0.2 as cuDNN draws it")
    explanation = aten_ext.explain(
        "_cudnn_rnn", key="CUDA", **stack_arguments(), dropout=0.0, dropout_state=None
    )
    assert "dropout" not in str(explanation.plan)


def test_the_backward_of_dropout() -> None:
    """It draws nothing, so it asks for no states; its reserve has the bits."""
    inner = -(-3 * 2 * 16 * 4 // 256) * 256
    sizes: dict[str, Any] = {"layers": 3, "bidirectional": True, "dropout": 0.2}
    reserve = meta(1, 2 * inner + 4 * 256, dtype=torch.uint8)
    assert ask_backward(**sizes, reserve=reserve).reason == ""
    assert ask_backward(**sizes).reason == "reserve of another size"
    assert ask_backward(**sizes | {"dropout": 0.0}, reserve=reserve).reason == "reserve of another size"


def test_small_layers() -> None:
    """CuDNN keeps them on the chip, but for bf16 and one step."""
    for dtype in DTYPES:
        for steps in (1, 5, 65):
            kept = steps > 1 and dtype != torch.bfloat16
            assert ask_layer(train=True, steps=steps, dtype=dtype) == (KEPT if kept else "")
            both = {"train": True, "dtype": dtype, "bidirectional": True, "hidden": 32}
            assert ask_layer(**both, steps=steps) == "", "both at once"
            assert ask_layer(steps=steps, dtype=dtype) == "", "in inference"
    lengths: dict[str, Any] = {"input": meta(130, 6), "batch_sizes": [2] * 65}
    assert ask_layer(train=True, **lengths) == "", "upstream runs a packed sequence step by step"


def test_launches_decide_outside_a_graph_with_gradients() -> None:
    """Up to 200 steps of all layers, and 12 million multiply-adds a multiprocessor."""
    small: dict[str, Any] = {"batch": 2, "inputs": 8, "hidden": 64}
    for steps, layers in ((200, 1), (100, 2)):
        assert with_gradients(steps=steps, layers=layers, **small) == KEPT
        assert with_gradients(steps=steps, layers=layers, **small, captured=False) == ""
        assert with_gradients(steps=steps + 1, layers=layers, **small, captured=False) == KEPT
    # 4 * 96 * (400 + 96) weights, 80 steps: 15.2 million multiply-adds a row.
    wide: dict[str, Any] = {"steps": 80, "inputs": 400, "hidden": 96, "mode": LSTM, "dtype": torch.float16}
    assert with_gradients(**wide, batch=103) == KEPT
    assert with_gradients(**wide, batch=103, captured=False) == ""
    assert with_gradients(**wide, batch=104, captured=False) == KEPT


def test_what_cudnn_keeps_on_the_chip_is_judged_anew_with_gradients() -> None:
    """A small layer of many rows is ours then; few steps and cuDNN's kernel of large layers are not."""
    on_chip = "layer that cuDNN keeps on the chip"
    many: dict[str, Any] = {"batch": 500, "inputs": 8, "hidden": 56, "mode": LSTM}
    assert ask_layer(train=True, steps=300, **many) == on_chip
    assert with_gradients(steps=300, **many) == ""
    assert with_gradients(steps=5, **many | {"batch": 24}) == KEPT
    assert with_gradients(steps=4, **many) == documented("layer that cuDNN keeps on the chip")
    large: dict[str, Any] = {"batch": 16, "inputs": 1024, "hidden": 1024, "mode": LSTM}
    assert with_gradients(steps=100, **large, dtype=torch.float16) == on_chip
    assert with_gradients(steps=100, **large, dtype=torch.bfloat16) == ""
    tanh: dict[str, Any] = {"steps": 70, "batch": 256, "inputs": 64, "mode": TANH, "dtype": torch.float16}
    assert with_gradients(**tanh, hidden=256) == on_chip, "larger than what was measured in training"


def test_launches_decide_outside_a_graph() -> None:
    """Without gradients up to 40 steps of all layers, and 6 million multiply-adds a multiprocessor."""
    step: dict[str, Any] = {"train": True, "steps": 1, "hidden": 256, "mode": LSTM, "dtype": torch.bfloat16}
    small: dict[str, Any] = {"train": True, "inputs": 8, "hidden": 64}
    for kept in (step | {"inputs": 300}, step | {"layers": 2}, small | {"steps": 40}):
        assert ask_layer(**kept) == KEPT
        assert ask_layer(**kept, captured=False) == ""
    assert ask_layer(**small, steps=20, layers=2, captured=False) == ""
    assert ask_layer(**small, steps=21, layers=2, captured=False) == KEPT
    assert ask_layer(**small, steps=41, captured=False) == KEPT
    # 3 * 64 * (8 + 64) weights in two directions, 40 steps: 1.1 million multiply-adds a row.
    wide = small | {"steps": 40, "bidirectional": True, "dtype": torch.float16}
    assert ask_layer(**wide, batch=716) == KEPT
    assert ask_layer(**wide, batch=716, captured=False) == ""
    assert ask_layer(**wide, batch=717, captured=False) == KEPT
    with pretended(dataclasses.replace(GPUS["sm_90"], multiprocessors=66)):
        assert ask_layer(**wide, batch=358, captured=False) == ""
        assert ask_layer(**wide, batch=359, captured=False) == KEPT


def test_layers_without_a_fast_backward() -> None:
    """In inference they are ours."""
    with tf32_allowed(False):
        for sizes in ({"hidden": 1024, "batch": 32}, {"hidden": 2000, "batch": 2, "steps": 10}):
            assert ask_layer(**sizes) == ""
            assert ask_layer(train=True, **sizes) == "no fast backward"
            assert ask_layer(train=True, **sizes | {"batch": 1, "hidden": 600}) == ""


def stack_arguments() -> dict[str, Any]:
    """Of _cudnn_rnn without those of dropout, in training."""
    return {
        "input": meta(5, 2, 6),
        "weight": weights(6, 256, 2),
        "weight_stride0": 4,
        "weight_buf": None,
        "hx": meta(2, 2, 256),
        "cx": None,
        "mode": GRU,
        "hidden_size": 256,
        "proj_size": 0,
        "num_layers": 2,
        "batch_first": False,
        "train": True,
        "bidirectional": False,
        "batch_sizes": [],
    }


def described(**sizes: Any) -> str:
    explanation = ask_backward(**sizes)
    assert explanation.reason == ""
    return str(explanation.plan)


def test_plans() -> None:
    """One launch from two steps on, chunks of a long sequence, and a launch a step otherwise."""
    assert described(steps=1) == "backward: a product and a launch for each step"
    assert "in one launch" in described(steps=2)
    assert "steps at a time" not in described(steps=800, batch=8, hidden=256)
    assert "500 steps at a time" in described(steps=1000, batch=8, hidden=256)
    # Of two halves each is more than may be at once.
    assert "134 steps at a time" in described(steps=400, batch=128, hidden=512, dtype=torch.float16)


@pytest.mark.parametrize("name", GPUS)
def test_what_is_chosen_would_launch(name: str) -> None:
    """On every GPU, and every forward that is taken in training has a backward."""
    gpu, chosen = GPUS[name], 0
    cases = itertools.product(
        DTYPES, (1, 2, 40), (1, 17, 128, 600), (1, 64, 129, 257, 512, 700, 1024), (1, 2)
    )
    for dtype, steps, batch, hidden, directions in cases:
        sizes: dict[str, Any] = {
            "dtype": dtype,
            "steps": steps,
            "batch": batch,
            "inputs": 8,
            "hidden": hidden,
            "bidirectional": directions == 2,
        }
        with pretended(gpu):
            arguments = backward_arguments(**sizes).values()
            _, reason, _, needs = torch.ops.aten_ext.explain_CUDA__cudnn_rnn_backward(*arguments)
            assert reason == "", "there is always one"
            if ask_layer(train=True, **sizes) == "":
                chosen += 1
                assert lacks(gpu, needs) is None, sizes
    assert chosen > 0 or gpu.code < 80


def plan_of(
    steps: int, batch: int, mode: int, dtype: torch.dtype, gradients: bool = True, **sizes: int
) -> str:
    """What explain says of a layer in training of an H200."""
    inputs, hidden, layers = sizes.get("inputs", 128), sizes.get("hidden", 256), sizes.get("layers", 1)
    arguments: dict[str, Any] = {
        "input": meta(steps, batch, inputs, dtype=dtype).requires_grad_(gradients),
        "weight": weights(inputs, hidden, layers, 1, True, mode, dtype=dtype),
        "weight_stride0": 4,
        "weight_buf": None,
        "hx": meta(layers, batch, hidden, dtype=dtype),
        "cx": meta(layers, batch, hidden, dtype=dtype) if mode == LSTM else None,
        "mode": mode,
        "hidden_size": hidden,
        "proj_size": 0,
        "num_layers": layers,
        "batch_first": False,
        "dropout": 0.0,
        "train": True,
        "bidirectional": False,
        "batch_sizes": [],
        "dropout_state": None,
    }
    explanation = aten_ext.explain("_cudnn_rnn", key="CUDA", **arguments)
    assert explanation.route == "fused", explanation.reason
    return str(explanation.plan)


def test_which_forwards_save() -> None:
    """Not those of few units and many steps of a GRU; and nobody where no gradient can come."""
    saves = "saves what the backward needs"
    for mode in (GRU, LSTM):
        for dtype in DTYPES:
            assert saves in plan_of(200, 32, mode, dtype)
            assert saves not in plan_of(200, 32, mode, dtype, gradients=False)
            with torch.no_grad():
                assert saves not in plan_of(200, 32, mode, dtype)
    assert saves not in plan_of(200, 8, GRU, torch.bfloat16)
    assert saves in plan_of(200, 12, GRU, torch.bfloat16)
    assert saves in plan_of(40, 8, GRU, torch.bfloat16)
    assert saves in plan_of(200, 8, LSTM, torch.bfloat16)
    assert saves in plan_of(200, 8, GRU, torch.float32)
    assert saves not in plan_of(200, 1, GRU, torch.float32)


def test_a_projection_in_tf32_is_said() -> None:
    """Beside a recurrence in fp32: where it is allowed, of many rows, and not of 16 bits."""
    tf32 = "the input's product in TF32"
    small = {"hidden": 128, "inputs": 128}
    with tf32_allowed(True):
        assert tf32 in plan_of(50, 4, GRU, torch.float32, **small)
        assert tf32 in plan_of(50, 4, LSTM, torch.float32, hidden=128, inputs=8, layers=2), (
            "of the second layer"
        )
        assert tf32 not in plan_of(30, 4, GRU, torch.float32, **small), "few rows"
        assert tf32 not in plan_of(50, 4, GRU, torch.float32, hidden=128, inputs=8)
        assert tf32 in plan_of(50, 4, GRU, torch.float32, hidden=256, inputs=128)
        assert tf32 not in plan_of(50, 4, GRU, torch.float32, hidden=256, inputs=128, layers=2), (
            "of a stack of large layers cuDNN does some in fp32"
        )
        assert tf32 not in plan_of(50, 4, GRU, torch.float32, hidden=64, inputs=201), "in inference alone"
        assert tf32 not in plan_of(50, 4, GRU, torch.bfloat16, **small)
    with tf32_allowed(False):
        assert tf32 not in plan_of(50, 4, GRU, torch.float32, **small)


def test_projections_beside_what_is_saved() -> None:
    """Of a long LSTM in 16 bits in two parts: both together would be more than upstream's peak."""
    assert "500 steps at a time" in plan_of(1000, 8, LSTM, torch.bfloat16)
    assert "160 steps at a time" in plan_of(320, 32, LSTM, torch.bfloat16, layers=2), "all layers' is saved"
    for other in (
        plan_of(319, 32, LSTM, torch.bfloat16, layers=2),
        plan_of(320, 32, LSTM, torch.bfloat16),
        plan_of(1000, 8, LSTM, torch.float32),
        plan_of(1000, 8, LSTM, torch.bfloat16, gradients=False),
        plan_of(600, 16, LSTM, torch.bfloat16),
        plan_of(700, 8, LSTM, torch.bfloat16),
        plan_of(1000, 12, GRU, torch.bfloat16),
    ):
        assert "at a time" not in other
