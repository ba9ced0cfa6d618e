"""What becomes of a benchmark's numbers: ceilings, the JSON document, comparison, plots and the page."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from aten_ext.__main__ import main
from aten_ext._cli import CommandError
from aten_ext.bench import ceiling, command, compare, document, fused_adam, index, plot, registry, report
from aten_ext.bench.case import Case
from aten_ext.bench.ceiling import Ceilings, Rate
from aten_ext.bench.result import Result, Samples

BENCHMARKS = Path(__file__).parent.parent / "docs" / "benchmarks"

ORIGIN = {
    "machine": {"cpu": "CPU X", "cores": 2, "load": 0.1, "gpu": None, "compute_capability": None},
    "versions": {"torch": "2.13.0", "python": "3.11.7", "driver": None},
    "date": "2026-01-02T03:04:05+00:00",
    "commit": "0123456789abcdef-dirty",
}
SETTINGS = {
    "ops": ["fused_adam"],
    "device": "cpu",
    "dtype": [],
    "filter": "",
    "full": False,
    "seconds": 1.5,
    "never_slower": None,
    "one_set": False,
    "threads": 2,
    "cache_bytes": 1,
}
CEILINGS = Ceilings(
    "cpu",
    1 << 27,
    1024,
    "highest",
    {"copy": Rate(0.04, 0.01, 9), "read_modify_write": Rate(0.05, 0.01, 9)},
    {"float32": Rate(0.1, 0.01, 9), "bfloat16": Rate(0.2, 0.01, 9)},
)


def made_up(ratios: dict[str, float], ceilings: Ceilings | None = CEILINGS) -> document.Document:
    """A document of fused_adam on the CPU: the ratio by name of the case, ours always 1000 us."""
    results = []
    for name, ratio in ratios.items():
        case = fused_adam.Step(name).case()
        samples = {"wall": Samples([1000.0 * ratio], [1000.0])}
        results.append(Result(case, "cpu", "fused", cache="exceeded", clocks=samples, measured=1))
    return json.loads(document.to_bytes(document.build(ORIGIN, SETTINGS, results, None, ceilings)))


def cost(nanoseconds: float) -> document.Document:
    """A document of the entry: its cost."""
    case = Case(
        "entry", "disabled", "float32", "_fused_adamw_", lambda d: lambda: None, bytes=224, footprint=128
    )
    samples = {"wall": Samples([1.0], [1.0 + nanoseconds / 1e3])}
    result = Result(case, "cpu", "disabled", clocks=samples, measured=1, limit_ns=20.0)
    return json.loads(document.to_bytes(document.build(ORIGIN, SETTINGS, [result], None)))


def write(path: Path, of: document.Document) -> str:
    path.write_bytes(document.to_bytes(of))
    return str(path)


# Ceilings


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


# The document


def test_a_document_has_sizes_and_shares() -> None:
    (case,) = made_up({"14x1.25M": 2.0})["cases"]
    assert case["sizes"] == {"elements": 17_500_000, "tensors": 14}
    assert case["bytes"] == 490_000_000 and case["flops"] == 0
    assert case["upstream"]["of_ceiling"] == pytest.approx(4.9) and case["ours"][
        "of_ceiling"
    ] == pytest.approx(9.8)
    assert cost(5)["cases"][0]["ours"]["of_ceiling"] is None


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.json")), ids=lambda path: path.name)
def test_published_documents_stay_readable(path: Path) -> None:
    if path.name.startswith("demo"):
        with pytest.raises(CommandError, match="is not a document of"):
            document.read(path)
        return
    of = document.read(path)
    assert of["schema"] == document.SCHEMA
    for case in of["cases"]:
        assert case["op"] != "fused_adam" or case["sizes"]["elements"] >= case["sizes"]["tensors"] > 0
        assert "of_ceiling" in case["ours"]
    assert document.command(of).startswith("python -m aten_ext bench ")


def test_the_command_is_told_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed again, it asks for the same settings."""
    of = made_up({"1x10": 1.0})
    of["settings"] |= {
        "dtype": ["float32"],
        "filter": "adamw 1",
        "full": True,
        "one_set": True,
        "never_slower": 0.9,
    }
    text = document.command(of)
    assert text == (
        'python -m aten_ext bench fused_adam --device cpu --dtype float32 --filter "adamw 1" --full --one-set'
        " --seconds 1.5 --never-slower 0.9"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[]", "is not a document"),
        ('{"cases": [], "schema": 99}', "has schema 99; this version reads 1 and 2"),
    ],
)
def test_files_that_are_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "old.json"
    if content is not None:
        path.write_text(content)
    assert main(["bench", "--compare", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


# Comparison


def test_a_case_that_has_become_slower_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "old.json", made_up({"1x10": 2.0, "4000x64": 3.0, "odd": 1.0}))
    new = write(tmp_path / "new.json", made_up({"4000x64": 2.7, "1x10": 2.1, "gpt2": 1.0}))
    arguments = ["bench", "--from", new, "--compare", old]
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "SLOWER fused_adam: adamw 4000x64 float32: ratio 3.000 -> 2.700, 0.90 of what it was" in text
    assert text.count("SLOWER") == 1
    assert "in the old run only: fused_adam adamw odd float32" in text
    assert "in the new run only: fused_adam adamw gpt2 float32" in text
    assert re.search(r"adamw 1x10 float32\s+wall\s+2\.00\s+2\.10\s+1\.05x\s+1000\s+1000", text)
    assert main([*arguments, "--threshold", "0.9"]) == 0
    assert "passed: no ratio of 2 below 0.9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("then", "now", "code"), [(5.0, 12.0, 0), (5.0, 25.0, 1), (25.0, 26.0, 0), (25.0, 5.0, 0)]
)
def test_a_cost_is_held_against_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], then: float, now: float, code: int
) -> None:
    old, new = write(tmp_path / "old.json", cost(then)), write(tmp_path / "new.json", cost(now))
    assert main(["bench", "--from", new, "--compare", old]) == code
    assert (f"cost {then:.1f} -> {now:.1f} ns, over 20" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [("machine", "gpu", "GPU Y"), ("settings", "dtype", ["float32"]), ("settings", "full", True)],
)
def test_other_machines_and_commands_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, name: str, value: object
) -> None:
    one = made_up({"1x10": 2.0})
    other = copy.deepcopy(one)
    other[part][name] = value
    arguments = ["bench", "--from", write(tmp_path / "new.json", one)]
    arguments += ["--compare", write(tmp_path / "old.json", other)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert f"the runs differ in {name} {value!r} and {one[part][name]!r}" in error and error.count("\n") == 1
    assert main([*arguments, "--force"]) == 0


def test_other_times_and_versions_are_compared() -> None:
    old, new = made_up({"1x10": 2.0}), made_up({"1x10": 2.0})
    new["versions"]["torch"], new["settings"]["seconds"], new["machine"]["load"] = "2.14", 9, 5
    assert compare.differences(old, new) == []


def test_every_clock_that_counts_is_compared() -> None:
    old = made_up({"1x10": 2.0})
    (case,) = old["cases"]
    case["checked"], case["ratios"] = ["gpu", "eager"], {"gpu": 2.0, "eager": 2.0, "wall": None}
    for side in (case["upstream"], case["ours"]):
        side["gpu_us"] = side["eager_us"] = 1.0
    new = copy.deepcopy(old)
    new["cases"][0]["ratios"]["eager"] = 1.0
    both, gone, added = compare.changes(old, new)
    assert [(change.clock, change.slower(0.95)) for change in both] == [("gpu", False), ("eager", True)]
    assert gone == added == []


def test_runs_without_a_common_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (write(tmp_path / f"{name}.json", made_up({name: 1.0})) for name in ("1x10", "odd"))
    assert main(["bench", "--from", new, "--compare", old]) == 2
    assert "no case in common" in capsys.readouterr().err


def test_a_run_that_cannot_be_compared_is_refused_before_it_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("it measured"))
    old = write(tmp_path / "old.json", made_up({"1x10": 1.0}))
    assert main(["bench", "fused_adam", "--device", "cpu", "--compare", old]) == 2
    assert "the runs differ in cpu 'CPU X'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "x.json"], "--from needs --plot or --compare"),
        (["fused_adam", "--from", "x.json", "--plot", "p"], "--from measures nothing"),
        (["--threshold", "0"], "--threshold must be a positive number"),
        (["--index", "/nowhere"], "there is no folder '/nowhere'"),
        (["--plot", "/proc/none"], "cannot write to folder '/proc/none'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_measure", lambda *_: pytest.fail("it measured"))
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"aten_ext bench: {message}") and captured.err.count("\n") == 1
    assert captured.out == ""


