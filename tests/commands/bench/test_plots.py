"""Plots of a benchmark run: the files, and the numbers that are drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aten_ext.__main__ import main
from aten_ext.bench import plot
from commands.bench.runs import made_up, write


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


def test_many_cases_are_a_curve(tmp_path: Path) -> None:
    """One more than fit as bars: a picture of one page, every ratio a point, in order, none twice."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    few, many = made_up({"1x10": 2.0}), made_up({"1x10": 2.0})
    few["cases"] = [few["cases"][0] | {"ratio": 1 + n / 10} for n in range(plot.BARS)]
    many["cases"] = [many["cases"][0] | {"ratio": 3 - n / 50} for n in range(plot.BARS + 1)]
    many["cases"][0]["route"] = "declined"
    heights = []
    for of in (few, many):
        name, data = next((n, d) for n, d in plot.draw(of).items() if n.endswith("ratio.png"))
        assert name == "fused_adam-cpu-ratio.png" and plot.digest_of_png(data) == plot.digest(of)
        heights.append(int.from_bytes(data[20:24], "big"))
    assert heights[1] < 500 < heights[0]
    _, axes = pyplot.subplots()
    plot._curve(axes, "title", many["cases"])
    drawn = {line.get_label(): list(map(float, line.get_ydata())) for line in axes.lines}
    assert drawn["went upstream"] == [many["cases"][0]["ratio"]]
    fused = drawn["aten_ext's kernel"]
    assert fused == sorted(case["ratio"] for case in many["cases"][1:])
    pyplot.close("all")


def test_programs_have_a_bar_for_each_clock() -> None:
    """Also of more programs than other ops have bars; no bar where a program cannot be captured."""
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="the extra plot is not installed")
    of = made_up({"1x10": 2.0})
    clocks: list[dict[str, float]] = [{"eager": 1.5, "gpu": 2.0}, {"eager": 0.9}, {"wall": 1.1}]
    of["cases"] = [
        of["cases"][0] | {"op": "programs", "ratios": clocks[n % 3], "ratio": 1.0}
        for n in range(plot.BARS + 2)
    ]
    assert [name for name in plot.draw(of) if name.endswith("ratio.png")] == ["programs-cpu-ratio.png"]
    _, axes = pyplot.subplots()
    plot._programs(axes, "title", of["cases"][:3])
    lengths = {bars.get_label(): [bar.get_width() + 1 for bar in bars] for bars in axes.containers}
    assert lengths == {"from Python": [1.5, 0.9, 1.1], "as a CUDA graph": [2.0]}
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
