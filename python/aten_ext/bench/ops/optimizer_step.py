"""Cases of ``torch.optim``: a whole ``step()`` from Python, with what Python does around the operators."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from aten_ext.bench.case import Call, Case
from aten_ext.bench.parameter_sets import PARAMETER_SETS
from aten_ext.bench.tensors import random_tensors

if TYPE_CHECKING:
    import torch

ACCESSES = {"AdamW": (7, 4), "SGD": (5, 3), "Adagrad": (5, 3)}
"""Memory accesses per parameter, and operands, of each optimizer as it is used here."""
OPTIONS: dict[str, dict[str, Any]] = {"AdamW": {}, "SGD": {"momentum": 0.9}, "Adagrad": {}}
OVERRIDES = {"AdamW": "_fused_adamw_", "SGD": "_fused_sgd_", "Adagrad": "_fused_adagrad_"}


def cases(device: str, full: bool) -> list[Case]:
    """AdamW over a thousand small tensors; with ``full`` other lists and other optimizers."""
    chosen = [("AdamW", "1000x1024")]
    if full:
        chosen += [("AdamW", name) for name in ("1x10", "resnet50", "4000x64", "gru_seq2seq")]
        chosen.append(("SGD", "1000x1024"))
        if device == "cpu":  # torch.optim.Adagrad(fused=True) takes no CUDA parameters
            chosen.append(("Adagrad", "1000x1024"))
    return [step_of(kind, name) for kind, name in chosen]


def step_of(kind: str, name: str) -> Case:
    """The step of the optimizer ``kind`` over the parameters ``name``."""
    elements = sum(math.prod(shape) for shape in PARAMETER_SETS[name]())
    accesses, operands = ACCESSES[kind]
    return Case(
        op="optimizer_step",
        name=f"{kind}.step {name}",
        dtype="float32",
        override=OVERRIDES[kind],
        make=partial(_make, kind, name),
        bytes=4 * accesses * elements,
        footprint=4 * operands * elements,
    )


def parameters(name: str, device: str) -> list[torch.nn.Parameter]:
    """Parameters with gradients, both magnitudes in [0.05, 0.15]."""
    import torch

    shapes = PARAMETER_SETS[name]()
    new = partial(random_tensors, shapes, torch.float32, device, 0.1, 0)
    parameters = [torch.nn.Parameter(t) for t in new()]
    for parameter, gradient in zip(parameters, new(), strict=True):
        parameter.grad = gradient
    return parameters


def _make(kind: str, name: str, device: str) -> Call:
    import torch

    optimizer = getattr(torch.optim, kind)(parameters(name, device), lr=1e-4, fused=True, **OPTIONS[kind])
    optimizer.step()  # makes the states
    call: Call = optimizer.step
    return call
