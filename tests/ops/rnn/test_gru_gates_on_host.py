"""_thnn_fused_gru_cell with its CUDA kernel, run on the CPU: result and workspace against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.on_host_cases import DTYPES, load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("batch", "hidden", "offset"), [(1, 1, 0), (3, 7, 0), (2, 16, 0), (2, 16, 1), (5, 256, 0)]
)
def test_gates(ops: Any, dtype: torch.dtype, bias: bool, batch: int, hidden: int, offset: int) -> None:
    torch.manual_seed(0)

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(torch.Size(shape).numel() + offset).to(dtype)[offset:].view(shape)

    i, h, hx = new(batch, 3 * hidden), new(batch, 3 * hidden), new(batch, hidden)
    biases = [new(3 * hidden), new(3 * hidden)] if bias else [None, None]
    hy, workspace = torch.ops.aten_ext_on_host._thnn_fused_gru_cell(i, h, hx, *biases)
    b_i, b_h = (torch.zeros(3 * hidden).double() if b is None else b.double() for b in biases)
    ir, iz, i_n = (i.double() + b_i).chunk(3, 1)
    hr, hz, hn = (h.double() + b_h).chunk(3, 1)
    r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
    n = torch.tanh(i_n + r * hn)
    torch.testing.assert_close(hy.double(), n + z * (hx.double() - n), **_tolerance(dtype))
    torch.testing.assert_close(
        workspace.double(), torch.cat([r, z, n, hx.double(), hn], 1), **_tolerance(dtype)
    )


def _tolerance(dtype: torch.dtype) -> dict[str, float]:
    size = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    return {"rtol": size, "atol": size}
