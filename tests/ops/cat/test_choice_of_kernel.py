"""Which kernel of cat takes which inputs, on the emulator: the launches of a call, and upstream's bits."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from device_on_host import library
from gpus import ARCHITECTURES, OTHERS, pretended
from ops.cat import layouts
from ops.cat.layouts import DTYPES, LAYOUTS, launches_of
from ops.cat.reference import (
    FEW_MULTIPROCESSORS,
    KERNELS,
    NO_L2,
    NO_SMALL_CALLS,
    assert_same,
    kernels,
)
from strategies import random_bits

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module", autouse=True)
def ops() -> torch._ops._OpNamespace:
    library.load("cat", *KERNELS)
    return torch.ops.aten_ext_on_host_cat


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_one_array_is_copied_as_memory(dtype: torch.dtype, offset: int) -> None:
    """In any dimension. No kernel runs."""
    flat = layouts.flat(3 * 1667, dtype, 0, offset)
    for shape in ((5001,), (3, 1667), (1667, 3)):
        for dim in range(len(shape)):
            assert launches_of([flat.view(shape)], dim) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [3, 4, 9, 60, 61, 252, 253, 1000, 2000, 2001])
def test_many_tiny_inputs(dtype: torch.dtype, count: int) -> None:
    """Input by input, in one launch, four of any length; fewer, and more than a launch takes, by words."""
    most = 128 // dtype.itemsize
    kernel = {3: "words", 4: "uneven", 2001: "words"}.get(count, "inputs")
    launches = 1
    assert launches_of([layouts.flat(most, dtype, i) for i in range(count)], 0) == [kernel] * launches
    assert launches_of([layouts.flat(1, dtype, i).view(1, 1) for i in range(count)], 1) == [kernel] * launches
    assert launches_of([layouts.flat(6, dtype, i).view(2, 3) for i in range(count)], 1) == [kernel] * launches
    ragged = [layouts.flat(1 + i % 24, dtype, i, i % 2) for i in range(count)]
    most_would_be_idle = 24 * count > 2 * sum(len(t) for t in ragged)
    kernel = "uneven" if most_would_be_idle and 24 <= count <= 128 else kernel
    assert launches_of(ragged, 0) == [kernel] * launches


# Runs of 4-byte elements: how many inputs, elements of each and of the longest, the words for each
# multiprocessor that are made input by input, and how more are made.
@pytest.mark.parametrize(
    ("count", "size", "longest", "word", "most", "beyond"),
    [
        (12, 3, 3, 4, 512, "words"),  # few inputs, which are looked up at once
        (12, 8, 12, 16, 512, "uneven"),
        (20, 3, 3, 4, 1024, "words"),  # more words are not few
        (20, 5, 9, 4, 1536, "words"),
        (20, 6, 10, 8, 2048, "words"),
        (20, 12, 20, 16, 3000, "words"),
    ],
)
def test_many_inputs_by_their_words(
    count: int, size: int, longest: int, word: int, most: int, beyond: str
) -> None:
    """As many as all would be if they were as long as the longest."""
    words = count * longest * 4 // word
    multiprocessors = 6
    rows = most * multiprocessors // words
    assert rows * words * 1.02 > most * multiprocessors, "close to the bound"
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=multiprocessors)
    for more, kernel in ((0, "inputs"), (1, beyond)):
        sizes = [longest] + [size] * (count - 1)
        tensors = [layouts.plain((rows + more, n), torch.int32, i) for i, n in enumerate(sizes)]
        assert launches_of(tensors, 1, gpu) == [kernel]
    tensors = [layouts.plain((rows + 1, size), torch.int32, i) for i in range(count)]
    assert size == longest or launches_of(tensors, 1, gpu) == ["inputs"]


def unlike(words: int, rows: int, dtype: torch.dtype, count: int = 9) -> list[torch.Tensor]:
    """``rows`` of so many words: of one in all inputs but the last."""
    sizes = [1] * (count - 1) + [words // rows - count + 1]
    return [layouts.plain((rows, n), dtype, i) for i, n in enumerate(sizes)]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("dtype", "most"), zip(DTYPES, [256, 4096, 4096, 2048, 4096], strict=True), ids=str)
def test_inputs_of_unlike_lengths(dtype: torch.dtype, most: int, rows: int) -> None:
    """Each has as many blocks as it needs, in results of so many words for each multiprocessor."""
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=1)
    assert launches_of(unlike(most, rows, dtype), 1, gpu) == ["uneven"]
    assert launches_of(unlike(most + rows, rows, dtype), 1, gpu) == ["words"]
    assert launches_of(unlike(most, rows, dtype, count=3), 1, gpu) == ["words"]
    if most > 256:
        assert launches_of(unlike(most, rows, dtype, count=128), 1, gpu) == ["uneven"]
        assert launches_of(unlike(most, rows, dtype, count=129), 1, gpu) == ["words"], "more than one takes"
    alike = [layouts.plain((rows, most // rows // 16 - (i % 2)), dtype, i) for i in range(16)]
    assert "uneven" not in launches_of(alike, 1, gpu)


def test_words_of_a_few_inputs() -> None:
    """Four to eight inputs, up to 256 for each multiprocessor; fewer than 4 by a table of blocks."""
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=16)

    def alike(words: int, count: int) -> list[str]:
        return launches_of([layouts.flat(words // count, torch.int16, i) for i in range(count)], 0, gpu)

    for count in (4, 8):
        assert alike(64, count) == ["uneven"] and alike(64 + count, count) == ["inputs"]
        assert alike(4096, count) == ["inputs"] and alike(4096 + count, count) == ["words"]
        assert launches_of(unlike(4096, 2, torch.int16, count), 1, gpu) == ["uneven"]
        assert launches_of(unlike(4098, 2, torch.int16, count), 1, gpu) == ["words"]
    assert alike(63, 3) == alike(3000, 3) == ["words"]


def test_a_thread_makes_four_words_of_inputs_of_unlike_lengths() -> None:
    """Where there are more than 512 for each multiprocessor: 146 of them and eight inputs need 592 blocks."""
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=146)
    for words, arguments in ((512 * 146, "<4096"), (512 * 146 + 1, "<1024")):
        tensors = unlike(words, 1, torch.int16)
        with pretended(gpu, torch.ops.aten_ext_on_host_cat.set_gpu):
            torch.ops.aten_ext_on_host_cat.launched()
            ours = torch.ops.aten_ext_on_host.cat(tensors, 1)
        (name,) = torch.ops.aten_ext_on_host_cat.launched()
        assert "UnevenArguments" + arguments in name
        assert_same(ours, torch.cat(tensors, 1))


def test_long_runs_of_words_of_8_bytes() -> None:
    """On both sides of 2 KB, or of 4 of many inputs: the bits alone, as lines and columns have one list."""
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=1)
    for count, run in ((3, 256), (9, 512)):
        for size in (run - 1, run, run + 1):
            tensors = [layouts.plain((40, size), torch.int64, i) for i in range(count)]
            assert launches_of(tensors, 1, gpu) == ["words"]


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_a_thread_makes_two_words_of_an_input(rows: int) -> None:
    """Which are a block apart, in the same row or a later one."""
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=3)
    sizes = [300 // rows - i % 2 for i in range(17)]
    tensors = [layouts.plain((rows, n), torch.int64, i) for i, n in enumerate(sizes)]
    assert launches_of(tensors, 1, gpu) == ["inputs"]


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [
        (torch.uint8, 768, 4096),
        (torch.int16, 768, 8192),
        (torch.int32, 1536, 8192),
        (torch.int64, 1024, 4096),
        (torch.complex128, 512, 4096),
    ],
    ids=str,
)
def test_lists_by_their_words(dtype: torch.dtype, least: int, most: int) -> None:
    """A thread makes several words of one input; where most inputs are short, too many would be idle."""
    multiprocessors = 3
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=multiprocessors)

    def kernel_of(words: int, sizes: tuple[int, int, int]) -> list[str]:
        numel = [words * multiprocessors * n // sum(sizes) // 2 * 2 + 1 for n in sizes]
        return launches_of([layouts.flat(n, dtype, i) for i, n in enumerate(numel)], 0, gpu)

    assert kernel_of(least + 4, (1, 1, 1)) == kernel_of(most - 4, (1, 1, 1)) == ["inputs"]
    assert ["inputs"] not in (kernel_of(least - 4, (1, 1, 1)), kernel_of(most + 4, (1, 1, 1)))
    assert kernel_of(most - 4, (19, 5, 5)) == ["inputs"]
    assert kernel_of(most - 4, (21, 5, 5)) != ["inputs"]
    many = [layouts.flat(2000 * multiprocessors // 10 + 1, dtype, i) for i in range(10)]
    assert (launches_of(many, 0, gpu) == ["inputs"]) == (dtype != torch.complex128)


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [
        (torch.int16, 2048, 8192),
        (torch.int32, 1024, 6144),
        (torch.int64, 768, 4608),
        (torch.complex128, 512, 3584),
    ],
    ids=str,
)
def test_rows_of_a_few_inputs_by_their_words(dtype: torch.dtype, least: int, most: int) -> None:
    """So do those of several rows, of up to eight inputs; single bytes never."""
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=3)

    def kernel_of(words: int, parts: tuple[int, ...] = (1, 1, 1), of: torch.dtype = dtype) -> list[str]:
        columns = [words * part // sum(parts) // 2 * 2 + 1 for part in parts]
        return launches_of([layouts.plain((3, n), of, i) for i, n in enumerate(columns)], 1, gpu)

    assert kernel_of(least + 6) == kernel_of(most - 6) == kernel_of((least + most) // 2) == ["inputs"]
    assert ["inputs"] not in (kernel_of(least - 6), kernel_of(most + 6), kernel_of(most - 6, of=torch.uint8))
    assert kernel_of(most - 12, (1,) * 8) == kernel_of(most - 6, (19, 5, 5)) == ["inputs"]
    assert ["inputs"] not in (kernel_of(most - 6, (21, 5, 5)), kernel_of(most - 12, (1,) * 9))
    apart = [layouts.plain((3, most // 3 | 1), dtype, i)[:, 1:] for i in range(3)]
    assert launches_of(apart, 1, gpu) != ["inputs"]


def test_inputs_of_old_drivers() -> None:
    tensors = [layouts.flat(1 + i % 3, torch.int16, i) for i in range(700)]
    assert launches_of(tensors, 0, OTHERS["sm_90 with a driver before CUDA 12.1"]) == ["inputs"] * 3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
@pytest.mark.parametrize("count", [2, 9, 40, 400])
def test_small_words_in_one_row(dtype: torch.dtype, count: int) -> None:
    """Never by runs.cu, which makes what begins between the vectors of a result."""
    for size in (300, 5000 // count):
        tensors = [layouts.flat(size + i % 3, dtype, i) for i in range(count)]
        assert launches_of(tensors, 0, FEW_MULTIPROCESSORS) in (["words"], ["inputs"])


@pytest.mark.parametrize("pad", [1, 2, 3])
@pytest.mark.parametrize(
    ("dtype", "n", "count"), [(torch.uint8, 2053, 2), (torch.uint8, 2053, 9), (torch.int16, 8209, 9)]
)
def test_long_rows_apart_in_any_phase(dtype: torch.dtype, n: int, count: int, pad: int) -> None:
    """No 64-bit arithmetic, no words of single bytes: vectors, from aligned loads that are shifted."""
    rows = 5
    tensors = [layouts.flat(rows * (n + pad), dtype, i).view(rows, -1)[:, pad:] for i in range(count)]
    # More than columns of eight rows, fewer than windows of a row.
    gpu = dataclasses.replace(ARCHITECTURES["sm_90"], multiprocessors=rows * n * count // (9 * 2048))
    assert launches_of(tensors, 1, gpu) == ["gather"]
    assert launches_of(tensors, 0, NO_SMALL_CALLS) == ["gather"]


@pytest.mark.parametrize("count", [9, 16, 17])
def test_tiny_inputs_with_rows_apart(count: int) -> None:
    """Up to 16 by words; the kernel of single inputs knows none."""
    tensors = [layouts.narrowed((3, 5), torch.float32, i) for i in range(count)]
    assert launches_of(tensors, 1) == ["words" if count <= 16 else "gather"]


@pytest.mark.parametrize(
    ("count", "columns", "rows", "launches"),
    [(17, 4, 1928, 2), (33, 4, 1490, 3), (64, 4, 1024, 4), (17, 5, 4241, 2), (40, 2, 2458, 3)],
)
@pytest.mark.parametrize("apart", [1, 60])
def test_many_inputs_with_rows_apart(count: int, columns: int, rows: int, launches: int, apart: int) -> None:
    """16 a launch, where the result has so many bytes for each."""
    for more, expected in ((0, ["words"] * launches), (-1, ["gather"])):
        tensors = [
            layouts.plain((rows + more, columns + apart), torch.float32, i)[:, :columns] for i in range(count)
        ]
        assert launches_of(tensors, 1) == expected
    tensors = [layouts.plain((2000, 5), torch.float32, i)[:, :4] for i in range(65)]
    assert launches_of(tensors, 1) == ["gather"]


def _transposes(count: int, m: int, n: int) -> list[torch.Tensor]:
    return [layouts.permuted((m, n), torch.float32, i) for i in range(count)]


def test_small_transposes_beside_the_limits_of_single_elements() -> None:
    """The bits of both kernels of gather.cu: 1,536 elements a multiprocessor and 6 inputs, and a few more."""
    one = dataclasses.replace(ARCHITECTURES["sm_90"], multiprocessors=1)
    for count, columns in ((3, 15), (3, 16), (3, 17), (6, 8), (7, 6)):
        assert launches_of(_transposes(count, 32, columns), 1, one) == ["gather"]


def test_transposes_of_large_results_are_made_by_tiles() -> None:
    """Of those of which four do not fit into the L2, wherever other inputs are beside them."""
    whole = 4 * 2 * 128 * 64 * 4
    for l2_bytes, kernel in ((whole, "gather"), (whole - 1, "transpose")):
        gpu = dataclasses.replace(ARCHITECTURES["sm_90"], l2_bytes=l2_bytes)
        assert launches_of(_transposes(2, 128, 64), 1, gpu) == [kernel]
    company = [*_transposes(2, 64, 64), layouts.plain((64, 8), torch.float32, 9)]
    assert launches_of(company, 1, NO_SMALL_CALLS) == ["gather"]
    assert launches_of(company, 1, NO_L2) == ["gather", "transpose"]
    long = [*company, layouts.plain((64, 384), torch.float32, 8)]
    assert sorted(launches_of(long, 1, NO_L2)) == ["runs", "transpose"]
    strided = layouts.strided((64, 8), torch.float32, 5)
    assert launches_of([*company, strided], 1, NO_L2) == ["gather", "transpose"]


@pytest.mark.parametrize(("m", "n"), [(8, 127), (15, 64), (63, 32), (7, 600)])
def test_transposes_of_a_few_elements_are_gathered(m: int, n: int) -> None:
    """Of which a tile would be mostly empty, though others have full ones."""
    few, full = _transposes(3, m, n), _transposes(1, 640, n)
    assert launches_of(few, 0, NO_L2) == ["gather"]
    assert launches_of([*few, *full], 0, NO_L2) == ["gather", "transpose"]
    assert launches_of(_transposes(3, n, 8), 0, NO_L2) == ["gather"]


def test_transposes_far_from_their_neighbours() -> None:
    full = layouts.permuted((640, 10, 140), torch.float32, 9)
    for m, launches in ((15, ["gather", "transpose"]), (16, ["transpose"])):
        far = [layouts.permuted((m, 10, 140), torch.float32, i) for i in range(3)]
        assert launches_of([*far, full], 0, NO_L2) == launches


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 16), (torch.int64, 15)])
def test_narrow_transposes_are_gathered(dtype: torch.dtype, most: int) -> None:
    """Where neighbours in the result are near in memory, and a tile is mostly empty; else there are tiles."""
    n = 1100 // most * 64
    full = layouts.permuted((640, n), dtype, 9)
    for narrow, launches in ((most, ["gather", "transpose"]), (most + 1, ["transpose"])):
        tensors = [layouts.permuted((narrow, n), dtype, i) for i in range(2)]
        assert launches_of([*tensors, full], 0, NO_L2) == launches


@pytest.mark.parametrize(
    ("dtype", "least"), [(torch.bfloat16, 42), (torch.float32, 26), (torch.int64, 24)], ids=str
)
def test_elements_in_tiles_that_are_full(dtype: torch.dtype, least: int) -> None:
    """Of two bytes where two thirds are, of four where two fifths are, of eight where three quarters are."""
    for n, kernel in ((least - 1, "gather"), (least, "transpose")):
        assert launches_of([layouts.permuted((n, 128), dtype, 1)] * 2, 0, NO_L2) == [kernel]


def test_small_elements_in_tiles_that_are_full() -> None:
    """Bytes never are. What is converted has no other way, where two thirds are."""
    for n, kernel in ((41, "gather"), (42, "transpose")):
        for shape in ((128, n), (n, 128)):
            assert launches_of([layouts.permuted(shape, torch.bfloat16, 1)] * 2, 0, NO_L2) == [kernel]
            tensors = [layouts.permuted(shape, d, 1) for d in (torch.bfloat16, torch.float32)]
            assert set(launches_of(tensors, 0, NO_L2)) == {kernel}
    for dtype, kernel in ((torch.uint8, "gather"), (torch.bool, "transpose")):
        tensors = [layouts.permuted((128, 64), d, 1) for d in (torch.uint8, dtype)]
        assert launches_of(tensors, 1, NO_L2) == [kernel]


# Lengths of segments, and whether they are short and no multiples of 32 bytes.
@pytest.mark.parametrize(
    ("dtype", "segments"),
    [
        (torch.int16, {64: False, 100: True, 191: True, 193: False}),
        (torch.float32, {64: False, 65: True, 191: True, 193: False}),
        (torch.int64, {64: False, 65: True, 95: True, 97: False}),
    ],
)
def test_tiles_write_whole_sectors_of_large_results(dtype: torch.dtype, segments: dict[int, bool]) -> None:
    """Short segments that are no multiples of 32 bytes are gathered."""
    strided = layouts.strided((128, 64), dtype, 3)
    for n, pieces in segments.items():
        tensors = [layouts.permuted((128, n), dtype, i) for i in range(2)]
        assert launches_of(tensors, 1, NO_L2) == ["gather" if pieces else "transpose"]
        both = launches_of([*tensors, strided], 1, NO_L2)
        assert both == (["gather"] if pieces else ["gather", "transpose"])


def test_bytes_that_are_converted_in_pieces_of_sectors() -> None:
    """By tiles, if nothing else is beside them."""
    tensors = [layouts.permuted((128, 100), dtype, 1) for dtype in (torch.uint8, torch.bool)]
    assert launches_of(tensors, 1, NO_L2) == ["transpose"]
    beside = [*tensors, layouts.strided((128, 64), torch.uint8, 3)]
    assert "transpose" not in launches_of(beside, 1, NO_L2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [2, 3, 20])
def test_inputs_of_unequal_blocks_take_turns(dtype: torch.dtype, count: int) -> None:
    """Vectors of some and single elements of others, and inputs of other lengths, up to a quarter as long."""
    for rows, n in ((90, 70), (301, 33), (7, 200)):
        ones = [layouts.narrowed((rows, n), dtype, i) for i in range(count)]
        others = [layouts.strided((rows, max(1, n // (1 + i % 4))), dtype, i) for i in range(count)]
        lists = (ones + others, others, others + ones[:1])
        for tensors, l2_bytes in itertools.product(lists, (4096, 50 << 20)):
            gpu = dataclasses.replace(NO_SMALL_CALLS, l2_bytes=l2_bytes)
            assert launches_of(tensors, 1, gpu) == ["gather"]


def test_transposes_of_two_kinds() -> None:
    """Each kind has a launch, where there is enough of both."""
    one = [random_bits(64 * 48 * 48, torch.float32, 1).view(48, 48, 64).permute(2, 0, 1)]
    other = [random_bits(64 * 48 * 48, torch.float32, 2).view(64, 48, 48).transpose(1, 2)]
    assert launches_of([*one, *other], 0) == ["gather"]
    assert launches_of([*one, *other], 0, NO_L2) == ["transpose", "transpose"]


def test_runs_that_are_converted_keep_their_vectors_in_large_calls() -> None:
    """Where runs are long on average, or are vectors all."""

    def inputs(size: int) -> list[torch.Tensor]:
        runs = [layouts.plain((64, size), torch.float32, 0), layouts.plain((64, 3), torch.bfloat16, 1)]
        return [*runs, layouts.strided((64, 7), torch.float32, 2)]

    assert launches_of(inputs(129), 1) == ["gather"]
    assert launches_of(inputs(3 * 1280 - 10), 1) == ["gather"]
    assert launches_of(inputs(3 * 1280 - 11), 1, FEW_MULTIPROCESSORS) == ["gather", "gather"]
    assert launches_of(inputs(3 * 1280 - 10), 1, FEW_MULTIPROCESSORS) == ["convert", "gather"]
    whole = [layouts.plain((64, 60), torch.float32, 0), layouts.plain((64, 4), torch.bfloat16, 1)]
    strided = layouts.strided((64, 8), torch.float32, 2)
    assert launches_of([*whole, *whole, strided], 1, FEW_MULTIPROCESSORS) == ["convert", "gather"]


@pytest.mark.parametrize(
    ("rows", "sizes", "kernel"),
    [
        (64, (64, 64), "gather"),  # 8,192 elements a multiprocessor
        (65, (64, 64), "convert"),
        (65, (64, 62), "gather"),  # half a vector
        (8, (1281, 1279), "convert"),
        (8, (1281, 1278), "gather"),
    ],
)
def test_runs_that_are_converted(rows: int, sizes: tuple[int, int], kernel: str) -> None:
    tensors = [
        layouts.plain((rows, n), dtype, 0)
        for n, dtype in zip(sizes, (torch.float32, torch.bfloat16), strict=True)
    ]
    assert launches_of(tensors, 1, FEW_MULTIPROCESSORS) == [kernel]


@pytest.mark.parametrize(("offset", "kernel"), [(0, "convert"), (1, "gather"), (4, "convert")])
def test_vectors_of_a_result_that_begins_anywhere(offset: int, kernel: str) -> None:
    """Whose vectors are of several runs where it does not begin with one."""
    ops = torch.ops.aten_ext_on_host_cat
    tensors = [layouts.flat(96, torch.float32 if i % 2 else torch.uint8, i) for i in range(90)]
    out = torch.zeros(8640 + offset)[offset:]
    theirs = torch.cat(tensors)
    with pretended(FEW_MULTIPROCESSORS, ops.set_gpu):
        ops.launched()
        torch.ops.aten_ext_on_host.cat.out(tensors, 0, out=out)
    assert_same(out.clone(), theirs, any_nan=True)
    assert kernels(ops.launched()) == [kernel]


def test_inputs_of_many_shapes() -> None:
    """What the arguments hold: 4 KB take fewer, and then there are more launches."""
    tensors = [layouts.strided((3, 1 + i), torch.int16, i) for i in range(150)]
    assert launches_of(tensors, 1) == ["gather"]
    old = OTHERS["sm_90 with a driver before CUDA 12.1"]
    assert launches_of(tensors, 1, old) == ["gather"] * 5
    alike = [layouts.strided((3, 5), torch.int16, i) for i in range(1001)]
    assert launches_of(alike, 1) == ["gather"] * 2
    assert launches_of(alike, 1, old) == ["gather"] * 8


@pytest.mark.parametrize("layout", ["expanded inside", "narrowed"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32], ids=str)
def test_inputs_alike_in_different_phases(dtype: torch.dtype, layout: str) -> None:
    """They do not take as many vectors of the result."""
    for n in (*range(64, 96), *range(192, 209)):
        for rows, gpu in itertools.product((1, 2), (ARCHITECTURES["sm_90"], NO_SMALL_CALLS)):
            tensors = [LAYOUTS[layout]((rows, n), dtype, i) for i in range(16)]
            assert len(launches_of(tensors, 1, gpu)) == 1
            assert len(launches_of([t[None] for t in tensors], 2, gpu)) == 1


def test_one_long_input_among_short_ones() -> None:
    """Blocks are found by a search where inputs have very different numbers of them."""
    tensors = [layouts.strided((2, n), torch.float32, n) for n in (3, 9000, 5, 1, 700, 2)]
    assert launches_of(tensors, 1) == ["gather"]
    assert launches_of([t.transpose(0, 1) for t in tensors], 0) == ["gather"]
    packed = [layouts.narrowed((2, n), torch.uint8, n) for n in (3, 9000, 5, 70, 700, 64)]
    assert launches_of([t[None].expand(3, -1, -1).transpose(0, 1) for t in packed], 2) == ["gather"]


@pytest.mark.parametrize(("steps", "launches"), [(60, ["gather", "gather"]), (40, ["gather"])])
def test_what_is_converted_has_little_beside_it(steps: int, launches: list[str]) -> None:
    """Which is moved by packs, where it is more than 8,192 elements a multiprocessor."""
    one = dataclasses.replace(ARCHITECTURES["sm_90"], multiprocessors=1)
    as_it_is = layouts.plain((9, steps, 20), torch.float32, 0)[..., 1:18]
    converted = layouts.plain((9, 3, 20), torch.bool, 1)[..., 2:19]
    assert launches_of([converted, as_it_is], 1, one) == launches


def test_few_runs_beside_others_are_gathered() -> None:
    """Those of less than three quarters of a large result, whose kernel would go through all of it."""

    def launched(columns: int, strided: int, dtype: torch.dtype) -> list[str]:
        others = [layouts.strided((64, strided), torch.float32, 2)]
        return launches_of([layouts.plain((64, columns), dtype, 0), *others], 1, FEW_MULTIPROCESSORS)

    assert launched(2700, 900, torch.bfloat16) == ["convert", "gather"]
    assert launched(2699, 900, torch.bfloat16) == ["gather", "gather"]
    assert launched(8, 172, torch.bool) == ["gather", "gather"]
    assert launched(2700, 900, torch.float32) == ["gather"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [2, 8])
def test_pieces_apart(dtype: torch.dtype, count: int) -> None:
    """Short runs with little or much between them, in narrow rows and wider ones, by words of any size."""
    size = dtype.itemsize
    for run in (1, max(1, 8 // size), 8 // size + 1):
        for apart in (run + 1, 2 * run, 3 * run, 7 * run, 40 * run):
            tensors = [layouts.flat(50 * apart, dtype, i).view(50, apart)[:, :run] for i in range(count)]
            for gpu in (ARCHITECTURES["sm_90"], FEW_MULTIPROCESSORS, NO_SMALL_CALLS):
                assert launches_of(tensors, 1, gpu) == ["words"]


@pytest.mark.parametrize(("run", "apart"), [(1, 8), (3, 16)])
def test_single_bytes_far_apart_are_made_in_pairs_of_rows(run: int, apart: int) -> None:
    """As far as that; of nearer ones a thread makes more."""
    rows, ops = 4000, torch.ops.aten_ext_on_host_cat
    for nearer in (0, 1):
        tensors = [layouts.plain((rows, apart - nearer), torch.uint8, i)[:, :run] for i in range(3)]
        ops.threads()
        assert launches_of(tensors, 1, FEW_MULTIPROCESSORS) == ["words"]
        pairs = rows // 2 * 3 * run
        (threads,) = ops.threads()
        assert pairs <= threads < pairs + 256 if nearer == 0 else threads < pairs / 1.5


@pytest.mark.parametrize("rows", [2, 4, 6, 22, 23, 24, 25, 27, 30])
@pytest.mark.parametrize("multiprocessors", [1, 2])
def test_rows_of_16_bytes_in_fours(rows: int, multiprocessors: int) -> None:
    """Those of the last four that do not exist are the last one again."""
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=multiprocessors)
    for packs in (2048 * multiprocessors * 3 // rows, 2048 * multiprocessors * 4 // rows, 5):
        tensors = [layouts.plain((rows, 4 * n), torch.float32, n) for n in (packs - 2, 2)]
        assert launches_of(tensors, 1, gpu) == ["words"]
