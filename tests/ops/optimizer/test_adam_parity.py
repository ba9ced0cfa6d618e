"""_fused_adam_ and _fused_adamw_: upstream's bits, and no further from float64, whatever the lists."""

from __future__ import annotations

import threading
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import aten_ext
from ops.optimizer.adam_reference import (
    OVERRIDES,
    State,
    assert_ran,
    assert_same_bits,
    call,
    make_state,
    overload,
    reference,
    upstream,
)
from ops.optimizer.step_suite import KINDS_OF_TENSORS, every_flag
from strategies import FLOATING, shapes

NAMES = ("_fused_adamw_", "_fused_adam_")
SHAPES: list[tuple[int, ...]] = [(1003,), (17,), (0,), (64, 64), (5,), (), (31,), (3, 1024), (2, 3, 5, 7)]


def assert_no_less_accurate(ours: State, theirs: State, exact: State, factor: float = 1.0) -> None:
    """No further from float64 than ``factor`` times upstream's own result, list by list."""
    for (name, mine), other, truth in zip(
        ours.lists().items(), theirs.lists().values(), exact.lists().values(), strict=True
    ):
        for a, b, t in zip(mine, other, truth, strict=True):
            if a.numel():
                our_error = (a.double() - t).norm()
                assert our_error <= factor * (b.double() - t).norm(), name


def rounds_unlike_itself(name: str, state: State, device: str, changes: dict[str, Any]) -> bool:
    """Whether upstream's CUDA kernel is the one whose compiler rounds g + weight_decay * p in two ways.

    In fp32 Adam without amsgrad and grad_scale it does so twice for one element in four, once for the
    others. Ours does so once for all, which differs in the last bit of some first moments.
    """
    return (
        device == "cuda"
        and name == "_fused_adam_"
        and state.params[0].dtype == torch.float32
        and not changes.get("amsgrad", False)
        and changes.get("weight_decay", 0.01) != 0
        and "grad_scale" not in changes
    )


