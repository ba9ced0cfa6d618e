"""cat of inputs that lie in memory in different ways: upstream's bits, and one launch for a small call."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import aten_ext
from device_on_host import library
from gpus import ARCHITECTURES, OTHERS, Gpu, pretended
from ops.cat.reference import (
    CONVERTED,
    FEW_MULTIPROCESSORS,
    KERNELS,
    NO_SMALL_CALLS,
    assert_same,
    bits,
    kernels,
    upstream,
)
from strategies import fixture_is_fine, random_bits

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

# Elements of 1, 2, 4, 8 and 16 bytes.
DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex128)


@pytest.fixture(scope="module", autouse=True)
def ops() -> torch._ops._OpNamespace:
    library.load("cat", *KERNELS)
    return torch.ops.aten_ext_on_host_cat


def launches_of(tensors: Sequence[torch.Tensor], dim: int, gpu: Gpu = ARCHITECTURES["sm_90"]) -> list[str]:
    """Checks the kernels' result against upstream's; returns which kernel each launch was of."""
    ops = torch.ops.aten_ext_on_host_cat
    assert aten_ext.explain("cat", tensors, dim, key="CUDA").route == "fused"
    theirs = upstream(lambda: torch.cat(tensors, dim))
    with pretended(gpu, ops.set_gpu):
        ops.launched()
        ours = torch.ops.aten_ext_on_host.cat(tensors, dim)
    assert_same(ours, theirs, any_nan=len({t.dtype for t in tensors}) > 1)
    return kernels(ops.launched())


# ---- layouts -----------------------------------------------------------------------------------------


def _flat(numel: int, dtype: torch.dtype, seed: int, offset: int = 0) -> torch.Tensor:
    return random_bits(numel + offset, dtype, seed)[offset:]


def _plain(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return _flat(torch.Size(shape).numel(), dtype, seed).view(shape)


def _shifted(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Contiguous, at an address that is a multiple of nothing but the element's size."""
    return _flat(torch.Size(shape).numel(), dtype, seed, 1).view(shape)


