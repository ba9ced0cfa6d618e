"""cat never gives another answer: special values, views of one storage, layouts and dtypes, as a search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import aten_ext
from device_on_host import library
from gpus import pretended
from ops.cat.reference import (
    CONVERTED,
    COPIED,
    KERNELS,
    NO_L2,
    assert_same,
    bits,
    compare,
    kernels,
    outcome,
    upstream,
)
from strategies import fixture_is_fine, random_bits

on_host = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

# Infinities, NaNs that are quiet and that signal, zeros of both signs, the least and largest numbers, normal
# and not, as bits.
SPECIAL = {
    torch.float16: (0x7C00, 0xFC00, 0x7E01, 0x7D01, 0xFE55, 0, 0x8000, 1, 0x83FF, 0x0400, 0x7BFF, 0x3C00),
    torch.bfloat16: (0x7F80, 0xFF80, 0x7FC1, 0x7F81, 0xFFD5, 0, 0x8000, 1, 0x807F, 0x0080, 0x7F7F, 0x3F80),
    torch.float32: tuple(
        value << 16 | low
        for value, low in (
            (0x7F80, 0),
            (0xFF80, 0),
            (0x7FC0, 1),
            (0x7F80, 1),
            (0xFFC5, 0x1234),
            (0, 0),
            (0x8000, 0),
            (0, 1),
            (0x807F, 0xFFFF),
            (0x0080, 0),
            (0x7F7F, 0xFFFF),
        )
    ),
    torch.float64: tuple(
        value << 48 | low
        for value, low in (
            (0x7FF0, 0),
            (0xFFF0, 0),
            (0x7FF8, 1),
            (0x7FF0, 1),
            (0xFFFA, 77),
            (0, 0),
            (0x8000, 0),
            (0, 1),
            (0x800F, 5),
            (0x0010, 0),
            (0x7FEF, 0xFFFFFFFFFFFF),
        )
    ),
}


def special_storage(dtype: torch.dtype, numel: int, seed: int) -> torch.Tensor:
    """[numel] of dtype: special values among random bits."""
    values = random_bits(numel, dtype, seed)
    if dtype == torch.bool:
        return values
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
    size = real.itemsize
    patterns = SPECIAL.get(real, (0, 1 << (8 * size - 1), (1 << (8 * size - 1)) - 1, (1 << 8 * size) - 1))
    raw = b"".join(pattern.to_bytes(size, "little") for pattern in patterns)
    special = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, size)
    target = values.view(torch.uint8).view(-1, size)
    at = torch.randperm(target.shape[0], generator=torch.Generator().manual_seed(seed))[::2]
    target[at] = special[torch.arange(at.numel()) % special.shape[0]]
    return values


@dataclasses.dataclass(frozen=True)
class View:
    """An input: a view of the storage of its dtype."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclasses.dataclass(frozen=True)
class Call:
    """Inputs that share storages, some of them several times in the list."""

    views: tuple[View, ...]
    order: tuple[int, ...]
    dim: int
    seed: int

    def make(self) -> list[torch.Tensor]:
        """The tensors. Those of one dtype overlap."""
        storages = {}
        tensors = []
        for view in self.views:
            if view.dtype not in storages:
                storages[view.dtype] = special_storage(view.dtype, 8192, self.seed)
            tensors.append(storages[view.dtype].as_strided(view.shape, view.strides, view.offset))
        return [tensors[i] for i in self.order]


def dense_strides(shape: Sequence[int], order: Sequence[int], pad: int) -> list[int]:
    """Of a tensor whose dimensions lie in that order, outermost first; rows `pad` elements apart."""
    strides = [0] * len(shape)
    step = 1
    for position, d in enumerate(reversed(order)):
        strides[d] = step
        step = step * max(1, shape[d]) + (pad if position == 0 else 0)
    return strides


SIZES = st.sampled_from([0, 1, 1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64, 66])


