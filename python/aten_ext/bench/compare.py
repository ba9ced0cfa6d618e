"""``bench --compare OLD``: this run against an older one, case by case.

What is compared is the ratio upstream / aten_ext, not the time: both sides of a ratio were measured in turns,
so a machine that is slower today moves it least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aten_ext._cli import CommandError
from aten_ext.bench import document
from aten_ext.bench.document import Document

if TYPE_CHECKING:
    from rich.console import Console

THRESHOLD = 0.95
"""The least new ratio / old ratio that passes."""
MACHINE = ("cpu", "cores", "gpu", "compute_capability")
SETTINGS = ("ops", "device", "dtype", "filter", "full", "one_set", "threads")

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Change:
    """One case in both runs."""

    label: str
    clock: str
    old_ratio: float
    new_ratio: float
    old_us: float
    """Time of ours."""
    new_us: float
    cost: tuple[float, float, float] | None = None
    """Of a case with a limit instead of a ratio: old and new cost and the limit, in nanoseconds."""

    @property
    def factor(self) -> float:
        """New ratio over old ratio: below 1 has become slower, measured by upstream."""
        return self.new_ratio / self.old_ratio

    def slower(self, threshold: float) -> bool:
        """Whether it fails: below ``threshold``, or for a case with a limit, over that while it was not."""
        if self.cost is None:
            return not self.factor >= threshold
        old, new, limit = self.cost
        return old <= limit < new


def differences(old: Document, new: Document) -> list[str]:
    """What keeps two documents from being compared, one phrase each."""
    found = [
        f"{name} {old[part].get(name)!r} and {new[part].get(name)!r}"
        for part, names in (("machine", MACHINE), ("settings", SETTINGS))
        for name in names
        if old[part].get(name) != new[part].get(name)
    ]
    return found


def check(old: Document, new: Document, force: bool) -> list[str]:
    """The differences, for a note; an error unless they are none or ``force``.

    Raises:
        CommandError: they are of different machines, dtypes or commands.
    """
    found = differences(old, new)
    if found and not force:
        raise CommandError(f"the runs differ in {'; '.join(found)} (--force compares them all the same)")
    return found


def changes(old: Document, new: Document) -> tuple[list[Change], list[str], list[str]]:
    """Cases that both have, in the new one's order; labels in the old one only; in the new one only."""
    before, after = _by_key(old), _by_key(new)
    both = [change for key in after if key in before for change in _changes(before[key], after[key])]
    gone, added = before.keys() - after.keys(), after.keys() - before.keys()
    return both, sorted(" ".join(key) for key in gone), sorted(" ".join(key) for key in added)


def show(to: Console, old: Document, new: Document, threshold: float) -> bool:
    """Print the table and the verdict; whether a case has become slower than ``threshold`` allows."""
    from rich import box
    from rich.table import Table

    both, gone, added = changes(old, new)
    if not both:
        raise CommandError("the runs have no case in common")
    table = Table(
        title=f"compared with {old['date']}, torch {old['versions']['torch']}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("case", overflow="fold", min_width=16)
    for name in ("clock", "ratio then", "now", "change", "ours then us", "now us"):
        table.add_column(name, justify="right", no_wrap=True)
    for change in both:
        if change.cost is not None:
            old_cost, new_cost, _ = change.cost
            cells = [f"{old_cost:+.1f} ns", f"{new_cost:+.1f} ns", f"{new_cost - old_cost:+.1f} ns"]
        else:
            cells = [f"{change.old_ratio:.2f}", f"{change.new_ratio:.2f}", f"{change.factor:.2f}x"]
        table.add_row(change.label, change.clock, *cells, f"{change.old_us:.4g}", f"{change.new_us:.4g}")
    to.print(table)
    failed = [change for change in both if change.slower(threshold)]
    for change in failed:
        what = (
            f"ratio {change.old_ratio:.3f} -> {change.new_ratio:.3f}, {change.factor:.2f} of what it was"
            if change.cost is None
            else f"cost {change.cost[0]:.1f} -> {change.cost[1]:.1f} ns, over {change.cost[2]:g}"
        )
        to.print(f"SLOWER {change.label}: {what}", markup=False)
    if not failed:
        to.print(f"passed: no ratio of {len(both)} below {threshold:g} of what it was", markup=False)
    for where, labels in (("in the old run only", gone), ("in the new run only", added)):
        if labels:
            to.print(f"{where}: {', '.join(labels)}", markup=False)
    return bool(failed)


def _by_key(of: Document) -> dict[Key, Mapping[str, Any]]:
    return {
        (case["op"], case["name"], case["dtype"]): case
        for case in of["cases"]
        if case["skipped"] is None and document.headline(case)
    }


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """One for each clock that may fail the case, see ``Result.checked``, and that both runs have."""
    clocks = [clock for clock in new["checked"] if old["ratios"][clock] and new["ratios"][clock]]
    if not clocks:
        raise CommandError(f"{document.label(new)} was measured by different clocks in the two runs")
    limit = new["limit_ns"]
    return [
        Change(
            f"{new['op']}: {document.label(new)}",
            clock,
            old["ratios"][clock],
            new["ratios"][clock],
            old["ours"][f"{clock}_us"],
            new["ours"][f"{clock}_us"],
            None if limit is None else (old["difference_ns"], new["difference_ns"], limit),
        )
        for clock in clocks
    ]
