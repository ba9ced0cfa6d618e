"""When a packed sequence goes upstream by its sizes: both sides of each edge of the tables."""

from __future__ import annotations

from typing import Any

import torch

from ops.rnn.cases import LSTM, TANH, ask_layer, meta, tf32_allowed


def packed(sizes: list[int], hidden: int, inputs: int = 6, **changes: Any) -> str:
    """The answer to a packed sequence with these batch sizes."""
    dtype = changes.get("dtype", torch.float32)
    with tf32_allowed(False):
        return ask_layer(
            batch=sizes[0],
            hidden=hidden,
            inputs=inputs,
            input=meta(sum(sizes), inputs, dtype=dtype),
            batch_sizes=sizes,
            **changes,
        )


def test_packed_sequences_of_large_products() -> None:
    less = "packed sequence that upstream runs in less time"
    in_bf16: dict[str, Any] = {"mode": LSTM, "dtype": torch.bfloat16}
    assert packed([26] * 7 + [25], 1024, **in_bf16) == ""
    assert packed([27] * 7 + [26], 1024, **in_bf16) == less
    assert packed([27] * 8 + [26], 1024, **in_bf16) == ""
    assert packed([35] * 11 + [34], 1024, layers=2, **in_bf16) == ""
    assert packed([36] * 11 + [35], 1024, layers=2, **in_bf16) == less
    assert packed([36] * 12 + [35], 1024, layers=2, **in_bf16) == ""
    assert packed([47] * 15 + [46], 512) == ""
    assert packed([47] + [1] * 15, 512) == less, "mostly padding"
    assert packed([47] + [1] * 16, 512) == ""
    few: dict[str, Any] = {"mode": LSTM, "dtype": torch.float16}
    assert packed([20] * 3 + [19], 200, layers=2, **few) == less
    assert packed([20] * 3 + [19], 200, **few) == ""
    assert packed([20] * 5 + [19], 200, layers=2, **few) == ""
    assert packed([20] * 3 + [19], 200, layers=3, **in_bf16) == less
    assert packed([20] * 3 + [19], 200, layers=2, **in_bf16) == ""
    wide: dict[str, Any] = {"inputs": 1280, "dtype": torch.bfloat16}  # 3 * 512 * (1280 + 512) weights
    assert packed([181] * 2 + [180], 512, **wide) == ""
    assert packed([182] * 2 + [181], 512, **wide) == less
    trained = "layer that upstream trains in less time"
    in_training: dict[str, Any] = {"train": True, "dtype": torch.bfloat16}
    assert packed([70] * 10 + [69], 512, **in_training) == ""
    assert packed([70] * 9 + [69], 512, **in_training) == trained, "ten steps"
    assert packed([69] * 8 + [68, 1, 1], 512, **in_training) == ""
    assert packed([70] * 2 + [1] * 14, 512, **in_training) == trained, "mostly padding"
    assert packed([70] * 2 + [1] * 15, 512, **in_training) == ""
    assert packed([2] * 4, 64, **in_training) == trained, "four steps, as long as one another"
    assert packed([2] * 5, 64, **in_training) == ""


def test_packed_sequences_of_one_row_longer_than_the_others() -> None:
    """Too few steps for a piece of them, and many rows that do not exist."""
    less = "packed sequence that upstream runs in less time"
    trained = "layer that upstream trains in less time"
    half: dict[str, Any] = {"dtype": torch.float16}
    assert packed([200] + [1] * 5, 233, **half) == less
    assert packed([160] + [1] * 5, 233, **half) == "", "fewer than 1,000 rows"
    assert packed([200] + [1] * 8, 233, **half) == "", "nine steps"
    assert packed([200, 100] + [1] * 4, 233, **half) == "", "less padding"
    lstm: dict[str, Any] = {"mode": LSTM, "train": True, "layers": 2, "dtype": torch.float16}
    assert packed([42] + [8] * 20, 605, **lstm) == trained  # 4 * 605 * (605 + 605) weights
    assert packed([41] + [6] * 15, 605, **lstm) == trained, "16 steps, by another line"
    assert packed([40] + [7] * 20, 605, **lstm) == packed([42] + [8] * 24, 605, **lstm) == ""
    assert packed([42] + [11] * 20, 605, **lstm) == "", "less padding"
    rnn: dict[str, Any] = {"mode": TANH, "train": True}
    assert packed([100] + [1] * 10, 133, **rnn) == trained
    assert packed([90] + [1] * 10, 133, **rnn) == ""
    assert packed([100] + [1] * 12, 133, **rnn) == ""


