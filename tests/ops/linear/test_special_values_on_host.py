"""NaN, infinities, zeros, and the ends of each dtype's range, in each argument of a linear layer by itself.

On the CUDA kernel for few rows, run on the CPU. Held against the formula in float64, rounded: every
element is of the same class (NaN, an infinity of a sign, or a number), and every number close.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu

from device_on_host import library
from ops.linear.test_on_host import few_rows, load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ARGUMENTS = ["bias", "mat1", "mat2"]


def special_values(dtype: torch.dtype) -> dict[str, float]:
    info = torch.finfo(dtype)
    return {
        "NaN": torch.nan, "inf": torch.inf, "-inf": -torch.inf, "-0": -0.0,
        "largest": info.max, "least": info.min, "smallest normal": info.tiny, "-smallest normal": -info.tiny,
        "smallest denormal": info.smallest_normal * info.eps, "denormal": -info.tiny / 2,
    }  # fmt: skip


def classes(t: torch.Tensor) -> torch.Tensor:
    """0: a number; 1, -1: an infinity; 2: NaN."""
    return t.isnan() * 2 + t.isinf() * t.sign().nan_to_num()


def reference(
    bias: torch.Tensor | None, mat1: torch.Tensor, mat2: torch.Tensor, act: str, alpha: float, beta: float
) -> torch.Tensor:
    exact = mat1.double() @ mat2.double()
    if bias is not None:  # alpha is a factor of the sum, as in cuBLAS, and not of its terms, as in MKL
        exact = alpha * exact + (beta * bias.double() if beta != 0 else 0.0)
    return gelu(exact, approximate="tanh") if act == "gelu" else exact.relu() if act == "relu" else exact


def check(
    bias: torch.Tensor | None,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    act: str,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> None:
    options: dict[str, Any] = {} if bias is None else {"alpha": alpha, "beta": beta}
    result = few_rows(bias, mat1, mat2, act, **options)
    exact = reference(bias, mat1, mat2, act, alpha, beta)
    rounded = exact.to(result.dtype)
    assert torch.equal(classes(result), classes(rounded))
    number = classes(rounded) == 0
    # Against the result and against the largest product, beside which it may be a remainder.
    size = mat1.double().abs().nan_to_num(0, 0, 0).amax() * mat2.double().abs().nan_to_num(0, 0, 0).amax()
    eps = torch.finfo(result.dtype).eps
    error = (result.double() - exact).abs()[number]
    ceiling = 0.51 * eps * exact.abs()[number] + 2e-6 * abs(alpha) * min(size.item(), 64.0)
    assert (error <= ceiling + torch.finfo(result.dtype).tiny * eps).all()


@pytest.mark.parametrize("form", ["mm", "addmm", "relu", "gelu"])
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [True, False], ids=["weight", "row-major"])
def test_one_special_value(dtype: torch.dtype, argument: str, form: str, transposed: bool) -> None:
    """Among ordinary numbers, and alone among zeros, where it is multiplied with nothing else.

    Rows are whole vectors of 16 bytes, and are none.
    """
    if form == "mm" and argument == "bias":
        pytest.skip("mm has none")
    load()
    generator = torch.Generator().manual_seed(0)
    for name, value in special_values(dtype).items():
        if form == "gelu" and (name == "largest" or (argument != "bias" and name == "least")):
            continue  # above half of the largest float: test_gelu_of_large_numbers
        for others, (n, k) in itertools.product(("ordinary", "zeros"), ((24, 72), (23, 71))):
            # No more than 1, so that one largest number stays in range where it is a factor.
            mat1 = (torch.rand(5, k, generator=generator) - 0.5).to(dtype)
            weight = (torch.rand(n, k, generator=generator) - 0.5).to(dtype)
            bias = (torch.rand(n, generator=generator) - 0.5).to(dtype)
            if others == "zeros":
                mat1[:, 1:] = 0.0
            if argument == "bias":
                bias[3] = value
                bias[7] = -0.0
            elif argument == "mat1":
                mat1[2, 0] = value
            else:
                weight[6, 0] = value
            mat2 = weight.t() if transposed else weight.t().contiguous()
            check(None if form == "mm" else bias, mat1, mat2, "" if form in ("mm", "addmm") else form)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ["", "relu"])
@pytest.mark.parametrize(
    ("alpha", "beta"), [(1.0, 0.0), (-2.0, 0.5), (torch.inf, 1.0), (1.0, torch.inf), (torch.nan, 1.0)]
)
def test_scalars(dtype: torch.dtype, act: str, alpha: float, beta: float) -> None:
    """With beta 0 a bias of NaN is not read; scalars that are no numbers are factors like others."""
    load()
    generator = torch.Generator().manual_seed(0)
    mat1, weight = torch.randn(5, 72, generator=generator), torch.randn(24, 72, generator=generator)
    bias = torch.randn(24, generator=generator)
    mat1[1] = 0.0
    bias[4] = 0.0
    if beta == 0:
        bias[:3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    check(bias.to(dtype), mat1.to(dtype), weight.to(dtype).t(), act, alpha, beta)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alpha_zero_is_upstreams(dtype: torch.dtype) -> None:
    """It then reads neither matrix: a NaN in them does not count."""
    load()
    mat1, mat2 = torch.full((2, 32), torch.nan, dtype=dtype), torch.ones(32, 16, dtype=dtype)
    with pytest.raises(RuntimeError, match="declined: alpha of 0"):
        torch.ops.aten_ext_on_host.addmm(torch.ones(16, dtype=dtype), mat1, mat2, alpha=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gelu_of_large_numbers(dtype: torch.dtype) -> None:
    """In 16 bits cuBLASLt doubles before it halves: infinity from half of the largest float on."""
    load()
    values = torch.tensor([1e38, 1.69e38, 1.71e38, 2e38, 3.38e38, -1e38, -1.71e38, -3.38e38], dtype=dtype)
    expected = values.clone()
    if dtype == torch.bfloat16:
        expected[2:5] = torch.inf
    expected[5:] = 0.0
    zeros = torch.zeros(2, 8, dtype=dtype), torch.zeros(8, 8, dtype=dtype).t()
    result = torch.ops.aten_ext_on_host._addmm_activation(values, *zeros, use_gelu=True)
    assert torch.equal(result, expected.expand(2, 8))
    # The same as a sum of products.
    mat1, mat2 = torch.zeros(2, 8, dtype=dtype), torch.zeros(8, 8, dtype=dtype)
    mat1[:, 0] = 1.0
    mat2[0] = values
    none = torch.zeros(8, dtype=dtype)
    result = torch.ops.aten_ext_on_host._addmm_activation(none, mat1, mat2, use_gelu=True)
    assert torch.equal(result, expected.expand(2, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["mm", "addmm", "relu", "gelu"])
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_classes_are_upstreams(dtype: torch.dtype, argument: str, form: str) -> None:
    """On a GPU: every class, and the sign of every zero, is that of upstream's own result."""
    import aten_ext

    def call(bias: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
        if form == "mm":
            return torch.mm(mat1, mat2)
        if form == "addmm":
            return torch.addmm(bias, mat1, mat2)
        result: torch.Tensor = torch.ops.aten._addmm_activation(bias, mat1, mat2, use_gelu=form == "gelu")
        return result

    name = {"mm": "mm", "addmm": "addmm"}.get(form, "_addmm_activation")
    generator = torch.Generator().manual_seed(0)
    for value in [*special_values(dtype).values(), torch.finfo(dtype).max / 1.5]:
        for rows in (2, 8, 20):
            bias = torch.randn(256, generator=generator)
            mat1 = torch.randn(rows, 256, generator=generator)
            weight = torch.randn(256, 256, generator=generator)
            {"bias": bias, "mat1": mat1[1], "mat2": weight[6]}[argument][5] = value
            mat1[0], bias[9] = 0.0, -0.0
            args = [t.to("cuda", dtype) for t in (bias, mat1, weight)]
            args[2] = args[2].t()
            aten_ext.reset_counts()
            ours = call(*args)
            assert aten_ext.counts("CUDA")[name].ran == 1
            with aten_ext.disabled():
                theirs = call(*args)
            assert torch.equal(classes(ours), classes(theirs)), f"{value}, {rows} rows"
            zero = (ours == 0) & (theirs == 0)
            assert torch.equal(ours.signbit() & zero, theirs.signbit() & zero), f"{value}, {rows} rows"
