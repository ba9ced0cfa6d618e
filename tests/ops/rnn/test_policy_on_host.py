"""Which kernel of the GRU a call takes, by its sizes and the GPU: policy and kernels agree."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from device_on_host import library
from gpus import GPUS, Gpu, pretended
from ops.rnn.cases import GRU, LSTM, RELU, TANH
from ops.rnn.on_host_cases import BLOCK, CLUSTER, FMA, GRID, MMA, TF32, load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

H200 = GPUS["sm_90"]


def gpu(capability: int, multiprocessors: int, four: int, eight: int, sixteen: int) -> Gpu:
    clusters = (multiprocessors, 2 * four, four, eight, sixteen)
    return dataclasses.replace(
        H200, capability=capability, code=capability, multiprocessors=multiprocessors, clusters=clusters
    )


# Compute capability, multiprocessors, clusters of 4, 8, 16; with the shared memory of an H200.
DEVICES = {
    "H200": H200,
    "A100": gpu(80, 108, 0, 0, 0),
    "no clusters of 16": gpu(120, 188, 44, 20, 0),
    "a slice of a GPU": gpu(90, 16, 4, 2, 1),
    "a small one": gpu(80, 20, 0, 0, 0),
}


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


ROUTES = ["recurrence", "step"]


def plan(
    ops: Any,
    *,
    sixteen: bool = False,
    tf32: bool = False,
    steps: int = 50,
    batch: int = 1,
    inputs: int = 128,
    hidden: int = 256,
    directions: int = 1,
    device: str = "H200",
    mode: int = GRU,
) -> tuple[Any, ...]:
    """Reason; or route, math, exchange, blocks, rows."""
    with pretended(DEVICES[device], torch.ops.aten_ext_on_host_cudnn_rnn.set_gpu):
        reason, numbers, _ = ops.plan(sixteen, tf32, steps, batch, inputs, hidden, directions, mode)
    return (reason,) if reason else (ROUTES[numbers[0]], *numbers[1:])


NO_KERNEL, LARGE_BATCH = "hidden size without a kernel", "batch too large for the hidden size"
LARGE_STEP, FEW_STEPS = "one step of a large batch", "few steps of a large layer"
KEPT = "layer that cuDNN keeps on the chip"
KEPT_STEPS = "few steps that upstream runs in less time"
PERSISTENT = "long sequence of a layer that cuDNN keeps on the chip"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # One step, whose weights are 256 * 384: fp32, TF32, 16 bits.
        ({"steps": 1, "batch": 8}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 18}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 19}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 1024, "hidden": 8}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 1025, "hidden": 8}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 4, "hidden": 8, "inputs": 16376}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 4, "hidden": 8, "inputs": 16377}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 512}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 15, "tf32": True, "hidden": 512}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 17, "tf32": True, "hidden": 512}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 96, "tf32": True, "hidden": 512}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 112, "tf32": True, "hidden": 512}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 512, "inputs": 127}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 504}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 512, "inputs": 1440}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 512, "inputs": 1448}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 769, "hidden": 240, "sixteen": True}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 770, "hidden": 240, "sixteen": True}, (LARGE_STEP,)),
        # Many weights: fewer rows. And rows of weights that are no vectors.
        ({"steps": 1, "batch": 8, "hidden": 512, "inputs": 952}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 8, "hidden": 512, "inputs": 956}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 9, "hidden": 512, "inputs": 32}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 15, "inputs": 127}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 16, "inputs": 127}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 4, "hidden": 2048, "inputs": 2048}, ("step", 0, 0, 0, 0)),
        # A few steps: a launch for each.
        ({"steps": 3, "batch": 8}, ("step", 0, 0, 0, 0)),
        # Four, or three of a small layer in 16 bits: one launch, if there is a kernel.
        ({"steps": 4, "batch": 8}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"steps": 4, "batch": 4, "hidden": 260}, ("step", 0, 0, 0, 0)),
        ({"steps": 4, "batch": 4, "hidden": 400, "sixteen": True}, ("recurrence", MMA, CLUSTER, 16, 1)),
        ({"steps": 4, "batch": 4, "hidden": 401, "sixteen": True}, ("step", 0, 0, 0, 0)),
        ({"steps": 3, "batch": 4, "hidden": 64, "sixteen": True}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"steps": 3, "batch": 4, "hidden": 65, "sixteen": True}, ("step", 0, 0, 0, 0)),
        ({"steps": 5, "batch": 8}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"steps": 2, "batch": 9}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"steps": 2, "batch": 4, "hidden": 512, "inputs": 560}, ("step", 0, 0, 0, 0)),
        ({"steps": 2, "batch": 4, "hidden": 512, "inputs": 564}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"steps": 2, "hidden": 1536, "inputs": 1263, "sixteen": True}, ("step", 0, 0, 0, 0)),
        ({"steps": 2, "hidden": 1536, "inputs": 1264, "sixteen": True}, (FEW_STEPS,)),
        ({"steps": 3, "batch": 4, "hidden": 1024}, (FEW_STEPS,)),
        ({"steps": 5, "batch": 4, "hidden": 1024}, ("recurrence", FMA, GRID, 128, 4)),
        ({"steps": 9, "hidden": 2048}, (FEW_STEPS,)),
        ({"steps": 10, "hidden": 2048}, ("recurrence", FMA, GRID, 128, 1)),
        ({"steps": 3, "batch": 345, "sixteen": True}, ("step", 0, 0, 0, 0)),
        ({"steps": 3, "batch": 346, "sixteen": True}, ("recurrence", MMA, CLUSTER, 4, 12)),
        ({"steps": 2, "batch": 129, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        # Few units with long rows of W_ih.
        ({"steps": 3, "hidden": 20, "inputs": 300}, ("step", 0, 0, 0, 0)),
        ({"steps": 3, "hidden": 20, "inputs": 301}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"steps": 3, "hidden": 20, "inputs": 301, "directions": 2}, ("step", 0, 0, 0, 0)),
        # One block after a GEMM, of rows that share it.
        ({"steps": 3, "batch": 2, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"steps": 2, "batch": 4, "hidden": 128}, ("step", 0, 0, 0, 0)),
        ({"steps": 2, "batch": 5, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"steps": 3, "batch": 4, "hidden": 129}, ("step", 0, 0, 0, 0)),
        ({"steps": 1, "batch": 4, "hidden": 20, "inputs": 301}, ("step", 0, 0, 0, 0)),
        # fp32: a block, clusters of 8 and 16, the whole GPU.
        ({"hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 129}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"hidden": 256}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"hidden": 257}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"hidden": 513}, ("recurrence", FMA, GRID, 65, 1)),
        ({"hidden": 1024}, ("recurrence", FMA, GRID, 128, 1)),
        ({"hidden": 2048}, ("recurrence", FMA, GRID, 128, 1)),
        ({"hidden": 2049}, (NO_KERNEL,)),
        ({"hidden": 1056, "directions": 2}, ("recurrence", FMA, GRID, 66, 1)),
        ({"hidden": 1057, "directions": 2}, (NO_KERNEL,)),
        # 16 bits.
        ({"sixteen": True, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"sixteen": True, "hidden": 129}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"sixteen": True, "hidden": 256}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"sixteen": True, "hidden": 257}, ("recurrence", MMA, CLUSTER, 16, 1)),
        ({"sixteen": True, "hidden": 640}, ("recurrence", MMA, CLUSTER, 16, 1)),
        ({"sixteen": True, "hidden": 641}, ("recurrence", MMA, GRID, 41, 1)),
        ({"sixteen": True, "hidden": 2048}, ("recurrence", MMA, GRID, 128, 1)),
        ({"sixteen": True, "hidden": 2049}, (NO_KERNEL,)),
        # Rows of a group: as few as let all groups run at once, and not too many.
        ({"batch": 132, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"batch": 133, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 2)),
        ({"batch": 15}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"batch": 16}, ("recurrence", FMA, CLUSTER, 4, 1)),
        ({"batch": 30}, ("recurrence", FMA, CLUSTER, 4, 1)),
        ({"batch": 31}, ("recurrence", FMA, CLUSTER, 8, 3)),
        ({"batch": 7, "directions": 2}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"batch": 8, "directions": 2}, ("recurrence", FMA, CLUSTER, 4, 1)),
        ({"batch": 112, "hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 16)),
        ({"batch": 113, "hidden": 512}, (LARGE_BATCH,)),
        ({"sixteen": True, "batch": 480, "hidden": 512}, ("recurrence", MMA, CLUSTER, 8, 32)),
        ({"sixteen": True, "batch": 481, "hidden": 512}, (LARGE_BATCH,)),
        # cuDNN's persistent kernel.
        ({"hidden": 64}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 65}, (PERSISTENT,)),
        ({"hidden": 65, "sixteen": True, "batch": 16}, (PERSISTENT,)),
        ({"hidden": 96, "directions": 2, "batch": 8}, (PERSISTENT,)),
        ({"hidden": 97}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 96, "batch": 17}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 96, "directions": 2, "batch": 9}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 96, "steps": 33}, (PERSISTENT,)),
        ({"hidden": 96, "steps": 32}, ("recurrence", FMA, BLOCK, 1, 1)),
        # Small blocks share an SM.
        ({"batch": 12 * 132, "hidden": 32}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"batch": 12 * 132 + 1, "hidden": 32}, ("recurrence", FMA, BLOCK, 1, 2)),
        ({"batch": 3 * 132, "hidden": 33}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"batch": 3 * 132 + 1, "hidden": 33}, ("recurrence", FMA, BLOCK, 1, 2)),
        # 16 bits: tensor cores from so many rows; clusters that leave one tile of rows.
        ({"sixteen": True, "batch": 9 * 132, "hidden": 64}, ("recurrence", FMA, BLOCK, 1, 3)),
        ({"sixteen": True, "batch": 9 * 132 + 1, "hidden": 64}, ("recurrence", MMA, BLOCK, 1, 4)),
        ({"sixteen": True, "batch": 264, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 2)),
        ({"sixteen": True, "batch": 265, "hidden": 128}, ("recurrence", MMA, BLOCK, 1, 3)),
        ({"sixteen": True, "batch": 15}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"sixteen": True, "batch": 16}, ("recurrence", MMA, CLUSTER, 8, 2)),
        ({"sixteen": True, "batch": 120}, ("recurrence", MMA, CLUSTER, 8, 8)),
        ({"sixteen": True, "batch": 121}, ("recurrence", MMA, CLUSTER, 4, 5)),
        ({"sixteen": True, "batch": 56, "hidden": 512}, ("recurrence", MMA, CLUSTER, 16, 8)),
        ({"sixteen": True, "batch": 57, "hidden": 512}, ("recurrence", MMA, CLUSTER, 8, 4)),
        ({"sixteen": True, "batch": 224, "hidden": 640}, ("recurrence", MMA, CLUSTER, 16, 32)),
        ({"sixteen": True, "batch": 225, "hidden": 640}, (LARGE_BATCH,)),
        ({"batch": 32, "hidden": 1024}, ("recurrence", FMA, GRID, 128, 32)),
        ({"batch": 33, "hidden": 1024}, (LARGE_BATCH,)),
        ({"batch": 3, "hidden": 2048}, ("recurrence", FMA, GRID, 128, 3)),
        ({"batch": 4, "hidden": 2048}, (LARGE_BATCH,)),
        ({"sixteen": True, "batch": 64, "hidden": 1024}, ("recurrence", MMA, GRID, 64, 32)),
        ({"sixteen": True, "batch": 65, "hidden": 1024}, (LARGE_BATCH,)),
        ({"sixteen": True, "batch": 32, "hidden": 1025}, ("recurrence", MMA, GRID, 65, 16)),
        ({"sixteen": True, "batch": 33, "hidden": 1025}, (LARGE_BATCH,)),
        ({"sixteen": True, "batch": 16, "hidden": 2048}, ("recurrence", MMA, GRID, 128, 16)),
        ({"sixteen": True, "batch": 17, "hidden": 2048}, (LARGE_BATCH,)),
        ({"hidden": 1024, "directions": 2}, ("recurrence", FMA, GRID, 64, 1)),
        ({"sixteen": True, "batch": 4, "hidden": 1024, "directions": 2}, ("recurrence", MMA, GRID, 64, 4)),
        # TF32 where it is allowed and rows are many.
        ({"tf32": True, "batch": 7, "hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"tf32": True, "batch": 16, "hidden": 492}, ("recurrence", FMA, CLUSTER, 16, 3)),
        ({"tf32": True, "batch": 16, "hidden": 496}, ("recurrence", TF32, GRID, 31, 4)),
        ({"tf32": True, "batch": 15, "hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 3)),
        ({"tf32": True, "batch": 17, "hidden": 512}, ("recurrence", TF32, GRID, 32, 5)),
        ({"tf32": True, "batch": 20, "hidden": 512}, ("recurrence", TF32, GRID, 32, 5)),
        ({"tf32": True, "batch": 20, "hidden": 512, "steps": 5}, ("recurrence", TF32, GRID, 32, 5)),
        ({"tf32": True, "batch": 20, "hidden": 512, "steps": 4}, ("recurrence", TF32, CLUSTER, 16, 3)),
        ({"tf32": True, "batch": 20, "hidden": 260}, ("recurrence", TF32, GRID, 17, 3)),
        ({"tf32": True, "batch": 5, "hidden": 596}, ("recurrence", FMA, GRID, 75, 5)),
        ({"tf32": True, "batch": 5, "hidden": 600}, ("recurrence", TF32, GRID, 38, 2)),
        ({"tf32": True, "batch": 19, "hidden": 640}, ("recurrence", TF32, GRID, 40, 7)),
        ({"tf32": True, "batch": 64, "hidden": 512}, ("recurrence", TF32, GRID, 32, 16)),
        ({"tf32": True, "batch": 65, "hidden": 512}, ("recurrence", TF32, CLUSTER, 16, 10)),
        ({"tf32": True, "batch": 112, "hidden": 512}, ("recurrence", TF32, CLUSTER, 16, 16)),
        ({"tf32": True, "batch": 128, "hidden": 512}, ("recurrence", TF32, GRID, 32, 32)),
        ({"tf32": True, "batch": 129, "hidden": 512}, ("recurrence", TF32, CLUSTER, 16, 19)),
        # The state of an RNN of exactly 16 rows is in fp32 up to a size of its own.
        ({"mode": TANH, "tf32": True, "batch": 15, "hidden": 640}, ("recurrence", TF32, GRID, 40, 5)),
        ({"mode": TANH, "tf32": True, "batch": 16, "hidden": 748}, (LARGE_BATCH,)),
        ({"mode": TANH, "tf32": True, "batch": 16, "hidden": 752}, ("recurrence", TF32, GRID, 47, 8)),
        ({"tf32": True, "batch": 15}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"tf32": True, "batch": 16}, ("recurrence", FMA, CLUSTER, 4, 1)),
        ({"tf32": True, "batch": 17}, ("recurrence", TF32, CLUSTER, 8, 2)),
        ({"tf32": True, "batch": 20}, ("recurrence", TF32, CLUSTER, 8, 2)),
        ({"tf32": True, "batch": 20, "hidden": 192}, ("recurrence", FMA, CLUSTER, 4, 1)),
        ({"tf32": True, "batch": 20, "hidden": 196}, ("recurrence", TF32, CLUSTER, 8, 2)),
        ({"tf32": True, "batch": 121}, ("recurrence", TF32, CLUSTER, 4, 5)),
        ({"tf32": True, "batch": 264, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 2)),
        ({"tf32": True, "batch": 265, "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 3)),
        ({"tf32": False, "batch": 29, "hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 5)),
        ({"tf32": True, "batch": 113, "hidden": 512}, ("recurrence", TF32, GRID, 32, 29)),
        ({"tf32": True, "batch": 4, "hidden": 1024}, ("recurrence", FMA, GRID, 128, 4)),
        ({"tf32": True, "batch": 5, "hidden": 1024}, ("recurrence", TF32, GRID, 64, 3)),
        ({"tf32": True, "batch": 64, "hidden": 1024}, ("recurrence", TF32, GRID, 64, 32)),
        ({"tf32": True, "batch": 65, "hidden": 1024}, (LARGE_BATCH,)),
        ({"tf32": True, "batch": 5, "hidden": 1025}, (LARGE_BATCH,)),
        ({"tf32": True, "batch": 158, "hidden": 12, "inputs": 620}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"batch": 158, "hidden": 12, "inputs": 620}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"tf32": True, "batch": 16, "hidden": 1024, "inputs": 1024}, ("recurrence", TF32, GRID, 64, 8)),
        ({"tf32": True, "batch": 48, "hidden": 512, "inputs": 1024}, ("recurrence", TF32, GRID, 32, 12)),
        ({"tf32": False, "batch": 24, "hidden": 1024, "inputs": 1024}, ("recurrence", FMA, GRID, 128, 24)),
        (
            {"sixteen": True, "tf32": True, "batch": 24, "hidden": 1024, "inputs": 1024},
            ("recurrence", MMA, GRID, 64, 12),
        ),
        # Other GPUs.
        ({"device": "A100", "hidden": 128}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"device": "A100", "hidden": 256}, ("recurrence", FMA, GRID, 32, 1)),
        ({"device": "A100", "hidden": 1728}, ("recurrence", FMA, GRID, 108, 1)),
        ({"device": "A100", "hidden": 1729}, (NO_KERNEL,)),
        ({"device": "no clusters of 16", "hidden": 256}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"device": "no clusters of 16", "hidden": 512}, ("recurrence", FMA, GRID, 64, 1)),
        ({"device": "a small one", "hidden": 320}, ("recurrence", FMA, GRID, 20, 1)),
        ({"device": "a small one", "hidden": 321}, (NO_KERNEL,)),
        ({"steps": 2**31 // 256}, ("sizes beyond 32 bits",)),
    ],
    ids=str,
)
def test_policy(ops: Any, changes: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert plan(ops, **changes) == expected


@pytest.mark.parametrize(
    ("sixteen", "allowed", "steps", "batch", "inputs", "hidden", "expected"),
    [
        (False, False, 50, 24, 1024, 1024, False),
        (True, True, 50, 24, 1024, 1024, False),
        (False, True, 50, 5, 8, 1024, True),  # the recurrence is in TF32
        (False, True, 12, 4, 1016, 1024, False),  # 25 MFLOP a step
        (False, True, 12, 4, 1020, 1024, True),
        (False, True, 12, 4, 1022, 1024, False),  # no whole vectors of four: cuDNN takes no TF32
        # Where columns and rows are many always: from fewer on in small layers.
        (False, True, 50, 4, 112, 196, True),
        (False, True, 50, 4, 108, 196, False),
        (False, True, 49, 1, 2048, 196, True),
        (False, True, 48, 1, 2048, 196, False),
        (False, True, 50, 4, 84, 192, True),
        (False, True, 50, 4, 80, 192, False),
        (False, True, 50, 4, 84, 196, False),
        (False, True, 17, 1, 2048, 192, True),
        (False, True, 16, 1, 2048, 192, False),
        # Of many rows always.
        (False, True, 41, 100, 8, 36, True),
        (False, True, 40, 100, 8, 36, False),
        (False, True, 41, 100, 4, 36, False),
        # Of small layers without vectors, if columns and results are many.
        (False, True, 50, 4, 200, 33, True),
        (False, True, 50, 4, 199, 33, False),
        (False, True, 50, 4, 201, 32, True),
        (False, True, 50, 4, 201, 31, False),
        (False, True, 50, 4, 201, 192, True),
        (False, True, 50, 4, 201, 193, False),
        (False, False, 50, 4, 201, 192, False),
        # Beside a state in TF32, if columns and rows are many.
        (False, True, 50, 5, 201, 1024, True),
        (False, True, 50, 5, 199, 1024, False),
        (False, True, 9, 5, 201, 1024, False),
        (False, True, 10, 5, 201, 1024, True),
        # Few rows are a kernel of our own: up to 128, 12 million multiply-adds and 1.3 million weights.
        (False, True, 129, 1, 84, 192, True),
        (False, True, 128, 1, 84, 192, False),
        (False, True, 25, 1, 832, 192, False),
        (False, True, 25, 1, 836, 192, True),
        (False, True, 2, 1600, 80, 8, True),  # a narrow product takes as long as one of 128 gates
        (False, True, 2, 1200, 80, 8, False),
        (False, True, 1, 16, 512, 512, True),
        (False, True, 1, 8, 512, 512, False),
    ],
)
def test_tf32_products(
    ops: Any,
    sixteen: bool,
    allowed: bool,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    expected: bool,
) -> None:
    """fp32 means fp32 unless cuDNN may use TF32; and a small product is not worth it."""
    reason, _, tf32 = ops.plan(sixteen, allowed, steps, batch, inputs, hidden, 1, GRU)
    assert (reason, tf32) == ("", expected)


STEP = ("step", 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Where a block, a cluster and the whole GPU end: an LSTM has a third more weights than a GRU.
        ({"hidden": 64}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 96}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 97}, ("recurrence", FMA, CLUSTER, 2, 1)),
        ({"hidden": 128}, ("recurrence", FMA, CLUSTER, 2, 1)),
        ({"hidden": 129}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"hidden": 384}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"hidden": 385}, ("recurrence", FMA, GRID, 49, 1)),
        ({"hidden": 512, "batch": 3}, ("recurrence", FMA, GRID, 64, 2)),
        ({"hidden": 1024}, ("recurrence", FMA, GRID, 128, 1)),
        ({"hidden": 1025}, ("recurrence", FMA, GRID, 129, 1)),
        ({"hidden": 528, "directions": 2}, ("recurrence", FMA, GRID, 66, 1)),
        ({"hidden": 529, "directions": 2}, (NO_KERNEL,)),
        ({"sixteen": True, "hidden": 512, "batch": 8}, ("recurrence", MMA, CLUSTER, 16, 2)),
        ({"sixteen": True, "hidden": 512, "batch": 56}, ("recurrence", MMA, CLUSTER, 16, 8)),
        ({"sixteen": True, "hidden": 512, "batch": 57}, ("recurrence", MMA, GRID, 32, 15)),
        # Two tiles of rows in clusters instead of three over the whole GPU; and rows that it has no room for.
        ({"sixteen": True, "hidden": 512, "batch": 64}, ("recurrence", MMA, GRID, 32, 16)),
        ({"sixteen": True, "hidden": 512, "batch": 65}, ("recurrence", MMA, CLUSTER, 16, 10)),
        ({"sixteen": True, "hidden": 512, "batch": 112}, ("recurrence", MMA, CLUSTER, 16, 16)),
        ({"sixteen": True, "hidden": 512, "batch": 113}, ("recurrence", MMA, GRID, 32, 29)),
        ({"sixteen": True, "hidden": 512, "batch": 128}, ("recurrence", MMA, GRID, 32, 32)),
        ({"sixteen": True, "hidden": 512, "batch": 129}, ("recurrence", MMA, CLUSTER, 16, 19)),
        ({"sixteen": True, "hidden": 512, "batch": 224}, ("recurrence", MMA, CLUSTER, 16, 32)),
        ({"sixteen": True, "hidden": 512, "batch": 225}, (LARGE_BATCH,)),
        ({"sixteen": True, "hidden": 513, "batch": 8}, ("recurrence", MMA, GRID, 33, 2)),
        ({"sixteen": True, "hidden": 2048, "batch": 16}, ("recurrence", MMA, GRID, 128, 16)),
        ({"sixteen": True, "hidden": 2048, "batch": 17}, (LARGE_BATCH,)),
        ({"sixteen": True, "batch": 15}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"sixteen": True, "batch": 16}, ("recurrence", MMA, CLUSTER, 8, 2)),
        # TF32 where cuDNN was seen to use it.
        ({"tf32": True, "batch": 16}, ("recurrence", FMA, CLUSTER, 8, 2)),
        ({"tf32": True, "batch": 17}, ("recurrence", TF32, CLUSTER, 8, 2)),
        ({"tf32": True, "batch": 64, "hidden": 192}, ("recurrence", FMA, CLUSTER, 8, 5)),
        ({"tf32": True, "batch": 2, "hidden": 448}, ("recurrence", FMA, GRID, 56, 1)),
        ({"tf32": True, "batch": 3, "hidden": 448}, ("recurrence", TF32, GRID, 28, 1)),
        ({"tf32": True, "batch": 16, "hidden": 444}, ("recurrence", FMA, GRID, 56, 8)),
        ({"tf32": True, "batch": 32, "hidden": 800, "directions": 2}, ("recurrence", TF32, GRID, 50, 32)),
        ({"tf32": True, "batch": 32, "hidden": 1024}, ("recurrence", TF32, GRID, 64, 16)),
        ({"tf32": True, "batch": 33, "hidden": 1024}, (NO_KERNEL,)),
        ({"tf32": True, "batch": 1, "hidden": 800, "directions": 2}, (NO_KERNEL,)),
        ({"tf32": True, "batch": 2, "hidden": 800, "directions": 2}, ("recurrence", TF32, GRID, 50, 2)),
        # What cuDNN keeps on the chip too.
        ({"hidden": 56}, (KEPT,)),
        ({"hidden": 57}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 64, "batch": 33}, (KEPT,)),
        ({"hidden": 64, "batch": 32}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 64, "batch": 9, "steps": 65}, (KEPT,)),
        ({"hidden": 64, "batch": 8, "steps": 65}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 96, "steps": 65}, (KEPT,)),
        ({"hidden": 96, "steps": 64}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 112, "steps": 65}, (KEPT,)),
        ({"hidden": 113, "steps": 65}, ("recurrence", FMA, CLUSTER, 2, 1)),
        ({"sixteen": True, "hidden": 56}, (KEPT,)),
        ({"sixteen": True, "hidden": 56, "batch": 8}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"sixteen": True, "hidden": 1024, "batch": 16}, (KEPT,)),
        ({"sixteen": True, "hidden": 1024, "batch": 16, "inputs": 64}, ("recurrence", MMA, GRID, 64, 8)),
        ({"sixteen": True, "hidden": 1024, "batch": 24}, ("recurrence", MMA, GRID, 64, 12)),
        # A few steps.
        ({"steps": 1, "batch": 4}, STEP),
        ({"steps": 1, "batch": 19}, STEP),
        ({"steps": 1, "batch": 20}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 30, "hidden": 192}, STEP),
        ({"steps": 1, "batch": 31, "hidden": 192}, ("recurrence", FMA, CLUSTER, 8, 3)),
        ({"steps": 1, "batch": 8, "hidden": 512, "inputs": 400}, STEP),
        ({"steps": 1, "batch": 8, "hidden": 512, "inputs": 404}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 17, "tf32": True}, STEP),
        ({"steps": 1, "batch": 5, "tf32": True, "hidden": 512}, STEP),
        ({"steps": 1, "batch": 64, "tf32": True, "hidden": 512, "inputs": 512}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 17, "tf32": True, "hidden": 1024, "inputs": 1024}, (KEPT_STEPS,)),
        ({"steps": 1, "batch": 16, "tf32": True, "hidden": 1024, "inputs": 1024}, STEP),
        ({"steps": 4, "batch": 32, "tf32": True, "hidden": 512}, STEP),
        ({"steps": 4, "batch": 33, "tf32": True, "hidden": 512}, (FEW_STEPS,)),
        ({"steps": 1, "batch": 64, "sixteen": True, "hidden": 512, "inputs": 512}, STEP),
        ({"steps": 1, "batch": 65, "sixteen": True, "hidden": 512, "inputs": 512}, (KEPT_STEPS,)),
        ({"steps": 3, "batch": 32, "sixteen": True, "hidden": 512, "inputs": 512}, STEP),
        (
            {"steps": 3, "batch": 33, "sixteen": True, "hidden": 512, "inputs": 512},
            ("recurrence", MMA, CLUSTER, 16, 5),
        ),
        # Rows that are no whole vectors.
        ({"steps": 1, "batch": 11, "sixteen": True, "hidden": 650, "inputs": 650}, (LARGE_STEP,)),
        ({"steps": 1, "batch": 11, "sixteen": True, "hidden": 648, "inputs": 648}, STEP),
        ({"steps": 1, "sixteen": True, "hidden": 650, "inputs": 650}, STEP),
        # Both directions count.
        ({"steps": 1, "batch": 22, "tf32": True, "hidden": 512, "directions": 2}, STEP),
        ({"steps": 1, "batch": 23, "tf32": True, "hidden": 512, "directions": 2}, (LARGE_STEP,)),
        ({"hidden": 1024, "batch": 16}, ("recurrence", FMA, GRID, 128, 16)),
        ({"hidden": 1024, "batch": 17}, (LARGE_BATCH,)),
        # Other GPUs.
        ({"device": "A100", "hidden": 128}, ("recurrence", FMA, GRID, 16, 1)),
        ({"device": "no clusters of 16", "hidden": 384}, ("recurrence", FMA, GRID, 48, 1)),
        ({"device": "a small one", "hidden": 161}, (NO_KERNEL,)),
        ({"device": "a small one", "hidden": 320, "sixteen": True}, ("recurrence", MMA, GRID, 20, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_policy_of_an_lstm(ops: Any, changes: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert plan(ops, mode=LSTM, **changes) == expected


@pytest.mark.parametrize("mode", [TANH, RELU], ids=["tanh", "relu"])
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hidden": 92}, (KEPT,)),
        ({"hidden": 96}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"steps": 4, "hidden": 80}, (KEPT,)),
        ({"steps": 4, "hidden": 81}, STEP),
        ({"steps": 4, "hidden": 128, "batch": 5}, (KEPT,)),
        ({"steps": 4, "hidden": 512, "batch": 65}, (FEW_STEPS,)),
        ({"steps": 4, "hidden": 512, "batch": 64, "tf32": True}, ("recurrence", TF32, CLUSTER, 16, 10)),
        ({"batch": 15}, ("recurrence", FMA, CLUSTER, 8, 1)),
        ({"batch": 16}, ("recurrence", FMA, CLUSTER, 4, 1)),
        ({"batch": 16, "sixteen": True}, ("recurrence", MMA, CLUSTER, 8, 2)),
        ({"batch": 480}, ("recurrence", FMA, CLUSTER, 4, 16)),
        ({"batch": 481}, (LARGE_BATCH,)),
        ({"batch": 16, "hidden": 176}, ("recurrence", FMA, CLUSTER, 4, 1)),
        ({"batch": 17, "hidden": 176}, (KEPT,)),
        ({"batch": 32, "hidden": 192, "steps": 65}, ("recurrence", FMA, CLUSTER, 4, 2)),
        ({"batch": 33, "hidden": 192}, (KEPT,)),
        ({"batch": 48, "hidden": 218}, ("recurrence", FMA, CLUSTER, 4, 2)),
        ({"batch": 49, "hidden": 218, "steps": 65}, (KEPT,)),
        ({"batch": 84, "hidden": 226}, ("recurrence", FMA, CLUSTER, 4, 3)),
        ({"batch": 85, "hidden": 226}, (KEPT,)),
        ({"batch": 85, "hidden": 227}, ("recurrence", FMA, CLUSTER, 4, 3)),
        ({"hidden": 40, "directions": 2, "batch": 64}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 40, "directions": 2, "batch": 65}, (KEPT,)),
        ({"hidden": 1024, "batch": 12}, ("recurrence", FMA, GRID, 128, 12)),
        ({"hidden": 1024, "batch": 13}, (LARGE_BATCH,)),
        ({"hidden": 96, "batch": 9, "steps": 65}, (KEPT,)),
        ({"hidden": 128, "batch": 32, "steps": 65}, ("recurrence", FMA, BLOCK, 1, 1)),
        ({"hidden": 128, "batch": 33, "steps": 65}, (KEPT,)),
        ({"sixteen": True, "batch": 136}, (KEPT,)),
        ({"sixteen": True, "batch": 128}, ("recurrence", MMA, CLUSTER, 4, 5)),
        ({"hidden": 512}, ("recurrence", FMA, CLUSTER, 16, 1)),
        ({"hidden": 1056, "directions": 2, "steps": 9}, (FEW_STEPS,)),
        ({"sixteen": True, "hidden": 640}, ("recurrence", MMA, CLUSTER, 16, 1)),
        ({"tf32": True, "hidden": 384, "batch": 64}, ("recurrence", FMA, CLUSTER, 16, 10)),
        ({"tf32": True, "hidden": 388, "batch": 17}, ("recurrence", TF32, GRID, 25, 4)),
        ({"tf32": True, "hidden": 388, "batch": 16}, ("recurrence", FMA, CLUSTER, 16, 3)),
        ({"tf32": True, "hidden": 1024, "batch": 64}, ("recurrence", TF32, GRID, 64, 32)),
        ({"steps": 1, "batch": 8}, STEP),
        ({"steps": 1, "batch": 33}, STEP),
        ({"steps": 1, "batch": 34}, ("recurrence", FMA, CLUSTER, 4, 2)),
        ({"steps": 1, "batch": 53, "hidden": 192}, STEP),
        ({"steps": 1, "batch": 54, "hidden": 192}, (LARGE_STEP,)),
        ({"steps": 3, "batch": 4, "hidden": 1024, "inputs": 1024}, STEP),
        ({"steps": 3, "batch": 5, "hidden": 1024, "inputs": 1024}, (FEW_STEPS,)),
    ],
    ids=str,
)  # fmt: skip
def test_policy_of_an_rnn(ops: Any, mode: int, changes: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert plan(ops, mode=mode, **changes) == expected
