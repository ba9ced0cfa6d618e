"""Transposes by panels on a GPU: upstream's bits, by that kernel."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ops.cat.layouts import transposed
from ops.cat.reference import compare

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [(2, 2), (3, 1, 4), (5,) * 9, (16, 24)], ids=str)
@pytest.mark.parametrize("apart", [0, 3])
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "one after the other"])
def test_panels(joined: bool, apart: int, columns: tuple[int, ...], dtype: torch.dtype) -> None:
    """Of results that are large on any GPU, with inputs and rows at addresses of any kind."""
    widths = columns if joined else (columns[0],) * len(columns)
    rows = 40_000_003 // (sum(widths) * dtype.itemsize)
    made = [transposed((rows, n), dtype, i, apart=apart, offset=i) for i, n in enumerate(widths)]
    tensors = [_on_gpu(t) for t in made]
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        assert compare(tensors, 1 if joined else 0, "cuda") == ""
    assert any("cat_panels_kernel" in event.key for event in profiled.key_averages())


def _on_gpu(t: torch.Tensor) -> torch.Tensor:
    """With the strides and the offset that it has; ``cuda()`` keeps no offset, nor strides with gaps."""
    size = t.untyped_storage().nbytes() // t.dtype.itemsize
    whole = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage(), 0, (size,)).cuda()
    return whole.as_strided(t.shape, t.stride(), t.storage_offset())
