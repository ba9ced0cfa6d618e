"""The recurrence of each cell, run on the CPU: every kernel, every exchange, odd sizes.

What the kernels compute is held against float64. Time, weak memory ordering and registers are for a GPU
(test_parity.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.cases import GATES, GRU, LSTM, RELU, TANH
from ops.rnn.on_host_cases import (
    BLOCK,
    CLUSTER,
    FMA,
    GRID,
    MMA,
    ORDERS,
    TF32,
    TF32_TOLERANCE,
    TOLERANCE,
    load,
    order_of_threads,
)

pytestmark = [
    pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or ""),
]


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.fixture(params=ORDERS.values(), ids=ORDERS)
def order(ops: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    with order_of_threads(*request.param):
        yield


def reference_step(
    mode: int, x: torch.Tensor, s: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula of ops/rnn/cells.cuh: the input's share of each gate and the state's, with their biases."""
    if mode == GRU:
        (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), s.chunk(3, 1)
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        n = torch.tanh(xn + r * hn)
        return n + z * (h - n), c
    if mode == LSTM:
        i, f, g, o = (x + s).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    return (torch.tanh if mode == TANH else torch.relu)(x + s), c


def reference_layer(
    mode: int,
    gates: torch.Tensor,
    w_hh: torch.Tensor,
    biases: list[torch.Tensor] | None,
    h0: torch.Tensor,
    c0: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """In float64: y, hy, cy."""
    gates, w_hh, h0, c0 = gates.double(), w_hh.double(), h0.double(), c0.double()
    directions, steps, _, _ = gates.shape
    zero = torch.zeros(w_hh.shape[:2], dtype=torch.float64)
    b_ih, b_hh = (b.double() for b in biases) if biases else (zero, zero)
    outputs, states, cells = [], [], []
    for d in range(directions):
        h, c, of_direction = h0[d], c0[d], {}
        for t in range(steps) if d == 0 else reversed(range(steps)):
            h, c = reference_step(mode, gates[d, t] + b_ih[d], h @ w_hh[d].T + b_hh[d], h, c)
            of_direction[t] = h
        outputs.append(torch.stack([of_direction[t] for t in range(steps)]))
        states.append(h)
        cells.append(c)
    return torch.cat(outputs, 2), torch.stack(states), torch.stack(cells)


def check_recurrence(
    ops: Any,
    dtype: torch.dtype,
    kernel: list[int],
    *,
    hidden: int,
    batch: int,
    steps: int = 3,
    directions: int = 1,
    bias: bool = True,
    offset: int = 0,
    mode: int = GRU,
    given: bool = True,
) -> None:
    """Against float64; without `given` an LSTM's cell state begins at zero."""
    generator = torch.Generator().manual_seed(hidden * 1000 + batch)

    def new(*shape: int, scale: float = 1.0) -> torch.Tensor:
        size = torch.Size(shape).numel()
        values = torch.randn(size + offset, generator=generator) * scale
        return values.to(dtype)[offset:].view(shape)

    size = GATES[mode] * hidden
    # Relu has no bound: small values keep it as far from float64 as the others.
    scale = 0.2 if mode == RELU else 1.0
    gates = torch.randn(directions, steps, batch, size, generator=generator) * scale
    w_hh = new(directions, size, hidden, scale=hidden**-0.5)
    h0 = new(directions, batch, hidden, scale=scale)
    biases = [new(directions, size, scale=scale), new(directions, size, scale=scale)] if bias else None
    c0 = new(directions, batch, hidden) if mode == LSTM and given else None
    results = ops.recurrence(mode, gates, w_hh, *(biases or [None, None]), h0, c0, kernel)
    exact = reference_layer(mode, gates, w_hh, biases, h0, torch.zeros_like(h0) if c0 is None else c0)
    tolerance = TF32_TOLERANCE if kernel[0] == TF32 else TOLERANCE[dtype]
    # An LSTM's cell state is a few times as large as h is, and so are its roundings.
    allowed = (tolerance, tolerance, 4 * tolerance)
    for got, wanted, most in list(zip(results, exact, allowed, strict=True))[: 3 if mode == LSTM else 2]:
        assert (got.double() - wanted).abs().max() < most


# Each line: math, exchange, blocks, and the hidden sizes at both ends of what a kernel takes.
KERNELS = [
    (FMA, BLOCK, 1, [1, 7, 16]),
    (FMA, BLOCK, 1, [17, 32]),
    (FMA, BLOCK, 1, [33, 64]),
    (FMA, BLOCK, 1, [65, 96]),
    (FMA, BLOCK, 1, [97, 128]),
    (FMA, CLUSTER, 4, [129, 200, 256]),
    (FMA, CLUSTER, 8, [129, 192, 256]),
    (FMA, CLUSTER, 16, [257, 300, 384]),
    (FMA, CLUSTER, 16, [385, 512]),
    (FMA, GRID, 13, [200]),
    (FMA, GRID, 19, [300]),
    (FMA, GRID, 33, [513]),
    (FMA, GRID, 63, [1000]),
    (FMA, GRID, 64, [512]),
    (MMA, BLOCK, 1, [1, 7, 33, 64]),
    (MMA, BLOCK, 1, [65, 100, 128]),
    (MMA, CLUSTER, 4, [129, 256]),
    (MMA, CLUSTER, 8, [129, 192, 256]),
    (MMA, CLUSTER, 8, [257, 512]),
    (MMA, CLUSTER, 16, [257, 333, 512]),
    (MMA, CLUSTER, 16, [513, 640]),
    (MMA, GRID, 13, [200]),
    (MMA, GRID, 63, [1000]),
    (MMA, GRID, 64, [1023]),
    (TF32, CLUSTER, 4, [129, 256]),
    (TF32, CLUSTER, 8, [129, 256]),
    (TF32, CLUSTER, 16, [257, 512]),
    (TF32, GRID, 13, [200]),
    (TF32, GRID, 63, [1001]),
]


BOTH_ENDS = [(*kernel[:3], hidden) for kernel in KERNELS for hidden in kernel[3]]
# One hidden size for each kernel, small ones: for what takes many runs.
ONE_EACH = [(*kernel[:3], kernel[3][0]) for kernel in KERNELS]


def dtypes_of(math: int, exchange: int, blocks: int = 1) -> list[torch.dtype]:
    if math == FMA and exchange != GRID and blocks != 4:
        return [torch.float32, torch.float16, torch.bfloat16]
    return [torch.float16, torch.bfloat16] if math == MMA else [torch.float32]


@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), BOTH_ENDS)
def test_every_kernel(ops: Any, math: int, exchange: int, blocks: int, hidden: int) -> None:
    for dtype in dtypes_of(math, exchange, blocks):
        for batch, rows in ((1, 1), (3, 3)):
            check_recurrence(ops, dtype, [math, exchange, blocks, rows], hidden=hidden, batch=batch)


