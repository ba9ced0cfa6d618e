"""The gates of cells in training and their backwards: when they run fused, and parity with upstream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

import aten_ext
from ops.rnn.cases import DTYPES, assert_ran, documented, meta, names

GRU_BACKWARD = "_thnn_fused_gru_cell_backward"
LSTM = "_thnn_fused_lstm_cell"
LSTM_BACKWARD = "_thnn_fused_lstm_cell_backward_impl"


def arguments(name: str, batch: int, hidden: int, new: Callable[..., Any]) -> dict[str, Any]:
    """Of a call with everything given; ``new(*shape)`` makes a tensor."""
    if name == GRU_BACKWARD:
        return {"grad_hy": new(batch, hidden), "workspace": new(batch, 5 * hidden), "has_bias": True}
    if name == LSTM:
        biases = {"input_bias": new(4 * hidden), "hidden_bias": new(4 * hidden)}
        products = {"input_gates": new(batch, 4 * hidden), "hidden_gates": new(batch, 4 * hidden)}
        return products | {"cx": new(batch, hidden)} | biases
    states = {key: new(batch, hidden) for key in ("grad_hy", "grad_cy", "cx", "cy")}
    return states | {"workspace": new(batch, 4 * hidden), "has_bias": True}


def explained(
    name: str, batch: int = 2, hidden: int = 8, dtype: torch.dtype = torch.float32, **changes: Any
) -> Any:
    def new(*shape: int) -> torch.Tensor:
        return meta(*shape, dtype=dtype)

    return aten_ext.explain(name, key="CUDA", **arguments(name, batch, hidden, new) | changes)


def ask(name: str, **options: Any) -> str:
    reason = explained(name, **options).reason
    return documented(reason) if reason else ""


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_runs(dtype: torch.dtype) -> None:
    for name in (GRU_BACKWARD, LSTM, LSTM_BACKWARD):
        assert ask(name, dtype=dtype) == ""
    assert ask(LSTM, dtype=dtype, input_bias=None, hidden_bias=None) == ""
    stacked, number = meta(2, 3, 8, dtype=dtype)[:, 1], meta(1, dtype=dtype).expand(2, 8)
    for grad in (stacked, number):
        assert ask(GRU_BACKWARD, dtype=dtype, grad_hy=grad, has_bias=False) == ""
        assert ask(LSTM_BACKWARD, dtype=dtype, grad_hy=grad, grad_cy=None) == ""
        assert ask(LSTM_BACKWARD, dtype=dtype, grad_hy=None, grad_cy=grad) == ""


@pytest.mark.parametrize(
    ("name", "reason", "changes"),
    [
        (GRU_BACKWARD, "dtype other than float32, float16, bfloat16, float64", {"dtype": torch.int32}),
        (GRU_BACKWARD, "more than one dtype", {"workspace": meta(2, 40, dtype=torch.float16)}),
        (GRU_BACKWARD, "more than one device", {"workspace": torch.empty(2, 40)}),
        (GRU_BACKWARD, "tensor that is not strided", {"grad_hy": torch.ones(2, 8).to_sparse().to("meta")}),
        (GRU_BACKWARD, "gates that do not fit the state", {"workspace": meta(2, 41)}),
        (GRU_BACKWARD, "gates that do not fit the state", {"grad_hy": meta(2, 1, 8)}),
        (GRU_BACKWARD, "empty input", {"batch": 0}),
        (GRU_BACKWARD, "tensor that is not contiguous", {"workspace": meta(40, 2).t()}),
        (LSTM, "dtype other than float32, float16, bfloat16, float64", {"dtype": torch.int32}),
        (LSTM, "one bias of two", {"hidden_bias": None}),
        (LSTM, "more than one dtype", {"cx": meta(2, 8, dtype=torch.float16)}),
        (LSTM, "more than one device", {"cx": torch.empty(2, 8)}),
        (LSTM, "gates that do not fit the state", {"hidden_gates": meta(2, 24)}),
        (LSTM, "gates that do not fit the state", {"input_bias": meta(24)}),
        (LSTM, "empty input", {"hidden": 0}),
        (LSTM, "tensor that is not contiguous", {"cx": meta(8, 2).t()}),
        (LSTM_BACKWARD, "no gradient", {"grad_hy": None, "grad_cy": None}),
        (LSTM_BACKWARD, "dtype other than float32, float16, bfloat16, float64", {"dtype": torch.int32}),
        (LSTM_BACKWARD, "more than one dtype", {"cx": meta(2, 8, dtype=torch.float16)}),
        (LSTM_BACKWARD, "more than one dtype", {"grad_cy": meta(2, 8, dtype=torch.float16)}),
        (LSTM_BACKWARD, "more than one device", {"cy": torch.empty(2, 8)}),
        (LSTM_BACKWARD, "gates that do not fit the state", {"workspace": meta(2, 24)}),
        (LSTM_BACKWARD, "gates that do not fit the state", {"cy": meta(2, 7)}),
        (LSTM_BACKWARD, "gradient of another size", {"grad_cy": meta(1, 8)}),
        (LSTM_BACKWARD, "empty input", {"batch": 0}),
        (LSTM_BACKWARD, "tensor that is not contiguous", {"cy": meta(8, 2).t()}),
    ],
    ids=names,
)
def test_declines(name: str, reason: str, changes: dict[str, Any]) -> None:
    assert ask(name, **changes) == reason


UNDER_AUTOCAST = "biases of 16 bits under autocast"


@contextmanager
def autocast(device: str) -> Iterator[None]:
    """``torch.autocast`` itself is off where there is no such device."""
    torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)


def test_declines_biases_of_16_bits_under_autocast() -> None:
    """Upstream sums them with at::sum, which answers in fp32 there; a CPU's autocast is another's affair."""
    for name in (GRU_BACKWARD, LSTM_BACKWARD):
        for dtype in (*DTYPES, torch.float64):
            is_narrow = dtype in (torch.float16, torch.bfloat16)
            without_biases = ask(name, dtype=dtype, has_bias=False)
            with autocast("cuda"):
                assert ask(name, dtype=dtype) == (UNDER_AUTOCAST if is_narrow else "")
                assert ask(name, dtype=dtype, has_bias=False) == without_biases
            with autocast("cpu"):
                assert ask(name, dtype=dtype) == ""


def test_plans() -> None:
    """Two units of fp32 where they are neighbours; biases in the same launch up to 64 rows."""
    plans = {
        "two units a thread, biases in the same launch": {"batch": 64},
        "two units a thread, biases in two launches": {"batch": 65},
        "two units a thread": {"batch": 65, "has_bias": False},
        "a unit a thread": {"hidden": 7, "has_bias": False},
        "a unit a thread, biases in the same launch": {"grad_hy": meta(1).expand(2, 8)},
    }
    for plan, changes in plans.items():
        assert explained(GRU_BACKWARD, **changes).plan == plan
    assert explained(GRU_BACKWARD, has_bias=False, grad_hy=meta(2, 9)[:, :8]).plan == "a unit a thread"
    assert explained(GRU_BACKWARD, has_bias=False, dtype=torch.half).plan == "a unit a thread"
    many = {"batch": 200, "hidden": 1024, "has_bias": False}
    assert explained(LSTM_BACKWARD, dtype=torch.half, **many).plan == "two units a thread"
    assert explained(GRU_BACKWARD, dtype=torch.double, has_bias=False).plan == "a unit a thread"
    assert explained(LSTM).plan == "two units a thread"


AS_FAST = "gates that upstream computes as fast"
# Rows and units of a call, and those of the three operators that upstream computes as fast, with biases.
SIZES_AND_UPSTREAMS: list[tuple[torch.dtype, int, int, tuple[str, ...]]] = [
    (torch.float32, 1, 512, ()),
    (torch.float32, 8, 512, ()),
    (torch.float32, 1, 4097, (LSTM, LSTM_BACKWARD)),
    (torch.float32, 9, 455, (LSTM_BACKWARD,)),
    (torch.float32, 64, 512, (LSTM, LSTM_BACKWARD)),
    (torch.float32, 4096, 976, (LSTM, LSTM_BACKWARD)),
    (torch.float32, 4096, 1024, (LSTM,)),
    (torch.float64, 8, 512, ()),
    (torch.float64, 9, 8, (LSTM_BACKWARD, GRU_BACKWARD)),
    (torch.float64, 1, 4097, (LSTM, LSTM_BACKWARD, GRU_BACKWARD)),
    (torch.float64, 4096, 1024, (LSTM, LSTM_BACKWARD, GRU_BACKWARD)),
    *((dtype, *size, ()) for dtype in (torch.float16, torch.bfloat16) for size in ((64, 512), (4096, 1024))),
    *((dtype, 1500, 1001, (LSTM_BACKWARD,)) for dtype in (torch.float16, torch.bfloat16)),
    *((torch.float16, *size, ()) for size in ((1498, 1001), (1500, 1002))),
    (torch.float32, 4096, 1025, (LSTM,)),
]


@pytest.mark.parametrize(("dtype", "batch", "hidden", "upstreams"), SIZES_AND_UPSTREAMS, ids=str)
def test_what_upstream_computes_as_fast(
    dtype: torch.dtype, batch: int, hidden: int, upstreams: tuple[str, ...]
) -> None:
    """The table as measured: an LSTM's gates of more than a few units in fp32, and what was not measured."""
    for name in (LSTM, LSTM_BACKWARD, GRU_BACKWARD):
        assert ask(name, dtype=dtype, batch=batch, hidden=hidden) == (AS_FAST if name in upstreams else ""), (
            name
        )


