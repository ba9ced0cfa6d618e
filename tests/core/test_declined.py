"""What a thread remembers of declined calls (core/declined.h), of tensors of a GPU that is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from paths import ROOT

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What ``declined_checks.cpp`` prints."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    path = tmp_path_factory.mktemp("declined") / "declined_checks"
    libraries = cpp_extension.library_paths()
    command = [compiler, "-std=c++20", "-O1", f"-I{ROOT / 'aten_ext'}"]
    command += [f"-isystem{folder}" for folder in cpp_extension.include_paths()]
    command += [str(HERE / "declined_checks.cpp"), "-o", str(path)]
    command += [flag for folder in libraries for flag in (f"-L{folder}", f"-Wl,-rpath,{folder}")]
    made = subprocess.run([*command, "-ltorch_cpu", "-lc10"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    printed = subprocess.run([str(path)], capture_output=True, text=True, check=True).stdout
    return dict(line.split(": ", 1) for line in printed.splitlines())


def test_calls_are_alike_by_all_that_a_rule_goes_by(answers: dict[str, str]) -> None:
    same = {"elsewhere", "a line further", "32 elements further"}
    other = {
        "half a line further", "an element further", "more rows", "more columns", "rows apart",
        "columns apart", "transposed", "three dimensions", "dtype", "device",
    }  # fmt: skip
    for what in same:
        assert answers[what] == "same", what
    for what in other:
        assert answers[what] == "other", what
    assert answers["undefined"] == "none"


def test_a_reason_is_remembered_until_its_place_is_taken(answers: dict[str, str]) -> None:
    assert answers["before"] == answers["of another print"] == "unknown"
    assert answers["after"] == "a reason"
    assert answers["the place taken"] == "unknown, a later one"