def test_packed_stacks_of_few_steps_in_fp32() -> None:
    """Upstream runs layers beside one another, and a step of one row as products with a vector."""
    less = "packed sequence that upstream runs in less time"
    stack: dict[str, Any] = {"layers": 2}
    # 3 * 250 * (250 + 250) weights
    assert packed([48] * 3 + [47] * 5, 250, **stack) == less
    assert packed([47] * 3 + [46] * 5, 250, **stack) == ""
    assert packed([48] * 3 + [47] * 6, 250, **stack) == "", "nine steps"
    assert packed([48] * 3 + [47] * 5, 250, inputs=250) == "", "one layer"
    assert packed([24] * 3 + [23] * 5, 250, bidirectional=True, inputs=250) == ""
    assert packed([144] * 3 + [143] * 5, 250, mode=TANH, **stack) == less
    assert packed([143] * 3 + [142] * 5, 250, mode=TANH, **stack) == ""
    # One long row, and others of a third of its steps at most.
    assert packed([9, 9] + [1] * 4, 136, **stack) == packed([9, 3] + [1] * 4, 129, **stack) == ""
    assert packed([9, 3] + [1] * 4, 136, **stack) == less
    assert packed([9, 3] + [1] * 5, 136, **stack) == ""
    rnn: dict[str, Any] = {"mode": TANH, "inputs": 80}
    assert packed([64] * 5 + [63], 256, **rnn) == less
    assert packed([64] * 5 + [63], 255, **rnn) == packed([63] * 5 + [62], 256, **rnn) == ""
    assert packed([64] * 6 + [63], 256, **rnn) == ""


def test_packed_sequences_that_random_calls_added() -> None:
    less = "packed sequence that upstream runs in less time"
    trained = "layer that upstream trains in less time"
    gru: dict[str, Any] = {"dtype": torch.bfloat16, "layers": 2}  # 3 * 268 * (268 + 268) weights
    assert packed([117] + [1] * 3, 268, **gru) == less
    assert packed([116] + [1] * 3, 268, **gru) == packed([117] + [1] * 4, 268, **gru) == ""
    assert packed([117] + [1] * 3, 268, **gru | {"layers": 1}) == ""
    wide: dict[str, Any] = {"inputs": 1280, "dtype": torch.bfloat16}  # 3 * 512 * (1280 + 512) weights
    assert packed([218] * 15 + [217], 512, **wide) == less
    assert packed([217] * 15 + [216], 512, **wide) == packed([218] * 16 + [217], 512, **wide) == ""
    lstm: dict[str, Any] = {"mode": LSTM, "dtype": torch.float16, "layers": 2}
    assert packed([8] * 5 + [7], 264, **lstm) == less
    assert packed([8] * 6 + [7], 264, **lstm) == packed([8] * 5 + [7], 256, **lstm) == ""
    assert packed([8] * 5 + [7], 264, **lstm | {"layers": 1}) == ""
    rnn: dict[str, Any] = {"mode": TANH, "dtype": torch.float16, "train": True, "inputs": 1150}
    assert packed([16] * 2 + [1] * 9, 1150, **rnn) == trained
    assert packed([15] * 2 + [1] * 9, 1150, **rnn) == packed([16] * 2 + [1] * 11, 1150, **rnn) == ""
    assert packed([20] * 2 + [1] * 9, 1024, **rnn) == ""
    small: dict[str, Any] = {"dtype": torch.bfloat16, "train": True, "layers": 3}
    assert packed([48] * 2 + [1] * 14, 3, **small) == trained
    assert packed([47] * 2 + [1] * 14, 3, **small) == packed([48] * 2 + [1] * 15, 3, **small) == ""
    assert packed([48] * 2 + [1] * 14, 4, **small) == ""
    assert packed([48] * 2 + [1] * 14, 3, **small | {"layers": 2}) == ""


