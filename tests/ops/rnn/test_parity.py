"""Recurrent layers on a GPU: no further from float64 than upstream's, and the same bits every time.

What the kernels compute is also tested on the CPU (test_recurrence_on_host.py and
test_layers_on_host.py).
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import aten_ext
from ops.rnn.cases import (
    CELLS,
    DTYPES,
    FLOOR,
    GRU,
    LSTM,
    RELU,
    TANH,
    ask_layer,
    assert_ran,
    new_module,
    no_less_accurate,
    states,
    tf32_allowed,
)

FURTHEST = {torch.float32: 1e-2, torch.float16: 2e-2, torch.bfloat16: 0.1}
"""From float64, of states that take errors back: where upstream's are wrong, to be as close is no test."""


def compare_layers(
    dtype: torch.dtype,
    *,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    batch_first: bool = False,
    given_state: bool = True,
    seed: int = 0,
    mode: int = GRU,
) -> None:
    torch.manual_seed(seed)
    module = new_module(
        mode, inputs, hidden, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional
    )
    module = module.to("cuda", dtype).eval()
    x = torch.randn((batch, steps, inputs) if batch_first else (steps, batch, inputs), device="cuda").to(
        dtype
    )
    state: Any = None
    double: Any = None
    if given_state:
        shape = (layers * (2 if bidirectional else 1), batch, hidden)
        state = tuple(torch.randn(shape, device="cuda").to(dtype) for _ in range(1 + (mode == LSTM)))
        double = tuple(s.double() for s in state)
        if mode != LSTM:
            state, double = state[0], double[0]
    with torch.no_grad():
        with aten_ext.disabled():
            theirs = states(module(x, state))
        aten_ext.reset_counts()
        ours = states(module(x, state))
        reason = ask_layer(
            steps=steps,
            batch=batch,
            inputs=inputs,
            hidden=hidden,
            layers=layers,
            bidirectional=bidirectional,
            bias=bias,
            batch_first=batch_first,
            dtype=dtype,
            mode=mode,
            captured=False,
        )
        if reason:  # what the policy leaves to upstream
            assert dict(aten_ext.counts("CUDA")["_cudnn_rnn"].declined) == {reason: 1}
            return
        assert_ran("_cudnn_rnn")
        exact = states(module.double()(x.double(), double))
    for mine, upstreams, truth in zip(ours, theirs, exact, strict=True):
        # Relu does not take errors back as tanh does.
        floor = FLOOR[dtype] * (2 if mode == RELU and dtype == torch.float32 else 1)
        no_less_accurate(mine, upstreams, truth, floor)
        if mode != RELU:
            torch.testing.assert_close(mine.double(), truth, rtol=FURTHEST[dtype], atol=FURTHEST[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("hidden", [40, 72, 80, 136, 152])
@pytest.mark.parametrize("batch", [8, 64])
def test_an_lstm_in_fp16_whose_rows_and_units_are_multiples_of_eight(hidden: int, batch: int) -> None:
    """Which cuDNN 9.19 gets wrong: its relative error is 0.2 and more, ours 0.0003."""
    for layers in (1, 2):
        sizes: dict[str, Any] = {"steps": 5, "batch": batch, "inputs": 16, "hidden": hidden, "layers": layers}
        assert ask_layer(**sizes, dtype=torch.float16, mode=LSTM, captured=False) == ""
        compare_layers(torch.float16, **sizes, mode=LSTM)


@pytest.mark.gpu
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    steps=st.integers(1, 20),
    batch=st.one_of(st.sampled_from([1, 2, 8, 9, 16, 17]), st.integers(1, 40)),
    inputs=st.integers(1, 200),
    hidden=st.one_of(
        st.sampled_from([1, 7, 16, 33, 64, 65, 128, 129, 192, 256, 257, 512, 513]), st.integers(1, 700)
    ),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    given_state=st.booleans(),
    allow_tf32=st.booleans(),
    seed=st.integers(0, 2**16),
    mode=st.sampled_from([GRU, LSTM, LSTM, TANH, RELU]),
)
def test_layers_match_upstream(allow_tf32: bool, **case: Any) -> None:
    with tf32_allowed(allow_tf32):
        compare_layers(**case)


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True], ids=["fp32", "tf32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "hidden", "bidirectional"),
    [
        (1, 1, 256, 512, False),
        (1, 32, 1280, 512, False),
        (1, 64, 512, 512, False),
        (2, 4, 256, 640, False),
        (4, 3, 40, 100, True),
        (64, 4, 300, 700, True),
        (64, 64, 512, 1024, False),
        (20, 16, 64, 2048, False),
        (50, 1, 256, 512, False),
        (50, 32, 256, 512, True),
        (20, 17, 36, 260, True),
        (20, 128, 64, 512, False),
        (64, 1, 1024, 1024, False),
        (64, 16, 1024, 1024, False),
        (200, 8, 128, 256, False),
        (100, 64, 128, 128, True),
        (20, 1, 64, 2048, False),
        (20, 30, 100, 320, False),
        (1, 64, 640, 256, False),
        (1, 256, 128, 128, True),
        (1, 24, 1024, 1024, False),
    ],
)
def test_sizes_of_the_benchmark(
    allow_tf32: bool,
    dtype: torch.dtype,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    bidirectional: bool,
) -> None:
    with tf32_allowed(allow_tf32):
        compare_layers(
            dtype, steps=steps, batch=batch, inputs=inputs, hidden=hidden, bidirectional=bidirectional
        )


