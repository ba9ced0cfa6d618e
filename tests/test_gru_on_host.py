"""The CUDA kernels of the GRU, run on the CPU: every kernel, every exchange, odd sizes; and their policy.

What the kernels compute is held against float64. Time, weak memory ordering and registers are for a GPU
(test_gru.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from device_on_host import library

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

HERE = Path(__file__).parent
FMA, MMA, TF32 = 0, 1, 2
BLOCK, CLUSTER, GRID = 0, 1, 2
H200 = [132, 9, 30, 15, 7]
# multiprocessors, compute capability, clusters of 4, 8, 16
DEVICES = {
    "H200": H200,
    "A100": [108, 8, 0, 0, 0],
    "no clusters of 16": [188, 12, 44, 20, 0],
    "a slice of a GPU": [16, 9, 4, 2, 1],
    "a small one": [20, 8, 0, 0, 0],
}
# Error against float64 of a state after a few steps; values are of the order of 0.5.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TF32_TOLERANCE = 2e-3


@pytest.fixture(scope="module")
def ops() -> Any:
    library.load(
        "cudnn_rnn",
        "cuda/gru_plan.cpp",
        "cuda/gru_cluster.cu",
        "cuda/gru_cell.cu",
        "cuda/gru_cell.cpp",
        "cuda/thnn_fused_gru_cell.cu",
        "cuda/thnn_fused_gru_cell.cpp",
        str(HERE / "device_on_host" / "gru_ops.cpp"),
    )
    return torch.ops.aten_ext_on_host_gru


@pytest.fixture(params=[(0, 0), (1, 0), (2, 7)], ids=["forward", "backward", "shuffled"])
def order(ops: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    torch.ops.aten_ext_on_host_cudnn_rnn.set_order(*request.param)
    yield
    torch.ops.aten_ext_on_host_cudnn_rnn.set_order(0, 0)


@pytest.fixture
def tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    # Not through torch.backends, which torch.testing._internal locks for a whole process.
    torch._C._set_cudnn_allow_tf32(False)
    yield
    torch._C._set_cudnn_allow_tf32(before)


def reference_layer(
    gates: torch.Tensor, w_hh: torch.Tensor, biases: list[torch.Tensor] | None, h0: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula of device/gru_arguments.cuh in float64."""
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


# ---- the operators -----------------------------------------------------------------------------------


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
) -> None:
    torch.manual_seed(0)
    gru = torch.nn.GRU(
        inputs, hidden, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional
    ).to(dtype)
    shape = (batch, steps, inputs) if batch_first else (steps, batch, inputs)
    x = torch.randn(shape).to(dtype)
    if layout == "transposed":
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "strided":
        x = torch.randn(*shape[:2], 2 * inputs).to(dtype)[..., ::2]
    directions = 2 if bidirectional else 1
    h = torch.randn(layers * directions, batch, hidden).to(dtype)
    weight_buf = torch.zeros(3, dtype=dtype) if buffer else None
    weights = [w.detach() for w in gru._flat_weights]
    with torch.no_grad():
        y, hy, cy, reserve, returned = torch.ops.aten_ext_on_host._cudnn_rnn(
            x,
            [w.flatten()[:, None] for w in weights] if columns else weights,
            4 if bias else 2,
            weight_buf,
            h,
            None,
            3,
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
        exact, exact_state = gru.double()(x.double(), h.double())
    assert y.shape == exact.shape and hy.shape == exact_state.shape
    assert (y.transpose(0, 1) if batch_first else y).is_contiguous() and hy.is_contiguous()
    assert (cy.numel(), reserve.numel(), reserve.dtype) == (0, 0, torch.uint8)
    assert (returned.data_ptr() == weight_buf.data_ptr()) if weight_buf is not None else returned.numel() == 0
    tolerance = 2 * TOLERANCE[dtype]
    assert (y.double() - exact).abs().max() < tolerance
    assert (hy.double() - exact_state).abs().max() < tolerance


DTYPES = [torch.float32, torch.float16, torch.bfloat16]


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


def test_weight_buffer_is_handed_back(ops: Any) -> None:
    check_gru(steps=2, batch=1, inputs=3, hidden=4, buffer=True)


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (4, 3), (6, 2)])
def test_weights_of_one_column(ops: Any, tf32: None, steps: int, batch: int) -> None:
    check_gru(steps=steps, batch=batch, inputs=3, hidden=4, layers=2, buffer=True, columns=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"), [(1, 1, 1), (2, 5, 7), (8, 32, 16), (5, 300, 64), (1, 40, 520)]
)
def test_cell(
    ops: Any, order: None, dtype: torch.dtype, bias: bool, batch: int, inputs: int, hidden: int
) -> None:
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(inputs, hidden, bias=bias).to(dtype)
    x, h = torch.randn(batch, inputs).to(dtype), torch.randn(batch, hidden).to(dtype)
    with torch.no_grad():
        hy = torch.ops.aten_ext_on_host.gru_cell(x, h, *(p.detach() for p in cell.parameters()))
        exact = cell.double()(x.double(), h.double())
    assert hy.is_contiguous() and (hy.double() - exact).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"), [(2, 8, 8), (17, 40, 20), (40, 130, 33), (70, 300, 16)]
)
def test_cell_of_many_rows(
    ops: Any, order: None, dtype: torch.dtype, batch: int, inputs: int, hidden: int
) -> None:
    """Tensor cores: one block of 16 rows, several, and of 32."""
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(inputs, hidden).to(dtype)
    x, h = torch.randn(batch, inputs).to(dtype), torch.randn(batch, hidden).to(dtype)
    with torch.no_grad():
        hy = torch.ops.aten_ext_on_host.gru_cell(x, h, *(p.detach() for p in cell.parameters()))
        exact = cell.double()(x.double(), h.double())
    assert (hy.double() - exact).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"), [(16, 64, 512), (48, 72, 512), (24, 64, 128), (32, 136, 136)]
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


