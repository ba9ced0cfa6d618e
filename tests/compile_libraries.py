"""Compile what the tests would compile at first use: CUDA kernels for the CPU, and overrides of their own.

``scripts/test`` runs this as the end of its build. Each library is made in a process of its own, because
overrides stay registered.
"""

from __future__ import annotations

import subprocess
import sys

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


def main() -> int:
    """Compile them; 1 where one does not compile, after what the compiler said."""
    if reason := library.why_not():
        print(f"aten_ext: not compiling CUDA kernels for the CPU: {reason}", file=sys.stderr)
        return 0
    for number, (name, code) in enumerate(LIBRARIES.items(), 1):
        print(f"aten_ext:   [{number}/{len(LIBRARIES)}] {name}", file=sys.stderr)
        begin = "import sys; sys.path[:0] = ['.', '../scripts/lib']; "
        command = [sys.executable, "-c", begin + code]
        done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout + done.stderr, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
