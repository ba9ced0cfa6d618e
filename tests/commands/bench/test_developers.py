"""scripts/bench: the command line of ``python -m aten_ext bench`` with the benchmarks for developers."""

from __future__ import annotations

import importlib.util
import subprocess

import pytest

import processes
from aten_ext.__main__ import main
from aten_ext.bench import registry
from commands.bench.runs import complaints
from paths import SCRIPTS


def scripts_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.python(SCRIPTS / "bench", *arguments)


@pytest.mark.parametrize("op", registry.FOR_DEVELOPERS)
def test_the_package_says_where_they_are(op: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", op]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == (
        f"aten_ext bench: {op} is not in the package: scripts/bench {op} in a checkout of the repository\n"
    )


def test_the_script_has_them_and_those_of_the_package() -> None:
    run = scripts_bench("models", "cat", "--list", "--device", "cpu")
    assert (run.returncode, complaints(run.stderr)) == (0, [])
    assert {line.split()[0] for line in run.stdout.splitlines()} == {"models", "cat"}


def test_mistakes_are_one_line() -> None:
    run = scripts_bench("nonsense")
    assert (run.returncode, run.stdout) == (2, "")
    (line,) = complaints(run.stderr)
    assert line.startswith("aten_ext bench: unknown op 'nonsense'; choose from: ")
    assert all(op in line for op in (*registry.OPS, *registry.FOR_DEVELOPERS))


@pytest.mark.usefixtures("developers")
def test_the_names_are_those_that_are_registered() -> None:
    added = [op for op, module in registry.OPS.items() if not module.startswith("aten_ext.")]
    assert sorted(added) == sorted(registry.FOR_DEVELOPERS)
    assert all(importlib.util.find_spec(registry.OPS[op]) for op in added)
