"""The CUDA kernel of the fused Adam step, run on the CPU: its splitting, its edges, its arguments.

The last bits of pow differ between the two, so values are compared within a tolerance; bit for bit is for a
GPU (test_adam_parity.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from device_on_host import library
from gpus import GPUS, pretended

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

# More tensors than kernel arguments of 4 KB hold (75), than those of 32 KB hold (610), and what fits both.
COUNTS = [1, 3, 76, 700]
SCALARS = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6}


def make_lists(sizes: list[int], dtype: torch.dtype, offset: int, amsgrad: bool) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)

    def one(size: int, positive: bool) -> torch.Tensor:
        values = torch.randn(size + offset, generator=generator).to(dtype)
        return (values.abs() if positive else values)[offset:]

    lists = [[one(size, which >= 3) for size in sizes] for which in range(5 if amsgrad else 4)]
    return [*lists, *([] if amsgrad else [[]]), [torch.tensor(float(3 + i % 2)) for i in range(len(sizes))]]


@pytest.mark.parametrize("order", [(0, 0), (1, 0), (2, 7)], ids=["forward", "backward", "shuffled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_parity(order: tuple[int, int], dtype: torch.dtype, offset: int, amsgrad: bool) -> None:
    library.load("fused_adam", "ops/optimizer/cuda/fused_adam.cpp", "ops/optimizer/cuda/fused_adam.cu")
    torch.ops.aten_ext_on_host_fused_adam.set_order(*order)
    sizes = [1, 5, 7, 8, 1023, 1024, 1025, 2048, 5000]
    options: dict[str, Any] = SCALARS | {"weight_decay": 0.1, "amsgrad": amsgrad, "maximize": True}
    ours, theirs = (make_lists(sizes, dtype, offset, amsgrad) for _ in range(2))
    torch.ops.aten_ext_on_host._fused_adamw_(*ours, **options)
    torch._fused_adamw_(*theirs, **options)
    torch.ops.aten_ext_on_host_fused_adam.set_order(0, 0)
    for mine, upstream in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(mine, upstream)


@pytest.mark.parametrize("multiprocessors", [1, 4, 132])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_lists_of_few_chunks(dtype: torch.dtype, amsgrad: bool, multiprocessors: int) -> None:
    """Cut finer where they would leave multiprocessors idle: vectors, halves of them, and neither."""
    library.load("fused_adam", "ops/optimizer/cuda/fused_adam.cpp", "ops/optimizer/cuda/fused_adam.cu")
    gpu = dataclasses.replace(GPUS["sm_90"], multiprocessors=multiprocessors)
    options: dict[str, Any] = SCALARS | {"weight_decay": 0.1, "amsgrad": amsgrad, "maximize": False}
    with pretended(gpu, torch.ops.aten_ext_on_host_fused_adam.set_gpu):
        for sizes in ([1, 3, 4, 8, 12, 100], [2000, 4100, 900], [4096] * 3, [30000]):
            ours, theirs = (make_lists(sizes, dtype, 0, amsgrad) for _ in range(2))
            torch.ops.aten_ext_on_host._fused_adamw_(*ours, **options)
            torch._fused_adamw_(*theirs, **options)
            for mine, upstream in zip(ours[:-1], theirs[:-1], strict=True):
                torch.testing.assert_close(mine, upstream)


@pytest.mark.parametrize("lr", ["number", "tensor"])
@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_decay_of_every_overload(name: str, lr: str, dtype: torch.dtype, amsgrad: bool) -> None:
    """Adam adds the decay to the gradient, AdamW takes it from the parameter, whatever type the rate has."""
    library.load("fused_adam", "ops/optimizer/cuda/fused_adam.cpp", "ops/optimizer/cuda/fused_adam.cu")
    sizes = [5, 1023, 2048]
    options: dict[str, Any] = SCALARS | {"weight_decay": 0.5, "amsgrad": amsgrad, "maximize": False}
    ours, theirs, other = (make_lists(sizes, dtype, 0, amsgrad) for _ in range(3))
    operator = getattr(torch.ops.aten_ext_on_host, name)
    if lr == "tensor":
        operator.tensor_lr(*ours, **(options | {"lr": torch.tensor(0.1)}))
    else:
        operator.default(*ours, **options)
    getattr(torch, name)(*theirs, **options)
    getattr(torch, {"_fused_adam_": "_fused_adamw_", "_fused_adamw_": "_fused_adam_"}[name])(
        *other, **options
    )
    for mine, upstream, wrong in zip(ours[:4], theirs[:4], other[:4], strict=True):
        torch.testing.assert_close(mine, upstream)
        if mine is not ours[1]:  # the gradients are none's to write
            assert all((a - b).abs().max() > 0.01 for a, b in zip(upstream, wrong, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("offset", [0, 1])
def test_nan_with_amsgrad(dtype: torch.dtype, offset: int) -> None:
    """std::max of the old and the new second moment, as upstream's CUDA kernel has it.

    An old maximum that is NaN stays; a new moment that is NaN does not replace a number.
    """
    library.load("fused_adam", "ops/optimizer/cuda/fused_adam.cpp", "ops/optimizer/cuda/fused_adam.cu")
    options: dict[str, Any] = SCALARS | {"weight_decay": 0.1, "amsgrad": True, "maximize": False}
    lists = make_lists([1029, 64], dtype, offset, True)
    for tensors in lists[3:5]:
        for t in tensors:
            t.fill_(4.0)
    for new, old in zip(lists[3], lists[4], strict=True):
        old[:2], old[-2:] = torch.nan, torch.nan
        new[2:4], new[-4:-2] = torch.nan, torch.nan
    torch.ops.aten_ext_on_host._fused_adamw_(*lists, **options)
    for param, new, old in zip(lists[0], lists[3], lists[4], strict=True):
        expected = torch.zeros(len(old), dtype=torch.bool)
        expected[:2] = expected[-2:] = True
        assert torch.equal(old.isnan(), expected) and torch.equal(param.isnan(), expected)
        assert (old[~expected] >= 4.0 - 1e-6).all()
        assert torch.equal(new.isnan(), expected.roll(2) & ~expected | expected.roll(-2) & ~expected)


@pytest.mark.parametrize("name", ["params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs"])
@pytest.mark.parametrize("kind", ["the same twice", "one element"])
def test_memory_in_common(name: str, kind: str) -> None:
    """Declined, as on the CPU: blocks of one launch would race."""
    library.load("fused_adam", "ops/optimizer/cuda/fused_adam.cpp", "ops/optimizer/cuda/fused_adam.cu")
    options: dict[str, Any] = SCALARS | {"weight_decay": 0.1, "amsgrad": True, "maximize": False}
    lists = make_lists([1024, 1024, 1024], torch.float32, 0, True)
    tensors = lists[("params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs").index(name)]
    if kind == "the same twice":
        tensors[2] = tensors[0]
    else:
        memory = torch.cat(tensors)
        tensors[0], tensors[2] = memory[:1024], memory[1023:2047]
    if name == "grads":  # read only: anybody's
        torch.ops.aten_ext_on_host._fused_adamw_(*lists, **options)
        options["grad_scale"] = torch.tensor(2.0)
    with pytest.raises(RuntimeError, match="declined: tensors that share memory"):
        torch.ops.aten_ext_on_host._fused_adamw_(*lists, **options)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("scaled", [False, True])
def test_lists_of_any_length(count: int, scaled: bool) -> None:
    library.load("fused_adam", "ops/optimizer/cuda/fused_adam.cpp", "ops/optimizer/cuda/fused_adam.cu")
    sizes = [1 + 37 * i % 300 for i in range(count)]
    options: dict[str, Any] = SCALARS | {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
    if scaled:
        options |= {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(0.0)}
    ours, theirs = (make_lists(sizes, torch.float32, 0, False) for _ in range(2))
    torch.ops.aten_ext_on_host._fused_adam_(*ours, **options)
    torch._fused_adam_(*theirs, **options)
    for mine, upstream in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(mine, upstream)


def test_found_inf_changes_nothing() -> None:
    library.load("fused_adam", "ops/optimizer/cuda/fused_adam.cpp", "ops/optimizer/cuda/fused_adam.cu")
    lists = make_lists([5, 1024, 3000], torch.float32, 0, False)
    before = [[t.clone() for t in one] for one in lists]
    torch.ops.aten_ext_on_host._fused_adamw_(
        *lists, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-6, amsgrad=False, maximize=False,
        grad_scale=torch.tensor(2.0), found_inf=torch.tensor(1.0),
    )  # fmt: skip
    for one, old in zip(lists, before, strict=True):
        for t, o in zip(one, old, strict=True):
            assert torch.equal(t, o)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("margin", [16, 17])
def test_nothing_beside_a_tensor_is_written(dtype: torch.dtype, margin: int) -> None:
    """Each tensor lies in the middle of a larger one, aligned or not, whose margins stay."""
    library.load("fused_adam", "ops/optimizer/cuda/fused_adam.cpp", "ops/optimizer/cuda/fused_adam.cu")
    options: dict[str, Any] = SCALARS | {"weight_decay": 0.1, "amsgrad": True, "maximize": False}
    ours, theirs = (make_lists([1, 7, 0, 15, 1023, 1025, 3001, 0], dtype, 0, True) for _ in range(2))
    margins = []
    for tensors in ours[:-1]:
        for i, tensor in enumerate(tensors):
            whole = torch.full((len(tensor) + 2 * margin,), 7.0, dtype=dtype)
            tensors[i] = whole[margin : margin + len(tensor)].copy_(tensor)
            margins += [whole[:margin], whole[margin + len(tensor) :]]
    torch.ops.aten_ext_on_host._fused_adamw_(*ours, **options)
    torch._fused_adamw_(*theirs, **options)
    for mine, upstream in zip(ours[:-1], theirs[:-1], strict=True):
        torch.testing.assert_close(mine, upstream)
    assert all((m == 7.0).all() for m in margins)
