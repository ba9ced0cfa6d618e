"""Measured tables for tests: where rules are asked about everything but the figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from gpus import GPUS

NAME = "a GPU where every shape is ours"


@contextlib.contextmanager
def every_shape_is_ours() -> Iterator[None]:
    """Devices that are no GPU are taken for an sm_90 with a table that says so of the linear layers."""
    gpu = GPUS["sm_90"]
    percent = torch.full(list(torch.ops.aten_ext.table_shape("linear")), 255, dtype=torch.uint8)
    torch.ops.aten_ext.add_table("linear", NAME, gpu.capability, gpu.multiprocessors, True, percent)
    torch.ops.aten_ext.pretend_gpu(gpu.facts, NAME)
    try:
        yield
    finally:
        torch.ops.aten_ext.pretend_gpu([])
        torch.ops.aten_ext.remove_table("linear", NAME, gpu.multiprocessors)
