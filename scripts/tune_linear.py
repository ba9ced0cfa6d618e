#!/usr/bin/env python3
"""Measures where upstream's linear layers are faster than the kernel for few rows, and writes the table.

``measure`` times upstream (``aten_ext.disabled()``) and the kernel wherever the rule takes it, in turns, on
the GPU at hand: CUDA-graph replays over more weights than the L2 holds. It writes the cells where the kernel
is not faster by the margin. ``render`` makes ``crossover_table.h`` from the JSON. ``measure`` only sees what
the rule takes now: delete rows first to measure their cells again.

    python scripts/tune_linear.py measure --json aten_ext/ops/linear/crossover_h200.json
    python scripts/tune_linear.py render
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "aten_ext" / "ops" / "linear"
JSON, HEADER = FOLDER / "crossover_h200.json", FOLDER / "crossover_table.h"
DTYPES = {"float32": "true", "16 bits": "false"}

ROWS = [(1, 1), (2, 8), (9, 16), (17, 32), (33, 64)]
SIZES = [64 << i for i in range(10)]
MARGIN = 0.98  # of upstream's time: a cell that the kernel does not beat by as much is upstream's
ROTATED_BYTES = 256 << 20
MAX_BYTES = 512 << 20  # of a weight
REPLAYS = 5


def render(table: dict[str, Any]) -> str:
    """The header that the rule is compiled with."""
    lines = [
        "// Written by scripts/tune_linear.py from crossover_h200.json. Do not edit.",
        "#pragma once",
        "",
        '#include "ops/linear/crossover_cell.h"',
        "",
        "namespace aten_ext {",
        "",
        f"// {table['gpu']}, torch {table['torch']}: {table['unit']}.",
        "// clang-format off",
        "inline constexpr CrossoverCell kCrossoverCells[] = {",
        "    // is_float, m from, m to, n, k, upstream, ours",
    ]
    for row in table["rows"]:
        (first, last), n, k = row["m"], row["n"], row["k"]
        times = f"{row['upstream']:.2f}f, {row['ours']:.2f}f"
        lines.append(f"    {{{DTYPES[row['dtype']]}, {first}, {last}, {n}, {k}, {times}}},")
    return "\n".join([*lines, "};", "// clang-format on", "", "}  // namespace aten_ext", ""])


def measure(gpu_name: str, torch_version: str) -> dict[str, Any]:
    """The table of the GPU at hand."""
    import torch

    import aten_ext

    def time_of(m: int, n: int, k: int, dtype: torch.dtype) -> float:
        """Median us of a product with a bias."""
        copies = max(1, min(64, ROTATED_BYTES // (n * k * dtype.itemsize)))
        weights = [torch.randn(n, k, device="cuda", dtype=dtype) for _ in range(copies)]
        x, bias = torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(n, device="cuda", dtype=dtype)
        calls = max(copies, 16)

        def call() -> None:
            for i in range(calls):
                torch.addmm(bias, x, weights[i % copies].t())

        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        times = []
        for _ in range(REPLAYS + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / calls)
        return statistics.median(times[1:])

    rows = []
    cells = itertools.product(DTYPES, ROWS, SIZES, SIZES)
    for name, (first, last), n, k in cells:
        dtype = torch.float32 if name == "float32" else torch.bfloat16
        if n * k * dtype.itemsize > MAX_BYTES:
            continue
        bias, x, weight = (torch.empty(s, device="meta", dtype=dtype) for s in ((n,), (last, k), (n, k)))
        if not aten_ext.explain("addmm", bias, x, weight.t(), key="CUDA").plan.startswith("few rows"):
            continue
        ours = time_of(last, n, k, dtype)
        with aten_ext.disabled():
            upstream = time_of(last, n, k, dtype)
        if ours > MARGIN * upstream:
            row = {"dtype": name, "m": [first, last], "n": n, "k": k}
            rows.append({**row, "upstream": round(upstream, 2), "ours": round(ours, 2)})
            print(rows[-1], file=sys.stderr, flush=True)
    unit = "us on the GPU, CUDA-graph replays, weights read from memory"
    return {"gpu": gpu_name, "torch": torch_version, "unit": unit, "rows": rows}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=["measure", "render"])
    parser.add_argument("--json", type=Path, default=JSON)
    arguments = parser.parse_args()
    if arguments.what == "render":
        HEADER.write_text(render(json.loads(arguments.json.read_text())))
        return 0
    import torch

    if not torch.cuda.is_available():
        print("tune_linear: expected a CUDA device, got none", file=sys.stderr)
        return 1
    table = measure(torch.cuda.get_device_name(), torch.__version__)
    arguments.json.write_text(json.dumps(table, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
