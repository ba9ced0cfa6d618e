"""cat of inputs that lie in memory in different ways: upstream's bits, and one launch for a small call."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given

import aten_ext
from device_on_host import library
from gpus import ARCHITECTURES, Gpu, pretended
from ops.cat import layouts
from ops.cat.layouts import DTYPES, LAYOUTS, launches_of
from ops.cat.reference import CONVERTED, KERNELS, NO_L2, NO_SMALL_CALLS, assert_same, bits, upstream
from strategies import fixture_is_fine

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module", autouse=True)
def ops() -> torch._ops._OpNamespace:
    library.load("cat", *KERNELS)
    return torch.ops.aten_ext_on_host_cat


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
@pytest.mark.parametrize("shape", [(601,), (9, 70), (3, 5, 70), (2, 3, 5, 33), (2, 2, 3, 3, 17)], ids=str)
def test_every_rank(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    """With a plain one that is not as long; one of either alone; what has no elements beside them."""
    tensors = [LAYOUTS[layout](shape, dtype, i) for i in range(2)]
    for dim in range(-len(shape), 0):
        short = list(shape)
        short[dim] = max(1, shape[dim] // 2)
        empty = torch.empty(0, dtype=dtype)
        none = list(shape)
        none[dim] = 0
        assert len(launches_of([*tensors, layouts.plain(short, dtype, 3)], dim)) == 1
        assert len(launches_of([empty, *tensors, torch.empty(none, dtype=dtype)], dim)) == 1
        assert len(launches_of(tensors[:1], dim)) <= 1  # none: one array may be copied as memory
        launches_of([*tensors, layouts.plain(short, dtype, 3)], dim, NO_SMALL_CALLS)


# About the lengths from which on segments and innermost dimensions are made by vectors, strips and patches.
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "layout", ["narrowed", "expanded inside", "expanded in the middle", "strided", "permuted"]
)
@pytest.mark.parametrize("offset", [0, 1, 7])
@pytest.mark.parametrize(
    "gpu", [ARCHITECTURES["sm_90"], NO_SMALL_CALLS, NO_L2], ids=["small", "large", "beyond the L2"]
)
def test_every_length(dtype: torch.dtype, layout: str, offset: int, gpu: Gpu) -> None:
    """Of segments and of dimensions in them, into memory at any address; nothing beside it is touched."""
    lengths = sorted(n + d for n in (2, 4, 8, 16, 32, 64, 192) for d in (-1, 0, 1))
    ops = torch.ops.aten_ext_on_host_cat
    for n, dim in itertools.product(lengths, (1, 2)):
        shapes = [(3, 5, m) for m in (n, n, n + 1)] if dim == 2 else [(3, m, n) for m in (1, 5, 2)]
        tensors = [LAYOUTS[layout](shape, dtype, i) for i, shape in enumerate(shapes)]
        expected = upstream(lambda tensors=tensors, dim=dim: torch.cat(tensors, dim))
        storage = torch.full((expected.numel() + 20,), 1, dtype=dtype)
        out = storage[offset : offset + expected.numel()].view(expected.shape)
        with pretended(gpu, ops.set_gpu):
            ops.launched()
            torch.ops.aten_ext_on_host.cat.out(tensors, dim, out=out)
            assert len(ops.launched()) == 1
        assert torch.equal(bits(out), bits(expected)), (n, dim)
        rest = torch.cat([storage[:offset], storage[offset + out.numel() :]])
        assert (rest == 1).all()


def _in_rows(run: int, dtype: torch.dtype, kind: str, rows: int, seed: int) -> torch.Tensor:
    """[rows, run], whose rows are short runs."""
    if kind == "apart":
        return layouts.plain((rows, run + 3), dtype, seed)[:, :run]
    if kind == "overlapping":
        return layouts.plain((rows + run,), dtype, seed).unfold(0, run, 1)[:rows]
    if kind == "every second":
        return layouts.plain((rows, 2 * run + 1), dtype, seed)[:, : 2 * run : 2]
    return layouts.plain((run, rows), dtype, seed).t()


# Strips of four elements lie in two runs, or in three of two elements.
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.int16, torch.float32], ids=str
)
@pytest.mark.parametrize("kind", ["apart", "overlapping", "every second", "transposed"])
@pytest.mark.parametrize("run", [2, 3, 4, 5, 7, 8, 9])
def test_short_runs(dtype: torch.dtype, kind: str, run: int) -> None:
    """Rows of any length one below the other, at any address, of a large result."""
    ops = torch.ops.aten_ext_on_host_cat
    for rows, offset in itertools.product(((64, 33), (41, 42, 43)), (0, 1, 3)):
        tensors = [_in_rows(run, dtype, kind, n, i) for i, n in enumerate(rows)]
        expected = upstream(lambda tensors=tensors: torch.cat(tensors))
        storage = torch.full((expected.numel() + 20,), 1, dtype=dtype)
        out = storage[offset : offset + expected.numel()].view(expected.shape)
        with pretended(NO_SMALL_CALLS, ops.set_gpu):
            torch.ops.aten_ext_on_host.cat.out(tensors, 0, out=out)
        assert torch.equal(bits(out), bits(expected)), (rows, offset)
        rest = torch.cat([storage[:offset], storage[offset + out.numel() :]])
        assert (rest == 1).all()


# Of the dimension that is contiguous in memory, about multiples of the 16 bytes of a patch; and of the last
# one, about 32 or short, with many elements between neighbours in memory, as larger elements ask for.
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("along", [0, 1, 2])
@pytest.mark.parametrize("offset", [0, 3])
def test_patches(dtype: torch.dtype, along: int, offset: int) -> None:
    """Along any dimension but the last, of inputs alike and not; nothing outside of the result is touched."""
    ops = torch.ops.aten_ext_on_host_cat
    patch = max(16 // dtype.itemsize, 2)
    sizes_along = (patch - 1, patch, 2 * patch + 1, 5 * patch)
    for n, last, dim in itertools.product(sizes_along, (5, 31, 32, 69), range(4)):
        shape = [2, 3, 3, last]
        shape[along] = n
        shape[(along + 1) % 3] = 3 if dtype.itemsize <= 2 else 16
        tensors = []
        for i in range(3):
            sizes = [*shape[:dim], shape[dim] + (i == 2), *shape[dim + 1 :]]
            order = [d for d in range(4) if d != along] + [along]
            stored = layouts.plain([sizes[d] for d in order], dtype, i)
            tensors.append(stored.permute([order.index(d) for d in range(4)]))
        expected = upstream(lambda tensors=tensors, dim=dim: torch.cat(tensors, dim))
        storage = torch.full((expected.numel() + 8,), 1, dtype=dtype)
        out = storage[offset : offset + expected.numel()].view(expected.shape)
        for l2_bytes in (0, 14 << 10):  # one input after the other, and in turns
            with pretended(dataclasses.replace(NO_SMALL_CALLS, l2_bytes=l2_bytes), ops.set_gpu):
                out.zero_()
                torch.ops.aten_ext_on_host.cat.out(tensors, dim, out=out)
            assert torch.equal(bits(out), bits(expected)), (n, last, dim)
        assert (torch.cat([storage[:offset], storage[offset + out.numel() :]]) == 1).all()


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("multiprocessors", [1, 4])
def test_one_element_everywhere(multiprocessors: int, dtype: torch.dtype) -> None:
    """By vectors between the ends of an input, which begin anywhere, or where there are few by elements."""
    gpu = dataclasses.replace(NO_SMALL_CALLS, multiprocessors=multiprocessors)
    for sizes in ((400,) * 70, (1030,) * 66, (20_003,) * 65):  # the last: more than a block makes
        tensors = [layouts.flat(1, dtype, i).expand(n) for i, n in enumerate(sizes)]
        assert launches_of(tensors, 0, gpu) == ["gather"]
    if dtype.itemsize <= 2:
        tensors = [layouts.flat(1, dtype, i).expand(390 + i * 7 % 31) for i in range(70)]
        assert launches_of(tensors, 0, gpu) == ["gather"]


STRIDED_VECTORS = "strided vectors that upstream reads as fast"


def check_mix(mix: Mix) -> None:
    tensors = mix.make()
    # Two strided vectors go upstream (test_crossover.py).
    assume(aten_ext.explain("cat", tensors, mix.dim, key="CUDA").reason != STRIDED_VECTORS)
    assert len(launches_of(tensors, mix.dim)) <= 1  # none: one array may be copied as memory
    expected = upstream(lambda: torch.cat(tensors, mix.dim))
    storage = torch.zeros(expected.numel() + 20, dtype=expected.dtype)
    out = storage[mix.offset : mix.offset + expected.numel()].view(expected.shape)
    torch.ops.aten_ext_on_host.cat.out(tensors, mix.dim, out=out)
    assert_same(out.clone(), expected.contiguous(), any_nan=len(set(mix.dtypes)) > 1)
    assert not storage[: mix.offset].any() and not storage[mix.offset + out.numel() :].any()
    launches_of(tensors, mix.dim, NO_SMALL_CALLS)
    launches_of(tensors, mix.dim, dataclasses.replace(NO_SMALL_CALLS, l2_bytes=0))
    launches_of(tensors, mix.dim, dataclasses.replace(NO_SMALL_CALLS, l2_bytes=4096))  # in turns


@fixture_is_fine
@given(mixes(DTYPES, mixed=False))
def test_any_mix(mix: Mix) -> None:
    check_mix(mix)


@fixture_is_fine
@given(mixes(CONVERTED, mixed=True))
def test_any_mix_of_dtypes(mix: Mix) -> None:
    check_mix(mix)
