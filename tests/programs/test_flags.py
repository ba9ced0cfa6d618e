"""Every override under every switch that steers upstream: each alone, and some together.

Value, class of each element, and error, with overrides off and on. Which switch sends which call upstream,
each family's own tests say; here whatever runs must be right.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import aten_ext
import flags
from programs.override_calls import CALLS, Call, assert_same, counted, each_override, is_exact, keys_of


def test_every_override_has_a_call() -> None:
    """At each of its dispatch keys; and no call is of an override that is none."""
    overrides = {override.name: set(override.keys) for override in aten_ext.overrides()}
    assert set(CALLS) == set(overrides)
    for name, keys in overrides.items():
        assert keys <= keys_of(name), name
        has_cuda = any("CUDA" in keys for keys in overrides.values())
        assert not has_cuda or keys == keys_of(name), name


@pytest.mark.parametrize("name", [n for n in flags.EVERY if n in flags.NAMES["CPU"]])
def test_a_switch_is_one(name: str) -> None:
    """It changes something that can be read, and takes it back: one that does nothing tests nothing."""
    before = flags.state()
    with flags.changed([name]):
        # IEEE is what the default means; autocast that is disabled, what there is without.
        assert flags.state() != before or name in ("mkldnn matmul ieee", "autocast disabled")
    assert flags.state() == before


def test_switches_are_taken_back_in_any_order() -> None:
    """One of all of a backend's operators, and one of a single operator, say the same in part."""
    before = flags.state()
    for names in itertools.permutations((n for n in flags.EVERY if n in flags.NAMES["CPU"]), 2):
        with flags.changed(names):
            pass
        assert flags.state() == before, names


@pytest.mark.gpu
@pytest.mark.parametrize("name", flags.NAMES["CUDA"])
def test_a_switch_of_a_gpu_is_one(name: str) -> None:
    before = (flags.state(), flags.state_of_a_gpu())
    with flags.changed([name]):
        assert (flags.state(), flags.state_of_a_gpu()) != before
    assert (flags.state(), flags.state_of_a_gpu()) == before


def outcome(action: Callable[[], list[Tensor]]) -> list[Tensor] | str:
    """What it returns, or its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of anomaly mode, of algorithms that are not deterministic
            return action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@functools.cache
def _exact(call: Call, device: str) -> list[Tensor]:
    """What float64 makes of it while no switch is set."""
    with aten_ext.disabled():
        return call.results(device, torch.double)


def hold(name: str, key: str, call: Call, switches: Sequence[str]) -> tuple[int, int]:
    """The call under the switches, with overrides off and on. Returns how often it ran, and was declined."""
    device = key.lower()
    exact = None if is_exact(name, key) else _exact(call, device)
    with flags.changed(switches):
        # As often with overrides off: the first call under a switch may choose for all that follow.
        with aten_ext.disabled():
            theirs = outcome(lambda: call.results(device))
        aten_ext.reset_counts()
        ours = outcome(lambda: call.results(device))
        ran, declined = counted(name, key)
    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs
        return ran, declined
    upstreams = not any(c.ran for c in aten_ext.counts(key).values()) and key == "CPU"
    assert_same(ours, theirs, None if upstreams else exact)
    return ran, declined


def explained(name: str, key: str, call: Call, switches: Sequence[str]) -> None:
    try:
        hold(name, key, call, switches)
    except AssertionError as error:
        raise AssertionError(f"{name} at {key}, {call.name}, under {', '.join(switches)}: {error}") from error


@each_override()
def test_no_switch(name: str, key: str) -> None:
    """The calls are what they are taken for: the kernel runs."""
    for call in CALLS[name]:
        ran, declined = hold(name, key, call, ())
        assert ran + declined > 0, f"{call.name} does not ask"
        assert ran or key not in call.fused_at, (call.name, dict(aten_ext.counts(key)[name].declined))


@each_override()
def test_each_switch(name: str, key: str) -> None:
    for switch in flags.NAMES[key]:
        for call in CALLS[name]:
            explained(name, key, call, (switch,))


@each_override()
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_several_switches(name: str, key: str, data: st.DataObject) -> None:
    switches = data.draw(flags.several(key))
    explained(name, key, data.draw(st.sampled_from(CALLS[name])), switches)
