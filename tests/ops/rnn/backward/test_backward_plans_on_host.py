"""The plan of a backward recurrence on every GPU: what is chosen would launch, and is what should be."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from device_on_host import library
from gpus import GPUS, Gpu, lacks, pretended
from ops.rnn.backward.on_host_cases import CELLS, GRU, LSTM, TANH, check, load, new_case
from ops.rnn.on_host_cases import BLOCK, CLUSTER, FMA, GRID, MMA, TF32

pytestmark = [
    pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or ""),
]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BATCHES = (1, 2, 5, 17, 33, 128, 600)
HIDDEN = (1, 32, 33, 64, 65, 128, 129, 193, 256, 257, 400, 512, 513, 640, 1024, 1025, 1500, 2048, 2049)
NO_KERNEL = "hidden size without a kernel"
TOO_LARGE = "batch too large for the hidden size"
TOO_OLD = "GPU, or code built for it, too old for the kernel"


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


def on(gpu: Gpu) -> AbstractContextManager[Gpu]:
    """This GPU for the plans and for the emulator of the family's library."""
    return pretended(gpu, torch.ops.aten_ext_on_host_cudnn_rnn.set_gpu)


@pytest.mark.parametrize("name", GPUS)
def test_what_is_chosen_would_launch(ops: Any, name: str) -> None:
    gpu = GPUS[name]
    chosen = 0
    with on(gpu):
        for cell, dtype, batch, hidden, directions, tf32 in itertools.product(
            CELLS.values(), DTYPES, BATCHES, HIDDEN, (1, 2), (False, True)
        ):
            reason, _, description, needs = ops.plan(cell, dtype, tf32, 40, batch, hidden, directions)
            if not reason:
                chosen += 1
                assert description
                assert lacks(gpu, needs) is None, (cell, dtype, batch, hidden, directions, description, needs)
            elif gpu.code < 80:
                # The first of several things that are missing.
                assert reason in (
                    TOO_OLD,
                    "hidden size without a kernel",
                    "batch too large for the hidden size",
                )
    assert chosen == 0 if gpu.code < 80 else chosen > 300


@pytest.mark.parametrize(
    ("dtype", "tf32", "batch", "hidden", "directions", "wanted"),
    [
        (torch.float32, False, 8, 64, 1, [FMA, BLOCK, 1, 1]),
        (torch.float32, False, 8, 128, 1, [FMA, CLUSTER, 4, 1]),
        (torch.float32, True, 264, 128, 1, [FMA, BLOCK, 1, 2]),
        (torch.float32, False, 8, 256, 1, [FMA, CLUSTER, 8, 1]),
        (torch.float32, False, 15, 256, 1, [FMA, CLUSTER, 8, 1]),
        (torch.float32, True, 30, 129, 1, [FMA, CLUSTER, 4, 1]),
        (torch.float32, False, 31, 256, 1, [FMA, CLUSTER, 8, 3]),
        (torch.bfloat16, False, 8, 64, 2, [MMA, BLOCK, 1, 1]),
        (torch.bfloat16, False, 16, 256, 2, [MMA, CLUSTER, 8, 3]),
        (torch.bfloat16, False, 32, 512, 2, [MMA, CLUSTER, 16, 11]),
        (torch.float16, False, 16, 1024, 1, [MMA, GRID, 64, 8]),
        (torch.float16, False, 16, 2048, 1, [MMA, GRID, 128, 16]),
        # TF32: from a few rows on, where cuDNN's is, which wants multiples of four, and up to H = 640 more
        # rows than these 16.
        (torch.float32, True, 16, 1024, 1, [TF32, GRID, 64, 8]),
        (torch.float32, True, 4, 1024, 1, [FMA, GRID, 128, 4]),
        (torch.float32, True, 16, 1022, 1, [FMA, GRID, 128, 16]),
        (torch.float32, True, 16, 256, 2, [FMA, CLUSTER, 8, 3]),
        (torch.float32, True, 32, 256, 2, [TF32, CLUSTER, 8, 5]),
        (torch.float32, True, 32, 192, 2, [FMA, CLUSTER, 8, 5]),
        (torch.float32, True, 32, 512, 2, [TF32, CLUSTER, 16, 11]),
        (torch.float32, True, 21, 512, 1, [FMA, CLUSTER, 16, 3]),
        (torch.float32, False, 16, 1024, 1, [FMA, GRID, 128, 16]),
    ],
)
def test_what_an_h200_takes(
    ops: Any,
    dtype: torch.dtype,
    tf32: bool,
    batch: int,
    hidden: int,
    directions: int,
    wanted: list[int],
) -> None:
    with on(GPUS["sm_90"]):
        reason, numbers, _, _ = ops.plan(GRU, dtype, tf32, 50, batch, hidden, directions)
        assert (reason, numbers) == ("", wanted)


