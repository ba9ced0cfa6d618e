"""Kinds of calls that upstream is as fast at: declined by the shipped tables, on either side of each edge."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

import aten_ext
from aten_ext import _measured_tables as tables

EXPANDED = "expanded input"
MIXED = "inputs of different layouts that upstream reads as fast"
ONE = "one input that is not contiguous"
CONVERTED = "large inputs that upstream converts as fast"
FAR_APART = "short parts of rows that lie apart"
LONG = "one input much longer than the others"
VECTORS = "strided vectors that upstream reads as fast"


def meta(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(sizes, device="meta", dtype=dtype)


def wide(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A narrowed matrix."""
    return meta(rows, columns + 1, dtype=dtype)[:, :columns]


def parts(
    rows: int, columns: int, of: int, count: int = 3, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """The first columns of several matrices."""
    return [meta(rows, of, dtype=dtype)[:, :columns] for _ in range(count)]


def parts_of_one(rows: int) -> list[torch.Tensor]:
    matrix = meta(rows, 50)
    return [matrix[:, first : first + 4] for first in (0, 4, 8)]


def route(tensors: list[torch.Tensor], dim: int) -> str:
    answer = aten_ext.explain("cat", tensors, dim, key="CUDA")
    return answer.reason or answer.route


CASES: list[tuple[str, Callable[[], list[torch.Tensor]], int]] = [
    (EXPANDED, lambda: [meta(4, 1).expand(4, 9), meta(4, 9)], 1),
    (EXPANDED, lambda: [meta(1, 4096).expand(4096, 4096)] * 64, 0),
    ("fused", lambda: [meta(1, 4096).expand(4096, 4096)] * 65, 0),
    (EXPANDED, lambda: [meta(1, 4096).expand(64, 4096), *[meta(1, 4096).expand(15, 4096)] * 64], 0),
    ("fused", lambda: [meta(1, 4095).expand(64, 4095), *[meta(1, 4095).expand(15, 4095)] * 64], 0),
    ("fused", lambda: [meta(1, 9000).half().expand(n, 9000) for n in (64, *[15] * 64)], 0),
    ("fused", lambda: [wide(64, 4096), *[wide(15, 4096)] * 64], 0),
    ("fused", lambda: [meta(1, 4096).expand(1, 4096)], 0),
    ("fused", lambda: [meta(1, 2, 1, 2, 2).expand(3, 2, 1, 2, 2)] * 2, 1),
    (EXPANDED, lambda: [meta(1, 1, 2, 512, 512).expand(2, 1, 2, 512, 512)] * 2, 1),
    ("fused", lambda: [meta(1, 1, 2, 512, 511).expand(2, 1, 2, 512, 511)] * 2, 1),
    ("fused", lambda: [meta(2, 1, 4, 512, 512).transpose(3, 4)] * 2, 1),
    ("fused", lambda: [meta(4, 1).expand(4, 9), meta(4, 9, dtype=torch.float64)], 1),
    (CONVERTED, lambda: [meta(2048, 1).expand(2048, 2048), meta(2048, 2048, dtype=torch.float64)], 1),
    (CONVERTED, lambda: [meta(2048, 2048).t(), meta(2048, 2048, dtype=torch.float64)], 1),
    (CONVERTED, lambda: [meta(4096, 3000).t(), meta(3000, 4096, dtype=torch.float64)], 1),
    (CONVERTED, lambda: [meta(1, 4096).expand(256, 4096), *[meta(256, 4096).half()] * 8], 0),
    ("fused", lambda: [meta(1, 4095).expand(256, 4095), *[meta(256, 4095).half()] * 8], 0),
    ("fused", lambda: [meta(2048, 2048).t(), meta(2047, 2048, dtype=torch.float64)], 0),
    ("fused", lambda: [wide(2048, 2048), meta(2048, 2048, dtype=torch.float64)], 1),
    ("fused", lambda: [meta(2048, 2048), meta(2048, 2048, dtype=torch.float64)], 1),
    (MIXED, lambda: [meta(16, 768), wide(16, 768)], 0),
    ("fused", lambda: [meta(16, 769), wide(16, 769)], 0),
    ("fused", lambda: [wide(16, 768), wide(16, 768)], 0),
    ("fused", lambda: [meta(2, 16), *[wide(2, 16)] * 16], 0),
    (MIXED, lambda: [meta(4096, 768, dtype=torch.int64), wide(4096, 768, torch.int64)], 0),
    (ONE, lambda: [wide(16, 1536)], 0),
    (ONE, lambda: [wide(1600, 1537)], 0),
    (FAR_APART, lambda: parts(50000, 4, of=50), 1),
    (FAR_APART, lambda: [meta(5, 10000, 50)[..., 9:13] for _ in range(3)], 2),
    (FAR_APART, lambda: parts(50000, 1, of=50), 1),
    ("fused", lambda: parts(49999, 4, of=50), 1),
    ("fused", lambda: parts(50000, 5, of=50), 1),
    ("fused", lambda: parts(50000, 4, of=49), 1),
    (FAR_APART, lambda: parts(120000, 2, of=50, count=2), 1),
    ("fused", lambda: parts(119999, 2, of=50, count=2), 1),
    ("fused", lambda: parts(120000, 3, of=50, count=2), 1),
    ("fused", lambda: parts(10000, 4, of=50, count=17), 1),
    # Near rows: one element of 2 bytes, or four of up to 4.
    *(
        (expected, functools.partial(parts, rows, columns, of, count, dtype), 1)
        for expected, rows, columns, of, count, dtype in (
            (FAR_APART, 250000, 1, 7, 8, torch.bfloat16),
            (FAR_APART, 250000, 1, 20, 8, torch.bfloat16),
            ("fused", 250000, 1, 6, 8, torch.bfloat16),
            ("fused", 250000, 1, 21, 8, torch.bfloat16),
            ("fused", 250000, 1, 10, 8, torch.uint8),
            ("fused", 250000, 2, 10, 8, torch.bfloat16),
            ("fused", 249999, 1, 10, 8, torch.bfloat16),
            (FAR_APART, 340000, 1, 10, 6, torch.bfloat16),
            ("fused", 410000, 1, 10, 5, torch.bfloat16),
            (FAR_APART, 230000, 1, 10, 9, torch.bfloat16),
            ("fused", 230000, 1, 10, 10, torch.bfloat16),
            (FAR_APART, 100000, 4, 5, 8, torch.float32),
            (FAR_APART, 100000, 4, 18, 8, torch.float32),
            (FAR_APART, 100000, 4, 10, 9, torch.bfloat16),
            ("fused", 100000, 4, 19, 8, torch.float32),
            ("fused", 100000, 4, 9, 8, torch.bfloat16),
            ("fused", 100000, 3, 10, 9, torch.bfloat16),
            ("fused", 100000, 5, 10, 9, torch.float32),
            ("fused", 100000, 4, 10, 7, torch.float32),
            ("fused", 87499, 4, 10, 8, torch.float32),
            (FAR_APART, 87500, 4, 10, 8, torch.float32),
            (FAR_APART, 237500, 4, 10, 8, torch.float32),
            ("fused", 237501, 4, 10, 8, torch.float32),
            # More inputs than one launch of runs takes.
            (FAR_APART, 23530, 1, 50, 17, torch.float32),
            ("fused", 23529, 1, 50, 17, torch.float32),
            ("fused", 23530, 1, 49, 17, torch.float32),
            (FAR_APART, 6250, 1, 50, 64, torch.float32),
            ("fused", 6250, 1, 50, 65, torch.float32),
            ("fused", 50000, 2, 50, 17, torch.float32),
            (FAR_APART, 50000, 2, 100, 17, torch.bfloat16),
        )
    ),
    (VECTORS, lambda: [meta(1024)[::2]] * 2, 0),
    ("fused", lambda: [meta(1026)[::2]] * 2, 0),
    ("fused", lambda: [meta(1024)[::2]] * 3, 0),
    # Of 17 inputs and more, in vectors of 16 bytes, 600 to 3,000 a multiprocessor if all were as long.
    (LONG, lambda: [meta(4, 4660), *[meta(4, 944)] * 16], 1),
    ("fused", lambda: [meta(4, 4960), *[meta(4, 988)] * 15], 1),
    ("fused", lambda: [meta(4, 4660), *[meta(4, 948)] * 16], 1),
    ("fused", lambda: [meta(4, 4656), *[meta(4, 940)] * 16], 1),
    ("fused", lambda: [meta(4, 4660), meta(4, 942), *[meta(4, 944)] * 15], 1),
    ("fused", lambda: [meta(4, 4660), *[wide(4, 944)] * 16], 1),
    ("fused", lambda: [meta(4, 4660).half(), *[meta(4, 944)] * 16], 1),
    (LONG, lambda: [meta(93176), *[meta(0)] * 5, *[meta(18924)] * 16], 0),
    ("fused", lambda: [meta(93180), *[meta(18924)] * 16], 0),
    (LONG, lambda: [meta(2, 128, 14, 14).half(), *[meta(2, 24, 14, 14).half()] * 20], 1),
    (VECTORS, lambda: [meta(50000, dtype=torch.int64)[::2]] * 12, 0),
    ("fused", lambda: [meta(50000, dtype=torch.int64)[::2]] * 13, 0),
    ("fused", lambda: [meta(49998, dtype=torch.int64)[::2]] * 12, 0),
    ("fused", lambda: [meta(50000)[::2]] * 12, 0),
    (VECTORS, lambda: [meta(2100000, dtype=torch.int64)[::2]] * 2, 0),
    ("fused", lambda: [meta(2100002, dtype=torch.int64)[::2]] * 2, 0),
    (VECTORS, lambda: [meta(300000)[::2]] * 2, 0),
    ("fused", lambda: [meta(299998)[::2]] * 2, 0),
    (VECTORS, lambda: [meta(4200000)[::2]] * 2, 0),
    ("fused", lambda: [meta(4200002)[::2]] * 2, 0),
    ("fused", lambda: [meta(300000)[::2]] * 3, 0),
    ("fused", lambda: [meta(300000, dtype=torch.bfloat16)[::2]] * 2, 0),
    (MIXED, lambda: [meta(1024)[::2], meta(512)], 0),
    ("fused", lambda: [meta(512)[1:]] * 2, 0),
    ("fused", lambda: [meta(512, 1)[::2]] * 2, 0),
    ("fused", lambda: parts(50000, 4, of=50), 0),
    ("fused", lambda: parts_of_one(50000), 1),
    ("fused", lambda: [meta(50000, 100)[:, :8:2] for _ in range(3)], 1),
    ("fused", lambda: [meta(3, 5)], 0),
    (ONE, lambda: [meta(2, 2, 2, 8, 1, dtype=torch.bfloat16).transpose(2, 3)], 2),
    ("fused", lambda: [meta(2, 2, 2, 8, 1, dtype=torch.bfloat16).transpose(2, 3)] * 2, 2),
    ("fused", lambda: [meta(711, dtype=torch.bfloat16)] * 8, 0),
    ("fused", lambda: [meta(3, dtype=torch.uint8)] * 16, 0),
    ("fused", lambda: [meta(5, 3, dtype=torch.uint8)] * 2, 1),
]


@pytest.mark.usefixtures("crossover")
@pytest.mark.parametrize("index", range(len(CASES)))
def test_edges(index: int) -> None:
    expected, make, dim = CASES[index]
    assert route(make(), dim) == expected


@pytest.mark.usefixtures("crossover")
@pytest.mark.parametrize("kind", range(3))
def test_a_table_decides(kind: int) -> None:
    """A user's own says that a kind is ours."""
    percent = torch.full((3,), 106, dtype=torch.uint8)
    percent[kind] = 107
    torch.ops.aten_ext.add_table("cat", "NVIDIA H200", 90, 132, True, percent)
    try:
        for reason, place in ((EXPANDED, 0), (MIXED, 1), (ONE, 2)):
            make, dim = next((make, dim) for expected, make, dim in CASES if expected == reason)
            assert route(make(), dim) == ("fused" if place == kind else reason)
    finally:
        torch.ops.aten_ext.remove_table("cat", "NVIDIA H200", 132)


def test_shipped_tables_have_it() -> None:
    for path in tables.SHIPPED.glob("*.json"):
        percent = tables.decode(path.read_bytes()).percent["cat"]
        assert percent.shape == (3,) and (percent > 0).all()
