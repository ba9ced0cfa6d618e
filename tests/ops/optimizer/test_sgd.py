"""_fused_sgd_: the fused step against upstream and against float64, and every decline."""

from __future__ import annotations

from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import aten_ext
from ops.optimizer.step_suite import (
    SHAPES,
    FusedStepTests,
    Maker,
    Step,
    assert_declined,
    assert_same_bits,
    check_decline,
)
from strategies import FLOATING, shapes
from upstream_versions import SGD_IN_16_BITS_IS_BROKEN

SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def make(maker: Maker, **options: Any) -> Step:
    """A step with momentum, unless ``options`` say otherwise."""
    defaults = dict(
        weight_decay=0.01,
        momentum=0.9,
        lr=1e-2,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
    chosen = defaults | options
    params, grads, buffers = maker.many(), maker.many(), maker.many()
    has_momentum = chosen["momentum"] != 0
    return Step(
        "_fused_sgd_",
        {"params": params, "grads": grads, "momentum_buffers": buffers if has_momentum else []},
        chosen,
        ("params", "momentum_buffers") if has_momentum else ("params",),
    )


def reference(step: Step) -> dict[str, list[Tensor]]:
    """The formula of ``torch.optim.SGD`` in float64."""
    o = step.options
    params, grads, buffers = ([t.double().clone() for t in tensors] for tensors in step.lists.values())
    for i, p in enumerate(params):
        g = grads[i]
        if o.get("grad_scale") is not None:
            g = g / o["grad_scale"].double()
        g = (-g if o["maximize"] else g) + o["weight_decay"] * p
        if o["momentum"] != 0:
            if o["is_first_step"]:
                buffers[i].copy_(g)
            else:
                buffers[i].mul_(o["momentum"]).add_((1 - o["dampening"]) * g)
            g = g + o["momentum"] * buffers[i] if o["nesterov"] else buffers[i]
        p.sub_(float(o["lr"]) * g)
    return {"params": params, "momentum_buffers": buffers}


class TestFusedSgd(FusedStepTests):
    capacities = (107, 893)  # three lists, no steps
    flags: ClassVar[dict[str, tuple[Any, ...]]] = {
        "momentum": (0.0, 0.9),
        "dampening": (0.0, 0.1),
        "nesterov": (False, True),
        "maximize": (False, True),
        "is_first_step": (False, True),
        "weight_decay": (0.0, 0.01),
        "grad_scale": (None, 3.0),
    }

    def make(self, maker: Maker, **options: Any) -> Step:
        return make(maker, **options)

    def reference(self, step: Step) -> dict[str, list[Tensor]]:
        return reference(step)

    def takes_on_cuda(self, options: dict[str, Any]) -> bool:
        """Without momentum, ``is_first_step`` has no meaning, and upstream says so in a warning."""
        return options["momentum"] != 0 or not options["is_first_step"]

    def is_broken_upstream(self, device: str, dtype: torch.dtype) -> bool:
        """See ``test_16_bit_is_upstreams_on_cpu``."""
        return device == "cpu" and dtype in SIXTEEN_BITS and SGD_IN_16_BITS_IS_BROKEN

    def rounds_unlike_itself(self, step: Step) -> bool:
        """With a grad_scale, in fp32 and fp64, lr * g is rounded on its own for some elements of a vector."""
        return (
            step.lists["params"][0].dtype in (torch.float32, torch.float64) and "grad_scale" in step.options
        )

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])
    @given(
        dtype=st.sampled_from(FLOATING),
        shapes=st.lists(shapes(), min_size=1, max_size=12),
        momentum=st.sampled_from([0.0, 0.9, 0.5]),
        dampening=st.sampled_from([0.0, 0.1, 1.0]),
        nesterov=st.booleans(),
        maximize=st.booleans(),
        is_first_step=st.booleans(),
        weight_decay=st.sampled_from([0.0, 0.01, 0.5]),
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
        momentum: float,
        dampening: float,
        nesterov: bool,
        maximize: bool,
        is_first_step: bool,
        weight_decay: float,
        offset: int,
        reverse_strides: bool,
        scale: float | None,
        lr: str,
        seed: int,
    ) -> None:
        if self.is_broken_upstream(device, dtype):
            dtype = torch.float32  # see test_16_bit_is_upstreams_on_cpu
        permutation = tuple(reversed(range(len(shapes[0])))) if reverse_strides else None
        maker = Maker(shapes, dtype, device, offset=offset, permutation=permutation, seed=seed)
        rates: dict[str, Any] = {
            "float": 1.3e-2,
            "cpu tensor": torch.tensor(1.3e-2),
            "cpu float64 tensor": torch.tensor(1.3e-2, dtype=torch.float64),
            "device tensor": torch.tensor(1.3e-2, device=device),
        }
        options: dict[str, Any] = dict(
            momentum=momentum,
            dampening=dampening,
            nesterov=nesterov,
            maximize=maximize,
            # Without momentum it has no meaning, and at CUDA upstream says so in a warning.
            is_first_step=is_first_step and (momentum != 0 or device == "cpu"),
            weight_decay=weight_decay,
            lr=rates[lr],
        )
        if scale is not None:
            options["grad_scale"] = torch.tensor(scale, device=device)
            options["found_inf"] = torch.tensor(0.0, device=device)
        self.check(make(maker, **options), device)

    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    @pytest.mark.parametrize("dtype", FLOATING)
    def test_every_dtype(self, device: str, momentum: float, dtype: torch.dtype) -> None:
        if self.is_broken_upstream(device, dtype):
            pytest.skip("see test_16_bit_is_upstreams_on_cpu")
        self.check(make(Maker(SHAPES, dtype, device), momentum=momentum), device)


