"""The benchmark harness: its arithmetic on made-up times, and the command line on a tiny case."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import aten_ext
from aten_ext.__main__ import main
from aten_ext.bench import (
    command,
    entry,
    fused_adagrad,
    fused_adam,
    fused_sgd,
    graph,
    harness,
    interleave,
    operands,
    optimizer_peers,
    optimizer_step,
    registry,
    report,
)
from aten_ext.bench.case import Case, Settings
from aten_ext.bench.parameter_sets import PARAMETER_SETS
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


@pytest.fixture
def overrides_restored() -> Iterator[None]:
    yield
    aten_ext.enable()


# ---- the cases


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("op", registry.OPS)
def test_cases_are_distinct_and_name_known_overrides(op: str, device: str) -> None:
    short, full = (registry.load(op).cases(device, full) for full in (False, True))
    labels = [case.label for case in full]
    assert len(set(labels)) == len(labels)
    assert {case.label for case in short} <= set(labels)
    known = {override.name for override in aten_ext.overrides()}
    for case in full:
        assert case.op == op
        assert case.override in known
        # What is not one call of one kernel counts no bytes.
        assert 0 < case.footprint <= case.bytes or op == "models"


@pytest.mark.parametrize(
    ("name", "tensors", "elements"),
    [
        ("resnet50", 161, 25_557_032),
        ("gpt2", 148, 124_439_808),
        ("llama1b", 146, 1_235_814_400),
        ("gru_seq2seq", 14, 17_496_384),
        ("4000x64", 4000, 256_000),
    ],
)
def test_parameter_sets_have_the_published_sizes(name: str, tensors: int, elements: int) -> None:
    shapes = PARAMETER_SETS[name]()
    assert len(shapes) == tensors
    assert sum(math.prod(shape) for shape in shapes) == elements


@pytest.mark.parametrize(
    ("step", "moved", "held"),
    [
        (fused_adam.Step("14x1.25M"), 7 * 17_500_000 * 4, 4 * 17_500_000 * 4),
        (fused_adam.Step("14x1.25M", "bfloat16"), 7 * 17_500_000 * 2, 4 * 17_500_000 * 2),
        (fused_adam.Step("14x1.25M", amsgrad=True), 9 * 17_500_000 * 4, 5 * 17_500_000 * 4),
        (fused_adam.Step("14x1.25M", grad_scale=True), 8 * 17_500_000 * 4, 4 * 17_500_000 * 4),
    ],
)
def test_bytes_of_an_adam_step(step: fused_adam.Step, moved: int, held: int) -> None:
    case = step.case()
    assert (case.bytes, case.footprint) == (moved, held)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("variant", ["plain", "amsgrad", "grad_scale", "maximize", "misaligned"])
def test_operands_stay_normal_numbers(dtype: str, variant: str) -> None:
    step = fused_adam.Step(
        "1x10",
        dtype,
        amsgrad=variant == "amsgrad",
        grad_scale=variant == "grad_scale",
        maximize=variant == "maximize",
        offset=int(variant == "misaligned"),
    )
    call = step.case().make("cpu")
    for _ in range(5000):
        call()
    parameters, gradients, moments, squares, largest, steps = call.args  # type: ignore[attr-defined]
    for (tensor,) in (parameters, gradients, moments, squares, largest or gradients):
        assert tensor.isfinite().all()
        assert (tensor.abs() >= torch.finfo(tensor.dtype).smallest_normal).all()
        assert (tensor.abs() < 100).all()
        assert tensor.storage_offset() == (step.offset if tensor is not gradients[0] else 0)
    assert steps[0] == 1


@pytest.mark.parametrize(
    ("step", "moved", "held"),
    [
        (fused_sgd.Step("14x1.25M"), 5, 3),
        (fused_sgd.Step("14x1.25M", momentum=0.0), 3, 2),
        (fused_sgd.Step("14x1.25M", grad_scale=True), 6, 3),
        (fused_adagrad.Step("14x1.25M"), 5, 3),
        (fused_adagrad.Step("14x1.25M", grad_scale=True), 6, 3),
    ],
)
def test_bytes_of_other_steps(step: fused_sgd.Step | fused_adagrad.Step, moved: int, held: int) -> None:
    case = step.case()
    assert (case.bytes, case.footprint) == (moved * 70_000_000, held * 70_000_000)


@pytest.mark.parametrize(
    "step",
    [
        fused_sgd.Step("1x10"),
        fused_sgd.Step("1x10", momentum=0.0),
        fused_sgd.Step("1x10", nesterov=True, maximize=True),
        fused_sgd.Step("1x10", grad_scale=True, tensor_lr=True, offset=1),
        fused_adagrad.Step("1x10"),
        fused_adagrad.Step("1x10", "float16"),
        fused_adagrad.Step("1x10", "bfloat16", lr_decay=0.1, grad_scale=True, offset=1),
    ],
    ids=lambda step: step.case().label,
)
def test_operands_of_other_steps_stay_normal_numbers(step: fused_sgd.Step | fused_adagrad.Step) -> None:
    call = step.case().make("cpu")
    for _ in range(5000):
        call()
    for tensor in [tensors[0] for tensors in call.args[:3] if tensors]:  # type: ignore[attr-defined]
        assert tensor.isfinite().all() and (tensor.abs() < 1000).all()
        assert (tensor.abs() >= torch.finfo(tensor.dtype).smallest_normal).all()
        assert tensor.storage_offset() == step.offset


@pytest.mark.parametrize("kind", optimizer_step.OVERRIDES)
def test_optimizer_step_reaches_its_override(kind: str, overrides_restored: None) -> None:
    case = optimizer_step.step_of(kind, "1x10")
    with Overrides() as switch:
        call = case.make("cpu")
        assert routes(call, case.override, "cpu", switch) == ("fused", None)
        assert aten_ext.counts("CPU")["_foreach_add_.Scalar"].ran == (kind != "SGD")


def test_a_rival_is_measured_in_turns_or_skipped(overrides_restored: None) -> None:
    """Without a GPU: a rival that notes whether overrides were on when it ran, and one that is missing."""
    on = []

    def make_rival(name: str, device: str) -> Callable[[], object]:
        return lambda: on.append(any(override.enabled for override in aten_ext.overrides()))

    def missing(name: str, device: str) -> Callable[[], object]:
        raise ModuleNotFoundError("No module named 'rival'")

    case = optimizer_peers.beside("1x10", "a rival", make_rival)
    assert case.measure is not None and case.name == "AdamW.step 1x10 beside a rival"
    result = case.measure(case, Settings("cpu", seconds=0.02, never_slower=1e9))
    samples = result.clocks["eager"]
    assert len(samples.upstream) == len(samples.ours) >= interleave.FEWEST_PAIRS
    assert result.failures(1e9) == [] and not any(on[3:])
    case = optimizer_peers.beside("1x10", "a rival", missing)
    assert case.measure is not None
    assert case.measure(case, Settings("cpu")).skipped == "ModuleNotFoundError: No module named 'rival'"


# ---- the arithmetic


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
        def __init__(self, graph: Graph) -> None: ...

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    for name, double in {"CUDAGraph": Graph, "graph": Capture, "Event": Event}.items():
        monkeypatch.setattr(torch.cuda, name, double)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(graph, "calls_per_graph", lambda seconds, copies: 6)
    samples = Samples()
    graph.GraphClock([lambda: None] * 3, switch).sample(samples, seconds=0.0)
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


def test_a_busy_machine_is_pointed_out() -> None:
    assert report.busy({"machine": {"load": 0.5, "cores": 2}}) is None
    assert "load 0.6 on 2 cores" in str(report.busy({"machine": {"load": 0.6, "cores": 2}}))


# ---- the route


def test_route_names_the_kernel_and_the_reason(overrides_restored: None) -> None:
    with Overrides() as switch:
        fused = fused_adam.Step("1x10").case().make("cpu")
        assert routes(fused, "_fused_adamw_", "cpu", switch) == ("fused", None)
        route, reason = routes(lambda: None, "_fused_adamw_", "cpu", switch)
        assert route == f"upstream: {reason}" and "does not reach" in str(reason)


def test_overrides_are_left_as_they_were_found(overrides_restored: None) -> None:
    aten_ext.disable("_fused_adam_")
    with Overrides() as switch:
        switch.set(False)
        assert not any(override.enabled for override in aten_ext.overrides())
        switch.set(True)
        assert all(override.enabled for override in aten_ext.overrides())
    assert [override.name for override in aten_ext.overrides() if not override.enabled] == ["_fused_adam_"]


def test_route_of_the_entry() -> None:
    assert entry.route("disabled", {"ran": 0, "disabled": 7}) == ("disabled", None)
    assert entry.route("declining", {"ran": 0, "declined: why": 7}) == ("upstream: why", "why")
    with pytest.raises(RuntimeError, match="went elsewhere: ran"):
        entry.route("declining", {"ran": 7, "disabled": 0})


# ---- the command line


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aten_ext", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        cwd=Path(__file__).parent,
    )


def complaints(stderr: str) -> list[str]:
    """What was said on stderr, less torch's remark about a CUDA build on a machine without a GPU."""
    return [line for line in stderr.splitlines() if "No CUDA runtime is found" not in line]


