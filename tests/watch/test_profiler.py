"""Fused runs in torch.profiler and NVTX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import aten_ext
from ops.optimizer.adam_reference import call, make_state

EVENT = "aten_ext::_fused_adamw_"


def profiled(device: str, **options: Any) -> Any:
    """A profile of five calls: three fused, one declined, one disabled."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    states = [make_state([(4, 5), (3,)], device=device) for _ in range(5)]
    states[3].steps = [step.double() for step in states[3].steps]
    aten_ext.reset_counts()
    with profile(activities=activities, acc_events=True, **options) as found:
        for state in states[:4]:
            call("_fused_adamw_", state)
        with aten_ext.disabled():
            call("_fused_adamw_", states[4])
    counts = aten_ext.counts(device.upper())["_fused_adamw_"]
    assert (counts.ran, sum(counts.declined.values()), counts.disabled) == (3, 1, 1)
    return found


def test_fused_runs_are_events_inside_the_operator(device: str) -> None:
    found = profiled(device)
    events = [event for event in found.events() if event.name == EVENT]
    assert len(events) == 3
    assert {event.cpu_parent.name for event in events} == {"aten::_fused_adamw_"}
    averages = {average.key: average for average in found.key_averages()}
    assert (averages[EVENT].count, averages["aten::_fused_adamw_"].count) == (3, 5)
    # Counted once: the operator's own time is what is left when its child's is taken away.
    operator = averages["aten::_fused_adamw_"]
    assert operator.self_cpu_time_total <= operator.cpu_time_total - averages[EVENT].cpu_time_total + 1e-3
    total = sum(average.self_cpu_time_total for average in averages.values())
    assert total == pytest.approx(
        sum(event.cpu_time_total for event in found.events() if event.cpu_parent is None), rel=0.01
    )


def test_shapes(device: str) -> None:
    """As of the operator: torch gives those of lists in the trace alone, of which below."""
    event = next(event for event in profiled(device, record_shapes=True).events() if event.name == EVENT)
    assert event.input_shapes == event.cpu_parent.input_shapes
    assert len(event.input_shapes) == 15, "one for each argument of the schema"
    assert not next(event for event in profiled(device).events() if event.name == EVENT).input_shapes


def test_the_chrome_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    profiled("cpu", record_shapes=True).export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("name") == EVENT]
    assert [event["cat"] for event in events] == ["cpu_op"] * 3
    dimensions = events[0]["args"]["Input Dims"]
    assert dimensions[:6] == [[[4, 5], [3]]] * 4 + [[]] + [[[], []]]


def test_overloads_have_events_of_their_own() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call("_fused_adam_", make_state([(4,)]), lr=torch.tensor(0.1))
    assert [e.name for e in found.events() if "aten_ext" in e.name] == ["aten_ext::_fused_adam_.tensor_lr"]


def test_while_traced_and_shadowed(device: str) -> None:
    """The same events; what shadow mode does itself is below aten_ext::shadow and counts nothing."""
    with aten_ext.shadow() as report, aten_ext.trace_calls() as trace:
        found = profiled(device)
    assert sum(event.name == EVENT for event in found.events()) == 3
    shadow = [event for event in found.events() if event.name == "aten_ext::shadow"]
    assert len(shadow) == 6, "copies before and the comparison after each fused run"
    assert report.exact and report.rows[0].compared == 3
    assert [row.count for row in trace.rows] == [3, 1, 1]


@pytest.mark.gpu
def test_kernels_are_the_events() -> None:
    averages = {a.key: a for a in profiled("cuda").key_averages()}
    assert averages[EVENT].self_device_time_total > 0
    assert averages["aten::_fused_adamw_"].device_time_total >= averages[EVENT].device_time_total


@pytest.mark.gpu
def test_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    """emit_nvtx() works through the same callbacks: the call goes the event's way and its result is right."""
    state = make_state([(4,)], device="cuda")
    expected = state.clone()
    call("_fused_adamw_", expected)
    with torch.autograd.profiler.emit_nvtx(record_shapes=True):
        call("_fused_adamw_", state)
    assert aten_ext.counts("CUDA")["_fused_adamw_"].ran == 2
    assert torch.equal(state.params[0], expected.params[0])
