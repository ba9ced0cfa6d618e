"""_thnn_fused_gru_cell, the gates of one step: when it runs fused, and on a GPU parity with upstream."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aten_ext
from ops.rnn.cases import DTYPES, assert_ran, documented, meta, names


def ask_gates(batch: int = 2, hidden: int = 8, dtype: torch.dtype = torch.float32, **changes: Any) -> str:
    arguments: dict[str, Any] = {
        "input_gates": meta(batch, 3 * hidden, dtype=dtype),
        "hidden_gates": meta(batch, 3 * hidden, dtype=dtype),
        "hx": meta(batch, hidden, dtype=dtype),
        "input_bias": meta(3 * hidden, dtype=dtype),
        "hidden_bias": meta(3 * hidden, dtype=dtype),
    }
    reason = aten_ext.explain("_thnn_fused_gru_cell", key="CUDA", **arguments | changes).reason
    return documented(reason) if reason else ""


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_gates_run(dtype: torch.dtype) -> None:
    assert ask_gates(dtype=dtype) == ask_gates(dtype=dtype, input_bias=None, hidden_bias=None) == ""


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("dtype other than float32, float16, bfloat16, float64", {"dtype": torch.int32}),
        ("one bias of two", {"hidden_bias": None}),
        ("more than one dtype", {"hx": meta(2, 8, dtype=torch.float16)}),
        ("more than one device", {"hx": torch.empty(2, 8)}),
        ("tensor that is not strided", {"input_gates": torch.empty(2, 24).to_sparse().to("meta")}),
        ("gates that do not fit the state", {"hidden_gates": meta(2, 23)}),
        ("gates that do not fit the state", {"hx": meta(2, 1, 8)}),
        ("gates that do not fit the state", {"input_bias": meta(23)}),
        ("empty input", {"batch": 0}),
        ("tensor that is not contiguous", {"hx": meta(8, 2).t()}),
    ],
    ids=names,
)
def test_gates_decline(reason: str, changes: dict[str, Any]) -> None:
    assert ask_gates(**changes) == reason


# ---- on a GPU ----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "hidden"), [(1, 1), (3, 7), (64, 1024), (5, 333)])
def test_gates_match_upstream(dtype: torch.dtype, bias: bool, batch: int, hidden: int) -> None:
    torch.manual_seed(0)

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(dtype)

    arguments = [new(batch, 3 * hidden), new(batch, 3 * hidden), new(batch, hidden)]
    arguments += [new(3 * hidden), new(3 * hidden)] if bias else []
    with aten_ext.disabled():
        theirs = torch.ops.aten._thnn_fused_gru_cell(*arguments)
    aten_ext.reset_counts()
    ours = torch.ops.aten._thnn_fused_gru_cell(*arguments)
    assert_ran("_thnn_fused_gru_cell")
    size = {torch.float64: 1e-14, torch.float32: 2e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for mine, upstreams in zip(ours, theirs, strict=True):
        assert mine.stride() == upstreams.stride()
        torch.testing.assert_close(mine, upstreams, rtol=size, atol=size)
