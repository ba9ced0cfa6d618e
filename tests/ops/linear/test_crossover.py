"""The table of the crossover: the header is the data's, and the cells that upstream wins are upstream's."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
import torch

from ops.linear.cases import SLOWER, all_mm_routes, meta
from paths import ROOT

FOLDER = ROOT / "aten_ext" / "ops" / "linear"
TABLE: dict[str, Any] = json.loads((FOLDER / "crossover_h200.json").read_text())


def test_the_header_is_made_of_the_table() -> None:
    spec = importlib.util.spec_from_file_location("tune_linear", ROOT / "scripts" / "tune_linear.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (FOLDER / "crossover_table.h").read_text() == module.render(TABLE)


def reasons(dtype: torch.dtype, m: int, n: int, k: int) -> set[str]:
    return all_mm_routes(meta(m, k, dtype=dtype), meta(n, k, dtype=dtype).t())


@pytest.mark.parametrize("row", TABLE["rows"], ids=str)
def test_cells(row: dict[str, Any]) -> None:
    """What was measured, and what is within a quarter of an octave."""
    (first, last), n, k = row["m"], row["n"], row["k"]
    for dtype in [torch.float32] if row["dtype"] == "float32" else [torch.half, torch.bfloat16]:
        assert row["ours"] > 0.98 * row["upstream"]
        for m in (first, last):
            for scale in (7 / 8, 1, 9 / 8):
                # Small sizes are as measured: rounded to whole vectors they would leave the cell.
                near_n, near_k = (size if size < 256 else int(size * scale) // 8 * 8 for size in (n, k))
                assert reasons(dtype, m, near_n, near_k) == {SLOWER}


@pytest.mark.parametrize(
    ("dtype", "m", "n", "k"),
    [
        (torch.bfloat16, 1, 4096, 4096),
        (torch.bfloat16, 8, 11008, 4096),
        (torch.bfloat16, 16, 4096, 4096),
        (torch.float32, 1, 4096, 4096),
        (torch.float32, 2, 5120, 5120),
        (torch.float32, 64, 3072, 768),
    ],
)
def test_outside_of_the_cells(dtype: torch.dtype, m: int, n: int, k: int) -> None:
    assert reasons(dtype, m, n, k) == {""}