def test_packed_sequences_of_large_products_in_16_bits() -> None:
    less = "packed sequence that upstream runs in less time"
    half: dict[str, Any] = {"dtype": torch.float16}
    deep = half | {"mode": TANH, "layers": 5}
    assert packed([48] + [1] * 5, 300, **deep) == less
    assert packed([48] + [8] * 5, 300, **deep) == packed([48] + [1] * 5, 300, **deep | {"layers": 4}) == ""
    assert packed([48] + [1] * 10, 300, **deep) == ""
    lstm = half | {"mode": LSTM}
    four = lstm | {"layers": 4}
    assert packed([10] + [1] * 15, 512, **four) == less
    assert packed([10] + [2] * 15, 512, **four) == packed([10] + [1] * 15, 511, **four) == ""
    assert packed([10] + [1] * 16, 512, **four) == ""
    in_fp32: dict[str, Any] = {"mode": LSTM, "layers": 5}
    assert packed([10] + [1] * 11, 200, **in_fp32) == less
    assert packed([10] + [2] * 11, 200, **in_fp32) == packed([10] + [1] * 12, 200, **in_fp32) == ""
    assert packed([10] + [1] * 11, 200, mode=LSTM, layers=4) == ""
    tanh: dict[str, Any] = {"mode": TANH, "layers": 5}
    wide = half | {"mode": TANH, "inputs": 1280}  # 512 * (1280 + 512) weights
    assert packed([436] * 5 + [435], 512, **wide) == less
    assert packed([435] * 5 + [434], 512, **wide) == packed([436] * 6 + [435], 512, **wide) == ""
    assert packed([4] * 5 + [3], 256, **tanh) == less
    assert packed([4] * 6 + [3], 256, **tanh) == packed([4] * 5 + [3], 255, **tanh) == ""
    assert packed([170] * 17 + [169], 384, **lstm) == less
    assert packed([169] * 17 + [168], 384, **lstm) == packed([170] * 20 + [169], 384, **lstm) == ""
    stack_of_two: dict[str, Any] = {"layers": 2, **half}
    assert packed([4] * 4 + [3], 100, **stack_of_two) == less
    assert packed([4] * 5 + [3], 100, **stack_of_two) == packed([4] * 4 + [3], 100, **half) == ""
    assert packed([4] * 4 + [3], 100, bidirectional=True, **stack_of_two) == ""
    three = half | {"mode": LSTM, "layers": 3}
    assert packed([4] * 7 + [3], 512, **three) == less
    assert packed([4] * 8 + [3], 512, **three) == packed([4] * 7 + [3], 511, **three) == ""
    assert packed([4] * 7 + [3], 512, **three | {"layers": 2}) == ""


def test_packed_sequences_in_training_mode_without_gradients() -> None:
    """They take the rules of a forward alone: a frozen layer may well be in that mode."""
    less = "packed sequence that upstream runs in less time"
    assert packed([47] + [1] * 15, 512, train=True) == less
    assert packed([47] + [1] * 16, 512, train=True) == ""


def stack(rows: int, hidden: int, **changes: Any) -> str:
    """The answer to a packed stack of 17 steps, whose last has a row less."""
    return packed([rows] * 16 + [rows - 1], hidden, **changes)


def test_packed_stacks_on_tensor_cores() -> None:
    """Upstream runs layers beside one another; the more rows a group has, the longer is a step of ours."""
    less = "large layer that upstream runs in less time"
    half: dict[str, Any] = {"mode": LSTM, "dtype": torch.float16}
    # Two groups all over the GPU: 768 units are in 48 blocks.
    assert stack(57, 768, layers=2, **half) == stack(39, 768, layers=3, **half) == less
    assert stack(56, 768, layers=2, **half) == stack(38, 768, layers=3, **half) == ""
    assert stack(57, 768, **half) == stack(32, 768, layers=3, bidirectional=True, **half) == ""
    assert stack(39, 768, layers=3, train=True, **half) == less, "without gradients"
    # And of 600 in 38, three groups.
    assert stack(64, 600, layers=2, **half) == less
    assert stack(63, 600, layers=2, **half) == ""
    # Of fewer steps fewer rows.
    few = dict(half, layers=2)
    assert packed([39] * 7 + [38], 768, mode=TANH, dtype=torch.bfloat16, layers=2) == less
    assert packed([38] * 7 + [37], 768, mode=TANH, dtype=torch.bfloat16, layers=2) == ""
    assert packed([46] * 15 + [45], 768, **few) == packed([31] * 11 + [30], 768, **half, layers=4) == less
    assert packed([44] * 15 + [43], 768, **few) == packed([46] * 16 + [45], 768, **few) == ""
    assert packed([30] * 11 + [29], 768, **half, layers=4) == ""
    assert packed([31] * 12 + [30], 768, **half, layers=4) == ""
    assert packed([24] * 19 + [23], 768, **half, layers=5) == less
    assert (
        packed([24] * 20 + [23], 768, **half, layers=5)
        == packed([22] * 19 + [21], 768, **half, layers=5)
        == ""
    )
    # Seven clusters of 16.
    assert stack(155, 512, layers=2, **half) == stack(134, 512, layers=3, **half) == less
    assert stack(154, 512, layers=2, **half) == stack(133, 512, layers=3, **half) == ""
    rnn: dict[str, Any] = {"mode": TANH, "dtype": torch.float16}
    assert stack(99, 640, layers=4, **rnn) == less
    assert stack(98, 640, layers=4, **rnn) == stack(99, 640, layers=3, **rnn) == ""
    gru: dict[str, Any] = {"dtype": torch.bfloat16}
    assert stack(120, 600, layers=2, **gru) == less
    assert stack(119, 600, layers=2, **gru) == ""
    # And 15 of eight.
    assert stack(226, 512, layers=3, **gru) == less
    assert stack(225, 512, layers=3, **gru) == stack(226, 512, layers=2, **gru) == ""
    assert stack(256, 400, layers=4, **rnn) == stack(361, 400, layers=4, mode=TANH, **gru) == less
    assert stack(255, 400, layers=4, **rnn) == stack(256, 400, layers=3, **rnn) == ""
    assert stack(360, 400, layers=4, mode=TANH, **gru) == ""