def test_cell_has_one_order_of_sums(ops: Any) -> None:
    """The same bits however the threads take turns, and for a row alone or among others."""
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(300, 64).requires_grad_(False)
    x, h = torch.randn(5, 300), torch.randn(5, 64)
    results = []
    for order in ((0, 0), (1, 0), (2, 3)):
        torch.ops.aten_ext_on_host_cudnn_rnn.set_order(*order)
        results.append(torch.ops.aten_ext_on_host.gru_cell(x, h, *cell.parameters()))
    torch.ops.aten_ext_on_host_cudnn_rnn.set_order(0, 0)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("batch", "hidden", "offset"), [(1, 1, 0), (3, 7, 0), (2, 16, 0), (2, 16, 1), (5, 256, 0)]
)
def test_gates(ops: Any, dtype: torch.dtype, bias: bool, batch: int, hidden: int, offset: int) -> None:
    torch.manual_seed(0)

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(torch.Size(shape).numel() + offset).to(dtype)[offset:].view(shape)

    i, h, hx = new(batch, 3 * hidden), new(batch, 3 * hidden), new(batch, hidden)
    biases = [new(3 * hidden), new(3 * hidden)] if bias else [None, None]
    hy, workspace = torch.ops.aten_ext_on_host._thnn_fused_gru_cell(i, h, hx, *biases)
    b_i, b_h = (torch.zeros(3 * hidden).double() if b is None else b.double() for b in biases)
    ir, iz, i_n = (i.double() + b_i).chunk(3, 1)
    hr, hz, hn = (h.double() + b_h).chunk(3, 1)
    r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
    n = torch.tanh(i_n + r * hn)
    torch.testing.assert_close(hy.double(), n + z * (hx.double() - n), **_tolerance(dtype))
    torch.testing.assert_close(
        workspace.double(), torch.cat([r, z, n, hx.double(), hn], 1), **_tolerance(dtype)
    )


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    size = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    return {"rtol": size, "atol": size}


# ---- policy ------------------------------------------------------------------------------------------

ROUTES = ["upstream", "recurrence", "step"]


def plan(
    ops: Any,
    *,
    sixteen: bool = False,
    tf32: bool = False,
    steps: int = 50,
    batch: int = 1,
    inputs: int = 128,
    hidden: int = 256,
    directions: int = 1,
    device: str = "H200",
) -> tuple[Any, ...]:
    """Reason; or route, math, exchange, blocks, rows."""
    reason, numbers, _ = ops.plan(sixteen, tf32, steps, batch, inputs, hidden, directions, DEVICES[device])
    return (reason,) if reason else (ROUTES[numbers[0]], *numbers[1:])


