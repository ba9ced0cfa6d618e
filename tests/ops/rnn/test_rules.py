"""When a recurrent layer (_cudnn_rnn) runs fused: each reason to decline, both sides of a policy's edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ops.rnn.cases import (
    CELLS,
    DTYPES,
    GRU,
    LSTM,
    RELU,
    TANH,
    ask_layer,
    flattened,
    meta,
    names,
    tf32_allowed,
    weights,
)


@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layers": 3, "bidirectional": True, "bias": False},
        {"batch_first": True},
        {"steps": 1},
        {"steps": 1, "batch": 8},
        {"hidden": 33},
        {"hidden": 600},
        {"dropout": 0.5, "layers": 2},  # dropout acts in training alone
        {"train": True, "steps": 5, "hidden": 256},
        {"train": True, "steps": 1, "bidirectional": True},
        {"train": True, "hidden": 256, "dropout": 0.5},  # and between layers
        {"input": meta(5, 2, 12)[..., ::2]},
    ],
    ids=names,
)
def test_runs(dtype: torch.dtype, changes: dict[str, Any], mode: int) -> None:
    if "input" in changes:
        changes = {"input": changes["input"].to(dtype)}
    if mode != GRU:  # smaller ones are cuDNN's
        changes = changes | {"hidden": max(120, changes.get("hidden", 0))}
    assert ask_layer(dtype=dtype, mode=mode, **changes) == ""


@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
def test_the_cell_state_is_an_lstms(mode: int) -> None:
    """Without one an LSTM begins at zero; what another cell does with one is upstream's error."""
    few: dict[str, Any] = {"mode": mode, "steps": 1}
    assert ask_layer(**few, cx=None) == ""
    assert ask_layer(**few, cx=meta(1, 2, 8)) == ("" if mode == LSTM else "cell state")
    if mode == LSTM:
        shape = "initial state that is not contiguous or of another size"
        assert ask_layer(**few, cx=meta(1, 3, 8)) == shape
        assert ask_layer(**few, cx=meta(1, 8, 2).transpose(1, 2)) == shape
        assert ask_layer(**few, cx=meta(1, 2, 8, dtype=torch.float16)) == "more than one dtype"
        assert ask_layer(**few, cx=torch.empty(1, 2, 8)) == "more than one device"


ON_CHIP = "layer that cuDNN keeps on the chip"
FEW_PACKED = "packed sequence of few steps"


def test_launches_decide_outside_a_graph() -> None:
    """Up to 32 steps of all layers, and 2.2 million multiply-adds a multiprocessor."""
    lengths: dict[str, Any] = {"input": meta(4, 6), "batch_sizes": [2, 1, 1]}
    for reason, kept in (
        (ON_CHIP, {"mode": LSTM, "hidden": 56, "steps": 32}),
        (ON_CHIP, {"mode": LSTM, "hidden": 56, "steps": 16, "layers": 2}),
        (ON_CHIP, {"mode": TANH, "hidden": 80, "steps": 4}),
        (ON_CHIP, {"hidden": 20, "batch": 9, "steps": 8}),
        (FEW_PACKED, lengths),
    ):
        assert ask_layer(**kept) == reason
        assert ask_layer(**kept, captured=False) == ""
    for reason, long in (
        (ON_CHIP, {"mode": LSTM, "hidden": 56, "steps": 33}),
        (ON_CHIP, {"mode": LSTM, "hidden": 56, "steps": 11, "layers": 3}),
        ("long sequence of a layer that cuDNN keeps on the chip", {"hidden": 65, "steps": 33}),
        ("few steps of a large layer", {"steps": 4, "batch": 16, "hidden": 513}),
        ("one step of a large batch", {"steps": 1, "batch": 1025}),
    ):
        assert ask_layer(**long, captured=False) == reason
    # 4 * 56 * (6 + 56) weights, 32 steps: 444 thousand multiply-adds a row.
    many: dict[str, Any] = {"mode": LSTM, "hidden": 56, "steps": 32, "captured": False}
    assert ask_layer(**many, batch=653) == ""
    assert ask_layer(**many, batch=654) == ON_CHIP


