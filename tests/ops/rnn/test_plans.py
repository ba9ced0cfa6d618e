"""Every plan of the recurrent layers on every GPU: what is chosen would launch, nothing divides by zero."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from device_on_host import library
from gpus import GPUS, lacks, pretended
from ops.rnn.cases import CELLS, DTYPES, GRU, LSTM, TANH, new_module, states, tf32_allowed, weights
from ops.rnn.on_host_cases import TF32_TOLERANCE, TOLERANCE, load

STEPS = (1, 2, 4, 5, 40)
BATCHES = (1, 2, 5, 17, 33, 128, 600)
HIDDEN = (1, 16, 32, 33, 64, 65, 96, 128, 129, 196, 256, 257, 400, 512, 513, 640, 700, 1024, 1025, 1500, 2048)
INPUTS = (8, 1024)
TOO_OLD = "GPU, or code built for it, too old for the kernel"


def meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def layer(
    dtype: torch.dtype, steps: int, batch: int, inputs: int, hidden: int, directions: int, mode: int = GRU
) -> tuple[Any, ...]:
    """Arguments of ``_cudnn_rnn``, on the meta device."""
    list_of_weights = weights(inputs, hidden, directions=directions, mode=mode, dtype=dtype)
    x, h = meta(steps, batch, inputs, dtype=dtype), meta(directions, batch, hidden, dtype=dtype)
    c = meta(directions, batch, hidden, dtype=dtype) if mode == LSTM else None
    options = (mode, hidden, 0, 1, False, 0.0, False, directions == 2, [], None)
    return x, list_of_weights, 4, None, h, c, *options


def cell(dtype: torch.dtype, batch: int, inputs: int, hidden: int, mode: int = GRU) -> tuple[Any, ...]:
    x, h = meta(batch, inputs, dtype=dtype), meta(batch, hidden, dtype=dtype)
    return x, [h, h] if mode == LSTM else h, *weights(inputs, hidden, mode=mode, dtype=dtype)


CELL_OF = {GRU: "gru_cell", LSTM: "lstm_cell", TANH: "rnn_tanh_cell"}
"""RNNs with relu have the plans of those with tanh."""


def gates(dtype: torch.dtype, batch: int, hidden: int) -> tuple[Any, ...]:
    products = [meta(batch, 3 * hidden, dtype=dtype) for _ in range(2)]
    return *products, meta(batch, hidden, dtype=dtype), None, None


def training_gates(dtype: torch.dtype, batch: int, hidden: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The gates of an LSTM's step, and the backwards of both cells' with and without biases."""
    state, four = meta(batch, hidden, dtype=dtype), meta(batch, 4 * hidden, dtype=dtype)
    bias = meta(4 * hidden, dtype=dtype)
    yield "_thnn_fused_lstm_cell", (four, four, state, bias, bias)
    for has_bias in (False, True):
        yield (
            "_thnn_fused_gru_cell_backward",
            (state, meta(batch, 5 * hidden, dtype=dtype), has_bias),
        )
        yield "_thnn_fused_lstm_cell_backward_impl", (state, None, state, state, four, has_bias)


def calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    for dtype, batch, hidden in itertools.product(DTYPES, BATCHES, HIDDEN):
        for mode, op in CELL_OF.items():
            for steps, inputs, directions in itertools.product(STEPS, INPUTS, (1, 2)):
                yield "_cudnn_rnn", layer(dtype, steps, batch, inputs, hidden, directions, mode)
            for inputs in INPUTS:
                yield op, cell(dtype, batch, inputs, hidden, mode)
        yield "_thnn_fused_gru_cell", gates(dtype, batch, hidden)
    for dtype, batch, hidden in itertools.product((*DTYPES, torch.float64), BATCHES, HIDDEN):
        yield from training_gates(dtype, batch, hidden)


@pytest.fixture(scope="module")
def all_calls() -> list[tuple[str, tuple[Any, ...]]]:
    return list(calls())


