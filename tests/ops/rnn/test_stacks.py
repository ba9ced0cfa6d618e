"""Stacks of large layers, which upstream runs beside one another: both sides of each edge of the tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ops.rnn.cases import LSTM, RELU, TANH, ask_layer, tf32_allowed, with_gradients

KEPT = "layer that upstream trains in less time"

# One of each row of the tables, and what it is not for any more. An H200 has room for two groups of H = 720,
# three of H = 640.
STACKS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"hidden": 720, "batch": 39, "layers": 2, "steps": 5},
        [
            *({"batch": 38}, {"hidden": 640}, {"hidden": 904}, {"hidden": 512, "batch": 128}, {"layers": 1}),
            *({"mode": LSTM}, {"mode": TANH}, {"dtype": torch.bfloat16}),
        ],
    ),
    ({"hidden": 720, "batch": 39, "layers": 2, "dtype": torch.float16}, [{"batch": 38}]),
    (
        {"mode": LSTM, "hidden": 720, "batch": 53, "layers": 2, "steps": 9},
        [{"batch": 52}, {"hidden": 848}, {"layers": 1}, {"mode": RELU}],
    ),
    (
        {"mode": RELU, "hidden": 720, "batch": 49, "layers": 3, "steps": 17, "dtype": torch.float16},
        [{"batch": 48}, {"layers": 2}, {"hidden": 640}, {"hidden": 1008}, {"dtype": torch.bfloat16}],
    ),
    (
        {"mode": RELU, "hidden": 720, "batch": 49, "layers": 4, "steps": 9, "dtype": torch.bfloat16},
        [{"batch": 48}, {"layers": 3}, {"hidden": 848}],
    ),
    (
        {"mode": TANH, "hidden": 720, "batch": 55, "layers": 2, "steps": 8},
        [{"batch": 54}, {"layers": 1}, {"steps": 9}],
    ),
    (
        {"mode": LSTM, "hidden": 568, "batch": 48, "layers": 3, "steps": 40},
        [{"batch": 45}, {"layers": 2}, {"hidden": 536}, {"hidden": 848}, {"dtype": torch.bfloat16}],
    ),
    # Of whole vectors alone.
    (
        {"mode": LSTM, "hidden": 720, "batch": 49, "layers": 3, "steps": 20, "dtype": torch.float16},
        [{"batch": 48}, {"layers": 2}, {"hidden": 721}, {"hidden": 1008}, {"dtype": torch.bfloat16}],
    ),
    (
        {"mode": LSTM, "hidden": 720, "batch": 43, "layers": 3, "steps": 10, "dtype": torch.float16},
        [{"batch": 42}, {"layers": 2}, {"hidden": 728}, {"steps": 11}],
    ),
    (
        {"hidden": 912, "batch": 49, "layers": 3, "steps": 20},
        [{"batch": 48}, {"layers": 2}, {"hidden": 936}],
    ),
    (
        {"mode": RELU, "hidden": 720, "batch": 49, "layers": 2, "steps": 16, "dtype": torch.float16},
        [{"batch": 48}, {"layers": 1}, {"hidden": 808}, {"steps": 17}],
    ),
    (
        {"mode": TANH, "hidden": 720, "batch": 55, "layers": 3, "steps": 20, "dtype": torch.bfloat16},
        [{"batch": 54}, {"layers": 2}, {"hidden": 848}],
    ),
    (
        {"mode": TANH, "hidden": 720, "batch": 27, "layers": 4, "steps": 20},
        [{"batch": 26}, {"layers": 3}, {"hidden": 512}, {"dtype": torch.bfloat16}],
    ),
    (
        {"hidden": 1024, "batch": 27, "layers": 5, "steps": 20, "dtype": torch.float16},
        [{"batch": 26}, {"layers": 3}, {"dtype": torch.bfloat16}],
    ),
    (
        {"mode": LSTM, "hidden": 720, "batch": 31, "layers": 3, "steps": 8, "dtype": torch.float16},
        [{"batch": 30}, {"layers": 2}, {"hidden": 1008}, {"steps": 9}],
    ),
    (
        {"mode": LSTM, "hidden": 1024, "batch": 50, "layers": 3, "steps": 8, "dtype": torch.float16},
        [{"batch": 48}, {"layers": 2}, {"steps": 9}, {"dtype": torch.bfloat16}],
    ),
    (
        {"mode": LSTM, "hidden": 560, "batch": 22, "layers": 4, "steps": 13, "dtype": torch.float16},
        [{"batch": 21}, {"layers": 3}, {"hidden": 648}, {"steps": 14}],
    ),
    (
        {"mode": LSTM, "hidden": 1152, "batch": 9, "layers": 3, "steps": 20, "dtype": torch.float16},
        [{"batch": 8}, {"layers": 2}, {"hidden": 1256}, {"dtype": torch.bfloat16}],
    ),
    (
        {"mode": RELU, "hidden": 1344, "batch": 9, "layers": 3, "steps": 20, "dtype": torch.float16},
        [{"batch": 8}, {"layers": 2}, {"hidden": 1688}, {"dtype": torch.bfloat16}],
    ),
    (
        {"mode": TANH, "hidden": 1200, "batch": 11, "layers": 3, "steps": 20, "dtype": torch.bfloat16},
        [{"batch": 10}, {"layers": 2}, {"hidden": 1184}, {"hidden": 1504}],
    ),
    # Multiply-adds all over the GPU.
    (
        {"mode": LSTM, "hidden": 425, "batch": 15, "layers": 3, "steps": 20},
        [{"batch": 14}, {"layers": 2}, {"hidden": 384}, {"hidden": 513}],
    ),
    (
        {"mode": LSTM, "hidden": 392, "batch": 7, "layers": 5, "steps": 18},
        [{"batch": 6}, {"layers": 4}, {"hidden": 384}, {"hidden": 520}],
    ),
    (
        {"hidden": 1040, "batch": 2, "layers": 2, "steps": 40},
        [{"layers": 1}, {"hidden": 1024}, {"mode": LSTM}],
    ),
    (
        {"hidden": 537, "batch": 12, "layers": 4, "steps": 20},
        [{"batch": 11}, {"layers": 3}, {"hidden": 546}],
    ),
    (
        {"mode": RELU, "hidden": 533, "batch": 8, "layers": 5, "steps": 6},
        [{"batch": 7}, {"layers": 4}, {"hidden": 546}, {"steps": 7}],
    ),
    # In clusters of 8 blocks, of which there are 15, and of 16, of which there are seven.
    (
        {"mode": TANH, "hidden": 440, "batch": 376, "layers": 4, "dtype": torch.bfloat16, "inputs": 7},
        [{"batch": 375}, {"layers": 3}, {"hidden": 296}, {"hidden": 442}],
    ),
    (
        {"hidden": 568, "batch": 169, "layers": 3, "steps": 20, "dtype": torch.bfloat16},
        [{"batch": 168}, {"layers": 2}, {"hidden": 570}],
    ),
    (
        {"mode": TANH, "hidden": 448, "batch": 169, "layers": 3, "steps": 20},
        [{"batch": 168}, {"layers": 2}],
    ),
    (
        {"mode": TANH, "hidden": 640, "batch": 169, "layers": 2, "steps": 3, "dtype": torch.float16},
        [{"batch": 168}, {"layers": 1}, {"steps": 5}],
    ),
    (
        {"mode": TANH, "hidden": 640, "batch": 106, "layers": 4, "steps": 20, "dtype": torch.float16},
        [{"batch": 105}, {"layers": 3}, {"dtype": torch.bfloat16}],
    ),
    (
        {"hidden": 376, "batch": 180, "layers": 4, "steps": 16},
        [{"layers": 3}],
    ),
    # Of multiply-adds: a hidden size that is no multiple of four.
    (
        {"hidden": 306, "batch": 91, "layers": 4, "steps": 20},
        [{"batch": 84}, {"layers": 3}, {"hidden": 254}, {"mode": LSTM}],
    ),
]


@pytest.mark.parametrize(("inside", "outside"), STACKS)
def test_inference(inside: dict[str, Any], outside: list[dict[str, Any]]) -> None:
    reason = "large layer that upstream runs in less time"
    with tf32_allowed(True):
        assert ask_layer(**inside) == reason
        assert [ask_layer(**inside | change) for change in outside] == [""] * len(outside)
        assert ask_layer(**inside, bidirectional=True) != reason
        assert ask_layer(steps=256, batch=64, inputs=1024, hidden=1024, layers=2) == ""


# The same in training. An H200 has room for two groups of H = 720, three of H = 560.
IN_TRAINING: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"mode": LSTM, "steps": 47, "batch": 58, "hidden": 560, "layers": 3}, [{"batch": 57}, {"layers": 2}]),
    ({"steps": 38, "batch": 39, "hidden": 720, "layers": 3}, [{"batch": 38}, {"layers": 2}]),
    ({"mode": TANH, "batch": 39, "hidden": 720, "layers": 3, "dtype": torch.bfloat16}, [{"batch": 38}]),
    ({"mode": RELU, "batch": 31, "hidden": 720, "layers": 4}, [{"batch": 30}, {"layers": 3}]),
    (
        {"mode": LSTM, "batch": 45, "hidden": 720, "layers": 2, "dtype": torch.float16},
        [{"batch": 44}, {"layers": 1}, {"dtype": torch.bfloat16}, {"hidden": 632}, {"mode": TANH}],
    ),
    (
        {"mode": TANH, "steps": 8, "batch": 53, "hidden": 720, "layers": 2, "dtype": torch.float16},
        [{"batch": 52}, {"steps": 9}],
    ),
    (
        {"mode": LSTM, "steps": 200, "batch": 9, "hidden": 1120, "layers": 4, "dtype": torch.bfloat16},
        [{"batch": 8}, {"steps": 199}, {"layers": 3}, {"hidden": 1024}, {"mode": TANH}],
    ),
    (
        {"mode": RELU, "steps": 2, "batch": 50, "hidden": 448, "layers": 2},
        [{"batch": 49}, {"layers": 1}, {"steps": 3}, {"hidden": 436}],
    ),
    (
        {"mode": RELU, "steps": 4, "batch": 5, "hidden": 136, "layers": 3, "dtype": torch.bfloat16},
        [{"layers": 2}, {"steps": 5}, {"hidden": 128}],
    ),
    ({"mode": LSTM, "steps": 3, "batch": 5, "hidden": 160, "layers": 3}, [{"layers": 2}, {"hidden": 128}]),
    (
        {"mode": TANH, "steps": 2, "batch": 5, "hidden": 136, "layers": 2, "dtype": torch.bfloat16},
        [{"layers": 1}, {"steps": 3}, {"hidden": 128}],
    ),
    (
        {
            **{"mode": TANH, "steps": 4, "batch": 48, "hidden": 7, "layers": 2},
            **{"dtype": torch.bfloat16, "bidirectional": True},
        },
        [{"batch": 47}, {"steps": 5}, {"hidden": 8}, {"layers": 1}],
    ),
    (
        {"batch": 64, "hidden": 264, "layers": 4, "dtype": torch.bfloat16},
        [{"batch": 63}, {"layers": 3}, {"hidden": 256}, {"hidden": 520}],
    ),
    (
        {"mode": LSTM, "batch": 128, "hidden": 251, "layers": 2, "dtype": torch.bfloat16},
        [{"batch": 127}, {"layers": 1}, {"hidden": 256, "inputs": 8}, {"hidden": 257}],
    ),
]


@pytest.mark.parametrize(("inside", "outside"), IN_TRAINING)
def test_training(inside: dict[str, Any], outside: list[dict[str, Any]]) -> None:
    with tf32_allowed(True):
        inside = {"steps": 30, "inputs": 9} | inside
        assert with_gradients(**inside) == KEPT
        assert [with_gradients(**inside | change) for change in outside] == [""] * len(outside)


# What random stacks added: a stack that is upstream's, and what it is not for any more.
RANDOM_STACKS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"mode": TANH, "steps": 21, "batch": 12, "hidden": 1088, "layers": 4, "dtype": torch.float16},
        [{"batch": 11}, {"layers": 3}, {"hidden": 1408}, {"dtype": torch.bfloat16}],
    ),
    (
        {"mode": TANH, "steps": 50, "batch": 100, "hidden": 213, "layers": 2, "dtype": torch.float16},
        [{"batch": 99}, {"layers": 3}, {"hidden": 219}],
    ),
    (
        {"steps": 200, "batch": 66, "hidden": 128, "layers": 2, "dtype": torch.float16},
        [{"batch": 64}, {"steps": 199}, {"layers": 1}, {"hidden": 120}],
    ),
]


@pytest.mark.parametrize(("inside", "outside"), RANDOM_STACKS)
def test_training_of_what_random_calls_added(inside: dict[str, Any], outside: list[dict[str, Any]]) -> None:
    with tf32_allowed(True):
        inside = {"inputs": 9} | inside
        assert with_gradients(**inside) == KEPT
        assert [with_gradients(**inside | change) for change in outside] == [""] * len(outside)
