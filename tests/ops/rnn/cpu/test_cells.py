"""Cells on the CPU without gradients: values, route, and every reason to go to the composition."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import aten_ext

from .cases import assert_close, assert_ran, documented

OPS = {"gru_cell": 3, "lstm_cell": 4, "rnn_tanh_cell": 1, "rnn_relu_cell": 1}

NARROW = "cell of bfloat16 other than a GRU's"


def arguments(
    op: str, batch: int = 3, inputs: int = 5, hidden: int = 6, seed: int = 0, **changes: Any
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    rows = OPS[op] * hidden

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    state = normal(batch, hidden)
    return {
        "input": normal(batch, inputs),
        "hx": [state, normal(batch, hidden)] if op == "lstm_cell" else state,
        "w_ih": normal(rows, inputs) / inputs**0.5,
        "w_hh": normal(rows, hidden) / hidden**0.5,
        "b_ih": normal(rows),
        "b_hh": normal(rows),
    } | changes


def cast(of: Any, dtype: torch.dtype) -> Any:
    if isinstance(of, torch.Tensor):
        return of.to(dtype)
    return [cast(t, dtype) for t in of] if isinstance(of, list) else of


def run(op: str, of: dict[str, Any]) -> list[torch.Tensor]:
    result = getattr(torch.ops.aten, op)(*of.values())
    return list(result) if isinstance(result, tuple) else [result]


@hypothesis.given(
    op=st.sampled_from(list(OPS)),
    batch=st.integers(1, 40),
    inputs=st.integers(1, 70),
    hidden=st.sampled_from([1, 7, 8, 9, 15, 16, 17, 33, 64, 100, 700]),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_values(
    op: str, batch: int, inputs: int, hidden: int, bias: bool, dtype: torch.dtype, seed: int
) -> None:
    none = {} if bias else {"b_ih": None, "b_hh": None}
    of = {name: cast(t, dtype) for name, t in arguments(op, batch, inputs, hidden, seed, **none).items()}
    aten_ext.reset_counts()
    ours = run(op, of)
    if dtype == torch.bfloat16 and op != "gru_cell":
        assert dict(aten_ext.counts("CPU")[op].declined) == {documented(NARROW): 1}
        return
    assert_ran(op)
    with aten_ext.disabled():
        theirs = run(op, of)
        exact = run(op, {name: cast(t, torch.double) for name, t in of.items()})
    if dtype == torch.float32:
        assert_close(ours, theirs, exact)
        return
    for a, b, e in zip(ours, theirs, exact, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        error, yardstick = (float((t.double() - e).square().mean().sqrt()) for t in (a, b))
        typical = float(e.square().mean().sqrt())
        assert error <= 1.25 * yardstick + 2.0**-9 / a.numel() ** 0.5 * typical


@pytest.mark.parametrize("op", OPS)
def test_modules_and_strides(op: str) -> None:
    """As modules call it; inputs and weights that are not dense; an input is not written to."""
    of = arguments(op)
    loose = {
        name: [torch.stack([x, x], -1)[..., 0] for x in t]
        if isinstance(t, list)
        else torch.stack([t, t], -1)[..., 1]
        for name, t in of.items()
    }
    kept = [t.clone() for t in (of["hx"] if isinstance(of["hx"], list) else [of["hx"]])]
    aten_ext.reset_counts()
    a, b = run(op, of), run(op, loose)
    assert_ran(op, 2)
    torch.testing.assert_close(a, b)
    assert all(
        torch.equal(x, y)
        for x, y in zip(kept, of["hx"] if isinstance(of["hx"], list) else [of["hx"]], strict=True)
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("dtype other than float32, bfloat16", {"input": torch.zeros(3, 5, dtype=torch.double)}),
        ("more than one dtype", {"w_ih": torch.zeros(6, 5, dtype=torch.double)}),
        ("more than one device", {"w_hh": torch.zeros(6, 6, device="meta")}),
        ("tensor that is not strided", {"w_hh": torch.zeros(6, 6).to_sparse()}),
        ("one bias of two", {"b_ih": None}),
        ("one bias of two", {"b_hh": None}),
        ("input or state that is not two-dimensional", {"input": torch.zeros(5)}),
        ("empty input", {"input": torch.zeros(0, 5)}),
        ("weights that do not fit", {"input": torch.zeros(3, 4)}),
        ("weights that do not fit", {"input": torch.zeros(4, 5)}),
        ("weights that do not fit", {"b_ih": torch.zeros(5)}),
        ("weights that do not fit", {"b_hh": torch.zeros(5)}),
        ("weights that do not fit", {"w_hh": torch.zeros(6, 5)}),
    ],
)
def test_declines(op: str, reason: str, changes: dict[str, Any]) -> None:
    assert aten_ext.explain(op, key="CPU", **arguments(op, **changes)).reason == documented(reason)


def test_a_large_cell_of_bfloat16() -> None:
    """3 * 512 * (16 + 512) multiply-adds a row: 0.81 million."""
    large = documented("large cell of bfloat16")
    cases = ((123, torch.bfloat16, ""), (124, torch.bfloat16, large), (124, torch.float32, ""))
    for rows, dtype, reason in cases:
        of = arguments("gru_cell", rows, 16, 512)
        of = {name: tensor.to(dtype) for name, tensor in of.items()}
        assert aten_ext.explain("gru_cell", key="CPU", **of).reason == reason


def test_state_of_an_lstm() -> None:
    state = torch.zeros(3, 6)
    for hx in ([state], [state] * 3):
        reason = aten_ext.explain("lstm_cell", key="CPU", **arguments("lstm_cell", hx=hx)).reason
        assert reason == documented("state that is not a pair")
    of = arguments("lstm_cell", hx=[state, torch.zeros(3, 5)])
    assert aten_ext.explain("lstm_cell", key="CPU", **of).reason == documented("weights that do not fit")


@pytest.mark.parametrize("op", OPS)
def test_autocast_and_less_precision(op: str) -> None:
    of = arguments(op)
    with torch.autocast("cpu", torch.bfloat16):
        assert aten_ext.explain(op, key="CPU", **of).reason == documented("autocast")
        ours = run(op, of)
        with aten_ext.disabled():
            theirs = run(op, of)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True))
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        reason = aten_ext.explain(op, key="CPU", **of).reason
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    assert reason == documented("products of float32 in less precision")


@pytest.mark.parametrize("op", OPS)
def test_gradients_see_the_composition(op: str) -> None:
    of = arguments(op)
    of["w_hh"].requires_grad_()
    aten_ext.reset_counts()
    ours = torch.autograd.grad(run(op, of)[0].sum(), [of["w_hh"]])
    assert aten_ext.counts("CPU")[op].ran == 0
    with aten_ext.disabled():
        theirs = torch.autograd.grad(run(op, of)[0].sum(), [of["w_hh"]])
    assert torch.equal(ours[0], theirs[0])
    with torch.no_grad():
        run(op, of)
    assert_ran(op)


class Operators(TorchDispatchMode):
    """Notes what is called."""

    def __init__(self) -> None:
        """Nothing yet."""
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call on."""
        self.seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", OPS)
def test_modes_see_the_composition(op: str) -> None:
    of = arguments(op)
    aten_ext.reset_counts()
    with torch.no_grad(), Operators() as mode:
        composed = run(op, of)
    assert mode.seen.count("aten::addmm") == 2 and f"aten::{op}" not in mode.seen
    assert aten_ext.counts("CPU")[op].ran == 0
    torch.testing.assert_close(composed, run(op, of))
