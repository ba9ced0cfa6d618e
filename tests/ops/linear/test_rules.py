"""When addmm, mm and _addmm_activation take few rows: every decline, and both sides of each edge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ops.linear.cases import HALF, WHOLE_MATRIX, all_mm_routes, all_routes, meta, restored, route
from tables import every_shape_is_ours


@pytest.fixture(autouse=True)
def _without_figures() -> Iterator[None]:
    """What a table says is test_asked_of_cells.py's."""
    with every_shape_is_ours():
        yield


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(2, 16, 32), (64, 768, 2048)])
def test_takes(dtype: torch.dtype, transposed: bool, m: int, n: int, k: int) -> None:
    mat1, mat2 = meta(m, k, dtype=dtype), meta(n, k, dtype=dtype).t()
    if not transposed:
        mat2 = meta(k, n, dtype=dtype)
    assert all_mm_routes(mat1, mat2) == {""}
    for shape in [(), (1,), (n,), (1, 1), (1, n), (m, 1)]:
        assert all_routes(meta(*shape, dtype=dtype), mat1, mat2, alpha=0.5, beta=-2) == {""}
    whole = {WHOLE_MATRIX} if dtype in HALF else {""}
    assert all_routes(meta(m, n, dtype=dtype), mat1, mat2, alpha=0.5, beta=-2) == whole
    assert all_routes(meta(n, dtype=dtype), mat1, mat2, alpha=0, beta=-2) == {"alpha of 0"}
    assert all_routes(meta(3 * n, dtype=dtype)[::3], mat1, mat2, beta=0) == {""}


def declines() -> Iterator[tuple[str, Callable[[], set[str]]]]:
    """Each reason, and a call just beyond the edge of what is taken."""
    weight = meta(16, 32).t()
    yield "more than one dtype", lambda: all_mm_routes(meta(8, 32), meta(16, 32, dtype=torch.half).t())
    yield "more than one dtype", lambda: all_routes(meta(16, dtype=torch.half), meta(8, 32), weight)
    yield "more than one device", lambda: all_routes(torch.zeros(16), meta(8, 32), weight)
    yield (
        "dtype other than float32, float16, bfloat16",
        lambda: all_mm_routes(meta(8, 32, dtype=torch.double), meta(16, 32, dtype=torch.double).t()),
    )
    yield "mat1 or mat2 that is not a matrix", lambda: {route("mm", meta(8, 32), meta(32))}
    yield "mat1 or mat2 that is not a matrix", lambda: {route("mm", meta(1, 8, 32), weight)}
    yield "mat1 and mat2 whose inner sizes differ", lambda: all_mm_routes(meta(8, 36), weight)
    for shape in [(15,), (8,), (2, 16), (8, 2), (1, 8, 16)]:
        yield (
            "bias that does not broadcast to the result",
            lambda shape=shape: all_routes(meta(*shape), meta(8, 32), weight),
        )
        yield (
            "bias that does not broadcast to the result",  # an error of upstream's whatever beta is
            lambda shape=shape: all_routes(meta(*shape), meta(8, 32), weight, beta=0),
        )
    for scalar in [1j, 1e300]:
        yield (
            "alpha or beta that is no number of float32",
            lambda scalar=scalar: all_routes(meta(16), meta(8, 32), weight, alpha=scalar),
        )
        yield (
            "alpha or beta that is no number of float32",
            lambda scalar=scalar: all_routes(meta(16), meta(8, 32), weight, beta=scalar),
        )
    yield "empty dimension", lambda: all_mm_routes(meta(0, 32), weight)
    yield "empty dimension", lambda: all_mm_routes(meta(8, 32), meta(0, 32).t())
    yield "empty dimension", lambda: all_routes(meta(16), meta(8, 0), meta(16, 0).t())
    yield "more than 64 rows", lambda: all_mm_routes(meta(65, 32), weight)
    yield "dimension of 2^30 or more", lambda: all_mm_routes(meta(1, 4), meta(2**30, 4).t())
    yield "dimension of 2^30 or more", lambda: all_mm_routes(meta(1, 2**30), meta(1, 2**30).t())
    yield "mat1 whose rows are not contiguous", lambda: all_mm_routes(meta(32, 8).t(), weight)
    yield "mat1 whose rows are not contiguous", lambda: all_mm_routes(meta(1, 32).expand(8, 32), weight)
    neither = "mat2 with neither rows nor columns contiguous"
    yield neither, lambda: all_mm_routes(meta(8, 32), meta(16, 64)[:, ::2].t())
    yield neither, lambda: all_mm_routes(meta(8, 32), meta(1, 32).expand(16, 32).t())
    yield "out of another shape", lambda: {route("mm.out", meta(8, 32), weight, out=meta(0))}
    yield "out of another shape", lambda: {route("mm.out", meta(8, 32), weight, out=meta(8, 17))}
    yield "out of another shape", lambda: {route("mm.out", meta(8, 32), weight, out=meta(1, 8, 16))}
    contiguous = "out whose rows are not contiguous"
    yield contiguous, lambda: {route("mm.out", meta(8, 32), weight, out=meta(16, 8).t())}
    yield contiguous, lambda: {route("mm.out", meta(8, 32), weight, out=meta(8, 32)[:, ::2])}
    yield contiguous, lambda: {route("mm.out", meta(8, 32), weight, out=meta(1, 16).expand(8, 16))}
    yield "out that shares memory with an operand", aliases


