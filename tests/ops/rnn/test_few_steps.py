"""Few steps without gradients that upstream runs in less of the GPU's time: each row of the table."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ops.rnn.cases import GRU, LSTM, RELU, TANH, ask_layer, explain_layer, meta, names

FEW = "few steps that upstream runs in less time"
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


def layer(
    mode: int, dtype: torch.dtype, steps: int, hidden: int | None = None, inputs: int = 8, **more: Any
) -> dict[str, Any]:
    sizes = {} if hidden is None else {"hidden": hidden}
    return {"mode": mode, "dtype": dtype, "steps": steps, "inputs": inputs, **sizes, **more}


TWO: dict[str, Any] = {"bidirectional": True}
STACK: dict[str, Any] = {"layers": 2}
THREE: dict[str, Any] = {"layers": 3}

# Sizes, the one that changes, and its last value that is ours and the first that is upstream's (or the other
# way round).
EDGES: list[tuple[dict[str, Any], str, int, int]] = [
    (layer(GRU, FP16, 1, 500, 77), "batch", 21, 22),
    (layer(GRU, FP16, 1, 256, 256), "batch", 139, 140),
    (layer(GRU, FP16, 1, batch=1), "hidden", 1144, 1152),
    (layer(GRU, FP16, 2, 500, 101), "batch", 28, 29),
    (layer(GRU, FP16, 2, 226, 250), "batch", 154, 155),
    (layer(GRU, FP16, 2, 640, 640), "batch", 5, 6),
    (layer(GRU, FP16, 2, 400, 400), "batch", 99, 100),
    (layer(GRU, FP16, 2, 384, 24), "batch", 170, 171),
    (layer(GRU, FP16, 3, 281), "batch", 57, 58),
    (layer(GRU, FP16, 3, 88), "batch", 9, 10),
    (layer(GRU, FP16, 3, 576, 576), "batch", 4, 5),
    (layer(GRU, FP16, 3, 456, 40, **TWO), "batch", 66, 67),
    (layer(GRU, FP16, 4, 400, 400, **STACK), "batch", 52, 53),
    (layer(GRU, FP16, 4, 410, 396), "batch", 4, 5),
    (layer(GRU, FP16, 4, 608, 608), "batch", 2, 3),
    (layer(GRU, BF16, 3, 410, 395), "batch", 23, 24),
    (layer(LSTM, FP16, 1, 304, 304), "batch", 97, 98),
    (layer(LSTM, FP16, 1, 216, 64, **TWO), "batch", 199, 200),
    (layer(LSTM, FP16, 1, 560, 864), "batch", 15, 17),
    (layer(LSTM, FP16, 1, batch=1), "hidden", 1176, 1184),
    (layer(LSTM, FP16, 2, 200, 200), "batch", 181, 182),
    (layer(LSTM, FP16, 2, 360, 60), "batch", 66, 67),
    (layer(LSTM, FP16, 3, 288, 616, **TWO), "batch", 43, 44),
    (layer(LSTM, FP16, 3, 96), "batch", 12, 13),
    (layer(LSTM, FP16, 3, 256, 264), "batch", 79, 80),
    (layer(LSTM, FP16, 3, inputs=600, batch=2, **TWO), "hidden", 640, 648),
    (layer(LSTM, FP16, 4, 408, 408), "batch", 4, 5),
    (layer(LSTM, FP16, 4, 264, 264), "batch", 80, 81),
    (layer(LSTM, FP16, 4, batch=13), "hidden", 89, 88),
    (layer(LSTM, FP16, 6, 40, batch=8), "steps", 7, 6),
    (layer(LSTM, FP16, 8, 520), "batch", 80, 81),
    (layer(LSTM, FP16, 8, batch=90), "hidden", 512, 520),
    (layer(LSTM, FP16, batch=90, hidden=576, steps=13), "steps", 14, 13),
    (layer(GRU, BF16, 4, inputs=990, batch=3), "hidden", 1024, 1032),
    (layer(GRU, BF16, 4, 1096, 990), "batch", 2, 3),
    (layer(RELU, FP16, 5, batch=8), "hidden", 48, 40),
    (layer(TANH, FP16, 1, 620, 639), "batch", 26, 27),
    (layer(RELU, FP16, 1, 1072, 1072), "batch", 42, 43),
    (layer(TANH, FP16, 1, 600, 600), "batch", 111, 112),
    (layer(TANH, FP16, 2, 520, 520), "batch", 73, 74),
    (layer(RELU, FP16, 3, inputs=776, batch=2, **TWO), "hidden", 768, 776),
    (layer(TANH, FP16, 4, 576, 576), "batch", 28, 29),
    (layer(TANH, FP16, 4, 560, 560), "batch", 175, 176),
    (layer(TANH, FP16, 4, 128), "batch", 63, 64),
    (layer(TANH, BF16, 4, 416, 416), "batch", 202, 203),
    (layer(GRU, FP32, 1, 1151, 456, **STACK), "batch", 2, 3),
    (layer(GRU, FP32, 1, 224, 224, **TWO), "batch", 160, 168),
    (layer(GRU, FP32, 1, inputs=432, batch=24), "hidden", 800, 808),
    (layer(GRU, FP32, 2, 256), "batch", 21, 22),
    (layer(GRU, FP32, 2, 512, 56, **THREE), "batch", 17, 18),
    (layer(GRU, FP32, 2, 829, 220, **TWO), "batch", 1, 2),
    (layer(GRU, FP32, 2, 480, **STACK), "batch", 4, 5),
    (layer(GRU, FP32, 2, 407, 400), "batch", 5, 6),
    (layer(GRU, FP32, 2, inputs=1000, batch=1), "hidden", 992, 1008),
    (layer(GRU, FP32, 3, 256, **STACK), "batch", 15, 16),
    (layer(GRU, FP32, 3, 368, 368), "batch", 123, 124),
    (layer(GRU, FP32, 4, 280, **STACK), "batch", 29, 30),
    (layer(GRU, FP32, 4, 448, 448), "batch", 3, 4),
    (layer(LSTM, FP32, 1, 568, 568), "batch", 16, 17),
    (layer(LSTM, FP32, 1, 1001, 1001), "batch", 2, 3),
    (layer(LSTM, FP32, 1, inputs=1136, batch=9), "hidden", 1104, 1120),
    (layer(LSTM, FP32, 2, batch=1, **STACK), "hidden", 256, 264),
    (layer(LSTM, FP32, 2, 264, **TWO), "batch", 13, 14),
    (layer(LSTM, FP32, 2, 193, **TWO), "batch", 24, 25),
    (layer(LSTM, FP32, 2, 256), "batch", 34, 35),
    (layer(LSTM, FP32, 2, 257), "batch", 32, 33),
    (layer(LSTM, FP32, 3, 256, **STACK), "batch", 19, 20),
    (layer(LSTM, FP32, 3, 384), "batch", 63, 64),
    (layer(LSTM, FP32, 4, 320), "batch", 95, 96),
    (layer(LSTM, FP32, 3, 592, 352), "batch", 15, 16),
    (layer(LSTM, FP32, 4, 264, **STACK), "batch", 39, 40),
    (layer(LSTM, FP32, 4, 264, **TWO), "batch", 22, 23),
    (layer(LSTM, FP32, 4, 400, **STACK), "batch", 3, 4),
    (layer(TANH, FP32, 1, 1040, 392), "batch", 3, 4),
    (layer(RELU, FP32, 1, 544, 544), "batch", 91, 92),
    (layer(TANH, FP32, 2, 1048, batch=1), "inputs", 952, 960),
    (layer(TANH, FP32, 3, 114), "batch", 2, 3),
    (layer(GRU, FP16, 1, batch=2), "hidden", 1096, 1104),
    (layer(GRU, FP16, 2, 744, 744, **STACK, **TWO), "batch", 1, 2),
    (layer(GRU, FP16, 3, 404, 638, **THREE), "batch", 3, 4),
    (layer(GRU, FP16, 4, 560, 560, **THREE), "batch", 5, 6),
    (layer(GRU, FP16, 4, 386, 230, **STACK), "batch", 4, 5),
    (layer(GRU, FP16, 4, 704, 8), "batch", 25, 26),
    (layer(GRU, FP16, 3, 1096, 224), "batch", 1, 2),
    (layer(GRU, FP16, 2, 256, 68), "batch", 140, 141),
    (layer(LSTM, FP16, 1, batch=4), "hidden", 1088, 1096),
    (layer(LSTM, FP16, 1, 1131, 392), "batch", 1, 2),
    (layer(LSTM, FP16, 4, 500, 48, **STACK), "batch", 2, 3),
    (layer(LSTM, FP32, 1, batch=2), "hidden", 2172, 2180),
    (layer(LSTM, FP32, 1, 863, 863, **STACK), "batch", 1, 2),
    (layer(GRU, FP32, 4, 585, 585), "batch", 1, 2),
    (layer(GRU, FP32, 3, 411, 88), "batch", 4, 5),
    (layer(GRU, FP32, 4, 360, 240, **STACK), "batch", 7, 8),
    (layer(GRU, FP32, 4, 448, 448, **STACK), "batch", 3, 4),
    (layer(GRU, FP32, 1, 909, 909, **STACK, **TWO), "batch", 1, 2),
    (layer(GRU, FP32, 2, 320, 1504), "batch", 7, 8),
    (layer(TANH, FP32, 1, 913, 913, **TWO), "batch", 3, 4),
    (layer(GRU, FP16, 2, 402, 402, **STACK), "batch", 15, 16),
    (layer(TANH, FP32, 1, 719, 719, **STACK, **TWO), "batch", 1, 2),
    (layer(TANH, FP32, 2, 505, 505, **STACK), "batch", 5, 6),
    (layer(TANH, FP32, 4, batch=4, **THREE), "hidden", 439, 441),
    (layer(TANH, FP32, 4, 848, 848, **THREE), "batch", 3, 4),
    (layer(RELU, FP32, 2, 448, 8, **STACK), "batch", 49, 50),
    (layer(TANH, FP32, 1, batch=1, inputs=2), "hidden", 2142, 2144),
    (layer(RELU, FP16, 1, 1168, 131, **TWO), "batch", 7, 8),
    (layer(RELU, FP16, 3, batch=2), "hidden", 1400, 1402),
    (layer(LSTM, FP32, 6, 440, 440, layers=4), "batch", 8, 9),
    (layer(LSTM, FP32, 6, 438, 64, batch=24, layers=4), "hidden", 513, 450),
    (layer(TANH, FP32, 3, 414, 64, layers=4, **TWO), "batch", 31, 32),
    (layer(GRU, FP32, 5, 768, 64, **STACK), "batch", 32, 33),
    (layer(LSTM, FP16, 1, 13, 512), "batch", 127, 128),
    (layer(LSTM, FP16, 1, batch=200, inputs=64), "hidden", 33, 31),
    (layer(RELU, FP16, 5, 272, batch=2), "layers", 3, 4),
    (layer(TANH, FP32, 5, batch=2, layers=4), "hidden", 256, 264),
    (layer(RELU, FP16, hidden=272, batch=2, layers=4, steps=5), "steps", 6, 5),
    (layer(LSTM, FP16, 2, batch=2, **STACK), "hidden", 256, 264),
    (layer(LSTM, FP16, 2, 264, batch=2), "layers", 1, 2),
    (layer(RELU, FP16, 4, 208, **THREE), "batch", 127, 128),
    (layer(TANH, FP16, 3, batch=128, **THREE), "hidden", 264, 256),
    (layer(TANH, FP16, 2, 464, **STACK), "batch", 95, 96),
    (layer(RELU, FP16, 2, 464, **STACK, **TWO), "batch", 95, 96),
    (layer(GRU, FP32, 3, batch=2, **THREE), "hidden", 512, 513),
]


@pytest.mark.parametrize(("sizes", "name", "ours", "upstreams"), EDGES, ids=names)
def test_edge(sizes: dict[str, Any], name: str, ours: int, upstreams: int) -> None:
    assert ask_layer(**sizes | {name: ours}) == ""
    assert ask_layer(**sizes | {name: upstreams}) == FEW


def test_rows_that_are_no_vectors() -> None:
    """The same products in rows of whole vectors are ours."""
    assert ask_layer(**layer(GRU, FP16, 1, 500, 77, batch=22)) == FEW
    assert ask_layer(**layer(GRU, FP16, 1, 504, 80, batch=22)) == ""
    assert ask_layer(**layer(TANH, FP32, 3, 114, batch=3)) == FEW
    assert ask_layer(**layer(TANH, FP32, 3, 116, batch=3)) == ""


def packed(dtype: torch.dtype, steps: int, hidden: int, batch: int) -> str:
    """The answer for a GRU of packed rows that are all as long."""
    x = meta(steps * batch, 8, dtype=dtype)
    return ask_layer(**layer(GRU, dtype, steps, hidden, batch=batch), input=x, batch_sizes=[batch] * steps)


def test_packed_rows_that_are_all_as_long() -> None:
    """One step is what it would be padded; of several upstream has a launch each."""
    assert [packed(FP16, 1, h, 2) for h in (1096, 1104)] == ["", FEW]
    assert [packed(FP16, 2, 1000, b) for b in (4, 5)] == ["", FEW]
    assert ask_layer(**layer(GRU, FP16, 2, 1000, batch=4)) == ""
    assert packed(BF16, 2, 1000, 8) == ""


def test_a_stack_of_a_small_gru() -> None:
    stack = layer(GRU, FP32, 11, 272, 578, **THREE)
    assert ask_layer(**stack, batch=47) == ""
    assert ask_layer(**stack, batch=48) == "layer that cuDNN keeps on the chip"


def test_a_large_lstm_of_three_rows() -> None:
    """In a graph; from Python upstream's launches take longer."""
    kept = "large layer that upstream runs in less time"
    large = layer(LSTM, FP32, 40, **STACK)
    assert [ask_layer(**large, hidden=1096, batch=rows) for rows in (2, 3)] == ["", kept]
    assert [ask_layer(**large, hidden=hidden, batch=3) for hidden in (1024, 1025)] == ["", kept]
    assert ask_layer(**large, hidden=1096, batch=3, captured=False) == ""
    assert ask_layer(**layer(LSTM, FP32, 1, 1096, batch=3)) == ""


