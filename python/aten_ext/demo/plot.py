"""The result as a picture."""

from __future__ import annotations

import io
import statistics
from typing import TYPE_CHECKING

from aten_ext.demo.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UPSTREAM, ATEN_EXT = "#9aa5b1", "#d1495b"


def draw(result: Result, footnote: str) -> bytes:
    """A PNG: the loss curves on the left, the times on the right, ``footnote`` in small print below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
    figure.suptitle("Grapheme to phoneme: the same training with the overrides off and on", fontsize=13)
    _losses(left, result)
    _times(right, result)
    figure.supxlabel(footnote, fontsize=7, color="#555555")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)
    return file.getvalue()


def _losses(axes: Axes, result: Result) -> None:
    steps = len(result.upstream.train_losses)
    window = max(1, min(25, steps // 10))
    epochs = len(result.upstream.held_out_losses)
    ends = [steps * (epoch + 1) // epochs for epoch in range(epochs)]
    # The curves all but coincide: the wide one below stays visible on both sides of the thin one.
    for name, twin, color, width in (
        ("upstream", result.upstream, UPSTREAM, 5.0),
        ("aten_ext", result.aten_ext, ATEN_EXT, 1.2),
    ):
        curve = _moving_median(twin.train_losses, window)
        rate = f"{twin.phoneme_error_rate:.1%} phoneme errors"
        axes.plot(range(window, steps + 1), curve, color=color, linewidth=width, label=f"{name} ({rate})")
        axes.plot(
            ends,
            twin.held_out_losses,
            linestyle="none",
            marker="o",
            markersize=11 if name == "upstream" else 5,
            color=color,
            markeredgecolor="white",
            label=f"{name}, held out",
            zorder=3,
        )
    axes.set(
        title=f"Training loss (median of {window} steps) and held-out loss",
        xlabel="step",
        ylabel="nats a phoneme",
        yscale="log",
    )
    # A logarithmic axis over half a decade would otherwise have hardly a number on it.
    lowest, highest = axes.get_ylim()
    ticks = [
        tick for tick in (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6) if lowest <= tick <= highest
    ]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def _times(axes: Axes, result: Result) -> None:
    rows = (
        ("training step", "step_ms"),
        ("optimizer.step()\nin it", "optimizer_ms"),
        ("greedy decoding\nof a batch", "decode_ms"),
    )
    for offset, name, twin, color in (
        (-0.2, "upstream", result.upstream, UPSTREAM),
        (0.2, "aten_ext", result.aten_ext, ATEN_EXT),
    ):
        times = [getattr(twin, time) for _, time in rows]
        # Milliseconds of such different sizes share an axis as parts of upstream's.
        heights = [100 * getattr(twin, time) / getattr(result.upstream, time) for _, time in rows]
        positions = [index + offset for index in range(len(rows))]
        bars = axes.bar(positions, heights, width=0.38, color=color, label=name)
        axes.bar_label(bars, [f"{time:.3g} ms" for time in times], padding=2, fontsize=9)
    axes.set_xticks(range(len(rows)), [f"{label}\n{result.ratio(time):.2f}x as fast" for label, time in rows])
    axes.set(title="Median time, overrides off and on in turns", ylabel="% of upstream's time")
    axes.margins(y=0.18)
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, ncols=2, loc="upper left")


def _moving_median(values: list[float], window: int) -> list[float]:
    # Not the mean: a small batch of words of a rare length has a loss far from the others'.
    return [statistics.median(values[end - window : end]) for end in range(window, len(values) + 1)]
