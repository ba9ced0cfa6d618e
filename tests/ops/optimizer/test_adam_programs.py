"""_fused_adam_ and _fused_adamw_ in programs: torch.optim, GradScaler, and on a GPU graphs and streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aten_ext
from ops.optimizer.adam_reference import assert_ran, assert_same_bits, call, make_state, upstream


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
    if device == "cuda" and kind == "Adam":  # see rounds_unlike_itself of test_adam_parity.py
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


# ---- CUDA alone --------------------------------------------------------------------------------------


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