def _permuted(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return _plain(shape[::-1], dtype, seed).permute(*range(len(shape) - 1, -1, -1))


def _rotated(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return _plain([*shape[1:], shape[0]], dtype, seed).movedim(-1, 0)


def _narrowed(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return _plain([*shape[:-1], shape[-1] + 4], dtype, seed).narrow(-1, 3, shape[-1])


def _narrowed_outside(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return _shifted([shape[0] + 3, *shape[1:]], dtype, seed).narrow(0, 2, shape[0])


def _strided(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return _plain([*shape[:-1], 2 * shape[-1]], dtype, seed)[..., ::2]


def _every_third_row(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return _plain([3 * shape[0], *shape[1:]], dtype, seed)[::3]


def _expanded(*which: int) -> Callable[[Sequence[int], torch.dtype, int], torch.Tensor]:
    def make(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
        expanded = {d % len(shape) for d in which}
        small = [1 if d in expanded else n for d, n in enumerate(shape)]
        return _shifted(small, dtype, seed).expand(*shape)

    return make


LAYOUTS: dict[str, Callable[[Sequence[int], torch.dtype, int], torch.Tensor]] = {
    "plain": _plain,
    "shifted": _shifted,
    "permuted": _permuted,
    "rotated": _rotated,
    "narrowed": _narrowed,
    "narrowed outside": _narrowed_outside,
    "strided": _strided,
    "every third row": _every_third_row,
    "expanded inside": _expanded(-1),
    "expanded in the middle": _expanded(1),
    "expanded outside": _expanded(0),
    "expanded at both ends": _expanded(0, -1),
    "one element": _expanded(0, 1, -1),
}
RUNS = {"plain", "shifted"}
"""Those that are runs along every dimension."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("one", "other"), [*itertools.combinations_with_replacement(LAYOUTS, 2)])
def test_two_layouts(one: str, other: str, dtype: torch.dtype) -> None:
    """One launch; of the kernel that takes any strides, unless runs have their own."""
    for shape in ((4, 5, 70), (17, 3, 6)):
        tensors = [LAYOUTS[kind](shape, dtype, i) for i, kind in enumerate((one, other, one))]
        for dim in range(3):
            launched = launches_of(tensors, dim)
            assert len(launched) == 1
            if {one, other} <= RUNS:
                assert launched != ["gather"]
            elif "permuted" in (one, other):
                assert launched == ["gather"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(150,), (9, 70), (3, 5, 70), (2, 3, 5, 33), (2, 2, 3, 3, 17)], ids=str)
def test_every_rank(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    """With a plain one that is not as long; one of either alone; what has no elements beside them."""
    tensors = [LAYOUTS[layout](shape, dtype, i) for i in range(2)]
    for dim in range(-len(shape), 0):
        short = list(shape)
        short[dim] = max(1, shape[dim] // 2)
        empty = torch.empty(0, dtype=dtype)
        none = list(shape)
        none[dim] = 0
        assert len(launches_of([*tensors, _plain(short, dtype, 3)], dim)) == 1
        assert len(launches_of([empty, *tensors, torch.empty(none, dtype=dtype)], dim)) == 1
        assert len(launches_of(tensors[:1], dim)) <= 1  # none: one array may be copied as memory


# About the lengths from which on segments and innermost dimensions are made by vectors of 16 bytes.
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["narrowed", "expanded inside", "expanded in the middle", "strided"])
@pytest.mark.parametrize("offset", [0, 1, 7])
def test_every_length(dtype: torch.dtype, layout: str, offset: int) -> None:
    """Of segments and of dimensions in them, into memory at any address; nothing beside it is touched."""
    lengths = sorted(n + d for n in (2, 4, 8, 16, 32, 64) for d in (-1, 0, 1))
    ops = torch.ops.aten_ext_on_host_cat
    for n, dim in itertools.product(lengths, (1, 2)):
        shapes = [(3, 5, m) for m in (n, n, n + 1)] if dim == 2 else [(3, m, n) for m in (1, 5, 2)]
        tensors = [LAYOUTS[layout](shape, dtype, i) for i, shape in enumerate(shapes)]
        expected = upstream(lambda tensors=tensors, dim=dim: torch.cat(tensors, dim))
        storage = torch.full((expected.numel() + 20,), 1, dtype=dtype)
        out = storage[offset : offset + expected.numel()].view(expected.shape)
        ops.launched()
        torch.ops.aten_ext_on_host.cat.out(tensors, dim, out=out)
        assert len(ops.launched()) == 1
        assert torch.equal(bits(out), bits(expected)), (n, dim)
        rest = torch.cat([storage[:offset], storage[offset + out.numel() :]])
        assert (rest == 1).all()


# ---- a search ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Mix:
    """Inputs of different layouts that fit together."""

    layouts: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    dim: int
    empty: int | None
    offset: int

    def make(self) -> list[torch.Tensor]:
        made = zip(self.layouts, self.shapes, self.dtypes, strict=True)
        tensors = [LAYOUTS[kind](shape, dtype, i) for i, (kind, shape, dtype) in enumerate(made)]
        if self.empty is not None:
            tensors.insert(self.empty, torch.empty(0, dtype=self.dtypes[0]))
        return tensors


@st.composite
def mixes(draw: st.DrawFn, dtypes: Sequence[torch.dtype], mixed: bool) -> Mix:
    """Of rank 1 to 5, with elements in every input."""
    rank = draw(st.integers(1, 5))
    dim = draw(st.integers(0, rank - 1))
    sizes = [1, 2, 3, 4] if rank > 3 else [1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 70]
    common = [draw(st.sampled_from(sizes)) for _ in range(rank)]
    common[-1] = draw(st.sampled_from([1, 3, 7, 16, 17, 33, 70, 130]))
    while torch.Size(common).numel() > 3000:
        common[common.index(max(common))] //= 2
    count = draw(st.integers(1, 6))
    shapes = []
    for _ in range(count):
        shape = list(common)
        shape[dim] = draw(st.sampled_from([common[dim], common[dim], 1, 2, 9]))
        shapes.append(tuple(shape))
    kinds = [draw(st.sampled_from(list(LAYOUTS))) for _ in range(count)]
    one = draw(st.sampled_from(list(dtypes)))
    of = tuple(draw(st.sampled_from(list(dtypes))) if mixed else one for _ in range(count))
    empty = draw(st.sampled_from([None, None, 0, count]))
    return Mix(tuple(kinds), tuple(shapes), of, dim, empty, draw(st.integers(0, 5)))


def check_mix(mix: Mix) -> None:
    tensors = mix.make()
    assert len(launches_of(tensors, mix.dim)) <= 1  # none: one array may be copied as memory
    expected = upstream(lambda: torch.cat(tensors, mix.dim))
    storage = torch.zeros(expected.numel() + 20, dtype=expected.dtype)
    out = storage[mix.offset : mix.offset + expected.numel()].view(expected.shape)
    torch.ops.aten_ext_on_host.cat.out(tensors, mix.dim, out=out)
    assert_same(out.clone(), expected.contiguous(), any_nan=len(set(mix.dtypes)) > 1)
    assert not storage[: mix.offset].any() and not storage[mix.offset + out.numel() :].any()
    launches_of(tensors, mix.dim, NO_SMALL_CALLS)
    launches_of(tensors, mix.dim, dataclasses.replace(NO_SMALL_CALLS, l2_bytes=0))


@fixture_is_fine
@given(mixes(DTYPES, mixed=False))
def test_any_mix(mix: Mix) -> None:
    check_mix(mix)


@fixture_is_fine
@given(mixes(CONVERTED, mixed=True))
def test_any_mix_of_dtypes(mix: Mix) -> None:
    check_mix(mix)


# ---- which kernel ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_one_array_is_copied_as_memory(dtype: torch.dtype, offset: int) -> None:
    """In any dimension. No kernel runs."""
    flat = _flat(3 * 1667, dtype, 0, offset)
    for shape in ((5001,), (3, 1667), (1667, 3)):
        for dim in range(len(shape)):
            assert launches_of([flat.view(shape)], dim) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [8, 9, 60, 61, 252, 253, 1000, 2056])
def test_many_tiny_inputs(dtype: torch.dtype, count: int) -> None:
    """A thread for each word, in one launch; few inputs are made by words."""
    most = 128 // dtype.itemsize
    tiny = "words" if count == 8 else "tiny"
    launches = 1 if count <= 2040 else 2
    assert launches_of([_flat(most, dtype, i) for i in range(count)], 0) == [tiny] * launches
    assert launches_of([_flat(1, dtype, i).view(1, 1) for i in range(count)], 1) == [tiny] * launches
    assert launches_of([_flat(6, dtype, i).view(2, 3) for i in range(count)], 1) == [tiny] * launches
    ragged = [_flat(1 + i % 24, dtype, i, i % 2) for i in range(count)]
    assert launches_of(ragged, 0) == [tiny] * launches


@pytest.mark.parametrize("rows", [1, 3])
def test_tiny_inputs_are_as_many_words_as_all_would_be_if_they_were_as_long(rows: int) -> None:
    """512 words a multiprocessor."""
    two = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=2 * rows)
    tensors = [_flat(rows, torch.int16, i).view(rows, 1) for i in range(8)]
    most = _flat(rows * 113, torch.int16, 8).view(rows, 113)
    one_more = _flat(rows * 114, torch.int16, 8).view(rows, 114)
    assert launches_of([*tensors, most], 1, two) == ["tiny"]
    assert launches_of([*tensors, one_more], 1, two) != ["tiny"]


def test_tiny_inputs_of_old_drivers() -> None:
    tensors = [_flat(1 + i % 3, torch.int16, i) for i in range(700)]
    assert launches_of(tensors, 0, OTHERS["sm_90 with a driver before CUDA 12.1"]) == ["tiny"] * 3


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
@pytest.mark.parametrize("count", [2, 9, 40, 400])
def test_small_words_in_one_row(dtype: torch.dtype, count: int) -> None:
    """By words, however long they are: runs.cu makes what begins between the vectors of a result."""
    for size in (300, 5000 // count):
        tensors = [_flat(size + i % 3, dtype, i) for i in range(count)]
        assert launches_of(tensors, 0, FEW_MULTIPROCESSORS) == ["words"]


@pytest.mark.parametrize("pad", [1, 2, 3])
@pytest.mark.parametrize(
    ("dtype", "n", "count"), [(torch.uint8, 2053, 2), (torch.uint8, 2053, 9), (torch.int16, 8209, 9)]
)
def test_long_rows_apart_in_any_phase(dtype: torch.dtype, n: int, count: int, pad: int) -> None:
    """No 64-bit arithmetic, no words of single bytes: vectors, from aligned loads that are shifted."""
    rows = 5
    tensors = [_flat(rows * (n + pad), dtype, i).view(rows, -1)[:, pad:] for i in range(count)]
    # More than columns of eight rows, fewer than windows of a row.
    gpu = dataclasses.replace(ARCHITECTURES["sm_90"], multiprocessors=rows * n * count // (9 * 2048))
    assert launches_of(tensors, 1, gpu) == ["gather"]
    assert launches_of(tensors, 0, NO_SMALL_CALLS) == ["gather"]


@pytest.mark.parametrize("count", [9, 16, 17])
def test_tiny_inputs_with_rows_apart(count: int) -> None:
    """Up to 16 by words; the kernel of tiny inputs knows none."""
    tensors = [_narrowed((3, 5), torch.float32, i) for i in range(count)]
    assert launches_of(tensors, 1) == ["words" if count <= 16 else "gather"]


def _transposes(count: int, m: int, n: int) -> list[torch.Tensor]:
    return [_permuted((m, n), torch.float32, i) for i in range(count)]


def test_transposes_of_a_few_elements_are_gathered() -> None:
    """Both sides of what is few, alone and in company; tiles that would be mostly empty are never made."""
    two = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=2)
    plain = [_plain((64, 7), torch.float32, 9)]
    assert launches_of(_transposes(1, 64, 32), 1, two) == ["gather"]
    assert launches_of(_transposes(1, 64, 33), 1, two) == ["transpose"]
    assert launches_of(_transposes(2, 64, 64) + plain, 1, FEW_MULTIPROCESSORS) == ["gather"]
    company = [*_transposes(1, 64, 65), *_transposes(1, 64, 64), *plain]
    assert launches_of(company, 1, FEW_MULTIPROCESSORS) == ["gather", "transpose"]
    long = [*company, _plain((64, 387), torch.float32, 8)]
    assert sorted(launches_of(long, 1, FEW_MULTIPROCESSORS)) == ["runs", "transpose"]
    strided = _strided((64, 8), torch.float32, 5)
    assert launches_of([*company, strided], 1, FEW_MULTIPROCESSORS) == ["gather", "transpose"]
    for m, n in ((8, 127), (127, 8), (15, 64), (63, 32), (7, 600)):
        assert launches_of(_transposes(3, m, n), 1, FEW_MULTIPROCESSORS) == ["gather"]
        assert launches_of(_transposes(3, m, n), 0, FEW_MULTIPROCESSORS) == ["gather"]
    for m, kernel in ((15, "gather"), (16, "transpose")):  # far from their neighbours
        far = [_permuted((m, 10, 140), torch.float32, i) for i in range(3)]
        assert launches_of(far, 1, FEW_MULTIPROCESSORS) == [kernel]


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.uint8, 29), (torch.bfloat16, 22), (torch.float32, 16), (torch.int64, 15)]
)
def test_narrow_transposes_are_gathered(dtype: torch.dtype, most: int) -> None:
    """Where neighbours in the result are near in memory, and a tile is mostly empty; else there are tiles."""
    for narrow, kernel in ((most, "gather"), (most + 1, "transpose")):
        tensors = [_permuted((narrow, 1100 // most * 64), dtype, i) for i in range(2)]
        assert launches_of(tensors, 1, FEW_MULTIPROCESSORS) == [kernel]


@pytest.mark.parametrize(("dtype", "most"), [(torch.uint8, 64), (torch.int16, 64), (torch.float32, 32)])
def test_small_transposes_by_the_size_of_elements(dtype: torch.dtype, most: int) -> None:
    """2,048 elements a multiprocessor of up to two bytes, 1,024 of larger ones."""
    two = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=2)
    for n, kernel in ((most, "gather"), (most + 32, "transpose")):
        assert launches_of([_permuted((64, n), dtype, 1)], 1, two) == [kernel]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.int64], ids=str)
def test_tiles_write_whole_sectors_of_large_results(dtype: torch.dtype) -> None:
    """Short segments that are no multiples of 32 bytes are gathered; of bytes only beside other inputs."""
    no_l2 = dataclasses.replace(FEW_MULTIPROCESSORS, l2_bytes=0)
    strided = _strided((130, 64), dtype, 3)
    for n, pieces in ((64, False), (65, True), (191, True), (193, False)):
        tensors = [_permuted((130, n), dtype, i) for i in range(2)]
        assert launches_of(tensors, 1, FEW_MULTIPROCESSORS) == ["transpose"]
        gathered = pieces and dtype != torch.uint8
        assert launches_of(tensors, 1, no_l2) == ["gather" if gathered else "transpose"]
        both = launches_of([*tensors, strided], 1, no_l2)
        assert both == (["gather"] if pieces else ["gather", "transpose"])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [2, 3, 20])
def test_inputs_of_unequal_blocks_take_turns(dtype: torch.dtype, count: int) -> None:
    """Vectors of some and single elements of others, and inputs of other lengths, up to a quarter as long."""
    for rows, n in ((90, 70), (301, 33), (7, 200)):
        ones = [_narrowed((rows, n), dtype, i) for i in range(count)]
        others = [_strided((rows, max(1, n // (1 + i % 4))), dtype, i) for i in range(count)]
        for tensors, l2_bytes in itertools.product((ones + others, others, others + ones[:1]), (0, 50 << 20)):
            gpu = dataclasses.replace(NO_SMALL_CALLS, l2_bytes=l2_bytes)
            assert launches_of(tensors, 1, gpu) == ["gather"]


def test_transposes_of_two_kinds() -> None:
    """Each kind has a launch, where there is enough of both."""
    one = [random_bits(64 * 48 * 48, torch.float32, 1).view(48, 48, 64).permute(2, 0, 1)]
    other = [random_bits(64 * 48 * 48, torch.float32, 2).view(64, 48, 48).transpose(1, 2)]
    assert launches_of([*one, *other], 0) == ["gather"]
    assert launches_of([*one, *other], 0, FEW_MULTIPROCESSORS) == ["transpose", "transpose"]


def test_runs_that_are_converted_keep_their_vectors_in_large_calls() -> None:
    runs = [_plain((64, 129), torch.float32, 0), _plain((64, 3), torch.bfloat16, 1)]
    strided = _strided((64, 7), torch.float32, 2)
    assert launches_of([*runs, strided], 1) == ["gather"]
    assert launches_of([*runs, strided], 1, FEW_MULTIPROCESSORS) == ["convert", "gather"]


def test_inputs_of_many_shapes() -> None:
    """What the arguments hold: 4 KB take fewer, and then there are more launches."""
    tensors = [_strided((3, 1 + i), torch.int16, i) for i in range(150)]
    assert launches_of(tensors, 1) == ["gather"]
    old = OTHERS["sm_90 with a driver before CUDA 12.1"]
    assert launches_of(tensors, 1, old) == ["gather"] * 5
    alike = [_strided((3, 5), torch.int16, i) for i in range(1001)]
    assert launches_of(alike, 1) == ["gather"] * 2
    assert launches_of(alike, 1, old) == ["gather"] * 8


@pytest.mark.parametrize("layout", ["expanded inside", "narrowed"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32], ids=str)
def test_inputs_alike_in_different_phases(dtype: torch.dtype, layout: str) -> None:
    """They do not take as many vectors of the result."""
    for n in range(64, 96):
        for rows in (1, 2):
            tensors = [LAYOUTS[layout]((rows, n), dtype, i) for i in range(16)]
            assert len(launches_of(tensors, 1)) == 1
            assert len(launches_of([t[None] for t in tensors], 2)) == 1


def test_one_long_input_among_short_ones() -> None:
    """Blocks are found by a search where inputs have very different numbers of them."""
    tensors = [_strided((2, n), torch.float32, n) for n in (3, 9000, 5, 1, 700, 2)]
    assert launches_of(tensors, 1) == ["gather"]
    assert launches_of([t.transpose(0, 1) for t in tensors], 0) == ["gather"]
    packed = [_narrowed((2, n), torch.uint8, n) for n in (3, 9000, 5, 70, 700, 64)]
    assert launches_of([t[None].expand(3, -1, -1).transpose(0, 1) for t in packed], 2) == ["gather"]


@pytest.mark.parametrize(("steps", "launches"), [(60, ["gather", "gather"]), (40, ["gather"])])
def test_what_is_converted_has_little_beside_it(steps: int, launches: list[str]) -> None:
    """Which is moved by packs, where it is more than 8,192 elements a multiprocessor."""
    one = dataclasses.replace(ARCHITECTURES["sm_90"], multiprocessors=1)
    as_it_is = _plain((9, steps, 20), torch.float32, 0)[..., 1:18]
    converted = _plain((9, 3, 20), torch.bool, 1)[..., 2:19]
    assert launches_of([converted, as_it_is], 1, one) == launches


def test_few_runs_beside_others_are_gathered() -> None:
    """Those of less than three quarters of a large result, whose kernel would go through all of it."""

    def launched(columns: int, strided: int, dtype: torch.dtype) -> list[str]:
        others = [_strided((64, strided), torch.float32, 2)]
        return launches_of([_plain((64, columns), dtype, 0), *others], 1, FEW_MULTIPROCESSORS)

    assert launched(135, 45, torch.bfloat16) == ["convert", "gather"]
    assert launched(134, 45, torch.bfloat16) == ["gather"]
    assert launched(8, 172, torch.bool) == ["gather", "gather"]
    assert launched(135, 45, torch.float32) == ["gather"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [2, 8])
def test_pieces_apart_are_gathered(dtype: torch.dtype, count: int) -> None:
    """Runs of up to 8 bytes, three of them apart; but not elements of 8 bytes."""
    size = dtype.itemsize
    for run in (1, max(1, 8 // size), 8 // size + 1):
        for apart in (2 * run, 3 * run - 1, 3 * run, 7 * run):
            tensors = [_flat(50 * apart, dtype, i).view(50, apart)[:, :run] for i in range(count)]
            far = size < 8 and run * size <= 8 and apart >= 3 * run
            assert launches_of(tensors, 1, NO_SMALL_CALLS) == ["gather" if far else "words"]


@pytest.mark.parametrize("rows", [2, 4, 6, 22, 23, 24, 25, 27, 30])
@pytest.mark.parametrize("multiprocessors", [1, 2])
def test_rows_of_16_bytes_in_fours(rows: int, multiprocessors: int) -> None:
    """Those of the last four that do not exist are the last one again."""
    gpu = dataclasses.replace(FEW_MULTIPROCESSORS, multiprocessors=multiprocessors)
    for packs in (2048 * multiprocessors * 3 // rows, 2048 * multiprocessors * 4 // rows, 5):
        tensors = [_plain((rows, 4 * n), torch.float32, n) for n in (packs - 2, 2)]
        assert launches_of(tensors, 1, gpu) == ["words"]