@pytest.mark.long
@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), ONE_EACH)
def test_directions_groups_and_steps(ops: Any, math: int, exchange: int, blocks: int, hidden: int) -> None:
    """Several groups of the batch, the last of them smaller; 1 to 5 steps; with and without biases."""
    batch, rows = (9, 9) if exchange == GRID else (17, 9)
    for dtype in dtypes_of(math, exchange, blocks):
        for steps, bias in ((1, True), (2, False), (5, True)):
            check_recurrence(
                ops,
                dtype,
                [math, exchange, blocks, rows],
                hidden=hidden,
                batch=batch,
                steps=steps,
                directions=2,
                bias=bias,
            )


@pytest.mark.parametrize(
    ("math", "exchange", "blocks", "hidden"), [k for k in ONE_EACH if k[3] < 300], ids=lambda x: str(x)
)
def test_any_order_of_threads(
    ops: Any, order: None, math: int, exchange: int, blocks: int, hidden: int
) -> None:
    check_recurrence(
        ops, dtypes_of(math, exchange, blocks)[0], [math, exchange, blocks, 2], hidden=hidden, batch=2
    )


@pytest.mark.parametrize(("math", "hidden"), [(FMA, 64), (FMA, 128), (MMA, 64), (MMA, 128)])
def test_misaligned_weights(ops: Any, math: int, hidden: int) -> None:
    """Parameters in one flat buffer begin anywhere."""
    for dtype in dtypes_of(math, BLOCK):
        check_recurrence(ops, dtype, [math, BLOCK, 1, 2], hidden=hidden, batch=2, offset=1)


def test_weights_beyond_registers(ops: Any) -> None:
    """fp32, H above 1024: the rest in shared memory and, where the state leaves too little, in the L2."""
    check_recurrence(ops, torch.float32, [FMA, GRID, 128, 1], hidden=2047, batch=1, steps=2)
    check_recurrence(ops, torch.float32, [FMA, GRID, 128, 5], hidden=2047, batch=5, steps=2)
    check_recurrence(ops, torch.float32, [FMA, GRID, 117, 3], hidden=1400, batch=3, steps=2)


@pytest.mark.parametrize(("math", "blocks"), [(FMA, 14), (FMA, 26), (MMA, 14), (TF32, 14)])
def test_no_block_is_without_units(ops: Any, math: int, blocks: int) -> None:
    """The others would not wait for it, and overwrite what it has not read."""
    with pytest.raises(RuntimeError, match="no such kernel"):
        check_recurrence(ops, dtypes_of(math, GRID)[0], [math, GRID, blocks, 2], hidden=200, batch=2)


