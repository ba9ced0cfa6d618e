"""Recurrent layers (_cudnn_rnn) with their CUDA kernels, run on the CPU: layouts, stacks, few steps, TF32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.cases import CELLS, GRU, LSTM, RELU, TANH, flattened, new_module, states
from ops.rnn.on_host_cases import DTYPES, TF32_TOLERANCE, TOLERANCE, load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.fixture
def tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    # Not through torch.backends, which torch.testing._internal locks for a whole process.
    torch._C._set_cudnn_allow_tf32(False)
    yield
    torch._C._set_cudnn_allow_tf32(before)


def check_gru(
    *,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    batch_first: bool = False,
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
    buffer: bool = False,
    columns: bool = False,
    mode: int = GRU,
    given: bool = True,
) -> None:
    """Results of ``_cudnn_rnn`` against float64; without ``given`` an LSTM has no cell state."""
    torch.manual_seed(0)
    module = new_module(
        mode, inputs, hidden, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional
    ).to(dtype)
    shape = (batch, steps, inputs) if batch_first else (steps, batch, inputs)
    x = torch.randn(shape).to(dtype)
    if layout == "transposed":
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "strided":
        x = torch.randn(*shape[:2], 2 * inputs).to(dtype)[..., ::2]
    directions = 2 if bidirectional else 1
    h = torch.randn(layers * directions, batch, hidden).to(dtype)
    c = torch.randn(layers * directions, batch, hidden).to(dtype) if mode == LSTM and given else None
    weights = [w.detach() for w in module._flat_weights]
    packed, views = flattened(weights, bias=bias, columns=columns)
    weight_buf = packed if buffer else None
    with torch.no_grad():
        y, hy, cy, reserve, returned = torch.ops.aten_ext_on_host._cudnn_rnn(
            x,
            views if buffer else weights,
            4 if bias else 2,
            weight_buf,
            h,
            c,
            mode,
            hidden,
            0,
            layers,
            batch_first,
            0.0,
            False,
            bidirectional,
            [],
            None,
        )
        state: Any = h.double()
        if mode == LSTM:
            state = (state, torch.zeros_like(state) if c is None else c.double())
        exact, exact_state, *exact_cell = states(module.double()(x.double(), state))
    assert y.shape == exact.shape and hy.shape == exact_state.shape
    assert (y.transpose(0, 1) if batch_first else y).is_contiguous() and hy.is_contiguous()
    assert (reserve.numel(), reserve.dtype) == (0, torch.uint8)
    assert cy.shape == (torch.Size([0]) if c is None else c.shape) and cy.dtype == dtype
    assert torch.equal(returned, packed), "what upstream would pack"
    assert (returned.data_ptr() == packed.data_ptr()) == buffer
    tolerance = 2 * TOLERANCE[dtype]
    assert (y.double() - exact).abs().max() < tolerance
    assert (hy.double() - exact_state).abs().max() < tolerance
    if c is not None:
        assert (cy.double() - exact_cell[0]).abs().max() < 4 * tolerance


# Layers, both directions, biases, batch_first.
STACKS = [(1, False, True, False), (2, True, False, True), (3, False, True, True)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (1, 3), (1, 17), (2, 1), (2, 17), (5, 3)])
@pytest.mark.parametrize(("inputs", "hidden"), [(1, 1), (5, 7), (16, 16), (9, 33), (24, 64)])
def test_layers(
    ops: Any, tf32: None, dtype: torch.dtype, steps: int, batch: int, inputs: int, hidden: int
) -> None:
    layers, bidirectional, bias, batch_first = STACKS[(steps + batch // 3 + hidden) % 3]
    if steps == 1 and dtype == torch.float32:
        batch = min(batch, 8)  # more are upstream's
    if steps > 1 and dtype == torch.float32 and 14 <= hidden <= 36:
        batch = min(batch, 6)  # likewise
    check_gru(
        steps=steps,
        batch=batch,
        inputs=inputs,
        hidden=hidden,
        layers=layers,
        bidirectional=bidirectional,
        bias=bias,
        batch_first=batch_first,
        dtype=dtype,
    )


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_layouts_of_the_input(ops: Any, tf32: None, layout: str, batch_first: bool, steps: int) -> None:
    for batch in (2, 8):
        check_gru(steps=steps, batch=batch, inputs=6, hidden=10, batch_first=batch_first, layout=layout)


@pytest.mark.parametrize("hidden", [192, 256, 512])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_states(ops: Any, tf32: None, dtype: torch.dtype, hidden: int) -> None:
    check_gru(steps=5, batch=2, inputs=8, hidden=hidden, bidirectional=True, dtype=dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weight_buffer_is_handed_back(ops: Any, tf32: None, dtype: torch.dtype, bias: bool) -> None:
    """What was given, or else what upstream makes of the list (check_gru compares)."""
    for buffer in (False, True):
        for layers, bidirectional in ((1, False), (2, True)):
            check_gru(
                steps=2,
                batch=1,
                inputs=3,
                hidden=4,
                layers=layers,
                bidirectional=bidirectional,
                bias=bias,
                dtype=dtype,
                buffer=buffer,
            )


def test_buffer_of_a_layer_without_biases(ops: Any, tf32: None) -> None:
    """CuDNN adds what the buffer has in their place, zeros or not."""
    torch.manual_seed(0)
    with_biases = torch.nn.GRU(3, 4, 2, bidirectional=True).requires_grad_(False)
    buffer, views = flattened(with_biases._flat_weights)
    matrices = [w for i, w in enumerate(views) if i % 4 < 2]
    options = (GRU, 4, 0, 2, False, 0.0, False, True, [], None)
    for steps in (2, 6):  # a launch a step, and all of them in one
        x, h = torch.randn(steps, 2, 3), torch.randn(4, 2, 4)
        y, hy, *_ = torch.ops.aten_ext_on_host._cudnn_rnn(x, matrices, 2, buffer, h, None, *options)
        y_exact, hy_exact = with_biases(x, h)
        torch.testing.assert_close(y, y_exact, rtol=0, atol=2e-6)
        torch.testing.assert_close(hy, hy_exact, rtol=0, atol=2e-6)


def test_replaced_weights_are_declined(ops: Any, tf32: None) -> None:
    """Ours would compute from the list, upstream from the buffer."""
    gru = torch.nn.GRU(3, 4).requires_grad_(False)
    buffer, views = flattened(gru._flat_weights)
    x, h = torch.randn(6, 2, 3), torch.randn(1, 2, 4)
    options = (GRU, 4, 0, 1, False, 0.0, False, False, [], None)
    torch.ops.aten_ext_on_host._cudnn_rnn(x, views, 4, buffer, h, None, *options)
    with pytest.raises(RuntimeError, match="declined: weights that are not those of weight_buf"):
        torch.ops.aten_ext_on_host._cudnn_rnn(x, [views[0] + 1, *views[1:]], 4, buffer, h, None, *options)


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (4, 3), (6, 2)])
def test_weights_of_one_column(ops: Any, tf32: None, steps: int, batch: int) -> None:
    check_gru(steps=steps, batch=batch, inputs=3, hidden=4, layers=2, buffer=True, columns=True)


@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"), [(16, 64, 512), (48, 72, 512), (24, 136, 128), (32, 136, 136)]
)
def test_step_in_tf32(ops: Any, batch: int, inputs: int, hidden: int) -> None:
    torch.manual_seed(0)
    gru = torch.nn.GRU(inputs, hidden).requires_grad_(False)
    x, h = torch.randn(1, batch, inputs), torch.randn(1, batch, hidden)
    arguments = (3, hidden, 0, 1, False, 0.0, False, False, [], None)
    y, hy, *_ = torch.ops.aten_ext_on_host._cudnn_rnn(x, gru._flat_weights, 4, None, h, None, *arguments)
    exact, _ = gru.double()(x.double(), h.double())
    assert (y.double() - exact).abs().max() < TF32_TOLERANCE and torch.equal(y, hy)
    assert not torch.equal(y, gru.float()(x, h)[0]), "fp32, if it were"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize(("steps", "batch_first"), [(2, True), (4, False), (5, False)])
def test_few_steps(
    ops: Any, tf32: None, dtype: torch.dtype, layout: str, steps: int, batch_first: bool
) -> None:
    """A launch for each of up to four, over rows with strides and the state of the step before."""
    check_gru(
        steps=steps,
        batch=3,
        inputs=8,
        hidden=16,
        layers=2,
        bidirectional=True,
        batch_first=batch_first,
        dtype=dtype,
        layout=layout,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mode", [LSTM, TANH, RELU], ids=["lstm", "tanh", "relu"])
@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "hidden"), [(1, 1, 5, 7), (2, 5, 9, 200), (4, 3, 24, 132), (7, 3, 6, 120)]
)
def test_other_cells(
    ops: Any, tf32: None, mode: int, dtype: torch.dtype, steps: int, batch: int, inputs: int, hidden: int
) -> None:
    """A launch a step and all steps in one; stacks, directions, with and without biases and cell state."""
    layers, bidirectional, bias, batch_first = STACKS[(steps + batch // 3 + hidden) % 3]
    for given in (True, False) if mode == LSTM else (True,):
        check_gru(
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
            given=given,
        )


@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("bias", [False, True])
def test_weight_buffer_of_each_cell(ops: Any, tf32: None, mode: int, bias: bool) -> None:
    for buffer in (False, True):
        for steps in (2, 6):
            check_gru(
                steps=steps, batch=2, inputs=3, hidden=4, layers=2, bidirectional=True,
                bias=bias, buffer=buffer, mode=mode, dtype=torch.bfloat16,
            )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_cell_state_between_launches_is_fp32(ops: Any, tf32: None, dtype: torch.dtype) -> None:
    """A launch a step: forget gates of nearly one add up what 16 bits would lose."""
    hidden, steps = 64, 4
    lstm = torch.nn.LSTM(3, hidden).to(dtype).requires_grad_(False)
    for w in lstm.parameters():
        w.zero_()
    bias = lstm.bias_ih_l0
    bias[:hidden] = -3.0  # little is added in each step
    bias[hidden : 2 * hidden] = 12.0
    bias[2 * hidden : 3 * hidden] = 2.0
    x = torch.zeros(steps, 2, 3, dtype=dtype)
    h, c = torch.zeros(1, 2, hidden, dtype=dtype), torch.full((1, 2, hidden), 30.0, dtype=dtype)
    options = (LSTM, hidden, 0, 1, False, 0.0, False, False, [], None)
    _, _, cy, *_ = torch.ops.aten_ext_on_host._cudnn_rnn(x, lstm._flat_weights, 4, None, h, c, *options)
    exact = lstm.double()(x.double(), (h.double(), c.double()))[1][1]
    assert torch.equal(cy, exact.to(dtype)), "rounded once"
