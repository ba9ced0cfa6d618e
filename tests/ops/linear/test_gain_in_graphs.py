"""Layers that gain less beside a graph's other kernels than the table's graphs of layers alone say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

import aten_ext
import processes
from aten_ext import _measured_tables as tables
from gpus import GPUS, pretended_capture
from made_up_tables import all_of, register
from paths import TESTS

MADE_UP = tables.Gpu("made-up 132", 90, 132)
REASON = "too small a gain beside a graph's other kernels"

pytestmark = pytest.mark.skipif(
    "linear" not in torch.ops.aten_ext.table_families(), reason="built without the linear layers"
)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """A GPU with a table of its own."""
    torch.ops.aten_ext.pretend_gpu(GPUS["sm_90"].facts, MADE_UP.name)
    yield
    torch.ops.aten_ext.pretend_gpu([])
    torch.ops.aten_ext.remove_table("linear", MADE_UP.name, 132)


def explain(m: int, n: int, k: int, dtype: torch.dtype, captured: bool) -> aten_ext.Explanation:
    mat1, weight = (torch.empty(size, device="meta", dtype=dtype) for size in ((m, k), (n, k)))
    with pretended_capture(captured):
        return aten_ext.explain("mm", mat1, weight.t(), key="CUDA")


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "little", "enough"),
    [
        (1, 768, 768, torch.bfloat16, 130, 180),  # 1.5 to 2.3 us, of which 0.7 are asked
        (1, 4096, 4096, torch.bfloat16, 107, 111),  # 10 us
        (12, 768, 768, torch.float16, 130, 180),
        (32, 1024, 1024, torch.bfloat16, 120, 160),
        (64, 1024, 1024, torch.bfloat16, 120, 160),
        (1, 384, 64, torch.float32, 130, 180),
    ],
)
def test_a_small_gain_is_none_in_a_graph(
    m: int, n: int, k: int, dtype: torch.dtype, little: int, enough: int
) -> None:
    register(MADE_UP, all_of(little))
    assert explain(m, n, k, dtype, captured=False).route == "fused"
    assert explain(m, n, k, dtype, captured=True).reason == REASON
    register(MADE_UP, all_of(enough))
    assert explain(m, n, k, dtype, captured=True).route == "fused"


@pytest.mark.parametrize("m", [16, 32, 64])
def test_many_rows_of_fp32_gain_enough(m: int) -> None:
    """Upstream's kernels of many rows in fp32 are that much slower."""
    register(MADE_UP, all_of(130))
    assert explain(m, 384, 64, torch.float32, captured=True).route == "fused"


@pytest.mark.gpu
@pytest.mark.parametrize("between", [False, True], ids=["alone", "with others between"])
def test_layers_of_several_tiles_in_a_graph(between: bool) -> None:
    """Launches that begin while the one before ends read what that wrote."""
    torch.ops.aten_ext.pretend_gpu([])
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = [1024, 3072, 768, 2304, 512, 1024]
    weights = [
        torch.randn(n, k, device="cuda", dtype=torch.bfloat16, generator=generator) / k**0.5
        for k, n in itertools.pairwise(sizes)
    ]
    x = torch.randn(4, sizes[0], device="cuda", dtype=torch.bfloat16, generator=generator)

    def program() -> torch.Tensor:
        y = x
        for _ in range(3):
            for weight in weights:
                y = torch.mm(y, weight.t())
                y = y.neg() if between else y
        return y

    aten_ext.reset_counts()
    expected = program()
    assert aten_ext.counts("CUDA")["mm"].ran > 10
    graph = torch.cuda.CUDAGraph()
    aten_ext.reset_counts()
    with torch.cuda.graph(graph):
        result = program()
    assert aten_ext.counts("CUDA")["mm"].ran > 10
    for _ in range(20):
        result.zero_()
        graph.replay()
        torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)


CAPTURE = """
import torch
import aten_ext

layers = [torch.ones(n, k, device="cuda") for k, n in ((64, 384), (384, 64), (64, 640))]

def program(x):
    for layer in layers:
        x = torch.mm(x, layer.t())
    return x

x = torch.ones(1, 64, device="cuda")
expected = program(x)
assert aten_ext.counts("CUDA")["mm"].ran == 3
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = program(x)
graph.replay()
assert torch.allclose(result, expected)
print("captured")
"""


@pytest.mark.gpu
def test_a_program_of_small_layers_can_be_captured() -> None:
    """Nothing but such layers ran before, so that nothing else has set up cuBLAS."""
    done = processes.python("-c", CAPTURE, cwd=TESTS)
    assert done.stdout == "captured\n", done.stderr
