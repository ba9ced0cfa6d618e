"""Run one entry of ``optim_db``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_optimizers
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, OptimizerInput, optim_db

from torch_databases.tally import Tally

STEPS = 4
SHAPES = ((3, 4), (17,), (5, 0), (2, 3, 2, 2), (1,), (33, 9))
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def database() -> list[Any]:
    """``optim_db``: OptimizerInfo objects."""
    return list(optim_db)


def _parameters(device: str, dtype: torch.dtype) -> list[Tensor]:
    """Parameters of SHAPES: one without elements, one channels-last, one transposed."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape in SHAPES:
        values = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).to(device)
        if values.dim() == 4:
            values = values.contiguous(memory_format=torch.channels_last)
        elif shape == SHAPES[-1]:
            values = values.t().contiguous().t()
        made.append(torch.nn.Parameter(values))
    return made


def _set_gradients(parameters: list[Tensor], step: int) -> None:
    generator = torch.Generator().manual_seed(1 + step)
    for parameter in parameters:
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = torch.empty_like(parameter).detach().copy_(values)


def _train(info: Any, device: str, dtype: torch.dtype, given: Any) -> Any:
    """Some steps; the parameters, gradients and every state afterwards."""
    parameters = _parameters(device, dtype)
    if given.kwargs.get("differentiable"):  # steps in place, which autograd forbids for leaves
        parameters = [p.clone() for p in parameters]
    optimizer = info.optim_cls(parameters, **given.kwargs)
    for step in range(STEPS):
        _set_gradients(parameters, step)
        if info.step_requires_closure:
            optimizer.step(lambda: torch.zeros(()))
        else:
            optimizer.step()
    return [p.detach() for p in parameters], [p.grad for p in parameters], optimizer.state_dict()["state"]


def _inputs(info: Any, device: str, dtype: torch.dtype) -> list[Any]:
    """Every configuration; each with none and with one of ``foreach``, ``fused`` and ``differentiable``.

    The database has learning rates in tensors on CUDA alone; here each fused configuration has one, anywhere.
    """
    made = common_optimizers._get_optim_inputs_including_global_cliquey_kwargs(device, dtype, info)
    inputs = copy.deepcopy(list(made))  # they share their tensors, e.g. a learning rate
    for given in list(inputs):
        if given.kwargs.get("fused"):
            lr = torch.as_tensor(given.kwargs.get("lr", 1e-3))
            inputs.append(OptimizerInput(None, {**given.kwargs, "lr": lr}, f"{given.desc} & tensor lr"))
    return inputs


def _error_inputs(info: Any, device: str, dtype: torch.dtype) -> list[Any]:
    torch.manual_seed(0)
    make = info.optim_error_inputs_func
    return list(make(device=device, dtype=dtype)) if make else []


def _misuse(info: Any, device: str, dtype: torch.dtype, error: Any) -> Any:
    given = error.optimizer_error_input
    parameters = _parameters(device, dtype) if given.params is None else given.params
    optimizer = info.optim_cls(parameters, **given.kwargs)
    if error.error_on == OptimizerErrorEnum.STEP_ERROR:
        _set_gradients([p for group in optimizer.param_groups for p in group["params"]], 0)
        optimizer.step()
    return None


def run(name: str, device: str, tally: Tally) -> None:
    """Every configuration in every dtype for some steps: parameters and states; every error input.

    Raises:
        LookupError: this torch has no entry ``name``.
    """
    found = [info for info in optim_db if info.name == name]
    if not found:
        raise LookupError(f"optim_db has no entry {name!r}")
    for info in found:
        for dtype in (*DTYPES, torch.complex64) if info.supports_complex else DTYPES:
            tally.compare_each(
                partial(_inputs, info, device, dtype),
                partial(_train, info, device, dtype),
                lambda i, given, dtype=dtype: f"{name} {dtype} input {i} ({given.desc})",
            )
            tally.compare_each(
                partial(_error_inputs, info, device, dtype),
                partial(_misuse, info, device, dtype),
                lambda i, _, dtype=dtype: f"{name} {dtype} error input {i}",
                errors_only=True,
            )


def first_call(info: Any, device: str) -> Callable[[], Any]:
    """A few steps in every configuration, to see what they reach."""
    inputs = _inputs(info, device, torch.float32)
    return lambda: [_train(info, device, torch.float32, given) for given in inputs]