def test_what_upstream_computes_as_fast_without_biases() -> None:
    def ask_backward(name: str, dtype: torch.dtype, batch: int, hidden: int) -> str:
        return ask(name, dtype=dtype, batch=batch, hidden=hidden, has_bias=False)

    sizes = (
        (2, 64),
        (3, 43),
        (64, 512),
        (64, 513),
        (179, 1000),
        (180, 1000),
        (625, 800),
        (2000, 1000),
        (2001, 1000),
        (4096, 1024),
    )
    for batch, hidden in sizes:
        units = batch * hidden
        of_lstm = ask_backward(LSTM_BACKWARD, torch.float32, batch, hidden)
        of_gru = ask_backward(GRU_BACKWARD, torch.float32, batch, hidden)
        assert (of_lstm, of_gru) == (AS_FAST, AS_FAST * (units > 32768))
        for dtype in (torch.float16, torch.bfloat16):
            of_lstm = ask_backward(LSTM_BACKWARD, dtype, batch, hidden)
            of_gru = ask_backward(GRU_BACKWARD, dtype, batch, hidden)
            assert (of_lstm, of_gru) == (
                AS_FAST * (500_000 <= units <= 2_000_000),
                AS_FAST * (units >= 180_000),
            )
        for name in (LSTM_BACKWARD, GRU_BACKWARD):
            assert ask_backward(name, torch.float64, batch, hidden) == AS_FAST * (batch > 8)


