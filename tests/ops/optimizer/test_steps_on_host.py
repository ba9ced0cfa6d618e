"""The CUDA kernels of the fused SGD and Adagrad steps, run on the CPU.

Their splitting, their edges, their arguments. Values are held to the formula in float64 within the rounding
of the dtype; bit for bit is for a GPU (test_sgd.py, test_adagrad.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from device_on_host import library
from gpus import GPUS, pretended
from ops.optimizer.step_suite import Maker, Step
from ops.optimizer.test_adagrad import make as make_adagrad
from ops.optimizer.test_adagrad import reference as adagrad_reference
from ops.optimizer.test_sgd import make as make_sgd
from ops.optimizer.test_sgd import reference as sgd_reference

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

STEPS = {"_fused_sgd_": (make_sgd, sgd_reference), "_fused_adagrad_": (make_adagrad, adagrad_reference)}
SIZES: list[tuple[int, ...]] = [(n,) for n in (1, 5, 7, 8, 1023, 1024, 1025, 2048, 5000)]
ORDERS = [(0, 0), (1, 0), (2, 7)]
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def call_on_host(step: Step, order: tuple[int, int] = (0, 0)) -> None:
    """Run the CUDA kernel of ``step``; ``order`` of the threads of a block."""
    name = step.op.strip("_")
    library.load(name, f"ops/optimizer/cuda/{name}.cpp", f"ops/optimizer/cuda/{name}.cu")
    set_order = getattr(torch.ops, f"aten_ext_on_host_{name}").set_order
    set_order(*order)
    operator = getattr(torch.ops.aten_ext_on_host, step.op)
    overload = operator.tensor_lr if step.override != step.op else operator.default
    overload(*step.lists.values(), **step.options)
    set_order(0, 0)


def check(step: Step, order: tuple[int, int] = (0, 0)) -> None:
    """What the formula in float64 gives, within the rounding of the dtype; gradients only where unscaled."""
    exact, before = STEPS[step.op][1](step), step.clone()
    call_on_host(step, order)
    dtype = step.lists["params"][0].dtype
    for name in step.written:
        for mine, truth in zip(step.lists[name], exact[name], strict=True):
            torch.testing.assert_close(
                mine.double(), truth, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype] / 10
            )
    scale = step.options.get("grad_scale")
    for mine, old in zip(step.lists["grads"], before.lists["grads"], strict=True):
        expected = old if scale is None else (old.to(scale.dtype) / scale).to(old.dtype)
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("order", ORDERS, ids=["forward", "backward", "shuffled"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("_fused_sgd_", dict(momentum=0.0)),
        ("_fused_sgd_", dict(nesterov=True, maximize=True, dampening=0.1)),
        ("_fused_sgd_", dict(is_first_step=True)),
        ("_fused_sgd_", dict(lr=torch.tensor(0.25))),
        ("_fused_adagrad_", dict(lr_decay=0.1, maximize=True, eps=1e-3)),
        ("_fused_adagrad_", dict(weight_decay=0.0, eps=1e-3, lr=torch.tensor(0.25))),
    ],
)
def test_formula(
    op: str, options: dict[str, Any], offset: int, dtype: torch.dtype, order: tuple[int, int]
) -> None:
    check(STEPS[op][0](Maker(SIZES, dtype, offset=offset), **options), order)


# One either side of what one launch takes with small kernel arguments, and with large ones.
@pytest.mark.parametrize("count", [87, 88, 107, 108, 730, 731, 893, 894])
@pytest.mark.parametrize("op", STEPS)
@pytest.mark.parametrize("scaled", [False, True])
def test_lists_of_any_length(op: str, count: int, scaled: bool) -> None:
    options: dict[str, Any] = {"eps": 1e-3} if op == "_fused_adagrad_" else {}
    if scaled:
        options["found_inf"] = torch.tensor(0.0)
        if op != "_fused_adagrad_":  # which leaves scaled gradients to upstream
            options["grad_scale"] = torch.tensor(3.0)
    check(STEPS[op][0](Maker([(1 + 37 * i % 300,) for i in range(count)]), **options))


def multiply_add(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """The sum of a * b and c, rounded once (but for one in millions, which float64 rounds before)."""
    return (a.double() * b.double() + c.double()).float()


@pytest.mark.parametrize(
    ("size", "offset", "changes", "of_fours"),
    [
        (4096, 0, {}, True),
        (4096, 4, {}, True),
        (4098, 0, {}, False),
        (4096, 1, {}, False),
        (4096, 0, {"maximize": False}, False),
        (4096, 0, {"grad_scale": torch.tensor(1.0)}, False),
        (4096, 0, {"weight_decay": 2.0**-120}, False),
    ],
)
def test_sgd_rounds_what_upstream_rounds(
    size: int, offset: int, changes: dict[str, Any], of_fours: bool
) -> None:
    """With maximize, of tensors that upstream loads by fours, (1 - dampening) * g, and else momentum * b."""
    options = {"maximize": True, "weight_decay": 0.0, "dampening": 0.1} | changes
    step = make_sgd(Maker([(size,)], torch.float32, offset=offset), **options)
    before = step.clone()
    call_on_host(step)
    (gradient,), (buffer,) = before.lists["grads"], before.lists["momentum_buffers"]
    gradient = -gradient if options["maximize"] else gradient
    momentum, rest = torch.tensor(0.9), 1 - torch.tensor(0.1)
    expected = (
        multiply_add(momentum, buffer, rest * gradient)
        if of_fours
        else multiply_add(rest, gradient, momentum * buffer)
    )
    assert torch.equal(step.lists["momentum_buffers"][0], expected)


@pytest.mark.parametrize("op", STEPS)
def test_a_driver_that_takes_small_arguments_alone(op: str) -> None:
    """A list that is too long for them is several launches there, and one where 32 KB are taken."""

    def launches() -> list[str]:
        check(STEPS[op][0](Maker([(1 + i,) for i in range(300)])))
        took: list[str] = ops.launched()
        return took

    call_on_host(STEPS[op][0](Maker(SIZES)))  # loads it
    ops = getattr(torch.ops, f"aten_ext_on_host_{op.strip('_')}")
    ops.launched()
    assert len(launches()) == 1
    with pretended(dataclasses.replace(GPUS["sm_90"], argument_bytes=4096), ops.set_gpu):
        took = launches()
    assert len(took) > 1 and all("4096" in arguments for arguments in took), took


@pytest.mark.parametrize("multiprocessors", [1, 4, 132])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("op", STEPS)
def test_lists_of_few_chunks(op: str, dtype: torch.dtype, multiprocessors: int) -> None:
    """Cut finer where they would leave multiprocessors idle: vectors, halves of them, and neither.

    Lists whose tensors are a block each, one tensor of several blocks, and neither.
    """
    gpu = dataclasses.replace(GPUS["sm_90"], multiprocessors=multiprocessors)
    call_on_host(STEPS[op][0](Maker(SIZES)))  # loads it
    ops = getattr(torch.ops, f"aten_ext_on_host_{op.strip('_')}")
    few = [[1, 3, 4, 8, 12, 100], [1024, 1, 256], [200, 0, 5], [8, 1500, 8]]
    with pretended(gpu, ops.set_gpu):
        for sizes in (*few, [2000, 4100, 900], [4096] * 3, [30000]):
            check(STEPS[op][0](Maker([(n,) for n in sizes], dtype)))


@pytest.mark.parametrize("op", STEPS)
def test_found_inf_changes_nothing(op: str) -> None:
    scale = {"found_inf": torch.tensor(1.0)}
    if op != "_fused_adagrad_":
        scale["grad_scale"] = torch.tensor(2.0)
    step = STEPS[op][0](Maker(SIZES), **scale)
    before = step.clone()
    call_on_host(step)
    for mine, old in zip(step.lists.values(), before.lists.values(), strict=True):
        for a, b in zip(mine, old, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("op", STEPS)
def test_only_empty_tensors(op: str) -> None:
    call_on_host(STEPS[op][0](Maker([(0,), (3, 0)])))