@st.composite
def calls(draw: st.DrawFn, dtypes: Sequence[torch.dtype], mixed: bool, repeats: bool) -> Call:
    """Calls that upstream takes, mostly: some have shapes that do not fit together."""
    rank = draw(st.sampled_from([1, 2, 2, 3, 4, 4, 5]))
    dim = draw(st.integers(0, rank - 1))
    small = st.integers(0, 3) if rank > 3 else SIZES
    common = [draw(small) for _ in range(rank)]
    while math.prod(n for d, n in enumerate(common) if d != dim) > 400:
        common[common.index(max(common))] //= 2
    one = draw(st.sampled_from(list(dtypes)))
    views = []
    for _ in range(draw(st.integers(1, 5))):
        shape = list(common)
        shape[dim] = min(draw(SIZES), max(1, 1500 // max(1, math.prod(common[:dim] + common[dim + 1 :]))))
        if draw(st.integers(0, 20)) == 0:
            shape[draw(st.integers(0, rank - 1))] += 1
        kind = draw(st.sampled_from(["plain", "plain", "last", "permuted", "any"]))
        order = list(range(rank))
        if kind == "last" and rank >= 4:  # channels-last
            order = [0, *range(2, rank), 1]
        elif kind in ("permuted", "any"):
            order = list(draw(st.permutations(order)))
        strides = dense_strides(shape, order, draw(st.sampled_from([0, 0, 1, 8])) if kind == "any" else 0)
        if kind == "any":
            strides = [stride * draw(st.sampled_from([1, 1, 1, 2, 0])) for stride in strides]
        reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if n > 0)
        if reach >= 8000:
            strides = dense_strides(shape, range(rank), 0)
        dtype = draw(st.sampled_from(list(dtypes))) if mixed else one
        views.append(View(dtype, tuple(shape), tuple(strides), draw(st.sampled_from([0, 0, 1, 2, 3, 7, 16]))))
    if draw(st.integers(0, 3)) == 0:  # what cat skips, whatever its dtype
        dtype = draw(st.sampled_from(list(dtypes))) if mixed else one
        views.append(View(dtype, (0,), (1,), 0))
    order_ = draw(st.lists(st.integers(0, len(views) - 1), min_size=1, max_size=7))
    if repeats:
        order_ = order_ * (80 // len(order_))
    return Call(
        tuple(views), tuple(order_), draw(st.sampled_from([dim, dim - rank])), draw(st.integers(0, 999))
    )


@fixture_is_fine
@given(calls(COPIED, mixed=False, repeats=False))
def test_one_dtype_on_cpu(call: Call) -> None:
    compare(call.make(), call.dim, "cpu")


@fixture_is_fine
@given(calls(COPIED, mixed=False, repeats=True))
def test_many_inputs_on_cpu(call: Call) -> None:
    compare(call.make(), call.dim, "cpu")


@fixture_is_fine
@given(calls(CONVERTED, mixed=True, repeats=False))
def test_mixed_dtypes_on_cpu(call: Call) -> None:
    theirs = upstream(lambda: torch.cat(call.make(), call.dim))
    ours = outcome(lambda: torch.cat(call.make(), call.dim))
    if isinstance(theirs, tuple):
        assert ours == theirs
    else:
        assert_same(ours, theirs, any_nan=True)


def check_on_host(tensors: list[torch.Tensor], dim: int, any_nan: bool = False) -> None:
    """The CUDA kernels' result against upstream's; where upstream raises, the rule has to decline."""
    library.load("cat", *KERNELS)
    theirs = upstream(lambda: torch.cat(tensors, dim))
    fused = aten_ext.explain("cat", tensors, dim, key="CUDA").route == "fused"
    if isinstance(theirs, tuple):
        assert not fused
    elif fused:
        assert_same(torch.ops.aten_ext_on_host.cat(tensors, dim), theirs, any_nan=any_nan)


@on_host
@fixture_is_fine
@given(calls(COPIED, mixed=False, repeats=False))
def test_one_dtype_on_host(call: Call) -> None:
    check_on_host(call.make(), call.dim)


@on_host
@fixture_is_fine
@given(calls(CONVERTED, mixed=True, repeats=False))
def test_mixed_dtypes_on_host(call: Call) -> None:
    check_on_host(call.make(), call.dim, any_nan=True)


@on_host
@fixture_is_fine
@given(
    calls((torch.uint8, torch.bfloat16, torch.float32, torch.complex128), mixed=False, repeats=False),
    st.integers(0, 9),
    st.booleans(),
)
def test_out_on_host(call: Call, offset: int, shared: bool) -> None:
    """At any address; into a storage that an input has: declined, and upstream's error."""
    tensors = call.make()
    expected = upstream(lambda: torch.cat(tensors, call.dim))
    if isinstance(expected, tuple) or expected.numel() == 0:
        return
    library.load("cat", *KERNELS)
    storage = torch.full((expected.numel() + 20,), 7, dtype=expected.dtype)
    if shared:
        base = tensors[0].as_strided((8192,), (1,), 0)
        storage = base if expected.numel() + offset <= 8192 else storage
    out = storage[offset : offset + expected.numel()].view(expected.shape)
    explained = aten_ext.explain("cat.out", tensors, call.dim, out=out, key="CUDA")
    if any(t.untyped_storage().data_ptr() == out.untyped_storage().data_ptr() for t in tensors):
        assert explained.reason == "out that shares memory with an input"
        theirs = upstream(lambda: torch.cat(tensors, call.dim, out=out))
        if isinstance(theirs, tuple):
            assert outcome(lambda: torch.cat(tensors, call.dim, out=out)) == theirs
        return
    assert explained.route == "fused"
    torch.ops.aten_ext_on_host.cat.out(tensors, call.dim, out=out)
    assert torch.equal(bits(out), bits(expected))
    rest = torch.cat([storage[:offset], storage[offset + out.numel() :]])
    assert torch.equal(bits(rest), bits(torch.full_like(rest, 7)))


# ---- what a search may miss -------------------------------------------------------------------------


def last(channels: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    values = random_bits(4 * channels * 6, dtype, channels).view(4, channels, 2, 3)
    return values.to(memory_format=torch.channels_last)


EMPTY = torch.empty(0, dtype=torch.int64)
FORMATS = {
    "empty between": [last(3), EMPTY, last(2)],
    "empty last": [last(3), last(2), EMPTY],
    "empty first": [EMPTY, last(3), last(2)],
    "none": [last(3), last(2)],
}


@pytest.mark.parametrize("tensors", FORMATS.values(), ids=FORMATS)
def test_an_input_without_elements_counts_for_the_memory_format(tensors: list[torch.Tensor]) -> None:
    """A 1-D one is contiguous, so the result is."""
    theirs = upstream(lambda: torch.cat(tensors, 1))
    assert theirs.is_contiguous(memory_format=torch.channels_last) == (len(tensors) == 2)
    compare(tensors, 1, "cpu")


@on_host
@pytest.mark.parametrize("tensors", FORMATS.values(), ids=FORMATS)
def test_the_memory_format_on_host(tensors: list[torch.Tensor]) -> None:
    check_on_host(tensors, 1)


DTYPES = {
    "last": [random_bits(8, torch.int64, 0), torch.empty(0, dtype=torch.float64)],
    "first": [torch.empty(0, dtype=torch.float64), random_bits(8, torch.int64, 0)],
    "between": [
        random_bits(8, torch.int64, 0),
        torch.empty(0, dtype=torch.complex64),
        random_bits(3, torch.int64, 1),
    ],
}


@pytest.mark.parametrize("tensors", DTYPES.values(), ids=DTYPES)
def test_an_input_without_elements_counts_for_the_dtype(tensors: list[torch.Tensor]) -> None:
    theirs = upstream(lambda: torch.cat(tensors))
    assert theirs.dtype != torch.int64
    compare(tensors, 0, "cpu")


@on_host
@pytest.mark.parametrize("tensors", DTYPES.values(), ids=DTYPES)
def test_the_dtype_on_host(tensors: list[torch.Tensor]) -> None:
    check_on_host(tensors, 0)


@on_host
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_pairs_of_a_transpose_at_odd_addresses(first: int, offset: int) -> None:
    """Tiles of 64 x 64, every stride even: the result begins `offset` elements in, after `first` columns.

    The emulator ends the process where an address is odd.
    """
    library.load("cat", *KERNELS)
    tensors = [random_bits(64 * n, torch.int16, n).view(n, 64).t() for n in (64, 128)]
    pad = [random_bits(64 * first, torch.int16, 7).view(first, 64).t()] if first else []
    extra = [random_bits(64 * (2 - first), torch.int16, 8).view(-1, 64).t()] if first == 1 else []
    expected = upstream(lambda: torch.cat([*pad, *tensors, *extra], 1))
    assert expected.stride(0) % 2 == 0
    storage = torch.full((expected.numel() + 4,), 7, dtype=torch.int16)
    out = storage[offset : offset + expected.numel()].view(expected.shape)
    ops = torch.ops.aten_ext_on_host_cat
    with pretended(NO_L2, ops.set_gpu):
        ops.launched()
        torch.ops.aten_ext_on_host.cat.out([*pad, *tensors, *extra], 1, out=out)
    assert "transpose" in kernels(ops.launched())
    assert torch.equal(out, expected)