@pytest.mark.skipif(not SGD_IN_16_BITS_IS_BROKEN, reason="mended in torch 2.14")
@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_16_bit_is_upstreams_on_cpu(dtype: torch.dtype) -> None:
    """Upstream updates only what follows a tensor's last whole vector. Its answer is not ours to change.

    Without momentum: with it, upstream reads past the end of the buffers.
    """
    step = make(Maker([(35,)], dtype), momentum=0.0)
    before, theirs = step.clone(), step.upstream()
    aten_ext.reset_counts()
    step.call()
    assert_declined("_fused_sgd_", "cpu", "16-bit parameters, of which upstream leaves most as they are")
    assert_same_bits(step, theirs)
    changed = step.lists["params"][0] != before.lists["params"][0]
    assert not changed[:32].any() and changed[32:].any(), "upstream has mended it: take 16 bits, then"


def test_buffers_without_momentum() -> None:
    step = make(Maker([(16, 8), (8, 4)]), momentum=0.0)
    step.lists["momentum_buffers"] = [t.clone() for t in step.lists["params"]]
    check_decline(step, "lists of different lengths")


def test_negative_momentum(device: str) -> None:
    """Upstream's CPU kernel takes it, its CUDA kernel raises."""
    step = make(Maker([(40,)], device=device), momentum=-0.5)
    if device == "cpu":
        TestFusedSgd().check(step, device)
    else:
        check_decline(step, "momentum below 0", device)


def test_what_cuda_declines_on_its_own() -> None:
    """Asked with meta tensors: no GPU needed."""
    cases = [
        (dict(momentum=-0.5), "momentum below 0"),
        (dict(momentum=float("nan")), "momentum below 0"),
        (
            dict(momentum=0.0, is_first_step=True),
            "is_first_step without momentum, of which upstream warns",
        ),
        (
            dict(lr=torch.ones(2, device="meta")),
            "lr that is neither one number on the CPU nor one float32 on the device",
        ),
        (dict(lr=torch.ones((), device="meta")), ""),
        (dict(), ""),
    ]
    for options, reason in cases:
        step = make(Maker([(4,)], device="meta"), **options)
        answer = aten_ext.explain(torch._fused_sgd_, *step.lists.values(), key="CUDA", **step.options)
        assert answer.reason == reason


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "_fused_sgd_"),
        ({"momentum": 0.9}, "_fused_sgd_"),
        ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, "_fused_sgd_"),
        ({"momentum": 0.9, "dampening": 0.5, "maximize": True}, "_fused_sgd_"),
        ({"lr": torch.tensor(1e-2)}, "_fused_sgd_.tensor_lr"),
    ],
)
def test_optimizer(device: str, options: dict[str, Any], expected: str) -> None:
    """Twenty steps of a small model: the same losses with and without, to the bit."""

    def train(enabled: bool) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(13, 31), torch.nn.ReLU(), torch.nn.Linear(31, 3))
        model.to(device)
        moved = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in options.items()}
        optimizer = torch.optim.SGD(model.parameters(), fused=True, **{"lr": 1e-2} | moved)
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
    assert train(enabled=True) == theirs
    assert aten_ext.counts(device.upper())[expected].ran == 20
