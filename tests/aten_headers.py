"""ATen's headers, compiled once for all that tests compile: to read them takes most of a file's time.

A source that begins with ``#include "aten_headers.h"`` and is compiled with the flags of :func:`flags` takes
what GCC has read before; another compiler reads the header itself.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils import cpp_extension

from paths import ROOT

NAME = "aten_headers.h"
LINK = ["-Wl,--exclude-libs,libstdc++.a"]
"""Flags for the linker of all that tests compile with tensors: as setup.py's, which says why."""
TEXT = "#include <ATen/core/Tensor.h>\n#include <ATen/ops/empty.h>\n#include <torch/library.h>\n"


def flags(own: Sequence[str]) -> list[str]:
    """Flags for cpp_extension.load: these, and what lets its libraries share one compiled header."""
    return [*own, "-UTORCH_EXTENSION_NAME", f"-I{_folder(tuple(own))}"]


def behind_them(file: Path, wrapper: Path) -> Path:
    """``wrapper``, which includes ``file``, and before it ATen's headers if the file has tensors."""
    has_tensors = re.search(r"\bat::Tensor|TORCH_LIBRARY", file.read_text())
    text = (f'#include "{NAME}"\n' if has_tensors else "") + f'#include "{file}"\n'
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        wrapper.write_text(text)
    return wrapper


@functools.cache
def _folder(own: tuple[str, ...]) -> Path:
    compiler = os.environ.get("CXX", "c++").split()
    command = [*compiler, "-DTORCH_API_INCLUDE_EXTENSION_H", "-UTORCH_EXTENSION_NAME", "-fPIC", *own]
    command += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256(repr((command, version, torch.__version__, TEXT)).encode()).hexdigest()
    folder = ROOT / "build" / "aten_headers" / key[:16]
    folder.mkdir(parents=True, exist_ok=True)
    header, compiled = folder / NAME, folder / f"{NAME}.gch"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not compiled.exists():
            header.write_text(TEXT)
            unfinished = folder / "unfinished"
            made = subprocess.run(
                [*command, "-x", "c++-header", header, "-o", unfinished], capture_output=True
            )
            if made.returncode == 0:
                unfinished.replace(compiled)
    return folder
