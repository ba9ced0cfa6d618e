"""Tables as text, for people."""

from __future__ import annotations

import io
from collections.abc import Sequence


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = (), width: int = 150
) -> str:
    """``rows`` below ``columns``, those named in ``right`` aligned to the right; the last column is folded.

    Args:
        columns: headings.
        rows: cells; each row as long as ``columns``.
        right: headings of the columns with numbers.
        width: the most characters a line.
    """
    from rich import markup
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False)
    for column in columns:
        drawn.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column != columns[-1],
            overflow="fold",
        )
    for row in rows:
        drawn.add_row(*(markup.escape(cell) for cell in row))
    text = io.StringIO()
    console = Console(file=text, width=width, color_system=None, highlight=False)
    console.print(drawn)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
