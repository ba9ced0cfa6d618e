"""Linear layers of many rows, through cuBLASLt with a plan: when, and on a GPU the very bits of upstream."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import aten_ext
import processes
from ops.linear.cases import HALF, Linear, all_routes, meta, restored, route

DTYPES = [torch.float32, *HALF]
FUSED = [("addmm", False), ("_addmm_activation", False), ("_addmm_activation", True)]
IDS = ["none", "relu", "gelu"]


def bias_of(n: int = 16, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return meta(n, dtype=dtype)


# ---- when, and when not -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m", [65, 127])
def test_takes(dtype: torch.dtype, m: int) -> None:
    """Rows or columns contiguous, in any alignment and with any distance between them; any alpha."""
    for mat1 in (meta(m, 33), meta(m, 40)[:, 1:34], meta(33, m).t()):
        for mat2 in (meta(17, 33).t(), meta(33, 17), meta(33, 20)[:, 2:19]):
            args = (bias_of(17, dtype), mat1.to(dtype), mat2.to(dtype))
            assert all_routes(*args, alpha=0.5) == {""}


@pytest.mark.parametrize("m", [127, 128, 4096])
def test_small_float32_weights(m: int) -> None:
    """Of many rows they are upstream's; on both sides of the edge."""
    small = {""} if m < 128 else {"many rows, and a small float32 weight"}
    assert all_routes(meta(255), meta(m, 256), meta(255, 256).t()) == small
    assert all_routes(meta(256), meta(m, 256), meta(256, 256).t()) == {""}
    half = [t.half() for t in (meta(16), meta(m, 32), meta(16, 32))]
    assert all_routes(half[0], half[1], half[2].t()) == {""}


def test_takes_few_rows_that_the_kernel_does_not() -> None:
    assert all_routes(bias_of(), meta(8, 30), meta(16, 30).t()) == {""}, "rows that are no whole vectors"
    assert all_routes(bias_of(), meta(32, 8).t(), meta(16, 32).t()) == {""}, "rows that are columns"
    with restored(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision):
        torch.set_float32_matmul_precision("high")
        assert all_routes(bias_of(), meta(8, 32), meta(16, 32).t()) == {""}, "TF32"


def test_takes_tensors_elsewhere() -> None:
    """With the CPU's the rule answers for a GPU, too, and asks no library about them."""
    assert route("addmm", torch.ones(16), torch.ones(65, 32), torch.ones(32, 16)) == ""


def declines() -> Iterator[tuple[str, Callable[[], set[str]]]]:
    x, weight = meta(65, 32), meta(16, 32).t()
    mm_out = meta(65, 16)
    yield "more than 64 rows", lambda: {route("mm", x, weight), route("mm.out", x, weight, out=mm_out)}
    bias = "many rows, and beta other than 1 or a bias that is no contiguous vector"
    for shape in [(), (1,), (1, 16), (65, 1), (65, 16)]:
        yield bias, lambda shape=shape: all_routes(meta(*shape), x, weight)
    yield bias, lambda: all_routes(meta(32)[::2], x, weight)
    yield bias, lambda: all_routes(meta(16), x, weight, beta=0)
    yield bias, lambda: all_routes(meta(16), x, weight, beta=0.5)
    yield "dimension of 1 that cuBLASLt does not take", lambda: all_routes(meta(1), x, meta(1, 32).t())
    yield "dimension of 1 that cuBLASLt does not take", lambda: all_routes(meta(16), meta(65, 1), meta(1, 16))
    neither = "many rows, and a matrix with neither rows nor columns contiguous"
    yield neither, lambda: all_routes(meta(16), meta(65, 64)[:, ::2], weight)
    yield neither, lambda: all_routes(meta(16), meta(1, 32).expand(65, 32), weight)
    yield neither, lambda: all_routes(meta(16), x, meta(16, 64)[:, ::2].t())
    out = "many rows, and out that is not contiguous"
    for made in (meta(65, 20)[:, :16], meta(16, 65).t()):
        yield out, lambda made=made: {route("addmm.out", meta(16), x, weight, out=made)}
    # With few rows the reason is the one of the kernel that is meant for them.
    yield (
        "mat1 whose rows are not contiguous",
        lambda: all_routes(meta(16), meta(32, 8).t(), meta(16, 32).t(), beta=0.5),
    )


