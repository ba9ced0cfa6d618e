"""Runs in gdb, for scripts/trace_dispatch: logs the hops of the wanted operators without stopping there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import ClassVar

import gdb

sys.path.insert(0, str(Path(__file__).resolve().parent))

import process
from call_tree import Frame, Printer, ThreadTree
from dispatch_keys import KeyTable
from hops import Hop, Wanted


class Tracer:
    """Follows one program from its first stop to its last."""

    def __init__(self, folder: Path) -> None:
        """Read what is asked for from the folder that the launcher made."""
        request = json.loads((folder / "request.json").read_text())
        self._folder = folder
        out = os.fdopen(int(os.environ["TRACE_DISPATCH_STDOUT"]), "w")
        self.printer = Printer(out, request["json"], request["depth"])
        self._trees: dict[int, ThreadTree] = {}
        self._returns: dict[int, Return] = {}
        self._call_sites: set[int] = set()
        self._signal = ""
        self._exit: int | None = None

    def run(self) -> int:
        """Trace the program; returns the exit status for the launcher."""
        gdb.events.stop.connect(self._stopped)
        gdb.events.exited.connect(self._exited)
        gdb.execute("run", to_string=True)
        if self._exit is not None or not (self._folder / "tables.json").exists():
            return self._refuse("the program ended before it could be traced: is --python a Python?")
        tables = json.loads((self._folder / "tables.json").read_text())
        if "error" in tables:
            return self._refuse(tables["error"])
        self._keys = KeyTable(tables["keys"]["bits"], tables["keys"]["backend_mask"])
        self._by_value: dict[str, bool | None] = tables["by_value"]
        self._set_breakpoints(Wanted(frozenset(tables["names"]), frozenset(tables["kernels"])))
        if not Logged.all:
            return self._refuse("found none of the dispatcher's functions in torch's libraries")
        self._continue()
        for tree in self._trees.values():
            tree.finish()
        if not self._trees:
            (self._folder / "nothing_seen").touch()
        gdb.execute("delete")
        for breakpoint in [*Logged.all, *self._returns.values()]:
            breakpoint.delete()
        while self._exit is None:
            gdb.execute("continue", to_string=True)
        return self._exit

    def _set_breakpoints(self, wanted: Wanted) -> None:
        for address, hop in process.hops(wanted).items():
            Logged(address, hop, self)
        for address, name in process.launchers():
            Logged(address, Hop("launch", name, name, "CUDA launch"), self)

    def _continue(self) -> None:
        while self._exit is None:
            self._signal = ""
            gdb.execute("continue", to_string=True)
            for address in self._call_sites - self._returns.keys():
                self._returns[address] = Return(address, self)
            if self._signal == "SIGTRAP":
                return

    def hit(self, hop: Hop) -> bool:
        """A hop begins; returns whether gdb has to stop for it."""
        thread = gdb.selected_thread().ptid[1]
        tree = self._trees.setdefault(thread, ThreadTree(self.printer))
        back = process.return_address()
        frame = tree.enter(hop, process.register("sp"), back)
        if frame is None:
            return False
        if hop.kind != "decline":  # printed with its answer
            self.printer.hop(frame.record, self._note(hop, frame))
        self._call_sites.add(back)
        return back not in self._returns  # for a breakpoint to be set, gdb has to stop

    def returned_to(self, address: int) -> None:
        """A hop may have returned."""
        tree = self._trees.get(gdb.selected_thread().ptid[1])
        for frame in tree.leave(process.stack_before_return(), address) if tree else []:
            if frame.hop.kind == "decline":
                self._answer(frame)

    def _answer(self, frame: Frame) -> None:
        address = process.returned()
        reason = process.string(address) if address else None
        frame.record["answer"] = reason
        note = "says nullptr: the fused kernel runs" if reason is None else f'says "{reason}": upstream runs'
        self.printer.hop(frame.record, note)

    def _note(self, hop: Hop, frame: Frame) -> str:
        if hop.kind == "redispatch":
            keys = process.key_set(self._by_value.get(hop.name))
            frame.record["key"], frame.record["keys"] = self._keys.next_key(keys), self._keys.names(keys)
            return f"next key: {frame.record['key']}"
        if hop.kind == "launch":
            function = process.function_at(process.argument(0 if hop.name == "cudaLaunchKernel" else 1))
            frame.record["kernel"] = process.demangle(function) if function else "unknown"
            return f"launches {frame.record['kernel']}"
        return "upstream, the override is disabled" if frame.record.get("disabled") else hop.note

    def _refuse(self, line: str) -> int:
        (self._folder / "refused").write_text(line)
        if self._exit is None:
            gdb.execute("kill", to_string=True)
        return 2

    def _stopped(self, event: gdb.StopEvent) -> None:
        if isinstance(event, gdb.SignalEvent):
            self._signal = event.stop_signal

    def _exited(self, event: gdb.ExitedEvent) -> None:
        self._exit = getattr(event, "exit_code", 1)


class Logged(gdb.Breakpoint):
    """A breakpoint at a hop's first instruction."""

    all: ClassVar[list[Logged]] = []

    def __init__(self, address: int, hop: Hop, tracer: Tracer) -> None:
        """Set it."""
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self._hop, self._tracer = hop, tracer
        self.all.append(self)

    def stop(self) -> bool:
        """Log the hop."""
        return self._tracer.hit(self._hop)


class Return(gdb.Breakpoint):
    """A breakpoint where hops return to."""

    def __init__(self, address: int, tracer: Tracer) -> None:
        """Set it."""
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self._address, self._tracer = address, tracer

    def stop(self) -> bool:
        """Take what has returned off the tree."""
        self._tracer.returned_to(self._address)
        return False


def main() -> None:
    """Trace, and leave word for the launcher that gdb came to its end."""
    folder = Path(os.environ["TRACE_DISPATCH_FOLDER"])
    status = Tracer(folder).run()
    (folder / "finished").touch()
    gdb.execute(f"quit {status}")


main()