@pytest.mark.parametrize(("math", "blocks"), [(FMA, 13), (FMA, 7), (MMA, 7), (TF32, 7)])
@pytest.mark.parametrize("rows", [2, 5, 11, 17, 32])
def test_rows_over_the_whole_gpu(ops: Any, math: int, blocks: int, rows: int) -> None:
    """From one row a warp to two turns of two; blocks of 8 and of 16 units; warps without columns."""
    for dtype in dtypes_of(math, GRID):
        check_recurrence(ops, dtype, [math, GRID, blocks, rows], hidden=100, batch=rows, steps=4)


@pytest.mark.parametrize(("hidden", "rows"), [(257, 9), (512, 3), (512, 16), (512, 20), (513, 16)])
def test_tf32_around_512(ops: Any, hidden: int, rows: int) -> None:
    """Up to there one tile of rows, two at once, or two twice; beyond, one after the other."""
    blocks = (hidden + 15) // 16
    check_recurrence(ops, torch.float32, [TF32, GRID, blocks, rows], hidden=hidden, batch=rows, steps=3)


def test_sixteen_bits_beyond_1024(ops: Any) -> None:
    check_recurrence(ops, torch.bfloat16, [MMA, GRID, 65, 1], hidden=1031, batch=1, steps=3)


def test_nan_stays_in_its_row(ops: Any) -> None:
    """Rows of a batch share products; what one of them holds must not reach another."""
    for math, dtype, place in (
        (FMA, torch.float32, [BLOCK, 1]),
        (MMA, torch.float16, [BLOCK, 1]),
        (TF32, torch.float32, [GRID, 3]),
    ):
        gates = torch.randn(1, 2, 3, 3 * 40)
        h0 = torch.randn(1, 3, 40).to(dtype)
        h0[0, 1] = float("nan")
        w_hh = torch.randn(1, 120, 40).to(dtype)
        y, *_ = ops.recurrence(GRU, gates, w_hh, None, None, h0, None, [math, *place, 3])
        assert y.isnan().any(2).tolist() == [[False, True, False]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", [LSTM, TANH])
def test_words_without_a_number(ops: Any, mode: int, dtype: torch.dtype) -> None:
    """Over the whole GPU, in several turns of both buffers: states at both ends of their range, and NaN."""
    hidden, rows, steps = 40, 3, 11
    gates = torch.randn(1, steps, rows, GATES[mode], hidden)
    gates[0, :, :, :, :16] *= 40
    gates[0, :, :, :, 0] = 40  # a state that comes to 1, whatever the others do
    gates[0, 6, 1, 0, 5] = torch.nan
    gates = gates.flatten(3)
    w_hh = torch.randn(1, GATES[mode] * hidden, hidden).mul(hidden**-0.5).to(dtype)
    h0 = torch.full((1, rows, hidden), 3.0).to(dtype)  # is no word
    y, *_ = ops.recurrence(mode, gates, w_hh, None, None, h0, None, [MMA, GRID, 3, rows])
    exact, *_ = reference_layer(mode, gates, w_hh, None, h0, torch.zeros_like(h0))
    assert torch.equal(y.isnan(), exact.isnan())
    assert exact.isnan().any(2).sum() == steps - 6
    assert exact.nan_to_num().abs().max() > 0.99
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=2 * TOLERANCE[dtype], equal_nan=True)


