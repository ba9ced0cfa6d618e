"""When cat runs on CPU: both sides of each edge of the policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ops.cat.reference import FEW, MANY, compare, ones

GRAIN = 32768
# (inputs, dim, threads, whether ours runs), one either side of each edge.
EDGES: list[tuple[Callable[[], list[torch.Tensor]], int, int, bool]] = [
    # Upstream's serial kernel, one row: 64 inputs of 512 bytes.
    (lambda: ones(FEW, 4), 0, 1, False),
    (lambda: ones(MANY, 4), 0, 1, True),
    (lambda: ones(70, 128), 0, 1, True),
    (lambda: ones(70, 129), 0, 1, False),
    # The same, many rows: 128 bytes.
    (lambda: ones(70, 4, 8), 1, 1, True),
    (lambda: ones(70, 4, 9), 1, 1, False),
    (lambda: ones(FEW, 4, 4), 1, 1, False),
    # Iterators with threads: 2048 bytes, GRAIN elements of the result, no input of GRAIN.
    (lambda: ones(64, 512), 0, 2, True),
    (lambda: ones(64, 512), 0, 1, False),
    (lambda: ones(65, 513), 0, 2, False),
    (lambda: ones(64, 511), 0, 2, False),
    (lambda: ones(FEW, 521), 0, 2, False),
    (lambda: ones(512, 512), 0, 2, True),
    (lambda: ones(513, 512), 0, 2, False),  # beyond 1 MiB: 512 bytes, 4 MiB
    (lambda: ones(2049, 128), 0, 2, True),
    (lambda: ones(2049, 129), 0, 2, False),
    (lambda: ones(8192, 128), 0, 2, True),
    (lambda: ones(8193, 128), 0, 2, False),
    (lambda: [*ones(70, 16), *ones(1, GRAIN - 1)], 0, 2, True),
    (lambda: [*ones(70, 16), *ones(1, GRAIN)], 0, 2, False),
    # Iterators without: any dtype but floating-point in many rows; 32 KiB, then 64 inputs of 1024 bytes.
    (lambda: ones(2, 1, 2048, dtype=torch.int64), 1, 1, True),
    (lambda: ones(2, 1, 2049, dtype=torch.int64), 1, 1, False),
    (lambda: ones(1, 1, 2048, dtype=torch.int64), 1, 1, True),
    (lambda: ones(70, 4, 32, dtype=torch.int64), 1, 1, True),
    (lambda: ones(70, 4, 33, dtype=torch.int64), 1, 1, False),
    (lambda: ones(FEW, 4, 32, dtype=torch.int64), 1, 1, False),
    # A skipped input, in floating point.
    (lambda: [torch.empty(0), *ones(70, 4, 64)], 1, 1, True),
    (lambda: [torch.empty(0), *ones(70, 4, 65)], 1, 1, False),
    # Decided by the first input: a large one in front of many small ones is given away.
    (lambda: [*ones(1, 1000), *ones(700, 4)], 0, 1, False),
    (lambda: [*ones(70, 4), *ones(1, 1000)], 0, 1, True),
    (lambda: ones(2, 4, dtype=torch.int64), 0, 1, False),
    (lambda: [*ones(1, 8, 511, dtype=torch.int64), *ones(1, 8, 1, dtype=torch.int64)], 1, 1, True),
]


@pytest.mark.parametrize(("make", "dim", "threads", "runs"), EDGES)
def test_edges_on_cpu(make: Callable[[], list[torch.Tensor]], dim: int, threads: int, runs: bool) -> None:
    tensors = make()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert (compare(tensors, dim, "cpu") == "") == runs
    finally:
        torch.set_num_threads(before)


def test_an_input_that_upstream_copies_with_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tensors = [*ones(70, 16), *ones(1, GRAIN)]
        assert compare(tensors, 0, "cpu") == "input that upstream copies with threads"
    finally:
        torch.set_num_threads(before)