def tiny_case(device: str, full: bool) -> list[Case]:
    """In place of the cases of ``fused_adam``: one that takes microseconds."""
    return [fused_adam.Step("1x10").case()]


def test_measures_prints_and_writes(tmp_path: Path) -> None:
    file = tmp_path / "new" / "out.json"
    options = ["fused_adam", "--full", "--filter", "adamw 1x10", "--dtype", "float32", "--seconds", "0.05"]
    done = bench(*options, "--device", "cpu", "--json", str(file))
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    assert "adamw 1x10 float32" in done.stdout and "fused" in done.stdout
    assert "\x1b" not in done.stdout and max(map(len, done.stdout.splitlines())) <= report.WIDTH

    document = json.loads(file.read_text())
    assert list(document) == [
        "schema",
        "machine",
        "versions",
        "date",
        "commit",
        "settings",
        "ceilings",
        "cases",
    ]
    assert document["ceilings"]["streams"]["copy"]["tb_per_s"] > 0
    assert document["versions"]["torch"] == torch.__version__
    assert document["settings"]["filter"] == "adamw 1x10"
    (case,) = document["cases"]
    expected = {"op": "fused_adam", "name": "adamw 1x10", "device": "cpu", "dtype": "float32", "bytes": 280}
    assert {key: case[key] for key in expected} == expected
    assert (case["route"], case["reason"], case["override"]) == ("fused", None, "_fused_adamw_")
    assert (case["rotated"], case["cache"], case["measured"], case["passed"]) == (False, "resident", 1, None)
    for side in (case["upstream"], case["ours"]):
        assert side["wall_us"] > 0 and side["wall_samples"] >= interleave.FEWEST_PAIRS
        assert side["tb_per_s"] == pytest.approx(280 / side["wall_us"] / 1e6, rel=1e-3)
        assert side["gpu_us"] is None
    assert case["ratio"] == pytest.approx(case["upstream"]["wall_us"] / case["ours"]["wall_us"], rel=1e-3)


