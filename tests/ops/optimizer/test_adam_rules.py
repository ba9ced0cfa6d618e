"""The decline rules of the fused Adam step, each broken alone and asked with tensors that hold nothing.

test_adam_declines.py shows for some of them that the call then gives upstream's result; here
every list and every property has its turn, at both dispatch keys, on a machine without a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import aten_ext
from aten_ext import Explanation
from ops.optimizer.adam_reference import State, make_state, options
from paths import TESTS

KEYS = ("CPU", "CUDA")
OPS = ("_fused_adamw_", "_fused_adam_")
LISTS = ("params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
META = torch.device("meta")


def ask(op: str, key: str, state: State, **changes: Any) -> Explanation:
    lists = [getattr(state, name) for name in (*LISTS, "steps")]
    return aten_ext.explain(op, *lists, key=key, **options(**changes))


def empty(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.empty(*shape, **({"device": META} | kwargs))


def check(op: str, key: str, state: State, reason: str, **changes: Any) -> None:
    """The answer is ``reason``, or fused if that is empty."""
    explanation = ask(op, key, state, **changes)
    assert (explanation.route, explanation.reason) == ("upstream" if reason else "fused", reason)


@pytest.fixture(params=KEYS)
def key(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=OPS)
def op(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def state() -> State:
    """Two parameters with all five lists."""
    return make_state([(16, 8), (8, 4)], device="meta", amsgrad=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_fused(op: str, key: str, dtype: torch.dtype, amsgrad: bool) -> None:
    shapes: list[tuple[int, ...]] = [(3, 4), (), (0,), (2, 3, 4, 5)]
    whole = make_state(shapes, device="meta", dtype=dtype, amsgrad=amsgrad)
    one = empty((), dtype=torch.float32)
    for changes in ({}, {"grad_scale": one}, {"found_inf": one}, {"lr": one}):
        check(op, key, whole, "", amsgrad=amsgrad, **changes)


@pytest.mark.parametrize("name", (*LISTS, "steps"))
@pytest.mark.parametrize(
    "spoil", [list.pop, lambda tensors: tensors.append(tensors[0])], ids=["short", "long"]
)
def test_lengths(op: str, key: str, state: State, name: str, spoil: Callable[[Any], Any]) -> None:
    spoil(getattr(state, name))
    check(op, key, state, "lists of different lengths", amsgrad=True)


def test_fifth_list_without_amsgrad(op: str, key: str, state: State) -> None:
    check(op, key, state, "lists of different lengths", amsgrad=False)


def test_no_tensors(op: str, key: str) -> None:
    check(op, key, State([], [], [], [], [], []), "no tensors")


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn, torch.bool])
def test_dtype_of_all(op: str, key: str, state: State, dtype: torch.dtype) -> None:
    for name in LISTS:
        setattr(state, name, [empty(t.shape, dtype=dtype) for t in getattr(state, name)])
    check(op, key, state, "dtype other than float32, float16, bfloat16, float64", amsgrad=True)


# One tensor of one list is unlike the others: the first or the last, since the rule is asked of each.
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", LISTS)
def test_dtype_of_one(op: str, key: str, state: State, name: str, position: int) -> None:
    getattr(state, name)[position] = getattr(state, name)[position].double()
    check(op, key, state, "more than one dtype", amsgrad=True)


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", LISTS)
def test_device_of_one(op: str, key: str, state: State, name: str, position: int) -> None:
    getattr(state, name)[position] = torch.empty(getattr(state, name)[position].shape, device="cpu")
    reason = "more than one device"
    if name == "params" and position == 0:
        # The device that all others are held against; the steps are looked at first.
        reason = "step that is not one float32 on the parameters' device"
    check(op, key, state, reason, amsgrad=True)


@pytest.mark.parametrize("kind", ["gaps", "overlap", "sparse"])
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", LISTS)
def test_one_not_dense(op: str, key: str, state: State, name: str, position: int, kind: str) -> None:
    rows, columns = getattr(state, name)[position].shape
    getattr(state, name)[position] = {
        "gaps": lambda: empty(rows, 2 * columns)[:, ::2],
        "overlap": lambda: empty(1, columns).expand(rows, columns),
        "sparse": lambda: torch.sparse_coo_tensor(size=(rows, columns), device=META, check_invariants=False),
    }[kind]()
    check(op, key, state, "tensor that is not dense", amsgrad=True)


@pytest.mark.parametrize("kind", ["transposed", "flat", "other shape", "extra dimension"])
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("name", LISTS)
def test_geometry_of_one(op: str, key: str, state: State, name: str, position: int, kind: str) -> None:
    rows, columns = getattr(state, name)[position].shape
    getattr(state, name)[position] = {
        "transposed": lambda: empty(columns, rows).t(),
        "flat": lambda: empty(rows * columns),
        "other shape": lambda: empty(columns, rows),
        "extra dimension": lambda: empty(rows, columns, 1),
    }[kind]()
    check(op, key, state, "shapes or strides that differ between the lists", amsgrad=True)


@pytest.mark.parametrize("name", LISTS[:4])
def test_geometry_without_amsgrad(op: str, key: str, state: State, name: str) -> None:
    """The rule then has other lists."""
    state.max_exp_avg_sqs = []
    check(op, key, state, "")
    getattr(state, name)[1] = empty(4, 8)
    check(op, key, state, "shapes or strides that differ between the lists")


def test_strides_of_size_one_do_not_matter(op: str, key: str) -> None:
    """The index of each place in memory is the same, whatever the stride of a dimension of one."""
    state = make_state([(3, 1, 4)], device="meta", permutation=(2, 1, 0))
    assert not state.params[0].is_contiguous()
    state.grads[0] = state.grads[0].as_strided((3, 1, 4), (1, 99, 3))
    check(op, key, state, "")
    state.grads[0] = empty(3, 1, 4)
    check(op, key, state, "shapes or strides that differ between the lists")


BAD_SCALARS: dict[str, Callable[[], torch.Tensor]] = {
    "float64": lambda: empty((), dtype=torch.float64),
    "integer": lambda: empty((), dtype=torch.int64),
    "two": lambda: empty(2),
    "none": lambda: empty(0),
    "elsewhere": lambda: torch.ones(()),
    "sparse": lambda: torch.sparse_coo_tensor(size=(1,), device=META, check_invariants=False),
}


@pytest.mark.parametrize("kind", BAD_SCALARS)
@pytest.mark.parametrize("position", [0, 1])
def test_step(op: str, key: str, state: State, kind: str, position: int) -> None:
    state.steps[position] = BAD_SCALARS[kind]()
    check(op, key, state, "step that is not one float32 on the parameters' device", amsgrad=True)


@pytest.mark.parametrize("kind", BAD_SCALARS)
@pytest.mark.parametrize("argument", ["grad_scale", "found_inf"])
def test_scale(op: str, key: str, state: State, argument: str, kind: str) -> None:
    reason = "grad_scale or found_inf that is not one float32 on the parameters' device"
    check(op, key, state, reason, amsgrad=True, **{argument: BAD_SCALARS[kind]()})


ON_CPU = "lr that is not one number on the parameters' device"
ON_CUDA = "lr that is neither one number on the CPU nor one float32 on the device"


@pytest.mark.parametrize(
    ("key", "kind", "reason"),
    [
        *(("CPU", kind, "") for kind in ("float64", "integer")),
        *(("CPU", kind, ON_CPU) for kind in ("two", "none", "elsewhere", "sparse")),
        ("CUDA", "elsewhere", ""),  # on the CPU: read on the host
        *(("CUDA", kind, ON_CUDA) for kind in ("float64", "integer", "two", "none", "sparse")),
    ],
)
def test_lr(op: str, key: str, state: State, kind: str, reason: str) -> None:
    check(op, key, state, reason, amsgrad=True, lr=BAD_SCALARS[kind]())
    assert ask(op, key, state, amsgrad=True, lr=BAD_SCALARS[kind]()).override == f"{op}.tensor_lr"


@pytest.mark.parametrize(
    "lr", [torch.ones(2), torch.ones(0), torch.ones(1).to_sparse()], ids=["two", "none", "sparse"]
)
def test_lr_on_the_host_that_is_no_number(op: str, state: State, lr: torch.Tensor) -> None:
    check(op, "CUDA", state, ON_CUDA, amsgrad=True, lr=lr)


def test_first_rule_of_tensor_lr_is_that_of_the_lists(op: str, key: str) -> None:
    """The learning rate is held against a parameter only where there is one."""
    check(op, key, State([], [], [], [], [], []), "no tensors", lr=torch.tensor(1e-3))


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_cpu_without_avx2(capability: str) -> None:
    """ATen's own switch of instruction sets, read when torch is imported."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("this CPU has no AVX2")
    code = """
import torch, aten_ext
from ops.optimizer.adam_reference import call, make_state, upstream
state = make_state([(1003,), (5,)])
theirs = upstream("_fused_adamw_", state)
aten_ext.reset_counts()
call("_fused_adamw_", state)
counts = aten_ext.counts("CPU")["_fused_adamw_"]
same = all(torch.equal(a, b) for a, b in zip(state.params, theirs.params))
print(torch.backends.cpu.get_cpu_capability(), counts.ran, dict(counts.declined), same)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"ATEN_CPU_CAPABILITY": capability},
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=120,
    )
    expected = {"default": "DEFAULT 0 {'CPU without AVX2': 1} True", "avx2": "AVX2 1 {} True"}
    assert (run.stdout.strip(), run.stderr) == (expected[capability], "")


def test_the_plan_in_words() -> None:
    """One thread for what is not worth more, by the number of elements of all parameters."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for last, words in ((8191, "one thread"), (8192, "one parallel region over the whole list")):
            answer = ask("_fused_adamw_", "CPU", make_state([(8000,), (192,), (last,)]))
            assert (answer.reason, answer.plan) == ("", words)
    finally:
        torch.set_num_threads(threads)
