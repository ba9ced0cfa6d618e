"""Transposes by panels, on the emulator: which calls are, and upstream's bits."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from device_on_host import library
from gpus import ARCHITECTURES, Gpu
from ops.cat import layouts
from ops.cat.layouts import launches_of, transposed
from ops.cat.reference import KERNELS, NO_SMALL_CALLS
from strategies import random_bits

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

# On NO_SMALL_CALLS the bytes that a result must have for each multiprocessor are none, "never" too.
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.int64)
ONE_MULTIPROCESSOR = dataclasses.replace(ARCHITECTURES["sm_90"], multiprocessors=1)


@pytest.fixture(scope="module", autouse=True)
def ops() -> torch._ops._OpNamespace:
    library.load("cat", *KERNELS)
    return torch.ops.aten_ext_on_host_cat


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("apart", [0, 1, 5])
def test_rows_of_any_length(dtype: torch.dtype, offset: int, apart: int) -> None:
    """Panels that begin and end within vectors of the inputs and of the result."""
    choose = random.Random(f"{dtype} {offset} {apart}")
    for columns in (1, 2, 3, 7, 8, 9, 12):
        least = -(-4096 // (columns * dtype.itemsize))  # of a panel's bytes
        rows = least + choose.choice([0, 1, 129, 872, 3983])
        few = [
            transposed((rows, columns + i), dtype, i, apart=apart, offset=offset)
            for i in range(3 - columns // 12)
        ]
        assert launches_of(few, 1, NO_SMALL_CALLS) == ["panel"]
        same = [transposed((rows + i, columns + 1), dtype, i, apart=apart, offset=offset) for i in range(3)]
        assert launches_of(same, 0, NO_SMALL_CALLS) == ["panel"]


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("shape", [(3, 900, 5), (2, 3, 1150, 4), (2, 3, 2, 2100, 2), (400, 3, 2, 2)], ids=str)
def test_every_dimension(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Joined before, in and after the one that memory runs along, of inputs that differ in it."""
    along = max(range(len(shape)), key=shape.__getitem__)
    for dim in range(len(shape)):
        sizes = [shape[dim], shape[dim] + 1, shape[dim] + 2]
        tensors = [
            transposed((*shape[:dim], n, *shape[dim + 1 :]), dtype, n, along=along, apart=3) for n in sizes
        ]
        assert launches_of(tensors, dim, NO_SMALL_CALLS) == ["panel"], dim


def test_one_column_is_a_run_too() -> None:
    """Beside others it is a column like theirs; alone it is nothing but memory."""
    one, more = transposed((500, 1), torch.int16, 0), transposed((500, 4), torch.int16, 1)
    assert launches_of([one, more, one], 1, NO_SMALL_CALLS) == ["panel"]
    assert launches_of([one, one], 1, NO_SMALL_CALLS) == ["words"]


