"""What this machine can do at most, measured in the same run: bytes and floating-point operations a second.

A case cannot take less time than its bytes need at the rate of memory, nor less than its FLOPs need at the
rate of a large matrix product of its dtype (the roofline model, https://doi.org/10.1145/1498765.1498785). The
rates are those of PyTorch's own copy, in-place multiplication and ``torch.mm`` here and now, not of a data
sheet, and the best of several samples, as STREAM does it: a ceiling is what was reached once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aten_ext.bench import machine
from aten_ext.bench.result import spread

if TYPE_CHECKING:
    import torch

SECONDS = 0.4
"""Time for each of the four, in seconds."""
FEWEST_SAMPLES = 4
MOST_SAMPLES = 200
GEMM_SIZE = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of all three matrices: large enough for the full rate, quick enough for two cores."""
LEAST_BUFFER = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Bytes of one buffer of a stream, at least; more where the cache is large."""
CACHES = 4
"""The least size of a buffer, in last-level caches: what is left of it in the cache hardly counts then."""
GEMM_OF = {"float32": "float32", "bfloat16": "bfloat16", "float16": "bfloat16"}
"""Which matrix product is the ceiling of a dtype. Tensor cores take both 16-bit dtypes at one rate."""


@dataclass(frozen=True)
class Rate:
    """The best rate of one operation."""

    per_second: float
    """TB/s or TFLOP/s."""
    spread: float
    samples: int


@dataclass(frozen=True)
class Ceilings:
    """The rates of one device."""

    device: str
    buffer_bytes: int
    gemm_size: int
    float32_precision: str
    """``torch.get_float32_matmul_precision()``: "highest" means without TF32."""
    streams: Mapping[str, Rate] = field(default_factory=dict)
    """"copy" and "read_modify_write", TB/s: bytes read plus bytes written."""
    gemm: Mapping[str, Rate] = field(default_factory=dict)
    """By dtype, TFLOP/s."""

    @property
    def tb_per_s(self) -> float | None:
        """The rate of memory: the better of the two streams."""
        return max((rate.per_second for rate in self.streams.values()), default=None)

    def tflop_per_s(self, dtype: str) -> float | None:
        """The rate of arithmetic in ``dtype``, or None if it was not measured."""
        rate = self.gemm.get(GEMM_OF.get(dtype, ""))
        return rate.per_second if rate else None

    def share(self, dtype: str, moved: int, flops: int, microseconds: float) -> float | None:
        """The time that the roofline allows over ``microseconds``: 1 is as fast as this machine can be.

        More than 1 means that the operands came out of a cache. None where a rate that it takes is unknown.
        """
        memory, arithmetic = self.tb_per_s, self.tflop_per_s(dtype)
        if memory is None or (flops and arithmetic is None):
            return None
        least = max(moved / memory, flops / arithmetic if flops and arithmetic else 0.0) / 1e6
        return least / microseconds if least else None

    def as_json(self) -> dict[str, object]:
        """For the document of a run."""

        def entry(rate: Rate, unit: str) -> dict[str, object]:
            return {
                unit: float(f"{rate.per_second:.5g}"),
                "spread": float(f"{rate.spread:.5g}"),
                "samples": rate.samples,
            }

        return {
            "device": self.device,
            "buffer_bytes": self.buffer_bytes,
            "gemm_size": self.gemm_size,
            "float32_precision": self.float32_precision,
            "streams": {name: entry(rate, "tb_per_s") for name, rate in self.streams.items()},
            "gemm": {dtype: entry(rate, "tflop_per_s") for dtype, rate in self.gemm.items()},
        }


def measure(device: str, seconds: float = SECONDS) -> Ceilings:
    """Measure all of them on ``device``, about ``seconds`` each."""
    import torch

    buffer = buffer_bytes(device)
    size = GEMM_SIZE[device]
    with torch.no_grad():
        streams = {name: _best(*stream, device, seconds) for name, stream in _streams(buffer, device).items()}
        gemm = {
            dtype: _gemm(getattr(torch, dtype), size, device, seconds) for dtype in ("float32", "bfloat16")
        }
    return Ceilings(device, buffer, size, torch.get_float32_matmul_precision(), streams, gemm)


def buffer_bytes(device: str) -> int:
    """Several caches large, and no more than an eighth of the memory that is free."""
    wanted = max(CACHES * machine.cache_bytes(device), LEAST_BUFFER[device])
    free = machine.free_bytes(device)
    size = wanted if free is None else min(wanted, free // 8)
    return max(size // 4096, 1) * 4096


def _streams(size: int, device: str) -> dict[str, tuple[Callable[[], object], float]]:
    """The two ways through memory, each with the bytes that it moves."""
    import torch

    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return {
        "copy": (lambda: target.copy_(source), 2.0 * size),
        # By one, so that the numbers stay what they are however often it runs.
        "read_modify_write": (lambda: source.mul_(1.0), 2.0 * size),
    }


def _gemm(dtype: torch.dtype, size: int, device: str, seconds: float) -> Rate:
    import torch

    left, right = (torch.full((size, size), 0.01, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(left)
    return _best(lambda: torch.mm(left, right, out=out), 2.0 * size**3, device, seconds)


def _best(call: Callable[[], object], amount: float, device: str, seconds: float) -> Rate:
    """The rate of the fastest of several calls, ``amount`` bytes or FLOPs each."""
    once = _gpu_seconds if device == "cuda" else _cpu_seconds
    call()
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < FEWEST_SAMPLES or (
        len(samples) < MOST_SAMPLES and time.perf_counter() - start < seconds
    ):
        samples.append(once(call))
    return Rate(amount / min(samples) / 1e12, spread(samples), len(samples))


def _cpu_seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _gpu_seconds(call: Callable[[], object]) -> float:
    """By events; a call that is not timed goes first: the GPU is busy while the timed one is queued."""
    import torch

    event_type: Any = torch.cuda.Event  # torch leaves its constructor without types
    before, after = event_type(enable_timing=True), event_type(enable_timing=True)
    call()
    before.record()
    call()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3
