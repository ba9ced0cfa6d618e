"""Recurrent layers on the CPU: every reason why a call goes to upstream's composition, which then answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import aten_ext
from upstream_versions import PACKED_LSTM_IS_ONEDNNS

from .cases import Case, call, documented

Arguments = dict[str, Any]


def arguments(cell: str = "gru", **changes: Any) -> Arguments:
    """Those of ``gru.input`` and its like."""
    case = Case(cell, 3, 4, 5, 6)
    x, *states = case.tensors()
    return {
        "input": x,
        "hx": states if cell == "lstm" else states[0],
        "params": [p.detach() for p in case.module().parameters()],
        "has_biases": True,
        "num_layers": 1,
        "dropout": 0.0,
        "train": False,
        "bidirectional": False,
        "batch_first": False,
    } | changes


def packed(**changes: Any) -> Arguments:
    """Those of ``gru.data``."""
    of = arguments()
    del of["input"], of["batch_first"]
    return {"data": torch.randn(9, 5), "batch_sizes": torch.tensor([4, 3, 2])} | of | changes


def double(of: Arguments) -> Arguments:
    return of | {
        "input": of["input"].double(),
        "hx": of["hx"].double(),
        "params": [p.double() for p in of["params"]],
    }


PADDED: list[tuple[str, Callable[[], Arguments]]] = [
    ("dtype other than float32, bfloat16", lambda: double(arguments())),
    ("more than one dtype", lambda: arguments(hx=torch.zeros(1, 4, 6, dtype=torch.double))),
    ("tensor that is not strided", lambda: arguments(hx=torch.zeros(1, 4, 6).to_sparse())),
    ("more than one device", lambda: arguments(hx=torch.zeros(1, 4, 6, device="meta"))),
    ("input that is not three-dimensional", lambda: arguments(input=torch.randn(3, 5))),
    ("initial state that does not fit", lambda: arguments(hx=torch.zeros(1, 1, 6))),
    ("initial state that does not fit", lambda: arguments(hx=torch.zeros(2, 4, 6))),
    ("empty input", lambda: arguments(input=torch.randn(0, 4, 5))),
    ("weight list that does not fit the layers", lambda: arguments(num_layers=2, hx=torch.zeros(2, 4, 6))),
    ("weight list that does not fit the layers", lambda: arguments(has_biases=False)),
    ("weights that do not fit", lambda: arguments(input=torch.randn(3, 4, 7))),
    ("dropout that is no probability", lambda: arguments(dropout=1.5)),
]


@pytest.mark.parametrize(
    ("reason", "make"), PADDED, ids=[f"{i}-{reason}" for i, (reason, _) in enumerate(PADDED)]
)
def test_padded(reason: str, make: Callable[[], Arguments]) -> None:
    with torch.no_grad():
        assert aten_ext.explain("gru.input", key="CPU", **make()).reason == documented(reason)


def test_list_of_lstm() -> None:
    with torch.no_grad():
        short = arguments("lstm", hx=[torch.zeros(1, 4, 6)])
        assert aten_ext.explain("lstm.input", key="CPU", **short).reason == documented(
            "initial state that does not fit"
        )
        reason = documented("LSTM in inference, which oneDNN runs")
        assert aten_ext.explain("lstm.input", key="CPU", **arguments("lstm")).reason == reason


@pytest.mark.parametrize("cell", ["gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("training", [False, True])
def test_few_steps_of_a_large_layer(cell: str, training: bool) -> None:
    """They are little but the products, where those of a step are more than 30 million multiply-adds."""
    rows = 30_000_000 // ((3 if cell == "gru" else 1) * 400 * 400)
    for steps, batch, large in (
        (1, rows, False),
        (1, rows + 1, True),
        (2, rows + 1, True),
        (3, rows + 1, False),
    ):
        case = Case(cell, steps, batch, 5, 400)
        x, *states = case.tensors()
        params = [p.requires_grad_(training) for p in case.module().parameters()]
        of = arguments(input=x, hx=states[0], params=params)
        reason = aten_ext.explain(f"{cell}.input", key="CPU", **of).reason
        assert reason == (documented("few steps of large products") if large else ""), (steps, batch)


def test_a_packed_lstm_of_equal_lengths() -> None:
    """Upstream runs it by oneDNN, as one that is not packed, in releases that do."""
    for lengths, reason in (((3, 3, 3), "LSTM in inference, which oneDNN runs"), ((3, 3, 2), "")):
        case = Case("lstm", 3, 3, 5, 6, lengths=lengths)
        aten_ext.reset_counts()
        with torch.no_grad():
            call(case, case.module(), case.tensors())
        assert dict(aten_ext.counts("CPU")["lstm.data"].declined) == (
            {documented(reason): 1} if reason and PACKED_LSTM_IS_ONEDNNS else {}
        )


def test_an_lstm_of_large_steps() -> None:
    """In training, by the multiply-adds of a step."""
    for batch, large in ((5, False), (6, True)):
        case = Case("lstm", 4, batch, 512, 512)
        x, *states = case.tensors()
        params = list(case.module().parameters())
        reason = aten_ext.explain(
            "lstm.input", key="CPU", **arguments("lstm", input=x, hx=states, params=params, train=True)
        ).reason
        assert (reason == documented("LSTM of large steps, which oneDNN runs as fast")) == large


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("packed input that is not two-dimensional", {"data": torch.randn(3, 3, 5)}),
        ("batch sizes that are no list on the host", {"batch_sizes": torch.tensor([[4, 3, 2]])}),
        (
            "batch sizes that are no list on the host",
            {"batch_sizes": torch.tensor([4, 3, 2]).int()},
        ),
        ("empty input", {"data": torch.randn(0, 5)}),
    ],
)
def test_packed(reason: str, changes: Arguments) -> None:
    assert aten_ext.explain("gru.data", key="CPU", **packed(**changes)).reason == documented(reason)


@pytest.mark.parametrize("sizes", [[4, 5], [5, 4], [4, 3, 1], [4, 0, 5]])
def test_batch_sizes_that_do_not_fit_are_upstreams(sizes: list[int]) -> None:
    """They are read when the call runs, and nothing has been written then."""
    of = packed(batch_sizes=torch.tensor(sizes))
    answers = []
    for on in (True, False):
        aten_ext.reset_counts()
        with contextlib.nullcontext() if on else aten_ext.disabled():
            try:
                answers.append(str([t.shape for t in torch.ops.aten.gru.data(*of.values())]))
            except RuntimeError as error:
                answers.append(str(error).partition("\n")[0])
        if on:
            assert (aten_ext.counts("CPU")["gru.data"].ran, aten_ext.counts("CPU")["gru.data"].late) == (0, 1)
    assert answers[0] == answers[1]


def test_autocast() -> None:
    case = Case("gru", 3, 4, 5, 6)
    module, tensors = case.module(), case.tensors()
    aten_ext.reset_counts()
    with torch.autocast("cpu", torch.bfloat16):
        ours = module(*tensors)[0]
        assert dict(aten_ext.counts("CPU")["gru.input"].declined) == {documented("autocast"): 1}
        with aten_ext.disabled():
            theirs = module(*tensors)[0]
    assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def test_less_precision() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        reason = aten_ext.explain("gru.input", key="CPU", **arguments()).reason
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    assert reason == documented("products of float32 in less precision")


def test_forward_mode() -> None:
    of = arguments()
    with torch.autograd.forward_ad.dual_level():
        of["input"] = torch.autograd.forward_ad.make_dual(of["input"], torch.ones_like(of["input"]))
        aten_ext.reset_counts()
        y = torch.ops.aten.gru.input(*of.values())[0]
        assert dict(aten_ext.counts("CPU")["gru.input"].declined) == {
            documented("forward-mode differentiation"): 1
        }
        ours = torch.autograd.forward_ad.unpack_dual(y).tangent
        with aten_ext.disabled():
            theirs = torch.autograd.forward_ad.unpack_dual(torch.ops.aten.gru.input(*of.values())[0]).tangent
    assert torch.equal(ours, theirs)
