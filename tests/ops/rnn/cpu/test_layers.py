"""Recurrent layers on the CPU against upstream and float64: values, gradients, strides, and the route."""

from __future__ import annotations

import contextlib
import dataclasses

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

import aten_ext

from .cases import (
    CELLS,
    FLOOR_OF_FEW,
    Case,
    assert_close,
    assert_ran,
    assert_route,
    call,
    documented,
    with_gradients,
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any layer that fits a test: sizes either side of a vector and of a tile."""
    steps, batch = draw(st.integers(1, 9)), draw(st.integers(1, 19))
    packed = draw(st.booleans())
    lengths = sorted(draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch)), reverse=True)
    return Case(
        cell=draw(st.sampled_from(CELLS)),
        steps=lengths[0] if packed else steps,
        batch=batch,
        inputs=draw(st.integers(1, 40)),
        hidden=draw(st.sampled_from([1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 48, 64, 80, 100])),
        layers=draw(st.integers(1, 3)),
        bidirectional=draw(st.booleans()),
        batch_first=draw(st.booleans()),
        bias=draw(st.booleans()),
        lengths=tuple(lengths) if packed else None,
        given_state=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


def results(case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Ours, upstream's and float64's."""
    aten_ext.reset_counts()
    ours = with_gradients(case)
    assert_route(case)
    with aten_ext.disabled():
        return ours, with_gradients(case), with_gradients(case, torch.double)


@hypothesis.given(case=cases())
def test_training(case: Case) -> None:
    ours, theirs, exact = results(case)
    # Gradients of a ReLU's few units are sums in which hundreds of terms may cancel.
    assert_close(ours, theirs, exact, of_few=1e-4 if case.cell == "rnn_relu" else FLOOR_OF_FEW)
    assert [t.stride() for t in ours] == [t.stride() for t in theirs]


@hypothesis.given(case=cases())
def test_inference(case: Case) -> None:
    module, tensors = case.module(), case.tensors()
    aten_ext.reset_counts()
    with torch.no_grad():
        ours = call(case, module, tensors)
        if case.of_onednn:
            assert dict(aten_ext.counts("CPU")[case.name].declined) == {
                "LSTM in inference, which oneDNN runs": 1
            }
        else:
            assert_ran(case.name)
        with aten_ext.disabled():
            theirs = call(case, module, tensors)
            exact = call(case, case.module(torch.double), case.tensors(torch.double))
    assert_close(ours, theirs, exact)
    assert [t.stride() for t in ours] == [t.stride() for t in theirs]


LARGE = [
    Case("gru", 12, 37, 70, 260),
    Case("gru", 30, 2, 16, 512, bidirectional=True),
    Case("gru", 3, 64, 200, 300),
    Case("gru", 3, 3, 300, 700),
    Case("rnn_tanh", 10, 40, 300, 400, layers=2),
    Case("rnn_relu", 3, 1, 500, 600, bias=False),
    Case("lstm", 8, 15, 100, 290, bidirectional=True),
    Case("lstm", 40, 64, 24, 48, lengths=tuple(range(40, 8, -1)) + (5,) * 32),
    Case("gru", 40, 64, 100, 128, lengths=tuple(range(40, 8, -1)) + (5,) * 32, bidirectional=True),
]


@pytest.mark.parametrize("case", LARGE, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(case: Case, threads: int) -> None:
    """Threads share rows, or units; a GEMM makes the product where packing does not pay."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours, theirs, exact = results(case)
        again = with_gradients(case)
    finally:
        torch.set_num_threads(before)
    assert_close(ours, theirs, exact)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True)), "bit for bit, call after call"


@pytest.mark.parametrize(
    ("case", "threads", "plan"),
    [
        (Case("gru", 50, 32, 64, 64), 2, "product and gates of a step in one pass, threads share rows"),
        (Case("gru", 50, 1, 64, 512), 2, "product and gates of a step in one pass, threads share units"),
        (Case("gru", 50, 32, 64, 64), 1, "product and gates of a step in one pass, one thread"),
        (Case("gru", 2, 1, 64, 180), 1, "a GEMM and a pass over the gates for each step, one thread"),
    ],
    ids=str,
)
def test_plans(case: Case, threads: int, plan: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    module, (x, h) = case.module(), case.tensors()
    arguments = (x, h, list(module.parameters()), True, case.layers, 0.0, True, False, False)
    try:
        with torch.no_grad():
            assert aten_ext.explain("gru.input", *arguments, key="CPU").plan == plan
        with_node = aten_ext.explain("gru.input", *arguments, key="CPU").plan
    finally:
        torch.set_num_threads(before)
    assert with_node == f"with a node for the backward, {plan}"


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_gemm_for_each_step_of_several_lengths(cell: str, bidirectional: bool) -> None:
    """Rows that end, or in the reverse direction begin, at other steps than others."""
    plain = cell.startswith("rnn")  # less of a product: packing pays sooner
    lengths = (2,) * 8 + (1,) * 13 if plain else (3,) * 5 + (2,) * 9 + (1,) * 7
    hidden = 500 if plain else 300
    case = Case(cell, lengths[0], 21, 30, hidden, layers=2, bidirectional=bidirectional, lengths=lengths)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x, *states = case.tensors()
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, list(lengths))
        plan = aten_ext.explain(
            case.name, packed.data, packed.batch_sizes, states if cell == "lstm" else states[0],
            list(case.module().parameters()), True, 2, 0.0, True, bidirectional, key="CPU",
        ).plan  # fmt: skip
        assert (
            plan == "with a node for the backward, a GEMM and a pass over the gates for each step, one thread"
        )
        ours, theirs, exact = results(case)
    finally:
        torch.set_num_threads(before)
    assert_close(ours, theirs, exact, of_few=1e-4 if cell == "rnn_relu" else FLOOR_OF_FEW)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("lengths", [None, (6, 6, 3, 1)])
def test_dropout_draws_what_upstream_draws(cell: str, p: float, lengths: tuple[int, ...] | None) -> None:
    case = Case(cell, 6, 4, 5, 12, layers=3, bidirectional=True, dropout=p, lengths=lengths)
    aten_ext.reset_counts()
    ours = with_gradients(case)
    after = torch.random.get_rng_state()
    assert_ran(case.name)
    with aten_ext.disabled():
        theirs = with_gradients(case)
    assert torch.equal(after, torch.random.get_rng_state())
    assert_close(ours, theirs)


@pytest.mark.parametrize("cell", CELLS)
def test_no_dropout_in_evaluation(cell: str) -> None:
    case = Case(cell, 6, 4, 5, 12, layers=2, dropout=0.5)
    module, tensors = case.module().eval(), [t.requires_grad_() for t in case.tensors()]
    before = torch.random.get_rng_state()
    ours = call(case, module, tensors)
    assert torch.equal(before, torch.random.get_rng_state())
    with aten_ext.disabled():
        assert_close(ours, call(case, module, tensors))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 1e-42, -0.0])
def test_special_values(cell: str, value: float) -> None:
    """Each element is of upstream's class: finite, infinite, NaN."""
    case = Case(cell, 4, 5, 6, 20)
    module, tensors = case.module(), case.tensors()
    for t in tensors:
        t.view(-1)[3::7] = value
    both = []
    for enabled in (True, False):
        leaves = [t.clone().requires_grad_() for t in tensors]
        with contextlib.nullcontext() if enabled else aten_ext.disabled():
            results = call(case, module, leaves)
            gradients = torch.autograd.grad([r.sum() for r in results], [*leaves, *module.parameters()])
        both.append([*results, *gradients])
    for a, b in zip(*both, strict=True):
        assert torch.equal(a.isnan(), b.isnan()) and torch.equal(a.isinf(), b.isinf())
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("cell", CELLS)
def test_strides_of_inputs(cell: str) -> None:
    """Inputs, states and weights that are not dense; a gradient that is expanded."""
    case = Case(cell, 5, 4, 6, 10)
    module, tensors = case.module(), case.tensors()
    for p in module.parameters():
        p.data = torch.stack([p.data, p.data], dim=-1)[..., 0]
    loose = [torch.stack([t, t], dim=-1)[..., 1].requires_grad_() for t in tensors]
    assert not loose[0].is_contiguous()
    aten_ext.reset_counts()
    ours = torch.autograd.grad([r.sum() for r in call(case, module, loose)], [*loose, *module.parameters()])
    assert_ran(case.name)
    with aten_ext.disabled():
        theirs = torch.autograd.grad(
            [r.sum() for r in call(case, module, loose)], [*loose, *module.parameters()]
        )
    assert_close(list(ours), list(theirs))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("wanted", ["input", "state", "w_hh", "bias_ih", "bias_hh", "nothing of the output"])
def test_some_gradients(cell: str, wanted: str) -> None:
    """Only what is asked for, whichever results it comes from."""
    case = Case(cell, 5, 4, 6, 10, layers=2)
    both = []
    for enabled in (True, False):
        module, tensors = case.module().requires_grad_(False), case.tensors()
        leaf = {
            "input": tensors[0],
            "w_hh": module.weight_hh_l1,
            "bias_ih": module.bias_ih_l0,
            "bias_hh": module.bias_hh_l0,
        }.get(wanted, tensors[1])
        leaf.requires_grad_()
        aten_ext.reset_counts()
        with contextlib.nullcontext() if enabled else aten_ext.disabled():
            results = call(case, module, tensors)
            if enabled:
                assert_ran(case.name)
            of = results[-1] if wanted == "nothing of the output" else results[0]
            both.append(torch.autograd.grad(of.sum(), [leaf]))
    assert_close(list(both[0]), list(both[1]))


def test_case_is_what_it_says() -> None:
    """The helper above judges: a result that is off by more than upstream fails."""
    case = dataclasses.replace(LARGE[0], steps=3)
    ours, theirs, exact = results(case)
    ours[0] = ours[0] + 1e-4
    with pytest.raises(AssertionError):
        assert_close(ours, theirs, exact)


def test_lstm_on_one_thread() -> None:
    """Long steps on one thread are oneDNN's, on two they are ours; short ones are ours."""
    reason = documented("LSTM on one thread, which oneDNN runs as fast")
    before = torch.get_num_threads()
    try:
        for threads, inputs, hidden, declined in (
            (1, 8, 64, {reason: 1}),
            (2, 8, 64, {}),
            (1, 8, 16, {}),
            (1, 400, 16, {reason: 1}),
            (2, 400, 16, {}),
        ):
            torch.set_num_threads(threads)
            case = Case("lstm", 20, 32, inputs, hidden)
            aten_ext.reset_counts()
            with_gradients(case)
            assert dict(aten_ext.counts("CPU")["lstm.input"].declined) == declined
    finally:
        torch.set_num_threads(before)
