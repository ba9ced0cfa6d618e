"""lstm_cell, rnn_tanh_cell, rnn_relu_cell, a step with its products: rules, kernels on the CPU, parity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import aten_ext
from device_on_host import library
from ops.rnn.cases import DTYPES, FLOOR, assert_ran, documented, meta, names, no_less_accurate
from ops.rnn.on_host_cases import ORDERS, TOLERANCE, load, order_of_threads

GATES = {"lstm_cell": 4, "rnn_tanh_cell": 1, "rnn_relu_cell": 1}
OPS = pytest.mark.parametrize("op", GATES)

LARGE = "one step of a large batch"


def explain_cell(
    op: str,
    batch: int = 2,
    inputs: int = 6,
    hidden: int = 8,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> aten_ext.Explanation:
    gates = (GATES | {"gru_cell": 3})[op] * hidden
    state = meta(batch, hidden, dtype=dtype)
    arguments: dict[str, Any] = {
        "input": meta(batch, inputs, dtype=dtype),
        "hx": [state, state] if op == "lstm_cell" else state,
        "w_ih": meta(gates, inputs, dtype=dtype),
        "w_hh": meta(gates, hidden, dtype=dtype),
        "b_ih": meta(gates, dtype=dtype),
        "b_hh": meta(gates, dtype=dtype),
    }
    return aten_ext.explain(op, key="CUDA", **arguments | changes)


def ask_cell(op: str, **changes: Any) -> str:
    reason = explain_cell(op, **changes).reason
    return documented(reason) if reason else ""


@OPS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cell_runs(op: str, dtype: torch.dtype) -> None:
    assert ask_cell(op, dtype=dtype) == ask_cell(op, dtype=dtype, b_ih=None, b_hh=None) == ""
    assert ask_cell(op, batch=4, inputs=512, hidden=512, dtype=dtype) == ""


@OPS
@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("dtype other than float32, float16, bfloat16", {"dtype": torch.float64}),
        ("one bias of two", {"b_hh": None}),
        ("one bias of two", {"b_ih": None}),
        ("more than one dtype", {"w_ih": meta(32, 6, dtype=torch.float16)}),
        ("more than one device", {"input": torch.empty(2, 6)}),
        ("tensor that is not strided", {"input": torch.empty(2, 6).to_sparse().to("meta")}),
        ("input or state that is not two-dimensional", {"input": meta(6)}),
        ("weights that do not fit", {"w_ih": meta(24, 6)}),
        ("weights that do not fit", {"w_hh": meta(24, 8)}),
        ("weights that do not fit", {"b_ih": meta(24)}),
        ("empty input", {"batch": 0}),
        ("tensor that is not contiguous", {"input": meta(6, 2).t()}),
        ("one step of a large batch", {"batch": 33, "inputs": 512, "hidden": 512}),
        ("one step of a large batch", {"batch": 513, "inputs": 512, "hidden": 512, "dtype": torch.float16}),
    ],
    ids=names,
)
def test_cell_declines(op: str, reason: str, changes: dict[str, Any]) -> None:
    assert ask_cell(op, **changes) == reason


@pytest.mark.parametrize("op", ["lstm_cell", "rnn_tanh_cell", "rnn_relu_cell"])
def test_many_rows_of_few_units_with_long_sums(op: str) -> None:
    """In 16 bits more than 64 rows of 1,500 columns and more, a hundred for each unit."""
    for batch, inputs, hidden, reason in (
        (64, 1600, 8, ""),
        (65, 1600, 8, LARGE),
        (65, 1488, 8, ""),
        (65, 1584, 16, LARGE),
        (65, 1576, 16, ""),
    ):
        assert ask_cell(op, batch=batch, inputs=inputs, hidden=hidden, dtype=torch.float16) == reason
        assert ask_cell(op, batch=batch, inputs=inputs, hidden=hidden, dtype=torch.float32) == ""


@pytest.mark.parametrize(
    ("op", "hidden", "inputs", "most"),
    [
        # Rows times units, and products without vectors of eight columns.
        ("rnn_tanh_cell", 64, 64, 3125),
        ("rnn_relu_cell", 64, 64, 3125),
        ("lstm_cell", 64, 64, 1031),
        ("gru_cell", 64, 64, 1562),
        ("rnn_tanh_cell", 60, 64, 2500),
        ("lstm_cell", 60, 64, 550),
        ("gru_cell", 60, 64, 1344),
    ],
)
def test_rows_of_a_small_cell(op: str, hidden: int, inputs: int, most: int) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        assert ask_cell(op, batch=most, inputs=inputs, hidden=hidden, dtype=dtype) == ""
        assert ask_cell(op, batch=most + 1, inputs=inputs, hidden=hidden, dtype=dtype) == LARGE


def test_a_cell_of_an_rnn_without_vectors() -> None:
    assert ask_cell("rnn_tanh_cell", batch=1, inputs=1150, hidden=1150) == ""
    assert ask_cell("rnn_tanh_cell", batch=2, inputs=1150, hidden=1150) == LARGE
    assert ask_cell("rnn_tanh_cell", batch=2, inputs=1050, hidden=1050) == ""
    assert ask_cell("rnn_relu_cell", batch=2, inputs=1152, hidden=1152) == ""
    assert ask_cell("lstm_cell", batch=2, inputs=1150, hidden=1150) == ""


@pytest.mark.parametrize(
    ("op", "batch", "inputs", "hidden"),
    [
        ("gru_cell", 17, 8, 1152),  # weights
        ("gru_cell", 2, 66, 1080),
        ("lstm_cell", 2, 66, 1180),
        ("rnn_tanh_cell", 2, 66, 1980),
        ("gru_cell", 2, 1000, 30),  # columns for each unit
        ("lstm_cell", 2, 1000, 142),
    ],
)
def test_large_and_wide_cells_are_upstream_s(op: str, batch: int, inputs: int, hidden: int) -> None:
    assert ask_cell(op, batch=batch, inputs=inputs, hidden=hidden, dtype=torch.bfloat16) == LARGE
    rows = 16 if batch == 17 else 1
    assert ask_cell(op, batch=rows, inputs=inputs, hidden=hidden, dtype=torch.bfloat16) == ""


@pytest.mark.parametrize(
    ("op", "fixed", "last", "first"),
    [
        ("lstm_cell", {"dtype": torch.float16, "batch": 16, "inputs": 512}, 2112, 2120),
        ("lstm_cell", {"dtype": torch.bfloat16, "batch": 32, "inputs": 512}, 1056, 1064),
        ("lstm_cell", {"dtype": torch.float16, "batch": 4, "inputs": 2}, 1056, 1064),  # without vectors
        ("lstm_cell", {"batch": 4, "inputs": 3004}, 1024, 1028),  # weights
        ("lstm_cell", {"batch": 2, "inputs": 2563}, 1024, 1025),  # and without vectors
        ("rnn_tanh_cell", {"batch": 4, "inputs": 3076}, 1024, 1028),
    ],
    ids=names,
)
def test_large_cells(op: str, fixed: dict[str, Any], last: int, first: int) -> None:
    """Few rows: in 16 bits all blocks run at once; in fp32 two products take longer."""
    assert ask_cell(op, **fixed, hidden=last) == ""
    assert ask_cell(op, **fixed, hidden=first) == LARGE
    assert ask_cell(op, **fixed | {"batch": 1}, hidden=first) == ""


@pytest.mark.parametrize(
    ("op", "changes", "plan"),
    [
        ("lstm_cell", {"dtype": torch.float16, "hidden": 1056}, "tensor cores, loads of a warp at once: 4"),
        ("lstm_cell", {"dtype": torch.float16, "hidden": 1064}, "tensor cores, loads of a warp at once: 2"),
        (
            "rnn_tanh_cell",
            {"dtype": torch.float16, "hidden": 2048},
            "tensor cores, loads of a warp at once: 4",
        ),
        ("rnn_relu_cell", {"hidden": 1536}, "fp32 multiply-adds, warps of a unit: 4"),
        ("rnn_relu_cell", {"hidden": 1540}, "fp32 multiply-adds, warps of a unit: 1"),
        (
            "rnn_relu_cell",
            {"hidden": 1028, "batch": 5, "inputs": 8},
            "fp32 multiply-adds, warps of a unit: 1",
        ),
        ("rnn_relu_cell", {"hidden": 1028, "batch": 1}, "fp32 multiply-adds, warps of a unit: 1"),
        ("lstm_cell", {"hidden": 1024}, "fp32 multiply-adds, warps of a unit: 4"),
        ("lstm_cell", {"hidden": 1028}, "fp32 multiply-adds, warps of a unit: 1"),
    ],
    ids=names,
)
def test_which_kernel_a_cell_has(op: str, changes: dict[str, Any], plan: str) -> None:
    """An RNN's blocks have registers for four loads of each warp where two share a multiprocessor."""
    assert explain_cell(op, **{"batch": 4, "inputs": 256} | changes).plan == f"one launch, {plan}"


