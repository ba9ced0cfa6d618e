"""_fused_adagrad_: the fused step against upstream and against float64, and every decline."""

from __future__ import annotations

from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import aten_ext
from ops.optimizer.step_suite import SHAPES, FusedStepTests, Maker, Step, check_decline
from strategies import FLOATING, shapes


def make(maker: Maker, *, first_step: float = 3.0, **options: Any) -> Step:
    """A step; parameters have taken ``first_step`` steps and one more, by turns."""
    defaults = dict(lr=1e-2, lr_decay=0.0, weight_decay=0.01, eps=1e-10, maximize=False)
    return Step(
        "_fused_adagrad_",
        {
            "params": maker.many(),
            "grads": maker.many(),
            "state_sums": maker.many(positive=True),
            "steps": maker.steps(first_step),
        },
        defaults | options,
        ("params", "state_sums"),
    )


def reference(step: Step) -> dict[str, list[Tensor]]:
    """The formula of ``torch.optim.Adagrad`` in float64."""
    o = step.options
    params, grads, sums, steps = ([t.double().clone() for t in tensors] for tensors in step.lists.values())
    for i, p in enumerate(params):
        g = grads[i]
        if o.get("grad_scale") is not None:
            g = g / o["grad_scale"].double()
        g = (-g if o["maximize"] else g) + o["weight_decay"] * p
        sums[i].add_(g * g)
        rate = float(o["lr"]) / (1 + (float(steps[i]) - 1) * o["lr_decay"])
        p.sub_(rate * g / (sums[i].sqrt() + o["eps"]))
    return {"params": params, "state_sums": sums}


class TestFusedAdagrad(FusedStepTests):
    capacities = (87, 730)  # three lists and the steps
    flags: ClassVar[dict[str, tuple[Any, ...]]] = {
        "lr_decay": (0.0, 0.1),
        "maximize": (False, True),
        "weight_decay": (0.0, 0.01),
        "grad_scale": (None, 3.0),
    }
    scales_on_cuda = False

    def make(self, maker: Maker, **options: Any) -> Step:
        return make(maker, **options)

    def reference(self, step: Step) -> dict[str, list[Tensor]]:
        return reference(step)

    def rounds_unlike_itself(self, step: Step) -> bool:
        """In fp64 ``g + weight_decay * p`` is rounded once or twice, from element to element."""
        return step.lists["params"][0].dtype == torch.float64 and step.options["weight_decay"] != 0

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])
    @given(
        dtype=st.sampled_from(FLOATING),
        shapes=st.lists(shapes(), min_size=1, max_size=12),
        lr_decay=st.sampled_from([0.0, 0.01, 0.1]),
        maximize=st.booleans(),
        weight_decay=st.sampled_from([0.0, 0.01, 0.5]),
        eps=st.sampled_from([1e-10, 1e-3]),
        first_step=st.sampled_from([1.0, 2.0, 1000.0, 1e6]),
        offset=st.integers(0, 3),
        reverse_strides=st.booleans(),
        scale=st.sampled_from([None, 1.0, 3.0, 65536.0]),
        lr=st.sampled_from(["float", "cpu tensor", "cpu float64 tensor", "device tensor"]),
        seed=st.integers(0, 2**16),
    )
    def test_step_matches_upstream(
        self,
        device: str,
        dtype: torch.dtype,
        shapes: list[tuple[int, ...]],
        lr_decay: float,
        maximize: bool,
        weight_decay: float,
        eps: float,
        first_step: float,
        offset: int,
        reverse_strides: bool,
        scale: float | None,
        lr: str,
        seed: int,
    ) -> None:
        permutation = tuple(reversed(range(len(shapes[0])))) if reverse_strides else None
        maker = Maker(shapes, dtype, device, offset=offset, permutation=permutation, seed=seed)
        rates: dict[str, Any] = {
            "float": 1.3e-2,
            "cpu tensor": torch.tensor(1.3e-2),
            "cpu float64 tensor": torch.tensor(1.3e-2, dtype=torch.float64),
            "device tensor": torch.tensor(1.3e-2, device=device),
        }
        options: dict[str, Any] = dict(
            lr_decay=lr_decay, maximize=maximize, weight_decay=weight_decay, eps=eps, lr=rates[lr]
        )
        if scale is not None:
            options["grad_scale"] = torch.tensor(scale, device=device)
            options["found_inf"] = torch.tensor(0.0, device=device)
        step = make(maker, first_step=first_step, **options)
        if scale is not None and device == "cuda":
            check_decline(step, "grad_scale, which upstream writes back to some gradients only", device)
        else:
            self.check(step, device)

    @pytest.mark.parametrize("dtype", FLOATING)
    def test_every_dtype(self, device: str, dtype: torch.dtype) -> None:
        self.check(make(Maker(SHAPES, dtype, device), lr_decay=0.1), device)


def test_float64_step() -> None:
    step = make(Maker([(16, 8), (8, 4)]))
    step.lists["steps"][1] = step.lists["steps"][1].double()
    check_decline(step, "step that is not one float32 on the parameters' device")


def test_short_steps() -> None:
    step = make(Maker([(16, 8), (8, 4)]))
    step.lists["steps"].pop()
    check_decline(step, "lists of different lengths")


def test_lr_at_cuda() -> None:
    """Asked with meta tensors: no GPU needed."""
    for lr, reason in (
        (torch.ones(()), ""),
        (torch.ones((), device="meta"), ""),
        (torch.ones(2), "lr that is neither one number on the CPU nor one float32 on the device"),
    ):
        step = make(Maker([(4,)], device="meta"), lr=lr)
        answer = aten_ext.explain(torch._fused_adagrad_, *step.lists.values(), key="CUDA", **step.options)
        assert (answer.override, answer.reason) == ("_fused_adagrad_.tensor_lr", reason)


def test_grad_scale_at_cuda() -> None:
    """Asked with meta tensors; what upstream does is compared in test_step_matches_upstream."""
    one = torch.ones((), device="meta")
    for options, reason in (
        ({"found_inf": one}, ""),
        (
            {"grad_scale": one, "found_inf": one},
            "grad_scale, which upstream writes back to some gradients only",
        ),
    ):
        step = make(Maker([(4,)], device="meta"), **options)
        answer = aten_ext.explain(torch._fused_adagrad_, *step.lists.values(), key="CUDA", **step.options)
        assert answer.reason == reason


@pytest.mark.parametrize("options", [{}, {"lr_decay": 0.1, "weight_decay": 0.1, "maximize": True}])
def test_optimizer(options: dict[str, Any]) -> None:
    """Twenty steps of a small model: the same losses with and without, to the bit.

    On CPU: torch.optim.Adagrad(fused=True) takes no CUDA parameters, although the operator does.
    """

    def train(enabled: bool) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(13, 31), torch.nn.ReLU(), torch.nn.Linear(31, 3))
        optimizer = torch.optim.Adagrad(model.parameters(), fused=True, **options)
        x = torch.randn(16, 13)
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
    assert train(enabled=True) == theirs
    assert aten_ext.counts("CPU")["_fused_adagrad_"].ran == 20