def test_clusters_of_four(ops: Any) -> None:
    """An RNN has them whenever they have fewer rows, an LSTM never."""
    with on(GPUS["sm_90"]):
        for cell, batch, wanted in (
            (TANH, 15, [8, 1]),
            (TANH, 16, [4, 1]),
            (TANH, 480, [4, 16]),
            (LSTM, 16, [8, 2]),
        ):
            assert ops.plan(cell, torch.float32, False, 50, batch, 256, 1)[1] == [FMA, CLUSTER, *wanted]
        assert ops.plan(TANH, torch.float32, False, 50, 481, 256, 1)[0] == TOO_LARGE


def test_declines(ops: Any) -> None:
    with on(GPUS["sm_90"]):
        for cell, dtype, batch, hidden, wanted in (
            (GRU, torch.float32, 1, 1025, NO_KERNEL),
            (GRU, torch.float16, 1, 2049, NO_KERNEL),
            (GRU, torch.float16, 66, 1024, TOO_LARGE),
            (LSTM, torch.float16, 50, 1024, TOO_LARGE),
            (LSTM, torch.float32, 600, 512, TOO_LARGE),
            (LSTM, torch.float16, 600, 1024, TOO_LARGE),
            (GRU, torch.float32, 1 << 24, 8, "sizes beyond 32 bits"),
        ):
            assert ops.plan(cell, dtype, False, 50, batch, hidden, 1)[0] == wanted


def test_gpu_without_clusters(ops: Any) -> None:
    """sm_80 has the whole GPU for what sm_90 does in clusters; one multiprocessor has a block alone."""
    with on(GPUS["sm_80"]):
        assert ops.plan(GRU, torch.float16, False, 50, 8, 512, 1)[1] == [MMA, GRID, 32, 3]
        assert ops.plan(GRU, torch.float32, False, 50, 8, 256, 1)[1] == [FMA, GRID, 32, 3]
    one = dataclasses.replace(GPUS["sm_80"], multiprocessors=1, clusters=(1, 0, 0, 0, 0))
    with on(one):
        assert ops.plan(GRU, torch.float32, False, 50, 8, 64, 1)[1] == [FMA, BLOCK, 1, 8]
        assert ops.plan(GRU, torch.float32, False, 50, 8, 64, 2)[0] == NO_KERNEL


def test_grids_are_counted(ops: Any) -> None:
    """What runs over the whole GPU says how many blocks have to run at once; clusters need no others."""
    with on(GPUS["sm_90"]):
        of_grid = ops.plan(GRU, torch.float32, False, 50, 1, 1024, 1)[3]
        assert of_grid == [80, of_grid[1], 1, 128, 1]
        of_cluster = ops.plan(GRU, torch.float16, False, 50, 100, 512, 1)[3]
        assert of_cluster == [90, of_cluster[1], 16, 0, 1]


@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_90", "sm_90 with 16 multiprocessors", "sm_120"])
def test_sample_runs_right(ops: Any, name: str) -> None:
    """What a GPU's plan says, the emulator of that GPU takes, and the result is right."""
    ran = 0
    with on(GPUS[name]):
        for (cell, dtype), (batch, hidden, directions) in itertools.product(
            itertools.product(CELLS.values(), DTYPES), ((3, 40, 2), (9, 200, 1), (2, 120, 2))
        ):
            reason, numbers, _, _ = ops.plan(cell, dtype, False, 3, batch, hidden, directions)
            if not reason:
                check(ops, new_case(cell, dtype, hidden=hidden, batch=batch, directions=directions), numbers)
                ran += 1
    assert ran >= 18
