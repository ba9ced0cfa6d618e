"""``tune``: which linear layers are measured, how, and what the others count as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import processes
from aten_ext.tune import linear
from made_up_tables import shape
from paths import TESTS

L2_BYTES = 48 << 20

pytestmark = pytest.mark.skipif(
    "linear" not in torch.ops.aten_ext.table_families(), reason="built without the linear layers"
)


def bench(
    monkeypatch: pytest.MonkeyPatch, *, memory: float, resident: float
) -> tuple[linear.Bench, list[tuple[int, int]]]:
    """One whose clock gives these ratios, twice each; and the weights and calls of each look."""
    made = object.__new__(linear.Bench)
    made._l2 = L2_BYTES
    made._grid = linear.THOROUGH
    numel = 2 * (linear.MAX_WEIGHT_BYTES + 4 * L2_BYTES)
    made._values = {
        dtype: torch.empty(numel // dtype.itemsize, device="meta", dtype=dtype) for dtype in linear.DTYPES
    }
    looks: list[tuple[int, int]] = []

    def ratios(self: linear.Bench, calls: list[Callable[[], Any]]) -> tuple[float, float]:
        weights = {call.args[-1].storage_offset() for call in calls}  # type: ignore[attr-defined]
        looks.append((len(weights), len(calls)))
        return (resident, 2 * resident) if len(weights) == 1 else (memory, 2 * memory)

    monkeypatch.setattr(linear.Bench, "_ratios", ratios)
    return made, looks


def cell(n: int, k: int) -> linear.Cell:
    return linear.Cell((0, 0, 0, 0, 0, 0), torch.bfloat16, False, "transposed", 4, n, k)


@pytest.mark.parametrize(
    ("memory", "resident", "expected"),
    [
        (1.4, 0.9, (1.4, 2.8, 0.9)),  # slower, but between other kernels
        (1.4, 0.5, (1.4, 1.0, 0.5)),
        (1.4, 1.2, (1.4, 2.8, 1.2)),
        (0.6, 0.4, (0.6, 0.8, 0.4)),  # 1.2 between other kernels
    ],
)
def test_a_layer_that_is_slower_in_the_l2_counts_as_that(
    memory: float, resident: float, expected: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, looks = bench(monkeypatch, memory=memory, resident=resident)
    assert made.ratios(cell(1024, 1024)) == expected
    # As many weights as fill the L2 twice, and one, in few calls.
    assert looks == [(48, 96), (1, linear.RESIDENT_CALLS)]


@pytest.mark.parametrize(("memory", "n"), [(0.5, 1024), (1.9, 1024), (1.4, 27040)])
def test_who_is_not_asked_again(memory: float, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is upstream's or far ahead as it is, and a weight of which little stays in the L2."""
    made, looks = bench(monkeypatch, memory=memory, resident=0.5)
    assert made.ratios(cell(n, 1024)) == (memory, 2 * memory, linear.FAR_AHEAD)
    assert len(looks) == 1


def test_what_is_not_measured_is_filled() -> None:
    percent = torch.zeros(shape(), dtype=torch.uint8)
    cells = list(linear.cells())
    assert len({cell.place for cell in cells}) == len(cells)
    for cell in cells:
        percent[cell.place] = 100 + cell.place[4]
    full = linear.fill(percent)
    assert (full > 0).all()
    measured = percent > 0
    assert torch.equal(full[measured], percent[measured])
    # Between two measured sizes the lesser.
    assert full[0, 0, 1, 0, 15, 0] == 114


def test_a_quick_grid() -> None:
    """A sixth of the cells, the first and the last of each axis among them; the others count as less."""
    cells = list(linear.cells(linear.QUICK))
    thorough = {cell.place: cell for cell in linear.cells()}
    assert 5 * len(cells) < len(thorough) < 6 * len(cells)
    assert all(thorough[cell.place] == cell for cell in cells)
    percent = torch.zeros(shape(), dtype=torch.uint8)
    for cell in cells:
        percent[cell.place] = 100 + cell.place[3] + cell.place[4]
    full = linear.fill(percent, linear.QUICK.between)
    assert (full > 0).all()
    measured = percent > 0
    assert torch.equal(full[measured], percent[measured])
    for layout in linear.LAYOUTS.values():
        for places, size in (
            (linear.QUICK.rows(layout), 10),
            (linear.QUICK.columns(layout), 37),
            (linear.QUICK.depths(layout), 23),
        ):
            assert places[0] == 0 and places[-1] == size - 1
    # Two columns and a row lie between these; each is 0.95 of the lesser beside it.
    assert full[0, 0, 0, 0, 16, 0] == 116 and full[0, 0, 0, 0, 17, 0] == 110
    assert full[0, 0, 1, 0, 17, 0] == full[0, 0, 1, 0, 19, 0] == 110
    assert full[0, 0, 1, 1, 16, 0] == 110


def test_tune_without_a_gpu() -> None:
    done = processes.python("-m", "aten_ext", "tune", "dogs", cwd=TESTS)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "aten_ext tune: unknown family 'dogs'; choose from: linear"
    if not torch.cuda.is_available():
        done = processes.python("-m", "aten_ext", "tune", cwd=TESTS)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == "aten_ext tune: there is no CUDA device here"