def step_and_compare(name: str, state: State, device: str, **changes: Any) -> None:
    theirs = upstream(name, state, **changes)
    exact = reference(name, state, **changes)
    excused = rounds_unlike_itself(name, state, device, changes)
    aten_ext.reset_counts()
    call(name, state, **changes)
    assert_ran(overload(name, changes), device)
    if excused:
        for mine, other in zip(state.lists().values(), theirs.lists().values(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)
        assert_no_less_accurate(state, theirs, exact, factor=1.01)
    else:
        assert_same_bits(state, theirs)
        assert_no_less_accurate(state, theirs, exact)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(NAMES),
    dtype=st.sampled_from(FLOATING),
    shapes=st.lists(shapes(), min_size=1, max_size=12),
    amsgrad=st.booleans(),
    maximize=st.booleans(),
    weight_decay=st.sampled_from([0.0, 0.01, 0.5]),
    betas=st.sampled_from([(0.9, 0.999), (0.0, 0.99), (0.4, 0.0), (0.95, 0.95)]),
    eps=st.sampled_from([1e-8, 1e-3]),
    step=st.sampled_from([1.0, 2.0, 1000.0, 1e6]),
    offset=st.integers(0, 3),
    reverse_strides=st.booleans(),
    scale=st.sampled_from([None, 1.0, 3.0, 65536.0]),
    lr=st.sampled_from(["float", "cpu tensor", "cpu float64 tensor", "device tensor"]),
    seed=st.integers(0, 2**16),
)
def test_step_matches_upstream(
    device: str,
    name: str,
    dtype: torch.dtype,
    shapes: list[tuple[int, ...]],
    amsgrad: bool,
    maximize: bool,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    step: float,
    offset: int,
    reverse_strides: bool,
    scale: float | None,
    lr: str,
    seed: int,
) -> None:
    permutation = tuple(reversed(range(len(shapes[0])))) if reverse_strides else None
    state = make_state(
        shapes,
        dtype=dtype,
        device=device,
        amsgrad=amsgrad,
        offset=offset,
        permutation=permutation,
        step=[step + i % 2 for i in range(len(shapes))],
        seed=seed,
    )
    rates: dict[str, Any] = {
        "float": 1e-3,
        "cpu tensor": torch.tensor(1e-3),
        "cpu float64 tensor": torch.tensor(1e-3, dtype=torch.float64),
        "device tensor": torch.tensor(1e-3, device=device),
    }
    changes: dict[str, Any] = dict(
        amsgrad=amsgrad,
        maximize=maximize,
        weight_decay=weight_decay,
        beta1=betas[0],
        beta2=betas[1],
        eps=eps,
        lr=rates[lr],
    )
    if scale is not None:
        changes["grad_scale"] = torch.tensor(scale, device=device)
        changes["found_inf"] = torch.tensor(0.0, device=device)
    step_and_compare(name, state, device, **changes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("dtype", FLOATING)
def test_every_dtype(device: str, name: str, amsgrad: bool, dtype: torch.dtype) -> None:
    state = make_state(SHAPES, dtype=dtype, device=device, amsgrad=amsgrad)
    step_and_compare(name, state, device, amsgrad=amsgrad)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("dtype", FLOATING)
def test_every_flag(device: str, name: str, amsgrad: bool, dtype: torch.dtype) -> None:
    """Upstream rounds in another order for some combinations."""
    flags = {"maximize": (False, True), "weight_decay": (0.0, 0.01), "grad_scale": (None, 3.0)}
    for options in every_flag(flags, device):
        for size, offset in KINDS_OF_TENSORS:
            state = make_state([(size,)], dtype=dtype, device=device, amsgrad=amsgrad, offset=offset)
            step_and_compare(name, state, device, amsgrad=amsgrad, **options)


# More tensors than one launch takes: 76 with small kernel arguments, about 600 with large ones.
@pytest.mark.parametrize("count", [75, 76, 77, 619, 620, 621, 2000])
def test_long_lists(device: str, count: int) -> None:
    sizes = [(1 + 37 * i % 90,) for i in range(count)]
    step_and_compare("_fused_adamw_", make_state(sizes, device=device), device)


def test_one_large_among_many_small(device: str) -> None:
    step_and_compare(
        "_fused_adamw_", make_state([(3,)] * 50 + [(300_001,)] + [(7,)] * 50, device=device), device
    )


@pytest.mark.parametrize("name", NAMES)
def test_found_inf_changes_nothing(device: str, name: str) -> None:
    state = make_state(SHAPES, device=device)
    before = state.clone()
    one = torch.tensor(1.0, device=device)
    call(name, state, grad_scale=torch.tensor(2.0, device=device), found_inf=one)
    assert_ran(name, device)
    assert_same_bits(state, before)


@pytest.mark.parametrize("count", [1, 3])
def test_only_empty_tensors(device: str, count: int) -> None:
    """Nothing to update is not an error, and nothing outside the list is looked at."""
    state = make_state([(0,), (3, 0)][: max(1, count - 1)] * count, device=device)
    call("_fused_adamw_", state)
    assert_ran("_fused_adamw_", device)
    assert all(t.numel() == 0 for t in state.params)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("margin", [16, 17])
def test_nothing_beside_a_tensor_is_written(device: str, dtype: torch.dtype, margin: int) -> None:
    """Each tensor lies in the middle of a larger one, aligned or not, whose margins stay as they are."""
    sizes = [1, 7, 0, 15, 64, 1003, 1025, 5000]
    state = make_state([(size,) for size in sizes], dtype=dtype, device=device, amsgrad=True)
    theirs = upstream("_fused_adamw_", state, amsgrad=True)
    margins = []
    for tensors in state.lists().values():
        for i, tensor in enumerate(tensors):
            whole = torch.full((len(tensor) + 2 * margin,), 7.0, dtype=dtype, device=device)
            tensors[i] = whole[margin : margin + len(tensor)].copy_(tensor)
            margins += [whole[:margin], whole[margin + len(tensor) :]]
    aten_ext.reset_counts()
    call("_fused_adamw_", state, amsgrad=True)
    assert_ran("_fused_adamw_", device)
    assert_same_bits(state, theirs)
    assert all((m == 7.0).all() for m in margins)


def test_non_finite_gradients(device: str) -> None:
    state = make_state([(40,)], device=device)
    state.grads[0][:6] = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e20, -1e30, 1e-40])
    theirs = upstream("_fused_adamw_", state)
    aten_ext.reset_counts()
    call("_fused_adamw_", state)
    assert_ran("_fused_adamw_", device)
    assert_same_bits(state, theirs)


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("name", ["grads", "exp_avg_sqs", "max_exp_avg_sqs"])
def test_nan_with_amsgrad(device: str, name: str, dtype: torch.dtype) -> None:
    """A new second moment that is NaN, or an old maximum: in whole vectors, and behind the last of them.

    Upstream's CPU kernel hands either on in vectors, but keeps the old maximum in the tail; its CUDA kernel
    keeps it everywhere.
    """
    state = make_state([(1027,), (64,), (5,)], dtype=dtype, device=device, amsgrad=True)
    for tensor in state.lists()[name]:
        tensor[:3] = torch.nan
        tensor[-2:] = torch.nan
    theirs = upstream("_fused_adamw_", state, amsgrad=True)
    aten_ext.reset_counts()
    call("_fused_adamw_", state, amsgrad=True)
    assert_ran("_fused_adamw_", device)
    assert_same_bits(state, theirs)
    largest = state.max_exp_avg_sqs[0].isnan()
    if name == "max_exp_avg_sqs":
        assert largest[:3].all() and largest[-2:].all()
    else:
        assert bool(largest[:3].all()) == (device == "cpu") and not largest[-2:].any()
    assert not largest[3:-2].any()


