"""gru_cell, one step with its products: when it runs fused, and on a GPU parity with upstream and float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aten_ext
from ops.rnn.cases import DTYPES, FLOOR, assert_ran, documented, meta, names, no_less_accurate


def explain_cell(
    batch: int = 2, inputs: int = 6, hidden: int = 8, dtype: torch.dtype = torch.float32, **changes: Any
) -> aten_ext.Explanation:
    arguments: dict[str, Any] = {
        "input": meta(batch, inputs, dtype=dtype),
        "hx": meta(batch, hidden, dtype=dtype),
        "w_ih": meta(3 * hidden, inputs, dtype=dtype),
        "w_hh": meta(3 * hidden, hidden, dtype=dtype),
        "b_ih": meta(3 * hidden, dtype=dtype),
        "b_hh": meta(3 * hidden, dtype=dtype),
    }
    return aten_ext.explain("gru_cell", key="CUDA", **arguments | changes)


def ask_cell(**changes: Any) -> str:
    reason = explain_cell(**changes).reason
    return documented(reason) if reason else ""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cell_runs(dtype: torch.dtype) -> None:
    assert (
        ask_cell(dtype=dtype)
        == ask_cell(dtype=dtype, b_ih=None, b_hh=None)
        == ask_cell(batch=8, dtype=dtype)
        == ""
    )
    rows = 4 if dtype == torch.float32 else 64
    assert ask_cell(batch=rows, inputs=512, hidden=512, dtype=dtype) == ""


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("dtype other than float32, float16, bfloat16", {"dtype": torch.float64}),
        ("one bias of two", {"b_hh": None}),
        ("one bias of two", {"b_ih": None}),
        ("more than one dtype", {"hx": meta(2, 8, dtype=torch.float16)}),
        ("more than one dtype", {"b_ih": meta(24, dtype=torch.float16)}),
        ("more than one device", {"hx": torch.empty(2, 8)}),
        ("tensor that is not strided", {"input": torch.empty(2, 6).to_sparse().to("meta")}),
        ("input or state that is not two-dimensional", {"input": meta(6)}),
        ("weights that do not fit", {"w_ih": meta(24, 5)}),
        ("weights that do not fit", {"w_hh": meta(24, 7)}),
        ("weights that do not fit", {"hx": meta(3, 8)}),
        ("weights that do not fit", {"b_ih": meta(23)}),
        ("empty input", {"batch": 0}),
        ("tensor that is not contiguous", {"input": meta(6, 2).t()}),
        ("tensor that is not contiguous", {"w_hh": meta(8, 24).t()}),
        ("one step of a large batch", {"batch": 1025}),
        ("one step of a large batch", {"batch": 9, "inputs": 256, "hidden": 512}),
        ("one step of a large batch", {"batch": 5, "inputs": 512, "hidden": 1024}),
        ("one step of a large batch", {"batch": 65, "inputs": 512, "hidden": 512, "dtype": torch.float16}),
    ],
    ids=names,
)
def test_cell_declines(reason: str, changes: dict[str, Any]) -> None:
    assert ask_cell(**changes) == reason


def test_cells_of_few_units_and_many_columns() -> None:
    """fp16, rows that are no vectors, more than 16 of them: up to 1,500 columns."""
    half: dict[str, Any] = {"dtype": torch.float16, "hidden": 75}
    large = "one step of a large batch"
    assert ask_cell(batch=17, inputs=1426, **half) == large
    assert ask_cell(batch=17, inputs=1425, **half) == ask_cell(batch=16, inputs=1426, **half) == ""
    # fp32: more than 256 rows, of which none is whole vectors.
    assert ask_cell(batch=257, inputs=1754, hidden=2) == large
    assert ask_cell(batch=256, inputs=1754, hidden=2) == ask_cell(batch=257, inputs=1752, hidden=4) == ""
    assert ask_cell(batch=257, inputs=1497, hidden=2) == ""
    assert ask_cell(batch=17, inputs=1426, hidden=75, dtype=torch.bfloat16) == ""
    assert ask_cell(batch=17, inputs=1432, hidden=72, dtype=torch.float16) == "", "whole vectors"


HALF = {"dtype": torch.float16, "batch": 16, "inputs": 512}


@pytest.mark.parametrize(
    ("changes", "inside", "outside"),
    [
        (HALF, {"hidden": 2112}, {"hidden": 2120}),  # 264 blocks of 8 units: two for each multiprocessor
        (HALF | {"batch": 17}, {"hidden": 1056}, {"hidden": 1064}),
        (HALF | {"batch": 32, "hidden": 1024}, {"inputs": 3072}, {"inputs": 3080}),  # columns
        (HALF | {"dtype": torch.bfloat16, "hidden": 1024}, {"batch": 32}, {"batch": 33}),
        ({"batch": 4, "hidden": 1536}, {"inputs": 1556}, {"inputs": 1560}),  # weights in fp32
        ({"batch": 4, "hidden": 1537}, {"inputs": 1553}, {"inputs": 1554}),  # and without vectors
        ({"batch": 2, "hidden": 1537}, {"inputs": 1000}, {"inputs": 1001}),
    ],
    ids=names,
)
def test_large_cells(changes: dict[str, Any], inside: dict[str, Any], outside: dict[str, Any]) -> None:
    """Few rows: in 16 bits all blocks run at once; in fp32 two products take longer."""
    assert ask_cell(**changes | inside) == ""
    assert ask_cell(**changes | outside) == "one step of a large batch"
    assert ask_cell(**changes | outside | {"batch": 1}) == "", "one row has a kernel of its own"


@pytest.mark.parametrize(
    ("changes", "plan"),
    [
        (HALF | {"hidden": 1056}, "one launch, tensor cores, loads of a warp at once: 4"),
        (HALF | {"hidden": 1064}, "one launch, tensor cores, loads of a warp at once: 2"),
        (HALF | {"hidden": 528, "batch": 17}, "one launch, tensor cores, loads of a warp at once: 4"),
        (HALF | {"hidden": 536, "batch": 17}, "one launch, tensor cores, loads of a warp at once: 2"),
        (HALF | {"hidden": 2048, "batch": 4}, "one launch, tensor cores, loads of a warp at once: 2"),
        (HALF | {"hidden": 64, "batch": 33}, "one launch, tensor cores, loads of a warp at once: 2"),
        ({"hidden": 2048, "inputs": 256, "batch": 4}, "one launch, fp32 multiply-adds, warps of a unit: 4"),
        ({"hidden": 1024, "inputs": 256, "batch": 1}, "one launch, fp32 multiply-adds, warps of a unit: 4"),
        ({"hidden": 1025, "inputs": 256, "batch": 1}, "one launch, fp32 multiply-adds, warps of a unit: 1"),
    ],
    ids=names,
)
def test_which_kernel_a_cell_has(changes: dict[str, Any], plan: str) -> None:
    """Of more blocks than multiprocessors two share one, which has registers for two loads of each warp."""
    assert explain_cell(**changes).plan == plan


# ---- on a GPU ----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"),
    [(1, 512, 512), (3, 5, 7), (8, 512, 512), (4, 1024, 1024), (2, 100, 333), (16, 128, 256), (40, 72, 64)],
)
def test_cell_matches_upstream(dtype: torch.dtype, bias: bool, batch: int, inputs: int, hidden: int) -> None:
    if dtype == torch.float32:
        batch = min(batch, 8)  # more are upstream's
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(inputs, hidden, bias=bias).to("cuda", dtype)
    x, h = (
        torch.randn(batch, inputs, device="cuda").to(dtype),
        torch.randn(batch, hidden, device="cuda").to(dtype),
    )
    with torch.no_grad():
        with aten_ext.disabled():
            theirs = cell(x, h)
        aten_ext.reset_counts()
        ours = cell(x, h)
        assert_ran("gru_cell")
        assert aten_ext.counts("CUDA")["_thnn_fused_gru_cell"].ran == 0, "one launch"
        exact = cell.double()(x.double(), h.double())
    no_less_accurate(ours, theirs, exact, FLOOR[dtype])


@pytest.mark.gpu
def test_cell_trains_through_its_parts() -> None:
    cell = torch.nn.GRUCell(6, 8).cuda()
    x, h = torch.randn(3, 6, device="cuda"), torch.randn(3, 8, device="cuda")
    gradients = []
    for off in (True, False):
        aten_ext.disable() if off else aten_ext.enable("gru_cell", "_thnn_fused_gru_cell")
        aten_ext.reset_counts()
        gradients.append(torch.autograd.grad(cell(x, h).sum(), list(cell.parameters())))
    assert aten_ext.counts("CUDA")["gru_cell"].ran == 0
    assert_ran("_thnn_fused_gru_cell")
    for mine, upstreams in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, upstreams)
