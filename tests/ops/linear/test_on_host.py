"""The CUDA kernel of linear layers, run on the CPU: its tiles, its edges, its reductions.

Values are compared with float64; how far from it upstream's own CUDA result is, only a GPU can say
(test_cuda.py).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import processes
from device_on_host import library
from ops.linear.cases import WHOLE_MATRIX
from paths import TESTS

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# One either side of each tile height, of 16, 32 and 64 columns, of a stage of K (64, 128
# or 256 in fp32, twice that in 16 bits).
SHAPES = [
    (1, 1, 8), (1, 64, 64), (4, 31, 72), (5, 33, 128), (8, 63, 136), (9, 65, 120), (16, 96, 264),
    (17, 40, 64), (32, 65, 200), (33, 64, 72), (64, 72, 136), (63, 129, 64),
]  # fmt: skip
# So deep that blocks of a cluster share K: several tiles of columns, ragged ends.
DEEP = [(3, 70, 1544), (9, 31, 2056), (16, 64, 1024), (24, 72, 1096), (64, 64, 1032)]
# So wide that tiles have 64 columns, for each tile height.
WIDE = [(2, 8456, 16), (9, 8456, 16), (17, 8456, 16), (40, 8456, 16)]


def load() -> None:
    """The kernel for few rows and cuBLASLt's way, against a stand-in for cuBLASLt."""
    here = Path(__file__).parent
    names = ("choose.cpp", "few_rows_rule.cpp", "run.cpp", "few_rows.cu", "gemv.cu", "lt.cpp")
    files = [f"ops/linear/{name}" for name in names]
    files.append("core/capture.cpp")
    library.load("linear", *files, str(here / "few_rows_ops.cpp"), str(here / "lt_ops.cpp"))
    torch.ops.aten_ext_on_host_linear.pretend_table(200)


EPILOGUES = {"": 0, "relu": 1, "gelu": 2}


def few_rows(
    bias: torch.Tensor | None, mat1: torch.Tensor, mat2: torch.Tensor, act: str = "", **options: Any
) -> torch.Tensor:
    """The kernel for few rows, whether or not upstream would be faster."""
    result: torch.Tensor = torch.ops.aten_ext_on_host_linear.few_rows(
        bias, mat1, mat2, epilogue=EPILOGUES[act], **options
    )
    return result


def mm(mat1: torch.Tensor, mat2: torch.Tensor, **options: Any) -> torch.Tensor:
    return few_rows(None, mat1, mat2, **options)


@pytest.fixture(params=[(0, 0), (1, 0), (2, 7)], ids=["forward", "backward", "shuffled"])
def order(request: pytest.FixtureRequest) -> Iterator[None]:
    load()
    torch.ops.aten_ext_on_host_linear.set_order(*request.param)
    yield
    torch.ops.aten_ext_on_host_linear.set_order(0, 0)


