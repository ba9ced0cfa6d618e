"""Runs of the benchmark for its tests: in a process of its own, and made up."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import processes
from aten_ext.bench import document
from aten_ext.bench.case import Case
from aten_ext.bench.ceiling import Ceilings, Rate
from aten_ext.bench.ops import fused_adam
from aten_ext.bench.result import Result, Samples
from paths import DOCS, TESTS

BENCHMARKS = DOCS / "benchmarks"

ORIGIN = {
    "machine": {"cpu": "CPU X", "cores": 2, "load": 0.1, "gpu": None, "compute_capability": None},
    "versions": {"torch": "2.13.0", "python": "3.11.7", "driver": None},
    "date": "2026-01-02T03:04:05+00:00",
    "commit": "0123456789abcdef-dirty",
}
SETTINGS = {
    "ops": ["fused_adam"],
    "device": "cpu",
    "dtype": [],
    "filter": "",
    "full": False,
    "seconds": 1.5,
    "never_slower": None,
    "one_set": False,
    "threads": 2,
    "cache_bytes": 1,
}
CEILINGS = Ceilings(
    "cpu",
    1 << 27,
    1024,
    "highest",
    {"copy": Rate(0.04, 0.01, 9), "read_modify_write": Rate(0.05, 0.01, 9)},
    {"float32": Rate(0.1, 0.01, 9), "bfloat16": Rate(0.2, 0.01, 9)},
)


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return processes.python(
        "-m", "aten_ext", "bench", *arguments, env={**os.environ, **environment}, cwd=TESTS
    )


def complaints(stderr: str) -> list[str]:
    """What was said on stderr, less torch's remark about a CUDA build on a machine without a GPU."""
    return [line for line in stderr.splitlines() if "No CUDA runtime is found" not in line]


def made_up(ratios: dict[str, float], ceilings: Ceilings | None = CEILINGS) -> document.Document:
    """A document of fused_adam on the CPU: the ratio by name of the case, ours always 1000 us."""
    results = []
    for name, ratio in ratios.items():
        case = fused_adam.Step(name).case()
        samples = {"wall": Samples([1000.0 * ratio], [1000.0])}
        results.append(Result(case, "cpu", "fused", cache="exceeded", clocks=samples, measured=1))
    return json.loads(document.to_bytes(document.build(ORIGIN, SETTINGS, results, None, ceilings)))


def cost(nanoseconds: float) -> document.Document:
    """A document of the entry: its cost."""
    case = Case(
        "entry", "disabled", "float32", "_fused_adamw_", lambda d: lambda: None, bytes=224, footprint=128
    )
    samples = {"wall": Samples([1.0], [1.0 + nanoseconds / 1e3])}
    result = Result(case, "cpu", "disabled", clocks=samples, measured=1, limit_ns=20.0)
    return json.loads(document.to_bytes(document.build(ORIGIN, SETTINGS, [result], None)))


def write(path: Path, of: document.Document) -> str:
    """Write a document; returns its path as the command takes it."""
    path.write_bytes(document.to_bytes(of))
    return str(path)