def test_never_slower_fails_after_printing_and_writing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overrides_restored: None,
) -> None:
    monkeypatch.setattr(fused_adam, "cases", tiny_case)
    file = tmp_path / "out.json"
    options = ["bench", "fused_adam", "--device", "cpu", "--seconds", "0.02", "--json", str(file)]
    assert main([*options, "--never-slower", "1000"]) == 1
    printed = capsys.readouterr().out
    assert "adamw 1x10 float32" in printed and "FAILED" in printed and "measured 3 times" in printed
    (case,) = json.loads(file.read_text())["cases"]
    assert (case["passed"], case["measured"], case["checked"]) == (False, 3, ["wall"])
    assert main([*options, "--never-slower", "0.001"]) == 0
    assert "passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], f"unknown op 'nonsense'; choose from: {', '.join(registry.OPS)}"),
        (["--device", "tpu"], "unknown device 'tpu'; choose from: cpu, cuda"),
        (
            ["fused_adam", "--device", "cpu", "--filter", "zzz"],
            "no case contains 'zzz'; there are: adamw gru",
        ),
        (["--device", "cpu", "--dtype", "int8"], "no case has dtype int8; there are: bfloat16, float32"),
        (["--device", "cpu", "--seconds", "0"], "--seconds must be a positive number, not 0"),
        (["--device", "cpu", "--never-slower", "-1"], "--never-slower must be a positive number, not -1"),
        (["--device", "cpu", "--json", "/proc/none/out.json"], "cannot write to folder '/proc/none'"),
        (["--device", "cpu", "--json", "/"], "cannot write '/': it is a folder"),
    ],
)
def test_mistakes_are_explained_before_measuring(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("it measured"))
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"aten_ext bench: {message}")
    assert captured.err.count("\n") == 1 and captured.out == ""