# Inputs, whether they are joined within a row, columns of each, and from how many KB for each multiprocessor
# a result is made by panels, by the element's size.
@pytest.mark.parametrize(
    ("count", "joined", "columns", "least"),
    [
        (2, True, 4, {1: 12, 2: 8, 4: 18, 8: 90}),
        (2, True, 5, {1: 14, 2: 15, 4: 36, 8: 90}),
        (2, True, 8, {1: 14, 2: 15, 4: 36, 8: 90}),
        (2, True, 9, {1: 14, 2: 20, 4: 108, 8: None}),
        (2, False, 4, {1: 14, 2: 20, 4: 108, 8: None}),
        (2, False, 24, {1: 14, 2: 20, 4: 108, 8: None}),
        (2, False, 25, {1: 20, 2: 30, 4: 108, 8: None}),
        (2, False, 41, {1: 80, 2: 52, 4: None, 8: None}),
        (2, False, 65, {1: None, 2: None, 4: None, 8: None}),
        (16, True, 4, {1: 12, 2: 8, 4: 18, 8: None}),
        (33, True, 3, {1: None, 2: None, 4: None, 8: None}),
        (33, False, 3, {1: 14, 2: 20, 4: 108, 8: None}),
    ],
)
def test_from_how_many_bytes(count: int, joined: bool, columns: int, least: dict[int, int | None]) -> None:
    multiprocessors = max(1, count // 3)
    gpu = dataclasses.replace(ONE_MULTIPROCESSOR, multiprocessors=multiprocessors)
    for dtype in DTYPES:
        from_kb = least[dtype.itemsize]
        row = columns * dtype.itemsize * count
        rows = -(-(from_kb or 128) * 1024 * multiprocessors // row)
        dim = 1 if joined else 0
        tensors = [transposed((rows, columns), dtype, i) for i in range(count)]
        launches = launches_of(tensors, dim, gpu)
        if from_kb is None:
            assert "panel" not in launches, dtype
        else:
            assert set(launches) == {"panel"} and len(launches) == (1 if joined else -(-count // 32)), dtype
            fewer = [t[: rows - 1] for t in tensors]
            assert "panel" not in launches_of(fewer, dim, gpu), dtype


@pytest.mark.parametrize("multiprocessors", [7, 8, 16, 108, 144, 170])
def test_never_is_never(multiprocessors: int) -> None:
    """However many multiprocessors a GPU has, by which figures are multiplied."""
    gpu = dataclasses.replace(ONE_MULTIPROCESSOR, multiprocessors=multiprocessors)
    rows = 20 * 1024 * multiprocessors // (2 * 41 * 4)
    tensors = [transposed((rows, 41), torch.float32, i) for i in range(2)]
    assert "panel" not in launches_of(tensors, 0, gpu)


@pytest.mark.parametrize(("dtype", "most"), list(zip(DTYPES, (128, 96, 64, 40), strict=True)), ids=str)
def test_columns_of_a_row(dtype: torch.dtype, most: int) -> None:
    """Of more, a panel would hold too short a part of each."""
    eight = [transposed((300, most // 8), dtype, i) for i in range(8)]
    assert launches_of(eight, 1, NO_SMALL_CALLS) == ["panel"]
    eight[3] = transposed((300, most // 8 + 1), dtype, 9)
    assert "panel" not in launches_of(eight, 1, NO_SMALL_CALLS)


@pytest.mark.parametrize(("dtype", "least"), list(zip(DTYPES, (128, 64, 32, 16), strict=True)), ids=str)
def test_short_runs_of_memory_are_gathered(dtype: torch.dtype, least: int) -> None:
    """Below 128 bytes, of any input."""
    for first, kernel in ((least, "panel"), (least - 1, "gather")):
        tensors = [transposed((9, n, 36), dtype, n) for n in (first, 2 * least)]
        assert launches_of(tensors, 1, NO_SMALL_CALLS) == [kernel]
        halves = [transposed((9, first, 18), dtype, n) for n in (1, 2)]
        assert launches_of(halves, 2, NO_SMALL_CALLS) == [kernel]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_panels_are_gathered(dtype: torch.dtype) -> None:
    """Below 4,096 bytes of one run of each column: a panel would hold no more."""
    for columns in (4, 8, 16):
        least = 4096 // (columns * dtype.itemsize)
        for run, kernel in ((least, "panel"), (least - 1, "gather")):
            tensors = [transposed((9, n, columns), dtype, n) for n in (run, 2 * least)]
            assert launches_of(tensors, 1, NO_SMALL_CALLS) == [kernel]
            halves = [transposed((9, run, columns // 2), dtype, n) for n in (1, 2)]
            assert launches_of(halves, 2, NO_SMALL_CALLS) == [kernel]


def _but(**facts: int) -> Gpu:
    return dataclasses.replace(NO_SMALL_CALLS, **facts)


def test_what_is_not_made_by_panels() -> None:
    """Other layouts in company, expanded and converted inputs, large elements, and code for older GPUs."""
    two = [transposed((300, 4), torch.int16, i) for i in range(2)]
    assert launches_of(two, 1, _but(code=80)) == ["panel"]
    assert launches_of(two, 1, _but(code=75)) == ["gather"]
    plain = layouts.plain((300, 4), torch.int16, 3)
    assert "panel" not in launches_of([*two, plain], 1, NO_SMALL_CALLS)
    expanded = random_bits(300, torch.int16, 4).view(300, 1).expand(300, 4)
    assert "panel" not in launches_of([*two, expanded], 1, NO_SMALL_CALLS)
    converted = transposed((300, 4), torch.uint8, 5)
    assert "panel" not in launches_of([*two, converted], 1, NO_SMALL_CALLS)
    large = [transposed((300, 4), torch.complex128, i) for i in range(2)]
    assert "panel" not in launches_of(large, 1, NO_SMALL_CALLS)
    # Five dimensions of which no two are one in memory.
    wide = [layouts.plain((4, 3, 3, 4, 181), torch.int16, i) for i in range(2)]
    five = [t[:3, :2, :2, :3, :180].permute(0, 1, 4, 2, 3) for t in wide]
    assert "panel" not in launches_of(five, 4, NO_SMALL_CALLS)
