"""scripts/new_override and docs/adding_an_override.md: a new operator is added to a copy, built and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paths import DOCS, ROOT

pytest.importorskip("yaml")

PAGE = (DOCS / "adding_an_override.md").read_text()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, without anything that was built."""
    if not (ROOT / "setup.py").exists():
        pytest.skip("needs the sources")
    copy = tmp_path_factory.mktemp("new_override") / "tree"
    ignored = shutil.ignore_patterns(
        "build", ".git", ".venv*", "*.so", "__pycache__", "benchmarks", "*.egg-info"
    )
    shutil.copytree(ROOT, copy, ignore=ignored)
    return copy


def new_override(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / "scripts" / "new_override"), *arguments, "--root", str(tree)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def environment(tree: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("ATEN_EXT")}
    return own | {
        "PYTHONPATH": str(tree / "python"),
        "ATEN_EXT_BUILD_FAMILIES": "relu",
        "ATEN_EXT_BUILD_CUDA": "0",
        "CFLAGS": "-O0",
        "CXXFLAGS": "-O0",
    }


def build(tree: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(
        command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def run_tests(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment(tree), capture_output=True, text=True, timeout=300
    )


def files_of_the_page() -> dict[str, str]:
    """Path -> text of the blocks that are files of the override."""
    pattern = r"<!-- (?:not run: a file of the override, |file: )(\S+) -->\n```\w+\n(.*?)```"
    return dict(re.findall(pattern, PAGE, re.DOTALL))


@pytest.mark.long
def test_a_new_override_from_the_page(tree: Path) -> None:
    done = new_override(tree, "relu", "--keys", "CPU")
    assert done.returncode == 0, done.stderr
    written = done.stdout.split()
    assert "aten_ext/ops/relu/relu_cpu.cpp" in written and "tests/ops/relu/test_relu.py" in written
    stubs = [path for path in written if "To be written" in (tree / path).read_text()]
    assert set(written) - set(stubs) <= {
        "tests/ops/relu/__init__.py",
        "tests/torch_databases/table.py",
        "docs/index.md",
    }

    build(tree)
    asked = (
        "import aten_ext, torch; x = torch.ones(2); torch.relu(x); aten_ext.enable('relu'); torch.relu(x); "
        "print(aten_ext.counts('CPU')['relu'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tree / "tests",
        env=environment(tree),
        capture_output=True,
        text=True,
    )
    assert "ran=0, disabled=1, declined={'not written yet': 1}" in run.stdout, run.stderr
    stub = run_tests(tree, "tests/ops/relu")
    assert stub.returncode == 1 and "2 failed" in stub.stdout, stub.stdout

    files = files_of_the_page()
    assert set(files) == {
        "aten_ext/ops/relu/overrides.h",
        "aten_ext/ops/relu/relu_cpu.cpp",
        "tests/ops/relu/test_relu.py",
    }
    for path, text in files.items():
        (tree / path).write_text(text)
    build(tree)
    filled = run_tests(tree, "tests/ops/relu")
    assert filled.returncode == 0 and "5 passed" in filled.stdout, filled.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("reluu",), "new_override: native_functions_ext.yaml:"),
        (("cat",), "new_override: cat stands in native_functions_ext.yaml already"),
        (("sigmoid", "--keys", "TPU"), "unknown dispatch key 'TPU'; valid keys: CPU, CUDA"),
    ],
)
def test_refusals_change_nothing(tree: Path, arguments: tuple[str, ...], expected: str) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*.yaml")}
    done = new_override(tree, *arguments)
    assert done.returncode == 1 and expected in done.stderr and len(done.stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in tree.rglob("*.yaml")} == before


def test_nothing_is_left_to_write() -> None:
    """In this tree: a stub is not a submission."""
    own = {Path(__file__), ROOT / "scripts" / "lib" / "new_override.py", DOCS / "adding_an_override.md"}
    folders = ("aten_ext", "python", "tests", "docs", "scripts")
    left = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".h", ".cpp", ".cu", ".py", ".md", ".yaml") and path not in own
        if "To be written" in path.read_text()
    ]
    assert left == []