def test_mistake_ends_with_code_2_and_no_traceback() -> None:
    done = bench("nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_nothing_to_compare_without_overrides() -> None:
    done = bench("--device", "cpu", ATEN_EXT="0")
    assert done.returncode == 2 and "ATEN_EXT=0" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_list_does_not_measure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("it measured"))
    assert main(["bench", "--list", "--device", "cpu", "--filter", "4000x64"]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == ["fused_adam", "adamw", "4000x64", "float32", "4.096", "MB"]


def test_entry_is_skipped_without_a_compiler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "_worker", entry.Worker)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["bench", "entry", "--never-slower", "0.98"]) == 0
    printed = capsys.readouterr().out
    assert "needs a C++ compiler" in printed and "not checked" in printed


WORKER_WITHOUT_COMPILER = """
import os, runpy, sys, time
import torch
import torch.utils.benchmark


class PythonTimer:
    def __init__(self, *snippets, **options):
        pass

    def timeit(self, calls):
        dtype = getattr(torch, os.environ.get("ATEN_EXT_BENCH_STEPS", "float32"))
        tensors = [[torch.ones(4)] for _ in range(4)]
        betas = dict(beta1=0.9, beta2=0.999)
        options = dict(lr=1e-3, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
        torch._fused_adamw_(*tensors, [], [torch.ones((), dtype=dtype)], **betas, **options)
        self.median = 1e-6
        return self


torch.utils.benchmark.Timer = PythonTimer
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_entry_worker_without_its_compiler() -> None:
    """The two forks, their registration and their counts; the call is made from Python, its time made up."""
    requests = [{"sys_path": sys.path}, *({"state": state, "seconds": 0.0} for state in entry.STATES)]
    script = str(Path(entry.__file__).with_name("_entry_worker.py"))
    done = subprocess.run(
        [sys.executable, "-c", WORKER_WITHOUT_COMPILER, script],
        input="".join(f"{json.dumps(request)}\n" for request in requests),
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(script).parents[3],
    )
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    ready, disabled, declining = (json.loads(line) for line in done.stdout.splitlines())
    assert ready == {}
    assert entry.route("disabled", disabled["counts"]) == ("disabled", None)
    assert entry.route("declining", declining["counts"])[0].startswith("upstream: ")
    for answer in (disabled, declining):
        assert answer["upstream"] == answer["ours"] == [1.0] * 15


@pytest.mark.skipif(
    "ATEN_EXT_TEST_SLOW" not in os.environ, reason="compiles for a minute: ATEN_EXT_TEST_SLOW=1"
)
def test_entry_measures_both_states(tmp_path: Path) -> None:
    """The time is not judged here: other work on the machine would make this test fail now and then."""
    file = tmp_path / "entry.json"
    done = bench("entry", "--seconds", "0.1", "--json", str(file), ATEN_EXT_DISABLE="_fused_adamw_")
    assert (done.returncode, complaints(done.stderr)) == (0, [])
    disabled, declining = json.loads(file.read_text())["cases"]
    assert disabled["route"] == "disabled"
    assert declining["route"] == f"upstream: {declining['reason']}"
    for case in (disabled, declining):
        assert case["limit_ns"] == 20 and abs(case["difference_ns"]) < 10_000
        assert 0 < case["upstream"]["wall_us"] < 1000


@pytest.mark.gpu
def test_harness_on_a_gpu(overrides_restored: None) -> None:
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