def aliases() -> set[str]:
    square = meta(32, 32)
    bias = meta(8, 32)
    return {
        route("mm.out", meta(8, 32), square.t(), out=square[:8]),
        route("mm.out", bias, meta(32, 32).t(), out=bias),
        route("addmm.out", bias, meta(8, 32), square.t(), out=bias),
    }


DECLINES = list(declines())


@pytest.mark.parametrize("index", range(len(DECLINES)), ids=lambda i: f"{i}-{DECLINES[i][0][:40]}")
def test_declines(index: int) -> None:
    reason, call = DECLINES[index]
    assert call() == {reason}


@pytest.mark.parametrize("make", [lambda: meta(8, 36)[:, :32], lambda: meta(8, 40)[:, 4:36]])
def test_takes_aligned_views(make: Callable[[], torch.Tensor]) -> None:
    """The other side of the edges of alignment."""
    assert all_mm_routes(make(), meta(16, 36)[:, :32].t()) == {""}
    assert all_mm_routes(make(), meta(32, 24)[:, 4:20]) == {""}


def test_out_with_distance_between_rows() -> None:
    assert route("mm.out", meta(8, 32), meta(16, 32).t(), out=meta(8, 21)[:, 3:19]) == ""


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch._neg_view(meta(8, 32)),
        lambda: torch._efficientzerotensor((8, 32), device="meta"),
        lambda: torch.sparse_coo_tensor(size=(8, 32), device="meta", check_invariants=False),
    ],
    ids=["negative", "zero", "sparse"],
)
def test_views_that_are_not_their_memory_decline(make: Callable[[], torch.Tensor]) -> None:
    reason = "tensor that is sparse, named, or a view that conjugates, negates or stands for zeros"
    assert route("mm", make(), meta(16, 32).t()) == reason


# ---- what the user asked of matrix products ----------------------------------------------------------


def test_tf32_allowed_declines_fp32_alone() -> None:
    reason = "float32 precision other than IEEE is allowed"
    half = (meta(8, 32, dtype=torch.half), meta(16, 32, dtype=torch.half).t())
    with restored(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision):
        for precision, expected in [("highest", ""), ("high", reason), ("medium", reason), ("highest", "")]:
            torch.set_float32_matmul_precision(precision)
            assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {expected}, precision
            assert all_mm_routes(*half) == {""}


def test_fp32_precision_of_the_newer_interface() -> None:
    matmul: Any = torch.backends.cuda.matmul
    with restored(lambda: matmul.fp32_precision, lambda value: setattr(matmul, "fp32_precision", value)):
        for precision, expected in [("ieee", ""), ("tf32", "float32 precision other than IEEE is allowed")]:
            matmul.fp32_precision = precision
            assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {expected}


def test_reduction_flags() -> None:
    flags = {
        torch.half: (
            torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
            torch._C._set_cublas_allow_fp16_reduced_precision_reduction,
        ),
        torch.bfloat16: (
            torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
            torch._C._set_cublas_allow_bf16_reduced_precision_reduction,
        ),
    }
    for dtype, (getter, setter) in flags.items():
        args = (meta(8, 32, dtype=dtype), meta(16, 32, dtype=dtype).t())
        before = getter()
        try:
            for allowed, expected in [
                ((True, True), ""),
                ((False, True), ""),  # the kernel reduces in fp32 anyway
                ((False, False), "split K is not allowed"),
            ]:
                setter(*allowed)
                assert all_mm_routes(*args) == {expected}
                assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {""}, "fp32 is not meant"
        finally:
            setter(*before)


def test_fp16_accumulation() -> None:
    matmul: Any = torch.backends.cuda.matmul
    with restored(
        lambda: matmul.allow_fp16_accumulation,
        lambda value: setattr(matmul, "allow_fp16_accumulation", value),
    ):
        matmul.allow_fp16_accumulation = True
        for dtype, expected in [(torch.half, "fp16 accumulation is allowed"), (torch.bfloat16, "")]:
            assert all_mm_routes(meta(8, 32, dtype=dtype), meta(16, 32, dtype=dtype).t()) == {expected}


@pytest.mark.parametrize(
    ("config", "expected"),
    [(None, "deterministic algorithms without CUBLAS_WORKSPACE_CONFIG"), (":4096:8", ""), (":16:8", "")],
)
def test_deterministic(monkeypatch: pytest.MonkeyPatch, config: str | None, expected: str) -> None:
    if config is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    else:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    with restored(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms):
        torch.use_deterministic_algorithms(True)
        assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {expected}
    assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {""}


def test_multiprocessors_set_aside() -> None:
    with restored(torch._C._get_sm_carveout_experimental, torch._C._set_sm_carveout_experimental):
        torch._C._set_sm_carveout_experimental(8)
        assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {"multiprocessors set aside"}


def test_preferred_blas_library() -> None:
    prefer: Any = torch.backends.cuda.preferred_blas_library
    with restored(prefer, prefer):
        assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {""}
        try:
            prefer("cublaslt")
        except RuntimeError:
            pytest.skip("this torch is built without cuBLASLt")
        assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {
            "preferred BLAS library other than the default"
        }


@pytest.mark.gpu
def test_tunable_op_declines() -> None:
    tunable: Any = torch.cuda.tunable
    with restored(tunable.is_enabled, tunable.enable):
        tunable.enable(True)
        assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {"TunableOp is on"}
