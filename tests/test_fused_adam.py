"""_fused_adam_ and _fused_adamw_: the fused step against upstream and against float64, and every decline."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import aten_ext
from fused_adam_reference import OVERRIDES, State, call, make_state, overload, reference, upstream
from strategies import FLOATING, shapes

NAMES = ("_fused_adamw_", "_fused_adam_")
SHAPES: list[tuple[int, ...]] = [(1003,), (17,), (0,), (64, 64), (5,), (), (31,), (3, 1024), (2, 3, 5, 7)]


def assert_ran(name: str, device: str) -> None:
    """The fused kernel of this override ran, and nothing went upstream."""
    counts = aten_ext.counts(device.upper())[name]
    assert (counts.ran, dict(counts.declined)) == (1, {})


def assert_declined(name: str, device: str, reason: str) -> None:
    counts = aten_ext.counts(device.upper())[name]
    assert (counts.ran, dict(counts.declined)) == (0, {reason: 1})


def assert_same_bits(ours: State, theirs: State) -> None:
    """Every element of every list is the same, NaN for NaN."""
    for (name, mine), other in zip(ours.lists().items(), theirs.lists().values(), strict=True):
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert a.stride() == b.stride()
            torch.testing.assert_close(
                a, b, rtol=0, atol=0, equal_nan=True, msg=lambda m, name=name, i=i: f"{name}[{i}]: {m}"
            )


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


@pytest.mark.parametrize("tensors", [2, 4])
def test_same_parameter_twice(tensors: int) -> None:
    """Two steps in a row, as upstream takes them on CPU (on CUDA upstream itself races).

    First and last of two: were the list shared out by elements, both steps would be taken at the same time.
    """
    state = make_state([(400_000,)] * tensors)
    theirs = state.clone()
    for one in (state, theirs):
        for tensors_of in (one.params, one.exp_avgs, one.exp_avg_sqs):
            tensors_of[-1] = tensors_of[0]
    for _ in range(3):
        with aten_ext.disabled():
            call("_fused_adamw_", theirs)
        aten_ext.reset_counts()
        call("_fused_adamw_", state)
        assert_ran("_fused_adamw_", "cpu")
        assert_same_bits(state, theirs)


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


# ---- declines: upstream's own result, or upstream's own error ----------------------------------------


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


# ---- through torch.optim ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("AdamW", {}, "_fused_adamw_"),
        ("Adam", {"weight_decay": 0.1}, "_fused_adam_"),
        ("AdamW", {"amsgrad": True, "maximize": True}, "_fused_adamw_"),
        ("AdamW", {"lr": torch.tensor(1e-2)}, "_fused_adamw_.tensor_lr"),
        ("Adam", {"lr": torch.tensor(1e-2)}, "_fused_adam_.tensor_lr"),
    ],
)
def test_optimizer(device: str, kind: str, changes: dict[str, Any], expected: str) -> None:
    """Twenty steps of a small model: the same losses with and without, to the bit."""

    def train(enabled: bool) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(13, 31), torch.nn.ReLU(), torch.nn.Linear(31, 3)).to(
            device
        )
        moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in changes.items()}
        optimizer = getattr(torch.optim, kind)(model.parameters(), fused=True, **moved)
        x = torch.randn(16, 13, device=device)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            if enabled:
                optimizer.step()
            else:
                with aten_ext.disabled():
                    optimizer.step()
            losses.append(loss.item())
        return losses

    theirs = train(enabled=False)
    aten_ext.reset_counts()
    ours = train(enabled=True)
    assert aten_ext.counts(device.upper())[expected].ran == 20
    if device == "cuda" and kind == "Adam":  # see rounds_unlike_itself
        assert ours == pytest.approx(theirs, rel=1e-5)
    else:
        assert ours == theirs


def test_grad_scaler(device: str) -> None:
    """GradScaler hands grad_scale and found_inf to the fused step; a step with inf changes nothing."""
    parameter = torch.nn.Parameter(torch.ones(10, device=device))
    optimizer = torch.optim.AdamW([parameter], fused=True)
    scaler = torch.amp.GradScaler(device, init_scale=8.0)
    for factor in (1.0, torch.inf):
        before = parameter.detach().clone()
        optimizer.zero_grad()
        scaler.scale((parameter * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(parameter, before) == (factor == torch.inf)
    assert aten_ext.counts(device.upper())["_fused_adamw_"].ran == 2
    assert scaler.get_scale() == 4.0


# ---- CUDA alone -------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_graph_capture() -> None:
    """Captured, replayed with new gradients, and equal to the same steps without a graph."""
    state = make_state([(1000,), (7,)] * 50, device="cuda")
    expected = state.clone()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call("_fused_adamw_", make_state([(4,)], device="cuda"))  # load the kernel outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call("_fused_adamw_", state)
    for seed in range(5):
        fresh = make_state([(1000,), (7,)] * 50, device="cuda", seed=seed)
        for target in (state, expected):
            for mine, new in zip(target.grads, fresh.grads, strict=True):
                mine.copy_(new)
        graph.replay()
        with aten_ext.disabled():
            call("_fused_adamw_", expected)
    torch.cuda.synchronize()
    assert aten_ext.counts("CUDA")["_fused_adamw_"].ran == 2, "once to load the kernel, once captured"
    assert_same_bits(state, expected)


@pytest.mark.gpu
def test_no_synchronisation() -> None:
    state = make_state([(100,)] * 10, device="cuda")
    call("_fused_adamw_", state)
    torch.cuda.set_sync_debug_mode("error")
    try:
        scale = dict(grad_scale=state.steps[0], found_inf=state.steps[1])
        call("_fused_adamw_", state, lr=state.steps[0], **scale)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_ran("_fused_adamw_", "cuda")
    assert_ran("_fused_adamw_.tensor_lr", "cuda")


@pytest.mark.gpu
def test_other_stream_and_device() -> None:
    """On the last device, from a stream of its own, while device 0 is the current one."""
    device = f"cuda:{torch.cuda.device_count() - 1}"
    state = make_state([(5000,)] * 3, device=device)
    theirs = upstream("_fused_adamw_", state)
    torch.cuda.synchronize(device)
    stream = torch.cuda.Stream(device)
    aten_ext.reset_counts()
    with torch.cuda.stream(stream):
        call("_fused_adamw_", state)
    stream.synchronize()
    assert_ran("_fused_adamw_", "cuda")
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
