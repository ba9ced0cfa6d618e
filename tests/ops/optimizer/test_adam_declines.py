"""_fused_adam_ and _fused_adamw_ where ours declines or is off: upstream's own result, or its own error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import aten_ext
from ops.optimizer.adam_reference import LISTS, State, assert_same_bits, call, make_state, overload


def assert_declined(name: str, device: str, reason: str) -> None:
    counts = aten_ext.counts(device.upper())[name]
    assert (counts.ran, dict(counts.declined)) == (0, {reason: 1})


def mixed_dtypes(state: State) -> dict[str, Any]:
    state.params[1] = state.params[1].double()
    for tensors in (state.grads, state.exp_avgs, state.exp_avg_sqs):
        tensors[1] = tensors[1].double()
    return {}


def mixed_dtypes_between_lists(state: State) -> dict[str, Any]:
    state.exp_avgs[0] = state.exp_avgs[0].bfloat16()
    return {}


def integers(state: State) -> dict[str, Any]:
    for name, tensors in state.lists().items():
        setattr(state, name, [t.long() for t in tensors])
    return {}


def not_dense(state: State) -> dict[str, Any]:
    # Upstream's CPU kernel takes the first numel() elements of the storage for the tensor; so be it.
    for name, tensors in state.lists().items():
        setattr(state, name, [t.repeat_interleave(2, dim=-1)[..., ::2] for t in tensors])
    return {}


def strides_differ(state: State) -> dict[str, Any]:
    state.grads[0] = torch.randn(8, 16, device=state.params[0].device).t()
    return {}


def sizes_differ(state: State) -> dict[str, Any]:
    state.grads[0] = state.grads[0].reshape(-1)
    return {}


def short_list(state: State) -> dict[str, Any]:
    state.grads.pop()
    return {}


def max_without_amsgrad(state: State) -> dict[str, Any]:
    state.max_exp_avg_sqs = [t.clone() for t in state.exp_avg_sqs]
    return {}


def float64_step(state: State) -> dict[str, Any]:
    state.steps[1] = state.steps[1].double()
    return {}


def float64_scale(state: State) -> dict[str, Any]:
    return {"grad_scale": torch.tensor(2.0, dtype=torch.float64)}


def two_rates(state: State) -> dict[str, Any]:
    return {"lr": torch.tensor([1e-3, 1e-3])}


DECLINES: list[tuple[Callable[[State], dict[str, Any]], str]] = [
    (mixed_dtypes, "more than one dtype"),
    (mixed_dtypes_between_lists, "more than one dtype"),
    (integers, "dtype other than float32, float16, bfloat16, float64"),
    (not_dense, "tensor that is not dense"),
    (strides_differ, "shapes or strides that differ between the lists"),
    (sizes_differ, "shapes or strides that differ between the lists"),
    (short_list, "lists of different lengths"),
    (max_without_amsgrad, "lists of different lengths"),
    (float64_step, "step that is not one float32 on the parameters' device"),
    (float64_scale, "grad_scale or found_inf that is not one float32 on the parameters' device"),
    (two_rates, "lr that is not one number on the parameters' device"),
]


def outcome(state: State, changes: dict[str, Any]) -> tuple[str, str] | None:
    """The type and text of the error that a call raises, if it does."""
    try:
        call("_fused_adamw_", state, **changes)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


@pytest.mark.parametrize(("spoil", "reason"), DECLINES, ids=[spoil.__name__ for spoil, _ in DECLINES])
def test_decline_is_upstream(spoil: Callable[[State], dict[str, Any]], reason: str) -> None:
    """Same result or same error as without aten_ext, and counted under its own reason."""
    ours = make_state([(16, 8), (8, 4)])
    changes = spoil(ours)
    theirs = copy.deepcopy(ours)
    with aten_ext.disabled():
        expected = outcome(theirs, changes)
    aten_ext.reset_counts()
    assert outcome(ours, changes) == expected
    assert_declined(overload("_fused_adamw_", changes), "cpu", reason)
    for mine, other in zip(ours.lists().values(), theirs.lists().values(), strict=True):
        for a, b in zip(mine, other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("partly", [False, True], ids=["all of it", "one element"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((name, name) for name in LISTS),
        ("exp_avgs", "max_exp_avg_sqs"),
        ("grads", "exp_avg_sqs"),
        ("params", "grads"),
    ],
)
def test_memory_in_common(first: str, second: str, partly: bool) -> None:
    """Upstream takes one tensor after the other, ours all at once: a race, of 100,000 elements at least."""
    size = 50_000
    changes: dict[str, Any] = {"amsgrad": True}
    if first == second == "grads":
        changes["grad_scale"] = torch.tensor(2.0)  # or gradients are only read

    def make() -> State:
        state = make_state([(size,)] * 4, amsgrad=True)
        one, other = state.lists()[first], state.lists()[second]
        if partly:
            memory = torch.cat([one[0], other[3]]).abs_()
            one[0], other[3] = memory[:size], memory[size - 1 : 2 * size - 1]
        else:
            other[3] = one[0].abs_()
        return state

    ours, theirs = make(), make()
    with aten_ext.disabled():
        call("_fused_adamw_", theirs, **changes)
    aten_ext.reset_counts()
    call("_fused_adamw_", ours, **changes)
    assert_declined("_fused_adamw_", "cpu", "tensors that share memory")
    assert_same_bits(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [(spoil, reason) for spoil, reason in DECLINES if spoil in (not_dense, sizes_differ, strides_differ)],
)
def test_decline_is_upstream_on_gpu(spoil: Callable[[State], dict[str, Any]], reason: str) -> None:
    """Where upstream raises, it is upstream that raises, and nothing has been touched."""
    ours = make_state([(16, 8), (8, 4)], device="cuda")
    changes = spoil(ours)
    before = copy.deepcopy(ours)
    with aten_ext.disabled():
        expected = outcome(copy.deepcopy(ours), changes)
    assert expected is not None
    aten_ext.reset_counts()
    assert outcome(ours, changes) == expected
    assert_declined("_fused_adamw_", "cuda", reason)
    assert_same_bits(ours, before)


def test_empty_list_is_upstream() -> None:
    nothing = State([], [], [], [], [], [])
    changes = {"grad_scale": torch.tensor(1.0)}
    with aten_ext.disabled():
        expected = outcome(nothing, changes)
    aten_ext.reset_counts()
    assert outcome(nothing, changes) == expected
    assert_declined("_fused_adamw_", "cpu", "no tensors")


def test_disabled_is_counted(device: str) -> None:
    with aten_ext.disabled("_fused_adamw_"):
        call("_fused_adamw_", make_state([(4,)], device=device))
        call("_fused_adam_", make_state([(4,)], device=device))
    counts = aten_ext.counts(device.upper())
    assert (counts["_fused_adamw_"].disabled, counts["_fused_adamw_"].ran) == (1, 0)
    assert (counts["_fused_adam_"].disabled, counts["_fused_adam_"].ran) == (0, 1)