def test_packed_stacks_of_multiply_adds() -> None:
    less = "large layer that upstream runs in less time"
    tanh: dict[str, Any] = {"mode": TANH}
    assert stack(78, 320, layers=3, **tanh) == stack(50, 320, layers=4, **tanh) == less
    assert stack(77, 320, layers=3, **tanh) == stack(49, 320, layers=4, **tanh) == ""
    assert stack(15, 505, layers=3, mode=LSTM) == less
    assert stack(14, 505, layers=3, mode=LSTM) == stack(15, 505, layers=2, mode=LSTM) == ""
    assert packed([15] * 11 + [14], 505, layers=2, mode=LSTM) == less
    assert packed([14] * 11 + [13], 505, layers=2, mode=LSTM) == ""
    assert packed([15] * 12 + [14], 505, layers=2, mode=LSTM) == ""
    assert stack(7, 505, layers=5, mode=LSTM) == less
    assert stack(6, 505, layers=5, mode=LSTM) == stack(7, 505, layers=4, mode=LSTM) == ""
    assert stack(2, 1072, layers=2, **tanh) == less
    assert stack(2, 1072, **tanh) == stack(2, 1024, layers=2, **tanh) == ""


def in_training(rows: int, hidden: int, **changes: Any) -> str:
    """The answer to such a stack whose input wants a gradient."""
    sizes = [rows] * 16 + [rows - 1]
    dtype = changes.get("dtype", torch.float32)
    x = torch.empty(sum(sizes), 6, device="meta", dtype=dtype, requires_grad=True)
    layer: dict[str, Any] = {"batch": rows, "hidden": hidden, "inputs": 6, "batch_sizes": sizes}
    with tf32_allowed(False):
        return ask_layer(**layer, input=x, train=True, **changes)


def test_packed_stacks_in_training() -> None:
    trained = "layer that upstream trains in less time"
    half: dict[str, Any] = {"mode": TANH, "dtype": torch.float16}
    assert in_training(39, 768, layers=2, **half) == trained
    assert in_training(38, 768, layers=2, **half) == in_training(32, 768, **half) == ""
    assert in_training(20, 768, layers=3, bidirectional=True, **half) == ""
    lstm = half | {"mode": LSTM}
    assert in_training(31, 768, layers=3, **lstm) == in_training(15, 768, layers=4, **lstm) == trained
    assert in_training(30, 768, layers=3, **lstm) == in_training(14, 768, layers=4, **lstm) == ""
    # Seven clusters of 16, and multiply-adds in them.
    assert in_training(50, 640, layers=4, **half) == trained
    assert in_training(49, 640, layers=4, **half) == in_training(50, 640, layers=3, **half) == ""
    assert in_training(78, 320, layers=3, mode=TANH) == trained
    assert in_training(77, 320, layers=3, mode=TANH) == in_training(78, 320, layers=2, mode=TANH) == ""
