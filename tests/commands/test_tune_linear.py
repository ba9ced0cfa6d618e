"""How ``tune`` measures a linear layer: with weights from memory, and where they stay in the L2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_ext.tune import linear

L2_BYTES = 48 << 20


def bench(
    monkeypatch: pytest.MonkeyPatch, *, memory: float, resident: float
) -> tuple[linear.Bench, list[int]]:
    """One whose clock gives these ratios, twice each; and how many weights there were in each look."""
    made = object.__new__(linear.Bench)
    made._l2 = L2_BYTES
    numel = 2 * (linear.MAX_WEIGHT_BYTES + 4 * L2_BYTES)
    made._values = {
        dtype: torch.empty(numel // dtype.itemsize, device="meta", dtype=dtype) for dtype in linear.DTYPES
    }
    looks: list[int] = []

    def ratios(self: linear.Bench, calls: list[Callable[[], Any]]) -> tuple[float, float]:
        weights = {call.args[-1].storage_offset() for call in calls}  # type: ignore[attr-defined]
        looks.append(len(weights))
        return (resident, 2 * resident) if len(weights) == 1 else (memory, 2 * memory)

    monkeypatch.setattr(linear.Bench, "_ratios", ratios)
    return made, looks


def cell(n: int, k: int) -> linear.Cell:
    return linear.Cell((0, 0, 0, 0, 0, 0), torch.bfloat16, False, "transposed", 4, n, k)


@pytest.mark.parametrize(
    ("memory", "resident", "expected"),
    [
        (1.4, 0.9, (0.9, 2.8)),  # slower, but between other kernels
        (1.4, 0.5, (0.5, 1.0)),
        (1.4, 1.01, (1.01, 2.8)),
        (1.4, 1.02, (1.4, 2.8)),  # faster: by how much is of no matter
        (0.6, 0.4, (0.4, 0.8)),  # 1.2 between other kernels
    ],
)
def test_a_layer_that_is_slower_in_the_l2_counts_as_that(
    memory: float, resident: float, expected: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, looks = bench(monkeypatch, memory=memory, resident=resident)
    assert made.ratios(cell(1024, 1024)) == expected
    assert looks == [linear.MAX_CALLS * 3 // 4, 1]


@pytest.mark.parametrize(("memory", "n"), [(0.5, 1024), (1.9, 1024), (1.4, 16392)])
def test_who_is_not_asked_again(memory: float, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is upstream's or far ahead as it is, and a weight of more than two thirds of the L2."""
    made, looks = bench(monkeypatch, memory=memory, resident=0.5)
    assert made.ratios(cell(n, 1024)) == (memory, 2 * memory)
    assert len(looks) == 1
