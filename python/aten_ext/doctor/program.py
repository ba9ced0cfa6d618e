"""Looks at a program that it runs once: what it leaves on the table."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from aten_ext._cli import CommandError
from aten_ext.doctor.finding import Finding, note, ok


def look(arguments: argparse.Namespace) -> tuple[int, list[Finding]]:
    """The program's exit status, and a note for each piece of advice.

    Raises:
        CommandError: the program is not there, or left nothing.
    """
    from aten_ext.advice.finding import Advice
    from aten_ext.advice.table import shortened
    from aten_ext.profile.command import program_of, start_worker

    program = program_of(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        request = {
            **program,
            "skip": 1,
            "steps": 1,
            "seconds": 1.0,
            "from_start": False,
            "record": False,
            "advise": True,
            "trace": "",
            "result": str(Path(temporary) / "result.json"),
        }
        code, found = start_worker(request, {**os.environ, "ATEN_EXT": os.environ.get("ATEN_EXT", "1")})
    if code:
        return code, []
    if found is None:
        raise CommandError("the program ended without leaving a record (os._exit?)")
    if "error" in found:
        raise CommandError(found["error"])
    advice = [Advice.of_json(fields) for fields in found["advice"]]
    if not advice:
        return 0, [ok("program", "nothing that could be seen is left on the table")]
    return 0, [
        note(shortened(each.site) or "program", f"{each.text}; {each.figure()}", each.advice)
        for each in advice
    ]
