"""gru_cell with its CUDA kernels, run on the CPU: few rows and many, in any order of threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.on_host_cases import DTYPES, ORDERS, TOLERANCE, load, order_of_threads

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.fixture(params=ORDERS.values(), ids=ORDERS)
def order(ops: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    with order_of_threads(*request.param):
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"),
    [
        *[(1, 1, 1), (2, 5, 7), (8, 32, 16), (5, 300, 64), (1, 40, 520)],
        # Groups of two elements and of one, four warps a unit and one; and of two only in one product.
        *[(1, 2, 6), (3, 18, 10), (1, 302, 66), (1, 301, 67), (4, 290, 34), (1, 303, 66), (1, 304, 67)],
    ],
)
def test_cell(
    ops: Any, order: None, dtype: torch.dtype, bias: bool, batch: int, inputs: int, hidden: int
) -> None:
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(inputs, hidden, bias=bias).to(dtype)
    x, h = torch.randn(batch, inputs).to(dtype), torch.randn(batch, hidden).to(dtype)
    with torch.no_grad():
        hy = torch.ops.aten_ext_on_host.gru_cell(x, h, *(p.detach() for p in cell.parameters()))
        exact = cell.double()(x.double(), h.double())
    assert hy.is_contiguous() and (hy.double() - exact).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"), [(2, 8, 8), (17, 40, 20), (40, 130, 33), (70, 300, 16)]
)
def test_cell_of_many_rows(
    ops: Any, order: None, dtype: torch.dtype, batch: int, inputs: int, hidden: int
) -> None:
    """Tensor cores: one block of 16 rows, several, and of 32."""
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(inputs, hidden).to(dtype)
    x, h = torch.randn(batch, inputs).to(dtype), torch.randn(batch, hidden).to(dtype)
    with torch.no_grad():
        hy = torch.ops.aten_ext_on_host.gru_cell(x, h, *(p.detach() for p in cell.parameters()))
        exact = cell.double()(x.double(), h.double())
    assert (hy.double() - exact).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [1, 3, 20])
@pytest.mark.parametrize("which", range(4), ids=["x", "h", "w_ih", "w_hh"])
def test_a_tensor_that_begins_between_two_vectors(
    ops: Any, dtype: torch.dtype, batch: int, which: int
) -> None:
    """One access for what lies across two would be an error: the emulator ends the process."""
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(64, 32).to(dtype).requires_grad_(False)
    tensors = [torch.randn(batch, 64).to(dtype), torch.randn(batch, 32).to(dtype), *cell.parameters()]
    for offset in (1, 2):
        moved = list(tensors)
        place = torch.empty(tensors[which].numel() + offset, dtype=dtype)[offset:]
        moved[which] = place.view(tensors[which].shape).copy_(tensors[which])
        hy = torch.ops.aten_ext_on_host.gru_cell(*moved)
        exact = torch.gru_cell(*(t.double() for t in tensors))
        assert (hy.double() - exact).abs().max() < TOLERANCE[dtype]


def test_cell_has_one_order_of_sums(ops: Any) -> None:
    """The same bits however the threads take turns, and for a row alone or among others."""
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(300, 64).requires_grad_(False)
    x, h = torch.randn(5, 300), torch.randn(5, 64)
    results = []
    for order in ((0, 0), (1, 0), (2, 3)):
        torch.ops.aten_ext_on_host_cudnn_rnn.set_order(*order)
        results.append(torch.ops.aten_ext_on_host.gru_cell(x, h, *cell.parameters()))
    torch.ops.aten_ext_on_host_cudnn_rnn.set_order(0, 0)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
