"""Cases of the entry itself: what a call costs that ends up in upstream's kernel all the same.

Two tensors of four elements go through ``_fused_adamw_`` on the CPU, called from C++. "disabled" has the
override switched off; "declining" gives the step counts as float64, which the override leaves to upstream.
Each is held against a process in which nothing is registered. The limit is 20 ns.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TypedDict

from aten_ext.bench import harness
from aten_ext.bench.case import Call, Case, Settings
from aten_ext.bench.result import Result, Samples

LIMIT_NS = 20.0
STATES = ("disabled", "declining")
_OVERRIDE = "_fused_adamw_"
_ELEMENTS = 2 * 4


class Unavailable(Exception):
    """The cost cannot be measured here; the text says why in one line."""


def cases(device: str, full: bool) -> list[Case]:
    """Both states, on the CPU whatever ``device`` is: a GPU's launch would hide the difference."""
    del device, full
    return [
        Case(
            op="entry",
            name=state,
            dtype="float32",
            override=_OVERRIDE,
            make=_not_made,
            bytes=7 * 4 * _ELEMENTS,
            footprint=4 * 4 * _ELEMENTS,
            measure=_measure,
        )
        for state in STATES
    ]


def _not_made(device: str) -> Call:
    raise NotImplementedError(f"the call is made in C++ in another process, not on {device}")


def _measure(case: Case, settings: Settings) -> Result:
    """Sample the case in the worker; skipped where there is no compiler."""
    result = Result(case, "cpu", limit_ns=LIMIT_NS)
    try:
        worker = _worker()
    except Unavailable as error:
        result.skipped = str(error)
        return result
    samples = result.clocks["wall"] = Samples()

    def sample() -> None:
        answer = worker.ask(case.name, settings.seconds)
        samples.upstream += answer["upstream"]
        samples.ours += answer["ours"]
        result.route, result.reason = route(case.name, answer["counts"])

    return harness.settle(result, sample, settings.never_slower)


def route(state: str, counts: dict[str, int]) -> tuple[str, str | None]:
    """What the worker's counts prove; they hold calls by outcome: "ran", "disabled", "declined: why".

    Raises:
        RuntimeError: the calls did not take the route that the case is about.
    """
    outcomes = [outcome for outcome, calls in counts.items() if calls]
    if state == "disabled" and outcomes == ["disabled"]:
        return "disabled", None
    if state == "declining" and len(outcomes) == 1 and outcomes[0].startswith("declined: "):
        reason = outcomes[0].removeprefix("declined: ")
        return f"upstream: {reason}", reason
    raise RuntimeError(
        f"the calls of entry case {state!r} went elsewhere: {', '.join(outcomes) or 'not counted'}"
    )


class Answer(TypedDict):
    """What the worker measured."""

    upstream: list[float]
    """Microseconds per call, with nothing registered."""
    ours: list[float]
    counts: dict[str, int]
    """Calls by outcome in the process with aten_ext."""


class Worker:
    """The process that compiles the call and times it; see ``_entry_worker``."""

    def __init__(self) -> None:
        """Start it and wait until the call is compiled; ``Unavailable`` if that cannot be."""
        compiler = os.environ.get("CXX", "c++")
        if shutil.which(compiler) is None:
            raise Unavailable(f"needs a C++ compiler, {compiler} was not found")
        # What the worker registers is its own decision. ninja may be installed beside this Python only.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ATEN_EXT")}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("_entry_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # Timer refuses to time C++ where there is a GPU; the call is one on the CPU.
            env={**inherited, "PATH": path, "CXX": compiler, "CUDA_VISIBLE_DEVICES": ""},
        )
        atexit.register(self.close)
        try:
            # An editable install is found through paths that only this process may know.
            self._send({"sys_path": [os.path.abspath(entry) for entry in sys.path]})
            self._receive()
        except RuntimeError as error:
            raise Unavailable(str(error)) from error

    def ask(self, state: str, seconds: float) -> Answer:
        """Interleave the two processes for about ``seconds``."""
        self._send({"state": state, "seconds": seconds})
        return self._receive()

    def close(self) -> None:
        """End the process; it ends by itself when its input does."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _send(self, message: object) -> None:
        assert self._process.stdin is not None
        try:
            print(json.dumps(message), file=self._process.stdin, flush=True)
        except BrokenPipeError as error:
            raise RuntimeError(self._last_error()) from error

    def _receive(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._last_error())
        answer: Answer = json.loads(line)
        return answer

    def _last_error(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        # A compiler's own complaint says more than the traceback around it.
        telling = [line for line in lines if " error: " in line] or lines[-1:] or ["it ended early"]
        return f"the timer's process failed: {telling[0]}"


@functools.cache
def _worker() -> Worker:
    return Worker()