@pytest.mark.gpu
@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("allow_tf32", [False, True], ids=["fp32", "tf32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "hidden", "bidirectional"),
    [
        (1, 1, 256, 512, False),
        (1, 16, 512, 512, False),
        (1, 32, 64, 160, False),
        (3, 24, 512, 512, True),
        (30, 3, 64, 96, True),
        (30, 3, 64, 128, True),
        (30, 70, 64, 128, False),
        (30, 40, 64, 256, True),
        (20, 3, 64, 384, False),
        (20, 40, 64, 512, True),
        (20, 100, 64, 512, False),
        (20, 20, 64, 640, False),
        (12, 20, 64, 800, True),
        (12, 20, 64, 1024, False),
        (12, 1, 64, 1024, False),
        (12, 12, 64, 1500, False),
        (12, 1, 64, 2048, False),
    ],
)
def test_every_kernel_of_every_cell(
    mode: int,
    allow_tf32: bool,
    dtype: torch.dtype,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    bidirectional: bool,
) -> None:
    with tf32_allowed(allow_tf32):
        compare_layers(
            dtype,
            steps=steps,
            batch=batch,
            inputs=inputs,
            hidden=hidden,
            bidirectional=bidirectional,
            mode=mode,
        )


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True], ids=["fp32", "tf32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", ["in order", "second first", "between vectors", "the same", "far"])
def test_weights_of_both_directions_lie_anywhere(allow_tf32: bool, dtype: torch.dtype, place: str) -> None:
    """Their projections are one product over the distance between them, where that can be."""
    inputs, hidden = 36, 40
    size = 3 * hidden * inputs
    far = (1 << 31) // dtype.itemsize
    at = {
        "in order": (0, 4 * size),
        "second first": (size, 0),
        "between vectors": (1, size + 2),
        "the same": (0, 0),
        "far": (0, far),
    }[place]
    torch.manual_seed(0)
    gru = torch.nn.GRU(inputs, hidden, bidirectional=True).to("cuda", dtype)
    memory = torch.empty(max(at) + size, dtype=dtype, device="cuda")
    weights = list(gru._flat_weights)
    for i, offset in zip((0, 4), at, strict=True):
        matrix = memory[offset : offset + size].view(3 * hidden, inputs)
        weights[i] = matrix.normal_(std=hidden**-0.5)
    x, h = torch.randn(9, 3, inputs, device="cuda"), torch.randn(2, 3, hidden, device="cuda")
    x, h = x.to(dtype), h.to(dtype)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, h, *weights = tensors
        return torch._VF.gru(x, h, weights, True, 1, 0.0, False, True, False)

    with torch.no_grad(), tf32_allowed(allow_tf32):
        with aten_ext.disabled():
            theirs = run(x, h, *weights)
        aten_ext.reset_counts()
        ours = run(x, h, *weights)
        assert_ran("_cudnn_rnn")
        exact = run(*(t.double() for t in (x, h, *weights)))
    for mine, upstreams, truth in zip(ours, theirs, exact, strict=True):
        no_less_accurate(mine, upstreams, truth, FLOOR[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
def test_same_bits_every_time(mode: int) -> None:
    module = new_module(mode, 64, 700, bidirectional=True).to("cuda", torch.bfloat16).eval()
    x = torch.randn(30, 12, 64, device="cuda").bfloat16()
    with torch.no_grad():
        first = module(x)[0]
        assert all(torch.equal(module(x)[0], first) for _ in range(20))


@pytest.mark.gpu
def test_what_was_declined_is_known() -> None:
    """A rule is not asked twice about a call, but about one that differs."""
    small = torch.nn.LSTM(64, 56).cuda().eval()
    large = torch.nn.LSTM(64, 256).cuda().eval()
    x = torch.randn(36, 4, 64, device="cuda")
    aten_ext.reset_counts()
    with torch.no_grad():
        for layer in (small, small, large, small, large):
            layer(x)
    counts = aten_ext.counts("CUDA")["_cudnn_rnn"]
    assert counts.ran == 2 and dict(counts.declined) == {"layer that cuDNN keeps on the chip": 3}
