"""What ``--brief`` leaves out: of a file of tests beside a copy of conftest.py."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

from paths import ROOT, TESTS

TESTS_OF_EVERY_KIND = """
import pytest

@pytest.mark.parametrize("a", range(5))
@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)])
@pytest.mark.parametrize("d", range(5))
def test_lists(a, b, c, d):
    pass

@pytest.mark.parametrize("a", range(9))
def test_one_list(a):
    pass

def test_none():
    pass

@pytest.mark.long
@pytest.mark.parametrize("a", range(9))
def test_long(a):
    pass

@pytest.mark.long
def test_long_and_none():
    pass
"""


def collected(folder: Path, *options: str) -> list[str]:
    """The tests that run, without their file."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    command += [
        "-o",
        f"pythonpath={TESTS} {ROOT / 'scripts' / 'lib'}",
        "-o",
        "markers=long",
        f"--rootdir={folder}",
    ]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_brief(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_kinds.py").write_text(TESTS_OF_EVERY_KIND)
    assert len(collected(tmp_path)) == 125 + 9 + 1 + 9 + 1
    kept = collected(tmp_path, "--brief")
    assert kept == collected(tmp_path, "--brief"), "every process of pytest-xdist keeps the same"

    sets = [tuple(re.findall(r"\d", name)) for name in kept if name.startswith("test_lists[")]
    assert len(sets) < 60
    for one, other in itertools.combinations((0, 1, 3), 2):  # d, b with c, a
        assert len({(found[one], found[other]) for found in sets}) == 25
    others = [name for name in kept if not name.startswith("test_lists[")]
    assert others == [
        *(f"test_one_list[{a}]" for a in range(9)),
        "test_none",
        *(f"test_long[{a}]" for a in (0, 4, 8)),
    ]
    rest = [*(f"test_long[{a}]" for a in (1, 2, 3, 5, 6, 7)), "test_long_and_none"]
    assert collected(tmp_path, "--rest") == rest
