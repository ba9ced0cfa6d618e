"""What is left to upstream in training where the GPU's time decides: the table against measured calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from device_on_host import library
from ops.rnn.training.on_host_cases import load
from paths import ROOT

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

CELLS = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}


@pytest.fixture(scope="module")
def ratios() -> dict[bool, list[float]]:
    """Upstream's time over ours of the measured calls; of those that are kept, and of the others."""
    path = ROOT / "docs" / "benchmarks" / "sweeps" / "rnn_short-h200.json"
    found: dict[bool, list[float]] = {False: [], True: []}
    ops: Any = load()
    for cell, dtype, *sizes, upstream, ours in json.loads(path.read_text())["padded"]:
        found[ops.is_kept(CELLS[cell], DTYPES[dtype], *sizes)].append(upstream / ours)
    return found


def test_what_is_left_to_us_is_faster(ratios: dict[bool, list[float]]) -> None:
    """But for single steps of few rows, which are left to us because of what their launches take."""
    ours = ratios[False]
    assert len(ours) > 3150
    assert min(ours) > 0.7
    assert sum(ratio < 0.98 for ratio in ours) < 0.01 * len(ours)


def test_what_is_kept_is_not(ratios: dict[bool, list[float]]) -> None:
    """Most of them lose, and few that win by much are given away."""
    kept = ratios[True]
    assert sum(ratio < 0.98 for ratio in kept) > 0.6 * len(kept)
    assert sum(ratio > 1.1 for ratio in kept) < 0.2 * len(kept)
