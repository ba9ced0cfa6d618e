"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("ok", "note", "warning", "problem")
"""In order of gravity.

* ok: as it should be.
* note: worth knowing, and fine: no GPU under a torch for the CPU, an override that you have turned off.
* warning: the fused kernels run, but a tool or a part is missing; or you have turned all of them off.
* problem: fused kernels that could run here do not.
"""
PASSING = ("ok", "note")
"""The levels with which all is well."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    check: str
    level: str
    text: str
    advice: str = ""
    """What to do; empty where nothing is to be done."""

    def as_json(self) -> dict[str, str]:
        """For ``--json``."""
        return {"check": self.check, "level": self.level, "text": self.text, "advice": self.advice}


def ok(check: str, text: str) -> Finding:
    """As it should be."""
    return Finding(check, "ok", text)


def note(check: str, text: str, advice: str = "") -> Finding:
    """Fine, but worth knowing."""
    return Finding(check, "note", text, advice)


def warning(check: str, text: str, advice: str) -> Finding:
    """Something is missing that the kernels do not need."""
    return Finding(check, "warning", text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    """Kernels do not run that could."""
    return Finding(check, "problem", text, advice)
