"""Training of recurrent layers on a GPU as programs do it: toggles, checkpoints, hooks, streams, graphs."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import aten_ext
from ops.rnn.cases import documented, peak

FORWARD, BACKWARD = "_cudnn_rnn", "_cudnn_rnn_backward"
STEPS = pytest.mark.parametrize("steps", [1, 12])


def new_gru(layers: int = 2) -> torch.nn.GRU:
    torch.manual_seed(0)
    return torch.nn.GRU(16, 32, layers, bidirectional=True).cuda()


def new_input(steps: int) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(steps, 4, 16, device="cuda", requires_grad=True)


def counts() -> tuple[int, int, int]:
    """Forwards and backwards that ran here, and backwards of upstream's."""
    of = aten_ext.counts("CUDA")
    return of[FORWARD].ran, of[BACKWARD].ran, sum(of[BACKWARD].declined.values()) + of[BACKWARD].disabled


def plain(steps: int, layers: int = 2) -> list[torch.Tensor]:
    """What every program here should get."""
    gru, x = new_gru(layers), new_input(steps)
    result = torch.autograd.grad(gru(x)[0].square().sum(), [x, *gru.parameters()])
    aten_ext.reset_counts()
    return list(result)


def equal(ours: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


@pytest.mark.gpu
@STEPS
def test_disabled_between_forward_and_backward(steps: int) -> None:
    expected = plain(steps)
    gru, x = new_gru(), new_input(steps)
    loss = gru(x)[0].square().sum()
    with aten_ext.disabled():
        equal(list(torch.autograd.grad(loss, [x, *gru.parameters()])), expected)
    assert counts() == (1, 1, 0)


@pytest.mark.gpu
@STEPS
def test_enabled_between_forward_and_backward(steps: int) -> None:
    gru, x = new_gru(), new_input(steps)
    with aten_ext.disabled():
        loss = gru(x)[0].square().sum()
    aten_ext.reset_counts()
    torch.autograd.grad(loss, [x, *gru.parameters()])
    assert counts() == (0, 0, 1)
    assert dict(aten_ext.counts("CUDA")[BACKWARD].declined) == {"forward that ran upstream": 1}


@pytest.mark.gpu
@STEPS
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(steps: int, reentrant: bool) -> None:
    expected = plain(steps)
    gru, x = new_gru(), new_input(steps)
    y = checkpoint(lambda t: gru(t)[0], x, use_reentrant=reentrant)
    y.square().sum().backward()
    equal([x.grad, *(p.grad for p in gru.parameters())], expected)  # type: ignore[list-item]
    assert counts() == (2, 1, 0)


@pytest.mark.gpu
@STEPS
@pytest.mark.parametrize("batch_first", [False, True])
def test_saved_tensors_that_move(steps: int, batch_first: bool) -> None:
    def run(hooks: object) -> list[torch.Tensor]:
        torch.manual_seed(0)
        gru = torch.nn.GRU(16, 256, 2, batch_first=batch_first).cuda()
        x = new_input(steps)
        with hooks:  # type: ignore[attr-defined]
            loss = gru(x)[0].square().sum()
        return list(torch.autograd.grad(loss, [x, *gru.parameters()]))

    expected = run(warnings.catch_warnings())
    equal(run(torch.autograd.graph.save_on_cpu()), expected)
    equal(run(torch.autograd.graph.save_on_cpu(pin_memory=True)), expected)
    equal(run(torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone)), expected)
    assert counts()[:2] == (4, 4)


@pytest.mark.gpu
@STEPS
def test_two_graphs_alive(steps: int) -> None:
    expected = plain(steps)
    gru, x = new_gru(), new_input(steps)
    inputs = [x, *gru.parameters()]
    losses = [gru(x)[0].square().sum() for _ in range(2)]
    with aten_ext.disabled():
        losses.append(gru(x)[0].square().sum())
    theirs = torch.autograd.grad(losses[2], inputs)
    for loss in reversed(losses[:2]):
        equal(list(torch.autograd.grad(loss, inputs, retain_graph=True)), expected)
        equal(list(torch.autograd.grad(loss, inputs)), expected)
    for a, b in zip(theirs, expected, strict=True):
        # TF32 of both.
        torch.testing.assert_close(a, b, rtol=0, atol=2e-3 * b.abs().max().item())


@pytest.mark.gpu
@STEPS
def test_other_stream_and_thread(steps: int) -> None:
    expected = plain(steps)
    gru, x = new_gru(), new_input(steps)
    inputs = [x, *gru.parameters()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loss = gru(x)[0].square().sum()
    results: list[list[torch.Tensor]] = []
    thread = threading.Thread(target=lambda: results.append(list(torch.autograd.grad(loss, inputs))))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    equal(results[0], expected)


@pytest.mark.gpu
@STEPS
def test_captured(steps: int) -> None:
    gru, x = new_gru(), new_input(steps)
    inputs = [x, *gru.parameters()]

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(gru(x)[0].square().sum(), inputs)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.mul_(0.5)
    expected = list(step())
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        equal(list(captured), expected)


@pytest.mark.gpu
@STEPS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast(steps: int, dtype: torch.dtype) -> None:
    """Weights come as columns of one buffer; so do their gradients."""
    results = []
    for off in (True, False):
        gru, x = new_gru(), new_input(steps)
        aten_ext.disable() if off else aten_ext.enable(FORWARD, BACKWARD)
        aten_ext.reset_counts()
        with torch.autocast("cuda", dtype):
            loss = gru(x)[0].float().square().sum()
        loss.backward()
        results.append([x.grad, *(p.grad for p in gru.parameters())])
    assert counts() == (1, 1, 0)
    for theirs, ours in zip(*results, strict=True):
        assert ours is not None and theirs is not None and ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2 * theirs.abs().max().item())