def test_what_cudnn_keeps_on_the_chip() -> None:
    on_chip = "layer that cuDNN keeps on the chip"
    assert ask_layer(**layer(LSTM, FP32, 5, 86, batch=14)) == on_chip
    assert ask_layer(**layer(LSTM, FP32, 5, 88, batch=14)) == ""
    assert ask_layer(**layer(GRU, FP32, 5, 32, batch=6)) == ""
    assert ask_layer(**layer(GRU, FP32, 5, 32, batch=7)) == on_chip


@pytest.mark.parametrize("mode", [LSTM, TANH])
def test_few_units_with_wide_rows_that_are_no_vectors(mode: int) -> None:
    """In 16 bits a launch for each step, of up to eight columns of W_ih and W_hh for each unit."""
    plans = [
        explain_layer(**layer(mode, FP16, 3, 96, inputs, batch=8)).plan or ""
        for inputs in (671, 673, 1440, 1448)
    ]
    assert ["a launch for each step" in plan for plan in plans] == [True, False, True, False]


def test_one_step_in_training() -> None:
    """The rows of upstream_facts.h that random calls added: both sides of an edge of each."""
    kept = "layer that upstream trains in less time"

    def answer(
        mode: int, dtype: torch.dtype, hidden: int, inputs: int = 8, batch: int = 2, layers: int = 1
    ) -> str:
        x = meta(1, batch, inputs, dtype=dtype).requires_grad_()
        sizes = layer(mode, dtype, 1, hidden, inputs, batch=batch, layers=layers)
        return ask_layer(**sizes, train=True, input=x)

    assert [answer(LSTM, BF16, 32, i) for i in (576, 600)] == ["", kept]
    assert [answer(GRU, FP16, h, layers=2) for h in (97, 96)] == ["", kept]
    assert [answer(LSTM, FP32, h, layers=2) for h in (17, 16)] == ["", kept]
    assert [answer(TANH, FP32, h) for h in (1016, 1024)] == ["", kept]
    assert [answer(TANH, BF16, h, batch=64, layers=3) for h in (17, 16)] == ["", kept]
    assert [answer(GRU, BF16, h, batch=24) for h in (17, 16)] == ["", kept]


def test_the_table_is_of_graphs_and_of_forwards_alone() -> None:
    step = layer(LSTM, FP16, 1, 304, 304, batch=98)
    assert ask_layer(**step) == FEW
    assert ask_layer(**step, captured=False) == ""
    x = meta(1, 98, 304, dtype=FP16).requires_grad_()
    assert ask_layer(**step, train=True, input=x) != FEW
