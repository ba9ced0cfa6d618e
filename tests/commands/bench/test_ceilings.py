"""The ceilings that the benchmark holds its numbers against: measured, and printed as shares."""

from __future__ import annotations

import json
import re

import pytest
import torch

from aten_ext.bench import ceiling, report
from aten_ext.bench.ceiling import Ceilings, Rate
from aten_ext.bench.ops import fused_adam
from aten_ext.bench.result import Result, Samples
from commands.bench.runs import CEILINGS


def test_share_of_the_roofline() -> None:
    """Memory's rate is the better stream's; the slower of bytes and FLOPs decides."""
    assert CEILINGS.tb_per_s == 0.05
    # 5 MB at 50 GB/s are 100 us.
    assert CEILINGS.share("float32", 5_000_000, 0, 200.0) == pytest.approx(0.5)
    assert CEILINGS.share("float64", 5_000_000, 0, 200.0) == pytest.approx(0.5)
    # 40 MFLOP at 0.1 TFLOP/s are 400 us, at 0.2 they are 200.
    assert CEILINGS.share("float32", 5_000_000, 40_000_000, 800.0) == pytest.approx(0.5)
    assert CEILINGS.share("float16", 5_000_000, 40_000_000, 800.0) == pytest.approx(0.25)
    assert CEILINGS.share("float64", 5_000_000, 40_000_000, 800.0) is None
    assert Ceilings("cpu", 1, 1, "highest").share("float32", 1, 0, 1.0) is None


def test_the_best_sample_is_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([4.0, 2.0, 5.0, 3.0])
    monkeypatch.setattr(ceiling, "_cpu_seconds", lambda call: next(times))
    rate = ceiling._best(lambda: None, 8e12, "cpu", 0.0)
    assert (rate.per_second, rate.samples) == (4.0, 4)


def test_buffers_are_past_the_cache_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aten_ext.bench.machine.cache_bytes", lambda device: 100 << 20)
    monkeypatch.setattr("aten_ext.bench.machine.free_bytes", lambda device: 80 << 30)
    assert ceiling.buffer_bytes("cpu") == 400 << 20
    assert ceiling.buffer_bytes("cuda") == 1 << 30
    monkeypatch.setattr("aten_ext.bench.machine.free_bytes", lambda device: 80 << 20)
    assert ceiling.buffer_bytes("cpu") == 10 << 20


def test_ceilings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real calls on small operands: plausible, and the streams keep their numbers."""
    monkeypatch.setattr(ceiling, "buffer_bytes", lambda device: 1 << 20)
    monkeypatch.setitem(ceiling.GEMM_SIZE, "cpu", 64)
    found = ceiling.measure("cpu", seconds=0.0)
    assert set(found.streams) == {"copy", "read_modify_write"} and set(found.gemm) == {"float32", "bfloat16"}
    for rate in (*found.streams.values(), *found.gemm.values()):
        assert 1e-6 < rate.per_second < 1e3 and rate.samples == ceiling.FEWEST_SAMPLES
    assert found.float32_precision == torch.get_float32_matmul_precision()
    assert json.dumps(found.as_json())


def test_bytes_of_the_streams_and_what_they_do() -> None:
    streams = ceiling._streams(4096, "cpu")
    for call, moved in streams.values():
        assert moved == 8192
        assert torch.equal(call(), torch.ones(1024))  # type: ignore[arg-type]


def test_gpu_time_is_that_of_the_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: a clock that each call advances by a millisecond."""
    now = 0.0

    class Event:
        """Remembers when."""

        def __init__(self, enable_timing: bool) -> None:
            """Take what torch's takes."""
            assert enable_timing

        def record(self) -> None:
            """Note the time."""
            self.time = now

        def synchronize(self) -> None:
            """Nothing to wait for."""

        def elapsed_time(self, end: Event) -> float:
            """Milliseconds."""
            return end.time - self.time

    def call() -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert ceiling._gpu_seconds(call) == 1e-3


@pytest.mark.gpu
def test_ceilings_of_a_gpu() -> None:
    found = ceiling.measure("cuda", seconds=0.05)
    assert 0.05 < (found.tb_per_s or 0) < 20
    assert (found.tflop_per_s("bfloat16") or 0) > (found.tflop_per_s("float32") or 1e9)


def test_the_printed_rates_have_their_share(capsys: pytest.CaptureFixture[str]) -> None:
    case = fused_adam.Step("14x1.25M").case()  # 490 MB: 9.8 ms at 50 GB/s
    result = Result(case, "cpu", "fused", cache="exceeded", clocks={"wall": Samples([19600.0], [12250.0])})
    report.show(report.console(), [result], None, CEILINGS)
    text = capsys.readouterr().out
    assert re.search(r"25\.0 50% +40\.0 80%", text), text
    assert "read-modify-write 50 GB/s" in report.ceilings_line(CEILINGS)


def test_a_gpu_table_with_shares_fits_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    slow = {"gpu": Samples([123456.0], [98765.0]), "eager": Samples([123456.0], [98765.0])}
    ceilings = Ceilings("cuda", 1 << 30, 8192, "highest", {"copy": Rate(4.2, 0.01, 9)})
    cases = fused_adam.cases("cuda", full=False)
    results = [Result(case, "cuda", "upstream: a reason of many words", clocks=slow) for case in cases]
    report.show(report.console(), results, None, ceilings)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= report.WIDTH
    assert printed.count("%") == len(cases) * 6 + 1
