"""Measured tables of linear layers that a test makes up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

import aten_ext
from aten_ext import _measured_tables as tables
from aten_ext.tune import linear
from gpus import GPUS, Gpu

SLOWER = "shape that upstream multiplies faster"
MADE_UP = tables.Gpu("made-up 100", 90, 100)


def shape() -> list[int]:
    return list(torch.ops.aten_ext.table_shape("linear"))


def register(
    gpu: tables.Gpu,
    percent: torch.Tensor,
    of_user: bool = True,
    in_graphs: torch.Tensor | None = None,
    in_l2: torch.Tensor | None = None,
) -> None:
    """``in_graphs``: of layers in graphs, if those are others. ``in_l2``: 255 unless given."""
    made = {
        "linear": percent,
        "linear_in_graphs": percent if in_graphs is None else in_graphs,
        "linear_in_l2": all_of(255) if in_l2 is None else in_l2,
    }
    tables.register(tables.Table(gpu, "2.11.0", made), of_user=of_user)


def remove(gpu: str, multiprocessors: int) -> None:
    for family in linear.TABLES:
        torch.ops.aten_ext.remove_table(family, gpu, multiprocessors)


def all_of(percent: int) -> torch.Tensor:
    return torch.full(shape(), percent, dtype=torch.uint8)


def of_100() -> Gpu:
    """What ``MADE_UP`` is."""
    return replace(GPUS["sm_90"], multiprocessors=100, clusters=(100, 50, 25, 12, 6))


@contextlib.contextmanager
def pretending() -> Iterator[Callable[[Gpu, str], None]]:
    """Takes a GPU's facts and name from here on; what was registered of it is taken back."""
    named: list[tuple[str, int]] = []

    def take(gpu: Gpu, name: str) -> None:
        named.append((name, gpu.multiprocessors))
        torch.ops.aten_ext.pretend_gpu(gpu.facts, name)

    yield take
    torch.ops.aten_ext.pretend_gpu([])
    for name, multiprocessors in named:
        remove(name, multiprocessors)


def meta(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(sizes, device="meta", dtype=dtype)


def explain(m: int, n: int, k: int, dtype: torch.dtype = torch.bfloat16) -> aten_ext.Explanation:
    """Of a layer [m, k] by a weight [n, k]."""
    return aten_ext.explain("mm", meta(m, k, dtype=dtype), meta(n, k, dtype=dtype).t(), key="CUDA")
