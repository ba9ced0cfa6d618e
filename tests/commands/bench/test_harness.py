"""How the benchmark times a case and judges it: its arithmetic on made-up times, and the route of a call."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

import aten_ext
from aten_ext.bench import graph, harness, interleave, operands, report
from aten_ext.bench.case import Case, Settings
from aten_ext.bench.ops import fused_adam
from aten_ext.bench.result import Result, Samples, spread
from aten_ext.bench.route import Overrides, routes


def made_up_case() -> Case:
    return Case("op", "name", "float32", "_fused_adamw_", lambda device: lambda: None, bytes=7, footprint=4)


def made_up_result(**clocks: tuple[float, float]) -> Result:
    """A result whose clocks have one sample each: upstream, ours."""
    samples = {name: Samples([upstream], [ours]) for name, (upstream, ours) in clocks.items()}
    return Result(made_up_case(), "cuda", clocks=samples)


class Setting:
    """A switch of nothing."""

    enabled = False

    def set(self, enabled: bool) -> None:
        """Remember the last setting."""
        self.enabled = enabled


def test_ratio_spread_and_difference() -> None:
    samples = Samples(upstream=[3.0, 1.0, 2.0], ours=[1.0, 1.0, 9.0, 1.0])
    assert samples.ratio == 2.0
    assert samples.difference_ns == -1000.0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread([7.0]) == 0.0


@pytest.mark.parametrize("seconds_per_call", [1e-7, 1e-6, 3.3e-5, 1e-3, 1.0])
def test_block_is_long_enough_but_not_much_longer(seconds_per_call: float) -> None:
    calls = interleave.calls_per_block(lambda count: count * seconds_per_call, at_least=2e-3)
    assert calls * seconds_per_call >= 2e-3 or calls == interleave.CALL_LIMIT
    assert calls == 1 or calls * seconds_per_call <= 2e-3 * 2.5


def test_block_size_gives_up_on_a_clock_that_stands_still() -> None:
    assert interleave.calls_per_block(lambda count: 0.0) == interleave.CALL_LIMIT


def test_blocks_alternate_and_change_order() -> None:
    order: list[bool] = []

    def time_block(enabled: bool) -> float:
        order.append(enabled)
        return 1.0 if enabled else 2.0

    samples = Samples()
    interleave.alternate(time_block, samples, seconds=0.0)
    assert order[:6] == [False, True, True, False, False, True]
    assert len(samples.upstream) == len(samples.ours) >= interleave.FEWEST_PAIRS
    assert samples.ratio == 2.0


def test_enough() -> None:
    assert not interleave.enough(pairs=100, elapsed=0.9, seconds=1.0)
    assert not interleave.enough(pairs=14, elapsed=1.1, seconds=1.0)
    assert interleave.enough(pairs=15, elapsed=1.1, seconds=1.0)
    assert interleave.enough(pairs=5, elapsed=2.0, seconds=1.0)


@pytest.mark.parametrize(
    ("footprint", "copies", "cache"),
    [
        (1000, 1, "exceeded"),
        (199, 2, "exceeded"),
        (200, 1, "exceeded"),
        (4, 50, "exceeded"),
        (3, 1, "resident"),
    ],
)
def test_rotation_fills_the_cache_twice_or_not_at_all(footprint: int, copies: int, cache: str) -> None:
    assert operands.rotation(footprint, cache_bytes=100) == operands.Rotation(copies, cache)
    only = operands.rotation(footprint, cache_bytes=100, one_set=True)
    assert only == operands.Rotation(1, "exceeded" if (copies, cache) == (1, "exceeded") else "resident")


def test_a_case_that_does_not_fit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aten_ext.bench.machine.free_bytes", lambda device: 5)
    result = harness.measure(made_up_case(), Settings("cpu"), Setting())
    assert result.skipped == "needs 0.0 GB, 0.0 GB are free"
    assert result.measured == 0 and not result.failures(0.98)


def test_eager_time_counts_only_where_issuing_the_call_takes_the_time() -> None:
    assert made_up_result(gpu=(10.0, 5.0), eager=(11.0, 5.5)).checked == ["gpu"]
    assert made_up_result(gpu=(10.0, 5.0), eager=(40.0, 39.0)).checked == ["gpu", "eager"]
    assert made_up_result(eager=(40.0, 39.0)).checked == ["eager"]
    assert made_up_result(wall=(1.0, 1.0)).checked == ["wall"]


def test_failures() -> None:
    assert made_up_result(gpu=(10.0, 10.0)).failures(0.98) == []
    assert made_up_result(gpu=(9.0, 10.0)).failures(0.98) == ["gpu ratio 0.900"]
    assert made_up_result(gpu=(10.0, 10.0), eager=(30.0, 60.0)).failures(0.98) == ["eager ratio 0.500"]
    cost = made_up_result(wall=(1.0, 1.019))
    cost.limit_ns = 20.0
    assert cost.failures(0.98) == []
    cost.clocks["wall"] = Samples([1.0], [1.021])
    assert cost.failures(0.98) == ["costs 21.0 ns, more than 20"]


@pytest.mark.parametrize(
    ("limit", "ours", "measured", "passes"),
    [
        (None, [9.0], 1, False),
        (0.98, [1.0], 1, True),
        (0.98, [9.0, 1.0, 1.0], 3, True),
        (0.98, [9.0, 9.0, 9.0], 3, False),
    ],
)
def test_a_slow_case_is_measured_again(
    limit: float | None, ours: list[float], measured: int, passes: bool
) -> None:
    result = Result(made_up_case(), "cpu", clocks={"wall": Samples()})
    values = iter(ours)

    def sample() -> None:
        result.clocks["wall"].add(False, 1.0)
        result.clocks["wall"].add(True, next(values))

    harness.settle(result, sample, limit)
    assert result.measured == measured
    assert (not result.failures(0.98)) == passes


@pytest.mark.parametrize(
    ("seconds", "copies", "calls"), [(1e-6, 1, 256), (1e-6, 30, 270), (1e-3, 1, 2), (1.0, 1, 1), (1.0, 7, 7)]
)
def test_a_graph_holds_whole_laps(seconds: float, copies: int, calls: int) -> None:
    assert graph.calls_per_graph(seconds, copies) == calls


def test_graph_replays_are_interleaved_and_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: graphs that advance a clock by 6 us when captured with the overrides on, else by 12."""
    captured: list[tuple[object, object]] = []
    pools = iter(range(2))
    now = 0.0
    switch = Setting()

    class Graph:
        def __init__(self) -> None:
            self.enabled = switch.enabled

        def replay(self) -> None:
            nonlocal now
            now += 6e-3 if self.enabled else 12e-3

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.time = now

        def elapsed_time(self, end: Event) -> float:
            return end.time - self.time

    class Capture:
        def __init__(self, graph: Graph, pool: object, stream: object) -> None:
            captured.append((pool, stream))

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    doubles = {"CUDAGraph": Graph, "graph": Capture, "Event": Event, "graph_pool_handle": lambda: next(pools)}
    for name, double in doubles.items():
        monkeypatch.setattr(torch.cuda, name, double)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(graph, "calls_per_graph", lambda seconds, copies, of_graph: 6)
    samples = Samples()
    mine: Any = object()
    graph.GraphClock([lambda: None] * 3, switch, stream=mine).sample(samples, seconds=0.0)
    assert captured == [(0, mine), (0, mine)], "results in the same memory"
    assert len(samples.upstream) == len(samples.ours) >= interleave.FEWEST_PAIRS
    assert samples.upstream == pytest.approx([2.0] * len(samples.upstream))
    assert samples.ours == pytest.approx([1.0] * len(samples.ours))


