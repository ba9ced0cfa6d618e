"""Run one entry of ``module_db``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db
from torch.testing._internal.common_utils import set_rng_seed

from torch_databases.comparison import tensors
from torch_databases.operators import derivatives
from torch_databases.tally import Tally


def database() -> list[Any]:
    """``module_db``: ModuleInfo objects."""
    return list(module_db)


def _inputs(info: Any, device: str, dtype: torch.dtype, gradients: bool, training: bool) -> list[Any]:
    set_rng_seed(0)
    return list(
        info.module_inputs_func(info, device=device, dtype=dtype, requires_grad=gradients, training=training)
    )


def _error_inputs(info: Any, device: str, dtype: torch.dtype) -> list[Any]:
    set_rng_seed(0)
    make = info.module_error_inputs_func
    return list(make(info, device=device, dtype=dtype, requires_grad=False, training=True)) if make else []


def _construct(info: Any, given: Any, device: str, dtype: torch.dtype, training: bool) -> torch.nn.Module:
    set_rng_seed(0)
    arguments = given.constructor_input
    module: torch.nn.Module = info.module_cls(*arguments.args, **arguments.kwargs)
    return module.to(device=device, dtype=dtype).train(training)


def _forward(module: torch.nn.Module, given: Any) -> Any:
    arguments = given.forward_input
    return module(*arguments.args, **arguments.kwargs)


def _call(info: Any, device: str, dtype: torch.dtype, gradients: bool, training: bool, given: Any) -> Any:
    module = _construct(info, given, device, dtype, training)
    if not gradients:
        with torch.no_grad():
            return _forward(module, given)
    arguments = given.forward_input
    candidates = tensors([list(arguments.args), arguments.kwargs, list(module.parameters())])
    inputs = [t for t in candidates if t.requires_grad]
    return derivatives(lambda: _forward(module, given), inputs, second=info.supports_gradgrad)


def _misuse(info: Any, device: str, dtype: torch.dtype, error: Any) -> Any:
    module = _construct(info, error.module_error_input, device, dtype, training=True)
    if error.error_on == ModuleErrorEnum.FORWARD_ERROR:
        return _forward(module, error.module_error_input)
    return None


def run(name: str, device: str, tally: Tally) -> None:
    """Every input in every dtype, in training and evaluation, with and without gradients; every error input.

    Raises:
        LookupError: this torch has no entry ``name``.
    """
    found = [info for info in module_db if info.name == name]
    if not found:
        raise LookupError(f"module_db has no entry {name!r}")
    for info in found:
        for dtype in info.supported_dtypes(torch.device(device).type):
            for training in (True, False):
                for gradients in (True, False):
                    mode = (
                        f"{'training' if training else 'evaluation'}{'' if gradients else ', no gradients'}"
                    )
                    tally.compare_each(
                        partial(_inputs, info, device, dtype, gradients, training),
                        partial(_call, info, device, dtype, gradients, training),
                        lambda i, given, dtype=dtype, mode=mode: f"{name} {dtype} {i} ({given.desc}) {mode}",
                    )
            tally.compare_each(
                partial(_error_inputs, info, device, dtype),
                partial(_misuse, info, device, dtype),
                lambda i, _, dtype=dtype: f"{name} {dtype} error input {i}",
                errors_only=True,
            )


def first_call(info: Any, device: str) -> Callable[[], Any]:
    """A call of a module with its first input, with gradients, to see what it reaches."""
    given = _inputs(info, device, torch.float32, gradients=True, training=True)[0]
    return partial(_call, info, device, torch.float32, True, True, given)
