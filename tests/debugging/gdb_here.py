"""Whether gdb can be used here, and for what."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys


@functools.cache
def why_no_gdb(*others: str) -> str | None:
    """Why gdb, or one of ``others`` that will do, cannot trace a program here, or None."""
    if not any(map(shutil.which, ("gdb", *others))):
        return " and ".join(["gdb", *others]) + " are not installed" if others else "gdb is not installed"
    ask = "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0, 0, None, None) != 0)"
    if subprocess.run([sys.executable, "-c", ask], check=False).returncode:
        return "ptrace is refused here"
    return None


@functools.cache
def why_no_calls() -> str | None:
    """Why gdb cannot call a function of the program, or None: it has to write all registers for that.

    Some kernels refuse the vector registers of newer processors to gdb 13 ("Couldn't write extended state").
    """
    if (why := why_no_gdb()) is not None:
        return why
    write = ["-ex", "starti", "-ex", "set var $xmm0.v4_int32[0] = 1", "-ex", "print $xmm0.v4_int32[0]"]
    command = ["gdb", "-batch", "-nx", "-q", *write, shutil.which("true") or "/bin/true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return None if "$1 = 1" in done.stdout else "gdb cannot write the registers of a program here"
