"""``bench --plot FOLDER``: the measurements of a document as PNG files.

For every op the ratios, as bars or, of many cases, as a curve; of whole programs two bars each, from Python
and as a graph; for an op whose cases say how large they are
(``Case.sizes``), also the achieved rate, or the time of a step, against each of those sizes: with a panel for
each dtype where cases are points of lines (``Case.series``). A picture carries the digest of what it shows,
so that a test can tell whether it is out of date.
"""

from __future__ import annotations

import hashlib
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aten_ext._cli import CommandError
from aten_ext.bench import ceiling, document
from aten_ext.bench.document import Document

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UPSTREAM, ATEN_EXT, CEILING = "#9aa5b1", "#d1495b", "#30638e"
MARKERS = {"float32": "o", "bfloat16": "s", "float16": "^", "float64": "D"}
SERIES_MARKERS = "osD^vP*X"
SIZE_TITLES = {
    "elements": "total elements",
    "tensors": "tensors in the list",
    "slice_bytes": "bytes of a slice",
    "rows": "rows (M)",
    "hidden": "hidden size",
}
BARS = 40
"""More cases than this are points of a curve: bars would make a picture of several pages."""
COLORS = 64
"""Of a picture's palette: lines and text, no photographs."""
STYLE = 4
"""To be raised when pictures of the same numbers look different: those made before are out of date then."""
DIGEST = "aten_ext-digest"
"""Key of the text in the PNG that holds the digest of the plotted numbers."""

TICKS = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50)
"""Of an axis of ratios."""

Case = Mapping[str, Any]


def require() -> None:
    """Raise ``CommandError`` where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise CommandError("plots need the package matplotlib: pip install 'aten_ext[plot]'") from error


def names(of: Document) -> list[str]:
    """The files that ``draw`` makes of a document, in order: op-device-what.png."""
    return [f"{op}-{device}-{what}.png" for op, device, what, _ in _plots(of)]


def draw(of: Document) -> dict[str, bytes]:
    """The pictures, by file name.

    Raises:
        CommandError: matplotlib is missing.
    """
    require()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pictures: dict[str, bytes] = {}
    for op, device, what, cases in _plots(of):
        if what == "ratio" and op == "programs":
            figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.27 * len(cases)), layout="constrained")
            _programs(axes, f"programs on {device}: upstream time / aten_ext time", cases)
        elif what == "ratio":
            bars = len(cases) <= BARS
            height = max(3.2, 1.2 + 0.3 * len(cases)) if bars else 4.4
            figure, axes = pyplot.subplots(figsize=(9, height), layout="constrained")
            (_ratios if bars else _curve)(axes, f"{op} on {device}: upstream time / aten_ext time", cases)
        else:
            dtypes = _panels(cases)
            quantities = _quantities(cases)
            rows, columns = len(quantities), len(dtypes)
            figure, grid = pyplot.subplots(
                rows, columns, figsize=(max(9, 6 * columns), 4.4 * rows), layout="constrained", squeeze=False
            )
            figure.suptitle(f"{op} on {device}: {', '.join(TITLES[q] for q in quantities)}")
            for line, quantity in zip(grid, quantities, strict=True):
                for axes, dtype in zip(line, dtypes, strict=True):
                    chosen = [case for case in cases if dtype in ("", case["dtype"])]
                    _against(axes, what, chosen, of, quantity, dtype)
            lines: dict[str, Any] = {}
            for axes in grid.flat:
                handles, texts = axes.get_legend_handles_labels()
                lines.update(zip(texts, handles, strict=True))
            figure.legend(lines.values(), lines.keys(), loc="outside right upper", frameon=False, fontsize=8)
        figure.supxlabel(_footnote(of), fontsize=7, color="#555555")
        pictures[f"{op}-{device}-{what}.png"] = _png(figure, digest(of))
        pyplot.close(figure)
    return pictures


def digest(of: Document) -> str:
    """What a picture of this document is known by."""
    return hashlib.sha256(json.dumps([STYLE, of], sort_keys=True).encode()).hexdigest()


def digest_of_png(data: bytes) -> str | None:
    """The digest that a picture carries, or None if it is none of ours."""
    position = 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        kind, body = data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        if kind == b"tEXt" and body.startswith(f"{DIGEST}\0".encode()):
            return body.partition(b"\0")[2].decode("latin-1")
        position += 12 + length
    return None


def _plots(of: Document) -> list[tuple[str, str, str, list[Case]]]:
    """Op, device, "ratio" or a size, and the cases that go into that picture."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in of["cases"]:
        if case["skipped"] is None and document.headline(case) and case["limit_ns"] is None:
            groups.setdefault((case["op"], case["device"]), []).append(case)
    plots = []
    for (op, device), cases in groups.items():
        plots.append((op, device, "ratio", cases))
        lines = [case for case in cases if case.get("series")] or cases
        for size in sorted({size for case in lines for size in case["sizes"]} - {"steps"}):
            plots.append((op, device, size, [case for case in lines if size in case["sizes"]]))
    return plots


