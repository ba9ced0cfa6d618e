"""The recurrence of the GRU, run on the CPU: every kernel, every exchange, odd sizes.

What the kernels compute is held against float64. Time, weak memory ordering and registers are for a GPU
(test_parity.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from device_on_host import library
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

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.fixture(params=ORDERS.values(), ids=ORDERS)
def order(ops: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    with order_of_threads(*request.param):
        yield


def reference_layer(
    gates: torch.Tensor, w_hh: torch.Tensor, biases: list[torch.Tensor] | None, h0: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula of ops/rnn/arguments.cuh in float64."""
    gates, w_hh, h0 = gates.double(), w_hh.double(), h0.double()
    directions, steps, _, _ = gates.shape
    zero = torch.zeros(w_hh.shape[:2], dtype=torch.float64)
    b_ih, b_hh = (b.double() for b in biases) if biases else (zero, zero)
    outputs, states = [], []
    for d in range(directions):
        h, of_direction = h0[d], {}
        for t in range(steps) if d == 0 else reversed(range(steps)):
            xr, xz, xn = (gates[d, t] + b_ih[d]).chunk(3, 1)
            hr, hz, hn = (h @ w_hh[d].T + b_hh[d]).chunk(3, 1)
            r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
            n = torch.tanh(xn + r * hn)
            h = n + z * (h - n)
            of_direction[t] = h
        outputs.append(torch.stack([of_direction[t] for t in range(steps)]))
        states.append(h)
    return torch.cat(outputs, 2), torch.stack(states)


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
) -> None:
    generator = torch.Generator().manual_seed(hidden * 1000 + batch)

    def new(*shape: int, scale: float = 1.0) -> torch.Tensor:
        size = torch.Size(shape).numel()
        values = torch.randn(size + offset, generator=generator) * scale
        return values.to(dtype)[offset:].view(shape)

    gates = torch.randn(directions, steps, batch, 3 * hidden, generator=generator)
    w_hh = new(directions, 3 * hidden, hidden, scale=hidden**-0.5)
    h0 = new(directions, batch, hidden)
    biases = [new(directions, 3 * hidden), new(directions, 3 * hidden)] if bias else None
    y, hy = ops.recurrence(gates, w_hh, *(biases or [None, None]), h0, kernel)
    y_exact, hy_exact = reference_layer(gates, w_hh, biases, h0)
    tolerance = TF32_TOLERANCE if kernel[0] == TF32 else TOLERANCE[dtype]
    assert (y.double() - y_exact).abs().max() < tolerance
    assert (hy.double() - hy_exact).abs().max() < tolerance


# Each line: math, exchange, blocks, and the hidden sizes at both ends of what a kernel takes.
KERNELS = [
    (FMA, BLOCK, 1, [1, 7, 16]),
    (FMA, BLOCK, 1, [17, 32]),
    (FMA, BLOCK, 1, [33, 64]),
    (FMA, BLOCK, 1, [65, 96]),
    (FMA, BLOCK, 1, [97, 128]),
    (FMA, CLUSTER, 8, [129, 192, 256]),
    (FMA, CLUSTER, 16, [257, 300, 384]),
    (FMA, CLUSTER, 16, [385, 512]),
    (FMA, GRID, 20, [200, 300]),
    (FMA, GRID, 64, [512, 513, 1000]),
    (MMA, BLOCK, 1, [1, 7, 33, 64]),
    (MMA, BLOCK, 1, [65, 100, 128]),
    (MMA, CLUSTER, 4, [129, 256]),
    (MMA, CLUSTER, 8, [129, 192, 256]),
    (MMA, CLUSTER, 8, [257, 512]),
    (MMA, CLUSTER, 16, [257, 333, 512]),
    (MMA, CLUSTER, 16, [513, 640]),
    (MMA, GRID, 13, [200]),
    (MMA, GRID, 64, [1000, 1023]),
    (TF32, CLUSTER, 4, [129, 256]),
    (TF32, CLUSTER, 8, [129, 256]),
    (TF32, CLUSTER, 16, [257, 512]),
    (TF32, GRID, 13, [200]),
    (TF32, GRID, 64, [1001]),
]


BOTH_ENDS = [(*kernel[:3], hidden) for kernel in KERNELS for hidden in kernel[3]]
# One hidden size for each kernel, small ones: for what takes many runs.
ONE_EACH = [(*kernel[:3], kernel[3][0]) for kernel in KERNELS]


def dtypes_of(math: int, exchange: int) -> list[torch.dtype]:
    if math == FMA and exchange != GRID:
        return [torch.float32, torch.float16, torch.bfloat16]
    return [torch.float16, torch.bfloat16] if math == MMA else [torch.float32]


@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), BOTH_ENDS)
def test_every_kernel(ops: Any, math: int, exchange: int, blocks: int, hidden: int) -> None:
    for dtype in dtypes_of(math, exchange):
        for batch, rows in ((1, 1), (3, 3)):
            check_recurrence(ops, dtype, [math, exchange, blocks, rows], hidden=hidden, batch=batch)


@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), ONE_EACH)
def test_directions_groups_and_steps(ops: Any, math: int, exchange: int, blocks: int, hidden: int) -> None:
    """Several groups of the batch, the last of them smaller; 1 to 5 steps; with and without biases."""
    batch, rows = (9, 9) if exchange == GRID else (17, 9)
    for dtype in dtypes_of(math, exchange):
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
    check_recurrence(ops, dtypes_of(math, exchange)[0], [math, exchange, blocks, 2], hidden=hidden, batch=2)


@pytest.mark.parametrize(("math", "hidden"), [(FMA, 64), (FMA, 128), (MMA, 64), (MMA, 128)])
def test_misaligned_weights(ops: Any, math: int, hidden: int) -> None:
    """Parameters in one flat buffer begin anywhere."""
    for dtype in dtypes_of(math, BLOCK):
        check_recurrence(ops, dtype, [math, BLOCK, 1, 2], hidden=hidden, batch=2, offset=1)


def test_weights_beyond_registers(ops: Any) -> None:
    """fp32, H above 1024: the rest in shared memory and, where the state leaves too little, in the L2."""
    check_recurrence(ops, torch.float32, [FMA, GRID, 128, 1], hidden=2047, batch=1, steps=2)
    check_recurrence(ops, torch.float32, [FMA, GRID, 128, 5], hidden=2047, batch=5, steps=2)
    check_recurrence(ops, torch.float32, [FMA, GRID, 128, 3], hidden=1400, batch=3, steps=2)


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
        y, _ = ops.recurrence(gates, torch.randn(1, 120, 40).to(dtype), None, None, h0, [math, *place, 3])
        assert y.isnan().any(2).tolist() == [[False, True, False]] * 2
