"""Training of recurrent layers with autocast and a GradScaler: no overflow where upstream has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import aten_ext
from ops.rnn.training.test_gradients import BACKWARD, FORWARD, new_module

pytestmark = pytest.mark.gpu

LENGTHS = torch.tensor([12, 12, 9, 7, 7, 4, 2, 1])
EACH_CELL = pytest.mark.parametrize("cell", ["gru", "lstm", "tanh", "relu"])
PACKED = pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
INITIAL_SCALE = 65536.0
"""GradScaler's own."""


def given(x: torch.Tensor, packed: bool) -> Any:
    return pack_padded_sequence(x, LENGTHS) if packed else x


def output(result: Any, packed: bool) -> torch.Tensor:
    y: torch.Tensor = result[0].data if packed else result[0]
    return y


def off_and_on(run: Callable[[], Any]) -> tuple[Any, Any]:
    """What a program gives with the overrides off, and with those of recurrent layers on, calls counted."""
    with aten_ext.disabled():
        theirs = run()
    aten_ext.disable()
    aten_ext.enable(FORWARD, BACKWARD)
    aten_ext.reset_counts()
    return theirs, run()


def assert_ran(calls: int) -> None:
    for name in (FORWARD, BACKWARD):
        counts = aten_ext.counts("CUDA")[name]
        assert (counts.ran, dict(counts.declined)) == (calls, {}), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@PACKED
@EACH_CELL
def test_autocast_casts_at_every_forward(cell: str, packed: bool, dtype: torch.dtype) -> None:
    """The weights change in fp32, and the next forward takes the new ones."""
    steps = 4

    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        rnn = new_module(cell, 24, 64, 2, bidirectional=True).cuda()
        optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
        x = torch.randn(12, 8, 24, device="cuda")
        grads: list[torch.Tensor] = []
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype):
                y = output(rnn(given(x, packed)), packed)
            loss: Any = (y.float() - 0.3).square().mean()
            loss.backward()
            optimizer.step()
            grads += [p.grad.clone() for p in rnn.parameters() if p.grad is not None]
        return [*grads, *(p.detach() for p in rnn.parameters())]

    theirs, ours = off_and_on(run)
    assert_ran(steps)
    for mine, upstreams in zip(ours, theirs, strict=True):
        assert mine.dtype == upstreams.dtype == torch.float32
        torch.testing.assert_close(mine, upstreams, rtol=0, atol=1e-2 * upstreams.abs().max().item())


@PACKED
@EACH_CELL
def test_grad_scaler(cell: str, packed: bool) -> None:
    """At its initial scale no step is left out that upstream takes, and the losses are the same."""
    steps = 30

    def run() -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        rnn = new_module(cell, 24, 64, 2, bidirectional=True).cuda()
        optimizer = torch.optim.Adam(rnn.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=INITIAL_SCALE)
        x = torch.randn(12, 8, 24, device="cuda")
        losses, scales = [], []
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                y = output(rnn(given(x, packed)), packed)
                loss = (y.float() - 0.3).square().mean()
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
        return losses, scales

    (losses, scales), (ours, our_scales) = off_and_on(run)
    assert_ran(steps)
    assert scales[0] == INITIAL_SCALE, "upstream's gradients are finite from the start"
    assert our_scales == scales
    assert ours == pytest.approx(losses, rel=5e-3)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("steps", [1, 4, 12, 60])
@PACKED
@EACH_CELL
def test_finite_up_to_upstreams_largest_scale(cell: str, packed: bool, steps: int) -> None:
    """The loss's scale grows until gradients of fp16 overflow: ours are finite as long as upstream's."""
    if packed and steps != int(LENGTHS[0]):
        pytest.skip("lengths are those of twelve steps")
    torch.manual_seed(0)
    rnn = new_module(cell, 64, 128, 2, bidirectional=True).cuda().half()
    x = torch.randn(steps, 8, 64, device="cuda").half().requires_grad_()
    inputs = [x, *rnn.parameters()]

    def finite(exponent: int) -> tuple[bool, ...]:
        y = output(rnn(given(x, packed)), packed)
        # In fp16 from the output on: the scale itself is no number of it.
        grads = torch.autograd.grad(y, inputs, y.detach() * 2.0 ** (exponent - 16))
        return tuple(bool(g.isfinite().all()) for g in grads)

    calls = range(8, 38)
    theirs, ours = off_and_on(lambda: [finite(exponent) for exponent in calls])
    assert_ran(len(calls))
    assert all(theirs[0]) and not all(theirs[-1]), "the last of upstream's overflow"
    for exponent, upstreams, mine in zip(calls, theirs, ours, strict=True):
        assert all(m or not u for u, m in zip(upstreams, mine, strict=True)), exponent