@pytest.mark.parametrize("name", GPUS)
def test_what_is_chosen_would_launch(all_calls: list[tuple[str, tuple[Any, ...]]], name: str) -> None:
    gpu = GPUS[name]
    chosen = 0
    for allowed in (False, True):
        with pretended(gpu), tf32_allowed(allowed):
            for op, arguments in all_calls:
                _, reason, plan, needs = getattr(torch.ops.aten_ext, f"explain_CUDA_{op}")(*arguments)
                if not reason:
                    chosen += 1
                    assert plan and lacks(gpu, needs) is None, (op, arguments, plan, needs)
    assert chosen > 300


def test_tensor_cores_need_the_code_of_sm_80() -> None:
    """Code for sm_75 has a trap in their place, which takes the CUDA context with it."""
    for name in ("sm_75", "sm_90 with PTX of sm_75"):
        with pretended(GPUS[name]):
            for dtype in (torch.float16, torch.bfloat16):
                explain = torch.ops.aten_ext.explain_CUDA_gru_cell
                assert explain(*cell(dtype, 2, 64, 64))[1] == TOO_OLD
                assert explain(*cell(dtype, 1, 64, 64))[1] == ""
                assert explain(*cell(torch.float32, 4, 64, 64))[1] == ""
                assert torch.ops.aten_ext.explain_CUDA__cudnn_rnn(*layer(dtype, 5, 2, 8, 64, 1))[1] == TOO_OLD


def test_grids_are_counted() -> None:
    """What runs over the whole GPU says how many blocks have to run at once."""
    needs = torch.ops.aten_ext.explain_CUDA__cudnn_rnn(*layer(torch.float32, 5, 1, 8, 1024, 1))[3]
    assert needs == [80, needs[1], 1, 128, 1]


def test_one_multiprocessor() -> None:
    one = dataclasses.replace(GPUS["sm_80"], multiprocessors=1, clusters=(1, 0, 0, 0, 0))
    with pretended(one):
        explain = torch.ops.aten_ext.explain_CUDA__cudnn_rnn
        assert explain(*layer(torch.float32, 50, 1, 8, 1500, 2))[1] == "hidden size without a kernel"


on_host = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module")
def ops() -> Any:
    load()
    return torch.ops.aten_ext_on_host_cudnn_rnn


SAMPLED = ["sm_75", "sm_80", "sm_90", *(f"sm_90 with {n} multiprocessors" for n in (8, 12, 16)), "sm_120"]


def run_layer(
    dtype: torch.dtype, steps: int, batch: int, hidden: int, bidirectional: bool, mode: int = GRU
) -> bool:
    """Whether the emulator took the call; its result is right then."""
    torch.manual_seed(hidden)
    module = new_module(mode, 8, hidden, bidirectional=bidirectional).to(dtype).requires_grad_(False)
    directions = 2 if bidirectional else 1
    x, h = torch.randn(steps, batch, 8).to(dtype), torch.randn(directions, batch, hidden).to(dtype)
    c = torch.randn_like(h) if mode == LSTM else None
    options = (mode, hidden, 0, 1, False, 0.0, False, bidirectional, [], None)
    try:
        y, hy, *_ = torch.ops.aten_ext_on_host._cudnn_rnn(x, module._flat_weights, 4, None, h, c, *options)
    except RuntimeError as error:
        assert str(error).startswith("declined: "), error
        return False
    state = h.double() if c is None else (h.double(), c.double())
    exact, exact_state = states(module.double()(x.double(), state))[:2]
    tolerance = max(2 * TOLERANCE[dtype], TF32_TOLERANCE)
    assert (y.double() - exact).abs().max() < tolerance
    assert (hy.double() - exact_state).abs().max() < tolerance
    return True


