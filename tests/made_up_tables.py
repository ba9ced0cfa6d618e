"""Measured tables of linear layers that a test makes up."""

from __future__ import annotations

import torch

from aten_ext import _measured_tables as tables


def shape() -> list[int]:
    return list(torch.ops.aten_ext.table_shape("linear"))


def register(
    gpu: tables.Gpu, percent: torch.Tensor, of_user: bool = True, in_graphs: torch.Tensor | None = None
) -> None:
    """``in_graphs``: of layers in graphs, if those are others."""
    both = {"linear": percent, "linear_in_graphs": percent if in_graphs is None else in_graphs}
    tables.register(tables.Table(gpu, "2.11.0", both), of_user=of_user)


def remove(gpu: str, multiprocessors: int) -> None:
    for family in ("linear", "linear_in_graphs"):
        torch.ops.aten_ext.remove_table(family, gpu, multiprocessors)


def all_of(percent: int) -> torch.Tensor:
    return torch.full(shape(), percent, dtype=torch.uint8)
