"""Measured tables: where a family's kernels are faster than upstream's on a GPU. Files, and what reads them.

Tables of some GPUs are shipped in the folder ``tables`` of this package. ``python -m aten_ext tune`` writes a
user's own, which come before them, to ``cache_folder()``. A file that cannot be used is one warning, and is
ignored.
"""

from __future__ import annotations

import base64
import json
import math
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SCHEMA = 2
SHIPPED = Path(__file__).parent / "tables"


class TableError(Exception):
    """Why a file is no table for this version, in a few words."""


@dataclass(frozen=True)
class Gpu:
    """Which GPU a table is of."""

    name: str
    """As the driver gives it."""
    capability: int
    """Compute capability times 10."""
    multiprocessors: int

    @property
    def file_name(self) -> str:
        """Of a file with its tables."""
        words = "".join(c.lower() if c.isalnum() else " " for c in self.name).split()
        return f"{'-'.join(words)}-sm{self.capability}-{self.multiprocessors}.json"


@dataclass(frozen=True)
class Table:
    """The tables of a GPU."""

    gpu: Gpu
    torch: str
    """The release that upstream's kernels were of."""
    percent: Mapping[str, Tensor]
    """Family -> upstream's time / ours in percent, uint8; 0: not measured. The family's rule has the axes."""


def cache_folder() -> Path:
    """Where a user's own tables lie: ``$ATEN_EXT_TABLES``, or the user's cache folder."""
    if given := os.environ.get("ATEN_EXT_TABLES"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "aten_ext" / "tables"


def encode(table: Table) -> bytes:
    """The text of a table's file."""
    families = {}
    for family, percent in table.percent.items():
        data = zlib.compress(percent.contiguous().numpy().tobytes(), 9)
        families[family] = {"shape": list(percent.shape), "percent": base64.b64encode(data).decode()}
    document = {
        "schema": SCHEMA,
        "gpu": vars(table.gpu),
        "torch": table.torch,
        "unit": "upstream's time / aten_ext's, in percent; 0: not measured; uint8, zlib, base64",
        "families": families,
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def decode(text: bytes) -> Table:
    """The table that a file holds, of the families of this build.

    Raises:
        TableError: it is broken, or of another version.
    """
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise TableError(f"expected schema {SCHEMA}: measure it again")
        gpu = Gpu(**document["gpu"])
        percent = {
            family: _percent(family, packed)
            for family, packed in document["families"].items()
            if family in torch.ops.aten_ext.table_families()
        }
        return Table(gpu, str(document["torch"]), percent)
    except TableError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise TableError(f"it is broken ({type(error).__name__}: {error})") from error


def _percent(family: str, packed: Mapping[str, Any]) -> torch.Tensor:
    shape = list(torch.ops.aten_ext.table_shape(family))
    if packed["shape"] != shape:
        raise TableError(f"{family} has the shape {packed['shape']}, expected {shape}: measure it again")
    data = zlib.decompress(base64.b64decode(packed["percent"], validate=True))
    if len(data) != math.prod(shape):
        raise TableError(f"{family} has {len(data)} cells, expected {math.prod(shape)}")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(shape)


def register(table: Table, *, of_user: bool) -> None:
    """Let the rules read a table from now on."""
    gpu = table.gpu
    for family, percent in table.percent.items():
        torch.ops.aten_ext.add_table(family, gpu.name, gpu.capability, gpu.multiprocessors, of_user, percent)


def files() -> Iterator[tuple[Path, bool]]:
    """(file, whether it is the user's), the shipped ones first."""
    for folder, of_user in ((SHIPPED, False), (cache_folder(), True)):
        try:
            found = sorted(folder.glob("*.json"))
        except OSError:
            continue
        yield from ((path, of_user) for path in found)


def load() -> None:
    """Register every table that there is; a warning for each that cannot be used."""
    for path, of_user in files():
        try:
            register(decode(path.read_bytes()), of_user=of_user)
        except (TableError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            warnings.warn(f"[aten_ext] the table {os.fspath(path)!r} is ignored: {why}", stacklevel=2)


def source(family: str, device: torch.device) -> str:
    """Which table decides for a device's GPU: "measured on this GPU", "nearest: ...", "no table"."""
    return str(torch.ops.aten_ext.table_source(family, device))
