"""How fast a call could be on this GPU: its bytes and FLOPs over what the hardware can do at most."""

from __future__ import annotations

import dataclasses

import torch

from aten_ext._cost import Cost

_FMA = {(7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128}
"""fp32 fused multiply-adds a clock and multiprocessor (CUDA C++ Programming Guide, arithmetic throughput)."""

_TENSOR_FLOPS = {(7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024, (9, 0): 4096}
"""Dense fp16 FLOPs a clock and multiprocessor of the tensor cores (NVIDIA's architecture white papers); bf16
the same from 8.0 on. 8.6 and 8.9: with fp16 accumulation; half of that with fp32."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a GPU can do at most.

    Attributes:
        name: the GPU.
        bytes_per_s: memory clock times bus width, two transfers a clock. A copy reaches about 90 % of it.
        flops_per_s: for a dtype's fastest dense arithmetic, or None where that is not known.
    """

    name: str
    bytes_per_s: float
    flops_per_s: float | None


def limits(dtype: str, device: torch.device) -> Limits:
    """Those of ``device`` from its properties. fp32 without tensor cores, that is without TF32."""
    properties = torch.cuda.get_device_properties(device)
    capability = (properties.major, properties.minor)
    clock = properties.clock_rate * 1e3 * properties.multi_processor_count
    per_clock: float | None = None
    if dtype in ("float16", "bfloat16"):
        per_clock = _TENSOR_FLOPS.get(capability)
    elif dtype == "float32" and capability in _FMA:
        per_clock = 2 * _FMA[capability]
    return Limits(
        properties.name,
        2 * properties.memory_clock_rate * 1e3 * properties.memory_bus_width / 8,
        None if per_clock is None else per_clock * clock,
    )


def roofline(cost: Cost, device: torch.device) -> tuple[float | None, str]:
    """The time in µs that ``cost`` takes at least on ``device``, and what sets it; None, and why not.

    The larger of bytes over memory bandwidth and FLOPs over arithmetic (Williams et al. 2009).
    """
    if device.type != "cuda":
        return None, f"no ceiling is known for {device.type.upper()}"
    if not torch.cuda.is_available():
        return None, "no GPU here"
    limit = limits(cost.dtype, device)
    if not limit.bytes_per_s:
        return None, f"the driver does not tell the memory clock of {limit.name}"
    memory = cost.bytes / limit.bytes_per_s
    arithmetic = cost.flops / limit.flops_per_s if limit.flops_per_s else 0.0
    if arithmetic > memory and limit.flops_per_s:
        return arithmetic * 1e6, f"{limit.flops_per_s / 1e12:,.1f} TFLOP/s of {limit.name}"
    unknown = " (arithmetic unknown)" if cost.flops and limit.flops_per_s is None else ""
    return memory * 1e6, f"{limit.bytes_per_s / 1e12:.3g} TB/s of {limit.name}{unknown}"
