"""What the cells of a measured table must show before a layer is ours, and which of them speak for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import aten_ext
from aten_ext.tune import linear
from made_up_tables import MADE_UP, SLOWER, all_of, explain, meta, of_100, pretending, register, shape

pytestmark = pytest.mark.skipif(
    "linear" not in torch.ops.aten_ext.table_families(), reason="built without the linear layers"
)


@pytest.fixture
def pretend() -> Iterator[Any]:
    with pretending() as take:
        yield take


def test_one_row_in_fp32_with_a_relu_asks_for_more(pretend: Any) -> None:
    """Where the weight is small: upstream has another kernel for it than without the ReLU."""
    pretend(of_100(), MADE_UP.name)

    def reason(m: int, n: int, k: int, dtype: torch.dtype = torch.float32, gelu: bool = False) -> str:
        operands = meta(n, dtype=dtype), meta(m, k, dtype=dtype), meta(n, k, dtype=dtype).t()
        return aten_ext.explain("_addmm_activation", *operands, use_gelu=gelu, key="CUDA").reason

    register(MADE_UP, all_of(119))
    assert reason(1, 2048, 256) == SLOWER
    register(MADE_UP, all_of(120))
    assert reason(1, 2048, 256) == ""
    # In more depth for still more.
    register(MADE_UP, all_of(129))
    assert reason(1, 256, 1536) == reason(1, 512, 1024) == reason(1, 1024, 384) == SLOWER
    assert reason(1, 512, 1536) == reason(2, 256, 1536) == reason(1, 256, 1536, gelu=True) == ""
    assert reason(1, 256, 1536, torch.bfloat16) == ""
    assert explain(1, 256, 1536, torch.float32).route == "fused"
    register(MADE_UP, all_of(130))
    assert reason(1, 256, 1536) == ""


@pytest.mark.parametrize("axis", range(6))
def test_each_neighbour_has_a_say(axis: int, pretend: Any) -> None:
    """A layer between the sizes of cells is ours only if all around it are; one on a cell asks that alone."""
    pretend(of_100(), MADE_UP.name)
    between = {"m": 5, "n": 1000, "k": 1000 // 8 * 8}
    # dtype, bias, layout, rows 4 and 8, columns 768 and 1024, depths 768 and 1024
    places = [(0,), (0,), (0,), (2, 3), (19, 20), (13, 14)]
    percent = all_of(200)
    register(MADE_UP, percent)
    assert explain(**between).route == "fused"
    for place in places[axis]:
        at = [p[0] for p in places]
        at[axis] = place
        one = percent.clone()
        one[tuple(at)] = 50
        register(MADE_UP, one)
        assert explain(**between).reason == SLOWER
        assert explain(8, 512, 512).route == "fused"
    away = [p[-1] + (1 if i > 2 else 0) for i, p in enumerate(places)]
    other = percent.clone()
    other[tuple(away)] = 50
    register(MADE_UP, other)
    assert explain(**between).route == "fused"


def test_dtype_bias_and_layout_have_cells_of_their_own(pretend: Any) -> None:
    pretend(of_100(), MADE_UP.name)
    kinds: dict[tuple[int, int, int], Any] = {
        (0, 0, 0): lambda: explain(4, 1024, 1024),
        (1, 0, 0): lambda: explain(4, 1024, 1024, torch.float32),
        (0, 1, 0): lambda: aten_ext.explain(
            "addmm", meta(1024), meta(4, 1024), meta(1024, 1024).t(), key="CUDA"
        ),
        (0, 0, 1): lambda: explain(4, 1023, 1024),
        (0, 0, 2): lambda: aten_ext.explain("mm", meta(4, 1024), meta(1024, 1024), key="CUDA"),
        (0, 0, 3): lambda: explain(4, 1022, 1024),
    }
    for slow in kinds:
        percent = all_of(200)
        percent[slow] = 50
        register(MADE_UP, percent)
        for kind, ask in kinds.items():
            # An odd number of columns lies between cells, of the same layout.
            route = ask().plan.startswith("few rows")
            assert route is (kind != slow), (slow, kind)


@pytest.mark.parametrize(("beta", "of_bias"), [(1, 1), (0.5, 0), (0, 0), (-1, 0)])
@pytest.mark.parametrize("op", ["addmm", "_addmm_activation"])
def test_a_multiple_of_a_bias_asks_the_cells_without_one(
    op: str, beta: float, of_bias: int, pretend: Any
) -> None:
    """Upstream lets cuBLASLt add a bias itself, and nothing else."""
    pretend(of_100(), MADE_UP.name)
    for slow in (0, 1):
        percent = all_of(200)
        percent[0, slow, 0] = 50
        register(MADE_UP, percent)
        given = (meta(1024), meta(4, 1024), meta(1024, 1024).t())
        plan = aten_ext.explain(op, *given, beta=beta, key="CUDA").plan or ""
        assert plan.startswith("few rows") is (slow != of_bias)


def floats(*sizes: int) -> torch.Tensor:
    return meta(*sizes, dtype=torch.float32)


@pytest.mark.parametrize(
    ("bias", "of_bias"),
    [
        (floats(1024), 1),
        (floats(2048)[::2], 0),
        (floats(1, 1024), 0),
        (floats(4, 1), 0),
        (floats(4, 1024), 0),
        (floats(1), 0),
        (floats(), 0),
    ],
    ids=lambda bias: str(list(bias.shape)) if isinstance(bias, torch.Tensor) else "",
)
def test_what_is_no_vector_asks_the_cells_without_a_bias(
    bias: torch.Tensor, of_bias: int, pretend: Any
) -> None:
    """Upstream copies it into the result first."""
    pretend(of_100(), MADE_UP.name)
    given = bias, floats(4, 1024), floats(1024, 1024).t()
    for slow in (0, 1):
        percent = all_of(200)
        percent[1, slow, 0] = 50
        register(MADE_UP, percent)
        plan = aten_ext.explain("addmm", *given, key="CUDA").plan or ""
        assert plan.startswith("few rows") is (slow != of_bias)


@pytest.mark.parametrize(
    ("rows", "stride", "offset", "dtype", "least"),
    [
        (16, 1024, 0, torch.bfloat16, 107),  # dense
        (16, 2048, 64, torch.bfloat16, 107),  # rows that are whole lines
        (16, 1024 + 8, 0, torch.bfloat16, 135),  # rows of half sectors
        (16, 1024 + 8, 8, torch.bfloat16, 135),
        (16, 1024 + 16, 0, torch.bfloat16, 112),  # of sectors
        (16, 1024, 16, torch.bfloat16, 112),  # dense rows that begin within a line
        (16, 1024, 8, torch.bfloat16, 135),
        (8, 1024 + 8, 0, torch.bfloat16, 125),
        (16, 1024 + 4, 0, torch.float32, 110),
        (17, 1024 + 4, 0, torch.float32, 135),
        (1, 1024 + 8, 8, torch.bfloat16, 107),  # one row is little beside the weight
    ],
)
def test_what_a_mat1_within_a_larger_matrix_asks(
    rows: int, stride: int, offset: int, dtype: torch.dtype, least: int, pretend: Any
) -> None:
    """Its rows may begin within a line of the cache although those of the weight do not."""
    pretend(of_100(), MADE_UP.name)
    memory = torch.empty(rows * stride + offset + 1024 + 128, dtype=dtype)
    line = -memory.data_ptr() % 128 // memory.element_size()
    mat1 = memory.as_strided((rows, 1024), (stride, 1), line + offset)
    weight = torch.empty(1024, 1024, dtype=dtype)
    for percent, expected in ((least - 1, False), (least, True)):
        register(MADE_UP, all_of(percent))
        plan = aten_ext.explain("mm", mat1, weight.t(), key="CUDA").plan or ""
        assert plan.startswith("few rows") is expected


def test_sizes_beyond_the_ends(pretend: Any) -> None:
    pretend(of_100(), MADE_UP.name)
    percent = all_of(50)
    percent[0, 0, 0, :, -1, -1] = 200
    register(MADE_UP, percent)
    assert explain(1, 500_000, 30000).route == "fused"
    percent[0, 0, 0, :, -1, -1] = 199  # enough for what was measured, not for what is larger
    register(MADE_UP, percent)
    assert explain(1, 500_000, 30000).reason == SLOWER
    assert explain(1, 262_144, 16384).route == "fused"
    percent[0, 0, 0, :, -1, -1] = 200
    register(MADE_UP, percent)
    assert explain(1, 131_072, 30000).reason == SLOWER


@pytest.mark.parametrize(
    ("deepest", "dtype"),
    [
        (32768, torch.bfloat16),
        (32768 - 6, torch.float16),  # rows of words
        (12288 - 4, torch.bfloat16),  # of whole eight bytes
        (98304, torch.float32),
        (98304 - 2, torch.float32),
    ],
)
def test_the_deepest_layers_are_upstreams(deepest: int, dtype: torch.dtype, pretend: Any) -> None:
    pretend(of_100(), MADE_UP.name)
    register(MADE_UP, all_of(255))
    vector = 16 // dtype.itemsize
    assert explain(4, 64, deepest, dtype).route == "fused"
    assert explain(4, 64, deepest + vector, dtype).reason.startswith(SLOWER)


def test_all_rows_speak_for_layers_of_little_depth(pretend: Any) -> None:
    pretend(of_100(), MADE_UP.name)
    percent = all_of(50)
    percent[..., linear.ROWS.index(32), :, :] = 255
    register(MADE_UP, percent)
    assert explain(32, 96, 7, torch.float32).route == "upstream"
    assert explain(32, 96, 8, torch.float32).route == "fused"


@pytest.mark.parametrize(
    ("rows", "n", "k", "dtype", "least"),
    [
        (16, 1024, 1024, torch.bfloat16, 107),  # a cell
        (64, 1024, 1024, torch.bfloat16, 107),
        (8, 1000, 1024, torch.bfloat16, 108),  # between cells, and like them
        (9, 1000, 1024, torch.bfloat16, 110),
        (17, 1024, 1024, torch.bfloat16, 112),
        (33, 1024, 1024, torch.bfloat16, 120),
        (17, 1024, 1024, torch.float32, 126),
        (24, 1024, 1024, torch.bfloat16, 107),  # a cell between two powers of two
        (9, 1000, 1040, torch.bfloat16, 112),  # rows of the weight that end within a line
        (17, 1024, 1040, torch.bfloat16, 118),
        (33, 1024, 1040, torch.bfloat16, 118),
        (17, 1024, 1000, torch.float32, 115),
        (4, 1024, 1000, torch.bfloat16, 125),  # within a sector
        (64, 1024, 1000, torch.bfloat16, 130),
        (64, 1024, 1004, torch.float32, 120),
        (20, 128, 1000, torch.bfloat16, 112),  # a small weight
        (8, 1023, 1024, torch.bfloat16, 107),  # no vectors
        (33, 1022, 1024, torch.bfloat16, 120),
        (1, 13, 352, torch.float32, 125),
        (64, 1023, 1024, torch.float32, 170),  # whose blocks leave multiprocessors idle
        (8, 1024, 1001, torch.bfloat16, 112),  # no rows of vectors
        (9, 1024, 1002, torch.float16, 110),
        (17, 511, 1001, torch.bfloat16, 110),
        (17, 511, 1004, torch.bfloat16, 118),  # of whole eight bytes
        (17, 1023, 1001, torch.bfloat16, 170),  # blocks of a larger weight on half of the GPU
        (64, 1024, 1002, torch.bfloat16, 112),
        (8, 1024, 1001, torch.float32, 112),
        (17, 1024, 1002, torch.float32, 114),
        (8, 6401, 4097, torch.bfloat16, 140),  # the same of a large weight
        (1, 6401, 4097, torch.bfloat16, 145),
        (2, 6401, 4097, torch.bfloat16, 140),
        (1, 16384, 8193, torch.bfloat16, 170),
        (8, 16384, 8191, torch.bfloat16, 140),
        (8, 16384, 8193, torch.bfloat16, 170),  # and of the largest
        (49, 16384, 6102, torch.float32, 140),
        (49, 16384, 6106, torch.float32, 170),
        (4, 65536, 2048, torch.float32, 107),  # as large as any that was measured
        (4, 65536, 4096, torch.float32, 150),  # and larger, whose cell is another's
        (2, 65536, 4096, torch.float32, 107),  # by dot products
        (8, 65536, 8192, torch.bfloat16, 150),
        (64, 300_000, 1024, torch.bfloat16, 200),  # beyond the axes
        (3, 20_000, 504, torch.float32, 150),  # many columns in fp32, and few k
        (3, 20_000, 512, torch.float32, 120),
        (2, 20_000, 480, torch.float32, 130),  # by dot products
        (2, 20_000, 512, torch.float32, 108),
        (2, 20_000, 511, torch.float32, 150),  # rows of no whole vectors are in tiles
        (2, 20_000, 513, torch.float32, 120),
        (4, 24_576, 512, torch.float32, 107),  # that were measured
        (3, 20_000, 512, torch.bfloat16, 108),
        (1, 20_000, 1016, torch.bfloat16, 125),  # rows within a sector
        (1, 20_000, 960, torch.bfloat16, 120),
        (1, 20_000, 1088, torch.bfloat16, 108),
        (1, 16_000, 960, torch.bfloat16, 108),
        (1, 24_576, 768, torch.bfloat16, 107),  # that were measured
        (51, 103, 1, torch.float32, 255),  # and below them, as much as a cell shows
        (47, 86, 7, torch.bfloat16, 255),
    ],
)
def test_what_a_layer_between_cells_asks_of_them(
    rows: int, n: int, k: int, dtype: torch.dtype, least: int, pretend: Any
) -> None:
    pretend(of_100(), MADE_UP.name)
    for percent, route in ((least - 1, "upstream"), (least, "fused")):
        register(MADE_UP, all_of(percent))
        assert explain(rows, n, k, dtype).route == route


def test_weights_above_all_that_tune_measures(pretend: Any) -> None:
    pretend(of_100(), MADE_UP.name)
    register(MADE_UP, all_of(149))
    n = 65536
    k = linear.MAX_WEIGHT_BYTES // torch.float32.itemsize // n
    assert explain(4, n, k, torch.float32).route == "fused"
    assert explain(4, n, k + 4, torch.float32).reason == SLOWER


def test_which_rows_speak_for_a_layer(pretend: Any) -> None:
    """Its own, or those on either side of it."""
    pretend(of_100(), MADE_UP.name)
    speaking: dict[int, set[int]] = {rows: set() for rows in range(1, 65)}
    for place, measured in enumerate(linear.ROWS):
        percent = all_of(200)
        percent[0, 0, 0, place] = 50
        register(MADE_UP, percent)
        for rows, speak in speaking.items():
            if explain(rows, 1024, 1024).route == "upstream":
                speak.add(measured)
    for rows, speak in speaking.items():
        below = max(measured for measured in linear.ROWS if measured <= rows)
        assert speak == {below, min(measured for measured in linear.ROWS if measured >= rows)}


@pytest.mark.parametrize(
    ("dtype", "begin", "least"),
    [(torch.float16, 1, 175), (torch.float16, 0, 107), (torch.bfloat16, 1, 118), (torch.float32, 1, 112)],
    ids=str,
)
def test_what_operands_that_begin_between_vectors_ask(
    dtype: torch.dtype, begin: int, least: int, pretend: Any
) -> None:
    pretend(of_100(), MADE_UP.name)
    mat1 = torch.empty(8 * 1024 + 1024, dtype=dtype)
    line = -mat1.data_ptr() % 128 // mat1.element_size()
    mat1 = mat1[line + begin :][: 8 * 1024].view(8, 1024)
    weight = torch.empty(64, 1024, dtype=dtype)
    for percent, route in ((least - 1, "upstream"), (least, "fused")):
        register(MADE_UP, all_of(percent))
        assert aten_ext.explain("mm", mat1, weight.t(), key="CUDA").route == route


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("operand", ["mat1", "weight"])
def test_many_columns_of_operands_that_begin_between_vectors(
    dtype: torch.dtype, operand: str, pretend: Any
) -> None:
    """They ask for the most that a cell shows, if rows are whole vectors from there on."""
    pretend(of_100(), MADE_UP.name)
    register(MADE_UP, all_of(254))

    def route(n: int, k: int, begin: int) -> str:
        mat1 = torch.empty(8 * k + begin, dtype=dtype)[begin * (operand == "mat1") :][: 8 * k].view(8, k)
        weight = torch.empty(n * k + begin, dtype=dtype)[begin * (operand == "weight") :][: n * k]
        return aten_ext.explain("mm", mat1, weight.view(n, k).t(), key="CUDA").route

    assert [route(4096, 512, begin) for begin in (0, 1)] == ["fused", "upstream"]
    assert route(4088, 512, 1) == route(4096, 511, 1) == "fused"


def test_fp16_has_cells_of_its_own(pretend: Any) -> None:
    pretend(of_100(), MADE_UP.name)
    percent = all_of(200)
    percent[2] = 50
    register(MADE_UP, percent)
    for k in (1000, 1002, 1001):
        assert explain(8, 1024, k, torch.bfloat16).route == "fused"
        assert explain(8, 1024, k, torch.float16).route == "upstream"
    percent = all_of(50)
    percent[2] = 200
    register(MADE_UP, percent)
    assert explain(8, 1024, 1001, torch.float16).route == "fused"
    assert explain(8, 1024, 1001, torch.bfloat16).reason == SLOWER + ", and rows of no multiple of 16 bytes"


@pytest.mark.parametrize("base", [0, 1, 2, 8])
@pytest.mark.parametrize("row_major", [False, True])
def test_which_cells_speak_for_rows_of_no_vectors(base: int, row_major: bool, pretend: Any) -> None:
    """By the sizes and by the addresses: halves where any of them is odd, words where one is no vector."""
    pretend(of_100(), MADE_UP.name)
    for layout in range(8):
        percent = all_of(50)
        percent[:, :, layout] = 200
        register(MADE_UP, percent)
        memory = torch.empty(1 << 21, dtype=torch.bfloat16)[base:]
        mat1 = memory[: 8 * 256].view(8, 256)
        weight = (
            memory[: 256 * 1024].view(256, 1024) if row_major else memory[: 256 * 1024].view(1024, 256).t()
        )
        of_rows = 2 if row_major else 0
        expected = of_rows if base % 8 == 0 else (6 if row_major else 4) + base % 2
        found = aten_ext.explain("mm", mat1, weight, key="CUDA").plan or ""
        assert found.startswith("few rows") is (layout == expected), (layout, expected)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "least"),
    [
        (8, 1040, torch.bfloat16, 110),
        (24, 1040, torch.bfloat16, 126),
        (32, 1040, torch.bfloat16, 126),
        (32, 1024, torch.bfloat16, 107),
        (16, 1040, torch.float32, 150),
        (17, 1040, torch.float32, 125),
    ],
)
def test_what_a_weight_of_rows_asks(
    rows: int, columns: int, dtype: torch.dtype, least: int, pretend: Any
) -> None:
    pretend(of_100(), MADE_UP.name)
    for percent, expected in ((least - 1, False), (least, True)):
        register(MADE_UP, all_of(percent))
        operands = meta(rows, 1024, dtype=dtype), meta(1024, columns, dtype=dtype)
        answer = aten_ext.explain("mm", *operands, key="CUDA")
        assert (answer.plan or "").startswith("few rows") is expected


@pytest.mark.parametrize(
    ("rows", "n", "k", "dtype", "least"),
    [
        (4, 3224, 2048, torch.bfloat16, 120),
        (64, 6440, 2048, torch.bfloat16, 170),  # tiles of 64 rows
        (5, 3224, 2048, torch.float32, 120),
        (1, 3224, 2048, torch.float32, 108),  # dot products have no tiles
        (1, 3224, 2047, torch.bfloat16, 170),  # no rows of vectors
        (4, 3072, 2048, torch.bfloat16, 107),  # measured
        (4, 3224, 256, torch.bfloat16, 108),  # a small weight
        (16, 3240, 2048, torch.bfloat16, 120),
        (16, 3200, 2048, torch.bfloat16, 110),  # 100 blocks for 100 multiprocessors
    ],
)
def test_a_layer_that_leaves_multiprocessors_idle_asks_for_more(
    rows: int, n: int, k: int, dtype: torch.dtype, least: int, pretend: Any
) -> None:
    pretend(of_100(), MADE_UP.name)
    for percent, route in ((least - 1, "upstream"), (least, "fused")):
        register(MADE_UP, all_of(percent))
        assert explain(rows, n, k, dtype).route == route


def test_cells_are_where_the_rule_looks(pretend: Any) -> None:
    """Each measured layer finds its own cell, and no other."""
    pretend(of_100(), MADE_UP.name)
    cells = [cell for i, cell in enumerate(linear.cells()) if cell.n >= 8 and i % 101 == 0]
    layouts = linear.LAYOUTS
    cells = [
        cell
        for cell in cells
        if (layouts[cell.layout].k is not None or cell.k == linear.DEPTHS[cell.place[5]])
        and (layouts[cell.layout].n is not None or cell.n == linear.COLUMNS[cell.place[4]])
    ]
    assert {cell.layout for cell in cells} == set(layouts)
    assert len(cells) > 100
    for cell in cells:
        percent = all_of(50)
        n, k = cell.n, cell.k
        *front, i, j = cell.place
        # A size that no axis has lies between two cells.
        for column in {i, min(i + (layouts[cell.layout].n is not None), shape()[4] - 1)}:
            for depth in {j, min(j + (layouts[cell.layout].k is not None), 22)}:
                percent[(*front, column, depth)] = 200
        register(MADE_UP, percent)
        weight = (
            meta(k, n, dtype=cell.dtype)
            if layouts[cell.layout].row_major
            else meta(n, k, dtype=cell.dtype).t()
        )
        bias = (meta(n, dtype=cell.dtype),) if cell.has_bias else ()
        name = "addmm" if cell.has_bias else "mm"
        answer = aten_ext.explain(name, *bias, meta(cell.m, k, dtype=cell.dtype), weight, key="CUDA")
        assert answer.plan.startswith("few rows"), (cell, answer)
