"""Advice as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aten_ext.advice.finding import Advice

if TYPE_CHECKING:
    from rich.console import Console


def show(to: Console, found: Sequence[Advice]) -> None:
    """Print what there is to say, one block for each piece."""
    if not found:
        to.print("advice: nothing that could be seen is left on the table", markup=False)
        return
    to.print(f"advice, {len(found)}", markup=False, style="bold")
    for each in found:
        place = shortened(each.site) or ("environment" if each.kind == "environment" else "no line of Python")
        calls = f", {each.calls} {each.per}{'s' if each.calls != 1 else ''} seen" if each.calls else ""
        to.print(f"{place}: {each.text}{calls}", markup=False, soft_wrap=True)
        to.print(f"  -> {each.advice}", markup=False, soft_wrap=True)
        to.print(f"     {each.figure()}", markup=False, soft_wrap=True)


def shortened(site: str) -> str:
    """Relative to the current folder, where that is shorter."""
    if not site:
        return ""
    file, _, line = site.rpartition(":")
    relative = os.path.relpath(file)
    return f"{relative if len(relative) < len(file) else file}:{line}"
