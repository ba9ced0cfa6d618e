"""What became of a mutant: build the copy, run the tests, read pytest's answer."""

from __future__ import annotations

import subprocess
import sys

from scratch import Scratch

# What pytest returns when tests ran and one failed. A crash ends it with a signal instead; everything else
# (2: interrupted, 4: wrong usage, 5: no such test) means that the tests named are wrong.
FAILED = 1
# Two threads, or what only they can get wrong is not noticed; they wait without spinning, because the other
# core may be busy. The same examples each time.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "passive",
    "HYPOTHESIS_PROFILE": "ci",
    "CUDA_VISIBLE_DEVICES": "",
}
# A condition that is left out leaves names unused: -w wins over setup.py's -Werror.
WITHOUT_WARNINGS = {"CFLAGS": "-w", "CXXFLAGS": "-w"}
# What torch.utils.cpp_extension says when a test's own library (tests/device_on_host) does not compile.
_NOT_COMPILED = "Error building extension"


def run_tests(scratch: Scratch, tests: tuple[str, ...], *options: str, seconds: int = 900) -> tuple[int, str]:
    """Pytest's return code and output, up to the first failure. Tests that take longer have failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *tests]
    try:
        run = subprocess.run(
            command,
            cwd=scratch.folder,
            env=scratch.environment(**ENVIRONMENT),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return FAILED, ""
    return run.returncode, run.stdout


def compiled(output: str) -> bool:
    """Whether all libraries that the tests make for themselves were compiled."""
    return _NOT_COMPILED not in output


def noticed(code: int) -> bool:
    """Whether a test failed or crashed."""
    return code == FAILED or code < 0 or code > 128
