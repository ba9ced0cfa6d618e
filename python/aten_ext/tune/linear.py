"""The table of the linear layers: upstream's time / the few-rows kernel's, over dtype, layout and size.

Each cell is a product of its own, timed as CUDA-graph replays, upstream and ours in turns. Weights rotate
past the L2 where 64 of them can. The axes are those of ``aten_ext/ops/linear/crossover.h``.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import aten_ext

ROWS = tuple(1 << i for i in range(7))
COLUMNS = tuple((1 << i // 2) if i % 2 == 0 else (3 << i // 2) // 2 for i in range(29))
DEPTHS = tuple((8 << i // 2) if i % 2 == 0 else (12 << i // 2) for i in range(23))
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
"""fp16 is measured where rows are no whole vectors, and elsewhere taken for bf16."""


@dataclass(frozen=True)
class Layout:
    """How a weight lies, and the sizes that are measured for an axis' values.

    ``n`` and ``k`` give a size for an axis' value; None: the value, rounded up to whole vectors of 16 bytes.
    """

    row_major: bool = False
    n: Callable[[int], int] | None = None
    k: Callable[[int], int] | None = None

    @property
    def is_usual(self) -> bool:
        """Whether it is [n, k], and n and k whole vectors."""
        return self == Layout()

    @property
    def has_ragged_sizes(self) -> bool:
        """Whether n or k is no multiple of a vector."""
        return self.n is not None or self.k is not None

    @property
    def has_ragged_rows(self) -> bool:
        """Whether rows of mat1 or of the weight are no whole vectors."""
        return (self.n if self.row_major else self.k) is not None


def _odd(size: int) -> int:
    return size | 1


def _even(size: int) -> int:
    return size + 2 if size > 2 else 2


LAYOUTS: dict[str, Layout] = {
    "transposed": Layout(),
    "transposed odd": Layout(n=_odd),
    "row-major": Layout(row_major=True),
    "transposed even": Layout(n=_even),
    "transposed words": Layout(n=_even, k=_even),
    "transposed halves": Layout(n=_odd, k=_odd),
    "row-major words": Layout(row_major=True, n=_even),
    "row-major halves": Layout(row_major=True, n=_odd),
}
"""In the order of ``crossover::Layout``."""

MAX_WEIGHT_BYTES = 512 << 20
MAX_CALLS = 64
GRAPH_SECONDS = 2e-4
REPLAYS = 3


@dataclass(frozen=True)
class Cell:
    """A place in the table, and the layer that is measured for it."""

    place: tuple[int, int, int, int, int, int]
    dtype: torch.dtype
    has_bias: bool
    layout: str
    m: int
    n: int
    k: int

    @property
    def weight_bytes(self) -> int:
        """Of one weight."""
        return self.n * self.k * self.dtype.itemsize


def cells() -> Iterator[Cell]:
    """Every cell that is measured: all of the usual layout, every second depth of the others.

    Of a weight [k, n] every number of columns, since some leave a part of the GPU idle; where n or k is no
    multiple of a vector, and upstream takes up to four times as long, every second.
    """
    for (d, dtype), bias, (lay, (name, layout)) in itertools.product(
        enumerate(DTYPES), (False, True), enumerate(LAYOUTS.items())
    ):
        if dtype == torch.float16 and not layout.has_ragged_rows:
            continue
        step = 1 if layout.is_usual else 2
        columns = 2 if layout.has_ragged_sizes else 1
        vector = 16 // dtype.itemsize
        for r, i, j in itertools.product(
            range(len(ROWS)), range(0, len(COLUMNS), columns), range(0, len(DEPTHS), step)
        ):
            k = _size(layout.k, DEPTHS[j], vector)
            n = _size(layout.n, COLUMNS[i], vector)
            cell = Cell((d, int(bias), lay, r, i, j), dtype, bias, name, ROWS[r], n, k)
            fits = layout.n is not None or COLUMNS[i] >= n // 2
            if cell.weight_bytes <= MAX_WEIGHT_BYTES and fits:
                yield cell


def _size(of_layout: Callable[[int], int] | None, value: int, vector: int) -> int:
    return math.ceil(value / vector) * vector if of_layout is None else of_layout(value)


def fill(percent: torch.Tensor) -> torch.Tensor:
    """``percent`` with a figure in every cell.

    What lies between measured sizes is the least of its neighbours. What is too large to be measured is what
    the largest measured weight beside it is.
    """
    full = percent.clone()
    for axis in (4, 5):
        size = full.shape[axis]
        for i in range(1, size - 1, 2):
            here, low, high = (full.select(axis, j) for j in (i, i - 1, i + 1))
            neighbours = torch.where((low > 0) & (high > 0), torch.minimum(low, high), 0)
            here.copy_(torch.where(here == 0, neighbours, here))
    for i in range(full.shape[4] - 2, -1, -1):  # few columns, rounded up
        here, next_ = full.select(4, i), full.select(4, i + 1)
        if COLUMNS[i] < 8:
            here.copy_(torch.where(here == 0, next_, here))
    for i in range(1, full.shape[4]):
        here, before = full.select(4, i), full.select(4, i - 1)
        here.copy_(torch.where(here == 0, before, here))
    for j in range(1, full.shape[5]):
        here, before = full.select(5, j), full.select(5, j - 1)
        here.copy_(torch.where(here == 0, before, here))
    for lay, layout in enumerate(LAYOUTS.values()):
        if not layout.has_ragged_rows:
            full[DTYPES.index(torch.float16), :, lay] = full[DTYPES.index(torch.bfloat16), :, lay]
    return full


def measure(device: torch.device, advance: Callable[[], None]) -> torch.Tensor:
    """The table of the GPU ``device``. ``advance`` is called after each cell.

    A table that lets every shape through must be registered: see :mod:`aten_ext.tune.command`.
    """
    percent = torch.zeros(list(torch.ops.aten_ext.table_shape("linear")), dtype=torch.uint8)
    bench = Bench(device)
    for cell in cells():
        percent[cell.place] = min(255, max(1, round(100 * bench.ratio(cell))))
        advance()
    return fill(percent)


class Bench:
    """Operands for all cells, out of one piece of memory for each dtype."""

    def __init__(self, device: torch.device) -> None:
        """Make the operands: random, as times depend on the values."""
        self._l2 = torch.cuda.get_device_properties(device).L2_cache_size
        elements = (MAX_WEIGHT_BYTES + 4 * self._l2) // 2
        self._values = {
            dtype: torch.randn(elements * 2 // dtype.itemsize, device=device, dtype=dtype) for dtype in DTYPES
        }
        stream: Any = torch.cuda.Stream  # torch leaves its constructor without types
        self._stream = stream(device)
        self._pool: Any = None
        # Kept, so that the pool is: of a pool without graphs nothing is left.
        self._first = self._graph([lambda: self._values[DTYPES[0]][:8] + 1])
        self._pool = self._first.pool()

    def _calls(self, cell: Cell) -> list[Callable[[], Any]]:
        values = self._values[cell.dtype]
        size = cell.n * cell.k
        wanted = math.ceil(2 * self._l2 / cell.weight_bytes)
        copies = min(wanted, MAX_CALLS)
        seconds = max(2e-6, cell.weight_bytes / 3e12)
        count = copies * max(1, math.ceil(min(MAX_CALLS, GRAPH_SECONDS / seconds) / copies))
        vector = 16 // cell.dtype.itemsize
        step = math.ceil(size / vector) * vector
        x = values[: cell.m * cell.k].view(cell.m, cell.k)
        bias = values[: cell.n]
        calls: list[Callable[[], Any]] = []
        for i in range(count):
            flat = values[i % copies * step :][:size]
            row_major = LAYOUTS[cell.layout].row_major
            weight = flat.view(cell.k, cell.n) if row_major else flat.view(cell.n, cell.k).t()
            calls.append(
                partial(torch.addmm, bias, x, weight) if cell.has_bias else partial(torch.mm, x, weight)
            )
        return calls

    def _graph(self, calls: list[Callable[[], Any]]) -> torch.cuda.CUDAGraph:
        """Captured without ``torch.cuda.graph``, which empties the allocator's cache each time."""
        calls[0]()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool)
            for call in calls:
                call()
            graph.capture_end()
        return graph

    def ratio(self, cell: Cell) -> float:
        """Upstream's time / ours."""
        calls = self._calls(cell)
        with aten_ext.disabled():
            upstream = self._graph(calls)
        ours = self._graph(calls)
        event: Any = torch.cuda.Event
        marks = [event(enable_timing=True) for _ in range(2 * REPLAYS + 1)]
        upstream.replay()
        ours.replay()
        marks[0].record()
        for i in range(REPLAYS):
            (upstream if i % 2 == 0 else ours).replay()
            marks[2 * i + 1].record()
            (ours if i % 2 == 0 else upstream).replay()
            marks[2 * i + 2].record()
        marks[-1].synchronize()
        times = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
        of_upstream = [times[2 * i + i % 2] for i in range(REPLAYS)]
        of_ours = [times[2 * i + 1 - i % 2] for i in range(REPLAYS)]
        return float(statistics.median(of_upstream) / statistics.median(of_ours))