def operands(
    shape: tuple[int, int, int], dtype: torch.dtype, transposed: bool, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """mat1 and mat2 whose rows lie 8 elements further apart than they are long, between NaN."""
    m, n, k = shape
    generator = torch.Generator().manual_seed(seed)

    def rows(count: int, length: int) -> torch.Tensor:
        memory = torch.full((count + 2, length + 8), torch.nan, dtype=dtype)
        view = memory[1 : count + 1, :length]
        view.copy_(torch.randn(count, length, generator=generator))
        return view

    return rows(m, k), rows(n, k).t() if transposed else rows(k, n)


def reference(
    bias: torch.Tensor | None, mat1: torch.Tensor, mat2: torch.Tensor, alpha: float, beta: float, act: str
) -> torch.Tensor:
    exact = alpha * (mat1.double() @ mat2.double())
    if bias is not None and beta != 0:
        exact = exact + beta * bias.double()
    if act == "relu":
        return exact.relu()
    return torch.nn.functional.gelu(exact, approximate="tanh") if act == "gelu" else exact


def assert_close(result: torch.Tensor, exact: torch.Tensor, k: int) -> None:
    """Within the rounding of the result and a few fp32 roundings of sums of so many terms of size 1."""
    assert torch.isfinite(result).all()
    rounding = {torch.float32: 0.0, torch.float16: 2**-11, torch.bfloat16: 2**-8}[result.dtype]
    torch.testing.assert_close(result.double(), exact, rtol=rounding + 1e-6, atol=4e-7 * k**0.5 + 1e-6)


def columns_for(n: int, transposed: bool) -> int:
    return n if transposed else -(-n // 8) * 8  # rows of [K, N] are multiples of 16 bytes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [True, False], ids=["weight", "row-major"])
@pytest.mark.parametrize("shape", SHAPES + DEEP, ids=str)
def test_mm(order: None, dtype: torch.dtype, transposed: bool, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    n = columns_for(n, transposed)
    mat1, mat2 = operands((m, n, k), dtype, transposed)
    result = mm(mat1, mat2)
    assert result.shape == (m, n) and result.is_contiguous() and result.dtype == dtype
    assert_close(result, reference(None, mat1, mat2, 1, 0, ""), k)
    assert torch.equal(result, mm(mat1, mat2)), "the same bits on every run"


# Rows that are no whole vectors: odd, even, as long as a stage of K and one longer, several blocks of a tile.
UNALIGNED = [
    (1, 1, 1), (1, 3, 2), (2, 33, 7), (4, 31, 129), (8, 34, 130), (9, 65, 255), (16, 33, 513), (17, 40, 66),
    (33, 35, 257), (64, 66, 98), (3, 70, 1543), (24, 72, 1030), (64, 33, 1025),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [True, False], ids=["weight", "row-major"])
@pytest.mark.parametrize("apart", [0, 1, 2, None], ids=str)
@pytest.mark.parametrize("shape", UNALIGNED, ids=str)
def test_rows_of_no_whole_vectors(
    dtype: torch.dtype, transposed: bool, apart: int | None, shape: tuple[int, int, int]
) -> None:
    """Rows of any length, so many elements further apart than they are long, from any address on, in NaN.

    None: each begins at a multiple of 16 bytes, and its last vector ends in NaN.
    """
    load()
    m, n, k = shape
    torch.ops.aten_ext_on_host_linear.set_order(2, m + n + k)
    generator = torch.Generator().manual_seed(m * n + k)

    def rows(count: int, length: int) -> torch.Tensor:
        step = length + apart if apart is not None else length // 8 * 8 + 8
        first = step + 1 - apart % 2 if apart is not None else step
        memory = torch.full(((count + 2) * step + 1,), torch.nan, dtype=dtype)
        view = memory[first:].as_strided((count, length), (step, 1))
        view.copy_(torch.randn(count, length, generator=generator))
        return view

    mat1 = rows(m, k)
    mat2 = rows(n, k).t() if transposed else rows(k, n)
    bias = torch.randn(n, generator=generator).to(dtype)
    result = few_rows(bias, mat1, mat2, "relu")
    assert_close(result, reference(bias, mat1, mat2, 1, 1, "relu"), k)
    assert torch.equal(result, few_rows(bias, mat1, mat2, "relu")), "the same bits on every run"


def test_nothing_beside_operands_is_touched() -> None:
    """Operands end, or begin, at a page that may not be touched: in a process of its own."""
    load()  # compiled here, not within the other process' time
    done = processes.python("-m", "ops.linear.guarded_calls", cwd=TESTS, timeout=300)
    assert done.stdout == "done\n", done.stderr[-2000:]


@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "no vectors"])
def test_out_of_any_alignment(vectors: bool) -> None:
    """Results are stored four at a time only where rows of ``out`` let them."""
    load()
    k = 136 if vectors else 137
    for dtype, first, step, n in itertools.product(DTYPES, (0, 1, 2, 4), (72, 73, 74), (64, 66)):
        mat1, mat2 = operands((33, n, k), dtype, transposed=True)
        memory = torch.full((35, step), 7.0, dtype=dtype).flatten()
        out = memory[step + first :].as_strided((33, n), (step, 1))
        few_rows(None, mat1, mat2, out=out)
        assert_close(out, reference(None, mat1, mat2, 1, 0, ""), k)
        out.fill_(7.0)
        assert (memory == 7.0).all(), "nothing beside it is written"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [True, False], ids=["weight", "row-major"])
