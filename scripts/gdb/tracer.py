"""Runs in gdb, for scripts/trace_dispatch: logs the hops of the wanted operators without stopping there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import gdb

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cuda_calls
import process
from call_tree import Frame, Printer, ThreadTree
from dispatch_keys import KeyTable
from hops import INNER, Hop, Wanted


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
        self._cuda: bool = request["cuda"]
        self._unnamed: list[tuple[Frame, int]] = []
        self._asked: tuple[str, int, int] | None = None
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
        self._driver: dict[str, Any] = tables.get("driver", {})
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
        if self._cuda:
            for address, name in process.runtime_functions():
                kind = "launch" if name in cuda_calls.LAUNCHES else "runtime"
                Logged(address, Hop(kind, name, name, ""), self)
            for place, name in self._driver.get("functions", {}).items():
                Logged(int(place), Hop("driver", name, name, ""), self)

    def _continue(self) -> None:
        while self._exit is None:
            self._signal = ""
            gdb.execute("continue", to_string=True)
            for frame, handle in self._unnamed:
                self._launched(frame, self._name_of(handle))
                self._asked = (frame.hop.label, frame.stack, frame.back)
            self._unnamed.clear()
            for address in self._call_sites - self._returns.keys():
                self._returns[address] = Return(address, self)
            if self._signal == "SIGTRAP":
                return

    def hit(self, hop: Hop) -> bool:
        """A hop begins; returns whether gdb has to stop for it."""
        thread = gdb.selected_thread().ptid[1]
        tree = self._trees.get(thread)
        if hop.kind in INNER and (tree is None or not tree.is_open):
            return False  # in no call; a library that starts makes thousands of these
        tree = self._trees.setdefault(thread, ThreadTree(self.printer))
        stack, back = process.register("sp"), process.return_address()
        asked, self._asked = self._asked, None
        if asked == (hop.label, stack, back):
            return False  # after a function of the process was called here, cuda-gdb stops here once more
        frame = tree.enter(hop, stack, back)
        if frame is None:
            return False
        if hop.name in cuda_calls.LAUNCHES:
            self._launch(hop, frame)
        elif (
            hop.kind == "choose"
        ):  # printed with its answer, which is written to a place that the caller gives
            frame.place = process.place_of_result()
        else:
            self.printer.hop(frame.record, self._note(hop, frame))
        self._call_sites.add(back)
        return back not in self._returns or bool(self._unnamed)  # for these, gdb has to stop

    def returned_to(self, address: int) -> None:
        """A hop may have returned."""
        self._asked = None
        tree = self._trees.get(gdb.selected_thread().ptid[1])
        for frame in tree.leave(process.stack_before_return(), address) if tree else []:
            if frame.hop.kind == "choose":
                self._answer(frame)

    def _answer(self, frame: Frame) -> None:
        address = process.pointer_at(frame.place)  # of a Choice: the reason comes first
        reason = process.string(address) if address else None
        frame.record["answer"] = reason
        note = "gives a plan: the fused kernel runs" if reason is None else f'says "{reason}": upstream runs'
        self.printer.hop(frame.record, note)

    def _note(self, hop: Hop, frame: Frame) -> str:
        if hop.kind == "redispatch":
            keys = process.key_set(self._by_value.get(hop.name))
            frame.record["key"], frame.record["keys"] = self._keys.next_key(keys), self._keys.names(keys)
            return f"next key: {frame.record['key']}"
        if hop.kind in cuda_calls.KINDS:
            does = cuda_calls.describe(hop.name, process.argument)
            frame.record["does"] = does
            return self._called_by(frame, does)
        return "upstream, the override is disabled" if frame.record.get("disabled") else hop.note

    def _launch(self, hop: Hop, frame: Frame) -> None:
        """A kernel's launch: name it now if its stub is known, else ask the driver once gdb has stopped."""
        where = cuda_calls.LAUNCHES[hop.name]
        place = frame.back - 1 if isinstance(where, str) else process.argument(where)
        stub = process.function_at(place)
        if stub is not None:
            self._launched(frame, cuda_calls.kernel_of_stub(stub))
        else:
            self._unnamed.append((frame, process.argument(where) if isinstance(where, int) else 0))

    def _launched(self, frame: Frame, mangled: str | None) -> None:
        frame.record["kernel"] = process.demangle(mangled) if mangled else "a kernel without a name"
        self.printer.hop(
            frame.record, self._called_by(frame, f"launches {cuda_calls.short_name(frame.record['kernel'])}")
        )

    def _called_by(self, frame: Frame, note: str) -> str:
        """The note, and for a call of the driver which library it comes from."""
        library = Path(process.library_of(frame.back) or "").name
        frame.record["library"] = library
        return f"{note} (from {library})".strip() if frame.hop.kind == "driver" and library else note

    def _name_of(self, handle: int) -> str | None:
        """What the driver calls a CUfunction or CUkernel."""
        for function in self._driver.get("names", []):
            try:
                if handle and process.call_function(function, self._driver["answer"], handle) == 0:
                    return process.string(process.pointer_at(self._driver["answer"]))
            except gdb.error:
                continue
        return None

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
