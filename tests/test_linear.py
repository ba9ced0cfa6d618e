"""addmm, mm and _addmm_activation: every decline, and on a GPU parity with upstream and float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import aten_ext
from linear_cases import FAST, HALF, NAMES, SLOWER, Linear, meta

explain = aten_ext.explain


def route(name: str, *args: Any, **kwargs: Any) -> str:
    """The reason why upstream would run at CUDA; empty when the kernel would."""
    answer = explain(name, *args, key="CUDA", **kwargs)
    assert answer.override == name and (answer.route == "fused") == (answer.reason == "")
    return answer.reason


def all_routes(bias: Any, mat1: Any, mat2: Any, **kwargs: Any) -> set[str]:
    """What each overload says; mm has no bias, alpha and beta."""
    out = meta(mat1.shape[0], mat2.shape[1], dtype=mat1.dtype)
    reasons = {
        route("addmm", bias, mat1, mat2, **kwargs),
        route("addmm.out", bias, mat1, mat2, **kwargs, out=out),
        route("_addmm_activation", bias, mat1, mat2, **kwargs),
        route("_addmm_activation.out", bias, mat1, mat2, **kwargs, use_gelu=True, out=out),
    }
    return reasons


def all_mm_routes(mat1: Any, mat2: Any) -> set[str]:
    out = meta(mat1.shape[0], mat2.shape[1], dtype=mat1.dtype)
    return {route("mm", mat1, mat2), route("mm.out", mat1, mat2, out=out)}


# ---- when, and when not ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("m", "n", "k"), [(2, 16, 32), (64, 768, 2048)])
def test_takes(dtype: torch.dtype, transposed: bool, m: int, n: int, k: int) -> None:
    mat1, mat2 = meta(m, k, dtype=dtype), meta(n, k, dtype=dtype).t()
    if not transposed:
        mat2 = meta(k, n, dtype=dtype)
    assert all_mm_routes(mat1, mat2) == {""}
    for shape in [(), (1,), (n,), (1, 1), (1, n), (m, 1), (m, n)]:
        assert all_routes(meta(*shape, dtype=dtype), mat1, mat2, alpha=0.5, beta=-2) == {""}
    assert all_routes(meta(3 * n, dtype=dtype)[::3], mat1, mat2, beta=0) == {""}


# (16-bit, m, n, k, transposed) on either side of each edge: taken, not taken.
EDGES = [
    ((False, 1, 16384, 768, True), (False, 1, 16388, 768, True)),  # one row, wide
    ((False, 2, 16388, 768, True), (False, 1, 16388, 768, False)),
    ((False, 1, 3072, 768, False), (False, 1, 3076, 768, False)),  # one row of a row-major weight
    ((False, 2, 3076, 768, False), (False, 1, 4096, 4096, False)),
    ((True, 8, 11008, 4096, True), (True, 9, 11008, 4096, True)),
    ((True, 16, 4096, 4096, True), (True, 16, 4104, 4096, True)),
    ((True, 16, 50257, 768, True), (True, 16, 50256, 768, True)),  # rows of no whole vectors
    ((True, 16, 64, 64, True), (True, 17, 64, 64, True)),
    ((True, 17, 256, 256, True), (True, 17, 248, 256, True)),
    ((True, 32, 4096, 1024, True), (True, 32, 4104, 1024, True)),
    ((True, 33, 768, 2048, True), (True, 33, 760, 2048, True)),
    ((True, 64, 1024, 2048, True), (True, 64, 1032, 2048, True)),
    ((True, 33, 768, 2048, False), (True, 33, 768, 2040, False)),
    ((True, 64, 768, 3072, False), (True, 64, 768, 3080, False)),
    ((True, 33, 2048, 512, True), (True, 33, 2040, 512, True)),
    ((True, 64, 3072, 768, False), (True, 64, 3072, 776, False)),
    ((False, 64, 3072, 768, True), (False, 64, 3072, 772, True)),  # float32 without a bias
    ((False, 64, 4096, 4096, True), (False, 64, 4096, 4092, True)),
    ((False, 32, 3072, 1024, True), (False, 33, 3072, 1024, True)),
]


@pytest.mark.parametrize(("taken", "declined"), EDGES, ids=str)
def test_upstream_is_faster(taken: tuple[Any, ...], declined: tuple[Any, ...]) -> None:
    """A product that cuBLASLt's plans do not take either: one without a bias."""
    for (is_half, m, n, k, transposed), reason in ((taken, ""), (declined, SLOWER)):
        for dtype in HALF if is_half else (torch.float32,):
            mat2 = meta(n, k, dtype=dtype).t() if transposed else meta(k, n, dtype=dtype)
            assert all_mm_routes(meta(m, k, dtype=dtype), mat2) == {reason}


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
    unaligned = "mat1 whose rows are not contiguous in multiples of 16 bytes"
    yield unaligned, lambda: all_mm_routes(meta(8, 30), meta(16, 30).t())  # not whole vectors
    # Rows that begin on aligned addresses, but are no whole vectors.
    yield unaligned, lambda: all_mm_routes(meta(8, 32)[:, :30], meta(16, 32)[:, :30].t())
    yield unaligned, lambda: all_mm_routes(meta(8, 33)[:, :32], weight)  # rows apart by no whole vectors
    yield unaligned, lambda: all_mm_routes(meta(8, 40)[:, 1:33], weight)  # an address between vectors
    yield unaligned, lambda: all_mm_routes(meta(32, 8).t(), weight)
    yield unaligned, lambda: all_mm_routes(meta(1, 32).expand(8, 32), weight)
    yield (
        unaligned,
        lambda: all_mm_routes(meta(8, 36, dtype=torch.half), meta(16, 36, dtype=torch.half).t()),
    )
    unaligned2 = "mat2 that is neither rows nor columns contiguous in multiples of 16 bytes"
    yield unaligned2, lambda: all_mm_routes(meta(8, 32), meta(16, 33)[:, :32].t())
    yield unaligned2, lambda: all_mm_routes(meta(8, 32), meta(16, 40)[:, 1:33].t())
    yield unaligned2, lambda: all_mm_routes(meta(8, 32), meta(32, 15))
    yield unaligned2, lambda: all_mm_routes(meta(8, 32), meta(16, 64)[:, ::2].t())
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