NO_KERNEL, LARGE_BATCH = "hidden size without a kernel", "batch too large for the hidden size"
TOO_OLD = "GPU, or code built for it, older than sm_80"
LARGE_STEP, FEW_STEPS = "one step of a large batch", "few steps of a large layer"
PERSISTENT = "long sequence of a layer that cuDNN keeps on the chip"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # One step, whose weights are 256 * 384: fp32, TF32, 16 bits.
        ({"steps": 1, "batch": 8}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 9}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 512}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 15, "tf32": True, "hidden": 512}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 17, "tf32": True, "hidden": 512}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 96, "tf32": True, "hidden": 512}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 112, "tf32": True, "hidden": 512}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 512, "inputs": 127}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 504}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 512, "inputs": 1440}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 512, "inputs": 1448}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 691, "sixteen": True}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 692, "sixteen": True}, (LARGE_STEP,)),
        # Many weights: fewer rows.
        ({"steps": 1, "batch": 8, "hidden": 512, "inputs": 659}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 8, "hidden": 512, "inputs": 660}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 4, "hidden": 2048, "inputs": 2048}, ("step", 0, 0, 0, 0)),
        # A few steps: a launch for each.
        ({"steps": 4, "batch": 8}, ("step", 0, 0, 0, 0)),
        ({"steps": 5, "batch": 8}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"steps": 2, "batch": 9}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"steps": 2, "batch": 4, "hidden": 512, "inputs": 562}, ("step", 0, 0, 0, 0)),
        ({"steps": 2, "batch": 4, "hidden": 512, "inputs": 563}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"steps": 2, "hidden": 1536, "inputs": 1263, "sixteen": True}, ("step", 0, 0, 0, 0)),
        ({"steps": 2, "hidden": 1536, "inputs": 1264, "sixteen": True}, (FEW_STEPS,)),
        ({"steps": 4, "batch": 4, "hidden": 1024}, (FEW_STEPS,)),
        ({"steps": 5, "batch": 4, "hidden": 1024}, ("recurrence", FMA, GRID, 128, 4)),
        ({"steps": 9, "hidden": 2048}, (FEW_STEPS,)),
        ({"steps": 10, "hidden": 2048}, ("recurrence", FMA, GRID, 128, 1)),
        ({"steps": 2, "batch": 345, "sixteen": True}, ("step", 0, 0, 0, 0)),
        ({"steps": 2, "batch": 346, "sixteen": True}, ("recurrence", MMA, CLUSTER, 4, 12)),
        ({"steps": 2, "batch": 129, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        # fp32: a block, clusters of 8 and 16, the whole GPU.
        ({"hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 129}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"hidden": 256}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"hidden": 257}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"hidden": 513}, ("recurrence", FMA, GRID, 65, 1)),
        ({"hidden": 1024}, ("recurrence", FMA, GRID, 128, 1)),
        ({"hidden": 2048}, ("recurrence", FMA, GRID, 128, 1)),
        ({"hidden": 2049}, (NO_KERNEL,)),
        ({"hidden": 1056, "directions": 2}, ("recurrence", FMA, GRID, 66, 1)),
        ({"hidden": 1057, "directions": 2}, (NO_KERNEL,)),
        # 16 bits.
        ({"sixteen": True, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"sixteen": True, "hidden": 129}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"sixteen": True, "hidden": 256}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"sixteen": True, "hidden": 257}, ("recurrence", MMA, CLUSTER, 16, 1)),
        ({"sixteen": True, "hidden": 640}, ("recurrence", MMA, CLUSTER, 16, 1)),
        ({"sixteen": True, "hidden": 641}, ("recurrence", MMA, GRID, 41, 1)),
        ({"sixteen": True, "hidden": 2048}, ("recurrence", MMA, GRID, 128, 1)),
        ({"sixteen": True, "hidden": 2049}, (NO_KERNEL,)),
        # Rows of a group: as few as let all groups run at once, and not too many.
        ({"batch": 132, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"batch": 133, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 2)),
        ({"batch": 15}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"batch": 16}, ("recurrence", FMA, CLUSTER, 8, 2)),
        ({"batch": 7, "directions": 2}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"batch": 112, "hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 16)),
        ({"batch": 113, "hidden": 512}, (LARGE_BATCH,)),
        ({"sixteen": True, "batch": 480, "hidden": 512}, ("recurrence", MMA, CLUSTER, 8, 32)),
        ({"sixteen": True, "batch": 481, "hidden": 512}, (LARGE_BATCH,)),
        # cuDNN's persistent kernel.
        ({"hidden": 64}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 65}, (PERSISTENT,)),
        ({"hidden": 65, "sixteen": True, "batch": 16}, (PERSISTENT,)),
        ({"hidden": 96, "directions": 2, "batch": 8}, (PERSISTENT,)),
        ({"hidden": 97}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 96, "batch": 17}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 96, "directions": 2, "batch": 9}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 96, "steps": 33}, (PERSISTENT,)),
        ({"hidden": 96, "steps": 32}, ("recurrence", FMA, BLOCK, 1, 1)),
        # Small blocks share an SM.
        ({"batch": 12 * 132, "hidden": 32}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"batch": 12 * 132 + 1, "hidden": 32}, ("recurrence", FMA, BLOCK, 1, 2)),
        ({"batch": 3 * 132, "hidden": 33}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"batch": 3 * 132 + 1, "hidden": 33}, ("recurrence", FMA, BLOCK, 1, 2)),
        # 16 bits: tensor cores from so many rows; clusters that leave one tile of rows.
        ({"sixteen": True, "batch": 9 * 132, "hidden": 64}, ("recurrence", FMA, BLOCK, 1, 3)),
        ({"sixteen": True, "batch": 9 * 132 + 1, "hidden": 64}, ("recurrence", MMA, BLOCK, 1, 4)),
        ({"sixteen": True, "batch": 264, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 2)),
        ({"sixteen": True, "batch": 265, "hidden": 128}, ("recurrence", MMA, BLOCK, 1, 3)),
        ({"sixteen": True, "batch": 15}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"sixteen": True, "batch": 16}, ("recurrence", MMA, CLUSTER, 8, 2)),
        ({"sixteen": True, "batch": 120}, ("recurrence", MMA, CLUSTER, 8, 8)),
        ({"sixteen": True, "batch": 121}, ("recurrence", MMA, CLUSTER, 4, 5)),
        ({"sixteen": True, "batch": 56, "hidden": 512}, ("recurrence", MMA, CLUSTER, 16, 8)),
        ({"sixteen": True, "batch": 57, "hidden": 512}, ("recurrence", MMA, CLUSTER, 8, 4)),
        ({"sixteen": True, "batch": 224, "hidden": 640}, ("recurrence", MMA, CLUSTER, 16, 32)),
        ({"sixteen": True, "batch": 225, "hidden": 640}, (LARGE_BATCH,)),
        ({"batch": 32, "hidden": 1024}, ("recurrence", FMA, GRID, 128, 32)),
        ({"batch": 33, "hidden": 1024}, (LARGE_BATCH,)),
        ({"batch": 3, "hidden": 2048}, ("recurrence", FMA, GRID, 128, 3)),
        ({"batch": 4, "hidden": 2048}, (LARGE_BATCH,)),
        ({"sixteen": True, "batch": 64, "hidden": 1024}, ("recurrence", MMA, GRID, 64, 32)),
        ({"sixteen": True, "batch": 65, "hidden": 1024}, (LARGE_BATCH,)),
        ({"sixteen": True, "batch": 32, "hidden": 1025}, ("recurrence", MMA, GRID, 65, 16)),
        ({"sixteen": True, "batch": 33, "hidden": 1025}, (LARGE_BATCH,)),
        ({"sixteen": True, "batch": 16, "hidden": 2048}, ("recurrence", MMA, GRID, 128, 16)),
        ({"sixteen": True, "batch": 17, "hidden": 2048}, (LARGE_BATCH,)),
        ({"hidden": 1024, "directions": 2}, ("recurrence", FMA, GRID, 64, 1)),
        ({"sixteen": True, "batch": 4, "hidden": 1024, "directions": 2}, ("recurrence", MMA, GRID, 64, 4)),
        # TF32 where it is allowed and rows are many.
        ({"tf32": True, "batch": 7, "hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"tf32": True, "batch": 19, "hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 3)),
        ({"tf32": True, "batch": 20, "hidden": 512}, ("recurrence", TF32, GRID, 32, 5)),
        ({"tf32": True, "batch": 20, "hidden": 512, "steps": 5}, ("recurrence", TF32, GRID, 32, 5)),
        ({"tf32": True, "batch": 20, "hidden": 512, "steps": 4}, ("recurrence", TF32, CLUSTER, 16, 3)),
        ({"tf32": True, "batch": 20, "hidden": 260}, ("recurrence", TF32, GRID, 17, 3)),
        ({"tf32": True, "batch": 19, "hidden": 636}, ("recurrence", FMA, GRID, 80, 19)),
        ({"tf32": True, "batch": 19, "hidden": 640}, ("recurrence", TF32, GRID, 40, 7)),
        ({"tf32": True, "batch": 64, "hidden": 512}, ("recurrence", TF32, GRID, 32, 16)),
        ({"tf32": True, "batch": 65, "hidden": 512}, ("recurrence", TF32, CLUSTER, 16, 10)),
        ({"tf32": True, "batch": 112, "hidden": 512}, ("recurrence", TF32, CLUSTER, 16, 16)),
        ({"tf32": True, "batch": 128, "hidden": 512}, ("recurrence", TF32, GRID, 32, 32)),
        ({"tf32": True, "batch": 129, "hidden": 512}, ("recurrence", TF32, CLUSTER, 16, 19)),
        ({"tf32": True, "batch": 15}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"tf32": True, "batch": 19}, ("recurrence", FMA, CLUSTER, 8, 2)),
        ({"tf32": True, "batch": 20}, ("recurrence", TF32, CLUSTER, 8, 2)),
        ({"tf32": True, "batch": 20, "hidden": 192}, ("recurrence", FMA, CLUSTER, 8, 2)),
        ({"tf32": True, "batch": 20, "hidden": 196}, ("recurrence", TF32, CLUSTER, 8, 2)),
        ({"tf32": True, "batch": 121}, ("recurrence", TF32, CLUSTER, 4, 5)),
        ({"tf32": True, "batch": 264, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 2)),
        ({"tf32": True, "batch": 265, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 3)),
        ({"tf32": False, "batch": 29, "hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 5)),
        ({"tf32": True, "batch": 113, "hidden": 512}, ("recurrence", TF32, GRID, 32, 29)),
        ({"tf32": True, "batch": 4, "hidden": 1024}, ("recurrence", FMA, GRID, 128, 4)),
        ({"tf32": True, "batch": 5, "hidden": 1024}, ("recurrence", TF32, GRID, 64, 3)),
        ({"tf32": True, "batch": 64, "hidden": 1024}, ("recurrence", TF32, GRID, 64, 32)),
        ({"tf32": True, "batch": 65, "hidden": 1024}, (LARGE_BATCH,)),
        ({"tf32": True, "batch": 5, "hidden": 1025}, (LARGE_BATCH,)),
        # fp32's projection: 6 * batch * hidden * input FLOPs a step, where upstream may use TF32.
        ({"tf32": True, "batch": 16, "hidden": 1024, "inputs": 1024}, ("recurrence", TF32, GRID, 64, 8)),
        (
            {"tf32": True, "batch": 48, "hidden": 512, "inputs": 1024},
            ("large projection that upstream may do in TF32",),
        ),
        ({"tf32": False, "batch": 24, "hidden": 1024, "inputs": 1024}, ("recurrence", FMA, GRID, 128, 24)),
        (
            {"sixteen": True, "tf32": True, "batch": 24, "hidden": 1024, "inputs": 1024},
            ("recurrence", MMA, GRID, 64, 12),
        ),
        # Other GPUs.
        ({"device": "A100", "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"device": "A100", "hidden": 256}, ("recurrence", FMA, GRID, 32, 1)),
        ({"device": "A100", "hidden": 1728}, ("recurrence", FMA, GRID, 108, 1)),
        ({"device": "A100", "hidden": 1729}, (NO_KERNEL,)),
        ({"device": "no clusters of 16", "hidden": 256}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"device": "no clusters of 16", "hidden": 512}, ("recurrence", FMA, GRID, 64, 1)),
        ({"device": "a small one", "hidden": 320}, ("recurrence", FMA, GRID, 20, 1)),
        ({"device": "a small one", "hidden": 321}, (NO_KERNEL,)),
        ({"steps": 2**31 // 256}, ("sizes beyond 32 bits",)),
    ],
    ids=str,
)
def test_policy(ops: Any, changes: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert plan(ops, **changes) == expected


@pytest.mark.parametrize(
    ("sixteen", "allowed", "steps", "batch", "inputs", "hidden", "expected"),
    [
        (False, False, 50, 24, 1024, 1024, False),
        (True, True, 50, 24, 1024, 1024, False),
        (False, True, 50, 5, 8, 1024, True),  # the recurrence is in TF32
        (False, True, 50, 4, 1016, 1024, False),  # 25 MFLOP a step
        (False, True, 50, 4, 1020, 1024, True),
        (False, True, 50, 4, 1022, 1024, False),  # no whole vectors of four: cuDNN takes no TF32
        (False, True, 1, 16, 512, 512, True),
        (False, True, 1, 8, 512, 512, False),
    ],
)
def test_tf32_products(
    ops: Any,
    sixteen: bool,
    allowed: bool,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    expected: bool,
) -> None:
    """fp32 means fp32 unless cuDNN may use TF32; and a small product is not worth it."""
    reason, _, tf32 = ops.plan(sixteen, allowed, steps, batch, inputs, hidden, 1, H200)
    assert (reason, tf32) == ("", expected)


def test_old_gpu(ops: Any) -> None:
    assert ops.plan(True, False, 5, 1, 8, 8, 1, [80, 7, 0, 0, 0])[0] == TOO_OLD


@pytest.mark.parametrize("device", DEVICES)
def test_every_plan_has_a_kernel(ops: Any, device: str) -> None:
    """Policy and kernels agree: whatever is planned can be launched."""
    facts = DEVICES[device]
    ops.set_device(facts[0], facts[1], 1, 227 << 10)
    hidden_sizes = sorted(
        {1, 16, *(e + d for e in (64, 128, 256, 512, 640, 1024, 1056, 2048) for d in (-1, 0, 1)), 700, 1400}
    )
    planned = 0
    try:
        for sixteen, tf32, hidden, batch, directions in itertools.product(
            (False, True), (False, True), hidden_sizes, (1, 2, 7, 8, 29, 64, 224, 640), (1, 2)
        ):
            reason, (_, *kernel), _ = ops.plan(sixteen, tf32, 50, batch, 8, hidden, directions, facts)
            if not reason:
                planned += 1
                assert ops.fits(sixteen, 50, batch, hidden, directions, kernel), (
                    sixteen,
                    tf32,
                    hidden,
                    batch,
                    kernel,
                )
    finally:
        ops.set_device(132, 9, 8, 227 << 10)
    assert planned > 100


def test_a_gpu_that_refuses(ops: Any) -> None:
    """No cluster at once, too few SMs for all blocks to run, no kernel: known before the launch."""
    cluster, grid = [FMA, CLUSTER, 16, 1], [FMA, GRID, 100, 1]
    try:
        assert ops.fits(False, 5, 1, 512, 1, cluster) and ops.fits(False, 5, 1, 600, 1, grid)
        ops.set_device(132, 9, 0, 227 << 10)
        assert not ops.fits(False, 5, 1, 512, 1, cluster)
        ops.set_device(99, 9, 8, 227 << 10)
        assert not ops.fits(False, 5, 1, 600, 1, grid)
        assert not ops.fits(False, 5, 1, 600, 1, [FMA, CLUSTER, 16, 1]), "no kernel for that size"
    finally:
        ops.set_device(132, 9, 8, 227 << 10)


def test_device_facts(ops: Any) -> None:
    try:
        assert ops.query_device(9) == [132, 9, 8, 8, 8]
        # Older PTX, compiled for this GPU at load; no code for it at all.
        assert ops.query_device(8) == [132, 8, 0, 0, 0]
        assert ops.query_device(0) == [132, 0, 0, 0, 0]
        assert ops.plan(True, False, 5, 1, 8, 8, 1, [132, 0, 0, 0, 0])[0] == TOO_OLD
        ops.set_device(108, 8, 8, 163 << 10)
        assert ops.query_device(8) == [108, 8, 0, 0, 0]
    finally:
        ops.set_device(132, 9, 8, 227 << 10)
