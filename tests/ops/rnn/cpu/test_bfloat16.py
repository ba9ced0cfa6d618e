"""Recurrent layers of bfloat16 on the CPU: no further from float64 than upstream, and the route."""

from __future__ import annotations

import hypothesis
import pytest
import torch

import aten_ext

from .cases import Case, assert_ran, call, documented, with_gradients
from .test_layers import cases

BF16 = torch.bfloat16
LSTM_REASON = "LSTM of bfloat16, which oneDNN runs"
PACKED_REASON = "packed sequence of bfloat16, whose products are faster in 16 bits"


def exact(case: Case) -> list[torch.Tensor]:
    """Results and gradients in float64, of the numbers that bfloat16 holds."""
    module = case.module(BF16).double()
    tensors = [t.double().requires_grad_() for t in case.tensors(BF16)]
    results = call(case, module, tensors)
    generator = torch.Generator().manual_seed(case.seed + 3)
    weights = [torch.randn(r.shape, generator=generator).to(BF16).double() for r in results]
    gradients = torch.autograd.grad(results, [*tensors, *module.parameters()], weights)
    return [*(r.detach() for r in results), *gradients]


def assert_no_less_accurate(
    ours: list[torch.Tensor], theirs: list[torch.Tensor], truth: list[torch.Tensor]
) -> None:
    """1.25 times upstream's error; of few elements, where chance decides, beside a rounding of the sum."""
    for index, (a, b, e) in enumerate(zip(ours, theirs, truth, strict=True)):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), index
        error, yardstick = (float((t.double() - e).square().mean().sqrt()) for t in (a, b))
        typical = float(e.square().mean().sqrt())
        floor = (2.0**-9 / a.numel() ** 0.5 + 2.0**-13) * typical
        assert error <= 1.25 * yardstick + floor, (index, error, yardstick, typical)


@hypothesis.given(case=cases())
def test_training(case: Case) -> None:
    aten_ext.reset_counts()
    ours = with_gradients(case, BF16)
    counts = aten_ext.counts("CPU")[case.name]
    if case.name == "lstm.input":
        assert dict(counts.declined) == {documented(LSTM_REASON): 1}
        return
    assert_ran(case.name)
    with aten_ext.disabled():
        assert_no_less_accurate(ours, with_gradients(case, BF16), exact(case))


STEPS_BY_GEMM = Case("gru", 3, 96, 40, 320)
UNEVEN = Case("gru", 3, 96, 40, 320, lengths=(3,) * 50 + (2,) * 46)


@pytest.mark.parametrize(
    "case",
    [
        STEPS_BY_GEMM,
        UNEVEN,
        Case("gru", 12, 37, 70, 260, layers=2, bidirectional=True),
        Case("rnn_tanh", 10, 40, 300, 200, layers=2),
        Case("rnn_relu", 3, 1, 500, 600, bias=False),
        Case("lstm", 40, 64, 24, 48, lengths=tuple(range(40, 8, -1)) + (5,) * 32),
    ],
    ids=str,
)
@pytest.mark.parametrize("threads", [1, 2])
def test_threads(case: Case, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        aten_ext.reset_counts()
        ours = with_gradients(case, BF16)
        assert_ran(case.name)
        again = with_gradients(case, BF16)
        with aten_ext.disabled():
            assert_no_less_accurate(ours, with_gradients(case, BF16), exact(case))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


@pytest.mark.parametrize("cell", ["gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("dropout", [0.3, 1.0])
def test_dropout(cell: str, dropout: float) -> None:
    """The masks that upstream draws."""
    case = Case(cell, 6, 4, 5, 12, layers=3, dropout=dropout)
    ours = with_gradients(case, BF16)
    after = torch.random.get_rng_state()
    with aten_ext.disabled():
        theirs = with_gradients(case, BF16)
    assert torch.equal(after, torch.random.get_rng_state())
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.05 * float(b.abs().max()) + 1e-6)


def test_double_backward() -> None:
    """The composition runs again, in bfloat16."""
    case = Case("gru", 3, 2, 4, 8)

    def penalty() -> list[torch.Tensor]:
        module, tensors = case.module(BF16), [t.requires_grad_() for t in case.tensors(BF16)]
        y = call(case, module, tensors)[0]
        (first,) = torch.autograd.grad(y.sum(), tensors[:1], create_graph=True)
        return [first.detach(), *torch.autograd.grad(first.square().sum(), list(module.parameters()))]

    aten_ext.reset_counts()
    ours = penalty()
    assert_ran(case.name)
    with aten_ext.disabled():
        theirs = penalty()
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == BF16
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.05 * float(b.abs().max()) + 1e-6)


def test_output_may_be_written_to() -> None:
    case = Case("gru", 4, 3, 5, 16)
    both = []
    for write in (False, True):
        module, tensors = case.module(BF16), case.tensors(BF16)
        y, h = call(case, module, tensors)
        loss = (y.sum(), h.sum())
        if write:
            with torch.no_grad():
                y.zero_()
        both.append(torch.autograd.grad(loss, list(module.parameters())))
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
