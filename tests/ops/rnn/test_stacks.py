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
        {"mode": LSTM, "hidden": 640, "batch": 34, "layers": 4, "steps": 5},
        [{"batch": 33}, {"layers": 3}, {"hidden": 648}, {"steps": 6}],
    ),
    (
        {"hidden": 1024, "batch": 39, "layers": 5, "steps": 20, "dtype": torch.float16},
        [{"batch": 38}, {"layers": 4}, {"dtype": torch.bfloat16}],
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
        {"mode": LSTM, "hidden": 425, "batch": 17, "layers": 4, "steps": 20},
        [{"batch": 16}, {"layers": 3}, {"hidden": 398}, {"hidden": 454}],
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
    # Of multiply-adds: a hidden size that is no multiple of four.
    (
        {"hidden": 306, "batch": 91, "layers": 4},
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


def test_training() -> None:
    """Both sides of each edge; an H200 has room for two groups of H = 720, three of H = 560."""
    lstm: dict[str, Any] = {"mode": LSTM, "steps": 47, "batch": 88, "inputs": 9, "hidden": 560, "layers": 3}
    gru: dict[str, Any] = {"steps": 38, "batch": 59, "inputs": 8, "hidden": 720, "layers": 3}
    rnn: dict[str, Any] = gru | {"mode": TANH, "steps": 16, "batch": 49, "dtype": torch.float16}
    two: dict[str, Any] = rnn | {"layers": 2, "steps": 8, "batch": 53}
    few: dict[str, Any] = {"mode": RELU, "steps": 2, "batch": 50, "inputs": 8, "hidden": 448, "layers": 2}
    half: dict[str, Any] = few | {"dtype": torch.bfloat16, "batch": 64, "hidden": 200, "layers": 4}
    with tf32_allowed(True):
        assert [with_gradients(**kept) for kept in (lstm, gru, rnn, two, few, half)] == [KEPT] * 6
        ours = [
            lstm | {"batch": 87},
            lstm | {"layers": 2},
            gru | {"batch": 58},
            gru | {"layers": 2},
            rnn | {"batch": 48},
            rnn | {"layers": 2},
            rnn | {"steps": 17},
            two | {"batch": 52},
            two | {"steps": 9},
            few | {"batch": 49},
            few | {"layers": 1},
            few | {"steps": 3},
            few | {"hidden": 436},
            half | {"batch": 63},
            half | {"layers": 3},
            half | {"steps": 3},
            half | {"hidden": 192},
        ]
        assert [with_gradients(**layers) for layers in ours] == [""] * len(ours)


# What random stacks added: a stack that is upstream's, and what it is not for any more.
RANDOM_STACKS: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (
        {"mode": LSTM, "steps": 26, "batch": 39, "hidden": 832, "layers": 3},
        [{"batch": 38}, {"hidden": 776}, {"layers": 2}, {"dtype": torch.bfloat16}],
    ),
    (
        {"mode": TANH, "steps": 21, "batch": 12, "hidden": 1088, "layers": 4, "dtype": torch.float16},
        [{"batch": 11}, {"layers": 3}, {"hidden": 1408}, {"dtype": torch.bfloat16}],
    ),
    (
        {"mode": LSTM, "steps": 6, "batch": 49, "hidden": 824, "layers": 2},
        [{"batch": 48}, {"steps": 7}, {"layers": 1}],
    ),
    (
        {"steps": 27, "batch": 129, "hidden": 437, "layers": 5, "dtype": torch.bfloat16},
        [{"batch": 128}, {"layers": 4}, {"hidden": 440, "inputs": 8}],
    ),
    (
        {"mode": LSTM, "steps": 20, "batch": 97, "hidden": 293, "layers": 4},
        [{"batch": 96}, {"layers": 3}, {"hidden": 301}],
    ),
    (
        {"mode": RELU, "steps": 12, "batch": 97, "hidden": 398, "layers": 5},
        [{"batch": 96}, {"steps": 13}, {"layers": 4}],
    ),
    (
        {"mode": RELU, "steps": 2, "batch": 16, "hidden": 399, "layers": 5, "dtype": torch.float16},
        [{"batch": 15}, {"steps": 3}],
    ),
    (
        {"mode": RELU, "steps": 2, "batch": 64, "hidden": 512, "layers": 3, "dtype": torch.float16},
        [{"batch": 63}, {"hidden": 520}, {"layers": 2}],
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
