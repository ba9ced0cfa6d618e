"""Shadow mode on the overrides of this build: it counts what it compares, and changes nothing."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import aten_ext
from ops.optimizer.adam_reference import State, call, make_state, upstream

SHAPES: list[tuple[int, ...]] = [(3, 4), (0,), (), (257,), (2, 3, 5)]
VARIANTS = [
    {},
    {"amsgrad": True},
    {"maximize": True, "weight_decay": 0.0},
    {"grad_scale": 8.0},
    {"found_inf": 1.0},
    {"lr": torch.tensor(1e-2)},
]


def same_bits(ours: State, theirs: State) -> bool:
    pairs = zip(ours.lists().values(), theirs.lists().values(), strict=True)
    return all(torch.equal(a, b) for mine, others in pairs for a, b in zip(mine, others, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_the_fused_step_is_exact(device: str, changes: dict[str, Any], dtype: torch.dtype) -> None:
    """Same bits as without shadow mode, counted once, and equal to upstream's."""
    moved = {
        name: torch.tensor(value, device=device) if name in ("grad_scale", "found_inf") else value
        for name, value in changes.items()
    }
    options: dict[str, Any] = dict(dtype=dtype, device=device, amsgrad="amsgrad" in changes, offset=1)
    state = make_state(SHAPES, permutation=(1, 0), **options)
    theirs = upstream("_fused_adamw_", state, **moved)
    aten_ext.reset_counts()
    with aten_ext.shadow() as report:
        call("_fused_adamw_", state, **moved)
    name = "_fused_adamw_.tensor_lr" if "lr" in changes else "_fused_adamw_"
    (only,) = report.rows
    assert (only.override, only.key, only.compared, only.error) == (name, device.upper(), 1, "")
    assert report.exact and only.exact and (only.layouts, only.max_ulp) == (0, 0)
    lists = 5 if "amsgrad" in changes else 4
    assert only.elements == lists * sum(t.numel() for t in state.params)
    assert aten_ext.counts(device.upper())[name].ran == 1
    assert not aten_ext.counts(device.upper())[name].declined
    assert same_bits(state, theirs)


def test_training_is_the_same_with_and_without(device: str) -> None:
    for override in aten_ext.overrides():
        if "mm" in override.name:  # their sums are in another order than upstream's
            aten_ext.disable(override.name)

    def train() -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Dropout(), torch.nn.Linear(9, 1)).to(
            device
        )
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        losses = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 7, device=device)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train()
    aten_ext.reset_counts()
    with aten_ext.shadow(rate=0.5) as some, aten_ext.shadow(rate=1.0) as report:
        assert train() == expected
    with aten_ext.shadow(keep="upstream"):
        assert train() == expected
    assert aten_ext.counts(device.upper())["_fused_adamw_"].ran == 12
    for session in (report, some):  # the youngest session sets the rate for all
        steps = [row for row in session.rows if row.override == "_fused_adamw_"]
        assert session.exact and sum(row.compared for row in steps) == 6


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu"), torch.no_grad])
def test_in_modes(mode: Any) -> None:
    with mode(), aten_ext.shadow(keep="upstream") as report:
        state = make_state([(4, 5), (3,)])
        theirs = upstream("_fused_adam_", state)
        call("_fused_adam_", state)
    assert report.exact and report.rows[0].compared == 1
    assert same_bits(state, theirs)


def test_the_rate_and_torchs_generator() -> None:
    state = make_state([(2,)])
    before = torch.get_rng_state()
    with aten_ext.shadow(rate=0.25) as report:
        for _ in range(800):
            call("_fused_adamw_", state)
    assert 120 < report.rows[0].compared < 280  # 6 standard deviations
    assert torch.equal(torch.get_rng_state(), before)
    assert aten_ext.counts()["_fused_adamw_"].ran == 800
    with aten_ext.shadow(rate=0) as none:
        call("_fused_adamw_", state)
    assert none.rows == [] and not none.exact and "no fused call was compared" in str(none)


def test_a_report_ends_with_its_block() -> None:
    state = make_state([(2,)])
    with aten_ext.shadow() as outer:
        with aten_ext.shadow() as inner:
            call("_fused_adamw_", state)
            assert inner.rows[0].compared == 1, "readable inside"
        call("_fused_adamw_", state)
    call("_fused_adamw_", state)
    assert (inner.rows[0].compared, outer.rows[0].compared) == (1, 2)
    text = str(outer)
    assert text.splitlines()[0].split()[:4] == ["#", "override", "key", "compared"]
    assert "#1 self=[float32[2]]" in text


def test_calls_that_go_upstream_are_not_compared() -> None:
    state = make_state([(2,)])
    state.steps = [step.double() for step in state.steps]
    with aten_ext.shadow() as report:
        call("_fused_adamw_", state)
        with aten_ext.disabled():
            call("_fused_adamw_", make_state([(2,)]))
    counts = aten_ext.counts()["_fused_adamw_"]
    assert (counts.ran, counts.disabled, sum(counts.declined.values())) == (0, 1, 1)
    assert report.rows == []


def test_threads() -> None:
    def work() -> None:
        state = make_state([(4,), (3,)])
        for _ in range(50):
            call("_fused_adamw_", state)

    with aten_ext.shadow() as report:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (report.rows[0].compared, report.exact) == (200, True)
    assert aten_ext.counts()["_fused_adamw_"].ran == 200


def test_mistakes() -> None:
    for rate in (-0.1, 1.5, math.nan, "all"):
        with pytest.raises(ValueError, match=r"\[shadow\] expected a rate from 0 to 1, got"):
            aten_ext.shadow(rate).__enter__()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected keep='fused' or keep='upstream', got 'ours'"):
        aten_ext.shadow(keep="ours").__enter__()  # type: ignore[arg-type]
    call("_fused_adamw_", make_state([(2,)]))
    assert aten_ext.counts()["_fused_adamw_"].ran == 1


# ---- CUDA alone --------------------------------------------------------------------------------------


@pytest.fixture
def captured_state() -> Iterator[State]:
    state = make_state([(100,), (7,)], device="cuda")
    call("_fused_adamw_", state)
    torch.cuda.synchronize()
    yield state


@pytest.mark.gpu
def test_graph_capture_is_left_alone(captured_state: State) -> None:
    graph = torch.cuda.CUDAGraph()
    with aten_ext.shadow() as report:
        with torch.cuda.graph(graph):
            call("_fused_adamw_", captured_state)
        call("_fused_adamw_", captured_state)
    graph.replay()
    torch.cuda.synchronize()
    (only,) = report.rows
    assert (only.captured, only.compared, only.failed) == (1, 1, 0)
    assert report.exact
