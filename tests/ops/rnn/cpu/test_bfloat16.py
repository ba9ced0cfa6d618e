"""Recurrent layers of bfloat16 on the CPU: no further from float64 than upstream, and the route."""

from __future__ import annotations

import statistics
from pathlib import Path

import hypothesis
import pytest
import torch

import aten_ext

from .cases import Case, assert_ran, call, documented, with_gradients
from .test_layers import cases

BF16 = torch.bfloat16
LSTM_REASON = "LSTM of bfloat16, which oneDNN runs"
NARROW_REASON = "steps of bfloat16, whose products are faster in 16 bits"


def exact(case: Case) -> list[torch.Tensor]:
    """Results and gradients in float64, of the numbers that bfloat16 holds."""
    module = case.module(BF16).double()
    tensors = [t.double().requires_grad_() for t in case.tensors(BF16)]
    results = call(case, module, tensors)
    generator = torch.Generator().manual_seed(case.seed + 3)
    weights = [torch.randn(r.shape, generator=generator).to(BF16).double() for r in results]
    gradients = torch.autograd.grad(results, [*tensors, *module.parameters()], weights)
    return [*(r.detach() for r in results), *gradients]


FEW = 64
MULTIPLIES = "avx512_bf16" in Path("/proc/cpuinfo").read_text()


def ratios(ours: list[torch.Tensor], theirs: list[torch.Tensor], truth: list[torch.Tensor]) -> list[float]:
    """Of each tensor that is not of few elements, where chance decides: our error over upstream's."""
    found = []
    for index, (a, b, e) in enumerate(zip(ours, theirs, truth, strict=True)):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride()), index
        assert a.isfinite().all()
        error, yardstick = (float((t.double() - e).square().mean().sqrt()) for t in (a, b))
        if a.numel() >= FEW:
            found.append(error / max(yardstick, 2.0**-11 * float(e.square().mean().sqrt()) + 1e-30))
    return found


@hypothesis.given(case=cases())
def test_training(case: Case) -> None:
    aten_ext.reset_counts()
    ours = with_gradients(case, BF16)
    counts = aten_ext.counts("CPU")[case.name]
    if case.of_onednn:
        assert dict(counts.declined) == {documented(LSTM_REASON): 1}
        return
    if NARROW_REASON in counts.declined:
        assert MULTIPLIES and case.cell != "gru"
        return
    assert_ran(case.name)
    with aten_ext.disabled():
        found = ratios(ours, with_gradients(case, BF16), exact(case))
    # At 0 a slope of ReLU is one or none: one unit there is as wrong as can be, in upstream's or in ours.
    if case.cell == "rnn_relu" or not found:
        return
    # Of few states chance decides: all of a weight's gradient comes from them.
    few = case.steps * case.batch * case.hidden < 256
    assert statistics.median(found) <= (4 if few else 1.25) and max(found) <= (8 if few else 2), found


@pytest.mark.parametrize("cell", ["gru", "rnn_tanh", "rnn_relu", "lstm"])
def test_error_over_many_calls(cell: str) -> None:
    """Typically half of upstream's."""
    found = []
    for seed in range(12):
        lengths = (9, 8, 8, 5, 5, 5, 2) if seed % 2 or cell == "lstm" else None
        case = Case(
            cell, 9, 7, 20 + seed, 16 + 9 * seed, 1 + seed % 2, seed % 3 == 0, lengths=lengths, seed=seed
        )
        ours = with_gradients(case, BF16)
        with aten_ext.disabled():
            found += ratios(ours, with_gradients(case, BF16), exact(case))
    found.sort()
    assert found[len(found) // 2] < 0.95 and found[len(found) * 9 // 10] <= 1.25


STEPS_BY_GEMM = Case("gru", 3, 96, 40, 320)


@pytest.mark.parametrize(
    "case",
    [
        STEPS_BY_GEMM,
        Case("gru", 12, 37, 70, 260, layers=2, bidirectional=True),
        Case("rnn_tanh", 10, 40, 300, 30, layers=2),
        Case("rnn_relu", 30, 2, 500, 40, bias=False),
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
            found = ratios(ours, with_gradients(case, BF16), exact(case))
    finally:
        torch.set_num_threads(before)
    assert max(found) <= (3 if case.cell == "rnn_relu" else 1.25)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


@pytest.mark.parametrize("cell", ["gru", "rnn_tanh"])
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


@pytest.mark.skipif(not MULTIPLIES, reason="a processor that does not multiply bfloat16")
@pytest.mark.parametrize(
    "case",
    [
        Case("rnn_tanh", 3, 96, 40, 1100, lengths=(3,) * 50 + (2,) * 46),
        Case("rnn_tanh", 3, 4, 5, 16),
    ],
    ids=str,
)
def test_steps_that_upstream_multiplies_faster(case: Case) -> None:
    module, tensors = case.module(BF16), case.tensors(BF16)
    aten_ext.reset_counts()
    with torch.no_grad():
        call(case, module, tensors)
    assert dict(aten_ext.counts("CPU")[case.name].declined) == {documented(NARROW_REASON): 1}


@pytest.mark.skipif(MULTIPLIES, reason="a processor that multiplies bfloat16")
@pytest.mark.parametrize(
    ("case", "declines"),
    [
        (Case("gru", 1, 5, 300, 300), True),  # widening the weights costs what the products of five rows do
        (Case("gru", 2, 3, 300, 300), False),
        (Case("gru", 1, 5, 20, 20), False),
        (Case("gru", 1, 4, 20, 150, layers=2, bidirectional=True), True),
        (Case("rnn_tanh", 20, 100, 400, 3), True),  # and widening x what a product with three columns does
        (Case("rnn_tanh", 20, 100, 400, 4), False),
        (Case("rnn_tanh", 20, 100, 40, 3), False),
        (Case("gru", 20, 100, 400, 1), True),
    ],
    ids=str,
)
def test_what_is_not_worth_widening(case: Case, declines: bool) -> None:
    module, tensors = case.module(BF16), case.tensors(BF16)
    aten_ext.reset_counts()
    with torch.no_grad():
        call(case, module, tensors)
    reasons = {documented(NARROW_REASON): 1} if declines else {}
    assert dict(aten_ext.counts("CPU")[case.name].declined) == reasons
