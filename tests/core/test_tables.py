"""Measured tables: which one decides on a GPU, what their files hold, and what a broken one does."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import processes
from aten_ext import _measured_tables as tables
from aten_ext.tune import linear
from gpus import GPUS
from made_up_tables import MADE_UP, SLOWER, all_of, explain, of_100, pretending, register, remove, shape
from paths import TESTS

pytestmark = pytest.mark.skipif(
    "linear" not in torch.ops.aten_ext.table_families(), reason="built without the linear layers"
)


@pytest.fixture
def pretend() -> Iterator[Any]:
    with pretending() as take:
        yield take


def test_a_user_s_own_table_decides(pretend: Any) -> None:
    pretend(of_100(), MADE_UP.name)
    register(MADE_UP, all_of(108))
    answer = explain(4, 1000, 1024)
    assert answer.route == "fused" and answer.plan.endswith("; measured on this GPU")
    register(MADE_UP, all_of(107))
    assert explain(4, 1000, 1024).reason == SLOWER
    # A shipped one of the same GPU stands behind it.
    register(MADE_UP, all_of(200), of_user=False)
    assert explain(4, 1000, 1024).reason == SLOWER
    remove(MADE_UP.name, 100)
    assert explain(4, 1000, 1024).plan.endswith("; measured on such a GPU (made-up 100)")
    register(MADE_UP, all_of(1), of_user=False)


def test_a_gpu_without_a_table_asks_the_nearest_for_more(pretend: Any) -> None:
    near = tables.Gpu("made-up near", 120, 168)
    far = tables.Gpu("made-up far", 120, 20)
    register(far, all_of(255))
    try:
        for percent, route in ((129, "upstream"), (130, "fused")):
            register(near, all_of(percent))
            pretend(GPUS["sm_120"], "made-up stranger")
            answer = explain(4, 1024, 1024)
            assert answer.route == route
            assert torch.ops.aten_ext.table_source("linear", torch.device("meta")) == (
                "nearest: made-up near, margin 1.3 asked"
            )
        assert answer.plan.endswith("; nearest: made-up near, margin 1.3 asked")
    finally:
        for gpu in (near, far):
            remove(gpu.name, gpu.multiprocessors)


def test_no_gpu_asks_for_less_than_one_that_was_measured(pretend: Any) -> None:
    near = tables.Gpu("made-up near", 120, 168)
    try:
        for percent, route in ((134, "upstream"), (135, "fused")):
            register(near, all_of(percent))
            pretend(GPUS["sm_120"], "made-up stranger")
            assert explain(9, 1024, 1000).route == route
    finally:
        remove(near.name, near.multiprocessors)


def test_a_slice_of_a_gpu_is_another_gpu(pretend: Any) -> None:
    """It has the whole one's name, but fewer multiprocessors."""
    pretend(GPUS["sm_90 with 16 multiprocessors"], "NVIDIA H200")
    assert torch.ops.aten_ext.table_source("linear", torch.device("meta")).startswith("nearest: ")


def test_files_round_trip() -> None:
    percent = torch.randint(0, 256, shape(), dtype=torch.uint8)
    table = tables.Table(MADE_UP, "2.11.0", {"linear": percent})
    read = tables.decode(tables.encode(table))
    assert read.gpu == MADE_UP and read.torch == "2.11.0"
    assert torch.equal(read.percent["linear"], percent)
    assert MADE_UP.file_name == "made-up-100-sm90-100.json"


def _broken() -> dict[str, bytes]:
    good = json.loads(tables.encode(tables.Table(MADE_UP, "2.11.0", {"linear": all_of(7)})))

    def changed(**fields: Any) -> bytes:
        return json.dumps({**good, **fields}).encode()

    linear_table = good["families"]["linear"]
    return {
        "not JSON": b"{",
        "a list": b"[]",
        "another schema": changed(schema=1),
        "no GPU": changed(gpu={"name": "x"}),
        "another shape": changed(families={"linear": {**linear_table, "shape": [1]}}),
        "not base64": changed(families={"linear": {**linear_table, "percent": "!"}}),
        "not compressed": changed(families={"linear": {**linear_table, "percent": "aaaa"}}),
        "text": b"\xff\xfe",
    }


@pytest.mark.parametrize("how", list(_broken()) if torch.ops.aten_ext.table_families() else [])
def test_a_broken_file_is_one_warning(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretend: Any
) -> None:
    monkeypatch.setenv("ATEN_EXT_TABLES", str(tmp_path))
    (tmp_path / "a.json").write_bytes(_broken()[how])
    good = tables.Table(MADE_UP, "2.11.0", {"linear": all_of(150)})
    (tmp_path / "b.json").write_bytes(tables.encode(good))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tables.load()
    assert len(said) == 1 and "a.json' is ignored: " in str(said[0].message)
    pretend(of_100(), MADE_UP.name)
    assert explain(4, 1000, 1024).plan.endswith("measured on this GPU")


def test_a_folder_of_the_user_is_read_at_import(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(
        tables.encode(tables.Table(tables.Gpu("NVIDIA H200", 90, 132), "2.11.0", {"linear": all_of(150)}))
    )
    program = "import torch, aten_ext; print(torch.ops.aten_ext.table_source('linear', torch.device('meta')))"
    done = processes.python("-c", program, cwd=TESTS, env={**os.environ, "ATEN_EXT_TABLES": str(tmp_path)})
    assert done.stdout.strip() == "measured on this GPU"


def test_shipped_tables() -> None:
    """Whole, and of the GPU that the file's name says."""
    shipped = sorted(tables.SHIPPED.glob("*.json"))
    assert shipped
    for path in shipped:
        table = tables.decode(path.read_bytes())
        assert path.name == table.gpu.file_name
        for family in linear.TABLES:
            percent = table.percent[family]
            assert (percent > 0).all()
            assert 0.2 < float((percent > 100).float().mean()) < 0.98


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("dogs", "x", 90, 1, True, torch.zeros(1, dtype=torch.uint8)), "expected one of the families"),
        (("linear", "x", 90, 1, True, torch.zeros(1, dtype=torch.uint8)), "expected a table of uint8"),
        (("linear", "x", 90, 1, True, torch.zeros(2, 2, 4, 7, 29, 23)), "expected a table of uint8"),
    ],
)
def test_errors(arguments: tuple[Any, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        torch.ops.aten_ext.add_table(*arguments)
