"""Layers whose weight may be in the L2 already: a table of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

import aten_ext
from aten_ext import _measured_tables as tables
from aten_ext.tune import linear
from gpus import pretended_capture
from made_up_tables import MADE_UP, SLOWER, all_of, explain, meta, of_100, pretending, register, remove

L2_BYTES = of_100().l2_bytes

pytestmark = pytest.mark.skipif(
    "linear" not in torch.ops.aten_ext.table_families(), reason="built without the linear layers"
)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with pretending() as take:
        take(of_100(), MADE_UP.name)
        yield


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("m", "n", "k", "least"),
    [
        (1, 768, 768, 102),  # a cell
        (28, 1024, 1536, 102),
        (5, 768, 768, 115),
        (8, 1000, 1024, 115),
        (8, 1001, 1023, 115),
        (8, 1000, 1032, 128),  # rows that begin within a sector in 16 bits
        (5, 1000, 1028, 115),
        (32, 1000, 1028, 115),
        (33, 1000, 1028, 128),  # and in the largest tiles rows of no whole vectors in 16 bits
        (33, 1000, 1216, 120),  # 19 times 64
        (33, 1000, 1248, 128),  # and 19.5: whole lines in fp32, sectors in 16 bits
        (33, 1000, 608, 128),  # 9.5, a twentieth less than 10 in fp32
    ],
)
def test_what_a_layer_asks(m: int, n: int, k: int, least: int, dtype: torch.dtype) -> None:
    if dtype == torch.float32:
        least = {1028: 128, 1032: 115, 1248: 120}.get(k, least)
    asks(least, m, n, k, dtype)
    register(MADE_UP, all_of(50), in_l2=all_of(255))
    assert explain(m, n, k, dtype).reason.startswith(SLOWER)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_weights_that_take_much_of_the_l2(dtype: torch.dtype) -> None:
    """From six tenths of it on."""
    up_to = L2_BYTES * 6 // 10 // dtype.itemsize // 1024 // 8 * 8
    asks(115, 5, up_to, 1024, dtype)
    asks(128, 5, up_to + 8, 1024, dtype)
    asks(102, 4, 4096, 6144 if dtype == torch.bfloat16 else 3072, dtype)  # a cell


def asks(least: int, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    for percent, route in ((least - 1, "upstream"), (least, "fused")):
        register(MADE_UP, all_of(254), in_l2=all_of(percent))
        assert explain(m, n, k, dtype).route == route


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_which_weights(dtype: torch.dtype) -> None:
    """Those that ``tune`` takes for resident."""
    register(MADE_UP, all_of(254), in_l2=all_of(50))
    largest = int(L2_BYTES * linear.RESIDENT_SHARE) // dtype.itemsize // 1024 // 8 * 8
    assert explain(4, largest, 1024, dtype).reason == SLOWER
    assert explain(4, largest + 8, 1024, dtype).route == "fused"


def test_each_neighbour_has_a_say() -> None:
    """Of 5 rows those of 4 and 8, of 1,200 columns and K those of 1,024 and 1,536."""
    places = [(0, 0, 0, *at) for at in itertools.product((2, 3), (20, 21), (14, 15))]
    for place in places:
        percent = all_of(200)
        percent[place] = 50
        register(MADE_UP, all_of(254), in_l2=percent)
        assert explain(5, 1200, 1200).reason == SLOWER
    percent = all_of(50)
    for place in places:
        percent[place] = 200
    register(MADE_UP, all_of(254), in_l2=percent)
    assert explain(5, 1200, 1200).route == "fused"


def test_a_gpu_without_such_a_table_asks_the_nearest_s() -> None:
    """For 1.3, as of the other tables. Of a name of its own: other tests leave tables of ``MADE_UP``."""
    without, nearest = (
        tables.Gpu(f"made-up 100 {name} a table of the L2", 90, 100) for name in ("without", "with")
    )
    try:
        with pretending() as take:
            take(of_100(), without.name)
            register(without, all_of(200))
            torch.ops.aten_ext.remove_table("linear_in_l2", without.name, without.multiprocessors)
            for percent, route in ((129, "upstream"), (130, "fused")):
                register(nearest, all_of(200), in_l2=all_of(percent))
                assert explain(4, 1024, 1024).route == route
    finally:
        remove(nearest.name, nearest.multiprocessors)


def test_it_is_asked_in_graphs_too() -> None:
    operands = meta(4, 1024), meta(1024, 1024).t()
    for percent, expected in ((101, SLOWER), (102, "")):
        register(MADE_UP, all_of(200), in_l2=all_of(percent))
        for captured in (False, True):
            with pretended_capture(captured):
                assert aten_ext.explain("mm", *operands, key="CUDA").reason == expected
