"""Mutants and sanitizers keep up with the sources: each place is still there, and so are the tests named."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import re
import subprocess
import sys

import pytest

import random_mutants
from compute_sanitizer import FILES_NOT_OF, GPU_LEFT_OUT
from host_sanitizers import SANITIZERS
from mutant_table import MUTANTS, Mutant
from paths import ROOT
from sanitizer_kind import test_files as files_below


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_fits_the_sources(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new and mutant.tests
    for test in mutant.tests:
        path, *names = test.partition("[")[0].split("::")
        text = (ROOT / path).read_text()
        if len(names) == 2:  # a method: of the class itself, or of the suite that it inherits
            assert re.search(rf"^class {names[0]}\(FusedStepTests\)", text, re.MULTILINE), test
            text += (ROOT / "tests/ops/optimizer/step_suite.py").read_text()
        assert not names or re.search(rf"^ *def {names[-1]}\(", text, re.MULTILINE), test


def test_there_are_enough() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) >= 20 and len(set(names)) == len(names)


def test_every_mutant_is_listed() -> None:
    """With file and tests; every file of mutants is taken."""
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "mutants"), "--list"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.stdout.splitlines() == [
        f"{mutant.file}: {mutant.name}  [{', '.join(mutant.tests)}]" for mutant in MUTANTS
    ]
    for file in (ROOT / "scripts" / "lib").glob("mutants_of_*.py"):
        assert file.read_text().count("\nROWS: ") == 1
        assert set(importlib.import_module(file.stem).ROWS) <= {dataclasses.astuple(m) for m in MUTANTS}


def test_what_sanitizers_leave_out_exists() -> None:
    named = GPU_LEFT_OUT.union(*FILES_NOT_OF.values())
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).exists()] == []
    run = files_below(ROOT, GPU_LEFT_OUT)
    assert "tests/ops/cat/test_parity.py" in run and "tests/repository/test_docs.py" not in run
    assert not any(file.startswith("tests/models/") for file in run)
    for sanitizer in SANITIZERS.values():
        assert all((ROOT / test).exists() for test in sanitizer.tests if test.startswith("tests/"))


@pytest.mark.parametrize("family", random_mutants.FAMILIES)
def test_random_mutants_have_sources_and_tests(family: str) -> None:
    assert len(random_mutants.sources(family)) >= 10
    assert all((ROOT / tests).exists() for tests in random_mutants.FAMILIES[family][1])


def test_the_nearest_tests_run_first() -> None:
    order = random_mutants.nearest_first
    by_table = order("optimizer", "aten_ext/ops/optimizer/overlap.h", {})
    assert by_table[0] == "tests/ops/optimizer/test_adam_declines.py"
    by_name = order("python", "python/aten_ext/bench/compare.py", {})
    assert by_name[0] == "tests/commands/bench/test_compare.py"
    assert order("cat", "aten_ext/ops/cat/words.cu", {})[0] == "tests/ops/cat/test_on_host.py"
    far = by_name[-1]
    assert order("python", "python/aten_ext/bench/compare.py", {far: -1.0})[-1] != far, "the short first"


def test_random_mutants_are_drawn_by_the_seed() -> None:
    pytest.importorskip("universalmutator")

    def drawn(seed: int) -> list[random_mutants.RandomMutant]:
        return list(itertools.islice(random_mutants.draw(["cat", "python"], seed), 40))

    first = drawn(1)
    assert first == drawn(1) and first != drawn(2) and len(set(first)) == 40
    assert {mutant.family for mutant in first} == {"cat", "python"}
    for mutant in first:
        before = (ROOT / mutant.file).read_text()
        after = mutant.applied(before)
        assert before.split() != after.split(), "not only spaces"
        assert before.count("\n") == after.count("\n") and mutant.diff().startswith(f"--- {mutant.file}")


@pytest.mark.parametrize(
    ("before", "after", "hopeless"),
    [
        ("int64_t n = a + b;", "int64_t n = a - b;", False),
        ("for (int i = 0; i < n; ++i) {", "for (int i = 0; i <= n; ++i) {", False),
        ("run<4>(n);", "run<5>(n);", False),
        ("if (a < b) {", "if (1==1) {", False),
        ("int64_t n = a + b;", "int0_t n = a + b;", True),
        ("for (int i = 0; i < n; ++i) {", "for (int i = 0; i < n; +/i) {", True),
        ("run<4>(n);", "run<4>=(n);", True),
        ("void run(const Plan& a, int b) {", "void run(const Plan| a, int b) {", True),
        ("void run(Plan& a, int b) {", "void run(Plan| a, int b) {", True),
        ("void run(const Plan& a, int b) {", "void run ( int b,const Plan& a) {", True),
        ("run(a, b);", "run ( b,a);", False),
        ("if (a < b) {", "/*if (a < b) {*/", True),
        ("const int n = a;", "/*const int n = a;*/", True),
    ],
)
def test_what_cannot_compile_is_not_drawn(before: str, after: str, hopeless: bool) -> None:
    words = {"int64_t", "n", "a", "b", "i", "for", "int", "run", "void", "const", "Plan", "if"}
    assert random_mutants._hopeless(before, after, words) == hopeless


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("mutants", ["--only", "no such mutant"]),
        ("mutants", ["cat"]),
        ("mutants", ["--random", "0"]),
        ("mutants", ["--random", "3", "no such family"]),
        ("sanitize", ["no_such_kind"]),
    ],
)
def test_mistakes_at_the_command_line_are_one_line(script: str, arguments: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert run.stderr.startswith(f"{script}: ")
