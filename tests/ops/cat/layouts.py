"""Inputs of ``cat`` that lie in memory in different ways, and which kernels the emulator ran for a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

import aten_ext
from gpus import ARCHITECTURES, Gpu, pretended
from ops.cat.reference import assert_same, kernels, upstream
from strategies import random_bits

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.int64, torch.complex128)
"""Elements of 1, 2, 4, 8 and 16 bytes."""


def launches_of(tensors: Sequence[torch.Tensor], dim: int, gpu: Gpu = ARCHITECTURES["sm_90"]) -> list[str]:
    """Checks the kernels' result against upstream's; returns which kernel each launch was of."""
    ops = torch.ops.aten_ext_on_host_cat
    assert aten_ext.explain("cat", tensors, dim, key="CUDA").route == "fused"
    theirs = upstream(lambda: torch.cat(tensors, dim))
    with pretended(gpu, ops.set_gpu):
        ops.launched()
        ours = torch.ops.aten_ext_on_host.cat(tensors, dim)
    assert_same(ours, theirs, any_nan=len({t.dtype for t in tensors}) > 1)
    return kernels(ops.launched())


def flat(numel: int, dtype: torch.dtype, seed: int, offset: int = 0) -> torch.Tensor:
    return random_bits(numel + offset, dtype, seed)[offset:]


def plain(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return flat(torch.Size(shape).numel(), dtype, seed).view(shape)


def shifted(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Contiguous, at an address that is a multiple of nothing but the element's size."""
    return flat(torch.Size(shape).numel(), dtype, seed, 1).view(shape)


def permuted(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return plain(shape[::-1], dtype, seed).permute(*range(len(shape) - 1, -1, -1))


def rotated(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return plain([*shape[1:], shape[0]], dtype, seed).movedim(-1, 0)


def narrowed(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return plain([*shape[:-1], shape[-1] + 4], dtype, seed).narrow(-1, 3, shape[-1])


def narrowed_outside(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return shifted([shape[0] + 3, *shape[1:]], dtype, seed).narrow(0, 2, shape[0])


def strided(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return plain([*shape[:-1], 2 * shape[-1]], dtype, seed)[..., ::2]


def every_third_row(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return plain([3 * shape[0], *shape[1:]], dtype, seed)[::3]


def expanded(*which: int) -> Callable[[Sequence[int], torch.dtype, int], torch.Tensor]:
    def make(shape: Sequence[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
        expanded = {d % len(shape) for d in which}
        small = [1 if d in expanded else n for d, n in enumerate(shape)]
        return shifted(small, dtype, seed).expand(*shape)

    return make


def transposed(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int, *, along: int = -2, apart: int = 0, offset: int = 0
) -> torch.Tensor:
    """Neighbours along one dimension lie side by side; between two such runs lie ``apart`` elements."""
    order = [d for d in range(len(shape)) if d != along % len(shape)] + [along % len(shape)]
    stored = [shape[d] for d in order]
    stored[-1] += apart
    memory = random_bits(math.prod(stored) + offset, dtype, seed)[offset:].view(stored)
    return memory[..., : shape[along]].permute([order.index(d) for d in range(len(shape))])


LAYOUTS: dict[str, Callable[[Sequence[int], torch.dtype, int], torch.Tensor]] = {
    "plain": plain,
    "shifted": shifted,
    "permuted": permuted,
    "rotated": rotated,
    "narrowed": narrowed,
    "narrowed outside": narrowed_outside,
    "strided": strided,
    "every third row": every_third_row,
    "expanded inside": expanded(-1),
    "expanded in the middle": expanded(1),
    "expanded outside": expanded(0),
    "expanded at both ends": expanded(0, -1),
    "one element": expanded(0, 1, -1),
}
