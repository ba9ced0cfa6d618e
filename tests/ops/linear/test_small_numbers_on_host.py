"""float32 products of very small and very large numbers, on the CUDA kernel for few rows, run on the CPU.

The kernel multiplies parts of bf16, whose smallest number is 2^-133, and forms small sums again with fused
multiply-adds. Held against float64, like everything else: no further from it than 1.25 times a sum of fused
multiply-adds in order, which is what upstream's kernels are made of (docs/numerics.md).
"""

from __future__ import annotations

import itertools

import pytest
import torch

from device_on_host import library
from ops.linear.test_on_host import load, mm

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

# In one block, in a cluster whose blocks finish different rows, and rows that are no whole vectors.
SHAPES = [(3, 40, 128), (17, 72, 1096), (3, 39, 127)]
SMALLEST = 2.0**-149


def scaled(shape: tuple[int, ...], exponent: int, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers times 2^exponent, rounded once."""
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.ldexp(values, torch.tensor(exponent)).float()


def in_order(mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """Fused multiply-adds, one k after the other: each product exact in float64, each sum rounded."""
    total = torch.zeros(mat1.shape[0], mat2.shape[1])
    for k in range(mat1.shape[1]):
        total = (total.double() + mat1[:, k, None].double() * mat2[None, k].double()).float()
    return total


def check(mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """As accurate as such a sum, or half a unit in the last place of each result."""
    result = mm(mat1, mat2)
    exact = mat1.double() @ mat2.double()
    error, upstream = ((r.double() - exact).norm() for r in (result, in_order(mat1, mat2)))
    allowance = torch.finfo(torch.float32).eps / 2 * exact.norm() + SMALLEST / 2 * exact.numel() ** 0.5
    assert torch.isfinite(result).all() and exact.norm() > 0
    assert error <= 1.25 * upstream + allowance, f"{error:.3g}, in order {upstream:.3g}"
    return result


@pytest.mark.parametrize("transposed", [True, False], ids=["weight", "row-major"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((e, 0) for e in (-140, -136, -133, -130, -126, -120, -115, -112, -109, -80, -64, 0, 100, 120)),
        *((0, e) for e in (-132, -130, -126, -120, -115, -109, -80, 120)),
        (-60, -60), (-100, 12), (-120, 20), (-130, 30), (20, -120), (60, 60),
    ],
)  # fmt: skip
def test_scales(first: int, second: int, shape: tuple[int, int, int], transposed: bool) -> None:
    load()
    m, n, k = shape
    generator = torch.Generator().manual_seed(first * 1000 + second)
    mat1 = scaled((m, k), first, generator)
    mat2 = scaled((n, k), second, generator).t() if transposed else scaled((k, n), second, generator)
    check(mat1, mat2)


@pytest.mark.parametrize("transposed", [True, False], ids=["weight", "row-major"])
def test_small_rows_among_others(transposed: bool) -> None:
    """Each row of mat1, and each column of mat2, is of a scale of its own; some rows are zeros."""
    load()
    generator = torch.Generator().manual_seed(1)
    m, n, k = 24, 72, 264
    mat1, mat2 = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator).t()
    exponents = [0, -120, -140, 60, -112, 0, -126, -133]
    for i in range(m):
        mat1[i] = torch.ldexp(mat1[i].double(), torch.tensor(exponents[i % 8])).float()
    mat1[3], mat1[20] = 0.0, 0.0
    mat2 = mat2 if transposed else mat2.contiguous()
    result = mm(mat1, mat2)
    exact = mat1.double() @ mat2.double()
    expected = in_order(mat1, mat2)
    for i in range(m):
        error, upstream = ((r[i].double() - exact[i]).norm() for r in (result, expected))
        allowance = torch.finfo(torch.float32).eps / 2 * exact[i].norm() + SMALLEST / 2 * n**0.5
        assert error <= 1.25 * upstream + allowance, f"row {i}: {error:.3g}, in order {upstream:.3g}"
    assert (result[3] == 0).all() and (result[20] == 0).all() and not result[3].signbit().any()


@pytest.mark.parametrize("value", [0.0, -0.0], ids=str)
@pytest.mark.parametrize("which", ["mat1", "mat2"])
def test_zeros(which: str, value: float) -> None:
    """Zeros are zeros, of plus sign, whatever they are multiplied with, unless that is not finite."""
    load()
    mat1, mat2 = torch.randn(5, 128), torch.randn(40, 128)
    (mat1 if which == "mat1" else mat2).fill_(value)
    result = mm(mat1, mat2.t())
    assert (result == 0).all() and not result.signbit().any()
    (mat2 if which == "mat1" else mat1)[2, 7] = torch.inf
    result = mm(mat1, mat2.t())
    reached = torch.zeros(5, 40, dtype=torch.bool)
    if which == "mat1":
        reached[:, 2] = True
    else:
        reached[2] = True
    assert torch.equal(result.isnan(), reached) and (result[~reached] == 0).all()


def test_one_small_number_among_zeros() -> None:
    """The smallest number there is, at each end of a row, of whole vectors or not, and in its middle."""
    load()
    for length, k in itertools.product((1096, 1095), (0, 63, 64, 127, 128, -1)):
        mat1, mat2 = torch.zeros(3, length), torch.ones(length, 40)
        mat1[1, k] = SMALLEST
        result = mm(mat1, mat2)
        assert (result[1] == SMALLEST).all() and (result[[0, 2]] == 0).all()
