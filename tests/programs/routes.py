"""Run a program with overrides off and on: the same outcome, and by the route that is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aten_ext
from programs.cases import Case
from torch_databases.comparison import differences, outcome_of
from torch_databases.table import TABLE, operator, overrides_at

# Where the calls of a program go:
#   "eager"      to the override, as those of the same case do in a plain call (fused wherever that was fused)
#   "generated"  nowhere: the program runs code that it has written itself
#   "any"        not ours to say; with overrides off and on the same
#   "uncounted"  not ours to say, and the first of two runs may make calls whose result the second remembers
EAGER, GENERATED, ANY, UNCOUNTED = "eager", "generated", "any", "uncounted"


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


def eager_route(case: Case, device: str) -> dict[str, tuple[int, int]]:
    """What a plain call of the case asks; where the case says so, and the registry has it, it ran fused."""
    key = device.upper()
    aten_ext.reset_counts()
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
        expect: EAGER, GENERATED, ANY or UNCOUNTED.
        calls: how many calls of the case it makes, at least.
        may_raise: whether upstream's own error, the same with overrides on, is an answer too.

    Elements must be equal where :func:`is_exact`, else close.

    Returns:
        What it returned with overrides on.
    """
    plain = eager_route(case, device) if expect == EAGER else {}
    aten_ext.reset_counts()
    with aten_ext.disabled():
        expected = outcome_of(program)
    off = {
        name: counts.disabled for name, counts in aten_ext.counts(device.upper()).items() if counts.disabled
    }
    aten_ext.reset_counts()
    found = outcome_of(program)
    on = {
        name: counts.ran + sum(counts.declined.values())
        for name, counts in aten_ext.counts(device.upper()).items()
        if counts.ran or counts.declined
    }
    # Warnings are left out: some are given once a process, by whoever comes first.
    assert found.error == expected.error
    if expected.error is not None:
        assert may_raise, expected.error
        return None
    assert not [*differences(found.value, expected.value, exact=is_exact(case, device))]
    assert expect == UNCOUNTED or on == off, "another number of calls with overrides on than off"
    route = asked(case, device.upper())
    if expect == GENERATED:
        assert route == {}, f"generated code asked {route}"
    elif expect == EAGER:
        assert set(route) >= set(plain), f"{route} instead of {plain}"
        for name, (ran, declined) in plain.items():
            assert route[name][0] >= calls * ran and route[name][1] >= calls * declined, (
                f"{route}, once {plain}"
            )
    return found.value