def test_states_of_an_lstm() -> None:
    state = meta(2, 8)
    assert (
        ask_cell("lstm_cell", hx=[state])
        == ask_cell("lstm_cell", hx=[state] * 3)
        == "state that is not a pair"
    )
    assert ask_cell("lstm_cell", hx=[state, meta(3, 8)]) == "weights that do not fit"
    assert ask_cell("lstm_cell", hx=[state, meta(8)]) == "weights that do not fit"
    assert ask_cell("lstm_cell", hx=[state, meta(2, 8, dtype=torch.half)]) == "more than one dtype"
    assert ask_cell("lstm_cell", hx=[state, meta(8, 2).t()]) == "tensor that is not contiguous"
    assert ask_cell("lstm_cell", hx=[state, torch.empty(2, 8)]) == "more than one device"


# ---- the kernels on the CPU, and on a GPU ------------------------------------------------------------


def new_cell(op: str, inputs: int, hidden: int, *, bias: bool = True) -> torch.nn.RNNCellBase:
    if op == "lstm_cell":
        return torch.nn.LSTMCell(inputs, hidden, bias=bias)
    return torch.nn.RNNCell(inputs, hidden, bias=bias, nonlinearity=op.split("_")[1])


def listed(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


on_host = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.fixture(params=ORDERS.values(), ids=ORDERS)
def order(ops: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    with order_of_threads(*request.param):
        yield


@on_host
@OPS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"),
    [(1, 1, 1), (2, 5, 7), (8, 32, 16), (5, 300, 64), (1, 40, 520), (40, 130, 33)],
)
def test_cell_on_host(
    order: None, op: str, dtype: torch.dtype, bias: bool, batch: int, inputs: int, hidden: int
) -> None:
    if dtype == torch.float32:
        batch = min(batch, 8)  # more are upstream's
    torch.manual_seed(0)
    cell = new_cell(op, inputs, hidden, bias=bias).to(dtype).requires_grad_(False)
    x, h, c = torch.randn(batch, inputs).to(dtype), *torch.randn(2, batch, hidden).to(dtype)
    weights = list(cell.parameters()) + ([] if bias else [None, None])
    ours = getattr(torch.ops.aten_ext_on_host, op)(x, [h, c] if op == "lstm_cell" else h, *weights)
    state: Any = (h.double(), c.double()) if op == "lstm_cell" else h.double()
    exact = cell.double()(x.double(), state)
    for mine, truth in zip(listed(ours), listed(exact), strict=True):
        assert mine.is_contiguous() and mine.dtype == dtype
        most = TOLERANCE[dtype] * max(1.0, truth.abs().max().item())
        assert (mine.double() - truth).abs().max() < most


@pytest.mark.gpu
@OPS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"), [(1, 512, 512), (3, 5, 7), (4, 512, 512), (2, 100, 333), (16, 128, 256)]
)
def test_cell_matches_upstream(
    op: str, dtype: torch.dtype, bias: bool, batch: int, inputs: int, hidden: int
) -> None:
    if dtype == torch.float32:
        batch = min(batch, 4)
    torch.manual_seed(0)
    cell = new_cell(op, inputs, hidden, bias=bias).to("cuda", dtype).requires_grad_(False)
    x, h, c = (torch.randn(batch, n, device="cuda").to(dtype) for n in (inputs, hidden, hidden))
    state: Any = (h, c) if op == "lstm_cell" else h
    with aten_ext.disabled():
        theirs = cell(x, state)
    aten_ext.reset_counts()
    ours = cell(x, state)
    assert_ran(op)
    exact = cell.double()(x.double(), (h.double(), c.double()) if op == "lstm_cell" else h.double())
    for mine, upstreams, truth in zip(listed(ours), listed(theirs), listed(exact), strict=True):
        no_less_accurate(mine, upstreams, truth, FLOOR[dtype])


@pytest.mark.gpu
@OPS
def test_cell_trains_through_its_parts(op: str) -> None:
    cell = new_cell(op, 6, 8).cuda()
    x, h = torch.randn(3, 6, device="cuda"), torch.randn(3, 8, device="cuda")
    aten_ext.reset_counts()
    result = cell(x, (h, h) if op == "lstm_cell" else h)
    torch.autograd.grad(listed(result)[0].sum(), list(cell.parameters()))
    counts = aten_ext.counts("CUDA")[op]
    assert (counts.ran, counts.declined) == (0, {})
