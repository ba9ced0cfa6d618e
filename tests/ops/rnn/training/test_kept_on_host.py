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


def ratios(file: str, calls: str) -> dict[bool, list[float]]:
    """Upstream's time over ours of the measured calls; of those that are kept, and of the others."""
    path = ROOT / "docs" / "benchmarks" / "sweeps" / f"{file}.json"
    found: dict[bool, list[float]] = {False: [], True: []}
    ops: Any = load()
    for cell, dtype, *sizes in json.loads(path.read_text())[calls]:
        layer, saves, (upstream, ours) = sizes[:6], sizes[6:-2], sizes[-2:]
        kept = ops.is_kept(CELLS[cell], DTYPES[dtype], *layer, bool(saves and saves[0]))
        found[kept].append(upstream / ours)
    return found


def hold(found: dict[bool, list[float]], *, least: float, losers: float, given_away: float) -> None:
    """Of what is left to us the least, and how many lose; most of what is kept loses, and few win by much."""
    ours, kept = found[False], found[True]
    assert min(ours) > least
    assert sum(ratio < 0.98 for ratio in ours) < losers * len(ours)
    assert sum(ratio < 0.98 for ratio in kept) > 0.6 * len(kept)
    assert sum(ratio > 1.1 for ratio in kept) < given_away * len(kept)


def test_few_steps_and_large_layers() -> None:
    """What loses by much is single steps of few rows, left to us because of what their launches take."""
    found = ratios("rnn_short-h200", "padded")
    assert len(found[False]) > 2500
    hold(found, least=0.7, losers=0.01, given_away=0.22)


def test_few_units() -> None:
    """Where a tenth of the calls lost, down to half the speed, all are upstream's."""
    found = ratios("rnn_units-h100", "units")
    assert not found[False]
    assert min(found[True]) < 0.6


def test_small_layers() -> None:
    """Of five steps and more, those that cuDNN keeps on the chip."""
    found = ratios("rnn_small-h200", "small")
    assert len(found[False]) > 5000
    hold(found, least=0.9, losers=0.005, given_away=0.2)
