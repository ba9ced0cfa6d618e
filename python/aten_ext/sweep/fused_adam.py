"""Random optimizer steps: ``_fused_adamw_`` and ``_fused_adam_`` over lists of any kind."""

from __future__ import annotations

import math
from functools import partial
from random import Random

from aten_ext.bench.case import ITEMSIZE, Case
from aten_ext.bench.ops.fused_adam import CPU_SETS, GPU_SETS, step_of
from aten_ext.bench.parameter_sets import PARAMETER_SETS, Shapes
from aten_ext.sweep import draw

MAX_ELEMENTS = {"cuda": 1 << 27, "cpu": 1 << 21}
SHORT_LIST, SMALL_TENSOR = 100, 1 << 16
"""Every other list of random sizes leaves most of a GPU idle: tensors, and elements of each, at most."""


def case(random: Random, device: str) -> Case | None:
    """A step over the parameters of a model, or over tensors of random sizes."""
    limit = MAX_ELEMENTS[device]
    name = random.choice([s for s in (CPU_SETS if device == "cpu" else GPU_SETS) if _size(s) <= limit])
    shapes = PARAMETER_SETS[name]()
    if random.random() < 0.5:
        short = random.random() < 0.5
        count = draw.log_uniform(random, 1, SHORT_LIST if short else 2000)
        most = draw.log_uniform(random, 1, SMALL_TENSOR if short else max(1, limit // count))
        shapes = [(draw.log_uniform(random, 1, most),) for _ in range(count)]
        name = f"{count} x [1..{most}]"
    optimizer, dtype = random.choice(("adamw", "adam")), random.choice(tuple(ITEMSIZE))
    amsgrad, offset = random.random() < 0.1, random.choice((0, 0, 0, 1))
    return _case(optimizer, name, shapes, dtype, amsgrad, offset)


def _case(optimizer: str, name: str, shapes: Shapes, dtype: str, amsgrad: bool, offset: int) -> Case:
    size = sum(math.prod(shape) for shape in shapes) * ITEMSIZE[dtype]
    variant = "amsgrad" * amsgrad + " misaligned" * bool(offset)
    return Case(
        op="fused_adam",
        name=" ".join(filter(None, (optimizer, variant.strip(), name))),
        dtype=dtype,
        override=f"_fused_{optimizer}_",
        make=partial(step_of, optimizer, shapes, dtype, amsgrad=amsgrad, offset=offset),
        bytes=size * (7 + 2 * amsgrad),
        footprint=size * (4 + amsgrad),
    )


def _size(name: str) -> int:
    return sum(math.prod(shape) for shape in PARAMETER_SETS[name]())
