"""Builds the tree of a call from the hops of a thread, and prints it while it grows."""

from __future__ import annotations

import json
from typing import IO, Any

import cuda_calls
from hops import INNER, Hop

COLUMN = 76


class Frame:
    """A hop that has not returned yet."""

    def __init__(self, hop: Hop, stack: int, back: int, record: dict[str, Any]) -> None:
        """Keep the stack pointer and the return address at the hop's first instruction."""
        self.hop, self.stack, self.back, self.record = hop, stack, back, record
        self.declined = self.asked = False
        self.place = 0  # of a choose: where its answer will be


class ThreadTree:
    """The hops of one thread.

    A hop's caller is the last one that has not returned; after an exception, the last one whose stack pointer
    is higher. One with the same stack pointer and return address jumped here instead of calling: it is the
    parent as well, unless it is the same function.
    """

    def __init__(self, printer: Printer) -> None:
        """Print to `printer`."""
        self._printer = printer
        self._frames: list[Frame] = []
        self._call: dict[str, Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a call has begun and not returned."""
        return bool(self._frames)

    def enter(self, hop: Hop, stack: int, back: int) -> Frame | None:
        """A hop begins; None where it is on the path of no call."""
        self._unwind(hop, stack, back)
        if hop.kind in cuda_calls.KINDS and self._frames and self._frames[-1].hop.kind in cuda_calls.KINDS:
            return None  # how CUDA does what it was asked for is its own affair
        if not self._frames:
            if hop.kind in INNER:
                return None
            self.finish()
            self._call = self._printer.begin(hop)
        parent = self._frames[-1] if self._frames else None
        record: dict[str, Any] = {"depth": len(self._frames), "kind": hop.kind, "function": hop.label}
        frame = Frame(hop, stack, back, record)
        assert self._call is not None
        if hop.kind == "fused" and self._call["hops"][-1]["function"] == hop.label:
            return None  # once a chunk of work
        if parent is not None and parent.hop.kind == "entry" and hop.kind == "upstream" and not parent.asked:
            record["disabled"] = True
        if parent is not None and hop.kind == "choose":
            parent.asked = True
        self._call["hops"].append(record)
        self._frames.append(frame)
        return frame

    def finish(self) -> None:
        """The call is over: another one begins, or the program ends."""
        if self._call is not None:
            self._printer.end(self._call)
        self._call, self._frames = None, []

    def leave(self, stack: int, back: int) -> list[Frame]:
        """The hop that began with these is over; returns it and those inside."""
        over = [i for i, frame in enumerate(self._frames) if (frame.stack, frame.back) == (stack, back)]
        if not over:
            return []
        left, self._frames = self._frames[over[0] :], self._frames[: over[0]]
        if not self._frames:
            self.finish()
        return left

    def _unwind(self, hop: Hop, stack: int, back: int) -> None:
        frames = self._frames
        while frames and frames[-1].stack < stack:
            frames.pop()
        while frames and frames[-1].stack == stack and frames[-1].back != back:
            frames.pop()
        level = [i for i, frame in enumerate(frames) if frame.stack == stack and frame.hop.label == hop.label]
        if level:
            del frames[level[0] :]


class Printer:
    """Prints calls as indented trees while they run, or as one JSON object each when they are over."""

    def __init__(self, out: IO[str], as_json: bool, depth: int | None) -> None:
        """Print to `out`, hops up to `depth` levels."""
        self._out, self._json, self._depth = out, as_json, depth
        self._held, self._times = "", 0
        self.calls = 0

    def begin(self, hop: Hop) -> dict[str, Any]:
        """A call begins."""
        self.calls += 1
        self._write(f"{'' if self.calls == 1 else chr(10)}call {self.calls}: {hop.name}")
        return {"call": self.calls, "op": hop.name, "hops": []}

    def hop(self, record: dict[str, Any], note: str) -> None:
        """A hop of the call, with what is known about it."""
        if self._depth is not None and record["depth"] >= self._depth:
            return
        name = "  " * (record["depth"] + 1) + record["function"]
        line = f"{name:<{COLUMN}}  {note}".rstrip()
        if record["kind"] not in cuda_calls.KINDS:
            self._write(line)
        elif line == self._held:
            self._times += 1
        else:
            self._flush()
            self._held, self._times = line, 1

    def end(self, call: dict[str, Any]) -> None:
        """A call is over."""
        self._flush()
        if self._json:
            call["hops"] = _without_repeats(call["hops"])
            if self._depth is not None:
                call["hops"] = [hop for hop in call["hops"] if hop["depth"] < self._depth]
            print(json.dumps(call), file=self._out, flush=True)

    def _flush(self) -> None:
        """Print the call into CUDA that was held back in case it comes again."""
        line, times, self._held, self._times = self._held, self._times, "", 0
        if line:
            self._write(line if times == 1 else f"{line}, {times} times")

    def _write(self, line: str) -> None:
        self._flush()
        if not self._json:
            print(line, file=self._out, flush=True)


def _without_repeats(hops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls into CUDA that are the same, one after another, become one with a number: ``times``."""
    kept: list[dict[str, Any]] = []
    for hop in hops:
        if kept and hop["kind"] in cuda_calls.KINDS and {**kept[-1], "times": 1} == {**hop, "times": 1}:
            kept[-1]["times"] = kept[-1].get("times", 1) + 1
        else:
            kept.append(hop)
    return kept
