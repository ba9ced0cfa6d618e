"""Lists that fill the largest arguments of a kernel, on a GPU: each array among them is read where it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ops.cat.reference import compare
from strategies import random_bits

pytestmark = pytest.mark.gpu

PAIRS = ((torch.float32, torch.int16), (torch.bfloat16, torch.uint8), (torch.int64, torch.int32))


def _transposed(i: int, dtype: torch.dtype) -> torch.Tensor:
    return random_bits(64 * (40 + i % 3), dtype, i).view(-1, 64).t()


def _run(i: int, dtype: torch.dtype) -> torch.Tensor:
    return random_bits(64 * (3 + i % 3), dtype, i).view(64, -1)


def _strided(i: int, dtype: torch.dtype) -> torch.Tensor:
    return random_bits(64 * 2 * (3 + i % 3), dtype, i).view(64, -1)[:, ::2]


KINDS: dict[str, Callable[[int, torch.dtype], torch.Tensor]] = {
    "transposed": _transposed,
    "runs": _run,
    "strided": _strided,
    "all of them": lambda i, dtype: (_transposed, _run, _strided)[i % 3](i, dtype),
}


@pytest.mark.parametrize("dtypes", PAIRS, ids=str)
@pytest.mark.parametrize("count", [311, 1100, 1600])
@pytest.mark.parametrize("kind", KINDS)
def test_two_dtypes(kind: str, count: int, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    assert compare([KINDS[kind](i, dtypes[i % 2]).cuda() for i in range(count)], 1, "cuda") == ""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("count", [311, 1100, 2800])
@pytest.mark.parametrize("kind", KINDS)
def test_one_dtype(kind: str, count: int, dtype: torch.dtype) -> None:
    assert compare([KINDS[kind](i, dtype).cuda() for i in range(count)], 1, "cuda") == ""


# Words of 4, 8 and 16 bytes that all runs have in common.
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex128], ids=str)
@pytest.mark.parametrize("count", [17, 40, 300, 700])
@pytest.mark.parametrize("step", [0, 1], ids=["of one length", "of many lengths"])
@pytest.mark.parametrize("size", [1, 5, 9])
def test_runs_that_a_warp_looks_up_together(size: int, step: int, count: int, dtype: torch.dtype) -> None:
    """Too large to go input by input: the arguments are read as memory."""
    rows = 1 + 40_000_000 // (count * (size + 2 * step) * dtype.itemsize)
    tensors = [random_bits(rows * (size + step * (i % 5)), dtype, i).view(rows, -1) for i in range(count)]
    assert compare([t.cuda() for t in tensors], 1, "cuda") == ""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16], ids=str)
def test_pieces_out_of_step(dtype: torch.dtype) -> None:
    """In one row, and longer than words are worth."""
    assert compare([random_bits(4099 + i, dtype, i).cuda() for i in range(2700)], 0, "cuda") == ""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.complex128], ids=str)
def test_columns_of_unlike_widths(dtype: torch.dtype) -> None:
    """Input by input a word or two a thread, and in columns."""
    for rows in (40, 600, 1500, 2600):
        tensors = [random_bits(rows * (1 + i * 7 % 5), dtype, i).view(rows, -1).cuda() for i in range(40)]
        assert compare(tensors, 1, "cuda") == ""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.int64], ids=str)
def test_lists_of_several_words_a_thread(dtype: torch.dtype) -> None:
    for sizes in ((110_001, 96_003, 130_000), (60_001,) * 5):
        assert compare([random_bits(n, dtype, n).cuda() for n in sizes], 0, "cuda") == ""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("count", [6, 12, 17, 40, 64])
@pytest.mark.parametrize("apart", [3, 40])
def test_parts_of_rows(apart: int, count: int, dtype: torch.dtype) -> None:
    """A word, a pair of rows, or four; of more than 16 in several launches."""
    rows = 1_100_000 // (count * dtype.itemsize) + 1
    tensors = [random_bits(rows * (apart + 1), dtype, i).view(rows, -1)[:, 1:3].cuda() for i in range(count)]
    assert compare(tensors, 1, "cuda") == ""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("size", [30, 9001, 20_000])
def test_one_element_everywhere(size: int, dtype: torch.dtype) -> None:
    """More inputs than upstream takes in one launch, filled by vectors that begin between their ends."""
    tensors = [random_bits(1, dtype, i).cuda().expand(size) for i in range(70)]
    assert compare(tensors, 0, "cuda") == ""
    if dtype.itemsize <= 2:
        tensors = [random_bits(1, dtype, i).cuda().expand(size + i * 7 % 13) for i in range(70)]
        assert compare(tensors, 0, "cuda") == ""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64], ids=str)
def test_strided_lines_of_unlike_lengths(dtype: torch.dtype) -> None:
    """Some blocks of the shorter ones have nothing to do, or an input is searched for."""
    for sizes in ((60_001, 20_003, 90_000), (200_000, 3, 5, 70_001), (250_001, *[9] * 11)):
        tensors = [random_bits(2 * n, dtype, n).cuda()[::2] for n in sizes]
        assert compare(tensors, 0, "cuda") == ""


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("columns", [(63, 256, 256, 256), (64, 128), (200, 199)], ids=str)
def test_rows_of_a_few_inputs(columns: tuple[int, ...], dtype: torch.dtype) -> None:
    """Input by input, several words a thread, of any word."""
    for words_of_multiprocessor in (700, 1500, 3000, 7000):
        rows = words_of_multiprocessor * 132 // sum(columns)
        tensors = [random_bits(rows * n, dtype, n + i).view(rows, n).cuda() for i, n in enumerate(columns)]
        assert compare(tensors, 1, "cuda") == ""


def test_elements_that_share_no_sector() -> None:
    flat = [random_bits(40_000 * 45, torch.uint8, i).view(40_000, 45) for i in range(5)]
    assert compare([t.cuda()[:, 6:7] for t in flat], 0, "cuda") == ""


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex128], ids=str
)
@pytest.mark.parametrize("count", [9, 24, 25, 128, 129])
def test_rows_of_inputs_of_unlike_lengths(count: int, dtype: torch.dtype) -> None:
    """One input has nearly all: as many blocks as each needs, one word a thread and four."""
    for rows, words in ((1, 3000), (4, 60_000), (37, 60_000), (3, 120_000), (500, 400_000)):
        sizes = [1 + i % 3 for i in range(count)]
        sizes[count // 2] = max(5, words // rows - sum(sizes))
        tensors = [random_bits(rows * n, dtype, n + i).view(rows, n).cuda() for i, n in enumerate(sizes)]
        reason = compare(tensors, 1, "cuda")
        large = dtype == torch.complex128 and count > 17  # vectors, of which upstream may be as fast
        assert reason == "" or (large and reason == "one input much longer than the others")


@pytest.mark.parametrize(("rows", "size", "count"), [(40, 40_001, 3), (7, 300_001, 2), (400, 513, 9)])
def test_long_rows_of_words_of_8_bytes(rows: int, size: int, count: int) -> None:
    """Sixteen bytes a thread, of two rows or inputs at their ends."""
    tensors = [random_bits(rows * size, torch.int64, i).view(rows, size).cuda() for i in range(count)]
    assert compare(tensors, 1, "cuda") == ""
