"""The mutants: one line of the sources changed by hand, and the tests that must notice.

Each breaks one decline rule, one edge of a kernel or one promise of the registry. They are in the mutants_of
files beside this one. ``scripts/mutants`` applies, builds and tests them one at a time;
tests/repository/test_mutants.py checks that each old text still stands in its file, once. docs/sanitizers.md
explains what a surviving mutant means.
"""

from __future__ import annotations

from dataclasses import dataclass

import mutants_of_cat
import mutants_of_gates
import mutants_of_gru
import mutants_of_linear
import mutants_of_registry
import mutants_of_rnn_backward
import mutants_of_rnn_cpu
import mutants_of_step_kernels
import mutants_of_step_rules
import mutants_of_watch


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

    def row(self) -> str:
        """Its row of the table in docs/sanitizers.md."""
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in self.tests)
        return f"| {self.name} | `{self.file.removeprefix('aten_ext/')}` | {tests} |"


MUTANTS: list[Mutant] = [
    Mutant(*row)
    for rows in (
        mutants_of_step_rules.ROWS,
        mutants_of_step_kernels.ROWS,
        mutants_of_cat.ROWS,
        mutants_of_gru.ROWS,
        mutants_of_gates.ROWS,
        mutants_of_rnn_backward.ROWS,
        mutants_of_rnn_cpu.ROWS,
        mutants_of_linear.ROWS,
        mutants_of_watch.ROWS,
        mutants_of_registry.ROWS,
    )
    for row in rows
]
