"""scripts/test_versions: what it asks pip for, what it reads from pytest, and its mistakes."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paths import SCRIPTS

SCRIPT = SCRIPTS / "test_versions"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module."""
    loader = importlib.machinery.SourceFileLoader("aten_ext_test_versions", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=300, check=False
    )


def test_list() -> None:
    done = command("--list", "--versions", "2.11", "2.13.0")
    assert (done.stdout.splitlines(), done.returncode) == (["torch==2.11.*", "torch==2.13.0"], 0)


@pytest.mark.parametrize(
    ("version", "complaint"),
    [
        ("2.9", "expected torch 2.11 or newer, got 2.9"),
        ("1.13.1", "expected torch 2.11 or newer, got 1.13.1"),
        ("latest", "expected versions like 2.13 or 2.13.0, or newest, got 'latest'"),
        ("2.13; rm", "expected versions like 2.13 or 2.13.0, or newest, got '2.13; rm'"),
    ],
)
def test_mistakes_are_one_line(version: str, complaint: str) -> None:
    done = command("--list", "--versions", "2.11", version)
    assert (done.stderr, done.returncode) == (f"test_versions: {complaint}\n", 2)


def test_what_cannot_be_installed_is_a_line_of_the_matrix(script: ModuleType, tmp_path: Path) -> None:
    """The other releases are still tested; the line names the log."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such thing; exit 3\n")
    broken.chmod(0o755)
    row = script.test_version("2.13", tmp_path / "folder", str(broken), [])
    assert not row.ok and "ended with 3" in row.problem and "env.log" in row.problem
    assert (tmp_path / "folder" / "torch-2.13" / "env.log").read_text() == "no such thing\n"
    assert "ended with 3" in script.table([row])


def test_results_and_table(script: ModuleType, tmp_path: Path) -> None:
    """Numbers of a file that pytest wrote."""
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "def test_a(): pass\ndef test_b(): pass\ndef test_c(): assert 0\n"
        "@pytest.mark.skip\ndef test_d(): pass\n"
        "@pytest.fixture\ndef broken(): raise ValueError\ndef test_e(broken): pass\n"
    )
    results = tmp_path / "results.xml"
    options = ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), f"--junitxml={results}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, tests], cwd=tmp_path, capture_output=True, check=False
    )
    passed, failed, skipped = script.read_results(results)
    assert (passed, failed, skipped) == (2, 2, 1)
    row = script.Row("2.13", "2.13.0+cpu", "none", "3.11.7", "CPU", passed, failed, skipped)
    assert not row.ok
    assert script.table([row]).splitlines()[-1] == "| 2.13.0+cpu | none | 3.11.7 | CPU | 2 | 2 | 1 |"


def test_sources_are_those_of_the_working_tree(script: ModuleType, tmp_path: Path) -> None:
    """What git ignores stays behind; what was compiled in the copy stays there, other leftovers do not."""
    if not (SCRIPT.parent.parent / ".git").exists():
        pytest.skip("not a git checkout")
    (tmp_path / "build").mkdir(parents=True)
    (tmp_path / "leftover").touch()
    script.copy_sources(tmp_path)
    assert (tmp_path / "setup.py").exists() and (tmp_path / "build").exists()
    assert not (tmp_path / "leftover").exists()
    assert not list(tmp_path.rglob("*.so")) and not (tmp_path / ".git").exists()
