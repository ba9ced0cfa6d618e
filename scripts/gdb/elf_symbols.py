"""Reads the function symbols of an ELF file, without gdb's symbol tables: those of libtorch take too long."""

from __future__ import annotations

import bisect
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _DYNSYM, _PT_LOAD, _STT_FUNC = 2, 11, 1, 2


class ElfFile:
    """One 64-bit little-endian ELF file and its functions."""

    def __init__(self, path: str | Path) -> None:
        """Find the symbol table: `.symtab` where there is one, `.dynsym` otherwise."""
        self.path = str(path)
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
        (program_headers, sections) = struct.unpack_from("<QQ", self._data, 32)
        program_count, _, section_count = struct.unpack_from("<HHH", self._data, 56)
        headers = [_SECTION.unpack_from(self._data, sections + 64 * i) for i in range(section_count)]
        tables = {header[1]: header for header in headers if header[1] in (_SYMTAB, _DYNSYM)}
        table = tables.get(_SYMTAB) or tables[_DYNSYM]
        self._begin, self._end = table[4], table[4] + table[5]
        self._names = headers[table[6]][4]
        segments = [_SEGMENT.unpack_from(self._data, program_headers + 56 * i) for i in range(program_count)]
        # The address of file offset 0. Other segments may tell another one: a tool that has edited the file
        # may have added one whose address and offset are further apart.
        self.first_address = next(s[3] for s in segments if s[0] == _PT_LOAD and s[2] == 0)
        self._sorted: list[tuple[int, int, int]] = []

    def functions(self) -> Iterator[tuple[int, int, int]]:
        """(address, size, where the name is) of each function that is defined here."""
        with memoryview(self._data) as data, data[self._begin : self._end] as table:
            for name, info, _, section, value, size in _SYMBOL.iter_unpack(table):
                if info & 15 == _STT_FUNC and section:
                    yield value, size, self._names + name

    def name(self, where: int) -> str:
        """The mangled name that stands at `where`."""
        return self._data[where : self._data.find(b"\0", where)].decode()

    def matching(self, prefixes: tuple[bytes, ...]) -> Iterator[tuple[int, str]]:
        """(address, mangled name) of the functions whose names start with one of `prefixes`."""
        longest = max(map(len, prefixes))
        data = self._data
        for value, _, where in self.functions():
            if data[where : where + longest].startswith(prefixes):
                yield value, self.name(where)

    def at(self, address: int) -> str | None:
        """The mangled name of the function that holds `address`."""
        if not self._sorted:
            self._sorted = sorted(self.functions())
        index = bisect.bisect_right(self._sorted, (address, 1 << 64, 0)) - 1
        if index < 0:
            return None
        value, size, where = self._sorted[index]
        return self.name(where) if value <= address < value + max(size, 1) else None