@pytest.mark.parametrize("shape", WIDE, ids=str)
def test_wide_tiles(dtype: torch.dtype, transposed: bool, shape: tuple[int, int, int]) -> None:
    load()
    torch.ops.aten_ext_on_host_linear.set_order(2, 3)
    mat1, mat2 = operands(shape, dtype, transposed)
    result = mm(mat1, mat2)
    torch.ops.aten_ext_on_host_linear.set_order(0, 0)
    assert_close(result, reference(None, mat1, mat2, 1, 0, ""), shape[2])


BIASES: dict[str, Callable[[int, int], torch.Tensor]] = {
    "[]": lambda m, n: torch.tensor(0.5),
    "[1]": lambda m, n: torch.tensor([0.5]),
    "[n]": lambda m, n: torch.randn(n),
    "[n] strided": lambda m, n: torch.randn(3 * n)[1::3],
    "[1, n]": lambda m, n: torch.randn(1, n),
    "[m, 1]": lambda m, n: torch.randn(m, 1),
    "[m, n]": lambda m, n: torch.randn(m, n),
    "[m, n].t": lambda m, n: torch.randn(n, m).t(),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ["", "relu", "gelu"])
@pytest.mark.parametrize("form", BIASES)
@pytest.mark.parametrize("shape", [(9, 35, 136), (24, 40, 1096)], ids=str)
def test_bias_forms(dtype: torch.dtype, act: str, form: str, shape: tuple[int, int, int]) -> None:
    """In one block and in a cluster, whose blocks finish different rows."""
    load()
    m, n, k = shape
    mat1, mat2 = operands((m, n, k), dtype, True)
    bias = BIASES[form](m, n).to(dtype)
    options: dict[str, Any] = {"alpha": 0.75, "beta": -2}
    if dtype != torch.float32 and bias.shape == (m, n):
        with pytest.raises(RuntimeError, match=WHOLE_MATRIX):
            few_rows(bias, mat1, mat2, act, **options)
        return
    result = few_rows(bias, mat1, mat2, act, **options)
    assert_close(result, reference(bias, mat1, mat2, 0.75, -2, act), k)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 33, 128), DEEP[0]], ids=str)
def test_out(order: None, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    """Nothing is written outside of what is out's, whose rows may be further apart than they are long."""
    m, n, k = shape
    mat1, mat2 = operands(shape, dtype, True)
    bias = torch.randn(n).to(dtype)
    memory = torch.full((m + 2, n + 3), 7.0, dtype=dtype)
    out = memory[1:-1, 1:-2]
    for call, exact in [
        (
            lambda: torch.ops.aten_ext_on_host.mm.out(mat1, mat2, out=out),
            reference(None, mat1, mat2, 1, 0, ""),
        ),
        (
            lambda: torch.ops.aten_ext_on_host.addmm.out(bias, mat1, mat2, out=out),
            reference(bias, mat1, mat2, 1, 1, ""),
        ),
        (
            lambda: torch.ops.aten_ext_on_host._addmm_activation.out(
                bias, mat1, mat2, use_gelu=True, out=out
            ),
            reference(bias, mat1, mat2, 1, 1, "gelu"),
        ),
    ]:
        out.fill_(torch.nan)
        assert call().data_ptr() == out.data_ptr()
        assert_close(out, exact, k)
        out.fill_(7.0)
        assert (memory == 7.0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_beta_zero_ignores_the_bias(dtype: torch.dtype) -> None:
    load()
    mat1, mat2 = operands((2, 16, 64), dtype, True)
    bias = torch.full((16,), torch.nan, dtype=dtype)
    result = torch.ops.aten_ext_on_host.addmm(bias, mat1, mat2, beta=0)
    assert torch.equal(result, mm(mat1, mat2))


@pytest.mark.parametrize("transposed", [True, False], ids=["weight", "row-major"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 40, 128), (17, 72, 1096)], ids=str)
def test_operands_that_are_not_finite(
    order: None, dtype: torch.dtype, shape: tuple[int, int, int], transposed: bool
) -> None:
    """They reach the results that they are part of, as what a sum of products makes of them, and no other."""
    mat1, mat2 = operands(shape, dtype, transposed)
    mat1[1, 3] = torch.inf
    mat1[2, 70], mat1[2, 71] = torch.inf, -torch.inf
    mat1[3, 100] = torch.nan
    mat2[9, 17] = -torch.inf
    mat2[3, 5] = 0.0  # times an infinity
    result = mm(mat1, mat2)
    exact = (mat1.double() @ mat2.double()).to(dtype)
    torch.testing.assert_close(
        result.isnan() * 2 + result.isinf() * result.sign().nan_to_num(),
        exact.isnan() * 2 + exact.isinf() * exact.sign().nan_to_num(),
    )
    finite = exact.isfinite()
    assert_close(result[finite], (mat1.double() @ mat2.double())[finite], shape[2])


def test_large_and_small_numbers() -> None:
    """fp32: sums whose parts are infinite in bf16 are not, and small numbers keep their bits."""
    load()
    largest = torch.finfo(torch.float32).max
    mat1 = torch.zeros(2, 64)
    mat1[0, 0], mat1[1, :4] = largest, 1e-30
    result = mm(mat1, torch.ones(16, 64).t())
    torch.testing.assert_close(result[:, 0], torch.tensor([largest, 4e-30]), rtol=1e-7, atol=0)
    assert (result == result[:, :1]).all()


@pytest.mark.parametrize("act", [False, True], ids=["relu", "gelu"])
def test_not_finite(act: bool) -> None:
    """NaN and infinities come out as PyTorch's own functions have them."""
    load()
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e30, -1e30, -100.0, 100.0])
    result = torch.ops.aten_ext_on_host._addmm_activation(
        values, torch.zeros(1, 8), torch.zeros(8, 8).t(), use_gelu=act
    )[0]
    expected = torch.nn.functional.gelu(values, approximate="tanh") if act else torch.relu(values)
    torch.testing.assert_close(result, expected, equal_nan=True)