@pytest.mark.parametrize("name", OVERRIDES)
def test_found_inf_of_every_overload(device: str, name: str) -> None:
    """Whatever type the learning rate has."""
    state = make_state(SHAPES, device=device)
    before = state.clone()
    changes: dict[str, Any] = {"found_inf": torch.tensor(1.0, device=device)}
    if name.endswith(".tensor_lr"):
        changes["lr"] = torch.tensor(1e-3)
    aten_ext.reset_counts()
    call(name.partition(".")[0], state, **changes)
    assert_ran(name, device)
    assert_same_bits(state, before)
    changes["found_inf"].zero_()
    step_and_compare(name.partition(".")[0], state, device, **changes)
    assert not torch.equal(state.params[0], before.params[0])


def test_single_thread() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step_and_compare("_fused_adamw_", make_state([(30_000,)] * 5), "cpu")
    finally:
        torch.set_num_threads(threads)


def test_copy_on_write_tensors() -> None:
    """Gradients are read without copying them; what is written leaves the tensor it was cloned from alone."""
    sources = make_state([(100,)])
    state = State(
        *([torch._lazy_clone(t) for t in tensors] for tensors in sources.lists().values()), sources.steps
    )
    before = sources.clone()
    theirs = upstream("_fused_adamw_", before)
    aten_ext.reset_counts()
    call("_fused_adamw_", state)
    assert_ran("_fused_adamw_", "cpu")
    assert torch._C._is_cow_tensor(state.grads[0]) and not torch._C._is_cow_tensor(state.params[0])
    assert_same_bits(state, theirs)
    assert_same_bits(sources, before)


def test_steps_of_every_thread() -> None:
    """Calls from several threads at once."""
    states = [make_state([(500,)] * 40, seed=i) for i in range(4)]
    expected = [upstream("_fused_adamw_", state) for state in states]
    aten_ext.reset_counts()
    threads = [threading.Thread(target=call, args=("_fused_adamw_", state)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert aten_ext.counts("CPU")["_fused_adamw_"].ran == 4
    for state, theirs in zip(states, expected, strict=True):
        assert_same_bits(state, theirs)


@pytest.mark.gpu
def test_more_than_2_31_elements() -> None:
    """Indices past 32 bits: the ends of a tensor of 2^31 + 5 bf16 elements (4 lists of 4 GiB)."""
    count = 2**31 + 5
    if torch.cuda.mem_get_info()[0] < 5 * 2 * count:
        pytest.skip("needs 22 GB of GPU memory")

    def ends(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.cat([t[:1000], t[-1000:]]) for t in tensors]

    big = [torch.empty(count, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(4)]
    big[3].abs_()
    small = State(*([t] for t in ends(big)), [], [torch.tensor(1.0, device="cuda")])
    state = State(*([t] for t in big), [], [torch.tensor(1.0, device="cuda")])
    call("_fused_adamw_", state)
    assert_ran("_fused_adamw_", "cuda")
    theirs = upstream("_fused_adamw_", small)
    for mine, other in zip(
        ends(big), [tensors[0] for tensors in list(theirs.lists().values())[:4]], strict=True
    ):
        assert torch.equal(mine, other)


def test_overrides_are_those_of_the_table() -> None:
    assert {override.name for override in aten_ext.overrides()} >= set(OVERRIDES)