def test_a_gpu_table_fits_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    slow = Samples([123456.0, 123457.0], [98765.0, 98766.0])
    results = [
        Result(
            case, "cuda", "upstream: a reason of many words", clocks={"gpu": slow, "eager": slow}, copies=30
        )
        for case in fused_adam.cases("cuda", full=False)
    ]
    results[0].missing["gpu"] = "cannot be captured: why"
    report.show(report.console(), results, never_slower=None)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= report.WIDTH
    assert all(line.rstrip().endswith("30 *") for line in printed.splitlines() if "1.25" in line)
    assert printed.count("1.25") == 2 * len(results)
    assert "GPU us n/a, cannot be captured: why" in printed


def test_a_clock_that_is_missing_has_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(report.console(), [made_up_result(eager=(2.5, 1.0))], never_slower=None)
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "2.50" in line)
    assert re.search(r"(n/a +){3}2\.5", row), row


def test_a_busy_machine_is_pointed_out() -> None:
    assert report.busy({"machine": {"load": 0.5, "cores": 2}}) is None
    assert "load 0.6 on 2 cores" in str(report.busy({"machine": {"load": 0.6, "cores": 2}}))


# ---- the route


def test_routes_tell_of_a_graph_where_upstream_runs_in_it() -> None:
    one = made_up_case()
    assert Result(one, "cuda", "fused").routes == "fused"
    both = Result(one, "cuda", "fused", reason_in_graph="few steps")
    assert both.routes == "fused; in a CUDA graph upstream: few steps"
    upstream = Result(one, "cuda", "upstream: few steps", reason_in_graph="few steps")
    assert upstream.routes == "upstream: few steps"


def test_route_names_the_kernel_and_the_reason() -> None:
    with Overrides() as switch:
        fused = fused_adam.Step("1x10").case().make("cpu")
        assert routes(fused, "_fused_adamw_", "cpu", switch) == ("fused", None)
        route, reason = routes(lambda: None, "_fused_adamw_", "cpu", switch)
        assert route == f"upstream: {reason}" and "does not reach" in str(reason)


def test_overrides_are_left_as_they_were_found() -> None:
    aten_ext.disable("_fused_adam_")
    with Overrides() as switch:
        switch.set(False)
        assert not any(override.enabled for override in aten_ext.overrides())
        switch.set(True)
        assert all(override.enabled for override in aten_ext.overrides())
    assert [override.name for override in aten_ext.overrides() if not override.enabled] == ["_fused_adam_"]


# ---- on a GPU


@pytest.mark.gpu
def test_harness_on_a_gpu() -> None:
    case = fused_adam.Step("1000x1024").case()
    with Overrides() as switch:
        result = harness.measure(case, Settings("cuda", seconds=0.2), switch)
    assert result.route == "fused" and result.missing == {} and result.copies > 1
    for clock in ("gpu", "eager"):
        for side in (result.clocks[clock].upstream, result.clocks[clock].ours):
            assert side and all(math.isfinite(value) and value > 0 for value in side)


@pytest.mark.gpu
def test_a_call_that_cannot_be_captured_says_why() -> None:
    def call() -> object:
        return torch.ones(1, device="cuda").item()

    with pytest.raises(graph.CaptureError, match="cannot be captured: "):
        graph.GraphClock([call], Setting())
