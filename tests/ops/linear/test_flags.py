"""Every flag that steers upstream's matrix products, in any combination: the route is right, so is the value.

The rule is asked with meta tensors; the same calls then run on the emulator, and on a GPU beside upstream.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import aten_ext
from device_on_host import library
from ops.linear.cases import HALF, meta, route
from ops.linear.test_on_host import load
from ops.linear.test_special_values_on_host import classes

DTYPES = (torch.float32, *HALF)
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
MATMUL: Any = torch.backends.cuda.matmul
BACKENDS: Any = torch.backends


def takes_blas_library(name: str) -> bool:
    prefer: Any = torch.backends.cuda.preferred_blas_library
    before = prefer()
    try:
        prefer(name)
    except RuntimeError:
        return False  # a torch without CUDA has no cuBLASLt
    prefer(before)
    return True


LIBRARIES = [name for name in ("default", "cublas", "cublaslt") if takes_blas_library(name)]
# Which interface, and what it is told. Each alone: PyTorch forbids to mix them.
PRECISIONS: dict[tuple[str, Any], bool] = {
    ("none of them", None): False,
    ("allow_tf32", True): True,
    ("allow_tf32", False): False,
    ("set_float32_matmul_precision", "highest"): False,
    ("set_float32_matmul_precision", "high"): True,
    ("set_float32_matmul_precision", "medium"): True,
    ("matmul.fp32_precision", "ieee"): False,
    ("matmul.fp32_precision", "tf32"): True,
    ("backends.fp32_precision", "ieee"): False,
    ("backends.fp32_precision", "tf32"): True,
}
FLAGS = st.fixed_dictionaries(
    {
        "precision": st.sampled_from(list(PRECISIONS)),
        "cudnn_tf32": st.booleans(),  # means nothing here
        "fp16_accumulation": st.booleans(),
        # (reduced precision, split K), as PyTorch allows them
        "fp16_reduction": st.sampled_from([(True, True), (False, True), (False, False)]),
        "bf16_reduction": st.sampled_from([(True, True), (False, True), (False, False)]),
        "deterministic": st.sampled_from(["no", "yes", "yes, with :4096:8", "yes, with :16:8"]),
        "library": st.sampled_from(LIBRARIES),
    }
)


def set_precision(interface: str, value: Any) -> None:
    if interface == "allow_tf32":
        MATMUL.allow_tf32 = value
    elif interface == "set_float32_matmul_precision":
        torch.set_float32_matmul_precision(value)
    elif interface == "matmul.fp32_precision":
        MATMUL.fp32_precision = value
    elif interface == "backends.fp32_precision":
        BACKENDS.fp32_precision = value


def forget_precision() -> None:
    """As a process begins: both interfaces agree, and neither was used."""
    torch.set_float32_matmul_precision("highest")
    MATMUL.fp32_precision = "none"
    BACKENDS.fp32_precision = "none"


@contextmanager
def set_flags(flags: dict[str, Any]) -> Iterator[None]:
    """These flags, until the end of a ``with`` block."""
    prefer: Any = torch.backends.cuda.preferred_blas_library
    core: Any = torch._C
    before = (
        prefer(),
        torch.backends.cudnn.allow_tf32,
        MATMUL.allow_fp16_accumulation,
        core._get_cublas_allow_fp16_reduced_precision_reduction(),
        core._get_cublas_allow_bf16_reduced_precision_reduction(),
        torch.are_deterministic_algorithms_enabled(),
        os.environ.get(WORKSPACE),
    )

    def apply(values: tuple[Any, ...]) -> None:
        blas, cudnn, accumulation, fp16, bf16, deterministic, workspace = values
        prefer(blas)
        torch.backends.cudnn.allow_tf32 = cudnn
        MATMUL.allow_fp16_accumulation = accumulation
        core._set_cublas_allow_fp16_reduced_precision_reduction(*fp16)
        core._set_cublas_allow_bf16_reduced_precision_reduction(*bf16)
        torch.use_deterministic_algorithms(deterministic)
        os.environ.pop(WORKSPACE, None)
        if workspace is not None:
            os.environ[WORKSPACE] = workspace

    deterministic, _, workspace = flags["deterministic"].partition(", with ")
    # torch's own test databases freeze the flags of the process that imports them.
    thawed = getattr(torch.backends, "__allow_nonbracketed_mutation")
    try:
        with thawed():
            forget_precision()
            apply(
                (
                    flags["library"],
                    flags["cudnn_tf32"],
                    flags["fp16_accumulation"],
                    flags["fp16_reduction"],
                    flags["bf16_reduction"],
                    deterministic == "yes",
                    workspace or None,
                )
            )
            set_precision(*flags["precision"])
        yield
    finally:
        with thawed():
            forget_precision()
            apply(before)


def expected(flags: dict[str, Any], dtype: torch.dtype, has_bias: bool) -> tuple[str, bool]:
    """Why upstream runs, or "", and whether the kernel for few rows does."""
    if flags["library"] == "cublaslt":
        return "preferred BLAS library other than the default", False
    if flags["deterministic"] == "yes":
        return "deterministic algorithms without CUBLAS_WORKSPACE_CONFIG", False
    if dtype == torch.half and flags["fp16_accumulation"]:
        return "fp16 accumulation is allowed", False
    reason = ""
    if dtype == torch.float32 and PRECISIONS[flags["precision"]]:
        reason = "float32 precision other than IEEE is allowed"
    if dtype in HALF:
        reduction = flags["fp16_reduction" if dtype == torch.half else "bf16_reduction"]
        reason = "split K is not allowed" if reduction == (False, False) else ""
    # cuBLASLt is told of these two, and adds a bias. Products without one it does not get.
    return "" if has_bias else reason, reason == ""


def operands(dtype: torch.dtype, m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """bias, mat1 and mat2, with a NaN and an infinity that reach some of the results."""
    generator = torch.Generator().manual_seed(m + n)
    bias, mat1 = torch.randn(n, generator=generator), torch.randn(m, k, generator=generator)
    weight = torch.randn(n, k, generator=generator)
    mat1[1, 3], weight[2, 5], bias[4] = torch.nan, torch.inf, -torch.inf
    return bias.to(dtype), mat1.to(dtype), weight.to(dtype).t()


def calls(bias: Any, mat1: Any, mat2: Any, at: Any) -> dict[str, Callable[[], torch.Tensor]]:
    return {
        "mm": lambda: at.mm(mat1, mat2),
        "addmm": lambda: at.addmm(bias, mat1, mat2),
        "_addmm_activation": lambda: at._addmm_activation(bias, mat1, mat2, use_gelu=False),
    }


def exact_of(name: str, bias: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    product = mat1.double() @ mat2.double()
    if name == "mm":
        return product
    return (product + bias.double()).relu() if name == "_addmm_activation" else product + bias.double()


def error_of(call: Callable[[], torch.Tensor]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


@given(flags=FLAGS, dtype=st.sampled_from(DTYPES))
def test_routes(flags: dict[str, Any], dtype: torch.dtype) -> None:
    bias, mat1, mat2 = meta(16, dtype=dtype), meta(8, 32, dtype=dtype), meta(16, 32, dtype=dtype).t()
    with set_flags(flags):
        for name, arguments in (
            ("mm", (mat1, mat2)),
            ("addmm", (bias, mat1, mat2)),
            ("_addmm_activation", (bias, mat1, mat2)),
        ):
            reason, few_rows = expected(flags, dtype, name != "mm")
            answer = aten_ext.explain(name, *arguments, key="CUDA")
            assert (answer.override, answer.reason) == (name, reason)
            if not reason:
                assert answer.plan.startswith("few rows: " if few_rows else "cuBLASLt "), answer.plan
    assert route("mm", meta(8, 32), meta(16, 32).t()) == "", "everything is as it was"


@pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")
@settings(max_examples=30, deadline=None)
@given(flags=FLAGS, dtype=st.sampled_from(DTYPES))
def test_values_on_host(flags: dict[str, Any], dtype: torch.dtype) -> None:
    """On the emulator: what the rule takes is computed as if no flag were set, what not raises its reason."""
    load()
    bias, mat1, mat2 = operands(dtype, 5, 24, 72)
    with set_flags(flags):
        for name, call in calls(bias, mat1, mat2, torch.ops.aten_ext_on_host).items():
            reason, few_rows = expected(flags, dtype, name != "mm")
            if reason:
                with pytest.raises(RuntimeError, match=f"declined: {reason}"):
                    call()
                continue
            if not few_rows:
                continue  # cuBLASLt: what it is told, test_lt_on_host.py sees; its arithmetic is its own
            result = call()
            exact = exact_of(name, bias, mat1, mat2)
            assert torch.equal(classes(result), classes(exact))
            number = exact.isfinite()
            rounding = {torch.float32: 0.0, torch.float16: 2**-11, torch.bfloat16: 2**-8}[dtype]
            torch.testing.assert_close(
                result[number].double(), exact[number], rtol=rounding + 1e-6, atol=6e-6
            )


@pytest.mark.gpu
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flags=FLAGS, dtype=st.sampled_from(DTYPES))
def test_values_on_gpu(flags: dict[str, Any], dtype: torch.dtype) -> None:
    """The explained route, upstream's classes, and no further from float64 than 1.25 times upstream."""
    cpu = operands(dtype, 8, 512, 768)
    bias, mat1 = cpu[0].cuda(), cpu[1].cuda()
    mat2 = cpu[2].t().contiguous().cuda().t()
    with set_flags(flags):
        for name, call in calls(bias, mat1, mat2, torch.ops.aten).items():
            reason, _ = expected(flags, dtype, name != "mm")
            if reason.startswith("deterministic"):
                continue  # upstream raises
            error = error_of(call) if reason else ""
            if error:
                with aten_ext.disabled():
                    assert error_of(call) == error
                continue  # mm without split K, which cuBLAS itself cannot be told
            aten_ext.reset_counts()
            ours = call()
            counts = aten_ext.counts("CUDA")[name]
            assert (counts.ran, dict(counts.declined)) == ((0, {reason: 1}) if reason else (1, {}))
            with aten_ext.disabled():
                theirs = call()
            assert torch.equal(classes(ours), classes(theirs))
            exact = exact_of(name, bias, mat1, mat2)
            number = exact.isfinite() & theirs.isfinite()
            distance, upstream = ((r.double() - exact)[number].norm() for r in (ours, theirs))
            allowance = torch.finfo(dtype).eps / 2 * exact[number].norm()
            assert distance <= 1.25 * upstream + allowance, f"{name}: {distance:.3g}, upstream {upstream:.3g}"
