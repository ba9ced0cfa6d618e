"""The JSON document of a run, which is the format of ``docs/benchmarks/``.

Schema 2 added ``schema`` itself, ``ceilings`` (see ``ceiling``), and for each case ``sizes`` and
``of_ceiling``. A document without the key is of schema 1, and is read as one of schema 2 in which nothing of
that was measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aten_ext._cli import CommandError
from aten_ext.bench import registry
from aten_ext.bench.case import Case
from aten_ext.bench.ceiling import Ceilings
from aten_ext.bench.ops import fused_adam
from aten_ext.bench.result import CLOCKS, Result, spread

SCHEMA = 2

Document = dict[str, Any]


def build(
    origin: Mapping[str, object],
    settings: Mapping[str, object],
    results: Sequence[Result],
    never_slower: float | None,
    ceilings: Ceilings | None = None,
) -> Document:
    """The document of a run. ``origin`` is what ``machine.describe()`` found."""
    return {
        "schema": SCHEMA,
        **origin,
        "settings": dict(settings),
        "ceilings": ceilings.as_json() if ceilings else None,
        "cases": [encode_case(result, never_slower, ceilings) for result in results],
    }


def to_bytes(document: Document) -> bytes:
    """The document as text, keys in a fixed order."""
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def read(path: str | Path) -> Document:
    """A document that ``--json`` wrote, of this schema or an older one.

    Raises:
        CommandError: the file is not there or is something else.
    """
    try:
        document = json.loads(Path(path).read_text())
    except OSError as error:
        raise CommandError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"{str(path)!r} is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("cases"), list):
        raise CommandError(f"{str(path)!r} is not a document of 'python -m aten_ext bench --json'")
    schema = document.get("schema", 1)
    if schema not in (1, SCHEMA):
        raise CommandError(f"{str(path)!r} has schema {schema}; this version reads 1 and {SCHEMA}")
    return document if schema == SCHEMA else _from_schema_1(document)


def _from_schema_1(document: Document) -> Document:
    cases = [
        {
            **case,
            "sizes": dict(fused_adam.sizes_of(case["name"])) if case["op"] == "fused_adam" else {},
            **{side: {**case[side], "of_ceiling": None} for side in ("upstream", "ours")},
        }
        for case in document["cases"]
    ]
    settings = {"one_set": False, **document["settings"]}
    return {**document, "schema": SCHEMA, "settings": settings, "ceilings": None, "cases": cases}


def command(document: Document) -> str:
    """The command that a document came from, as far as it decides the numbers: without the file names."""
    settings = document["settings"]
    ops = settings["ops"]
    program = "scripts/bench" if set(ops) & set(registry.FOR_DEVELOPERS) else "python -m aten_ext bench"
    words = [program, *ops, f"--device {settings['device']}"]
    words += [f"--dtype {dtype}" for dtype in settings["dtype"]]
    words += [f"--filter {json.dumps(settings['filter'])}"] if settings["filter"] else []
    words += [flag for flag, key in (("--full", "full"), ("--one-set", "one_set")) if settings[key]]
    words += [f"--seconds {settings['seconds']:g}"]
    if settings["never_slower"] is not None:
        words += [f"--never-slower {settings['never_slower']:g}"]
    return " ".join(words)


def commit(document: Document) -> str:
    """The commit in short, and whether the files differed from it; nothing where it is not known."""
    head, _, dirty = str(document["commit"] or "").partition("-")
    return f"commit {head[:12]}{' with changes' if dirty else ''}" if head else ""


def label(case: Mapping[str, Any]) -> str:
    """The name of a case that is unique within its op."""
    return f"{case['name']} {case['dtype']}"


def headline(case: Mapping[str, Any]) -> str | None:
    """The clock that says most about the kernel, of those that have samples."""
    return next((clock for clock in CLOCKS if case["upstream"][f"{clock}_us"] is not None), None)


def encode_case(result: Result, never_slower: float | None, ceilings: Ceilings | None) -> dict[str, object]:
    """One entry of ``cases``; every key is always there, null where it does not apply."""
    case = result.case
    wall = result.clocks.get("wall")
    ceilings = ceilings if result.limit_ns is None else None  # the cost of an entry has no ceiling
    return {
        "op": case.op,
        "name": case.name,
        "device": result.device,
        "dtype": case.dtype,
        "override": case.override,
        "bytes": case.bytes,
        "flops": case.flops,
        "footprint": case.footprint,
        "sizes": dict(case.sizes),
        "series": case.series,
        "route": result.route or None,
        "reason": result.reason or result.reason_in_graph,
        "rotated": result.copies > 1,
        "copies": result.copies,
        "cache": result.cache,
        "upstream": _side(case, {name: s.upstream for name, s in result.clocks.items()}, ceilings),
        "ours": _side(case, {name: s.ours for name, s in result.clocks.items()}, ceilings),
        "ratio": rounded(result.ratio),
        "ratios": {
            name: rounded(result.clocks[name].ratio) if name in result.clocks else None for name in CLOCKS
        },
        "difference_ns": rounded(wall.difference_ns) if wall and result.limit_ns is not None else None,
        "limit_ns": result.limit_ns,
        "checked": result.checked,
        "passed": None if never_slower is None or result.skipped else not result.failures(never_slower),
        "measured": result.measured,
        "missing": dict(result.missing),
        "skipped": result.skipped,
        "details": dict(result.details) or None,
    }


def rate(amount: int, microseconds: float) -> float:
    """``amount`` bytes or FLOPs in ``microseconds``, as TB/s or TFLOP/s."""
    return amount / microseconds / 1e6


def _side(case: Case, clocks: Mapping[str, list[float]], ceilings: Ceilings | None) -> dict[str, object]:
    """Medians in microseconds, spreads (interquartile range / median), sample counts and achieved rates."""
    side: dict[str, object] = {}
    best: float | None = None
    for name in CLOCKS:
        values = clocks.get(name)
        middle = statistics.median(values) if values else None
        best = middle if best is None else best
        side[f"{name}_us"] = rounded(middle)
        side[f"{name}_spread"] = rounded(spread(values)) if values else None
        side[f"{name}_samples"] = len(values) if values else 0
    side["tb_per_s"] = rounded(rate(case.bytes, best)) if best and case.bytes else None
    side["tflop_per_s"] = rounded(rate(case.flops, best)) if best and case.flops else None
    share = ceilings.share(case.dtype, case.bytes, case.flops, best) if ceilings and best else None
    side["of_ceiling"] = rounded(share)
    return side


def rounded(value: float | None) -> float | None:
    """Five significant digits: finer than any spread, and the file's differences stay readable."""
    return None if value is None else float(f"{value:.5g}")
