"""Hold the outcome of a call with overrides against its outcome without them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a call did: the value that it returned or the error that it raised, and its warnings."""

    value: Any = None
    error: tuple[str, str] | None = None
    warnings: tuple[str, ...] = ()

    def without_value(self) -> Outcome:
        """The error and the warnings alone."""
        return dataclasses.replace(self, value=None)


def outcome_of(call: Callable[[], Any], seed: int = 0) -> Outcome:
    """Call, from a seeded random generator, and keep what happened."""
    torch.manual_seed(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value, error = call(), None
        except Exception as raised:
            value, error = None, (type(raised).__name__, str(raised))
    return Outcome(value, error, tuple(str(warning.message) for warning in caught))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything inside nested lists, tuples and dictionaries, with where it stands."""
    if isinstance(value, (list, tuple)):
        yield f"{path} length", len(value)
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}[{i}]")
    elif isinstance(value, Outcome):
        yield f"{path}error", " ".join(value.error or ())
        if value.error is None:
            yield f"{path}warnings", " ".join(value.warnings)
            yield from leaves(value.value, path)
    elif isinstance(value, dict):
        yield f"{path} keys", list(value)
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    else:
        yield path, value


def tensors(value: Any) -> list[Tensor]:
    """The tensors inside nested containers."""
    return [item for _, item in leaves(value) if isinstance(item, Tensor)]


def _geometry(t: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {
        "dtype": t.dtype,
        "device": t.device,
        "layout": t.layout,
        "requires_grad": t.requires_grad,
        "conj": t.is_conj(),
        "neg": t.is_neg(),
    }
    if not t.is_nested:
        found["shape"] = tuple(t.shape)
    if t.layout == torch.strided and not t.is_nested:
        found |= {"strides": t.stride(), "storage offset": t.storage_offset()}
    return found


EXACT = {"rtol": 0.0, "atol": 0.0}

# Gradients of gradients are sums of sums: for these, that many times the tolerance for one rounding (fp32).
SUMS = 4.0


def _close(theirs: Tensor, sums: float) -> dict[str, float]:
    """What may lie between two orders of summation: the tolerances of ``torch.testing`` for the dtype.

    With one difference: the absolute one is at least that share of the largest magnitude in the tensor. An
    element near zero may be a sum of large numbers that cancel, and is not more exact than those.
    """
    rtol, atol = torch.testing._comparison.default_tolerances(theirs)
    numbers = theirs.detach().to_dense() if theirs.layout != torch.strided else theirs.detach()
    if not (numbers.is_floating_point() or numbers.is_complex()) or numbers.is_nested:
        return {"rtol": rtol, "atol": atol}
    magnitudes = numbers.abs().double().nan_to_num(posinf=0.0)
    largest = magnitudes.max().item() if magnitudes.numel() else 0.0
    times = sums if theirs.dtype in (torch.float32, torch.complex64) else 1.0
    return {"rtol": rtol, "atol": max(atol, times * rtol * largest)}


def _difference_of_tensors(ours: Tensor, theirs: Tensor, exact: bool, sums: float) -> str | None:
    mine, other = _geometry(ours), _geometry(theirs)
    if mine != other:
        parts = [
            f"{what} {mine.get(what)} instead of {other[what]}"
            for what in other
            if mine.get(what) != other[what]
        ]
        return ", ".join(parts)
    try:
        torch.testing.assert_close(
            ours.detach(), theirs.detach(), equal_nan=True, **(EXACT if exact else _close(theirs, sums))
        )
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def differences(ours: Any, theirs: Any, *, exact: bool, sums: float = SUMS) -> Iterator[str]:
    """Where two values differ: structure, dtype, shape, strides, offset, conj and neg bits, and elements.

    Two :class:`Outcome` also differ where errors are not of the same type and text, or warnings not the same.

    ``exact`` asks for equal elements (NaN equals NaN), otherwise the tolerances of
    ``torch.testing.assert_close`` for the dtype hold, the absolute one in proportion to the largest element,
    in fp32 ``sums`` times.
    """
    mine, other = list(leaves(ours)), list(leaves(theirs))
    if isinstance(ours, Outcome) and isinstance(theirs, Outcome) and ours.error != theirs.error:
        mine, other = mine[:1], other[:1]
    if [path for path, _ in mine] != [path for path, _ in other]:
        yield "another structure"
        return
    for (path, a), (_, b) in zip(mine, other, strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            difference = _difference_of_tensors(a, b, exact, sums)
            if difference:
                yield f"{path or 'result'}: {difference}"
        elif type(a) is not type(b):
            yield f"{path}: {type(a).__name__} instead of {type(b).__name__}"
        elif (
            isinstance(a, (int, float, complex, str, bool, type(None), torch.dtype))
            and a != b
            and (a == a or b == b)
        ):
            yield f"{path}: {a!r} instead of {b!r}"
