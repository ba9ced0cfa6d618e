"""Flags of PyTorch's matrix products are none of an RNN's: cuDNN has its own, and only those count.

But for one: cells stand for upstream's products by cuBLAS, which raise where split K is not allowed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings

import aten_ext
import flags
from device_on_host import library
from flags import changed
from ops.rnn.cases import DTYPES, FLOOR, GRU, RELU, assert_ran, documented, no_less_accurate, tf32_allowed
from ops.rnn.on_host_cases import load
from ops.rnn.test_plans import CELL_OF, cell, gates, layer

on_host = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


FLAGS = flags.OF_PRODUCTS
OF_A_GPU, NOT_WITHOUT_CUDNN = flags.OF_A_GPU, flags.NOT_WITHOUT_CUDNN


CALLS: list[tuple[str, tuple[Any, ...]]] = [
    ("_cudnn_rnn", layer(dtype, steps, batch, inputs, hidden, directions))
    for dtype, (steps, batch, inputs, hidden, directions) in itertools.product(
        DTYPES,
        [
            (1, 4, 256, 512, 1),  # a launch a step
            (1, 24, 256, 256, 1),
            (3, 2, 64, 64, 2),
            (32, 4, 256, 256, 1),
            (50, 32, 256, 512, 2),
            (50, 48, 1024, 512, 1),  # a large projection
            (64, 16, 1024, 1024, 1),
            (20, 1, 64, 2048, 1),
            (1000, 64, 512, 1024, 1),  # in chunks, in 16 bits
        ],
    )
]
OF_CELLS = CELL_OF | {RELU: "rnn_relu_cell"}
CALLS += [
    (op, cell(dtype, batch, 512, 512, mode))
    for mode, op in OF_CELLS.items()
    for dtype in DTYPES
    for batch in (1, 8, 64)
]
CALLS += [("_thnn_fused_gru_cell", gates(dtype, 32, 512)) for dtype in DTYPES]


NO_SPLIT = {
    "matmul.allow_fp16_reduced_precision_reduction, no split": torch.float16,
    "matmul.allow_bf16_reduced_precision_reduction, no split": torch.bfloat16,
}
"""The dtype in which upstream's cells raise."""
UPSTREAM_RAISES = documented("split K is not allowed")


def without_split(expected: list[Any], names: Iterable[str]) -> list[Any]:
    """The answers under these flags: ``expected``, but for cells of the dtypes without split K."""
    dtypes = set()
    for name in names:
        if name in NO_SPLIT:
            dtypes.add(NO_SPLIT[name])
        elif f"{name}, no split" in NO_SPLIT:  # the same setting, and the last to be set counts
            dtypes.discard(NO_SPLIT[f"{name}, no split"])
    found = []
    for (op, arguments), answer in zip(CALLS, expected, strict=True):
        override, reason, *_ = answer
        if op in OF_CELLS.values() and arguments[0].dtype in dtypes:
            assert not reason or reason == "one step of a large batch"
            answer = (override, UPSTREAM_RAISES, "", [])
        found.append(answer)
    return found


def answers() -> list[Any]:
    return [getattr(torch.ops.aten_ext, f"explain_CUDA_{op}")(*arguments) for op, arguments in CALLS]


@pytest.mark.parametrize("name", FLAGS | NOT_WITHOUT_CUDNN)
def test_a_flag_changes_no_plan(name: str) -> None:
    for allowed in (False, True):
        with tf32_allowed(allowed):
            expected = answers()
            assert sum(not reason for _, reason, *_ in expected) > len(expected) // 2
            with changed([name]):
                assert answers() == without_split(expected, [name])


def test_cudnns_flag_changes_plans() -> None:
    """The sweep would notice: this one is not ignored."""
    with tf32_allowed(False):
        without = answers()
    with tf32_allowed(True):
        assert answers() != without


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.sampled_from(sorted(FLAGS | NOT_WITHOUT_CUDNN)), unique=True), allowed=st.booleans())
@example(names=[*NO_SPLIT, "matmul.allow_fp16_reduced_precision_reduction"], allowed=False)
def test_flags_change_no_plan(names: list[str], allowed: bool) -> None:
    with tf32_allowed(allowed):
        expected = answers()
        with changed(names):
            assert answers() == without_split(expected, names)


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


