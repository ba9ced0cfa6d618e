"""Commands for gdb: `source scripts/gdb/aten.py`, then `help aten`. See docs/debugging.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

import gdb

sys.path.insert(0, str(Path(__file__).resolve().parent))

import inspection
import process
from hops import Hop, Wanted


class Watched:
    """The operators named by aten-break so far, and the functions on their paths."""

    operators: ClassVar[list[str]] = []
    hops: ClassVar[dict[int, Hop]] = {}

    @classmethod
    def add(cls, operators: list[str]) -> dict[int, Hop]:
        """Watch more operators; returns the functions on their paths alone."""
        tables = inspection.tables(tuple(sorted(operators)))
        if "unknown" in tables:
            raise gdb.GdbError(f"torch has no operator {', '.join(tables['unknown'])}")
        found = process.hops(Wanted(frozenset(tables["names"]), frozenset(tables["kernels"])))
        if not found:
            raise gdb.GdbError("torch is not loaded yet: `catch load libtorch_python`, `run`, and again")
        cls.operators += operators
        cls.hops.update(found)
        return found


def describe(hop: Hop) -> str:
    """One line about the hop at whose first instruction the program stands."""
    note = hop.note
    if hop.kind == "redispatch":
        by_value = inspection.tables(tuple(sorted(Watched.operators)))["by_value"].get(hop.name)
        keys = inspection.key_table().names(process.key_set(by_value))
        note = f"next key: {keys[0] if keys else 'Undefined'}"
    return f"{hop.label}  [{note}]" if note else hop.label


class Stop(gdb.Breakpoint):
    """Stops at a hop and says which one it is."""

    def __init__(self, address: int, hop: Hop, internal: bool) -> None:
        """Set it."""
        super().__init__(f"*{address:#x}", internal=internal)
        self.silent = True
        self.hop = hop

    def stop(self) -> bool:
        """Say where the program stands."""
        print(describe(self.hop))
        return True


class AtenPrefix(gdb.Command):
    """Commands about PyTorch's dispatcher: aten-break, aten-step, aten-bt, aten-keys, aten-tensor."""

    def __init__(self) -> None:
        """Register the command."""
        super().__init__("aten", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Name the commands."""
        print(self.__doc__)


class AtenBreak(gdb.Command):
    """Stop where a call of an operator enters the dispatcher: aten-break OP [OP ...].

    OP is a name without overload: cat, mm, _fused_adamw_. The process must have loaded torch: in a program
    that has not started, `catch load libtorch_python` and `run` first. aten-step then goes from hop to hop.
    """

    def __init__(self) -> None:
        """Register the command."""
        super().__init__("aten-break", gdb.COMMAND_BREAKPOINTS)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Set breakpoints on at::_ops::OP::call of every overload."""
        operators = gdb.string_to_argv(argument)
        if not operators:
            raise gdb.GdbError("name an operator: aten-break cat")
        calls = {a: hop for a, hop in Watched.add(operators).items() if hop.kind == "call"}
        for address, hop in calls.items():
            breakpoint = Stop(address, hop, internal=False)
            print(f"breakpoint {breakpoint.number} at {hop.label}")


class AtenStep(gdb.Command):
    """Go on to the next hop of the operators that aten-break has named: aten-step."""

    def __init__(self) -> None:
        """Register the command."""
        super().__init__("aten-step", gdb.COMMAND_RUNNING)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Continue to the next hop of this thread's."""
        if not Watched.hops:
            raise gdb.GdbError("name the operators to follow first: aten-break cat")
        stopped = {b.location for b in gdb.breakpoints() or () if isinstance(b, Stop)}
        hops = {a: hop for a, hop in Watched.hops.items() if f"*{a:#x}" not in stopped}
        breakpoints = [Stop(address, hop, internal=True) for address, hop in hops.items()]
        try:
            gdb.execute("continue")
        finally:
            for breakpoint in breakpoints:
                breakpoint.delete()


class AtenBacktrace(gdb.Command):
    """Show the hops that this thread is in, the innermost first, with their frames' numbers: aten-bt.

    Boxing, the interpreter and all else are left out. Where gdb has not read the symbols of torch
    (`set auto-solib-add off`), it does so now: a few seconds, once.
    """

    def __init__(self) -> None:
        """Register the command."""
        super().__init__("aten-bt", gdb.COMMAND_STACK)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Print one line a hop."""
        found = inspection.hops_of_stack()
        for number, hop in found:
            print(f"#{number:<4}{hop.label}  [{hop.note or hop.kind}]")
        if not found:
            print("this thread is in no operator")


class AtenKeys(gdb.Command):
    """Decode a DispatchKeySet: aten-keys EXPR.

    For example `aten-keys $rsi` at a redispatch whose operator returns a Tensor, `aten-keys $rdi` at others.
    """

    def __init__(self) -> None:
        """Register the command."""
        super().__init__("aten-keys", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Print the keys of the set, the first to be called first."""
        if not argument:
            raise gdb.GdbError("give a key set: aten-keys $rsi")
        value = gdb.parse_and_eval(argument)
        if value.type.strip_typedefs().code == gdb.TYPE_CODE_STRUCT:
            value = value[value.type.fields()[0]]
        keys = int(value.cast(gdb.lookup_type("unsigned long")))
        print(f"{keys:#x}: {', '.join(inspection.key_table().names(keys)) or 'no keys'}")


class AtenTensor(gdb.Command):
    """Show sizes, strides, dtype and device of an at::Tensor: aten-tensor EXPR.

    EXPR is the address of an at::Tensor: a `const at::Tensor&` in a register ($rdi, $rsi), or $rdi + 8 * i
    for number i of a list whose data $rdi points to. Calls functions of the process: not for core files.
    """

    def __init__(self) -> None:
        """Register the command."""
        super().__init__("aten-tensor", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Print one line."""
        if not argument:
            raise gdb.GdbError("give the address of an at::Tensor: aten-tensor $rdi")
        print(inspection.describe_tensor(inspection.address_of(argument)))


for command in (AtenPrefix, AtenBreak, AtenStep, AtenBacktrace, AtenKeys, AtenTensor):
    command()
