"""Training of recurrent layers with autocast and a GradScaler: no overflow where upstream has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import aten_ext
from ops.rnn.training.test_gradients import BACKWARD, FORWARD, new_module

pytestmark = pytest.mark.gpu

LENGTHS = torch.tensor([12, 12, 9, 7, 7, 4, 2, 1])
EACH_CELL = pytest.mark.parametrize("cell", ["gru", "lstm", "tanh", "relu"])
PACKED = pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
INITIAL_SCALE = 65536.0
"""GradScaler's own."""


def given(x: torch.Tensor, packed: bool, cell: str, upstreams: bool) -> Any:
    """The sequence as it is, or packed; ``upstreams``: whether the layer runs upstream.

    In 16 bits cuDNN's kernels for few units give a padded RNN of two directions a gradient that is hundreds
    of times as large as the true one (seen with 9.19). For the same sequence packed it has others, so that is
    what upstream gets.
    """
    if packed:
        return pack_padded_sequence(x, LENGTHS)
    if upstreams and cell in ("tanh", "relu"):
        return pack_padded_sequence(x, torch.full((x.size(1),), x.size(0)))
    return x


def output(result: Any) -> torch.Tensor:
    """The rows that there are, in order of time."""
    y: torch.Tensor = result[0].data if isinstance(result[0], PackedSequence) else result[0].flatten(0, 1)
    return y


def off_and_on(run: Callable[[bool], Any]) -> tuple[Any, Any]:
    """What a program, told whether upstream runs, gives with the overrides off, and on and counted."""
    with aten_ext.disabled():
        theirs = run(True)
    aten_ext.disable()
    aten_ext.enable(FORWARD, BACKWARD)
    aten_ext.reset_counts()
    return theirs, run(False)


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

    def run(upstreams: bool, exact: bool = False) -> list[torch.Tensor]:
        torch.manual_seed(0)
        rnn = new_module(cell, 24, 64, 2, bidirectional=True).cuda()
        optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
        x = torch.randn(12, 8, 24, device="cuda")
        if exact:
            rnn, x = rnn.double(), x.double()
        grads: list[torch.Tensor] = []
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype, enabled=not exact):
                y = output(rnn(given(x, packed, cell, upstreams)))
            loss: Any = ((y if exact else y.float()) - 0.3).square().mean()
            loss.backward()
            optimizer.step()
            grads += [p.grad.clone() for p in rnn.parameters() if p.grad is not None]
        return [*grads, *(p.detach() for p in rnn.parameters())]

    theirs, ours = off_and_on(run)
    assert_ran(steps)
    for mine, other, truth in zip(ours, theirs, run(True, exact=True), strict=True):
        assert mine.dtype == other.dtype == torch.float32
        if cell == "relu":  # a gradient comes or goes where a sum is rounded across zero, upstream's as well
            errors = [(t - truth).abs().mean().item() for t in (mine, other)]
            assert errors[0] <= 4 * errors[1] + 5e-3 * truth.abs().mean().item(), errors
        else:
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-2 * other.abs().max().item())


@PACKED
@EACH_CELL
def test_grad_scaler(cell: str, packed: bool) -> None:
    """At its initial scale no step is left out that upstream takes, and the losses are the same."""
    steps = 30

    def run(upstreams: bool) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        rnn = new_module(cell, 24, 64, 2, bidirectional=True).cuda()
        optimizer = torch.optim.Adam(rnn.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda", init_scale=INITIAL_SCALE)
        x = torch.randn(12, 8, 24, device="cuda")
        losses, scales = [], []
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                y = output(rnn(given(x, packed, cell, upstreams)))
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
    assert ours == pytest.approx(losses, rel=2e-2 if cell == "relu" else 5e-3)
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

    def finite(exponent: int, upstreams: bool) -> tuple[bool, ...]:
        y = output(rnn(given(x, packed, cell, upstreams)))
        # In fp16 from the output on: the scale itself is no number of it.
        grads = torch.autograd.grad(y, inputs, y.detach() * 2.0 ** (exponent - 16))
        return tuple(bool(g.isfinite().all()) for g in grads)

    calls = range(8, 38)
    theirs, ours = off_and_on(lambda upstreams: [finite(exponent, upstreams) for exponent in calls])
    assert_ran(len(calls))
    assert all(theirs[0]) and not all(theirs[-1]), "the last of upstream's overflow"
    for exponent, other, mine in zip(calls, theirs, ours, strict=True):
        assert all(m or not o for o, m in zip(other, mine, strict=True)), exponent
