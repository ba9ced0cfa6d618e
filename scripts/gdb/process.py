"""The process under gdb: its libraries, registers and memory, without gdb's symbol tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import cuda_calls
import gdb
from elf_symbols import ElfFile
from hops import PREFIXES, Hop, Wanted, classify

LIBRARIES = re.compile(r"/(libtorch_(cpu|cuda|python)\.so|_kernels[^/]*\.so)$")
RUNTIME = re.compile(r"/(libcudart\.so[^/]*|_kernels[^/]*\.so)$")  # linked dynamically or statically

# Registers of the calling convention, by gdb's name of the architecture.
_ARGUMENTS = {"i386:x86-64": ("rdi", "rsi", "rdx", "rcx"), "aarch64": ("x0", "x1", "x2", "x3")}


class NoProcess(gdb.GdbError):
    """There is no process to look at."""


@cache
def elf(path: str) -> ElfFile:
    """The symbols of a library, read once."""
    return ElfFile(path)


def libraries(pattern: re.Pattern[str] = LIBRARIES) -> dict[str, int]:
    """Path and load address of the libraries of the process whose paths match `pattern`."""
    pid = gdb.selected_inferior().pid
    if not pid:
        raise NoProcess("there is no process: `run` the program or `attach` to it first")
    found: dict[str, int] = {}
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[2] == "00000000" and pattern.search(fields[5].strip()):
                path = fields[5].strip()
                found.setdefault(path, int(fields[0].partition("-")[0], 16) - elf(path).first_address)
    return found


def hops(wanted: Wanted) -> dict[int, Hop]:
    """The functions of the process on the paths of the wanted operators, by address."""
    functions: dict[int, Hop] = {}
    functors: dict[int, Hop] = {}
    for path, base in libraries().items():
        for value, mangled in elf(path).matching(PREFIXES):
            hop = classify(mangled)
            if hop is not None and wanted.has(hop):
                found = functors if mangled.startswith("_ZN3c10") else functions
                found.setdefault(base + value, hop)
    own = {hop.label for hop in functions.values()}
    return functions | {a: hop for a, hop in functors.items() if hop.label not in own}


def runtime_functions() -> Iterator[tuple[int, str]]:
    """Address and name of the functions of the CUDA runtime: their own, not those of stubs elsewhere."""
    for path, base in libraries(RUNTIME).items():
        for value, name in elf(path).matching((b"cuda", b"__cuda")):
            if cuda_calls.is_runtime(name):
                yield base + value, name


def function_at(address: int) -> str | None:
    """The mangled name of the function that holds an address of one of the libraries."""
    best = max(((base, path) for path, base in libraries().items() if base <= address), default=None)
    return elf(best[1]).at(address - best[0]) if best else None


def function_address(library: str, name: str) -> int:
    """Where a C function of a library is."""
    for path, base in libraries().items():
        if f"/{library}." in path:
            for value, found in elf(path).matching((name.encode(),)):
                if found == name:
                    return base + value
    raise gdb.GdbError(f"{library} has no function {name}: is torch loaded, and 2.11 or newer?")


def library_of(address: int) -> str | None:
    """The shared library that an address belongs to."""
    with open(f"/proc/{gdb.selected_inferior().pid}/maps") as maps:
        for line in maps:
            begin, _, end = line.split()[0].partition("-")
            if int(begin, 16) <= address < int(end, 16):
                path = line.split(maxsplit=5)[5:]
                return path[0].strip() if path and ".so" in path[0] else None
    return None


def call_function(function: int, *arguments: int) -> int:
    """Call a C function of the process, which stands, with integers or addresses."""
    before = gdb.parameter("scheduler-locking")
    try:
        gdb.execute("set scheduler-locking on")
    except gdb.error:  # cuda-gdb cannot, and lets the other threads run meanwhile
        before = None
    try:
        types = ", ".join(["unsigned long"] * len(arguments))
        values = ", ".join(f"(unsigned long){argument:#x}" for argument in arguments)
        return int(gdb.parse_and_eval(f"((int (*)({types})) {function:#x})({values})"))
    except gdb.error as error:
        raise gdb.GdbError(f"expected gdb to call a function of the program, got: {error}") from error
    finally:
        if before is not None:
            gdb.execute(f"set scheduler-locking {before}")


def pointer_at(address: int) -> int:
    """The pointer that stands at an address."""
    return int(gdb.parse_and_eval(f"*(unsigned long*){address:#x}"))


def demangle(mangled: str) -> str:
    """The C++ name of a symbol; other names, such as those of cuBLAS's kernels, as they are."""
    try:
        return gdb.execute(f"demangle -l c++ -- {mangled}", to_string=True).strip()
    except gdb.error:
        return mangled


def register(name: str) -> int:
    """A register of the newest frame, unsigned."""
    return int(gdb.parse_and_eval(f"(unsigned long)${name}"))


def argument(index: int) -> int:
    """One of the first four integer arguments, at the first instruction of a function."""
    return register(_ARGUMENTS[_architecture()][index])


def place_of_result() -> int:
    """Where a function that returns an object in memory will put it, at its first instruction."""
    return register("x8") if _architecture() == "aarch64" else argument(0)


def return_address() -> int:
    """Where the function goes back to, at its first instruction."""
    if _architecture() == "aarch64":
        return register("x30")
    return int(gdb.parse_and_eval("*(unsigned long*)$rsp"))


def stack_before_return() -> int:
    """What the stack pointer was at the first instruction of the function that has just returned."""
    return register("sp") - (0 if _architecture() == "aarch64" else 8)


def string(address: int) -> str:
    """The C string at an address."""
    return gdb.parse_and_eval(f"(char*){address}").string()


def key_set(by_value: bool | None) -> int:
    """The DispatchKeySet at the first instruction of a `redispatch`.

    It is the first argument; where the operator returns an object by value, x86-64 passes the place for that
    object in front of it. That place is on the stack, which is how the rest (None) are told apart.
    """
    if _architecture() == "aarch64":
        return argument(0)  # the place for the result is in x8
    if by_value is None:
        by_value = abs(argument(0) - register("rsp")) < 1 << 26
    return argument(1 if by_value else 0)


@cache
def _architecture() -> str:
    return gdb.selected_inferior().architecture().name()
