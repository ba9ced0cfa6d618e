"""The CUDA kernel of dot products (one row, or up to four of fp32), run on the CPU: every plan there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from device_on_host import library
from ops.linear.test_on_host import BIASES, DTYPES, assert_close, few_rows, load, mm, operands, reference

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

PLANS = list(itertools.product((1, 2, 4, 8, 16), (1, 2, 4), (1, 2, 4)))
"""Warps, columns and steps, of which not all have a kernel for a number of rows."""
MOST_TURNS = 16
"""Vectors of a row that a lane adds up here: with more, a plan of few warps is none that is chosen."""


def rows_of(dtype: torch.dtype) -> range:
    """How many rows the kernel takes."""
    return range(1, 5 if dtype == torch.float32 else 2)


def plans(rows: int) -> Iterator[tuple[int, int, int]]:
    """Those that have a kernel."""
    ops = torch.ops.aten_ext_on_host_linear
    yield from (plan for plan in PLANS if ops.has_dots(rows if rows <= 2 else 4, *plan))


def test_how_many_plans_there_are() -> None:
    load()
    assert [len(list(plans(rows))) for rows in range(1, 5)] == [27, 13, 14, 14]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vectors", [1, 33, 100, 259, 1025], ids=str)
def test_every_plan(dtype: torch.dtype, vectors: int) -> None:
    """K of so many vectors of 16 bytes: less than a warp's turn, a few turns and a part of one."""
    load()
    k = vectors * (4 if dtype == torch.float32 else 8)
    torch.ops.aten_ext_on_host_linear.set_order(2, vectors)
    try:
        for m in rows_of(dtype):
            for plan in plans(m):
                warps, columns, _ = plan
                if vectors > MOST_TURNS * 32 * warps:
                    continue
                # One column less than a block's, and one more.
                of_block = max(4 // warps, 1) * columns
                for n in (max(of_block - 1, 1), of_block + 1):
                    mat1, mat2 = operands((m, n, k), dtype, transposed=True, seed=n)
                    result = mm(mat1, mat2, dots=plan)
                    assert_close(result, reference(None, mat1, mat2, 1, 0, ""), k)
                    assert torch.equal(result, mm(mat1, mat2, dots=plan)), "the same bits on every run"
    finally:
        torch.ops.aten_ext_on_host_linear.set_order(0, 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ["", "relu", "gelu"])
@pytest.mark.parametrize(
    "form", ["[]", "[1]", "[n]", "[n] strided", "[1, n]", "[m, 1]", "[m, n]", "[m, n].t"]
)
def test_bias_forms(dtype: torch.dtype, act: str, form: str) -> None:
    load()
    for m, plan in itertools.product(rows_of(dtype), ((1, 2, 2), (4, 2, 2), (8, 4, 2))):
        n, k = 35, 136
        mat1, mat2 = operands((m, n, k), dtype, transposed=True)
        bias = BIASES[form](m, n).to(dtype)
        if dtype != torch.float32 and bias.shape == (m, n):
            continue  # no kernel takes it: test_on_host.py
        result = few_rows(bias, mat1, mat2, act, alpha=0.75, beta=-2, dots=plan)
        assert_close(result, reference(bias, mat1, mat2, 0.75, -2, act), k)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out(dtype: torch.dtype) -> None:
    """Nothing is written beside it, with whatever plan."""
    load()
    for m in rows_of(dtype):
        for plan in plans(m):
            n, k = 37, 72
            mat1, mat2 = operands((m, n, k), dtype, transposed=True)
            memory = torch.full((m + 2, n + 3), 7.0, dtype=dtype)
            out = memory[1:-1, 1:-2]
            few_rows(None, mat1, mat2, out=out, dots=plan)
            assert_close(out, reference(None, mat1, mat2, 1, 0, ""), k)
            out.fill_(7.0)
            assert (memory == 7.0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_that_are_not_finite(dtype: torch.dtype) -> None:
    """They reach the results that they are part of, and no other; a zero times an infinity is NaN."""
    load()
    for m, plan in itertools.product(rows_of(dtype), ((1, 2, 2), (8, 4, 2))):
        mat1, mat2 = operands((m, 41, 200), dtype, transposed=True)
        mat1[m - 1, 3] = torch.inf
        mat1[0, 70], mat1[0, 71] = torch.inf, -torch.inf
        mat2[9, 17] = -torch.inf
        mat2[3, 5] = 0.0
        result = mm(mat1, mat2, dots=plan)
        exact = (mat1.double() @ mat2.double()).to(dtype)
        torch.testing.assert_close(
            result.isnan() * 2 + result.isinf() * result.sign().nan_to_num(),
            exact.isnan() * 2 + exact.isinf() * exact.sign().nan_to_num(),
        )


def test_numbers_at_the_ends_of_fp32() -> None:
    """Small ones keep their bits, and large ones stay finite, as in a sum of multiply-adds."""
    load()
    largest = torch.finfo(torch.float32).max
    mat1 = torch.zeros(2, 64)
    mat1[0, 0], mat1[1, :4] = largest, 1e-39
    result = mm(mat1, torch.ones(16, 64).t(), dots=(1, 2, 2))
    torch.testing.assert_close(result[:, 0], torch.tensor([largest, 4e-39]), rtol=1e-6, atol=0)
    assert (result == result[:, :1]).all()


@pytest.mark.parametrize(
    ("shape", "dtype", "plan"),
    [
        ((1, 4096, 4096), torch.float32, "4 columns in 16 warps"),
        ((1, 4096, 2048), torch.float32, "4 columns in 8 warps"),
        ((1, 14336, 4096), torch.bfloat16, "4 columns in 8 warps"),
        ((1, 4096, 14336), torch.bfloat16, "4 columns in 8 warps"),
        ((2, 14336, 4096), torch.float32, "4 columns in 8 warps"),
        ((1, 50256, 768), torch.bfloat16, "4 columns in 2 warps"),
        ((1, 64, 16384), torch.float32, "1 column in 16 warps"),
        ((4, 512, 512), torch.float32, "dot products"),
        ((4, 4096, 4096), torch.float32, "tiles"),
        ((5, 512, 512), torch.float32, "tiles"),
        ((2, 512, 512), torch.bfloat16, "tiles"),
        ((1, 16384, 64), torch.bfloat16, "tiles"),
        ((1, 16384, 64), torch.float32, "dot products"),
    ],
    ids=str,
)
def test_which_layers_it_takes(shape: tuple[int, int, int], dtype: torch.dtype, plan: str) -> None:
    load()
    m, n, k = shape
    mat1, weight, bias = (torch.empty(size, dtype=dtype) for size in ((m, k), (n, k), (n,)))
    assert plan in torch.ops.aten_ext_on_host_linear.choose(bias, mat1, weight.t())
    assert "tiles" in torch.ops.aten_ext_on_host_linear.choose(bias, mat1, torch.empty(k, n, dtype=dtype))
