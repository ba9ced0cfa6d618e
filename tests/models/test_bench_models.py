"""``scripts/bench models``: end-to-end figures, with the route that the counts prove."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aten_ext.__main__ import main
from developer_bench import zoo

pytestmark = pytest.mark.usefixtures("developers")


def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, object]:
    monkeypatch.setattr(zoo, "SMALL", zoo.TINY)
    file = tmp_path / "models.json"
    command = ["bench", "models", "--device", "cpu", "--seconds", "0.01", "--json", str(file), *arguments]
    assert main(command) == 0
    (case,) = json.loads(file.read_text())["cases"]
    assert isinstance(case, dict)
    return case


def test_training_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = measure(tmp_path, monkeypatch, "--filter", "demo training")
    assert (case["name"], case["route"], case["skipped"]) == ("demo training", "fused", None)
    assert isinstance(case["ratio"], float) and case["checked"] == ["wall"]


def test_inference_names_what_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = measure(tmp_path, monkeypatch, "--full", "--filter", "transformer_encoder inference")
    route = case["route"]
    assert isinstance(route, str)
    assert route == "upstream: inference reaches no fused kernel" or route.startswith("fused: ")


def test_missing_library_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        zoo.WORKLOADS, "demo", zoo.Workload("no_such_package", *[zoo.WORKLOADS["demo"].build] * 4)
    )
    case = measure(tmp_path, monkeypatch, "--filter", "demo training")
    assert case["skipped"] == "needs the package no_such_package: pip install no_such_package"
