"""What docs/overrides.md says of each override that stands in the table: written from it, never by hand."""

from __future__ import annotations

from pathlib import Path

from override_table import GraphPass, Override, read_passes, read_table

BEGIN = "<!-- written from native_functions_ext.yaml: scripts/codegen.py --docs docs/overrides.md -->"
END = "<!-- end of what is written -->"


def _state(rows: list[Override]) -> str:
    """Where an override is on from the start: "on", "off", or both with their keys."""
    on = [row.key for row in rows if row.measured]
    off = [row.key for row in rows if not row.measured]
    if not off:
        return "on"
    return "off" if not on else f"on at {' and '.join(on)}, off at {' and '.join(off)}"


def _anchor(name: str) -> str:
    """Of the heading `name`: GitHub leaves out what is neither a letter, a digit, ``_`` nor ``-``."""
    return "".join(c for c in name.lower() if c.isalnum() or c in "_-")


def state_table(overrides: list[Override], passes: list[GraphPass]) -> str:
    """The lines between :data:`BEGIN` and :data:`END`: each override, its keys, and whether it starts on."""
    lines = ["| override | family | keys | starts | what it is |", "|---|---|---|---|---|"]
    by_name: dict[str, list[Override]] = {}
    for override in overrides:
        by_name.setdefault(override.name, []).append(override)
    for name, rows in by_name.items():
        keys = ", ".join(row.key for row in rows)
        link = f"[`{name}`](#{_anchor(name)})"
        lines.append(f"| {link} | {rows[0].family} | {keys} | {_state(rows)} | {rows[0].summary} |")
    for graph_pass in passes:
        state = "on" if graph_pass.measured else "off"
        lines.append(f"| `{graph_pass.name}` | graph pass | Inductor | {state} | {graph_pass.summary} |")
    return "\n".join(lines)


def with_states(text: str, table: Path) -> str:
    """A page with its states as the table has them.

    Raises:
        ValueError: the page lacks the two marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"expected the lines {BEGIN!r} and {END!r}, found {begin or 'no begin'}, {end or 'no end'}"
        )
    return f"{before}{BEGIN}\n{state_table(read_table(table), read_passes(table))}\n{END}{after}"
