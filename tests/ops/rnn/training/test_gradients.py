"""Gradients of recurrent layers on a GPU: no further from float64 than upstream's."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings

import aten_ext
from ops.rnn.cases import DTYPES, FLOOR, MANY, tf32_allowed
from ops.rnn.training.relu_reference import gradients as relu_gradients
from ops.rnn.training.relu_reference import zeros_are_seen

FORWARD, BACKWARD = "_cudnn_rnn", "_cudnn_rnn_backward"


def new_module(cell: str, *arguments: int, **options: Any) -> torch.nn.RNNBase:
    if cell in ("tanh", "relu"):
        return torch.nn.RNN(*arguments, nonlinearity=cell, **options)
    return (torch.nn.GRU if cell == "gru" else torch.nn.LSTM)(*arguments, **options)


def gradients(
    rnn: torch.nn.RNNBase, x: torch.Tensor, states: list[torch.Tensor], grads: list[torch.Tensor | None]
) -> list[torch.Tensor]:
    """Of x, the states and all weights; ``grads``: of the output, and of the states behind it."""
    x, *states = (t.detach().requires_grad_() for t in (x, *states))
    y, after = rnn(x, None if not states else states[0] if len(states) == 1 else tuple(states))
    outputs = [y, *(after if isinstance(after, tuple) else (after,))]
    wanted = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None]
    return list(
        torch.autograd.grad(
            [o for o, _ in wanted], [x, *states, *rnn._flat_weights], [g.to(x.dtype) for _, g in wanted]
        )
    )


MANY_UNITS = 16
"""Of fewer all gradients of a layer are made of the same few errors."""


def no_less_accurate(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    exact: tuple[torch.Tensor, torch.Tensor],
    floor: float,
    terms: int,
    units: int,
    *,
    jumps: bool = False,
) -> None:
    """The mean error is at most 1.5 times upstream's, and the largest, which is chance, 2.5 times.

    Sums of so many terms differ by their order, in a random walk of roundings of terms, which is allowed for
    the largest. Few elements, or those that few units make, are chance, upstream's as well: 2.5 times its
    mean error, in TF32 4 times, and three times that walk.

    Args:
        ours: what the fused kernels gave.
        theirs: what upstream gave.
        exact: in float64, for ours and for theirs. The two differ for a relu (see relu_reference).
        floor: a rounding of a result of up to 1.
        terms: of a sum.
        units: of a layer.
        jumps: of several layers with relu, whose inner zeros nobody sees: only the mean is compared, and to
            four times upstream's.
    """
    tf32 = ours.dtype == torch.float32 and torch.backends.cudnn.allow_tf32
    few = exact[0].numel() < MANY or units < MANY_UNITS
    factor = 4.0 if jumps or (tf32 and few) else 2.5 if few else 1.5
    assert ours.shape == theirs.shape and ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
    scale = max(1.0, exact[0].abs().max().item())
    walk = floor * scale * math.sqrt(max(terms, 4))  # one term's gradient is rounded, and what makes it is
    walk *= 3.0 if few else 1.0
    measures = [(torch.mean, factor, walk if few else floor * scale), (torch.max, max(factor, 2.5), walk)]
    for measure, most, least in measures[: 1 if jumps else 2]:
        mine, upstreams = (
            measure((t.double() - truth).abs()).item() for t, truth in zip((ours, theirs), exact, strict=True)
        )
        assert mine <= most * upstreams + least, (measure.__name__, mine, upstreams)


def compare(
    dtype: torch.dtype,
    *,
    cell: str = "gru",
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    batch_first: bool = False,
    given_state: bool = True,
    grad_states: bool = True,
    seed: int = 0,
) -> bool:
    """Whether ours ran."""
    torch.manual_seed(seed)
    rnn = new_module(
        cell, inputs, hidden, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional
    ).to("cuda", dtype)
    directions = 2 if bidirectional else 1
    shape = (batch, steps) if batch_first else (steps, batch)

    def new(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device="cuda").to(dtype)

    kinds = 2 if cell == "lstm" else 1
    x = new(*shape, inputs)
    states = [new(layers * directions, batch, hidden) for _ in range(kinds)] if given_state else []
    grads: list[torch.Tensor | None] = [new(*shape, directions * hidden)]
    grads += [new(layers * directions, batch, hidden) if grad_states else None for _ in range(kinds)]
    with aten_ext.disabled():
        theirs = gradients(rnn, x, states, grads)
        their_y = rnn(x, *states)[0] if cell == "relu" else None
    aten_ext.reset_counts()
    ours = gradients(rnn, x, states, grads)
    counts = aten_ext.counts("CUDA")
    assert counts[FORWARD].ran == counts[BACKWARD].ran
    assert dict(counts[BACKWARD].declined) == (
        {} if counts[FORWARD].ran else {"forward that ran upstream": 1}
    )
    if counts[FORWARD].ran == 0:
        return False
    y = rnn(x, *states)[0] if cell == "relu" else None
    rnn.double()
    if y is not None and their_y is not None and layers == 1:
        truths = [relu_gradients(rnn, x, states, grads, outputs) for outputs in (y, their_y)]
    else:
        exact = [s.double() for s in states]
        truths = [gradients(rnn, x.double(), exact, grads)] * 2
        if y is not None and not torch.equal(y > 0, rnn(x.double(), *exact)[0] > 0):
            return True  # a sum that is rounded across zero: another gradient, whoever computes it
    jumps, terms = cell == "relu" and layers > 1, max(steps * batch, hidden, inputs)
    for mine, upstreams, *truth in zip(ours, theirs, *truths, strict=True):
        assert torch.equal(mine.isfinite(), upstreams.isfinite())
        pair = (truth[0], truth[1])
        no_less_accurate(mine, upstreams, pair, FLOOR[dtype], terms, hidden, jumps=jumps)
    return True


@pytest.mark.gpu
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    cell=st.sampled_from(["gru", "lstm", "tanh", "relu"]),
    steps=st.integers(1, 20),
    batch=st.one_of(st.sampled_from([1, 2, 8, 9, 16, 17]), st.integers(1, 40)),
    inputs=st.integers(1, 200),
    hidden=st.one_of(
        st.sampled_from([1, 7, 16, 33, 64, 65, 128, 129, 192, 256, 257, 512, 513]), st.integers(1, 700)
    ),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    given_state=st.booleans(),
    grad_states=st.booleans(),
    allow_tf32=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_gradients_match_upstream(allow_tf32: bool, **case: Any) -> None:
    assume(zeros_are_seen(case["cell"], case["dtype"], case["layers"], tf32=allow_tf32))
    with tf32_allowed(allow_tf32):
        compare(**case)


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True], ids=["fp32", "tf32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "hidden", "layers", "bidirectional"),
    [
        (1, 8, 128, 256, 1, False),
        (1, 1, 256, 512, 1, False),
        (5, 3, 40, 100, 2, True),
        (50, 1, 256, 512, 1, False),
        (50, 32, 256, 512, 1, True),
        (100, 16, 128, 256, 2, True),
        (64, 16, 1024, 1024, 1, False),
        (200, 8, 128, 256, 1, False),
        (64, 64, 128, 192, 1, False),
    ],
)
def test_sizes_of_the_benchmark(
    allow_tf32: bool,
    dtype: torch.dtype,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    layers: int,
    bidirectional: bool,
) -> None:
    with tf32_allowed(allow_tf32):
        assert compare(
            dtype,
            steps=steps,
            batch=batch,
            inputs=inputs,
            hidden=hidden,
            layers=layers,
            bidirectional=bidirectional,
        )


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize(("inputs", "hidden"), [(1, 128), (2, 128), (5, 256)])
def test_gradients_of_narrow_inputs_in_tf32(cell: str, inputs: int, hidden: int) -> None:
    """With one column cuDNN's products are with vectors, in fp32 whatever is allowed."""
    with tf32_allowed(True):
        assert compare(torch.float32, cell=cell, steps=30, batch=16, inputs=inputs, hidden=hidden)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("cell", "steps", "batch", "inputs", "hidden"),
    [
        ("gru", 1, 24, 64, 512),
        ("gru", 3, 16, 128, 256),
        ("gru", 8, 8, 64, 556),
        ("lstm", 5, 8, 48, 336),
        ("lstm", 1, 48, 128, 256),
        ("tanh", 1, 64, 128, 700),
        ("tanh", 2, 64, 131, 256),
    ],
)
def test_small_gradients_of_weights_in_tf32(
    cell: str, steps: int, batch: int, inputs: int, hidden: int, seed: int
) -> None:
    """Few elements summed over few rows: cuDNN multiplies in fp32 although it may take TF32."""
    with tf32_allowed(True):
        sizes = {"steps": steps, "batch": batch, "inputs": inputs, "hidden": hidden}
        assert compare(torch.float32, cell=cell, **sizes, grad_states=False, seed=seed)


