"""Adam and AdamW in float64, and helpers to call PyTorch's fused operators and to judge what they did."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

import aten_ext

OVERRIDES = ("_fused_adamw_", "_fused_adamw_.tensor_lr", "_fused_adam_", "_fused_adam_.tensor_lr")
LISTS = ("params", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs")


@dataclasses.dataclass
class State:
    """The tensor lists of one call, in the order of the operator."""

    params: list[Tensor]
    grads: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    max_exp_avg_sqs: list[Tensor]
    steps: list[Tensor]

    def clone(self) -> State:
        """A copy with the same strides and the same offset from an aligned address."""
        return State(*([_clone(t) for t in getattr(self, f.name)] for f in dataclasses.fields(self)))

    def lists(self) -> dict[str, list[Tensor]]:
        """Everything that a step may write."""
        return {name: getattr(self, name) for name in LISTS}


def _clone(t: Tensor) -> Tensor:
    if t.numel() == 0:
        return t.clone()
    copy = torch.empty(t.untyped_storage().nbytes() // t.element_size(), dtype=t.dtype, device=t.device)
    return copy.as_strided(t.size(), t.stride(), t.storage_offset()).copy_(t)


def make_state(
    shapes: list[tuple[int, ...]],
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    amsgrad: bool = False,
    offset: int = 0,
    permutation: tuple[int, ...] | None = None,
    step: float | list[float] = 3.0,
    seed: int = 0,
) -> State:
    """Random lists. ``offset`` elements of misalignment; ``permutation`` of the dimensions in memory."""
    generator = torch.Generator().manual_seed(seed)

    def one(shape: tuple[int, ...]) -> Tensor:
        order = permutation if permutation and len(permutation) == len(shape) else tuple(range(len(shape)))
        in_memory = [shape[d] for d in order]
        numel = torch.Size(shape).numel()
        flat = torch.randn(numel + offset, generator=generator, dtype=torch.float64) * 0.1
        stored = flat.to(dtype).to(device)[offset:].view(in_memory)
        return stored.permute([order.index(d) for d in range(len(shape))])

    def many() -> list[Tensor]:
        return [one(shape) for shape in shapes]

    steps = step if isinstance(step, list) else [step] * len(shapes)
    return State(
        many(),
        many(),
        many(),
        [t.abs_() for t in many()],
        [t.abs_() for t in many()] if amsgrad else [],
        [torch.tensor(s, device=device) for s in steps],
    )


def options(**changes: Any) -> dict[str, Any]:
    """Keyword arguments of the operators."""
    defaults = dict(
        lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False
    )
    return defaults | changes


def call(name: str, state: State, **changes: Any) -> None:
    """Call ``torch._fused_adamw_`` or ``torch._fused_adam_`` through the dispatcher."""
    getattr(torch, name)(
        state.params,
        state.grads,
        state.exp_avgs,
        state.exp_avg_sqs,
        state.max_exp_avg_sqs,
        state.steps,
        **options(**changes),
    )


def overload(name: str, changes: dict[str, Any]) -> str:
    """The override that a call with these arguments reaches."""
    return f"{name}.tensor_lr" if isinstance(changes.get("lr"), Tensor) else name


def upstream(name: str, state: State, **changes: Any) -> State:
    """What PyTorch's own kernel makes of a copy of ``state``."""
    copy = state.clone()
    with aten_ext.disabled():
        call(name, copy, **changes)
    return copy


def reference(name: str, state: State, **changes: Any) -> State:
    """The formulas of arXiv:1412.6980 and arXiv:1711.05101 in float64, from the rounded inputs."""
    o = options(**changes)
    lists = {key: [t.double().clone() for t in value] for key, value in state.lists().items()}
    found_inf, grad_scale = o.get("found_inf"), o.get("grad_scale")
    if found_inf is not None and found_inf.item() == 1:
        return State(**lists, steps=state.steps)
    lr = float(o["lr"])
    for i, p in enumerate(lists["params"]):
        step = float(state.steps[i])
        g, m, v = lists["grads"][i], lists["exp_avgs"][i], lists["exp_avg_sqs"][i]
        if grad_scale is not None:
            g.div_(grad_scale.double())
        used = -g if o["maximize"] else g
        if name == "_fused_adamw_":
            p.mul_(1 - lr * o["weight_decay"])
        else:
            used = used + o["weight_decay"] * p
        m.lerp_(used, 1 - o["beta1"])
        v.mul_(o["beta2"]).add_((1 - o["beta2"]) * used * used)
        second = v
        if o["amsgrad"]:
            second = torch.maximum(lists["max_exp_avg_sqs"][i], v, out=lists["max_exp_avg_sqs"][i])
        denominator = second.sqrt() / (1 - o["beta2"] ** step) ** 0.5 + o["eps"]
        p.sub_(lr / (1 - o["beta1"] ** step) * m / denominator)
    return State(**lists, steps=state.steps)


def assert_ran(name: str, device: str) -> None:
    """The fused kernel of this override ran, and nothing went upstream."""
    counts = aten_ext.counts(device.upper())[name]
    assert (counts.ran, dict(counts.declined)) == (1, {})


def assert_same_bits(ours: State, theirs: State) -> None:
    """Every element of every list is the same, NaN for NaN."""
    for (name, mine), other in zip(ours.lists().items(), theirs.lists().values(), strict=True):
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert a.stride() == b.stride()
            torch.testing.assert_close(
                a, b, rtol=0, atol=0, equal_nan=True, msg=lambda m, name=name, i=i: f"{name}[{i}]: {m}"
            )
