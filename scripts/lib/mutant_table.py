"""The mutants: one line of the sources changed by hand, and the tests that must notice.

Each breaks one decline rule, one edge of a kernel or one promise of the registry. They are in the mutants_of
files beside this one. ``scripts/mutants`` applies, builds and tests them one at a time;
tests/repository/test_mutants.py checks that each old text still stands in its file, once. docs/sanitizers.md
explains what a surviving mutant means.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One change."""

    name: str
    file: str
    """Relative to the root of the repository."""
    old: str
    """Stands there exactly once."""
    new: str
    tests: tuple[str, ...]
    """As pytest takes them; at least one must fail."""


MUTANTS: list[Mutant] = [
    Mutant(*row)
    for file in sorted(Path(__file__).parent.glob("mutants_of_*.py"))
    for row in importlib.import_module(file.stem).ROWS
]
