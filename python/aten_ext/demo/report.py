"""The result for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from aten_ext.demo.result import Result


def show(console: Console, result: Result) -> None:
    """Print the tables: how well both twins learned, how long they took, the counts, some words, warnings."""
    for table in (_learning(result), _timing(result)):
        console.print(table)
    for line in _shares(result):
        console.print(line, highlight=False)
    for table in (_counts(result), _words(result)):
        console.print()
        console.print(table)
    console.print(f"\n{_summary(result)}", highlight=False, soft_wrap=True)
    for line in result.warnings:
        console.print(Text(f"warning: {line}", style="bold red"), soft_wrap=True)


def _summary(result: Result) -> str:
    """The outcome in one line."""
    losses = (statistics.median(twin.train_losses[-25:]) for twin in (result.upstream, result.aten_ext))
    return (
        f"A training step: {result.upstream.step_ms:.1f} ms upstream, {result.aten_ext.step_ms:.1f} ms "
        f"aten_ext, {result.ratio('step_ms'):.2f}x; training loss {' and '.join(f'{x:.4f}' for x in losses)}."
    )


def _table(title: str, *columns: str, text_columns: int = 1) -> Table:
    """A table whose first ``text_columns`` columns are text and the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < text_columns else "right")
    return table


def _learning(result: Result) -> Table:
    table = _table("\nLearning", "", "upstream", "aten_ext")
    twins = (result.upstream, result.aten_ext)
    table.add_row(
        "training loss, median of last 25 steps",
        *(f"{statistics.median(twin.train_losses[-25:]):.4f}" for twin in twins),
    )
    table.add_row("held-out loss", *(f"{twin.held_out_losses[-1]:.4f}" for twin in twins))
    table.add_row("phoneme error rate", *(f"{twin.phoneme_error_rate:.2%}" for twin in twins))
    table.add_row("words without error", *(f"{twin.words_right:.1%}" for twin in twins))
    table.caption = (
        f"{result.held_out_words} held-out words; both twins pronounce {result.identical_decodes:.1%} alike"
    )
    table.caption_justify = "left"
    return table


def _timing(result: Result) -> Table:
    table = _table("\nTime, medians", "", "upstream", "aten_ext", "ratio")
    for label, time in (
        ("training step", "step_ms"),
        ("  optimizer.step() in it", "optimizer_ms"),
        ("greedy decoding of a batch", "decode_ms"),
    ):
        values = (getattr(twin, time) for twin in (result.upstream, result.aten_ext))
        table.add_row(label, *(f"{value:.3f} ms" for value in values), f"{result.ratio(time):.2f}x")
    table.caption = (
        f"ratio: upstream / aten_ext, above 1 aten_ext is faster; {result.aten_ext.timed_steps} steps "
        f"and {result.aten_ext.timed_decodes} decodes each"
    )
    table.caption_justify = "left"
    return table


def _shares(result: Result) -> Iterator[str]:
    """How much of upstream's time was there to win."""
    yield f"optimizer.step() is {result.optimizer_share:.1%} of upstream's step."
    for what, share in result.shares.items():
        of_gpu = "" if share.device is None else f" and {share.device:.1%} of its GPU time"
        yield f"Operators that aten_ext replaces take {share.cpu:.1%} of upstream's {what}{of_gpu}."
    for call in result.gru_calls:
        yield (
            f"A {call.dtype} call of the decoder's GRU for one phoneme of a batch: upstream "
            f"{call.upstream_us:.1f} us, aten_ext {call.aten_ext_us:.1f} us, {call.ratio:.2f}x."
        )


def _counts(result: Result) -> Table:
    table = _table("Calls of the overridden operators", "override", "ran", "disabled", "declined")
    table.columns[-1].justify = "left"
    for name, count in result.counts.items():
        declined = "\n".join(f"{number} x {reason}" for reason, number in count.went_upstream.items())
        table.add_row(name, str(count.ran), str(count.disabled), Text(declined or "0"))
    return table


def _words(result: Result) -> Table:
    table = _table("Some held-out words", "word", "dictionary", "upstream", "aten_ext", text_columns=4)
    for word, reference, *decoded in result.samples:
        marked = (
            Text(text, style="green") if text == reference else Text(f"{_shorten(text)} *", style="red")
            for text in decoded
        )
        table.add_row(word, reference, *marked)
    table.caption = "*: not as in the dictionary"
    table.caption_justify = "left"
    return table


def _shorten(text: str, longest: int = 24) -> str:
    """A model that has learned little goes on and on."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
