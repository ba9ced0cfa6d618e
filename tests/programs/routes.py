"""Run a program with overrides off and on: the same outcome, and by the route that is expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

import aten_ext
from programs.cases import Case
from torch_databases.comparison import differences, outcome_of
from torch_databases.table import MANY_PARTS, PARTS, TABLE, comparable, decomposed, operator, overrides_at

# Where the calls of a program go:
#   "eager"      to the override, as those of the same case do in a plain call (fused wherever that was fused)
#   "composed"   the same, but a composite operator is taken apart: its parts are called, not its own kernel
#   "generated"  nowhere: the program runs code that it has written itself
#   "any"        not ours to say; with overrides off and on the same
#   "uncounted"  not ours to say, and the first of two runs may make calls whose result the second remembers
EAGER, COMPOSED, GENERATED, ANY, UNCOUNTED = "eager", "composed", "generated", "any", "uncounted"


def asked(case: Case, key: str) -> dict[str, tuple[int, int]]:
    """Override of the case -> its calls since the counts were reset: (fused, declined)."""
    return {
        name: (counts.ran, sum(counts.declined.values()))
        for name, counts in aten_ext.counts(key).items()
        if operator(name) in case.operators and (counts.ran or counts.declined)
    }


def is_registered(case: Case, key: str) -> bool:
    """Whether this build has an override at ``key`` of the case's own operator."""
    return case.operators[0] in map(operator, overrides_at(key))


def is_exact(case: Case, device: str) -> bool:
    """Whether the overrides that the case may reach there give upstream's bits, by the databases' table."""
    key = device.upper()
    reached = [name for name in overrides_at(key) if operator(name) in case.operators]
    return all(key in TABLE[operator(name)].exact for name in reached)


def eager_route(case: Case, device: str, *, composed: bool = False) -> dict[str, tuple[int, int]]:
    """What a plain call of the case asks; where the case says so, and the registry has it, it ran fused.

    ``composed``: with composite operators' own kernels off.
    """
    key = device.upper()
    composite = {name for name in overrides_at(key) if name in PARTS or operator(name) in MANY_PARTS}
    off = composite if composed else set()
    aten_ext.reset_counts()
    with aten_ext.disabled(*off) if off else nullcontext():
        case.call(*case.make(device))
    found = asked(case, key)
    if key in case.fused_at and is_registered(case, key):
        assert sum(ran for ran, _ in found.values()) > 0, f"{case.name} did not run fused: {found}"
    return found


def check(
    case: Case,
    device: str,
    program: Callable[[], Any],
    *,
    expect: str = EAGER,
    calls: int = 1,
    may_raise: bool = False,
) -> Any:
    """Run ``program`` with overrides off, then on, and compare what it returns (or raises), and its route.

    Args:
        case: what the program calls.
        device: where.
        program: makes its own arguments, so that two runs are alike.
        expect: EAGER, COMPOSED, GENERATED, ANY or UNCOUNTED.
        calls: how many calls of the case it makes, at least.
        may_raise: whether upstream's own error, the same with overrides on, is an answer too.

    Elements must be equal where :func:`is_exact`, else close; cuDNN is kept from TF32, which is coarser.

    Returns:
        What it returned with overrides on.
    """
    with without_cudnn_tf32():
        return _check(case, device, program, expect, calls, may_raise)


@contextmanager
def without_cudnn_tf32() -> Iterator[None]:
    """Keep cuDNN from TF32, which is coarser than what elements are compared with."""
    before = torch.backends.cudnn.allow_tf32
    torch._C._set_cudnn_allow_tf32(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_allow_tf32(before)


def _check(
    case: Case, device: str, program: Callable[[], Any], expect: str, calls: int, may_raise: bool
) -> Any:
    key = device.upper()
    eager = expect in (EAGER, COMPOSED)
    plain = eager_route(case, device, composed=expect == COMPOSED) if eager else {}
    aten_ext.reset_counts()
    with aten_ext.disabled():
        expected = outcome_of(program)
    off = {name: counts.disabled for name, counts in aten_ext.counts(key).items() if counts.disabled}
    aten_ext.reset_counts()
    found = outcome_of(program)
    counted = aten_ext.counts(key)
    on = decomposed(
        {name: counts.ran + sum(counts.declined.values()) for name, counts in counted.items()},
        ran := {name: counts.ran for name, counts in counted.items()},
    )
    on, off = comparable(on, ran), comparable(off, ran)
    # Warnings are left out: some are given once a process, by whoever comes first.
    assert found.error == expected.error
    if expected.error is not None:
        assert may_raise, expected.error
        return None
    different = [*differences(found.value, expected.value, exact=is_exact(case, device))]
    assert not different, different
    assert expect == UNCOUNTED or on == off, f"{on} calls with overrides on, {off} off"
    route = asked(case, key)
    if expect == GENERATED:
        assert route == {}, f"generated code asked {route}"
    elif eager:
        assert set(route) >= set(plain), f"{route} instead of {plain}"
        for name, (ran, declined) in plain.items():
            assert route[name][0] >= calls * ran and route[name][1] >= calls * declined, (
                f"{route}, once {plain}"
            )
    return found.value