def _ratios(axes: Axes, title: str, cases: Sequence[Case]) -> None:
    """Bars to both sides of 1, upstream's speed."""
    ratios = [case["ratio"] for case in cases]
    colors = [ATEN_EXT if case["route"] == "fused" else UPSTREAM for case in cases]
    bars = axes.barh(range(len(cases)), [ratio - 1 for ratio in ratios], left=1, color=colors)
    axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=3, fontsize=8)
    axes.set_yticks(range(len(cases)), [document.label(case) for case in cases], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    low, high = min(*ratios, 1.0), max(*ratios, 1.0)
    axes.set_xlim(low / 1.25, high * 1.35)
    ticks = [tick for tick in (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50) if low / 1.25 <= tick <= high * 1.35]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(title=title, xlabel="above 1: aten_ext is faster (grey: the call went upstream)")
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


def _programs(axes: Axes, title: str, cases: Sequence[Case]) -> None:
    """Bars from 1, upstream's speed: of a call from Python, and of its CUDA graph where there is one."""
    for offset, clocks, label, color in (
        (-0.2, ("eager", "wall"), "from Python", ATEN_EXT),
        (0.2, ("gpu",), "as a CUDA graph", CEILING),
    ):
        found = {
            at + offset: case["ratios"][clock] - 1
            for at, case in enumerate(cases)
            for clock in clocks
            if case["ratios"].get(clock) is not None
        }
        if found:
            axes.barh(list(found), list(found.values()), height=0.38, left=1, color=color, label=label)
    axes.set_yticks(range(len(cases)), [f"{case['name']} {case['dtype']}" for case in cases], fontsize=8)
    axes.set_ylim(len(cases) - 0.4, -0.6)
    axes.axvline(1, color="black", linewidth=0.8)
    ratios = [ratio for case in cases for ratio in case["ratios"].values() if ratio]
    low, high = min(*ratios, 1.0) / 1.1, max(*ratios, 1.0) * 1.15
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(title=title, xlabel="above 1: faster with aten_ext")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


def _curve(axes: Axes, title: str, cases: Sequence[Case]) -> None:
    """The ratios in order, from the lowest to the highest: how many calls gain how much."""
    ordered = sorted(cases, key=lambda case: float(case["ratio"]))
    for label, color, chosen in (
        ("aten_ext's kernel", ATEN_EXT, [case["route"] == "fused" for case in ordered]),
        ("went upstream", UPSTREAM, [case["route"] != "fused" for case in ordered]),
    ):
        points = [(at, case["ratio"]) for at, case in enumerate(ordered, 1) if chosen[at - 1]]
        if points:
            axes.plot(*zip(*points, strict=True), ".", color=color, markersize=4, label=label)
    ratios = [case["ratio"] for case in ordered]
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    low, high = min(*ratios, 1.0) / 1.1, max(*ratios, 1.0) * 1.1
    axes.set_ylim(low, high)
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    lowest, middle, highest = ratios[0], statistics.median(ratios), ratios[-1]
    summary = f"lowest {lowest:.2f}, median {middle:.2f}, highest {highest:.2f}"
    axes.set(title=title, xlabel=f"{len(ratios)} cases in order: {summary}")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.3)


def _panels(cases: Sequence[Case]) -> list[str]:
    """The dtypes that have a panel of their own: all where there are lines, else none ("": all in one)."""
    return list(dict.fromkeys(case["dtype"] if case.get("series") else "" for case in cases))


def _quantities(cases: Sequence[Case]) -> list[str]:
    """What is plotted: the time of a step, or bytes a second, and FLOPs where every case has some."""
    if all("steps" in case["sizes"] for case in cases):
        return ["us a step"]
    return ["GB/s", *["TFLOP/s"] * all(case["flops"] for case in cases)]


