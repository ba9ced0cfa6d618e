"""The tables of the linear layers: upstream's time / the few-rows kernel's, over dtype, layout and size.

Each cell is a product of its own, timed as CUDA-graph replays, upstream and ours in turns: "linear", alone,
and "linear_in_graphs", with an elementwise kernel behind each, whose own time is taken off. Alone a launch of
ours begins while the one before it ends, as it does on a stream that is full of work; between other kernels
of a graph it does not. Weights rotate past the L2 where 64 of them can. Those that fit in it are timed again
where they stay, as in a loop over a small model: "linear_in_l2". The axes are those of
``aten_ext/ops/linear/crossover.h``. A :class:`Grid` says which cells are measured: all, or a sixth of them in
about two and a half minutes, between which a layer counts as what the worst of its neighbours is, and less.
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

ROWS = (1, 2, 4, 8, 16, 24, 28, 32, 44, 64)
"""Those of ``crossover::kRowsOfCells``."""
ROWS_OF_THOROUGH = (24, 44)
"""Those that no quick grid has."""
COLUMNS = tuple((1 << i // 2) if i % 2 == 0 else (3 << i // 2) // 2 for i in range(37))
DEPTHS = tuple((8 << i // 2) if i % 2 == 0 else (12 << i // 2) for i in range(23))
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
"""fp16 is measured where N or K is no multiple of a vector, and elsewhere taken for bf16."""


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

TABLES = ("linear", "linear_in_graphs", "linear_in_l2")
MAX_WEIGHT_BYTES = 512 << 20
"""That of ``crossover::kMostMeasured``, above which a cell is another's."""
MAX_CALLS = 64
"""Of a graph."""
RESIDENT_SHARE = 1.1
"""Of the L2: of a weight up to this part of it much stays there from call to call. That of
``crossover::kResidentTenths``."""
RESIDENT_LOOK = (1.02, 1.9)
"""Ratios with weights from memory between which a second look, with the weight in the L2, may change who is
faster."""
RESIDENT_CALLS = 16
"""Of the second look, which is to be a short one: nothing has to be rotated."""
AS_FAST = 1.015
"""A ratio between other kernels with the weight in the L2 below which it counts there, and not that with
weights from memory: there is no table of both."""
FAR_AHEAD = 2.55
"""What stands for a cell that no second look was taken at: the most that a table can say."""
REPLAYS = 3
ELEMENTS_BETWEEN = 1 << 15
"""Of the kernel behind each layer: it takes little more than its launch."""


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


@dataclass(frozen=True)
class Grid:
    """Which values of each axis are measured, and what those between them count as.

    Every depth of the usual layout, every second one of the others. Of a weight [k, n] every number of
    columns, since some leave a part of the GPU idle; where n or k is no multiple of a vector, and upstream
    takes up to four times as long, every second.
    """

    step: int = 1
    """Of the columns and depths, and where n or k is no multiple of a vector of the rows: every so many."""
    between: float = 1.0
    """What is not measured, as a part of the least of its neighbours."""
    calls: int = MAX_CALLS
    """Of a graph at most, and so weights that are rotated."""
    graph_seconds: float = 2e-4
    """About how long a graph takes."""

    def rows(self, layout: Layout) -> list[int]:
        """Places on the axis of rows."""
        places = [i for i, rows in enumerate(ROWS) if self.step == 1 or rows not in ROWS_OF_THOROUGH]
        return [places[i] for i in self._places(len(places), self.step if layout.has_ragged_sizes else 1)]

    def columns(self, layout: Layout) -> list[int]:
        """Places on the axis of columns."""
        return self._places(len(COLUMNS), self.step * (2 if layout.has_ragged_sizes else 1))

    def depths(self, layout: Layout) -> list[int]:
        """Places on the axis of depths."""
        return self._places(len(DEPTHS), self.step * (1 if layout.is_usual else 2))

    @staticmethod
    def _places(size: int, step: int) -> list[int]:
        return sorted({*range(0, size, step), size - 1})


