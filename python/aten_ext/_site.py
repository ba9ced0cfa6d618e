"""Which line of the program is responsible for a call: neither torch's nor a library's, if there is one.

A line is "file:line", with the file as Python names it.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Sequence
from types import FrameType
from typing import Any


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Folders whose code is nobody's program."""
    paths = sysconfig.get_paths()
    found = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(sorted(folder + os.sep for folder in found))


@functools.cache
def _machinery() -> tuple[str, ...]:
    """Torch and this package: their lines say nothing, even where there is no other."""
    import torch

    packages = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
    return tuple(os.path.realpath(package) + os.sep for package in packages)


@functools.cache
def _kind(file: str) -> str:
    """Of a line: of the program, of a library, or of what is never named."""
    if file.startswith("<"):  # frozen modules, exec
        return "machinery"
    path = os.path.realpath(file)
    if path.startswith(_machinery()):
        return "machinery"
    return "library" if path.startswith(_libraries()) else "program"


def frames() -> list[FrameType]:
    """The callers of this function, the innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def calling_line() -> str:
    """The innermost line of the program, or failing that of a library; "" for neither."""
    return line_of(frames())


def line_outside(stack: Sequence[FrameType]) -> tuple[str, Any]:
    """The line that calls the outermost ``torch.nn`` module of ``stack``, and that module (or None)."""
    outermost = -1
    for place, frame in enumerate(stack):
        if frame.f_code.co_name == "_call_impl" and _kind(frame.f_code.co_filename) == "machinery":
            outermost = place
    module = stack[outermost].f_locals.get("self") if outermost >= 0 else None
    return line_of(stack[outermost + 1 :]), module


def line_of(stack: Sequence[FrameType]) -> str:
    """As :func:`calling_line`, of a stack that is given."""
    library = ""
    for frame in stack:
        kind = _kind(frame.f_code.co_filename)
        if kind == "program":
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if kind == "library" and not library and "runpy" not in frame.f_code.co_filename:
            library = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return library
