"""Run one entry of ``op_db`` or of the databases of foreach operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal import common_methods_invocations as invocations
from torch.testing._internal.common_utils import set_rng_seed
from torch.testing._internal.opinfo.core import ForeachFuncInfo

from torch_databases.comparison import outcome_of, tensors
from torch_databases.tally import Tally

Call = Callable[[Any], Any]


def database() -> list[Any]:
    """``op_db`` and the databases of foreach operators: OpInfo objects."""
    foreach = [
        info
        for name in sorted(vars(invocations))
        if name.startswith("foreach_") and name.endswith("_db")
        for info in getattr(invocations, name)
    ]
    return [*invocations.op_db, *foreach]


def _samples(info: Any, device: str, dtype: torch.dtype, requires_grad: bool = False) -> list[Any]:
    """The sample inputs of an entry, the same at each call; for gradients also conjugate views.

    Not through ``info.sample_inputs()``, which walks the Python stack for each: slow below pytest.
    """
    set_rng_seed(0)
    samples = list(info.sample_inputs_func(info, device, dtype, requires_grad))
    if requires_grad and dtype.is_complex and info.test_conjugated_samples:
        samples += info.conjugate_sample_inputs(device, dtype, requires_grad)
    return samples


def _error_inputs(info: Any, device: str) -> list[Any]:
    set_rng_seed(0)
    return [e.sample_input for e in info.error_inputs_func(info, device)] if info.error_inputs_func else []


def _with_sample(function: Callable[..., Any]) -> Call:
    return lambda sample: function(sample.input, *sample.args, **sample.kwargs)


def _variants(info: Any) -> Iterator[tuple[str, Call]]:
    """The ways to call an operator: function, method, in-place method, aliases."""
    yield "function", _with_sample(info)
    method, inplace = info.get_method(), info.get_inplace()
    if method is not None:
        yield "method", _with_sample(method)
    if inplace is not None:
        yield "in place", _with_sample(inplace)
    for alias in info.aliases:
        yield alias.name, _with_sample(alias.op)


def _of_other_strides(t: Tensor) -> Tensor:
    reverse = torch.ones(t.shape[::-1], dtype=t.dtype, device=t.device)
    return reverse.permute(*reversed(range(t.dim())))


def _of_other_dtype(t: Tensor) -> Tensor:
    dtype = torch.int64 if t.dtype == torch.float32 else torch.float32
    return torch.ones(t.shape, dtype=dtype, device=t.device)


# What a tensor given as out= may be like, made from the result that it is for.
OUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "that fits": lambda t: torch.ones(t.shape, dtype=t.dtype, device=t.device),
    "that is empty": lambda t: torch.ones(0, dtype=t.dtype, device=t.device),
    "of another size": lambda t: torch.ones(t.numel() + 3, dtype=t.dtype, device=t.device),
    "of other strides": _of_other_strides,
    "with gaps": lambda t: torch.ones(*t.shape, 2, dtype=t.dtype, device=t.device)[..., 0],
    "of another dtype": _of_other_dtype,
}


def _samples_and_outs(info: Any, make: Callable[[], list[Any]], fit: Callable[[Tensor], Tensor]) -> list[Any]:
    """(sample, out) for every sample that has a result of tensors."""
    pairs = []
    for sample, spent in zip(make(), make(), strict=True):
        try:
            result = _with_sample(info)(spent)
        except Exception:
            continue  # compared where the operator is called without out=
        if isinstance(result, Tensor):
            pairs.append((sample, fit(result)))
        elif tensors(result):
            pairs.append((sample, tuple(fit(t) for t in tensors(result))))
    return pairs


def _call_with_out(info: Any, argument: tuple[Any, Any]) -> Any:
    sample, out = argument
    returned = info(sample.input, *sample.args, **sample.kwargs, out=out)
    same = [a.data_ptr() == b.data_ptr() for a, b in zip(tensors(returned), tensors(out), strict=True)]
    return returned, out, same


def derivatives(function: Callable[..., Any], inputs: list[Tensor], *, second: bool) -> Any:
    """The result of ``function()``, its gradients for random weights, and the gradients of those."""
    result = function()
    outputs = [t for t in tensors(result) if t.requires_grad]
    if not outputs or not inputs:
        return result
    weights = [torch.randn_like(t).requires_grad_(second) for t in outputs]
    first = torch.autograd.grad(outputs, inputs, weights, create_graph=second, allow_unused=True)
    differentiable = [g for g in first if g is not None and g.requires_grad]
    if not second or not differentiable:
        return result, first
    again = [torch.randn_like(g) for g in differentiable]
    # Some backward formulas have no derivative. Then that error is part of the result, beside the gradients.
    return (
        result,
        first,
        outcome_of(
            lambda: torch.autograd.grad(differentiable, [*inputs, *weights], again, allow_unused=True)
        ),
    )


def _call_backward(info: Any, sample: Any) -> Any:
    inputs = [t for t in tensors([sample.input, list(sample.args), sample.kwargs]) if t.requires_grad]
    return derivatives(
        lambda: sample.output_process_fn_grad(_with_sample(info)(sample)),
        inputs,
        second=info.supports_gradgrad,
    )


def _run_variant(info: Any, device: str, tally: Tally) -> None:
    kind = torch.device(device).type
    backward = info.supported_backward_dtypes(kind) if info.supports_autograd else set()
    for dtype in sorted(info.supported_dtypes(kind), key=str):
        make = partial(_samples, info, device, dtype)
        where = f"{info.full_name} {dtype}"
        for name, call in _variants(info):
            tally.compare_each(make, call, lambda i, _, where=where, name=name: f"{where} sample {i} {name}")
        # For a foreach operator supports_out says that it has a variant that is not in place.
        if info.supports_out and not isinstance(info, ForeachFuncInfo):
            for name, fit in OUTS.items():
                tally.compare_each(
                    partial(_samples_and_outs, info, make, fit),
                    partial(_call_with_out, info),
                    lambda i, _, where=where, name=name: f"{where} sample {i} out= {name}",
                )
        if dtype in backward and (dtype.is_floating_point or dtype.is_complex):
            tally.compare_each(
                partial(make, requires_grad=True),
                partial(_call_backward, info),
                lambda i, _, where=where: f"{where} sample {i} backward",
            )
    tally.compare_each(
        partial(_error_inputs, info, device),
        _with_sample(info),
        lambda i, _: f"{info.full_name} error input {i}",
        errors_only=True,
    )


def run(name: str, device: str, tally: Tally) -> None:
    """Every sample of every dtype by every variant of the call, with gradients; every error input.

    Raises:
        LookupError: this torch has no entry ``name``.
    """
    found = [info for info in database() if info.name == name]
    if not found:
        raise LookupError(f"op_db has no entry {name!r}")
    for info in found:
        _run_variant(info, device, tally)


def first_call(info: Any, device: str) -> Callable[[], Any]:
    """A call of an entry with its first sample, with gradients, to see what it reaches."""
    dtypes = info.supported_dtypes(torch.device(device).type)
    dtype = torch.float32 if torch.float32 in dtypes else min(dtypes, key=str)
    set_rng_seed(0)
    requires_grad = info.supports_autograd and dtype.is_floating_point
    sample = next(iter(info.sample_inputs_func(info, device, dtype, requires_grad)))
    return partial(_call_backward, info, sample)
