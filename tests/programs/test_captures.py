"""Captures that break are found, named and mended: what ``captures.py`` promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import captures
from paths import SCRIPTS, TESTS

LEFT = "Offset increment outside graph capture encountered unexpectedly."


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Errors that random numbers on a GPU raise; mending takes the first away."""
    errors: list[str] = []

    def rand(*_: Any, **__: Any) -> None:
        if errors:
            raise RuntimeError(errors[0])

    monkeypatch.setattr(torch, "rand", rand)
    monkeypatch.setattr(captures, "forget_broken_capture", lambda: errors.pop(0))
    return errors


def test_what_is_left_behind_is_mended(raised: list[str]) -> None:
    captures.check_none_left()
    with captures.may_break():
        raised.append(LEFT)
    assert not captures.is_left_behind()
    with pytest.raises(ValueError, match="of the block"), captures.may_break():
        raised.append(LEFT)
        raise ValueError("of the block")
    assert not captures.is_left_behind()


def test_it_is_said_once(raised: list[str]) -> None:
    raised.append(LEFT)
    with pytest.raises(AssertionError, match="a capture broke"):
        captures.check_none_left()
    captures.check_none_left()


def test_other_errors_are_not_taken_for_it(raised: list[str]) -> None:
    raised.append("CUDA error: an illegal memory access was encountered")
    for ask in (captures.is_left_behind, captures.check_none_left):
        with pytest.raises(RuntimeError, match="illegal memory access"):
            ask()
    raised.clear()


# The tests' own conftest.py, as if there were a GPU.
CONFTEST = """
import importlib.util, sys

sys.path[:0] = {folders!r}
spec = importlib.util.spec_from_file_location("root_conftest", {file!r})
root = importlib.util.module_from_spec(spec)
spec.loader.exec_module(root)
root._why_no_gpu = lambda: None
for name in ("pytest_addoption", "pytest_collection_modifyitems", "fresh_registry", "no_broken_capture"):
    globals()[name] = getattr(root, name)
"""

# The first test leaves a capture behind, and is the one that must fail; the last is no GPU's.
TESTS_OF_A_GPU = """
import captures, pytest, torch

left = []

def rand(*_, **__):
    if left:
        raise RuntimeError({left!r})

torch.rand, torch.cuda.is_initialized = rand, lambda: True
captures.forget_broken_capture = left.clear

@pytest.mark.gpu
def test_culprit():
    left.append(1)

@pytest.mark.gpu
def test_innocent():
    torch.rand(1)

def test_of_no_gpu():
    left.append(1)
"""


def test_the_culprit_is_named(tmp_path: Path) -> None:
    folders = [str(TESTS), str(SCRIPTS / "lib")]
    conftest = CONFTEST.format(folders=folders, file=str(TESTS / "conftest.py"))
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_some.py").write_text(TESTS_OF_A_GPU.format(left=LEFT))
    options = ["-q", "-rA", "-p", "no:cacheprovider", "-o", "markers=gpu", "--rootdir", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_some.py"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert "ERROR test_some.py::test_culprit - AssertionError: a capture broke" in run.stdout, run.stdout
    assert "3 passed, 1 error" in run.stdout


@pytest.mark.gpu
def test_a_capture_that_breaks() -> None:
    def broken() -> None:
        with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.ones(1, device="cuda").item()

    stream = torch.cuda.current_stream()
    with captures.may_break():
        broken()
    torch.rand(1, device="cuda")
    assert torch.cuda.current_stream() == stream
    broken()
    if not captures.is_left_behind():
        pytest.skip("this torch cleans up by itself")
    with pytest.raises(AssertionError, match="a capture broke"):
        captures.check_none_left()
    assert torch.rand(1, device="cuda").isfinite().all()