@pytest.mark.gpu
@pytest.mark.parametrize("hidden", [656, 700, 724, 756, 792])
@pytest.mark.parametrize("inputs", [128, 140, 208])
def test_one_step_of_sixteen_rows_in_tf32(inputs: int, hidden: int) -> None:
    """CuDNN multiplies the state of an RNN in fp32 up to a size at which other batches are in TF32."""
    with tf32_allowed(True):
        sizes = {"steps": 1, "batch": 16, "inputs": inputs, "hidden": hidden}
        ran = compare(torch.float32, cell="tanh", **sizes, grad_states=False)
    assert ran == (hidden > 724), "in fp32 such a step is upstream's"


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [1, 4, 12])
def test_scale_of_65536_in_fp16(steps: int) -> None:
    """What is finite upstream is finite here."""
    gru = torch.nn.GRU(64, 128, 2).cuda().half()
    x = torch.randn(steps, 8, 64, device="cuda").half().requires_grad_()
    for scale in (2.0**10, 2.0**13, 2.0**16):
        results = []
        for off in (True, False):
            aten_ext.disable() if off else aten_ext.enable(FORWARD, BACKWARD)
            y = gru(x)[0]
            loss = y.float().square().mean() * scale
            results.append(torch.autograd.grad(loss, [x, *gru.parameters()]))
        for theirs, ours in zip(*results, strict=True):
            assert bool((ours.isfinite() | ~theirs.isfinite()).all())


@pytest.mark.gpu
def test_same_bits_every_time() -> None:
    gru = torch.nn.GRU(64, 300, 2, bidirectional=True).to("cuda", torch.bfloat16)
    x = torch.randn(30, 12, 64, device="cuda").bfloat16().requires_grad_()
    y = gru(x)[0]
    inputs = [x, *gru.parameters()]
    first = torch.autograd.grad(y.sum(), inputs, retain_graph=True)
    for _ in range(10):
        again = torch.autograd.grad(y.sum(), inputs, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
