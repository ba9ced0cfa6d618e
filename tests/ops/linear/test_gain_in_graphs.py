"""Layers in a graph, whose launches do not overlap with those of other kernels: a table of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

import aten_ext
import processes
from aten_ext import _measured_tables as tables
from gpus import GPUS, pretended_capture
from made_up_tables import all_of, register, remove
from paths import TESTS

MADE_UP = tables.Gpu("made-up 132", 90, 132)
REASON = "too small a gain between a graph's other kernels"

pytestmark = pytest.mark.skipif(
    "linear" not in torch.ops.aten_ext.table_families(), reason="built without the linear layers"
)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    """A GPU with a table of its own."""
    torch.ops.aten_ext.pretend_gpu(GPUS["sm_90"].facts, MADE_UP.name)
    yield
    torch.ops.aten_ext.pretend_gpu([])
    remove(MADE_UP.name, 132)


def explain(m: int, n: int, k: int, dtype: torch.dtype, captured: bool) -> aten_ext.Explanation:
    mat1, weight = (torch.empty(size, device="meta", dtype=dtype) for size in ((m, k), (n, k)))
    with pretended_capture(captured):
        return aten_ext.explain("mm", mat1, weight.t(), key="CUDA")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("m", "k"), [(1, 768), (5, 768), (16, 1024), (33, 1024)])
def test_each_table_speaks_for_its_calls(m: int, k: int, dtype: torch.dtype) -> None:
    register(MADE_UP, all_of(200), in_graphs=all_of(90))
    assert explain(m, 768, k, dtype, captured=False).route == "fused"
    assert explain(m, 768, k, dtype, captured=True).reason == REASON
    register(MADE_UP, all_of(90), in_graphs=all_of(200))
    assert explain(m, 768, k, dtype, captured=False).reason == "shape that upstream multiplies faster"
    assert explain(m, 768, k, dtype, captured=True).route == "fused"
    register(MADE_UP, all_of(90))
    assert explain(m, 768, k, dtype, captured=True).reason == "shape that upstream multiplies faster"


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "asked"),
    [
        (4, 768, 768, torch.bfloat16, 104),  # a cell
        (5, 768, 768, torch.bfloat16, 104),  # a weight of whole lines
        (33, 1024, 1024, torch.bfloat16, 115),
        (5, 768, 776, torch.bfloat16, 122),  # rows of half sectors
        (5, 1000, 775, torch.bfloat16, 116),  # rows that are no whole vectors
        (5, 1000, 772, torch.bfloat16, 122),  # of whole eight bytes
        (33, 512, 1000, torch.float32, 112),
        (5, 770, 66, torch.float32, 106),
        (33, 200, 264, torch.bfloat16, 116),  # a weight that is there as soon as the launch is
        (16, 200, 264, torch.bfloat16, 106),
        (17, 200, 264, torch.bfloat16, 106),
        (5, 300_000, 768, torch.bfloat16, 200),  # beyond the table
    ],
)
def test_what_a_layer_in_a_graph_asks_for(m: int, n: int, k: int, dtype: torch.dtype, asked: int) -> None:
    register(MADE_UP, all_of(255), in_graphs=all_of(asked - 1))
    assert explain(m, n, k, dtype, captured=True).reason == REASON
    register(MADE_UP, all_of(255), in_graphs=all_of(asked))
    assert explain(m, n, k, dtype, captured=True).route == "fused"


@pytest.mark.parametrize(
    ("m", "dtype", "stride", "asked"),
    [
        (10, torch.bfloat16, 1024 + 8, 135),  # as outside, and not 124
        (20, torch.bfloat16, 1024 + 8, 150),
        (20, torch.bfloat16, 1024 + 16, 112),  # rows of whole sectors
        (10, torch.float32, 1024 + 4, 110),
    ],
)
def test_what_a_part_of_a_wider_matrix_asks_for(m: int, dtype: torch.dtype, stride: int, asked: int) -> None:
    mat1 = torch.empty_strided((m, 1024), (stride, 1), device="meta", dtype=dtype)
    weight = torch.empty(1000, 1024, device="meta", dtype=dtype)
    for percent, route in ((asked - 1, "upstream"), (asked, "fused")):
        register(MADE_UP, all_of(90), in_graphs=all_of(percent))
        with pretended_capture(True):
            assert aten_ext.explain("mm", mat1, weight.t(), key="CUDA").route == route


@pytest.mark.gpu
def test_what_comes_before_a_layer_in_a_graph_counts() -> None:
    """Behind one of ours a launch overlaps, and behind nothing it may; behind another kernel it does not."""
    torch.ops.aten_ext.pretend_gpu([])
    name, capability, multiprocessors = torch.ops.aten_ext.table_gpu(torch.device("cuda", 0))
    weight = torch.randn(768, 768, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(4, 768, device="cuda", dtype=torch.bfloat16)

    def ran(program: Callable[[torch.Tensor], object]) -> int:
        program(x)
        graph = torch.cuda.CUDAGraph()
        aten_ext.reset_counts()
        with torch.cuda.graph(graph):
            program(x)
        return aten_ext.counts("CUDA")["mm"].ran

    def layers(y: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            y = torch.mm(y, weight.t())
        return y

    def between(y: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            y = torch.mm(y.neg(), weight.t())
        return y

    gpu = tables.Gpu(name, capability, multiprocessors)
    try:
        register(gpu, all_of(200), in_graphs=all_of(90))
        assert ran(layers) == 3
        assert ran(between) == 0
        assert ran(lambda y: layers(y.neg())) == 0
        register(gpu, all_of(90), in_graphs=all_of(200))
        assert ran(between) == 3
        assert ran(layers) == 1, "the second, behind upstream's first"
    finally:
        remove(name, multiprocessors)


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

layers = [torch.ones(n, k, device="cuda") for k, n in ((128, 384), (384, 128), (128, 512))]

def program(x):
    for layer in layers:
        x = torch.mm(x, layer.t())
    return x

x = torch.ones(2, 128, device="cuda")
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