def test_an_op_without_cases_on_a_device_says_so() -> None:
    with pytest.raises(CommandError, match=r"^linear: nothing to measure on cpu$"):
        registry.select(["linear"], "cpu")


def test_what_is_measured_when_nothing_is_asked_for() -> None:
    """Nothing that compiles first, and little time for each case of many."""
    assert registry.chosen([], full=False) == [op for op in registry.OPS if op not in registry.COMPILING]
    assert registry.chosen([], full=True) == list(registry.OPS)
    assert registry.chosen(["entry", "entry"], full=False) == ["entry"]

    def seconds(cases: int, **given: Any) -> float:
        asked = {"seconds": None, "ops": [], "full": False, **given}
        return command._seconds(SimpleNamespace(**asked), cases)  # type: ignore[arg-type]

    assert seconds(10) == command.SECONDS
    assert seconds(100) * 100 == pytest.approx(command.SHORT_RUN_SECONDS)
    assert seconds(100, ops=["fused_adam"]) == seconds(100, full=True) == command.SECONDS
    assert seconds(100, seconds=7.0) == 7.0


# Plots


def test_plots_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    of = made_up({"1x10": 2.0, "4000x64": 3.0})
    assert main(["bench", "--from", write(tmp_path / "run.json", of), "--plot", str(tmp_path / "plots")]) == 0
    files = sorted((tmp_path / "plots").iterdir())
    names = ["fused_adam-cpu-elements.png", "fused_adam-cpu-ratio.png", "fused_adam-cpu-tensors.png"]
    assert [file.name for file in files] == names == sorted(plot.names(of))
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG")
        assert plot.digest_of_png(file.read_bytes()) == plot.digest(of)
        assert f"wrote {file}" in capsys.readouterr().out or file is not files[0]
    assert plot.digest_of_png(b"\x89PNG\r\n\x1a\n") is None