# ---- on a GPU ----------------------------------------------------------------------------------------

SIZES = [(1, 1), (1, 512), (3, 7), (64, 1024), (65, 66), (512, 128), (1000, 333)]
OF_SUMS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Relative to the sum of the terms' absolute values."""


def new_on_gpu(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    return lambda *shape: torch.randn(*shape, device="cuda").to(dtype)


def both(name: str, given: dict[str, Any], may_decline: str = AS_FAST) -> tuple[Any, Any]:
    """Our results and upstream's; a call that is declined for that reason is upstream's."""
    operator = getattr(torch.ops.aten, name)
    with aten_ext.disabled():
        theirs = operator(**given)
    reason = aten_ext.explain(name, key="CUDA", **given).reason
    assert reason in ("", may_decline)
    aten_ext.reset_counts()
    ours = operator(**given)
    if reason:
        assert dict(aten_ext.counts("CUDA")[name].declined) == {reason: 1}
    else:
        assert_ran(name)
    return ours, theirs


# Of 16 bits, half a unit in the last place of 1.
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def assert_a_rounding_apart(mine: torch.Tensor, upstreams: torch.Tensor, rounding: float) -> None:
    """Sums of an LSTM's gates in 16 bits are fused in another way here and there."""
    difference = (mine.double() - upstreams.double()).abs()
    assert (difference <= 4 * rounding * upstreams.double().abs() + rounding / 4).all()
    assert (difference > 0).double().mean() < 0.01


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize(("batch", "hidden"), SIZES)
def test_same_bits_as_upstream(dtype: torch.dtype, batch: int, hidden: int) -> None:
    """All but the sums of the biases' gradients, which have another order."""
    torch.manual_seed(0)
    for name, sums in ((LSTM, 0), (LSTM_BACKWARD, 1), (GRU_BACKWARD, 2)):
        given = arguments(name, batch, hidden, new_on_gpu(dtype))
        changes: list[dict[str, Any]] = [{}]
        if name == LSTM:
            changes += [{"input_bias": None, "hidden_bias": None}]
        else:
            grad = torch.randn(batch, 3, hidden, device="cuda").to(dtype)[:, 1]
            changes += [{"has_bias": False}, {"grad_hy": grad}, {"grad_hy": grad[:1, :1].expand_as(grad)}]
        if name == LSTM_BACKWARD:
            changes += [{"grad_hy": None}, {"grad_cy": None}]
        for change in changes:
            ours, theirs = both(name, given | change)
            exact = len(ours) - sums
            for mine, upstreams in zip(ours[:exact], theirs[:exact], strict=True):
                assert mine.stride() == upstreams.stride()
                if name == LSTM and dtype in ROUNDING:
                    assert_a_rounding_apart(mine, upstreams, ROUNDING[dtype])
                else:
                    assert torch.equal(mine, upstreams), (name, change)
            gates = ours[:sums]
            for mine, upstreams, grads in zip(ours[exact:], theirs[exact:], gates, strict=True):
                assert (mine is None) == (upstreams is None)
                if mine is not None:
                    size = grads.double().abs().sum(0)
                    difference = (mine.double() - upstreams.double()).abs()
                    assert (difference <= OF_SUMS[dtype] * size + 1e-7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("forward", [True, False], ids=["forward", "upstream's forward"])
def test_training(dtype: torch.dtype, cell: str, bias: bool, forward: bool) -> None:
    """A few steps of a cell; a backward reads what either forward kept."""
    torch.manual_seed(0)
    operators = ("_thnn_fused_gru_cell", GRU_BACKWARD) if cell == "GRUCell" else (LSTM, LSTM_BACKWARD)
    module = getattr(torch.nn, cell)(24, 40, bias=bias).to("cuda", dtype)
    inputs = torch.randn(3, 3, 24, device="cuda").to(dtype)

    def loss() -> torch.Tensor:
        state = torch.zeros(3, 40, device="cuda", dtype=dtype)
        states: Any = (state, state) if cell == "LSTMCell" else state
        total = state.sum()
        for x in inputs:
            states = module(x, states)
            total = total + (states[0] if cell == "LSTMCell" else states).square().sum()
        return total

    parameters = list(module.parameters())
    with aten_ext.disabled():
        expected = loss()
        theirs = torch.autograd.grad(expected, parameters)
    aten_ext.reset_counts()
    with nullcontext() if forward else aten_ext.disabled(operators[0]):
        value = loss()
    ours = torch.autograd.grad(value, parameters)
    if forward:
        assert_ran(operators[0], 3)
    if cell == "LSTMCell" and dtype == torch.float32 and not bias:
        assert dict(aten_ext.counts("CUDA")[operators[1]].declined) == {AS_FAST: 3}
    else:
        assert_ran(operators[1], 3)
    size = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}[dtype]
    torch.testing.assert_close(value, expected, rtol=size, atol=size)
    for mine, upstreams in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, upstreams, rtol=size, atol=size)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("has_bias", [True, False])