@pytest.mark.long
@on_host
@pytest.mark.parametrize("name", SAMPLED)
def test_sample_runs_right(ops: Any, name: str) -> None:
    with pretended(GPUS[name], ops.set_gpu):
        ran = 0
        for dtype, (steps, batch, hidden, bidirectional) in itertools.product(
            DTYPES,
            [(5, 3, 40, True), (2, 2, 24, False), (5, 9, 200, False), (6, 2, 300, False), (1, 3, 33, False)],
        ):
            ran += run_layer(dtype, steps, batch, hidden, bidirectional)
        assert ran == 0 if GPUS[name].code < 80 else ran >= 9
        ran = 0
        for mode in (LSTM, TANH):
            for dtype, (steps, batch, hidden, bidirectional) in itertools.product(
                DTYPES, [(5, 3, 120, True), (2, 2, 24, False), (5, 9, 100, False), (6, 2, 300, False)]
            ):
                ran += run_layer(dtype, steps, batch, hidden, bidirectional, mode)
        assert ran == 0 if GPUS[name].code < 80 else ran >= 12
        for dtype, batch, mode in itertools.product(DTYPES, (1, 3, 20), CELLS.values()):
            run_cell(dtype, batch, mode)


MODULES = {
    "relu": lambda: torch.nn.RNNCell(40, 24, nonlinearity="relu"),
    "tanh": lambda: torch.nn.RNNCell(40, 24),
    "lstm": lambda: torch.nn.LSTMCell(40, 24),
    "gru": lambda: torch.nn.GRUCell(40, 24),
}


def run_cell(dtype: torch.dtype, batch: int, mode: int = GRU) -> None:
    torch.manual_seed(0)
    name = next(name for name in CELLS if CELLS[name] == mode)
    module = MODULES[name]().to(dtype).requires_grad_(False)
    x, h, c = torch.randn(batch, 40).to(dtype), *torch.randn(2, batch, 24).to(dtype)
    op = {"gru": "gru_cell", "lstm": "lstm_cell"}.get(name, f"rnn_{name}_cell")
    state = [h, c] if mode == LSTM else h
    try:
        result = getattr(torch.ops.aten_ext_on_host, op)(x, state, *module.parameters())
    except RuntimeError as error:
        assert str(error).startswith("declined: "), error
        return
    double = (h.double(), c.double()) if mode == LSTM else h.double()
    exact = module.double()(x.double(), double)
    for ours, wanted in zip(result, exact, strict=True) if mode == LSTM else ((result, exact),):
        assert (ours.double() - wanted).abs().max() < 2 * TOLERANCE[dtype]


@on_host
def test_refused_launches_go_upstream(ops: Any) -> None:
    """A green context refuses what choose() could not know of: upstream runs, nothing raises."""
    x, h = torch.randn(3, 1, 8), torch.randn(1, 1, 16)
    gru = torch.nn.GRU(8, 16).requires_grad_(False)
    options = (GRU, 16, 0, 1, False, 0.0, False, False, [], None)

    def call(steps: int) -> torch.Tensor:
        arguments = (x[:1].expand(steps, -1, -1).contiguous(), gru._flat_weights, 4, None, h, None, *options)
        return torch.ops.aten_ext_on_host._cudnn_rnn(*arguments)[0]

    for steps, after in ((3, 0), (3, 2), (6, 0)):  # a launch a step; one launch
        ops.refuse(1, after)
        with pytest.raises(RuntimeError, match="declined late"):
            call(steps)
        assert call(steps).isfinite().all()
    cell_of_16 = torch.nn.GRUCell(8, 16).requires_grad_(False)
    ops.refuse(1)
    with pytest.raises(RuntimeError, match="declined late"):
        torch.ops.aten_ext_on_host.gru_cell(x[0], h[0], *cell_of_16.parameters())
    products = torch.randn(1, 48), torch.randn(1, 48)
    ops.refuse(1)
    with pytest.raises(RuntimeError, match="declined late"):
        torch.ops.aten_ext_on_host._thnn_fused_gru_cell(*products, h[0], None, None)