def test_many_rows_of_a_few_steps_in_fp16() -> None:
    for few in ({"steps": 1, "layers": 2}, {"steps": 3, "mode": LSTM, "bidirectional": True}):
        sizes: dict[str, Any] = {"hidden": 128, "dtype": torch.float16, **few}
        assert ask_layer(**sizes, batch=255) == ""
        assert ask_layer(**sizes, batch=256) == ON_CHIP


@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
def test_each_cell_has_its_own_number_of_gates(mode: int) -> None:
    fitting = [
        other
        for other in (RELU, LSTM, GRU)
        if ask_layer(steps=1, mode=mode, weight=weights(6, 8, mode=other)) == ""
    ]
    assert fitting == [RELU if mode == TANH else mode]
    buffer, views = flattened(weights(6, 8, layers=2, mode=mode))
    few: dict[str, Any] = {"mode": mode, "steps": 1, "layers": 2}
    assert ask_layer(**few, weight=views, weight_buf=buffer) == ""
    assert ask_layer(**few, weight=views[::-1], weight_buf=buffer) != ""


@pytest.mark.parametrize("columns", [False, True], ids=["matrices", "columns"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"layers": 3},
        {"bidirectional": True},
        {"layers": 2, "bidirectional": True, "bias": False},
        {"dtype": torch.float16, "steps": 1},
    ],
    ids=names,
)
def test_runs_with_flattened_weights(columns: bool, sizes: dict[str, Any]) -> None:
    """Also as autocast passes them: views of one buffer, each one column."""
    bias = sizes.get("bias", True)
    listed = weights(
        6,
        8,
        sizes.get("layers", 1),
        2 if sizes.get("bidirectional") else 1,
        bias,
        dtype=sizes.get("dtype", torch.float32),
    )
    buffer, views = flattened(listed, bias=bias, columns=columns)
    assert ask_layer(**sizes, weight=views, weight_buf=buffer) == ""


STALE = "weights that are not those of weight_buf"


def test_weights_that_are_not_those_of_the_buffer() -> None:
    """Upstream computes from the buffer: what is not at its place there would be ignored."""
    buffer, views = flattened(weights(6, 8))
    new = [w.clone() for w in views]
    assert ask_layer(weight=views, weight_buf=buffer) == ""
    assert ask_layer(weight=new, weight_buf=buffer) == STALE
    for i, w in enumerate(new):
        assert ask_layer(weight=[*views[:i], w, *views[i + 1 :]], weight_buf=buffer) == STALE, i
    assert ask_layer(weight=[*views[:2], views[3], views[2]], weight_buf=buffer) == STALE, "swapped"
    assert ask_layer(weight=views, weight_buf=buffer.clone()) == STALE
    assert ask_layer(weight=views, weight_buf=buffer[:-1]) == STALE
    wide = meta(buffer.numel() + 2)
    moved = [wide[1:][v.storage_offset() :][: v.numel()].view(v.shape) for v in views]
    assert ask_layer(weight=moved, weight_buf=wide[1:-1]) == ""
    assert ask_layer(weight=moved, weight_buf=wide[:-2]) == STALE
    assert ask_layer(weight=moved, weight_buf=wide[1:]) == STALE, "larger than cuDNN's"
    assert ask_layer(weight=views, weight_buf=meta(2 * buffer.numel())[::2]) == STALE
    assert ask_layer(weight=views, weight_buf=buffer.half()) == "more than one dtype"
    assert ask_layer(weight=views, weight_buf=torch.empty(buffer.shape)) == "more than one device"
    other = flattened(weights(7, 8), columns=True)
    assert ask_layer(weight=other[1], weight_buf=other[0]) == "weight list that does not fit the layers"


def test_layers_one_after_the_other_are_not_cudnns_order() -> None:
    """A buffer of the same tensors that has each layer's biases behind its matrices."""
    listed = weights(6, 8, layers=2)
    buffer = meta(sum(w.numel() for w in listed))
    views, end = [], 0
    for w in listed:
        views.append(buffer[end : end + w.numel()].view(w.shape))
        end += w.numel()
    assert ask_layer(layers=2, weight=views, weight_buf=buffer) == STALE
    assert ask_layer(layers=2, weight=views) == ""


