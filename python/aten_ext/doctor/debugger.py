"""Checks of gdb and ptrace, which ``scripts/trace_dispatch`` needs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from aten_ext.doctor.finding import Finding, note, ok, warning

OLDEST_GDB = 13
GDBS = ("gdb", "cuda-gdb", "/usr/local/cuda/bin/cuda-gdb")  # NVIDIA's can do the same
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
ALLOW = (
    "in a container, start it with --cap-add=SYS_PTRACE; elsewhere, as root: "
    "sysctl kernel.yama.ptrace_scope=0"
)


def gdb() -> Iterator[Finding]:
    """Whether gdb is there, new enough and with Python, and whether it may run a program."""
    path = next(filter(None, map(shutil.which, GDBS)), None)
    if path is None:
        yield warning("gdb", "not found", "for scripts/trace_dispatch: apt install gdb")
        return
    text = _run(path)
    version = re.search(r"^gdb (\d+)", text, re.MULTILINE)
    if version is None:
        yield warning("gdb", f"{path} has no Python", "install a gdb with Python, such as Debian's")
    elif int(version.group(1)) < OLDEST_GDB:
        advice = f"install gdb {OLDEST_GDB} or newer"
        yield warning("gdb", f"{path} is version {version.group(1)}", advice)
    else:
        yield ok("gdb", f"version {version.group(1)} ({path})")
    yield from _ptrace("exited normally" in text)


def _run(path: str) -> str:
    """What gdb says of itself and of running a program that does nothing."""
    command = [path, "-nx", "-batch", "-ex", "python print('gdb', gdb.VERSION)"]
    command += ["-ex", "set startup-with-shell off", "-ex", "run"]
    command += ["--args", shutil.which("true") or "/bin/true"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _ptrace(works: bool) -> Iterator[Finding]:
    try:
        scope = YAMA.read_text().strip()
    except OSError:
        scope = ""
    if not works:
        yam = f" (yama scope {scope})" if scope else ""
        yield warning("ptrace", f"gdb cannot run a program here{yam}", ALLOW)
    elif scope not in ("", "0"):
        text = f"gdb may run programs; yama scope {scope} keeps it from attaching to running ones"
        yield note("ptrace", text, "to attach, as root: sysctl kernel.yama.ptrace_scope=0")
    else:
        yield ok("ptrace", "gdb may run programs")