@pytest.mark.gpu
@STEPS
def test_rollout_and_training(steps: int) -> None:
    """In train mode without gradients too: the flag is the module's."""
    gru, x = new_gru(), new_input(steps)
    with torch.no_grad():
        y = gru(x)[0]
    with torch.inference_mode():
        again = gru(x)[0]
    assert counts()[0] == 2 and torch.equal(y, again)
    assert torch.equal(gru(x)[0].detach(), y)


@pytest.mark.gpu
@STEPS
def test_gradients_share_one_buffer(steps: int) -> None:
    """In cuDNN's order; a module's copy trains alike."""
    gru, x = new_gru(), new_input(steps)
    gru(x)[0].square().sum().backward()
    grads = [p.grad for p in gru.parameters()]
    assert len({g.untyped_storage().data_ptr() for g in grads if g is not None}) == 1
    assert [g.storage_offset() for g in grads if g is not None] == [
        p.storage_offset() for p in gru.parameters()
    ]
    twin = copy.deepcopy(gru)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (gru, twin)]
    for module, optimizer in zip((gru, twin), optimizers, strict=True):
        optimizer.zero_grad()
        module(x)[0].square().sum().backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(gru.parameters(), twin.parameters(), strict=True))


@pytest.mark.gpu
def test_input_that_needs_no_gradient() -> None:
    for steps in (1, 12):
        expected = plain(steps)
        gru, x = new_gru(), new_input(steps).detach()
        gru(x)[0].square().sum().backward()
        equal([p.grad for p in gru.parameters()], expected[1:])  # type: ignore[misc]


@pytest.mark.gpu
def test_errors_are_upstreams() -> None:
    def error(call: Callable[[], object]) -> str:
        texts = []
        for off in (True, False):
            aten_ext.disable() if off else aten_ext.enable(FORWARD, BACKWARD)
            with pytest.raises(RuntimeError) as raised:
                call()
            texts.append(str(raised.value))
        assert texts[0] == texts[1]
        return texts[1]

    def double_backward() -> None:
        gru, x = new_gru(), new_input(3)
        (first,) = torch.autograd.grad(gru(x)[0].square().sum(), [x], create_graph=True)
        first.sum().backward()

    def in_evaluation() -> None:
        gru, x = new_gru().eval(), new_input(3)
        gru(x)[0].sum().backward()

    def changed() -> None:
        gru, x = new_gru(), new_input(3)
        y = gru(x)[0]
        with torch.no_grad():
            gru.weight_hh_l0.add_(1)
        y.sum().backward()

    assert "Double backwards is not supported for CuDNN RNNs" in error(double_backward)
    assert "cudnn RNN backward can only be called in training mode" in error(in_evaluation)
    assert "modified by an inplace operation" in error(changed)


@pytest.mark.gpu
def test_dropout() -> None:
    x = new_input(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one layer it has no effect
        one = torch.nn.GRU(16, 256, dropout=0.5).cuda()
    one(x)[0].sum().backward()
    assert counts() == (1, 1, 0)
    aten_ext.reset_counts()
    two = torch.nn.GRU(16, 32, 2, dropout=0.5).cuda()
    two(x)[0].sum().backward()
    assert counts() == (1, 1, 0)
    aten_ext.reset_counts()
    nothing_left = torch.nn.GRU(16, 32, 2, dropout=1.0).cuda()
    nothing_left(x)[0].sum().backward()
    assert counts() == (0, 0, 1)
    reason = documented("dropout that is not between 0 and 1")
    assert dict(aten_ext.counts("CUDA")[FORWARD].declined) == {reason: 1}


@pytest.mark.gpu
def test_peak_memory_is_no_more_than_upstreams() -> None:
    for steps, batch, hidden, dtype in ((400, 64, 512, torch.float32), (1000, 32, 256, torch.bfloat16)):
        gru = torch.nn.GRU(256, hidden).to("cuda", dtype)
        x = torch.randn(steps, batch, 256, device="cuda").to(dtype).requires_grad_()
        peaks = []
        for off in (True, False):
            aten_ext.disable() if off else aten_ext.enable(FORWARD, BACKWARD)
            for _ in range(2):
                mib = peak(lambda: torch.autograd.grad(gru(x)[0].sum(), [x, *gru.parameters()]))  # noqa: B023
            peaks.append(mib)
        assert peaks[1] <= max(peaks[0], 256), peaks