TITLES = {"GB/s": "achieved rate", "TFLOP/s": "arithmetic", "us a step": "time of a step"}


def _value(case: Case, side: str, quantity: str) -> float:
    measured = case[side]
    if quantity == "us a step":
        return float(measured[f"{document.headline(case)}_us"]) / float(case["sizes"]["steps"])
    return float(measured["tb_per_s"] * 1e3 if quantity == "GB/s" else measured["tflop_per_s"])


def _limits(case: Case, quantity: str) -> float | None:
    """The least time of a step that the ceilings measured in the same run allow."""
    share = case["ours"]["of_ceiling"]
    return share * _value(case, "ours", quantity) if share and quantity == "us a step" else None


def _against(
    axes: Axes, size: str, cases: Sequence[Case], of: Document, quantity: str, dtype: str = ""
) -> None:
    """A quantity of both sides against a size, both axes logarithmic, and its limit."""
    groups = sorted(
        {case.get("series") or case["dtype"] for case in cases}, key=lambda name: (len(name), name)
    )
    for name, side, color, filled in (
        ("upstream", "upstream", UPSTREAM, False),
        ("aten_ext", "ours", ATEN_EXT, True),
    ):
        for number, group in enumerate(groups):
            chosen = [case for case in cases if (case.get("series") or case["dtype"]) == group]
            chosen.sort(key=lambda case: case["sizes"][size])
            lines = bool(chosen[0].get("series"))
            axes.plot(
                [case["sizes"][size] for case in chosen],
                [_value(case, side, quantity) for case in chosen],
                linestyle="-" if lines else "none",
                linewidth=0.8,
                color=color,
                marker=SERIES_MARKERS[number % len(SERIES_MARKERS)] if lines else MARKERS.get(group, "v"),
                markersize=5 if lines else 6,
                markerfacecolor=color if filled else "none",
                markeredgecolor=color,
                label=f"{name}, {group}",
            )
    _draw_limit(axes, size, cases, of, quantity, dtype)
    axes.set(title=dtype, xlabel=SIZE_TITLES.get(size, size), ylabel=quantity, xscale="log", yscale="log")
    axes.grid(alpha=0.3, which="both")


def _draw_limit(
    axes: Axes, size: str, cases: Sequence[Case], of: Document, quantity: str, dtype: str
) -> None:
    """The ceilings of the machine; for the time of a step, the least that they allow any of the cases."""
    ceilings = of["ceilings"]
    style: dict[str, Any] = {"color": CEILING, "linestyle": "--", "linewidth": 1}
    if not ceilings:
        return
    if quantity == "us a step":
        least: dict[int, float] = {}
        for case in cases:
            limit = _limits(case, quantity)
            if limit:
                at = case["sizes"][size]
                least[at] = min(limit, least.get(at, limit))
        axes.plot(
            sorted(least), [least[at] for at in sorted(least)], label="least for bytes and FLOPs", **style
        )
    elif quantity == "GB/s":
        best = max(rate["tb_per_s"] for rate in ceilings["streams"].values()) * 1e3
        axes.axhline(best, label="memory's ceiling, measured", **style)
    elif ceiling.GEMM_OF.get(dtype) in ceilings["gemm"]:
        best = ceilings["gemm"][ceiling.GEMM_OF[dtype]]["tflop_per_s"]
        axes.axhline(best, label="matrix product, measured", **style)


def _footnote(of: Document) -> str:
    machine, versions = of["machine"], of["versions"]
    device = of["settings"]["device"]
    processor = machine["gpu"] if device == "cuda" else f"{machine['cpu']}, {machine['cores']} cores"
    parts = [processor, f"torch {versions['torch']}", str(of["date"])[:10], document.commit(of)]
    return ", ".join(str(part) for part in parts if part)


def _png(figure: Figure, text: str) -> bytes:
    """The figure with a palette, which takes a third of the bytes of true colour."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    drawn, file, note = io.BytesIO(), io.BytesIO(), PngInfo()
    figure.savefig(drawn, format="png", dpi=110)
    note.add_text(DIGEST, text)
    picture = Image.open(drawn).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    picture.save(file, format="png", optimize=True, pnginfo=note)
    return file.getvalue()
