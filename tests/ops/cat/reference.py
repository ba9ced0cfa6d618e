"""What the tests of ``cat`` share: dtypes, inputs, the comparison with upstream, errors of upstream."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import aten_ext
from gpus import ARCHITECTURES
from strategies import random_bits

REAL = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
COMPLEX = (torch.complex64, torch.complex128)
CONVERTED = REAL + COMPLEX
"""Dtypes that are promoted where inputs differ."""
COPIED = (
    *CONVERTED,
    torch.complex32,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
    torch.float8_e5m2fnuz,
    torch.float8_e4m3fnuz,
)
"""Dtypes that are copied."""
KERNELS = (
    "ops/cat/cuda.cpp",
    *(
        f"ops/cat/{part}.cu"
        for part in ("runs", "words", "by_inputs", "convert", "transpose", "panels", "gather")
    ),
)
"""The sources of cat on CUDA."""
FEW_MULTIPROCESSORS = dataclasses.replace(ARCHITECTURES["sm_90"], multiprocessors=1)
"""A GPU of which a small call has much for each multiprocessor."""
NO_SMALL_CALLS = dataclasses.replace(ARCHITECTURES["sm_90"], multiprocessors=0)
"""A GPU on which every call is made by the kernels of large ones."""
NO_L2 = dataclasses.replace(NO_SMALL_CALLS, l2_bytes=0, code=75)
"""And on which every result is too large for the L2, and none is made by panels, which want newer code."""
FEW = 63
MANY = 64
"""Inputs that are few to the policy on CPU, and as many as it takes."""


def bits(t: torch.Tensor) -> torch.Tensor:
    """The bytes of ``t``'s elements, in the order of their indices."""
    flat = t.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


def assert_same(ours: torch.Tensor, theirs: torch.Tensor, *, any_nan: bool = False) -> None:
    """The same tensor to the last bit, and laid out alike.

    With ``any_nan`` one NaN is as good as another: which a conversion makes of one is up to the processor.
    """
    for attribute in ("dtype", "shape", "device", "layout", "requires_grad"):
        assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    assert ours.stride() == theirs.stride()
    assert ours.storage_offset() == theirs.storage_offset()
    if any_nan and (ours.dtype.is_floating_point or ours.dtype.is_complex):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
        ours, theirs = ours.nan_to_num(0.0), theirs.nan_to_num(0.0)  # and the zeros' signs
    assert torch.equal(bits(ours), bits(theirs))


def upstream(call: Callable[[], Any]) -> Any:
    """The result of ``call`` with every override off, or its error as (type, text)."""
    with aten_ext.disabled():
        return outcome(call)


def outcome(call: Callable[[], Any]) -> Any:
    """The result of ``call``, or its error as (type, text)."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def compare(tensors: Sequence[torch.Tensor], dim: int, device: str) -> str:
    """Call ``cat`` both ways, compare, check that the route is the one explained.

    Returns:
        The reason why upstream ran, or "".
    """
    theirs = upstream(lambda: torch.cat(tensors, dim))
    explained = aten_ext.explain("cat", tensors, dim)
    aten_ext.reset_counts()
    ours = outcome(lambda: torch.cat(tensors, dim))
    counts = aten_ext.counts(device.upper())["cat"]
    if explained.route == "fused":
        assert (counts.ran, dict(counts.declined)) == (1, {}), explained
    else:
        assert (counts.ran, dict(counts.declined)) == (0, {explained.reason: 1}), explained
    if isinstance(theirs, tuple):
        assert ours == theirs and explained.route == "upstream"
    else:
        assert_same(ours, theirs)
    return explained.reason


def ones(n: int, *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[torch.Tensor]:
    """``n`` tensors of one shape that differ."""
    values = random_bits(n * math.prod(shape), dtype, 0).to(device)
    return list(values.view(n, *shape).unbind())


def assert_ran(device: str, name: str = "cat", calls: int = 1) -> None:
    """Ours ran so often, and nothing went upstream."""
    counts = aten_ext.counts(device.upper())[name]
    assert (counts.ran, dict(counts.declined)) == (calls, {})


def kernels(launched: Sequence[str]) -> list[str]:
    """Which of the kernels each launch on the emulator was of, by the types of its arguments."""
    spelled = {
        f"{name}Arguments": name.lower() for name in ("Gather", "Transpose", "Panel", "Runs", "Convert")
    }
    spelled |= {
        "InputArguments": "inputs",
        "UnevenArguments": "uneven",
        "FewRuns": "words",
        "ManyRuns": "words",
    }
    found = [[kernel for text, kernel in spelled.items() if text in arguments] for arguments in launched]
    assert all(len(kernel) == 1 for kernel in found), launched
    return [kernel[0] for kernel in found]
