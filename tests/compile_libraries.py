"""Compile what the tests would compile at first use: CUDA kernels for the CPU, and overrides of their own.

``scripts/test`` runs this as the end of its build. Each library is made in a process of its own, because
overrides stay registered.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from device_on_host import library
from paths import TESTS

_LIBRARY = "from device_on_host import library; library."
LIBRARIES = {
    "recurrent layers": "from ops.rnn import on_host_cases; on_host_cases.load()",
    "linear layers": "from ops.linear import test_on_host; test_on_host.load()",
    "cat": f"from ops.cat.reference import KERNELS; {_LIBRARY}load('cat', *KERNELS)",
    **{
        step: f"{_LIBRARY}load('{step}', *(f'ops/optimizer/cuda/{step}.{{end}}' for end in ('cpp', 'cu')))"
        for step in ("fused_adam", "fused_sgd", "fused_adagrad", "foreach_add")
    },
    "cells": f"{_LIBRARY}load('rnn_cells', str(library.HERE / 'rnn_cells.cu'))",
    "the device itself": f"{_LIBRARY}load_selftest()",
    "overrides of the tests": "sys.path.insert(0, 'core'); from compiled_overrides import load; load()",
}
"""What compiles each library, run in ``tests/``."""


def compile_one(name: str) -> str:
    """What the compiler said of a library that does not compile; "" of one that does."""
    begin = "import sys; sys.path[:0] = ['.', '../scripts/lib']; "
    command = [sys.executable, "-c", begin + LIBRARIES[name]]
    print(f"aten_ext:   {name}", file=sys.stderr)
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode != 0 else ""


def main() -> int:
    """Compile them; 1 where one does not compile, after what the compiler said."""
    if reason := library.why_not():
        print(f"aten_ext: not compiling CUDA kernels for the CPU: {reason}", file=sys.stderr)
        return 0
    # The first is many files and takes every core; the others are one or two.
    first, *others = LIBRARIES
    said = compile_one(first)
    if not said:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            said = "".join(pool.map(compile_one, others))
    print(said, file=sys.stderr, end="")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