# ---- what the user asked of matrix products ---------------------------------------------------------------


@contextmanager
def restored(getter: Callable[[], Any], setter: Callable[[Any], Any]) -> Iterator[None]:
    before = getter()
    try:
        yield
    finally:
        setter(before)


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


# ---- on a GPU ---------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_tunable_op_declines() -> None:
    tunable: Any = torch.cuda.tunable
    with restored(tunable.is_enabled, tunable.enable):
        tunable.enable(True)
        assert all_mm_routes(meta(8, 32), meta(16, 32).t()) == {"TunableOp is on"}


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [True, False], ids=["weight", "row-major"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("m", [1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 63, 64])
@pytest.mark.parametrize(("n", "k"), [(3072, 768), (4096, 4096), (1000, 1280), (50264, 256), (8, 16384)])
def test_parity(n: int, k: int, m: int, dtype: torch.dtype, transposed: bool) -> None:
    """Every tile height, one either side, with shapes that do and do not fill whole tiles and clusters."""
    case = Linear(m, n, k, dtype, transposed=transposed)
    for name in FAST:
        case.compare(name)


@pytest.mark.gpu
def test_same_errors_as_upstream() -> None:
    """What upstream rejects it still does, with its own type and text."""
    a, w = torch.zeros(8, 32, device="cuda"), torch.zeros(16, 32, device="cuda").t()
    calls: list[Callable[[], object]] = [
        lambda: torch.mm(a, w[1:]),
        lambda: torch.mm(a, w.half()),
        lambda: torch.mm(a[0], w),
        lambda: torch.addmm(torch.zeros(15, device="cuda"), a, w),
        lambda: torch.addmm(torch.zeros(16), a, w),
        lambda: torch.addmm(torch.zeros(16, device="cuda"), a, w, alpha=1j),
        lambda: torch.mm(a, w, out=torch.zeros(8, 16, device="cuda", dtype=torch.half)),
    ]
    for call in calls:
        errors = []
        for name in ("on", "off"):
            (aten_ext.enable if name == "on" else aten_ext.disable)(*NAMES)
            with pytest.raises(Exception) as error:
                call()
            errors.append((type(error.value), str(error.value)))
        aten_ext.enable(*NAMES)
        assert errors[0] == errors[1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAST)
def test_graph_capture(name: str) -> None:
    case = Linear(8, 1000, 2048, torch.bfloat16)
    expected = case.call(name)
    graph = torch.cuda.CUDAGraph()
    aten_ext.reset_counts()
    with torch.cuda.graph(graph):
        captured = case.call(name)
    assert aten_ext.counts("CUDA")[name].ran == 1
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, expected)