THOROUGH = Grid()
QUICK = Grid(step=2, between=0.95, calls=MAX_CALLS // 2, graph_seconds=1e-4)


def cells(grid: Grid = THOROUGH) -> Iterator[Cell]:
    """Every cell that is measured."""
    for (d, dtype), bias, (lay, (name, layout)) in itertools.product(
        enumerate(DTYPES), (False, True), enumerate(LAYOUTS.items())
    ):
        if dtype == torch.float16 and not layout.has_ragged_sizes:
            continue
        vector = 16 // dtype.itemsize
        for r, i, j in itertools.product(grid.rows(layout), grid.columns(layout), grid.depths(layout)):
            k = _size(layout.k, DEPTHS[j], vector)
            n = _size(layout.n, COLUMNS[i], vector)
            cell = Cell((d, int(bias), lay, r, i, j), dtype, bias, name, ROWS[r], n, k)
            fits = layout.n is not None or COLUMNS[i] >= n // 2
            if cell.weight_bytes <= MAX_WEIGHT_BYTES and fits:
                yield cell


def _size(of_layout: Callable[[int], int] | None, value: int, vector: int) -> int:
    return math.ceil(value / vector) * vector if of_layout is None else of_layout(value)


def _before(percent: torch.Tensor, axis: int) -> torch.Tensor:
    """In each cell the last figure up to it along ``axis``, 0 if there is none."""
    result = percent.clone()
    for i in range(1, percent.shape[axis]):
        here = result.select(axis, i)
        here.copy_(torch.where(here == 0, result.select(axis, i - 1), here))
    return result


def fill(percent: torch.Tensor, between: float = 1.0) -> torch.Tensor:
    """``percent`` with a figure in every cell.

    What lies between measured sizes is the lesser of its neighbours, times ``between``. What is too large to
    be measured is what the largest measured weight beside it is.
    """
    full = percent.clone()
    for axis in (3, 4, 5):
        low, high = _before(full, axis), _before(full.flip(axis), axis).flip(axis)
        lesser = (torch.minimum(low, high) * between).to(full.dtype)
        full = torch.where(full == 0, lesser, full)
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
        if not layout.has_ragged_sizes:
            full[DTYPES.index(torch.float16), :, lay] = full[DTYPES.index(torch.bfloat16), :, lay]
    return full


def measure(device: torch.device, grid: Grid, advance: Callable[[], None]) -> dict[str, torch.Tensor]:
    """The tables of the GPU ``device``. ``advance`` is called after each cell of ``grid``.

    Tables that let every shape through must be registered: see :mod:`aten_ext.tune.command`.
    """
    shape = list(torch.ops.aten_ext.table_shape("linear"))
    percent = {family: torch.zeros(shape, dtype=torch.uint8) for family in TABLES}
    bench = Bench(device, grid)
    for cell in cells(grid):
        for family, ratio in zip(TABLES, bench.ratios(cell), strict=True):
            percent[family][cell.place] = min(255, max(1, round(100 * ratio)))
        advance()
    return {family: fill(table, grid.between) for family, table in percent.items()}


class Bench:
    """Operands for all cells, out of one piece of memory for each dtype."""

    def __init__(self, device: torch.device, grid: Grid = THOROUGH) -> None:
        """Make the operands: random, as times depend on the values."""
        self._grid = grid
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
        self._other = torch.ones(ELEMENTS_BETWEEN, device=device)
        others = 4 * MAX_CALLS
        graph = self._graph([self._other.neg_] * others)
        self._other_seconds = _median(_times([graph] * (2 * REPLAYS + 1))) / others

    def _calls(self, cell: Cell, *, resident: bool = False) -> list[Callable[[], Any]]:
        values = self._values[cell.dtype]
        size = cell.n * cell.k
        wanted = 1 if resident else math.ceil(2 * self._l2 / cell.weight_bytes)
        copies = min(wanted, self._grid.calls)
        seconds = max(2e-6, cell.weight_bytes / 3e12)
        most = RESIDENT_CALLS if resident else self._grid.calls
        count = copies * max(1, math.ceil(min(most, self._grid.graph_seconds / seconds) / copies))
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

    def ratios(self, cell: Cell) -> tuple[float, float, float]:
        """Upstream's time / ours: alone, with another kernel behind each, alone with the weight in the L2.

        A weight that is in the L2 already helps upstream's kernels more.
        """
        alone, between = self._ratios(self._calls(cell))
        low, high = RESIDENT_LOOK
        in_doubt = any(low <= ratio < high for ratio in (alone, between))
        if cell.weight_bytes > RESIDENT_SHARE * self._l2 or not in_doubt:
            return alone, between, FAR_AHEAD
        in_l2, between_in_l2 = self._ratios(self._calls(cell, resident=True))
        return alone, min(between, between_in_l2) if between_in_l2 < AS_FAST else between, in_l2

    def _ratios(self, calls: list[Callable[[], Any]]) -> tuple[float, float]:
        def behind(call: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: (call(), self._other.neg_())

        both = [behind(call) for call in calls[: max(1, len(calls) // 2)]]
        return self._ratio(calls, 0.0), self._ratio(both, len(both) * self._other_seconds)

    def _ratio(self, calls: list[Callable[[], Any]], of_others: float) -> float:
        """The ratio without the seconds that are others'."""
        with aten_ext.disabled():
            upstream = self._graph(calls)
        ours = self._graph(calls)
        upstream.replay()
        ours.replay()
        turns = [(upstream, ours) if i % 2 == 0 else (ours, upstream) for i in range(REPLAYS)]
        times = _times([graph for turn in turns for graph in turn])
        of_upstream = _median([times[2 * i + i % 2] for i in range(REPLAYS)])
        of_ours = _median([times[2 * i + 1 - i % 2] for i in range(REPLAYS)])
        # Where noise leaves nothing of either, no ratio is known: upstream's.
        return max(of_upstream - of_others, 0.0) / max(of_ours - of_others, 1e-9)


def _median(seconds: list[float]) -> float:
    return float(statistics.median(seconds))


def _times(graphs: list[torch.cuda.CUDAGraph]) -> list[float]:
    """Seconds of a replay of each."""
    event: Any = torch.cuda.Event
    marks = [event(enable_timing=True) for _ in range(len(graphs) + 1)]
    marks[0].record()
    for graph, mark in zip(graphs, marks[1:], strict=True):
        graph.replay()
        mark.record()
    marks[-1].synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]