DECLINES = list(declines())


@pytest.mark.parametrize("index", range(len(DECLINES)), ids=lambda i: f"{i}-{DECLINES[i][0][:40]}")
def test_declines(index: int) -> None:
    reason, call = DECLINES[index]
    assert call() == {reason}


def test_upstreams_switch_is_ours() -> None:
    code = (
        "import torch, aten_ext\n"
        "aten_ext.enable('addmm')\n"
        "m = lambda *sizes: torch.empty(sizes, device='meta')\n"
        "print(aten_ext.explain('addmm', m(16), m(65, 32), m(32, 16), key='CUDA').reason)\n"
    )
    for value, expected in [("1", "DISABLE_ADDMM_CUDA_LT is set"), ("0", "")]:
        done = processes.python("-c", code, env={**os.environ, "DISABLE_ADDMM_CUDA_LT": value})
        assert done.stdout.strip() == expected


# ---- on a GPU: the same bits ------------------------------------------------------------------------------


def same_bits(case: Linear, name: str, **kwargs: Any) -> None:
    """Ours ran, twice, and gave what upstream gives."""
    aten_ext.reset_counts()
    ours = [case.call(name, **kwargs) for _ in range(2)]
    counts = aten_ext.counts("CUDA")[name]
    assert (counts.ran, dict(counts.declined)) == (2, {})
    with aten_ext.disabled():
        theirs = case.call(name, **kwargs)
    assert (ours[0].shape, ours[0].stride(), ours[0].dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
    assert torch.equal(ours[0], theirs) and torch.equal(ours[1], theirs)


@contextmanager
def reductions(*allowed: bool) -> Iterator[None]:
    flags = torch._C._get_cublas_allow_fp16_reduced_precision_reduction()
    flags2 = torch._C._get_cublas_allow_bf16_reduced_precision_reduction()
    torch._C._set_cublas_allow_fp16_reduced_precision_reduction(*allowed)
    torch._C._set_cublas_allow_bf16_reduced_precision_reduction(*allowed)
    try:
        yield
    finally:
        torch._C._set_cublas_allow_fp16_reduced_precision_reduction(*flags)
        torch._C._set_cublas_allow_bf16_reduced_precision_reduction(*flags2)


SHAPES = [
    (65, 64, 64), (128, 3072, 768), (256, 1024, 1024), (100, 1003, 771), (65, 2, 2), (70, 5, 3),
    (1000, 64, 16384), (65, 32, 50257), (128, 50257, 64), (2048, 4096, 4096),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "use_gelu"), FUSED, ids=IDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES, ids=str)
def test_bits(m: int, n: int, k: int, dtype: torch.dtype, name: str, use_gelu: bool) -> None:
    for transposed in (True, False):
        for pad in (0, 1, 8):
            same_bits(Linear(m, n, k, dtype, transposed=transposed, pad=pad, use_gelu=use_gelu), name)
    same_bits(Linear(m, n, k, dtype, alpha=0.5, use_gelu=use_gelu), name)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "use_gelu"), FUSED, ids=IDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bits_of_misaligned_and_transposed_operands(dtype: torch.dtype, name: str, use_gelu: bool) -> None:
    case = Linear(200, 512, 1024, dtype, use_gelu=use_gelu)
    case.mat1 = case.mat1.t().contiguous().t()
    same_bits(case, name)
    for offset in (1, 2, 4, 8):
        case = Linear(200, 512, 1024, dtype, use_gelu=use_gelu)
        memory = torch.empty(200 * 1024 + 8, device="cuda", dtype=dtype)
        case.mat1 = memory[offset:][: 200 * 1024].view(200, 1024).copy_(case.mat1)
        case.bias = torch.empty(520, device="cuda", dtype=dtype)[offset:][:512].copy_(case.bias)
        same_bits(case, name)
    out = torch.empty(200 * 512 + 2, device="cuda", dtype=dtype)[2:].view(200, 512)
    aten_ext.reset_counts()
    case.call(f"{name}.out", out=out)
    assert aten_ext.counts("CUDA")[f"{name}.out"].ran == 1
    ours = out.clone()
    with aten_ext.disabled():
        case.call(f"{name}.out", out=out)
    assert torch.equal(ours, out)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "use_gelu"), FUSED, ids=IDS)
