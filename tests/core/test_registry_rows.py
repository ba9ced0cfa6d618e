"""Rows that are not measured, names in the environment, counts: the registry alone, compiled for the test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from paths import ROOT

HERE = Path(__file__).parent
START = "cat@CPU mm@CUDA "


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = tmp_path_factory.mktemp("registry") / "registry_checks"
    sources = [HERE / "registry_checks.cpp", ROOT / "aten_ext/core/registry.cpp"]
    command = [compiler, "-std=c++20", "-O0", "-pthread", "-I", ROOT / "aten_ext", *sources, "-o", path]
    subprocess.run(command, check=True, timeout=120)
    return path


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        # What is not measured is turned on by its exact name alone.
        ("enable=*", "4 " + START),
        ("enable=cat*", "3 " + START),
        ("enable=ca?", "2 " + START),
        ("enable=[c]at", "2 " + START),
        ("enable=cat", "2 cat@CPU cat@CUDA mm@CUDA "),
        ("enable=cat.out", "1 cat@CPU cat.out@CUDA mm@CUDA "),
        ("enable=nothing", "0 " + START),
        ("disable=ca*", "3 mm@CUDA "),
        ("ATEN_EXT_ENABLE=cat*", START),
        ("ATEN_EXT_ONLY=cat*", "cat@CPU "),
        # Blanks around names: spaces and tabs, before and after.
        ("ATEN_EXT_DISABLE=\tmm\t", "cat@CPU "),
        ("ATEN_EXT_DISABLE= mm , cat ", ""),
        ("ATEN_EXT_DISABLE=mm,\tcat", ""),
        ("ATEN_EXT_DISABLE=,\t,", START),
        ("ATEN_EXT_ONLY=\t", START),
        ("ATEN_EXT_ENABLE=\tcat.out", "cat@CPU cat.out@CUDA mm@CUDA "),
        (
            "ATEN_EXT_ENABLE=m m",
            "[aten_ext] ATEN_EXT_ENABLE: expected names of overrides (cat, cat.out, mm), got 'm m'",
        ),
    ],
)
def test_rows(program: Path, question: str, answer: str) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ATEN_EXT")}
    run = subprocess.run([program, question], capture_output=True, text=True, env=clean, check=True)
    assert run.stdout == answer + "\n"


def test_counts_of_threads_that_end_and_of_others(program: Path) -> None:
    """Every call once, whichever thread owns the counts, and none after a reset."""
    run = subprocess.run([program, "count"], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [
        "200000 first 100000 second 100000",
        "1200000 first 600000 second 600000",
        "0",
        "1000000 first 500000 second 500000",
        "0",
    ]
