"""The plans of cat on every GPU: each would launch there, and on the emulator each runs right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import aten_ext
from device_on_host import library
from gpus import GPUS, Gpu, lacks, plan_needs, pretended
from ops.cat.reference import KERNELS, assert_same, ones, upstream
from strategies import random_bits

on_host = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

Call = tuple[list[torch.Tensor], int]


def _sized(count: int, rows: int = 3, dtype: torch.dtype = torch.int32) -> list[torch.Tensor]:
    return [random_bits(rows * (5 + i % 3), dtype, i).view(rows, -1) for i in range(count)]


# What makes another plan, or other launches of one.
CALLS: dict[str, Callable[[], Call]] = {
    "two runs": lambda: (_sized(2), 1),
    "one row": lambda: ([t.flatten() for t in _sized(2)], 0),
    "many runs": lambda: (_sized(700), 1),
    "bytes": lambda: (_sized(9, dtype=torch.uint8), 1),
    "long runs": lambda: (ones(2, 40001, dtype=torch.uint8), 0),
    "two dtypes": lambda: ([*_sized(200), *_sized(3, dtype=torch.int16)], 1),
    "strided": lambda: ([t[:, ::2] for t in _sized(130)], 1),
    "transposed": lambda: ([t.t() for t in ones(3, 70, 66)], 1),
    "everything": lambda: (
        [
            *ones(2, 66, 66),
            ones(1, 66, 66)[0].t(),
            ones(1, 66, 132)[0][:, ::2],
            ones(1, 1, 66)[0].expand(66, -1),
        ],
        0,
    ),
    "channels-last": lambda: ([t.to(memory_format=torch.channels_last) for t in ones(3, 2, 3, 5, 7)], 1),
}


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS)
def test_every_plan_fits_its_gpu(gpu: Gpu, make: Callable[[], Call]) -> None:
    tensors, dim = make()
    with pretended(gpu):
        needs = plan_needs("cat", tensors, dim)
    assert needs is not None and lacks(gpu, needs) is None


@pytest.fixture
def ops() -> Iterator[torch._ops._OpNamespace]:
    library.load("cat", *KERNELS)
    yield torch.ops.aten_ext_on_host_cat
    torch.ops.aten_ext_on_host_cat.refuse(0)


@on_host
@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_every_plan_runs(gpu: Gpu, ops: torch._ops._OpNamespace) -> None:
    for make in CALLS.values():
        tensors, dim = make()
        theirs = upstream(lambda tensors=tensors, dim=dim: torch.cat(tensors, dim))
        with pretended(gpu, ops.set_gpu):
            assert_same(torch.ops.aten_ext_on_host.cat(tensors, dim), theirs)


@on_host
@pytest.mark.parametrize("after", [0, 1])
def test_a_refused_launch_goes_upstream(after: int, ops: torch._ops._OpNamespace) -> None:
    """Also one after another that the driver took: all of the result is upstream's to write again."""
    tensors, dim = CALLS["many runs"]()
    out = torch.empty_like(upstream(lambda: torch.cat(tensors, dim)))
    with pretended(GPUS["sm_90 with a driver before CUDA 12.1"], ops.set_gpu):
        ops.refuse(1, after)
        with pytest.raises(RuntimeError, match="declined late"):
            torch.ops.aten_ext_on_host.cat(tensors, dim)
        ops.refuse(1, after)
        with pytest.raises(RuntimeError, match="declined late"):
            torch.ops.aten_ext_on_host.cat.out(tensors, dim, out=out)
        assert_same(torch.ops.aten_ext_on_host.cat(tensors, dim), upstream(lambda: torch.cat(tensors, dim)))


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("two runs", "2 inputs as runs, 3 rows of 44 bytes"),
        ("one row", "2 inputs as runs, 1 row of 132 bytes"),
        ("two dtypes", "203 inputs as runs, 3 rows of 4868 bytes, converted to Int"),
        ("everything", "5 inputs, each by its strides"),
    ],
)
def test_a_plan_says_what_it_is(name: str, plan: str) -> None:
    tensors, dim = CALLS[name]()
    assert aten_ext.explain("cat", tensors, dim, key="CUDA").plan == plan
