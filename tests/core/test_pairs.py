"""A forward and its backward are a pair: what ours has saved, only ours reads.

``native_dropout`` and its backward are overridden at CPU, in a process of their own.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import processes

pytest.importorskip("yaml")

SCRIPT = Path(__file__).parent / "paired_override" / "checks.py"
NAMES = [
    node.name.removeprefix("check_")
    for node in ast.parse(SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    run = processes.python(SCRIPT, timeout=900)
    assert run.returncode == 0, run.stderr
    result: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("name", NAMES)
def test_check(answers: dict[str, str], name: str) -> None:
    assert answers[name] == "", answers[name]
