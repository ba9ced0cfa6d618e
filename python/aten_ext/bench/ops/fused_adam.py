"""Cases of ``_fused_adamw_`` and ``_fused_adam_``: one optimizer step over the parameters of a model.

Memory accesses per parameter: the parameter, its gradient and both moments are read, all but the gradient are
written, 7; amsgrad reads and writes a fifth operand, 9; ``grad_scale`` writes the unscaled gradient back, 8.
The arithmetic is far below what memory allows, so FLOPs are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from aten_ext.bench.case import ITEMSIZE, Call, Case
from aten_ext.bench.parameter_sets import PARAMETER_SETS, Shapes
from aten_ext.bench.tensors import random_tensors

CPU_SETS = ("gru_seq2seq", "resnet50", "1000x1024", "4000x64", "14x1.25M")
GPU_SETS = ("gru_seq2seq", "resnet50", "gpt2", "llama1b", "1000x1024", "4000x64")


@dataclass(frozen=True)
class Step:
    """The arguments of one optimizer step."""

    parameters: str
    """A key of ``PARAMETER_SETS``."""
    dtype: str = "float32"
    optimizer: str = "adamw"
    variant: str = ""
    """What is unusual about it, for its name."""
    amsgrad: bool = False
    maximize: bool = False
    grad_scale: bool = False
    found_inf: bool = False
    tensor_lr: bool = False
    offset: int = 0
    """Elements by which the storage offset of parameters and moments is off an aligned address."""
    grad_offset: int = 0

    def case(self) -> Case:
        """The step as a case."""
        sizes = sizes_of(self.parameters)
        size = sizes["elements"] * ITEMSIZE[self.dtype]
        op = f"_fused_{self.optimizer}_"
        return Case(
            op="fused_adam",
            name=" ".join(filter(None, (self.optimizer, self.variant, self.parameters))),
            dtype=self.dtype,
            override=f"{op}.tensor_lr" if self.tensor_lr else op,
            make=partial(_make, self),
            bytes=size * (7 + 2 * self.amsgrad + self.grad_scale),
            footprint=size * (4 + self.amsgrad),
            sizes=sizes,
        )


def sizes_of(name: str) -> Mapping[str, int]:
    """Elements and tensors of the parameter set that the name of a case ends with."""
    shapes = PARAMETER_SETS[name.rpartition(" ")[2]]()
    return {"elements": sum(math.prod(shape) for shape in shapes), "tensors": len(shapes)}


def cases(device: str, full: bool) -> list[Case]:
    """Model-sized and many-tensor parameter sets; with ``full`` also odd shapes, dtypes and arguments."""
    sets = CPU_SETS if device == "cpu" else GPU_SETS
    steps = [Step(name, dtype) for name in sets for dtype in ("float32", "bfloat16")]
    if full:
        steps += _sweep(sets)
    return [step.case() for step in steps]


def _sweep(short: Sequence[str]) -> list[Step]:
    """What the short list leaves out."""
    rest = [name for name in PARAMETER_SETS if name not in short]
    steps = [Step(name, dtype) for name in rest for dtype in ("float32", "bfloat16")]
    steps += [Step(name, dtype) for name in ("gru_seq2seq", "4000x64") for dtype in ("float16", "float64")]
    for optimizer, dtype in (("adamw", "float32"), ("adamw", "bfloat16"), ("adam", "float32")):
        plain = Step("gru_seq2seq", dtype, optimizer)
        steps += [
            replace(plain, variant="amsgrad", amsgrad=True),
            replace(plain, variant="maximize", maximize=True),
            replace(plain, variant="grad_scale", grad_scale=True),
            replace(plain, variant="grad_scale+found_inf", grad_scale=True, found_inf=True),
            replace(plain, variant="found_inf", found_inf=True),
            replace(plain, variant="tensor_lr", tensor_lr=True),
        ]
    for dtype in ("float32", "bfloat16"):
        steps += [
            Step("gru_seq2seq", dtype, "adam"),
            Step("1000x1024", dtype, "adam"),
            Step("gru_seq2seq", dtype, variant="misaligned", offset=1, grad_offset=1),
            Step("gru_seq2seq", dtype, variant="misaligned-grads", grad_offset=1),
        ]
    return steps


def _make(step: Step, device: str) -> Call:
    return step_of(
        step.optimizer,
        PARAMETER_SETS[step.parameters](),
        step.dtype,
        device,
        amsgrad=step.amsgrad,
        maximize=step.maximize,
        grad_scale=step.grad_scale,
        found_inf=step.found_inf,
        tensor_lr=step.tensor_lr,
        offset=step.offset,
        grad_offset=step.grad_offset,
    )


def step_of(
    optimizer: str,
    shapes: Shapes,
    dtype: str,
    device: str,
    *,
    amsgrad: bool = False,
    maximize: bool = False,
    grad_scale: bool = False,
    found_inf: bool = False,
    tensor_lr: bool = False,
    offset: int = 0,
    grad_offset: int = 0,
) -> Call:
    """A call with operands of its own that stay normal numbers however often it is made.

    Gradients are constant and their magnitude lies in [0.05, 0.15]: the first moment settles at the
    gradient, the second at its square, at least 2.5e-3, which is normal in float16 too. A step then moves a
    parameter by about 3e-4, so 1e5 steps stay below 30, where weight decay balances it. Step counts stay 1.
    """
    import torch

    new = partial(random_tensors, shapes, getattr(torch, dtype), device)
    parameters, gradients = new(0.1, offset), new(0.1, grad_offset)
    moments = new(0.1, offset)
    squares = new(0.01, offset, positive=True)
    largest = new(0.01, offset, positive=True) if amsgrad else []
    steps = [torch.ones((), device=device) for _ in shapes]
    one, zero = torch.ones((), device=device), torch.zeros((), device=device)
    operator: Callable[..., object] = getattr(torch, f"_fused_{optimizer}_")
    return partial(
        operator,
        parameters,
        gradients,
        moments,
        squares,
        largest,
        steps,
        lr=one * 1e-3 if tensor_lr else 1e-3,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.01,
        eps=1e-8,
        amsgrad=amsgrad,
        maximize=maximize,
        grad_scale=one if grad_scale else None,
        found_inf=zero if found_inf else None,
    )