def call_layer(dtype: torch.dtype, steps: int, batch: int, hidden: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    gru = torch.nn.GRU(8, hidden).to(dtype).requires_grad_(False)
    x, h = torch.randn(steps, batch, 8).to(dtype), torch.randn(1, batch, hidden).to(dtype)
    options = (GRU, hidden, 0, 1, False, 0.0, False, False, [], None)
    results = torch.ops.aten_ext_on_host._cudnn_rnn(x, gru._flat_weights, 4, None, h, None, *options)
    return list(results)


# Steps, rows and hidden size: a block; TF32 where cuDNN has it; a launch a step, in TF32 too.
SIZES = [(6, 3, 40), (6, 20, 196), (2, 2, 24), (1, 24, 136)]


def call_all(ops: Any) -> dict[Any, Any]:
    """Bits, and which compute type cuBLASLt was told, of layers and cells; or why they are upstream's."""
    results: dict[Any, Any] = {}
    for dtype, size in itertools.product(DTYPES, SIZES):
        ops.lt()
        try:
            result = call_layer(dtype, *size)
        except RuntimeError as error:
            assert str(error).startswith("declined: one step of a large batch"), error
            results["layer", dtype, size] = None
            continue
        _, products, tf32, *_ = ops.lt()
        results["layer", dtype, size] = [*result, products, tf32 if products else None]
    for dtype in DTYPES:
        torch.manual_seed(0)
        of_cell = torch.nn.GRUCell(40, 24).to(dtype).requires_grad_(False)
        x, h = torch.randn(3, 40).to(dtype), torch.randn(3, 24).to(dtype)
        try:
            result = [torch.ops.aten_ext_on_host.gru_cell(x, h, *of_cell.parameters())]
        except RuntimeError as error:
            result = str(error).splitlines()[0]
        results["cell", dtype] = result
    return results


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.fixture(scope="module")
def without_flags(ops: Any) -> Callable[[bool], dict[Any, Any]]:
    """What `call_all` says, in TF32 where that is allowed."""

    @functools.cache
    def results(allowed: bool) -> dict[Any, Any]:
        with tf32_allowed(allowed):
            found = call_all(ops)
        assert not any(isinstance(result, str) for result in found.values())
        return found

    return lambda allowed: dict(results(allowed))


@pytest.mark.long
@on_host
@pytest.mark.parametrize("allowed", [False, True], ids=["fp32", "tf32"])
@pytest.mark.parametrize("name", FLAGS | NOT_WITHOUT_CUDNN)
def test_a_flag_changes_no_bit(ops: Any, without_flags: Any, name: str, allowed: bool) -> None:
    with tf32_allowed(allowed):
        expected = without_flags(allowed)
        if name in NO_SPLIT:
            expected["cell", NO_SPLIT[name]] = f"declined: {UPSTREAM_RAISES}"
        with changed([name]):
            for call, result in call_all(ops).items():
                assert same(result, expected[call]), call


@on_host
@pytest.mark.parametrize("matmul", [False, True], ids=["matmul in fp32", "matmul in TF32"])
@pytest.mark.parametrize("allowed", [False, True], ids=["cuDNN in fp32", "cuDNN in TF32"])
def test_compute_type_is_cudnns(ops: Any, matmul: bool, allowed: bool) -> None:
    """A projection that upstream would do in TF32, where cuDNN may; never in 16 bits."""
    with tf32_allowed(allowed), changed(["set_float32_matmul_precision high"] if matmul else []):
        for dtype in DTYPES:
            ops.lt()
            call_layer(dtype, 7, 20, 196)
            _, products, tf32, *_ = ops.lt()
            assert (products, tf32) == (1, int(allowed and dtype == torch.float32)), dtype


def compare_on_gpu(dtype: torch.dtype, names: Iterable[str], bidirectional: bool = False) -> None:
    """A layer in a GPU's recurrence: it runs, and is no further from float64 than upstream's."""
    torch.manual_seed(0)
    gru = torch.nn.GRU(256, 256, bidirectional=bidirectional).to("cuda", dtype).eval()
    x = torch.randn(32, 4, 256, device="cuda").to(dtype)
    with torch.no_grad():
        with changed(names):
            with aten_ext.disabled():
                theirs = gru(x)
            aten_ext.reset_counts()
            ours = gru(x)
            assert_ran("_cudnn_rnn")
        exact = gru.double()(x.double())
    for mine, upstreams, truth in zip(ours, theirs, exact, strict=True):
        no_less_accurate(mine, upstreams, truth, FLOOR[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("allowed", [False, True], ids=["fp32", "tf32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FLAGS | OF_A_GPU)
def test_a_flag_changes_no_value_on_a_gpu(name: str, dtype: torch.dtype, allowed: bool) -> None:
    with tf32_allowed(allowed):
        for bidirectional in (False, True):
            compare_on_gpu(dtype, [name], bidirectional)


@pytest.mark.gpu
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    names=st.sets(st.sampled_from(sorted(FLAGS | OF_A_GPU))),
    allowed=st.booleans(),
)
def test_flags_change_no_value_on_a_gpu(dtype: torch.dtype, names: set[str], allowed: bool) -> None:
    with tf32_allowed(allowed):
        compare_on_gpu(dtype, names)
