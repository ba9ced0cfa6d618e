"""Plans of linear layers on every GPU: what is chosen would launch, and gives the right result.

The rules answer for a GPU that is pretended (gpus.py); a sample runs on the emulator, which is made the same
GPU.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
import torch

import aten_ext
from device_on_host import library
from gpus import GPUS, Gpu, lacks, pretended
from ops.linear.cases import meta
from ops.linear.test_on_host import assert_close, load, mm, operands, reference

on_host = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

ROWS = [1, 8, 9, 16, 17, 32, 33, 64]
COLUMNS_AND_DEPTHS = [
    (8, 8), (64, 64), (768, 3072), (3072, 768), (1024, 3072), (64, 16384), (4096, 4096), (11008, 4096),
    (50256, 768), (32768, 32768), (2**20, 8), (8, 2**20),
]  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]
OLD = "GPU, or code built for it, too old for the kernel"
LITTLE_SMEM = "GPU with too little shared memory for the kernel"
SLOWER = "shape that upstream multiplies faster"
SMALL = {name: gpu for name, gpu in GPUS.items() if "multiprocessors" in name or name in ("sm_90", "sm_120")}


def answers(gpu: Gpu) -> Iterator[tuple[str, tuple[str, str, list[int]]]]:
    """Of a grid of layers: the reason to go upstream or "", the plan in words, and what it needs."""
    explain_mm, explain_addmm = torch.ops.aten_ext.explain_CUDA_mm, torch.ops.aten_ext.explain_CUDA_addmm
    with pretended(gpu):
        for m, (n, k), dtype, transposed in itertools.product(
            ROWS, COLUMNS_AND_DEPTHS, DTYPES, (True, False)
        ):
            mat1 = meta(m, k, dtype=dtype)
            mat2 = meta(n, k, dtype=dtype).t() if transposed else meta(k, n, dtype=dtype)
            name = f"{dtype} {m} x {k} x {n} {'weight' if transposed else 'row-major'}"
            yield name, explain_mm(mat1, mat2)[1:]
            yield name + ", bias", explain_addmm(meta(n, dtype=dtype), mat1, mat2)[1:]


@pytest.mark.parametrize("name", GPUS)
def test_what_is_chosen_would_launch(name: str) -> None:
    gpu = GPUS[name]
    chosen = 0
    for what, (reason, plan, needs) in answers(gpu):
        if reason:
            assert reason in ({OLD} if gpu.code < 90 else {LITTLE_SMEM, SLOWER}), what
            assert reason != LITTLE_SMEM or gpu.shared_bytes < 113 << 10, what
            continue
        chosen += 1
        assert lacks(gpu, needs) is None, f"{what}: {plan}"
    assert (chosen > 0) == (gpu.code >= 90)


@on_host
@pytest.mark.parametrize("name", [name for name, gpu in SMALL.items() if gpu.code >= 90])
def test_right_there(name: str) -> None:
    load()
    with pretended(GPUS[name], torch.ops.aten_ext_on_host_linear.set_gpu):
        for (m, n, k), dtype in itertools.product([(3, 70, 1544), (16, 40, 2056), (9, 264, 136)], DTYPES):
            mat1, mat2 = operands((m, n, k), dtype, transposed=True)
            assert_close(mm(mat1, mat2), reference(None, mat1, mat2, 1, 0, ""), k)


@on_host
def test_tall_tiles_need_more_shared_memory_than_sm_120_has() -> None:
    load()
    mat1, mat2 = operands((64, 72, 136), torch.float32, transposed=True)
    with (
        pretended(GPUS["sm_120"], torch.ops.aten_ext_on_host_linear.set_gpu),
        pytest.raises(RuntimeError, match="too little shared memory"),
    ):
        mm(mat1, mat2)


@on_host
@pytest.mark.parametrize("form", ["mm", "out", "clusters"])
def test_refused_launch_writes_nothing(form: str) -> None:
    """The driver does not take the launch: the call is declined late, the next one runs."""
    load()
    ops = torch.ops.aten_ext_on_host_linear
    mat1, mat2 = operands((3, 70, 1544) if form == "clusters" else (5, 33, 128), torch.float32, True)
    out = torch.full((mat1.shape[0], mat2.shape[1]), 7.0)
    options = {"out": out} if form == "out" else {}
    ops.refuse(1)
    with pytest.raises(RuntimeError, match="declined late"):
        mm(mat1, mat2, **options)
    assert (out == 7.0).all()
    assert_close(mm(mat1, mat2, **options), reference(None, mat1, mat2, 1, 0, ""), mat1.shape[1])


@on_host
def test_a_flag_that_changes_after_the_decision() -> None:
    """TF32 would have been another plan, for which mm has no bias to read."""
    load()
    mat1, mat2 = operands((5, 33, 128), torch.float32, transposed=True)
    result = torch.ops.aten_ext_on_host_linear.mm_while_tf32_is_allowed(mat1, mat2)
    assert torch.equal(result, mm(mat1, mat2))
    assert not torch.backends.cuda.matmul.allow_tf32


@on_host
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_tiles_by_hand(dtype: torch.dtype, groups: int, splits: int) -> None:
    """Every shape of a tile and size of a cluster gives the right result, chosen or not."""
    load()
    mat1, mat2 = operands((11, 70, 2056), dtype, transposed=True)
    result = mm(mat1, mat2, tiles=[groups, splits, 0])
    assert_close(result, reference(None, mat1, mat2, 1, 0, ""), 2056)


def test_plans_that_are_kept_are_each_layer_s_own() -> None:
    """More layers than are kept, of which many have the same place, in another order the second time."""
    layers = [
        (m, n, k, dtype, transposed)
        for m, (n, k), dtype, transposed in itertools.product(
            (1, 16, 33), [(3072, 768), (768, 3072), (2048, 1792), (1792, 2048)], DTYPES, (True, False)
        )
    ] * 2

    def plan(m: int, n: int, k: int, dtype: torch.dtype, transposed: bool) -> str:
        weight = meta(n, k, dtype=dtype).t() if transposed else meta(k, n, dtype=dtype)
        return aten_ext.explain("mm", meta(m, k, dtype=dtype), weight, key="CUDA").plan or ""

    with pretended(GPUS["sm_90"]):
        first = {layer: plan(*layer) for layer in layers}
        with pretended(GPUS["sm_90 with 16 multiprocessors"]):
            small = {layer: plan(*layer) for layer in layers}
    assert len(set(first.values())) > 8 and small != first
    with pretended(GPUS["sm_90"]):
        assert {layer: plan(*layer) for layer in reversed(layers)} == first


def test_the_plan_in_words() -> None:
    """What ``explain`` says: tiles, block or blocks of a tile, how many at a time, whose figures chose."""
    tiles = r"few rows: tiles of (\d+) x (\d+), (\d+) (blocks?) a tile(, one a multiprocessor)?; (.+)"
    said = set()
    for m, n, k in [(5, 64, 64), (7, 512, 2048), (32, 512, 512), (48, 512, 512)]:
        answer = aten_ext.explain("mm", meta(m, k), meta(n, k).t(), key="CUDA")
        found = re.fullmatch(tiles, answer.plan)
        assert found is not None, answer.plan
        rows, columns, blocks, word, alone, figures = found.groups()
        assert int(rows) >= m and int(columns) > 0 and (word == "block") == (blocks == "1")
        assert (alone is not None) == (rows == "64"), "fp32 with 64 rows takes all shared memory"
        assert figures
        said.add(word)
    assert said == {"block", "blocks"}
    for m, n, k, words in [(1, 64, 16384, "1 column in 16 warps"), (3, 1536, 64, "2 columns in 1 warp")]:
        answer = aten_ext.explain("mm", meta(m, k), meta(n, k).t(), key="CUDA")
        assert re.fullmatch(rf"few rows: dot products, {words}; .+", answer.plan), answer.plan
    many_rows = [meta(*shape, dtype=torch.bfloat16) for shape in ((64,), (128, 64), (64, 64))]
    many = aten_ext.explain("addmm", *many_rows[:2], many_rows[2].t(), key="CUDA")
    assert many.plan == "cuBLASLt with an algorithm that is remembered"
