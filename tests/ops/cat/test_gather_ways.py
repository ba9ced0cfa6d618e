"""What a thread of gather.cu makes of an input, on the emulator, by how many threads there are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch

from device_on_host import library
from gpus import ARCHITECTURES, pretended
from ops.cat import layouts
from ops.cat.layouts import transposed
from ops.cat.reference import KERNELS, assert_same, kernels

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

AT_ONCE = {1: 4, 2: 4, 4: 4, 8: 2}
"""Elements of a thread that moves them one by one, by their size."""
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.int64)


@pytest.fixture(scope="module", autouse=True)
def ops() -> torch._ops._OpNamespace:
    library.load("cat", *KERNELS)
    return torch.ops.aten_ext_on_host_cat


def has_threads(
    items: Sequence[int],
    tensors: Sequence[torch.Tensor],
    dim: int,
    multiprocessors: int,
    l2_bytes: int = 50 << 20,
) -> bool:
    """Whether each input has so many threads, and less than a block's idle ones. Checks the result's bits."""
    ops = torch.ops.aten_ext_on_host_cat
    gpu = dataclasses.replace(
        ARCHITECTURES["sm_90"], multiprocessors=multiprocessors, l2_bytes=l2_bytes, code=75
    )
    with pretended(gpu, ops.set_gpu):
        ops.threads()
        ops.launched()
        ours = torch.ops.aten_ext_on_host.cat(tensors, dim)
        (threads,) = ops.threads()
    assert kernels(ops.launched()) == ["gather"]
    assert_same(ours, torch.cat(list(tensors), dim), any_nan=len({t.dtype for t in tensors}) > 1)
    return sum(items) <= threads < sum(n + 256 for n in items)


# Columns of a transpose, each in a sector of its own, so that 32 bytes for each are read before a sector's
# next element; whether patches are loaded at once; from how many of them for each multiprocessor on they make
# an input, by the element's size. None: never.
@pytest.mark.parametrize(
    ("columns", "aligned", "least"),
    [
        (255, False, {1: 350, 2: 400, 4: None, 8: None}),
        (256, False, {1: 350, 2: 380, 4: 1600, 8: 2200}),
        (352, False, {1: 310, 2: 350, 4: 900, 8: 900}),
        (416, False, {1: 230, 2: 350, 4: 600, 8: 900}),
        (480, False, {1: 190, 2: 250, 4: 600, 8: 900}),
        (576, False, {1: 190, 2: 190, 4: 190, 8: 190}),
        (768, False, {1: 160, 2: 160, 4: 160, 8: 160}),
        (32, True, {1: 190, 2: 190, 4: 190, 8: 190}),
        (767, True, {1: 190, 2: 190, 4: 190, 8: 190}),
        (768, True, {1: 120, 2: 120, 4: 120, 8: 120}),
    ],
)
def test_from_how_many_patches(columns: int, aligned: bool, least: dict[int, int | None]) -> None:
    """Of seven inputs, more than are made element by element, whose last patches are nearly full or half."""
    count, matrices, multiprocessors = 7, max(3, 600 // columns), 180
    for dtype in DTYPES:
        size = dtype.itemsize
        patch = 16 // size
        last = {1: 13, 2: 7, 4: 2, 8: 1}[size]
        per_multiprocessor = (least[size] or 1000) * patch
        if per_multiprocessor <= 512:
            continue  # each has a thread
        most = per_multiprocessor * multiprocessors // (count * matrices * columns)
        rows = (most - last) // patch * patch + last
        for n in (rows, rows + patch):
            unit = (128 if size == 8 else 16) // size
            stride = (n // unit + 3) * unit + (0 if aligned else unit // 2)
            tensors = [transposed((matrices, n, columns), dtype, i, apart=stride - n) for i in range(count)]
            patches = matrices * columns * math.ceil(n / patch)
            elements = math.ceil(matrices * columns * n / AT_ONCE[size])
            assert abs(patches - elements) >= 256
            expected = patches if least[size] and n > rows else elements
            assert has_threads([expected] * count, tensors, 0, multiprocessors), (dtype, n)


# Columns of a transpose and whether they are in step; up to how many elements for each multiprocessor a
# thread moves one, of up to 2 bytes and of more.
@pytest.mark.parametrize(
    ("columns", "in_step", "small", "large"),
    [
        (127, False, 800, 1536),
        (127, True, 1536, 1536),
        (128, False, 512, 512),
        (128, True, 800, 1536),
        (351, False, 512, 512),
        (352, False, 800, 800),
        (352, True, 800, 800),
        (575, False, 800, 800),
        (576, False, 1200, 800),
    ],
)
def test_transposes_of_single_elements(columns: int, in_step: bool, small: int, large: int) -> None:
    multiprocessors = 60

    def are_single(count: int, rows: int, dtype: torch.dtype) -> bool:
        stride = -(-rows // 256) * 256 if in_step else (rows + 32) | 1
        tensors = [transposed((rows, columns), dtype, i, apart=stride - rows) for i in range(count)]
        return has_threads([rows * columns] * count, tensors, 0, multiprocessors)

    for dtype in DTYPES:
        most = (small if dtype.itemsize <= 2 else large) * multiprocessors
        rows = most // (6 * columns)
        assert are_single(6, rows, dtype), dtype
        assert not are_single(6, rows + 1, dtype), dtype
        few = 512 * multiprocessors // (7 * columns)
        assert are_single(7, few, dtype), dtype
        assert not are_single(7, few + 1, dtype), dtype


def test_converted_elements_have_a_thread_for_each() -> None:
    """Of results of up to 1,024 for each multiprocessor; of more four share one."""
    for rows, at_once in ((1024, 1), (1025, 4)):
        tensors = [layouts.strided((rows, 8), dtype, 1) for dtype in (torch.bfloat16, torch.float32)]
        assert has_threads([rows * 8 // at_once] * 2, tensors, 1, 16)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
def test_a_column_beside_many_has_a_thread_for_each_element(dtype: torch.dtype) -> None:
    """Of a row of more than 16 elements; of fewer it is made as others are, by fours."""
    rows = 60_000
    for columns, of_column in ((16, 1), (15, 4)):
        tensors = [layouts.strided((rows, n), dtype, n) for n in (columns, 1)]
        assert has_threads([rows * columns // 4, rows // of_column], tensors, 1, 2)


def _of_every(step: int, rows: int, columns: int, seed: int) -> torch.Tensor:
    return layouts.plain((rows, step * columns), torch.float32, seed)[:, ::step]


@pytest.mark.parametrize("step", [5, 8, 20])
def test_inputs_take_turns_where_more_is_read_than_the_l2_holds(step: int) -> None:
    """All have as many blocks then. Each of their elements is read with what lies beside it in its sector."""
    rows, widths = 40_000, (16, 16, 2)
    tensors = [_of_every(step, rows, n, i) for i, n in enumerate(widths)]
    each = [rows * n for n in widths]
    read = sum(each) * min(step * 4, 32)
    assert 4 * sum(each) * 4 < read - 1, "the result is large in itself"
    assert has_threads([max(each)] * 3, tensors, 1, 2, l2_bytes=read - 1)
    assert has_threads(each, tensors, 1, 2, l2_bytes=read)


@pytest.mark.parametrize(("columns", "apart"), [(2, 24), (3, 16)])
def test_far_elements_have_a_thread_for_each(columns: int, apart: int) -> None:
    """As far apart as that, by whether a row of the result is of 24 bytes."""
    rows = 2000
    for bytes_apart, at_once in ((apart, 1), (apart - 4, 4)):
        tensors = [_of_every(bytes_apart // 4, rows, columns, i) for i in range(2)]
        assert has_threads([rows * columns // at_once] * 2, tensors, 1, 1)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int64], ids=str)
def test_other_elements_two_to_a_sector_are_moved_by_several(dtype: torch.dtype) -> None:
    rows, columns, step = 2000, 6, 16 // dtype.itemsize
    tensors = [layouts.plain((rows, step * columns), dtype, i)[:, ::step] for i in range(2)]
    assert has_threads([rows * columns // AT_ONCE[dtype.itemsize]] * 2, tensors, 1, 1)


def test_words_two_to_a_sector_have_a_thread_for_each_if_the_l2_holds_them() -> None:
    rows, columns = 2000, 3
    tensors = [_of_every(4, rows, columns, i) for i in range(2)]
    read = 2 * rows * columns * 16
    assert has_threads([rows * columns] * 2, tensors, 1, 1, l2_bytes=read)
    assert not has_threads([rows * columns] * 2, tensors, 1, 1, l2_bytes=read - 1)
