"""Decodes a DispatchKeySet with a table made from the torch that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping


class KeyTable:
    """Names of dispatch keys by their bits, which differ between versions of torch."""

    def __init__(self, bits: Mapping[str, int], backend_mask: int) -> None:
        """Take the bits of each key by name, and the part of the word that stands for backends."""
        self._backend_mask = backend_mask
        self._names: dict[int, str] = {}
        for name, value in bits.items():
            self._names.setdefault(value, name)

    def names(self, keys: int) -> list[str]:
        """The keys of a set by name, the one that the dispatcher goes to first in front."""
        keys &= (1 << 64) - 1
        backends = [bit for bit in _bits(keys & self._backend_mask)]
        found = []
        for functionality in _bits(keys & ~self._backend_mask):
            own = [self._names[functionality | b] for b in backends if functionality | b in self._names]
            found += own or [self._names.get(functionality, f"bit {functionality.bit_length() - 1}")]
        return found

    def next_key(self, keys: int) -> str:
        """The key that the dispatcher goes to with this set."""
        return (self.names(keys) or ["Undefined"])[0]


def _bits(word: int) -> list[int]:
    """The bits that are set, the highest first."""
    return [1 << i for i in range(63, -1, -1) if word >> i & 1]