# The shapes of the other cells, at both ends of what each takes. Of an LSTM a block has fewer columns.
LSTM_KERNELS = [
    (FMA, BLOCK, 1, 1, [1, 16]),
    (FMA, BLOCK, 1, 1, [17, 32]),
    (FMA, BLOCK, 1, 3, [33, 64]),
    (FMA, BLOCK, 1, 5, [65, 96]),
    (FMA, CLUSTER, 2, 3, [97, 128]),
    (FMA, CLUSTER, 8, 3, [129, 256]),
    (FMA, CLUSTER, 16, 3, [257, 384]),
    (FMA, GRID, 49, 1, [385]),
    (FMA, GRID, 64, 1, [512]),
    (FMA, GRID, 33, 2, [260]),
    (FMA, GRID, 33, 5, [264]),
    (FMA, GRID, 13, 20, [100]),
    (MMA, BLOCK, 1, 3, [7, 64]),
    (MMA, BLOCK, 1, 9, [65, 128]),
    (MMA, CLUSTER, 4, 9, [129, 256]),
    (MMA, CLUSTER, 8, 3, [129, 256]),
    (MMA, CLUSTER, 16, 9, [257, 512]),
    (MMA, GRID, 32, 3, [512]),
    (MMA, GRID, 17, 12, [260]),
    (MMA, GRID, 17, 20, [260]),
    (MMA, GRID, 40, 3, [640]),
    (MMA, GRID, 33, 8, [513]),
    (MMA, GRID, 40, 20, [640]),
    (MMA, GRID, 65, 3, [1031]),
    (TF32, CLUSTER, 8, 3, [129, 256]),
    (TF32, GRID, 32, 3, [512]),
    (TF32, GRID, 17, 12, [260]),
    (TF32, GRID, 17, 20, [257]),
    (TF32, GRID, 33, 3, [513]),
    (TF32, GRID, 56, 3, [896]),
    (TF32, GRID, 40, 20, [640]),
    (TF32, GRID, 57, 10, [897]),
    (TF32, GRID, 64, 3, [1024]),
]
RNN_KERNELS = [
    (FMA, BLOCK, 1, 1, [1, 16]),
    (FMA, BLOCK, 1, 3, [17, 32]),
    (FMA, BLOCK, 1, 3, [33, 64]),
    (FMA, BLOCK, 1, 9, [65, 128]),
    (FMA, CLUSTER, 4, 6, [129, 256]),
    (FMA, CLUSTER, 8, 3, [129, 256]),
    (FMA, CLUSTER, 16, 3, [257, 512]),
    (FMA, GRID, 19, 2, [300]),
    (FMA, GRID, 64, 2, [512]),
    (FMA, GRID, 33, 20, [260]),
    (MMA, BLOCK, 1, 3, [7, 64]),
    (MMA, BLOCK, 1, 9, [128]),
    (MMA, CLUSTER, 4, 9, [256]),
    (MMA, CLUSTER, 8, 3, [129, 256]),
    (MMA, CLUSTER, 8, 3, [512]),
    (MMA, CLUSTER, 16, 9, [257, 512]),
    (MMA, CLUSTER, 16, 3, [513, 640]),
    (MMA, GRID, 41, 3, [650]),
    (MMA, GRID, 41, 20, [650]),
    (MMA, GRID, 65, 3, [1031]),
    (TF32, CLUSTER, 4, 9, [256]),
    (TF32, CLUSTER, 8, 3, [129]),
    (TF32, CLUSTER, 16, 9, [260, 512]),
    (TF32, GRID, 32, 12, [512]),
    (TF32, GRID, 40, 3, [640]),
    (TF32, GRID, 40, 20, [640]),
]
OTHERS = [
    (mode, *kernel[:4], hidden)
    for mode, kernels in ((LSTM, LSTM_KERNELS), (TANH, RNN_KERNELS), (RELU, RNN_KERNELS))
    for kernel in kernels
    for hidden in kernel[4]
]


@pytest.mark.long
@pytest.mark.parametrize(("mode", "math", "exchange", "blocks", "rows", "hidden"), OTHERS)
def test_other_cells(
    ops: Any, mode: int, math: int, exchange: int, blocks: int, rows: int, hidden: int
) -> None:
    """In both directions, in two groups of which the last is smaller; with and without biases and c0."""
    kernel = [math, exchange, blocks, rows]
    for i, dtype in enumerate(dtypes_of(math, exchange, blocks)):
        several = exchange != GRID or 2 * blocks <= 132
        check_recurrence(
            ops,
            dtype,
            kernel,
            hidden=hidden,
            batch=2 * rows - 1 if several else rows,
            steps=3 + i % 2,
            directions=2 if blocks <= 16 else 1,
            bias=i != 1,
            given=i != 1,
            mode=mode,
        )


@pytest.mark.parametrize("mode", [LSTM, TANH])
def test_other_cells_beyond_registers(ops: Any, mode: int) -> None:
    """fp32, H above 1024: of an LSTM fewer columns are in registers, and its cell state is in memory."""
    for rows, hidden, blocks in ((1, 2047, 128), (3, 1400, 117)):
        kernel = [FMA, GRID, blocks, rows]
        check_recurrence(ops, torch.float32, kernel, hidden=hidden, batch=rows, steps=3, mode=mode)


@pytest.mark.parametrize("mode", [LSTM, TANH, RELU])
@pytest.mark.parametrize(
    ("math", "exchange", "blocks"), [(FMA, CLUSTER, 2), (MMA, BLOCK, 1), (TF32, GRID, 7)]
)
def test_other_cells_in_any_order_of_threads(
    ops: Any, order: None, mode: int, math: int, exchange: int, blocks: int
) -> None:
    if mode != LSTM and exchange == CLUSTER:
        exchange, blocks = BLOCK, 1
    dtype = dtypes_of(math, exchange, blocks)[0]
    check_recurrence(ops, dtype, [math, exchange, blocks, 2], hidden=100, batch=2, mode=mode)
