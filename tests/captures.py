"""CUDA graph captures that break: what they leave behind, found and mended.

Whoever lets one break does so inside ``with may_break():``. A test that leaves the default generator behind
as a broken capture does would fail others of its process, so ``conftest.py`` fails that test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from aten_ext.bench.graph import forget_broken_capture


def is_left_behind() -> bool:
    """Whether the default generator believes that a capture is under way, though none is."""
    try:
        torch.rand(1, device="cuda")
    except RuntimeError as error:
        if "outside graph capture" in str(error):
            return True
        raise
    return False


@contextlib.contextmanager
def may_break() -> Iterator[None]:
    """Captures in this ``with`` block may break, in any thread: what they leave is mended after it."""
    try:
        yield
    finally:
        if is_left_behind():
            forget_broken_capture()


def check_none_left() -> None:
    """Mend what a test has left behind.

    Raises:
        AssertionError: it has left something.
    """
    if is_left_behind():
        forget_broken_capture()
        raise AssertionError(
            "a capture broke and left the default CUDA generator in it: captures.may_break()"
        )
