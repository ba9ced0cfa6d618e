"""What the tests of the recurrent CUDA kernels on the CPU share: the kernels, compiled, and tolerances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from device_on_host import library

FMA, MMA, TF32 = 0, 1, 2
BLOCK, CLUSTER, GRID = 0, 1, 2
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Error against float64 of a state after a few steps; values are of the order of 0.5.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
TF32_TOLERANCE = 2e-3
ORDERS = {"forward": (0, 0), "backward": (1, 0), "shuffled": (2, 7)}
"""In which the threads of a block get their turns: arguments of ``order_of_threads``."""


TRAINING = [
    "ops/rnn/cudnn_handle.cpp",
    "ops/rnn/training/cudnn_rnn_backward.cpp",
    "ops/rnn/training/layer.cpp",
    "ops/rnn/training/layer_coefficients.cpp",
    "ops/rnn/training/layer_gates.cpp",
    "ops/rnn/training/scratch.cpp",
    "ops/rnn/training/both_directions.cpp",
    "ops/rnn/training/few_rows.cu",
    "ops/rnn/training/plan.cpp",
    "ops/rnn/training/recompute.cu",
    "ops/rnn/training/step.cu",
    "ops/rnn/training/copies.cu",
    "ops/rnn/training/packed.cu",
    "ops/rnn/training/column_sums.cu",
    "ops/rnn/training/dropout.cu",
    "ops/rnn/backward/plan.cpp",
    "ops/rnn/backward/cluster_backward.cu",
    "ops/rnn/backward/recurrence_backward.cu",
]


def load() -> Any:
    """All kernels of the family as operators, and what gru_ops.cpp adds to them, which is returned."""
    library.load(
        "cudnn_rnn",
        "ops/rnn/cudnn_rnn.cpp",
        "ops/rnn/layer_recurrence.cpp",
        "ops/rnn/projection.cpp",
        "ops/rnn/lt_product.cpp",
        "ops/rnn/recurrence.cu",
        "ops/rnn/packed_sequence.cu",
        "ops/rnn/pack_weights.cu",
        "core/capture.cpp",
        "ops/rnn/problem.cpp",
        "ops/rnn/plan.cpp",
        "ops/rnn/plan_description.cpp",
        "ops/rnn/pieces.cpp",
        *TRAINING,
        "ops/rnn/step_policy.cpp",
        "ops/rnn/recurrence_shape.cpp",
        *(
            f"ops/rnn/{cell}_{part}.cu"
            for cell in ("gru", "lstm", "rnn_tanh", "rnn_relu", "saving_gru", "saving_lstm")
            for part in ("cluster", "grid")
        ),
        *(f"ops/rnn/{cell}_step.cu" for cell in ("gru", "lstm", "rnn")),
        "ops/rnn/cells.cpp",
        "ops/rnn/thnn_fused_gru_cell.cu",
        "ops/rnn/thnn_fused_gru_cell.cpp",
        "ops/rnn/thnn_fused_gru_cell_backward.cu",
        "ops/rnn/thnn_fused_gru_cell_backward.cpp",
        "ops/rnn/thnn_fused_lstm_cell.cu",
        "ops/rnn/thnn_fused_lstm_cell.cpp",
        str(Path(__file__).with_name("gru_ops.cpp")),
        str(Path(__file__).parent / "backward" / "backward_ops.cpp"),
        str(Path(__file__).parent / "training" / "gradient_ops.cpp"),
    )
    return torch.ops.aten_ext_on_host_gru


@contextmanager
def order_of_threads(order: int, seed: int) -> Iterator[None]:
    """0 forward, 1 backward, 2 shuffled by a seed, in a ``with`` block."""
    torch.ops.aten_ext_on_host_cudnn_rnn.set_order(order, seed)
    yield
    torch.ops.aten_ext_on_host_cudnn_rnn.set_order(0, 0)
