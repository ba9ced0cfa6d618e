"""The table of mutants keeps up with the sources: each still has its place, and its tests exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def load_table() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts/lib"))  # where its parts are
    spec = importlib.util.spec_from_file_location("mutant_table", ROOT / "scripts/lib/mutant_table.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


MUTANTS = load_table().MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_sources(mutant: object) -> None:
    file, old, new, tests = (getattr(mutant, name) for name in ("file", "old", "new", "tests"))
    assert (ROOT / file).read_text().count(old) == 1
    assert old != new and tests
    for test in tests:
        path, *names = test.partition("[")[0].split("::")
        text = (ROOT / path).read_text()
        if len(names) == 2:  # a method: of the class itself, or of the suite that it inherits
            assert re.search(rf"^class {names[0]}\(FusedStepTests\)", text, re.MULTILINE), test
            text += (ROOT / "tests/fused_step_suite.py").read_text()
        assert not names or re.search(rf"^ *def {names[-1]}\(", text, re.MULTILINE), test


def test_there_are_enough() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) >= 20 and len(set(names)) == len(names)


def test_every_mutant_is_documented() -> None:
    """docs/sanitizers.md lists them, with file and tests."""
    text = (ROOT / "docs" / "sanitizers.md").read_text()
    table = text[text.index("| mutant | file | noticed by |") :].split("\n\n")[0].strip()
    assert table.split("\n")[2:] == [mutant.row() for mutant in MUTANTS]


@pytest.mark.parametrize(
    ("script", "arguments"), [("mutants", ["--only", "no such mutant"]), ("sanitize", ["no_such_kind"])]
)
def test_mistakes_at_the_command_line_are_one_line(script: str, arguments: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert run.stderr.startswith(f"{script}: ")