def test_a_captured_launch_overlaps_with_its_own_kind() -> None:
    """Behind another kernel of a graph it would take longer; a stream does not show what came last."""
    load()
    control = torch.ops.aten_ext_on_host_linear

    def overlaps(*rows: int) -> list[bool]:
        """Of a layer for each number of rows, and so of tiles of any height."""
        control.overlaps()
        for m in rows:
            mm(torch.ones(m, 64), torch.ones(64, 16))
        return list(control.overlaps())

    assert overlaps(1, 9) == [True, True]
    try:
        control.capture(1)
        assert overlaps(1, 9, 1) == [False, True, True]
        control.capture(1, other_launches=1)
        assert overlaps(1, 1) == [False, True]
        control.capture(2, other_launches=6)  # as many as the other graph has
        assert overlaps(1, 1) == [False, True]
        control.capture(0)
        assert overlaps(1) == [True]
        control.capture(3)
        assert overlaps(1) == [False]
    finally:
        control.capture(0)


def test_what_came_before_in_a_graph() -> None:
    """Which of the two tables a call asks: that of graphs behind another kernel of one."""
    load()
    control = torch.ops.aten_ext_on_host_linear

    def layer() -> None:
        mm(torch.ones(1, 64), torch.ones(64, 16))

    assert not control.is_behind_another_kernel()
    try:
        control.capture(1)
        assert not control.is_behind_another_kernel(), "nothing came before"
        layer()
        assert not control.is_behind_another_kernel(), "one of its own kind did"
        control.capture(1, other_launches=2)
        assert control.is_behind_another_kernel()
        layer()
        assert not control.is_behind_another_kernel()
        control.capture(2, other_launches=3)  # as many as the other graph has
        assert control.is_behind_another_kernel()
        control.capture(0)
        assert not control.is_behind_another_kernel(), "a stream does not show it"
    finally:
        control.capture(0)


@pytest.mark.parametrize(("in_graphs", "handles"), [(90, 1), (200, 0)], ids=["small gain", "large gain"])
def test_cublas_is_set_up_where_a_graph_takes_it(in_graphs: int, handles: int) -> None:
    """Before a capture: in one it cannot be. Once for each thread, here a new one."""
    load()
    ops = torch.ops.aten_ext_on_host_linear
    before = ops.blas_handles()

    def layers() -> None:
        for _ in range(3):
            ops.mm_while_tf32_is_allowed(torch.ones(1, 64), torch.ones(384, 64).t())

    try:
        ops.pretend_table(200, in_graphs)
        thread = threading.Thread(target=layers)
        thread.start()
        thread.join()
    finally:
        ops.pretend_table(200)
    assert ops.blas_handles() == before + handles
