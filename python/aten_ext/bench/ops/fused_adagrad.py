"""Cases of ``_fused_adagrad_``: one optimizer step over the parameters of a model.

Memory accesses per parameter: the parameter, its gradient and the sum of squares are read, parameter and sum
are written, 5; ``grad_scale`` writes the unscaled gradient back, 6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from aten_ext.bench.case import ITEMSIZE, Call, Case
from aten_ext.bench.parameter_sets import PARAMETER_SETS
from aten_ext.bench.tensors import random_tensors

SHORT = ("gru_seq2seq", "resnet50", "1000x1024", "4000x64")
FULL = (*SHORT, "14x1.25M", "1x10", "skewed", "odd")
GPU_FULL = (*FULL, "gpt2", "llama1b", "1x750M")


@dataclass(frozen=True)
class Step:
    """The arguments of one optimizer step."""

    parameters: str
    """A key of ``PARAMETER_SETS``."""
    dtype: str = "float32"
    variant: str = ""
    """What is unusual about it, for its name."""
    lr_decay: float = 0.0
    maximize: bool = False
    grad_scale: bool = False
    tensor_lr: bool = False
    offset: int = 0
    """Elements by which the storage offset of every list is off an aligned address."""

    def case(self) -> Case:
        """The step as a case."""
        size = sum(math.prod(shape) for shape in PARAMETER_SETS[self.parameters]()) * ITEMSIZE[self.dtype]
        return Case(
            op="fused_adagrad",
            name=" ".join(filter(None, ("adagrad", self.variant, self.parameters))),
            dtype=self.dtype,
            override="_fused_adagrad_.tensor_lr" if self.tensor_lr else "_fused_adagrad_",
            make=partial(_make, self),
            bytes=size * (5 + self.grad_scale),
            footprint=size * 3,
        )


def cases(device: str, full: bool) -> list[Case]:
    """Model-sized and many-tensor parameter sets; with ``full`` also odd shapes, dtypes and arguments."""
    sets = SHORT if not full else FULL if device == "cpu" else GPU_FULL
    steps = [Step(name, dtype) for name in sets for dtype in ("float32", "bfloat16")]
    if full:
        plain = Step("gru_seq2seq")
        steps += [
            replace(plain, dtype="float16"),
            replace(plain, dtype="float64"),
            replace(plain, variant="lr_decay", lr_decay=0.1),
            replace(plain, variant="maximize", maximize=True),
            replace(plain, variant="grad_scale", grad_scale=True),
            replace(plain, variant="tensor_lr", tensor_lr=True),
            replace(plain, variant="misaligned", offset=1),
        ]
    return [step.case() for step in steps]


def _make(step: Step, device: str) -> Call:
    """A call with operands of its own that stay normal numbers however often it is made.

    Sums grow by 0.0025 to 0.0225 a step: 1e5 steps leave them below 2300, and parameters, which move by the
    learning rate over the square root of the number of steps, below 1.
    """
    import torch

    shapes = PARAMETER_SETS[step.parameters]()
    new = partial(random_tensors, shapes, getattr(torch, step.dtype), device, 0.1, step.offset)
    one = torch.ones((), device=device)
    return partial(
        torch._fused_adagrad_,
        new(),
        new(),
        new(positive=True),
        [torch.full((), 3.0, device=device) for _ in shapes],
        lr=one * 1e-4 if step.tensor_lr else 1e-4,
        lr_decay=step.lr_decay,
        weight_decay=0.01,
        eps=1e-6,
        maximize=step.maximize,
        grad_scale=one if step.grad_scale else None,
        found_inf=one * 0 if step.grad_scale else None,
    )