def test_plotted_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn where: elements across, GB/s up, the ceiling as a line."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    of = made_up({"1x10": 2.0, "4000x64": 4.0})
    _, axes = pyplot.subplots()
    plot._against(axes, "elements", of["cases"], of, "GB/s")
    drawn = {
        line.get_label(): [list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))]
        for line in axes.lines
    }
    megabytes = [7 * 4 * 10 / 1e6, 7 * 4 * 256_000 / 1e6]
    assert drawn["aten_ext, float32"] == [[10, 256_000], pytest.approx(megabytes, rel=1e-3)]
    assert drawn["upstream, float32"][1] == pytest.approx([megabytes[0] / 2, megabytes[1] / 4], rel=1e-3)
    assert drawn["memory's ceiling, measured"][1] == [50, 50]
    _, axes = pyplot.subplots()
    plot._ratios(axes, "title", of["cases"])
    assert [round(bar.get_width() + 1, 6) for bar in axes.patches] == [2.0, 4.0]
    pyplot.close("all")


def test_plotted_lines() -> None:
    """Cases that are points of lines: the others are left out, and with steps it is their time."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    of = made_up({"1x10": 2.0, "4000x64": 4.0, "14x1.25M": 1.0})
    for case, hidden in zip(of["cases"], (512, 64), strict=False):
        case.update(series="B=1", sizes={"hidden": hidden, "steps": 10})
    ((*_, cases),) = [row for row in plot._plots(of) if row[2] != "ratio"]
    assert [case["sizes"]["hidden"] for case in cases] == [512, 64]
    assert plot._quantities(cases) == ["us a step"] and plot._panels(cases) == ["float32"]
    _, axes = pyplot.subplots()
    plot._against(axes, "hidden", cases, of, "us a step", "float32")
    drawn = {line.get_label(): list(map(float, line.get_ydata())) for line in axes.lines}
    ours = [case["ours"]["wall_us"] / 10 for case in reversed(cases)]
    assert drawn["aten_ext, B=1"] == pytest.approx(ours)
    shares = [case["ours"]["of_ceiling"] for case in reversed(cases)]
    assert drawn["least for bytes and FLOPs"] == pytest.approx(
        [s * t for s, t in zip(shares, ours, strict=True)]
    )
    pyplot.close("all")


def test_plots_without_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "--plot", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "pip install 'aten_ext[plot]'" in error and error.count("\n") == 1


# The page


def test_the_page_is_up_to_date() -> None:
    """As ``python -m aten_ext bench --index docs/benchmarks`` makes it."""
    assert (BENCHMARKS / "index.md").read_text() == index.render(BENCHMARKS)


def test_its_plots_are_up_to_date() -> None:
    wanted = set()
    for path, of in index._documents(BENCHMARKS):
        for file in index.plot_files(path, of):
            wanted.add(file)
            assert index.is_current(BENCHMARKS / file, of), f"{file}: make the page again"
    assert {f"plots/{path.name}" for path in (BENCHMARKS / "plots").iterdir()} == wanted


def test_a_page_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    write(tmp_path / "run.json", made_up({"1x10": 2.0}))
    write(tmp_path / "entry.json", cost(5.0))
    (tmp_path / "notes.md").write_text("# Notes\n\nOf all.\n\n## run.json\n\nOf the run.\n")
    assert main(["bench", "--index", str(tmp_path)]) == 0
    assert "index.md" in capsys.readouterr().out
    page = (tmp_path / "index.md").read_text()
    assert page.index("Of all.") < page.index("## entry") < page.index("## run") < page.index("Of the run.")
    assert "read-modify-write 50 GB/s" in page and "commit 0123456789ab with changes" in page
    assert "| adamw 1x10 float32 | fused | 0.00028 | 2,000 ± 0% | 1,000 ± 0% | 2.00 |" in page
    assert "| disabled | disabled | 1,000 ± 0% | 1,005 ± 0% | +5.0 | 20 |" in page
    for link in re.findall(r"\]\(([^)#]+)\)", page):
        assert (tmp_path / link).exists()
    # Again: nothing to do. With another number: the page and the pictures.
    assert main(["bench", "--index", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    write(tmp_path / "run.json", made_up({"1x10": 3.0}))
    assert main(["bench", "--index", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_note_about_nothing(tmp_path: Path) -> None:
    write(tmp_path / "run.json", made_up({"1x10": 2.0}))
    (tmp_path / "notes.md").write_text("## gone.json\n\nWords.\n")
    with pytest.raises(CommandError, match=r"a note about gone\.json, which is not there"):
        index.render(tmp_path)


def test_a_skipped_case_has_its_row(tmp_path: Path) -> None:
    of = made_up({"1x10": 2.0, "4000x64": 1.0})
    of["cases"][1] |= {"skipped": "needs 9 GB", "route": None}
    write(tmp_path / "run.json", of)
    assert "| adamw 4000x64 float32 | skipped: needs 9 GB |" in index.render(tmp_path)