@pytest.mark.parametrize("m", [3, 200])
def test_bits_under_precision_flags(m: int, name: str, use_gelu: bool) -> None:
    """TF32, and 16 bits whose sums may not be split: with few rows, too, because the kernel declines them."""
    with restored(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision):
        torch.set_float32_matmul_precision("high")
        same_bits(Linear(m, 512, 4096, torch.float32, use_gelu=use_gelu), name)
    for dtype in HALF:
        with reductions(False, False):
            same_bits(Linear(m, 512, 4096, dtype, use_gelu=use_gelu), name)
        if m > 64:
            with reductions(False, True):
                same_bits(Linear(m, 512, 4096, dtype, use_gelu=use_gelu), name)


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n", "k"), [(128, 1000, 2048), (65, 64, 16384)])
def test_graph_capture(m: int, n: int, k: int) -> None:
    """The first call of its kind, so that the plan, too, is made under capture; the second may split K."""
    case = Linear(m, n, k, torch.bfloat16, use_gelu=True, pad=16)
    graph = torch.cuda.CUDAGraph()
    aten_ext.reset_counts()
    with torch.cuda.graph(graph):
        captured = case.call("_addmm_activation")
    assert aten_ext.counts("CUDA")["_addmm_activation"].ran == 1
    with aten_ext.disabled():
        expected = case.call("_addmm_activation")
    for _ in range(3):
        captured.zero_()
        graph.replay()
        assert torch.equal(captured, expected)


@pytest.mark.gpu
def test_streams() -> None:
    """Products that overlap do not share a workspace."""
    case = Linear(96, 64, 16384, torch.float32)
    with aten_ext.disabled():
        expected = case.call("addmm")
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    torch.cuda.synchronize()
    aten_ext.reset_counts()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(case.call("addmm"))
    torch.cuda.synchronize()
    assert aten_ext.counts("CUDA")["addmm"].ran == 80
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.gpu
def test_threads() -> None:
    """Each with plans and a handle of its own."""
    cases = [Linear(65 + i, 256, 512, torch.bfloat16) for i in range(4)]
    with aten_ext.disabled():
        expected = [case.call("addmm") for case in cases]
    wrong: list[int] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in [*range(4)] * 25:
                if not torch.equal(cases[i].call("addmm"), expected[i]):
                    wrong.append(i)

    torch.cuda.synchronize()
    aten_ext.reset_counts()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and aten_ext.counts("CUDA")["addmm"].ran == 400


@pytest.mark.gpu
def test_more_kinds_of_layers_than_plans() -> None:
    case = Linear(65 + 300, 64, 128, torch.bfloat16)
    mat1 = case.mat1
    for _ in range(2):
        for m in range(65, 365):
            case.mat1 = mat1[:m]
            same_bits(case, "addmm")


@pytest.mark.multigpu
def test_every_device() -> None:
    """A layer of the same kind on each GPU, whichever is current."""
    case = Linear(128, 256, 512, torch.bfloat16)
    expected = case.call("addmm")
    for device in range(torch.cuda.device_count()):
        operands = [t.to(f"cuda:{device}") for t in (case.bias, case.mat1)]
        weight = case.mat2.t().contiguous().to(f"cuda:{device}").t()
        aten_ext.reset_counts()
        result = torch.addmm(*operands, weight)
        assert aten_ext.counts("CUDA")["addmm"].ran == 1 and result.device.index == device
        assert torch.equal(result.cpu(), expected.cpu())


@pytest.mark.gpu
def test_autocast_and_training() -> None:
    """nn.Linear under autocast, forward and backward, has upstream's bits."""
    layer = torch.nn.Linear(512, 1024, device="cuda")
    x = torch.randn(4, 64, 512, device="cuda", requires_grad=True)

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
    assert aten_ext.counts("CUDA")["addmm"].ran == 1
    with aten_ext.disabled():
        theirs = step()
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