def test_packed_sequences_run() -> None:
    hx = meta(1, 64, 8)
    reason = ask_layer(input=meta(127, 6), batch_sizes=[64, *[1] * 63], hx=hx)
    assert reason.startswith("packed sequence of one long")
    assert ask_layer(input=meta(126, 6), batch_sizes=[64, *[1] * 62], hx=hx) == ""
    few = (
        (torch.float32, False, 3),
        (torch.float16, False, 3),
        (torch.bfloat16, False, 2),
        (torch.float32, True, 4),
        (torch.float16, True, 7),
        (torch.bfloat16, True, 7),
    )
    for dtype, train, steps in few:
        for count in (steps, steps + 1):
            lengths: dict[str, Any] = {
                "input": meta(count + 1, 6, dtype=dtype),
                "batch_sizes": [2] + [1] * (count - 1),
            }
            reason = ask_layer(dtype=dtype, train=train, **lengths)
            assert reason == ("packed sequence of few steps" if count == steps else "")
    assert ask_layer(input=meta(5, 6), batch_sizes=[2, 1, 1, 1], batch_first=True) == ""
    assert ask_layer(input=meta(2, 6), batch_sizes=[2]) == "", "one step"


DECLINED = [
    ("unknown mode", {"mode": 4}),
    ("unknown mode", {"mode": -1}),
    ("input that is not three-dimensional", {"input": meta(3, 6)}),
    *(
        ("packed sequence whose batch sizes do not fit the input", {"input": rows, "batch_sizes": sizes})
        for rows, sizes in (
            (meta(2, 2, 6), [2, 2]),
            (meta(4, 6), [2, 1]),
            (meta(2, 6), [2, 1]),
            (meta(3, 6), [1, 2]),
            (meta(3, 6), [2, 1, 0]),
            (meta(3, 6), [2, 2, -1]),
        )
    ),
    (
        "packed sequence of one long row and many short ones",
        {"input": meta(127, 6), "batch_sizes": [64, *[1] * 63], "hx": meta(1, 64, 8)},
    ),
    ("initial state that is not contiguous or of another size", {"input": meta(4, 6), "batch_sizes": [3, 1]}),
    ("projection", {"proj_size": 2}),
    ("cell state", {"cx": meta(1, 2, 8)}),
    ("dtype other than float32, float16, bfloat16", {"dtype": torch.float64}),
    ("more than one dtype", {"hx": meta(1, 2, 8, dtype=torch.float16)}),
    ("more than one dtype", {"weight": weights(6, 8, dtype=torch.bfloat16)}),
    ("more than one device", {"hx": torch.empty(1, 2, 8)}),
    ("more than one device", {"weight": [torch.empty(w.shape) for w in weights(6, 8)]}),
    ("input that is not three-dimensional", {"input": meta(10, 6)}),
    ("empty input", {"steps": 0}),
    ("empty input", {"batch": 0}),
    ("empty input", {"inputs": 0}),
    ("weight list that does not fit the layers", {"weight": weights(6, 8)[:3]}),
    ("weight list that does not fit the layers", {"weight": weights(6, 8, layers=2)}),
    ("weight list that does not fit the layers", {"weight": weights(7, 8)}),
    ("weight list that does not fit the layers", {"weight": [w.flatten()[:, None] for w in weights(6, 8)]}),
    ("weight list that does not fit the layers", {"weight_stride0": 3}),
    ("weight list that does not fit the layers", {"hidden_size": 9}),
    ("weights that are not contiguous", {"weight": [meta(6, 24).t(), *weights(6, 8)[1:]]}),
    ("initial state that is not contiguous or of another size", {"hx": meta(1, 3, 8)}),
    ("initial state that is not contiguous or of another size", {"hx": meta(1, 8, 2).transpose(1, 2)}),
    ("initial state that is not contiguous or of another size", {"hx": meta(2, 2, 8)}),
    ("tensor that is not strided", {"input": torch.empty(5, 2, 6).to_sparse().to("meta")}),
    ("one step of a large batch", {"steps": 1, "batch": 1025}),
    ("hidden size without a kernel", {"hidden": 2049}),
    ("few steps of a large layer", {"steps": 4, "batch": 16, "hidden": 513}),
    ("long sequence of a layer that cuDNN keeps on the chip", {"steps": 33, "hidden": 65}),
    (
        "long sequence of a layer that cuDNN keeps on the chip",
        {"steps": 33, "batch": 16, "hidden": 96, "dtype": torch.float16},
    ),
    ("few steps of a large layer", {"steps": 9, "hidden": 1025}),
    ("layer that cuDNN keeps on the chip", {"mode": LSTM, "hidden": 56}),
    ("layer that cuDNN keeps on the chip", {"mode": LSTM, "hidden": 60, "steps": 2, "dtype": torch.float16}),
    ("layer that cuDNN keeps on the chip", {"mode": TANH, "hidden": 80, "steps": 4}),
    ("layer that cuDNN keeps on the chip", {"mode": RELU, "hidden": 128, "steps": 4, "batch": 5}),
    ("batch too large for the hidden size", {"batch": 2000, "hidden": 512}),
    ("sizes beyond 32 bits", {"steps": 2**31 // 256, "batch": 1, "inputs": 1, "hidden": 1}),
]


@pytest.mark.parametrize(("reason", "changes"), DECLINED, ids=names)
def test_declines(reason: str, changes: dict[str, Any]) -> None:
    assert ask_layer(**changes) == reason


# One either side of each edge of the policy that sends a call upstream, for an H200. Which of our kernels a
# call takes is in test_policy_on_host.py.
EDGES: list[tuple[dict[str, Any], str, int, int]] = [
    ({"steps": 1}, "batch", 1024, 1025),
    ({"steps": 1, "hidden": 256, "inputs": 256}, "batch", 13, 14),
    ({"steps": 1, "hidden": 1024, "inputs": 1024}, "batch", 4, 5),
    ({"steps": 1, "hidden": 512, "inputs": 512, "dtype": torch.bfloat16}, "batch", 129, 130),
    ({"steps": 1, "hidden": 1001, "inputs": 1001, "dtype": torch.bfloat16}, "batch", 9, 10),  # no vectors
    ({"steps": 1, "hidden": 1024, "inputs": 1024, "mode": LSTM, "dtype": torch.float16}, "batch", 12, 13),
    ({"steps": 1, "hidden": 1024, "inputs": 1024, "mode": LSTM, "dtype": torch.bfloat16}, "batch", 17, 18),
    ({"steps": 10, "dtype": torch.float32}, "hidden", 2048, 2049),
    ({"steps": 10, "dtype": torch.bfloat16}, "hidden", 2048, 2049),
    ({"steps": 10, "bidirectional": True}, "hidden", 1056, 1057),
    ({"hidden": 512}, "batch", 112, 113),
    ({"hidden": 256}, "batch", 240, 241),
    ({"hidden": 128}, "batch", 2112, 2113),
    ({"hidden": 32, "steps": 33}, "batch", 12672, 12673),
    ({"hidden": 64}, "batch", 3168, 3169),
    ({"hidden": 64, "dtype": torch.float16}, "batch", 12672, 12673),
    ({"hidden": 512, "dtype": torch.float16}, "batch", 480, 481),
    ({"hidden": 512, "dtype": torch.float16, "bidirectional": True}, "batch", 224, 225),
    ({"hidden": 640, "dtype": torch.float16}, "batch", 224, 225),
    ({"hidden": 256, "dtype": torch.bfloat16}, "batch", 960, 961),
    ({"hidden": 1024}, "batch", 32, 33),
    ({"hidden": 1024, "bidirectional": True}, "batch", 6, 7),
    ({"steps": 10, "hidden": 1025}, "batch", 3, 4),
    ({"hidden": 1024, "dtype": torch.bfloat16}, "batch", 64, 65),
    ({"steps": 10, "hidden": 1025, "dtype": torch.bfloat16}, "batch", 32, 33),
    ({"steps": 10, "hidden": 2048, "dtype": torch.bfloat16}, "batch", 16, 17),
]


@pytest.mark.parametrize(("fixed", "name", "last", "first"), EDGES, ids=names)
def test_policy_edges(fixed: dict[str, Any], name: str, last: int, first: int) -> None:
    with tf32_allowed(False):
        assert ask_layer(**fixed, **{name: last}) == ""
        assert ask_layer(**fixed, **{name: first}) in (
            "one step of a large batch",
            "hidden size without a kernel",
            "batch too large for the hidden size",
        )


def test_tf32_decides_too() -> None:
    large: dict[str, Any] = {"batch": 48, "hidden": 512, "inputs": 1024}
    with tf32_allowed(True):
        assert ask_layer(**large) == "", "of the projection in TF32 as well"
        assert ask_layer(batch=64, hidden=128, inputs=2048) == "", "beside a recurrence in fp32, too"
        assert ask_layer(**large, dtype=torch.bfloat16) == ""
        assert ask_layer(**large | {"hidden": 1024}) == "", "in TF32 too"
        assert ask_layer(hidden=512, batch=113, inputs=8) == "", "more rows than fp32 has a kernel for"
        assert ask_layer(hidden=512, batch=113, inputs=9) == "", "the state's, whatever the input is"
        assert ask_layer(hidden=514, batch=113, inputs=8) != "", "no whole vectors of four"
        assert ask_layer(hidden=256, batch=241, inputs=12, layers=2) == ""
        assert ask_layer(hidden=256, batch=241, inputs=9, layers=2) == ""
    with tf32_allowed(False):
        assert ask_layer(**large) == ""
        assert ask_layer(hidden=512, batch=113, inputs=9) != ""


@pytest.mark.parametrize(
    ("hidden", "inputs", "taken", "left"),
    [
        # I = H: cuDNN takes no TF32 for 16 rows of 256 and 384. At most 256 rows, or 34 million products.
        (128, 128, [56, 256], [57, 264]),
        (136, 136, [56, 256], [57]),
        (256, 256, [24, 64, 256], [16, 264]),
        (384, 384, [24, 112], [16, 120]),
        (504, 504, [24, 64], [16, 72]),
        (512, 512, [16, 24, 64], [9, 72]),
        (256, 640, [24, 64, 144], [152]),
        (512, 1280, [16, 32], [40]),
        # Many weights.
        (1024, 1024, [24, 32], [16, 40]),
        (1056, 1056, [], [24, 32]),
        # Sizes that were not measured.
        (120, 128, [], [64]),
        (260, 256, [], [64]),
        # Up to H = 192 cuDNN multiplies the state in fp32, and only the input in TF32.
        (160, 152, [], [64]),
        (160, 160, [64], [264]),
        (200, 152, [64], [264]),
        (256, 260, [], [64]),
    ],
)
def test_one_step_in_tf32(hidden: int, inputs: int, taken: list[int], left: list[int]) -> None:
    """Both sides of each edge."""
    step: dict[str, Any] = {"steps": 1, "hidden": hidden, "inputs": inputs}
    with tf32_allowed(True):
        assert [ask_layer(**step, batch=batch) for batch in taken] == [""] * len(taken)
        assert {ask_layer(**step, batch=batch) for batch in left} == {"one step of a large batch"}
    with tf32_allowed(False):
        assert {ask_layer(**step, batch=batch) for batch in (*taken, *left)} == {"one step of a large batch"}


def test_products_that_upstream_multiplies_in_tf32() -> None:
    """Where ours would be in fp32: no vectors and few units."""
    reason = "products that upstream makes in TF32, or in less time"
    few = {"steps": 50, "batch": 100, "inputs": 201, "hidden": 31}
    with tf32_allowed(True):
        assert ask_layer(**few) == reason
        for change in ({"hidden": 32}, {"inputs": 199}, {"inputs": 204, "hidden": 28}, {"steps": 2}):
            assert ask_layer(**few | change) != reason
        narrow = {"steps": 50, "batch": 100, "inputs": 1000, "hidden": 16}
        assert ask_layer(**narrow) == reason
        assert ask_layer(**few | {"steps": 8, "batch": 16, "inputs": 401}) != reason, "few rows"
        assert ask_layer(**few | {"steps": 1, "batch": 256}) != reason, "one step"
        for change in ({"hidden": 32}, {"inputs": 996}, {"steps": 41}):
            assert ask_layer(**narrow | change) != reason
        assert ask_layer(**few, train=True) != reason
        assert ask_layer(**few, captured=False) == reason
        fewer = {"steps": 109, "batch": 143, "inputs": 130, "hidden": 43}
        assert ask_layer(**fewer) == reason
        for change in ({"hidden": 45}, {"inputs": 99}, {"inputs": 132, "hidden": 44}, {"steps": 83}):
            assert ask_layer(**fewer | change) != reason
        assert ask_layer(**fewer, bidirectional=True) != reason
        assert ask_layer(**fewer, mode=LSTM) != reason
    with tf32_allowed(False):
        assert ask_layer(**few) == ""


@pytest.mark.parametrize(
    ("mode", "hidden", "last", "two"),
    [
        (LSTM, 24, 0, 0),
        (LSTM, 32, 800, 520),
        (LSTM, 40, 264, 368),
        (LSTM, 64, 264, 368),
        (LSTM, 72, 264, 520),
        (LSTM, 96, 264, 520),
        (LSTM, 104, 696, 0),
        (LSTM, 120, 264, 0),
        (LSTM, 128, 264, 0),
        (LSTM, 136, 448, 0),
        (TANH, 16, 1248, 0),
        (TANH, 24, 800, 0),
        (RELU, 40, 496, 0),
        (TANH, 64, 800, 0),
        (TANH, 72, 296, 1144),
        (TANH, 80, 448, 1144),
        (RELU, 96, 264, 1144),
        (TANH, 104, 800, 1144),
        (TANH, 112, 264, 1144),
        (TANH, 120, 344, 1144),
        (TANH, 128, 160, 1144),
        (TANH, 256, 128, 64),
    ],
)
def test_rows_and_units_of_eight_in_fp16(mode: int, hidden: int, last: int, two: int) -> None:
    """``last``: rows up to which ours runs; ``two``: of two directions; 0: always, or never."""
    on_chip = "layer that cuDNN keeps on the chip"
    eight: dict[str, Any] = {"mode": mode, "hidden": hidden, "dtype": torch.float16, "steps": 20}
    assert ask_layer(**eight, batch=last + 8) == on_chip
    assert last == 0 or ask_layer(**eight, batch=last) == ""
    assert ask_layer(**eight, batch=two or 1600, bidirectional=True) != on_chip
    assert two == 0 or ask_layer(**eight, batch=two + 8, bidirectional=True) == on_chip


def test_units_of_eight_that_are_always_ours() -> None:
    assert ask_layer(mode=TANH, hidden=32, dtype=torch.float16, steps=20, batch=1600) == ""


def test_few_steps_of_stacks_and_of_many_rows() -> None:
    """Layers that begin with loading all weights, one after the other."""
    reason = "few steps that upstream runs in less time"
    few: dict[str, Any] = {"mode": LSTM, "hidden": 388, "batch": 5, "layers": 3, "steps": 5}
    half: dict[str, Any] = {"mode": LSTM, "dtype": torch.float16}
    wide: dict[str, Any] = half | {"hidden": 544, "batch": 45, "layers": 3, "steps": 13}
    many: dict[str, Any] = half | {"hidden": 64, "batch": 128, "steps": 8}
    two: dict[str, Any] = {"dtype": torch.float16, "steps": 2, "inputs": 556}
    tanh: dict[str, Any] = two | {"mode": TANH, "hidden": 556, "batch": 41, "layers": 3}
    outside: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (few, [{"hidden": 384}, {"hidden": 641}, {"batch": 4}, {"batch": 13}, {"layers": 2}, {"steps": 6}]),
        (wide, [{"hidden": 512}, {"hidden": 648}, {"batch": 44}, {"layers": 2}, {"steps": 14}]),
        (many, [{"hidden": 56}, {"hidden": 97}, {"batch": 127}, {"steps": 9}, {"dtype": torch.bfloat16}]),
        (tanh, [{"hidden": 438}, {"batch": 19}, {"layers": 1}, {"steps": 3}, {"inputs": 560, "hidden": 560}]),
    ]
    for inside, changes in outside:
        assert ask_layer(**inside) == reason
        assert [ask_layer(**inside | change) for change in changes].count(reason) == 0
