"""The plans of the fused optimizer steps on many GPUs, and what run() answers when a launch is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import aten_ext
from device_on_host import library
from gpus import GPUS, lacks, plan_needs, pretended

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
STEPS = ("_fused_adamw_", "_fused_adam_", "_fused_sgd_", "_fused_adagrad_")
SCALARS: dict[str, dict[str, Any]] = {
    "_fused_adamw_": dict(beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-6, amsgrad=False, maximize=False),
    "_fused_adam_": dict(beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-6, amsgrad=False, maximize=False),
    "_fused_sgd_": dict(
        weight_decay=0.1, momentum=0.9, dampening=0.0, nesterov=False, maximize=False, is_first_step=False
    ),
    "_fused_adagrad_": dict(lr_decay=0.0, weight_decay=0.1, eps=1e-3, maximize=False),
}
STATES = {"_fused_adamw_": 2, "_fused_adam_": 2, "_fused_sgd_": 1, "_fused_adagrad_": 1}
on_host = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


def call_of(
    step: str,
    sizes: list[int],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    lr: float | Tensor = 0.1,
) -> tuple[list[list[Tensor]], dict[str, Any]]:
    """Lists and scalars of one call."""
    generator = torch.Generator().manual_seed(0)

    def many() -> list[Tensor]:
        return [torch.randn(n, generator=generator).abs().to(dtype).to(device) for n in sizes]

    lists = [many() for _ in range(2 + STATES[step])]
    if step in ("_fused_adamw_", "_fused_adam_"):
        lists.append([])
    if step != "_fused_sgd_":
        lists.append([torch.tensor(3.0, device=device) for _ in sizes])
    return lists, SCALARS[step] | {"lr": lr}


def load(step: str) -> Any:
    """The emulator's library of this step, and its control."""
    name = {"_fused_adamw_": "fused_adam", "_fused_adam_": "fused_adam"}.get(step, step.strip("_"))
    library.load(name, f"ops/optimizer/cuda/{name}.cpp", f"ops/optimizer/cuda/{name}.cu")
    return getattr(torch.ops, f"aten_ext_on_host_{name}")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("overload", [*STEPS, *(f"{step}.tensor_lr" for step in STEPS)])
def test_what_is_chosen_fits(overload: str, gpu: str) -> None:
    step, _, tensor_lr = overload.partition(".")
    with pretended(GPUS[gpu]) as facts:
        for dtype in DTYPES:
            lr = torch.tensor(0.1) if tensor_lr else 0.1
            lists, scalars = call_of(step, [5, 7], dtype, "meta", lr)
            needs = plan_needs(overload, *lists, **scalars)
            assert needs is not None and lacks(facts, needs) is None


@pytest.mark.parametrize("gpu", GPUS)
def test_launches_overlap_where_the_code_waits(gpu: str) -> None:
    """Code before sm_90 does not wait at its end, whatever the GPU that runs it."""
    with pretended(GPUS[gpu]) as facts:
        lists, scalars = call_of("_fused_sgd_", [5], device="meta")
        plan = aten_ext.explain(torch._fused_sgd_, *lists, key="CUDA", **scalars).plan
    assert ("overlap" in plan) == (facts.code >= 90)
    assert f"{facts.argument_bytes} bytes" in plan


@on_host
@pytest.mark.parametrize("gpu", ["sm_75", "sm_90", "sm_120", "sm_90 with a driver before CUDA 12.1"])
@pytest.mark.parametrize("step", STEPS)
def test_it_runs(step: str, gpu: str) -> None:
    """More tensors than one launch takes, on the emulator."""
    control = load(step)
    sizes = [1 + i % 40 for i in range(950)]
    ours, scalars = call_of(step, sizes)
    theirs, _ = call_of(step, sizes)
    with pretended(GPUS[gpu], control.set_gpu):
        getattr(torch.ops.aten_ext_on_host, step).default(*ours, **scalars)
    with aten_ext.disabled():
        getattr(torch, step)(*theirs, **scalars)
    for mine, upstream in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, upstream)


@on_host
@pytest.mark.parametrize("step", STEPS)
def test_refused_launches(step: str) -> None:
    """The first one: upstream may take over, for nothing was written. A later one raises."""
    control = load(step)
    lists, scalars = call_of(step, [7] * 1000)
    before = [[t.clone() for t in tensors] for tensors in lists]
    call = getattr(torch.ops.aten_ext_on_host, step).default
    control.refuse(1)
    with pytest.raises(RuntimeError, match="declined late"):
        call(*lists, **scalars)
    for tensors, old in zip(lists, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors, old, strict=True))
    control.refuse(1, 1)
    with pytest.raises(RuntimeError, match="an error of device_on_host"):
        call(*lists, **scalars)
    assert not torch.equal(lists[0][0], before[0][0]) and torch.equal(lists[0][-1], before[0][-1])
    call(*lists, **scalars)
