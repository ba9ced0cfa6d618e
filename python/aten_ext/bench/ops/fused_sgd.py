"""Cases of ``_fused_sgd_``: one optimizer step over the parameters of a model.

Memory accesses per parameter: the parameter and its gradient are read, the parameter is written, 3; momentum
reads and writes a buffer as well, 5; ``grad_scale`` writes the unscaled gradient back, 1 more. The arithmetic
is far below what memory allows, so FLOPs are not counted.
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
    momentum: float = 0.9
    nesterov: bool = False
    maximize: bool = False
    grad_scale: bool = False
    tensor_lr: bool = False
    offset: int = 0
    """Elements by which the storage offset of every list is off an aligned address."""

    def case(self) -> Case:
        """The step as a case."""
        size = sum(math.prod(shape) for shape in PARAMETER_SETS[self.parameters]()) * ITEMSIZE[self.dtype]
        lists = 3 if self.momentum else 2
        return Case(
            op="fused_sgd",
            name=" ".join(filter(None, ("sgd", self.variant, self.parameters))),
            dtype=self.dtype,
            override="_fused_sgd_.tensor_lr" if self.tensor_lr else "_fused_sgd_",
            make=partial(_make, self),
            bytes=size * (2 * lists - 1 + self.grad_scale),
            footprint=size * lists,
        )


def cases(device: str, full: bool) -> list[Case]:
    """Model-sized and many-tensor parameter sets; with ``full`` also odd shapes, dtypes and arguments.

    On CPU without 16-bit dtypes, which the override leaves to upstream there.
    """
    dtypes = ("float32",) if device == "cpu" else ("float32", "bfloat16")
    sets = SHORT if not full else FULL if device == "cpu" else GPU_FULL
    steps = [Step(name, dtype) for name in sets for dtype in dtypes]
    if full:
        plain = Step("gru_seq2seq")
        steps += [
            replace(plain, dtype="float64"),
            replace(plain, variant="no-momentum", momentum=0.0),
            replace(plain, variant="nesterov", nesterov=True),
            replace(plain, variant="maximize", maximize=True),
            replace(plain, variant="grad_scale", grad_scale=True),
            replace(plain, variant="tensor_lr", tensor_lr=True),
            replace(plain, variant="misaligned", offset=1),
            replace(plain, variant="no-momentum", momentum=0.0, parameters="4000x64"),
        ]
        if device == "cuda":
            steps.append(replace(plain, dtype="float16"))
    return [step.case() for step in steps]


def _make(step: Step, device: str) -> Call:
    """A call with operands of its own that stay normal numbers however often it is made.

    Gradients are constant: buffers settle at ten times a gradient of 0.05 to 0.15, parameters move by the
    learning rate times that, and weight decay balances them at a hundred times the gradient, 15 at most.
    """
    import torch

    shapes = PARAMETER_SETS[step.parameters]()
    new = partial(random_tensors, shapes, getattr(torch, step.dtype), device, 0.1, step.offset)
    one = torch.ones((), device=device)
    return partial(
        torch._fused_sgd_,
        new(),
        new(),
        new() if step.momentum else [],
        weight_decay=0.01,
        momentum=step.momentum,
        lr=one * 1e-4 if step.tensor_lr else 1e-4,
        dampening=0.0,
        nesterov=step.nesterov,
        maximize=step.maximize,
        is_first_step=False,
        grad_scale=one if step.grad_scale else None,
        found_inf=one * 0 if step.grad_scale else None,
    )