def test_dtypes_under_autocast(dtype: torch.dtype, has_bias: bool) -> None:
    torch.manual_seed(0)
    goes_upstream = has_bias and dtype in (torch.float16, torch.bfloat16)
    for name in (LSTM_BACKWARD, GRU_BACKWARD):
        given = arguments(name, 5, 33, new_on_gpu(dtype)) | {"has_bias": has_bias}
        with torch.autocast("cuda", torch.bfloat16):
            ours, theirs = both(name, given, UNDER_AUTOCAST if goes_upstream else AS_FAST)
        assert (UNDER_AUTOCAST in aten_ext.counts("CUDA")[name].declined) == goes_upstream
        found, expected = ([None if t is None else t.dtype for t in results] for results in (ours, theirs))
        assert found == expected


@pytest.mark.gpu
def test_a_call_repeats_its_bits_and_is_captured() -> None:
    torch.manual_seed(0)
    given = arguments(GRU_BACKWARD, 300, 130, new_on_gpu(torch.float32))
    operator = getattr(torch.ops.aten, GRU_BACKWARD)
    expected = operator(**given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours = operator(**given)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(mine, wanted) for mine, wanted in zip(ours, expected, strict=True))


@pytest.mark.gpu
def test_upstream_raises_its_errors() -> None:
    for name, change in ((GRU_BACKWARD, {"workspace": (2, 41)}), (LSTM_BACKWARD, {"cy": (2, 7)})):
        given = arguments(name, 2, 8, new_on_gpu(torch.float32))
        given |= {key: torch.ones(shape, device="cuda") for key, shape in change.items()}
        messages = []
        for off in (True, False):
            switch = aten_ext.disabled(name) if off else nullcontext()
            with switch, pytest.raises(RuntimeError) as error:
                getattr(torch.ops.aten, name)(**given)
            messages.append(str(error.value).splitlines()[0])
        assert messages[0] == messages[1]
