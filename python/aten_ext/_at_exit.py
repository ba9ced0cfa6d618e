"""What ``ATEN_EXT_TRACE``, ``ATEN_EXT_SHADOW`` and ``ATEN_EXT_REPORT`` print when the process ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

from aten_ext import _C, _report
from aten_ext._registry import is_active
from aten_ext._shadow import ShadowReport
from aten_ext._trace import CountsByKey, counts_by_key, summary, traced_calls


class AtExit:
    """The sessions of this process, and where its calls began to count."""

    def __init__(self) -> None:
        """Take over the sessions that the environment started."""
        sessions = _C.watched_by_environment()
        self.trace, self.trace_session, self.shadow_session, self.times_session = sessions
        if self.times_session:
            _report.adopt(self.times_session, os.environ.get("ATEN_EXT_REPORT", ""))
        self.since: CountsByKey = {}
        self.forked = False
        path = os.environ.get("ATEN_EXT_TRACE_FILE")
        self.path = os.path.abspath(path) if path else None

    def wanted(self) -> bool:
        """Whether there will be anything to print."""
        return bool(self.trace or self.shadow_session or self.times_session)

    def after_fork(self) -> None:
        """A forked child reports its own calls, not again those of its parent."""
        self.forked = True
        self.since = counts_by_key()
        for session in filter(None, (self.trace_session, self.shadow_session)):
            _C.clear_watched(session)
        _report.clear()

    def report(self) -> str:
        """The text, of several lines; nothing for a forked child that called no override."""
        counts = summary(self.since)
        if self.forked and not counts:
            return ""
        nothing = "no call reached an override" + (
            "" if is_active() else ": nothing is registered (ATEN_EXT=0)"
        )
        parts = []
        if self.trace == "calls":
            parts.append("calls\n" + ("\n".join(map(str, traced_calls(self.trace_session))) or nothing))
        if self.trace:
            parts.append("summary\n" + (counts or nothing))
        if self.shadow_session:
            parts.append("shadow\n" + str(ShadowReport(self.shadow_session)))
        if self.times_session:
            parts.append("report\n" + str(_report.report()))
        return "".join(f"[aten_ext] process {os.getpid()}: {part}\n" for part in parts)

    def print(self) -> None:
        """To ATEN_EXT_TRACE_FILE, appended, or to stderr. Whatever goes wrong is one line."""
        text = self.report()
        if self.path:
            try:
                with open(self.path, "a") as file:
                    file.write(text)
            except OSError as error:
                text = f"[aten_ext] ATEN_EXT_TRACE_FILE: cannot write {self.path!r}: {error.strerror}\n{text}"
            else:
                return
        if sys.stderr is not None and not sys.stderr.closed:
            with contextlib.suppress(OSError):  # a pipe whose reader is gone
                sys.stderr.write(text)
                sys.stderr.flush()


def install() -> None:
    """Print at exit if the environment asks for it. Not after ``os._exit()``."""
    at_exit = AtExit()
    if at_exit.wanted():
        atexit.register(at_exit.print)
        os.register_at_fork(after_in_child=at_exit.after_fork)
