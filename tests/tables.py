"""Measured tables for tests: where rules are asked about everything but the figures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from aten_ext.tune import linear
from gpus import GPUS

NAME = "a GPU where every shape is ours"


@contextlib.contextmanager
def every_shape_is_ours() -> Iterator[None]:
    """Devices that are no GPU are taken for an sm_90 with a table that says so of the linear layers."""
    gpu = GPUS["sm_90"]
    for family in linear.TABLES:
        percent = torch.full(list(torch.ops.aten_ext.table_shape(family)), 255, dtype=torch.uint8)
        torch.ops.aten_ext.add_table(family, NAME, gpu.capability, gpu.multiprocessors, True, percent)
    torch.ops.aten_ext.pretend_gpu(gpu.facts, NAME)
    try:
        yield
    finally:
        torch.ops.aten_ext.pretend_gpu([])
        for family in linear.TABLES:
            torch.ops.aten_ext.remove_table(family, NAME, gpu.multiprocessors)


@contextlib.contextmanager
def every_call_is_ours_on_this_gpu(family: str) -> Iterator[None]:
    """A table of the CUDA device that is used says so of the family."""
    name, capability, multiprocessors = torch.ops.aten_ext.table_gpu(
        torch.device("cuda", torch.cuda.current_device())
    )
    families = linear.TABLES if family == "linear" else (family,)
    for each in families:
        percent = torch.full(list(torch.ops.aten_ext.table_shape(each)), 255, dtype=torch.uint8)
        torch.ops.aten_ext.add_table(each, name, capability, multiprocessors, True, percent)
    try:
        yield
    finally:
        for each in families:
            torch.ops.aten_ext.remove_table(each, name, multiprocessors)
