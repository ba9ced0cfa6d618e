"""Measured tables of linear layers that a test makes up."""

from __future__ import annotations

import torch

from aten_ext import _measured_tables as tables


def shape() -> list[int]:
    return list(torch.ops.aten_ext.table_shape("linear"))


def register(gpu: tables.Gpu, percent: torch.Tensor, of_user: bool = True) -> None:
    tables.register(tables.Table(gpu, "2.11.0", {"linear": percent}), of_user=of_user)


def all_of(percent: int) -> torch.Tensor:
    return torch.full(shape(), percent, dtype=torch.uint8)