@pytest.mark.gpu
def test_another_stream() -> None:
    case = Linear(16, 4096, 4096, torch.float32)
    expected = case.call("mm")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = case.call("mm")
    stream.synchronize()
    assert torch.equal(result, expected)


@pytest.mark.gpu
def test_beta_zero_ignores_a_bias_of_nan() -> None:
    case = Linear(4, 512, 512, torch.float32)
    bias = torch.full((512,), torch.nan, device="cuda")
    aten_ext.reset_counts()
    result = torch.addmm(bias, case.mat1, case.mat2, beta=0)
    assert aten_ext.counts("CUDA")["addmm"].ran == 1
    assert torch.equal(result, torch.mm(case.mat1, case.mat2))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mm.out", "addmm.out", "_addmm_activation.out"])
def test_out(name: str) -> None:
    """Into a slice: nothing beside it is written."""
    case = Linear(8, 500, 512, torch.float32)
    memory = torch.full((10, 512), 7.0, device="cuda")
    out = memory[1:9, 3:503]
    aten_ext.reset_counts()
    assert case.call(name, out=out).data_ptr() == out.data_ptr()
    assert aten_ext.counts("CUDA")[name].ran == 1
    assert torch.equal(out, case.call(name.removesuffix(".out")))
    out.fill_(7.0)
    assert (memory == 7.0).all()


@pytest.mark.gpu
def test_autocast_and_training() -> None:
    """nn.Linear under autocast, forward and backward: fp32 weights, bf16 products."""
    layer = torch.nn.Linear(512, 1024, device="cuda")
    x = torch.randn(8, 512, device="cuda", requires_grad=True)

    def step() -> list[torch.Tensor]:
        layer.zero_grad()
        x.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x).relu()
        y.float().square().mean().backward()
        assert x.grad is not None and layer.weight.grad is not None
        return [y, x.grad, layer.weight.grad]

    aten_ext.reset_counts()
    ours = step()
    counts = aten_ext.counts("CUDA")
    assert counts["addmm"].ran == 1 and counts["mm"].ran >= 1
    with aten_ext.disabled():
        theirs = step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_encoder_fast_path(dtype: torch.dtype, activation: str) -> None:
    """In inference its feed-forward part calls _addmm_activation, in C++; each layer once."""
    layer = torch.nn.TransformerEncoderLayer(
        256, 4, 1024, activation=activation, batch_first=True, device="cuda", dtype=dtype
    )
    encoder = torch.nn.TransformerEncoder(layer, 3).eval()
    x = torch.randn(2, 8, 256, device="cuda", dtype=dtype)
    with torch.inference_mode():
        aten_ext.reset_counts()
        ours = encoder(x)
        counts = aten_ext.counts("CUDA")
        assert (counts["_addmm_activation"].ran, dict(counts["_addmm_activation"].declined)) == (3, {})
        with aten_ext.disabled():
            theirs = encoder(x)
    tolerance = {torch.float32: 1e-5, torch.half: 5e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
def test_mlp() -> None:
    """A gated MLP as language models have it, one token: three products without a bias."""
    gate, up, down = (
        torch.nn.Linear(i, o, bias=False, device="cuda", dtype=torch.bfloat16)
        for i, o in ((1024, 2816), (1024, 2816), (2816, 1024))
    )
    x = torch.randn(1, 1, 1024, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        aten_ext.reset_counts()
        ours = down(torch.nn.functional.silu(gate(x)) * up(x))
        assert aten_ext.counts("CUDA")["mm"].ran == 3
        with aten_ext.disabled():
            theirs = down(torch.nn.functional.silu(gate(x)) * up(x))
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
