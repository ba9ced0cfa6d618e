r"""The CUDA kernels of cat, run on the CPU: bit for bit upstream's result, in any order of threads.

Positions of 64 bits, which take results above 4 GB, are tested by the same tests with a lower limit:

    ATEN_EXT_ON_HOST_CFLAGS=-DATEN_EXT_CAT_INDEX_LIMIT=2000 ATEN_EXT_ON_HOST_BUILD=build/on_host_wide \
        pytest tests/ops/cat/test_on_host.py
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import aten_ext
import processes
from device_on_host import library
from gpus import ARCHITECTURES, OTHERS, Gpu, pretended
from ops.cat.reference import (
    CONVERTED,
    COPIED,
    FEW_MULTIPROCESSORS,
    KERNELS,
    NO_L2,
    NO_SMALL_CALLS,
    assert_same,
    kernels,
    upstream,
)
from paths import TESTS
from strategies import Concatenation, concatenations, fixture_is_fine, random_bits

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

BITS = (torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64, torch.complex128)
ORDERS = st.sampled_from([(0, 0), (1, 0), (2, 7)])
GPUS = (ARCHITECTURES["sm_90"], NO_SMALL_CALLS, NO_L2)
DECLINED = ("result without elements", "strided vectors that upstream reads as fast")


@pytest.fixture(scope="module", autouse=True)
def ops() -> torch._ops._OpNamespace:
    library.load("cat", *KERNELS)
    return torch.ops.aten_ext_on_host


def check(
    tensors: Sequence[torch.Tensor], dim: int, order: tuple[int, int] = (0, 0), gpus: Sequence[Gpu] = GPUS
) -> None:
    """The kernels' result against upstream's; nothing where the rule declines."""
    explained = aten_ext.explain("cat", tensors, dim, key="CUDA")
    assert explained.route == "fused" or explained.reason in DECLINED
    theirs = upstream(lambda: torch.cat(tensors, dim))
    if explained.route == "fused":
        ops = torch.ops.aten_ext_on_host_cat
        ops.set_order(*order)
        for gpu in gpus:
            with pretended(gpu, ops.set_gpu):
                ours = torch.ops.aten_ext_on_host.cat(tensors, dim)
            assert_same(ours, theirs, any_nan=len({t.dtype for t in tensors}) > 1)


@fixture_is_fine
@given(concatenations(BITS, plain=True), ORDERS)
def test_contiguous(call: Concatenation, order: tuple[int, int]) -> None:
    check(call.make("cpu"), call.dim, order)


@fixture_is_fine
@given(concatenations(BITS), ORDERS)
def test_any_layout(call: Concatenation, order: tuple[int, int]) -> None:
    check(call.make("cpu"), call.dim, order)


@fixture_is_fine
@given(concatenations(CONVERTED, mixed=True), ORDERS)
def test_mixed_dtypes(call: Concatenation, order: tuple[int, int]) -> None:
    check(call.make("cpu"), call.dim, order)


def check_tiles(
    tensors: Sequence[torch.Tensor],
    dim: int,
    kernels_: Collection[str] | None = ("transpose",),
    gpu: Gpu = NO_L2,
) -> None:
    """The same where small transposes are made by tiles, or by ``kernels_``."""
    ops = torch.ops.aten_ext_on_host_cat
    ops.launched()
    check(tensors, dim, gpus=[gpu])
    launched = set(kernels(ops.launched()))
    assert kernels_ is None or launched == set(kernels_)


@pytest.mark.parametrize("dtype", COPIED, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    tensors = [random_bits(35 * n, dtype, n).view(35, n) for n in (3, 70, 16)]
    check(tensors, 1)
    check([t[:, ::2] for t in tensors], 1)
    check([t.t().contiguous().t() for t in tensors], 1)
    tiles = [random_bits(60 * n, dtype, n).view(n, 60).t() for n in (128, 193, 64)]
    check_tiles(tiles, 1, ("gather",) if dtype.itemsize == 1 else ("transpose",))


def sources_of(to: torch.dtype) -> list[torch.dtype]:
    return [d for d in CONVERTED if torch.promote_types(d, to) == to and d != to]


@pytest.mark.parametrize("to", CONVERTED, ids=str)
@pytest.mark.parametrize("kind", ["runs", "misaligned", "transposed", "strided"])
def test_every_conversion(to: torch.dtype, kind: str) -> None:
    """From every dtype that promotes to ``to``, of every kind of kernel."""
    sources = sources_of(to)
    tensors = []
    for i, dtype in enumerate([to, *sources]):
        n = (64 if kind == "transposed" else 31) + i
        numel = 37 * n
        if kind == "transposed":
            tensors.append(random_bits(numel, dtype, i).view(n, 37).t())
        elif kind == "strided":
            tensors.append(random_bits(2 * numel, dtype, i).view(37, -1)[:, ::2])
        else:
            offset = 1 if kind == "misaligned" else 0
            tensors.append(random_bits(numel + offset, dtype, i)[offset:].view(37, n))
    check(tensors, 1)
    check([t.t() for t in tensors], 0)
    if kind == "transposed" and sources:
        tiles = [
            random_bits(128 * n, dtype, n).view(n, 128).t()
            for dtype, n in zip([to, *sources], itertools.cycle((64, 193)), strict=False)
        ]
        check_tiles(tiles, 1)


@pytest.mark.parametrize("to", CONVERTED, ids=str)
@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "misaligned"])
@pytest.mark.parametrize(("rows", "size", "more"), [(9, 64, 0), (2, 1281, 1), (1, 4000, 3)])
def test_every_conversion_in_vectors(to: torch.dtype, offset: int, rows: int, size: int, more: int) -> None:
    """Of runs of vectors, and of long ones that share some. Those of larger elements by warps."""
    tensors = []
    # Several of each dtype, one after the other: a warp has vectors of two or more.
    for i, dtype in enumerate([to, *sorted(3 * (sources_of(to) or [to]), key=str)]):
        n = size + more * (i % 5)
        tensors.append(random_bits(rows * n + offset, dtype, i)[offset:].view(rows, n))
    check_tiles(tensors, 1, ("convert",) if len({t.dtype for t in tensors}) > 1 else None)


@fixture_is_fine
@given(st.data(), ORDERS)
def test_conversions_in_vectors(data: st.DataObject, order: tuple[int, int]) -> None:
    """Of runs that are long on average, with rows apart or not, wherever they begin."""
    to = data.draw(st.sampled_from([t for t in CONVERTED if sources_of(t)]))
    dtypes = [to, *data.draw(st.lists(st.sampled_from(sources_of(to)), min_size=1, max_size=3))]
    rows = data.draw(st.integers(1, 3))
    sizes = [data.draw(st.integers(1, 700)) for _ in dtypes]
    longest = data.draw(st.integers(0, len(dtypes) - 1))
    sizes[longest] += 1280 * len(dtypes)
    tensors = []
    for dtype, n in zip(data.draw(st.permutations(dtypes)), sizes, strict=True):
        before, after = (data.draw(st.integers(0, 3)) for _ in range(2))
        tensors.append(
            random_bits(rows * (before + n + after), dtype, n).view(rows, -1)[:, before : before + n]
        )
    torch.ops.aten_ext_on_host_cat.launched()
    check(tensors, 1, order, gpus=[NO_SMALL_CALLS])
    assert set(kernels(torch.ops.aten_ext_on_host_cat.launched())) == {"convert"}


# Inputs about those that fit kernel arguments of 1, 4 and 32 KB, in each kernel.
@pytest.mark.parametrize("count", [60, 74, 75, 281, 282, 283, 700, 2676, 2677, 5400])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("size", [7, 34], ids=["tiny", "not tiny"])
def test_many_runs(count: int, rows: int, equal: bool, size: int) -> None:
    sizes = [size if equal else size - 6 + 13 * i % 19 for i in range(count)]
    check([random_bits(rows * n, torch.float32, n).view(rows, n) for n in sizes], 1)


@pytest.mark.parametrize("count", [130, 185, 190, 1500, 2000])
@pytest.mark.parametrize("kind", ["rows apart", "converted", "converted in vectors", "strided", "transposed"])
def test_many_others(count: int, kind: str) -> None:
    sizes = [8 + i % 3 for i in range(count)]
    if kind == "rows apart":
        tensors = [random_bits(3 * (n + 1), torch.int16, n).view(3, n + 1)[:, 1:] for n in sizes]
    elif kind == "converted":
        tensors = [random_bits(3 * n, torch.int16 if n % 2 else torch.uint8, n).view(3, n) for n in sizes]
    elif kind == "converted in vectors":
        tensors = [random_bits(48, torch.int16 if n % 2 else torch.uint8, n).view(3, 16) for n in sizes]
        check_tiles(tensors, 1, ("convert",))
    elif kind == "strided":
        tensors = [random_bits(6 * n, torch.int32, n).view(3, 2 * n)[:, ::2] for n in sizes[:500]]
    else:
        tensors = [random_bits(8 * n, torch.int16, n).view(n, 8).t() for n in sizes[:500]]
        lengths = [64 + 64 * (n % 2) for n in sizes[:500]]
        check_tiles([random_bits(32 * n, torch.int32, n).view(-1, 32).t() for n in lengths], 1)
    check(tensors, 1)


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_outside_of_the_tensors_is_touched(seed: int) -> None:
    """Not even read: pages that may not be are around every input and the result."""
    run = processes.python("-m", "ops.cat.guarded_calls", "200", str(seed), cwd=TESTS, timeout=600)
    assert (run.stdout, run.returncode) == ("200 calls\n", 0), run.stderr


def test_small_arguments_of_old_drivers() -> None:
    """Nothing but 4 KB before CUDA 12.1: more launches."""
    tensors = [random_bits(6 * (5 + i % 3), torch.int32, i).view(3, -1) for i in range(600)]
    narrow = dataclasses.replace(NO_SMALL_CALLS, argument_bytes=4096)
    gpus = (OTHERS["sm_90 with a driver before CUDA 12.1"], narrow)
    check(tensors, 1, gpus=gpus)
    check([t.flatten() for t in tensors], 0, gpus=gpus)
    check([t[:, ::2] for t in tensors], 1, gpus=gpus)
    check([t.view(torch.int16) if i % 2 else t for i, t in enumerate(tensors)], 1, gpus=gpus)
    check([t.view(-1, 3).repeat(1, 4).t() for t in tensors], 1, gpus=gpus)
    tiles = [random_bits(2048 + 2048 * (i % 2), torch.int32, i).view(-1, 32).t() for i in range(90)]
    check_tiles(tiles, 1, gpu=dataclasses.replace(NO_L2, argument_bytes=4096))


@pytest.mark.parametrize("offset", range(0, 20))
@pytest.mark.parametrize("run", [1, 15, 16, 17, 31, 32, 33, 47, 64, 333])
@pytest.mark.parametrize("rows", [1, 5])
def test_every_phase(offset: int, run: int, rows: int) -> None:
    """Bytes of any number from any address to any address."""
    first = random_bits(rows * run + offset, torch.uint8, 1)[offset:].view(rows, run)
    check([first, random_bits(rows * 65, torch.uint8, 2).view(rows, 65), first], 1)


# Average runs, in bytes, about those from which on another kernel is chosen (words.cu).
@pytest.mark.parametrize("size", [3, 16, 64, 66, 638, 642, 2046, 2050, 4094, 4098, 8190, 8194])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_runs_of_words(size: int, dtype: torch.dtype, rows: int) -> None:
    """In and out of step, with rows of even and odd sizes, and not at the beginning of memory."""
    n = max(size // dtype.itemsize, 1)
    for order, sizes in enumerate(((n, n), (n, n + 1), (n + 1, n + 2), (n - n % 4 + 4,) * 2)):
        flat = [random_bits(rows * m + order % 2, dtype, m) for m in sizes]
        check([t[order % 2 :].view(rows, -1) for t in flat], 1, (order % 3, size))


@pytest.mark.parametrize("count", [8, 9, 300, 700])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("more", [0, 128], ids=["tiny", "not tiny"])
def test_many_runs_of_words(count: int, dtype: torch.dtype, rows: int, more: int) -> None:
    """Of one length or not, in step or not, in one launch or several."""
    for sizes in (
        [4] * count,
        [5] * count,
        [1 + i % 7 for i in range(count)],
        [4 + i % 3 * 4 for i in range(count)],
    ):
        longer = [n + more // dtype.itemsize for n in sizes]
        check([random_bits(rows * n, dtype, n).view(rows, n) for n in longer], 1)


# Of a GPU with one multiprocessor: the results for which a thread makes a word, two, a column, four, or a
# window of 16 bytes, in rows that are one, few, or enough for columns of eight.
@pytest.mark.parametrize("words", [1000, 3000, 5500, 9000, 20000, 28000])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("count", [3, 13, 40])
def test_every_way_of_words(words: int, rows: int, dtype: torch.dtype, count: int) -> None:
    """Runs of many lengths, in step and out of it, some of which begin between vectors."""
    n = words // (rows * count)
    for step in (1, 4):
        sizes = [max(n - n % step + step * (i * 7 % 5 - 2), step) for i in range(count)]
        begin = 16 // dtype.itemsize if step == 4 else 0
        flat = [random_bits(rows * m + begin + i % 2 * (step == 1), dtype, i) for i, m in enumerate(sizes)]
        tensors = [t[t.numel() - rows * m :].view(rows, m) for t, m in zip(flat, sizes, strict=True)]
        check(tensors, 1, gpus=(FEW_MULTIPROCESSORS,))


@fixture_is_fine
@given(st.data(), st.sampled_from(BITS), ORDERS)
def test_words_of_any_size(data: st.DataObject, dtype: torch.dtype, order: tuple[int, int]) -> None:
    """Of a GPU with one multiprocessor: any rows, inputs, lengths and addresses, and rows apart."""
    rows = data.draw(st.sampled_from([1, 2, 3, 4, 5, 8, 23, 24, 100]), label="rows")
    count = data.draw(st.sampled_from([2, 3, 8, 9, 16, 17, 33]), label="inputs")
    most = data.draw(st.sampled_from([2, 10, 100, 30000 // (rows * count) + 1]), label="longest")
    step = data.draw(st.sampled_from([1, 1, 2, 4, 8]), label="lengths are multiples of")
    tensors = []
    for i in range(count):
        n = step * data.draw(st.integers(1, max(1, most // step)))
        apart = step * data.draw(st.sampled_from([0, 0, 0, 1, 3]))
        flat = random_bits(step + rows * (n + apart), dtype, i)
        tensors.append(flat[step * (i % 2) :][: rows * (n + apart)].view(rows, n + apart)[:, apart:])
    check(tensors, 1, order, gpus=(FEW_MULTIPROCESSORS,))


@pytest.mark.parametrize("widths", [(1, 1), (1, 1, 1), (2, 2), (1, 2), (3, 2), (2, 3, 5), (1,) * 9, (4, 4)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
@pytest.mark.parametrize("rows", [600, 3001])
def test_narrow_rows(widths: tuple[int, ...], dtype: torch.dtype, rows: int) -> None:
    """Rows of a few words, of inputs that are columns of something wider or are not."""
    for wider in (0, 1):
        flat = [random_bits(rows * (w + wider), dtype, i).view(rows, -1) for i, w in enumerate(widths)]
        check([t[:, wider:] for t in flat], 1, gpus=(FEW_MULTIPROCESSORS,))


# Long runs of bytes out of step, and results that begin between words, are made by runs.cu.
@pytest.mark.parametrize("offset", range(0, 20))
@pytest.mark.parametrize("run", [4097, 8201, 33001])
@pytest.mark.parametrize("rows", [1, 5])
def test_every_phase_of_long_runs(offset: int, run: int, rows: int) -> None:
    first = random_bits(rows * run + offset, torch.uint8, 1)[offset:].view(rows, run)
    check([first, random_bits(rows * 65, torch.uint8, 2).view(rows, 65), first], 1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
@pytest.mark.parametrize("offset", [1, 3, 5, 7])
@pytest.mark.parametrize("count", [9, 400])
@pytest.mark.parametrize("kernel", ["inputs", "runs"])
def test_every_phase_of_the_result(dtype: torch.dtype, offset: int, count: int, kernel: str) -> None:
    """Runs shorter and longer than a vector; nothing beside the result is touched."""
    tensors = [random_bits(1 + 13 * i % 37, dtype, i) for i in range(count)]
    if kernel == "runs":
        tensors.insert(3, random_bits(4096 * count, dtype, 0))
    expected = upstream(lambda: torch.cat(tensors))
    storage = torch.full((expected.numel() + 20,), 7, dtype=dtype)
    out = storage[offset : offset + expected.numel()]
    ops = torch.ops.aten_ext_on_host_cat
    ops.launched()
    with pretended(NO_SMALL_CALLS if kernel == "runs" else ARCHITECTURES["sm_90"], ops.set_gpu):
        torch.ops.aten_ext_on_host.cat.out(tensors, 0, out=out)
    assert set(kernels(ops.launched())) == {kernel}
    assert_same(out.clone(), expected)
    assert (storage[:offset] == 7).all() and (storage[offset + out.numel() :] == 7).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128])
@pytest.mark.parametrize("n", [7, 8, 31, 32, 33, 63, 64, 65, 128, 130])
@pytest.mark.parametrize("offset", [0, 1])
def test_tiles(dtype: torch.dtype, n: int, offset: int) -> None:
    """One either side of a tile, in pairs of 16 bits and not.

    Bytes have none, nor have elements whose tiles would be too empty.
    """
    gathered = {1: True, 2: n not in (63, 64, 128), 4: False}.get(dtype.itemsize, n in (33, 65))
    kernel = "gather" if gathered else "transpose"
    tensors = [random_bits(m * n + offset, dtype, m)[offset:].view(m, n).t() for m in (64, 9, 193, 8, 7, 128)]
    check(tensors, 1)
    check([t[None].expand(2, -1, -1) for t in tensors], 2)
    check([t.t() for t in tensors], 0)
    if n >= 32:
        tiles = [t for t in tensors if t.shape[1] >= 64]
        check_tiles(tiles, 1, [kernel])
        # A result with rows of an even number of elements; its tiles are fuller.
        check_tiles([tiles[0], tiles[2]], 1, None if dtype.itemsize == 2 else [kernel])
        check_tiles([t[None].expand(2, -1, -1) for t in tiles], 2, [kernel])
        check_tiles([*tensors, *tiles, *tiles], 1, {"gather", kernel})


@pytest.mark.parametrize("out_offset", [0, 1, 2, 3])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mixed", [False, True])
def test_out(out_offset: int, order: tuple[int, ...], dtype: torch.dtype, mixed: bool) -> None:
    """Any dense layout, at any address; nothing beside it is touched."""
    tensors = [random_bits(5 * n * 11, dtype, n).view(5, n, 11) for n in (1, 9, 4)]
    if mixed:
        tensors.append(random_bits(55, torch.bool, 0).view(5, 1, 11))
    expected = upstream(lambda: torch.cat(tensors, 1))
    storage = torch.full((2048,), 7, dtype=expected.dtype)
    shape = [expected.shape[d] for d in order]
    inner = torch.empty(shape, device="meta").permute([order.index(d) for d in range(3)])
    out = storage.as_strided(expected.shape, inner.stride(), out_offset)
    assert aten_ext.explain("cat.out", tensors, 1, out=out, key="CUDA").route == "fused"
    assert torch.ops.aten_ext_on_host.cat.out(tensors, 1, out=out) is out
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    assert (storage[:out_offset] == 7).all() and (storage[out_offset + out.numel() :] == 7).all()


def test_more_than_8_dimensions() -> None:
    shape = (2, 1, 2, 1, 2, 1, 2, 1, 2, 3)
    x = random_bits(96, torch.int32, 0).view(shape)
    check([x, x, x], 2)
    explained = aten_ext.explain("cat", [x.transpose(0, 9)], 0, key="CUDA")
    assert explained.reason == "more than 8 dimensions, not contiguous"
