"""GRU inference on CUDA: _cudnn_rnn, gru_cell and _thnn_fused_gru_cell: every decline, and parity on a GPU.

What the kernels compute is also tested on the CPU (test_gru_on_host.py), and so is what the override of a
composite operator must not disturb (test_composite.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import aten_ext

DOCUMENTATION = (Path(__file__).parent.parent / "docs" / "overrides.md").read_text()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
LSTM, GRU = 2, 3


def documented(reason: str) -> str:
    assert f"| `{reason}` |" in DOCUMENTATION, reason
    return reason


@contextmanager
def tf32_allowed(allowed: bool) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    # Not through torch.backends, which torch.testing._internal locks for a whole process.
    torch._C._set_cudnn_allow_tf32(allowed)
    try:
        yield
    finally:
        torch._C._set_cudnn_allow_tf32(before)


# ---- when _cudnn_rnn declines ------------------------------------------------------------------------


def weights(
    inputs: int, hidden: int, layers: int = 1, directions: int = 1, bias: bool = True, **options: Any
) -> list[torch.Tensor]:
    """The list that _cudnn_rnn takes, on the meta device."""
    result = []
    for layer in range(layers):
        for _ in range(directions):
            columns = inputs if layer == 0 else hidden * directions
            shapes = [
                (3 * hidden, columns),
                (3 * hidden, hidden),
                *([(3 * hidden,), (3 * hidden,)] if bias else []),
            ]
            result += [torch.empty(*shape, device="meta", **options) for shape in shapes]
    return result


def ask_layer(
    *,
    steps: int = 5,
    batch: int = 2,
    inputs: int = 6,
    hidden: int = 8,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    batch_first: bool = False,
    dtype: torch.dtype = torch.float32,
    **changes: Any,
) -> str:
    """The reason that _cudnn_rnn gives, "" if the fused kernel runs; ``changes`` replaces arguments."""
    directions = 2 if bidirectional else 1
    shape = (batch, steps, inputs) if batch_first else (steps, batch, inputs)
    stride = 4 if bias else 2
    arguments: dict[str, Any] = {
        "input": torch.empty(shape, device="meta", dtype=dtype),
        "weight": weights(inputs, hidden, layers, directions, bias, dtype=dtype),
        "weight_stride0": stride,
        "weight_buf": None,
        "hx": torch.empty(layers * directions, batch, hidden, device="meta", dtype=dtype),
        "cx": None,
        "mode": GRU,
        "hidden_size": hidden,
        "proj_size": 0,
        "num_layers": layers,
        "batch_first": batch_first,
        "dropout": 0.0,
        "train": False,
        "bidirectional": bidirectional,
        "batch_sizes": [],
        "dropout_state": None,
    }
    explanation = aten_ext.explain("_cudnn_rnn", key="CUDA", **arguments | changes)
    assert (explanation.route == "upstream") == bool(explanation.reason)
    return documented(explanation.reason) if explanation.reason else ""


def names(value: object) -> str:
    """Short names of a test's parameters."""
    return ", ".join(value) if isinstance(value, dict) else str(value)


def meta(*shape: int, **options: Any) -> torch.Tensor:
    return torch.empty(*shape, device="meta", **options)


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
        {"weight_buf": meta(3)},
        {"input": meta(5, 2, 12)[..., ::2]},
    ],
    ids=names,
)
def test_runs(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    if "input" in changes:
        changes = {"input": changes["input"].to(dtype)}
    assert ask_layer(dtype=dtype, **changes) == ""


def columns(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Weights as autocast passes them: views of one buffer, each one column."""
    return [w.flatten()[:, None] for w in tensors]


def test_runs_with_flattened_weights() -> None:
    for steps in (1, 5):
        assert ask_layer(weight=columns(weights(6, 8)), weight_buf=meta(3), steps=steps) == ""
    assert ask_layer(weight=columns(weights(7, 8)), weight_buf=meta(3)) == (
        "weight list that does not fit the layers"
    )


DECLINED = [
    ("mode other than GRU", {"mode": LSTM}),
    ("training", {"train": True}),
    ("training", {"train": True, "dropout": 0.5}),
    ("packed sequence", {"batch_sizes": [2, 1]}),
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
    ("one step of a large batch", {"steps": 1, "batch": 129}),
    ("hidden size without a kernel", {"hidden": 2049}),
    ("few steps of a large layer", {"steps": 4, "batch": 16, "hidden": 513}),
    ("long sequence of a layer that cuDNN keeps on the chip", {"steps": 33, "hidden": 65}),
    (
        "long sequence of a layer that cuDNN keeps on the chip",
        {"steps": 33, "batch": 16, "hidden": 96, "dtype": torch.float16},
    ),
    ("few steps of a large layer", {"steps": 9, "hidden": 1025}),
    ("batch too large for the hidden size", {"batch": 2000, "hidden": 512}),
    ("sizes beyond 32 bits", {"steps": 2**31 // 256, "batch": 1, "inputs": 1, "hidden": 1}),
]


@pytest.mark.parametrize(("reason", "changes"), DECLINED, ids=names)
def test_declines(reason: str, changes: dict[str, Any]) -> None:
    assert ask_layer(**changes) == reason


# One either side of each edge of the policy that sends a call upstream, for an H200. Which of our kernels a
# call takes is in test_gru_on_host.py.
EDGES: list[tuple[dict[str, Any], str, int, int]] = [
    ({"steps": 1}, "batch", 8, 9),
    ({"steps": 1, "hidden": 1024, "inputs": 1024}, "batch", 4, 5),
    ({"steps": 1, "hidden": 512, "inputs": 512, "dtype": torch.float16}, "batch", 129, 130),
    ({"steps": 10, "dtype": torch.float32}, "hidden", 2048, 2049),
    ({"steps": 10, "dtype": torch.bfloat16}, "hidden", 2048, 2049),
    ({"steps": 10, "bidirectional": True}, "hidden", 1056, 1057),
    ({"hidden": 512}, "batch", 112, 113),
    ({"hidden": 256}, "batch", 240, 241),
    ({"hidden": 128}, "batch", 2112, 2113),
    ({"hidden": 32}, "batch", 12672, 12673),
    ({"hidden": 64}, "batch", 3168, 3169),
    ({"hidden": 64, "dtype": torch.float16}, "batch", 12672, 12673),
    ({"hidden": 512, "dtype": torch.float16}, "batch", 480, 481),
    ({"hidden": 512, "dtype": torch.float16, "bidirectional": True}, "batch", 224, 225),
    ({"hidden": 640, "dtype": torch.float16}, "batch", 224, 225),
    ({"hidden": 256, "dtype": torch.bfloat16}, "batch", 960, 961),
    ({"hidden": 1024}, "batch", 32, 33),
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
        assert ask_layer(**large) == "large projection that upstream may do in TF32"
        assert ask_layer(**large | {"batch": 47}) == ""
        assert ask_layer(**large, dtype=torch.bfloat16) == ""
        assert ask_layer(**large | {"hidden": 1024}) == "", "in TF32 too"
        assert ask_layer(hidden=512, batch=113, inputs=8) == "", "more rows than fp32 has a kernel for"
        assert ask_layer(hidden=512, batch=113) != "", "no whole vectors of four: cuDNN takes no TF32"
        assert ask_layer(hidden=256, batch=241, inputs=12, layers=2) == ""
        assert ask_layer(hidden=256, batch=241, inputs=10, layers=2) != "", "nor for the first layer"
    with tf32_allowed(False):
        assert ask_layer(**large) == ""


@pytest.mark.parametrize(
    ("hidden", "inputs", "taken", "left"),
    [
        # I = H: cuDNN takes no TF32 for 16 rows of 256 and 384. At most 256 rows, or 34 million products.
        (128, 128, [16, 24, 256], [15, 17, 25, 264]),
        (136, 136, [24, 256], [16]),
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


# ---- when the others decline -------------------------------------------------------------------------


def ask_cell(
    batch: int = 2, inputs: int = 6, hidden: int = 8, dtype: torch.dtype = torch.float32, **changes: Any
) -> str:
    arguments: dict[str, Any] = {
        "input": meta(batch, inputs, dtype=dtype),
        "hx": meta(batch, hidden, dtype=dtype),
        "w_ih": meta(3 * hidden, inputs, dtype=dtype),
        "w_hh": meta(3 * hidden, hidden, dtype=dtype),
        "b_ih": meta(3 * hidden, dtype=dtype),
        "b_hh": meta(3 * hidden, dtype=dtype),
    }
    reason = aten_ext.explain("gru_cell", key="CUDA", **arguments | changes).reason
    return documented(reason) if reason else ""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cell_runs(dtype: torch.dtype) -> None:
    assert (
        ask_cell(dtype=dtype)
        == ask_cell(dtype=dtype, b_ih=None, b_hh=None)
        == ask_cell(batch=8, dtype=dtype)
        == ""
    )
    rows = 4 if dtype == torch.float32 else 64
    assert ask_cell(batch=rows, inputs=512, hidden=512, dtype=dtype) == ""


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("dtype other than float32, float16, bfloat16", {"dtype": torch.float64}),
        ("one bias of two", {"b_hh": None}),
        ("one bias of two", {"b_ih": None}),
        ("more than one dtype", {"hx": meta(2, 8, dtype=torch.float16)}),
        ("more than one dtype", {"b_ih": meta(24, dtype=torch.float16)}),
        ("more than one device", {"hx": torch.empty(2, 8)}),
        ("tensor that is not strided", {"input": torch.empty(2, 6).to_sparse().to("meta")}),
        ("input or state that is not two-dimensional", {"input": meta(6)}),
        ("weights that do not fit", {"w_ih": meta(24, 5)}),
        ("weights that do not fit", {"w_hh": meta(24, 7)}),
        ("weights that do not fit", {"hx": meta(3, 8)}),
        ("weights that do not fit", {"b_ih": meta(23)}),
        ("empty input", {"batch": 0}),
        ("tensor that is not contiguous", {"input": meta(6, 2).t()}),
        ("tensor that is not contiguous", {"w_hh": meta(8, 24).t()}),
        ("one step of a large batch", {"batch": 9}),
        ("one step of a large batch", {"batch": 5, "inputs": 512, "hidden": 1024}),
        ("one step of a large batch", {"batch": 65, "inputs": 512, "hidden": 512, "dtype": torch.float16}),
    ],
    ids=names,
)
def test_cell_declines(reason: str, changes: dict[str, Any]) -> None:
    assert ask_cell(**changes) == reason


def ask_gates(batch: int = 2, hidden: int = 8, dtype: torch.dtype = torch.float32, **changes: Any) -> str:
    arguments: dict[str, Any] = {
        "input_gates": meta(batch, 3 * hidden, dtype=dtype),
        "hidden_gates": meta(batch, 3 * hidden, dtype=dtype),
        "hx": meta(batch, hidden, dtype=dtype),
        "input_bias": meta(3 * hidden, dtype=dtype),
        "hidden_bias": meta(3 * hidden, dtype=dtype),
    }
    reason = aten_ext.explain("_thnn_fused_gru_cell", key="CUDA", **arguments | changes).reason
    return documented(reason) if reason else ""


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_gates_run(dtype: torch.dtype) -> None:
    assert ask_gates(dtype=dtype) == ask_gates(dtype=dtype, input_bias=None, hidden_bias=None) == ""


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("dtype other than float32, float16, bfloat16, float64", {"dtype": torch.int32}),
        ("one bias of two", {"hidden_bias": None}),
        ("more than one dtype", {"hx": meta(2, 8, dtype=torch.float16)}),
        ("more than one device", {"hx": torch.empty(2, 8)}),
        ("tensor that is not strided", {"input_gates": torch.empty(2, 24).to_sparse().to("meta")}),
        ("gates that do not fit the state", {"hidden_gates": meta(2, 23)}),
        ("gates that do not fit the state", {"hx": meta(2, 1, 8)}),
        ("gates that do not fit the state", {"input_bias": meta(23)}),
        ("empty input", {"batch": 0}),
        ("tensor that is not contiguous", {"hx": meta(8, 2).t()}),
    ],
    ids=names,
)
def test_gates_decline(reason: str, changes: dict[str, Any]) -> None:
    assert ask_gates(**changes) == reason


# ---- on a GPU ----------------------------------------------------------------------------------------


def assert_ran(name: str, times: int = 1) -> None:
    counts = aten_ext.counts("CUDA")[name]
    assert (counts.ran, dict(counts.declined)) == (times, {})


def no_less_accurate(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, floor: float) -> None:
    """Largest and mean error at most 1.5 times upstream's; `floor`, a rounding of the result, is no error."""
    assert ours.shape == theirs.shape and ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
    for measure in (torch.max, torch.mean):
        mine, upstreams = (measure((t.double() - exact).abs()).item() for t in (ours, theirs))
        assert mine <= 1.5 * upstreams + floor, (measure.__name__, mine, upstreams)


FLOOR = {torch.float32: 1e-7, torch.float16: 2.5e-4, torch.bfloat16: 2e-3}


def compare_layers(
    dtype: torch.dtype,
    *,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    layers: int = 1,
    bidirectional: bool = False,
    bias: bool = True,
    batch_first: bool = False,
    given_state: bool = True,
    seed: int = 0,
) -> None:
    torch.manual_seed(seed)
    gru = torch.nn.GRU(
        inputs, hidden, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional
    )
    gru = gru.to("cuda", dtype).eval()
    x = torch.randn((batch, steps, inputs) if batch_first else (steps, batch, inputs), device="cuda").to(
        dtype
    )
    state = None
    if given_state:
        state = torch.randn(layers * (2 if bidirectional else 1), batch, hidden, device="cuda").to(dtype)
    with torch.no_grad():
        with aten_ext.disabled():
            theirs = gru(x, state)
        aten_ext.reset_counts()
        ours = gru(x, state)
        reason = ask_layer(
            steps=steps,
            batch=batch,
            inputs=inputs,
            hidden=hidden,
            layers=layers,
            bidirectional=bidirectional,
            bias=bias,
            batch_first=batch_first,
            dtype=dtype,
        )
        if reason:  # what the policy leaves to upstream
            assert dict(aten_ext.counts("CUDA")["_cudnn_rnn"].declined) == {reason: 1}
            return
        assert_ran("_cudnn_rnn")
        exact = gru.double()(x.double(), None if state is None else state.double())
    for mine, upstreams, truth in zip(ours, theirs, exact, strict=True):
        no_less_accurate(mine, upstreams, truth, FLOOR[dtype])


@pytest.mark.gpu
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    steps=st.integers(1, 20),
    batch=st.one_of(st.sampled_from([1, 2, 8, 9, 16, 17]), st.integers(1, 40)),
    inputs=st.integers(1, 200),
    hidden=st.one_of(
        st.sampled_from([1, 7, 16, 33, 64, 65, 128, 129, 192, 256, 257, 512, 513]), st.integers(1, 700)
    ),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    given_state=st.booleans(),
    allow_tf32=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_layers_match_upstream(allow_tf32: bool, **case: Any) -> None:
    with tf32_allowed(allow_tf32):
        compare_layers(**case)


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True], ids=["fp32", "tf32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "hidden", "bidirectional"),
    [
        (1, 1, 256, 512, False),
        (1, 32, 1280, 512, False),
        (1, 64, 512, 512, False),
        (2, 4, 256, 640, False),
        (4, 3, 40, 100, True),
        (64, 4, 300, 700, True),
        (64, 64, 512, 1024, False),
        (20, 16, 64, 2048, False),
        (50, 1, 256, 512, False),
        (50, 32, 256, 512, True),
        (20, 17, 36, 260, True),
        (20, 128, 64, 512, False),
        (64, 1, 1024, 1024, False),
        (64, 16, 1024, 1024, False),
        (200, 8, 128, 256, False),
        (100, 64, 128, 128, True),
        (20, 1, 64, 2048, False),
        (20, 30, 100, 320, False),
        (1, 64, 640, 256, False),
        (1, 256, 128, 128, True),
        (1, 24, 1024, 1024, False),
    ],
)
def test_sizes_of_the_benchmark(
    allow_tf32: bool,
    dtype: torch.dtype,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    bidirectional: bool,
) -> None:
    with tf32_allowed(allow_tf32):
        compare_layers(
            dtype, steps=steps, batch=batch, inputs=inputs, hidden=hidden, bidirectional=bidirectional
        )


@pytest.mark.gpu
@pytest.mark.parametrize("allow_tf32", [False, True], ids=["fp32", "tf32"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("place", ["in order", "second first", "between vectors", "the same", "far"])
def test_weights_of_both_directions_lie_anywhere(allow_tf32: bool, dtype: torch.dtype, place: str) -> None:
    """Their projections are one product over the distance between them, where that can be."""
    inputs, hidden = 36, 40
    size = 3 * hidden * inputs
    far = (1 << 31) // dtype.itemsize
    at = {
        "in order": (0, 4 * size),
        "second first": (size, 0),
        "between vectors": (1, size + 2),
        "the same": (0, 0),
        "far": (0, far),
    }[place]
    torch.manual_seed(0)
    gru = torch.nn.GRU(inputs, hidden, bidirectional=True).to("cuda", dtype)
    memory = torch.empty(max(at) + size, dtype=dtype, device="cuda")
    weights = list(gru._flat_weights)
    for i, offset in zip((0, 4), at, strict=True):
        matrix = memory[offset : offset + size].view(3 * hidden, inputs)
        weights[i] = matrix.normal_(std=hidden**-0.5)
    x, h = torch.randn(9, 3, inputs, device="cuda"), torch.randn(2, 3, hidden, device="cuda")
    x, h = x.to(dtype), h.to(dtype)

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, h, *weights = tensors
        return torch._VF.gru(x, h, weights, True, 1, 0.0, False, True, False)

    with torch.no_grad(), tf32_allowed(allow_tf32):
        with aten_ext.disabled():
            theirs = run(x, h, *weights)
        aten_ext.reset_counts()
        ours = run(x, h, *weights)
        assert_ran("_cudnn_rnn")
        exact = run(*(t.double() for t in (x, h, *weights)))
    for mine, upstreams, truth in zip(ours, theirs, exact, strict=True):
        no_less_accurate(mine, upstreams, truth, FLOOR[dtype])


@pytest.mark.gpu
def test_empty_sequences_are_upstreams() -> None:
    gru = torch.nn.GRU(4, 5).cuda().eval()
    errors = []
    for off in (True, False):
        aten_ext.disable() if off else aten_ext.enable("_cudnn_rnn")
        with torch.no_grad(), pytest.raises(RuntimeError) as error:
            gru(torch.empty(0, 2, 4, device="cuda"))
        errors.append(str(error.value))
    assert errors[0] == errors[1]


@pytest.mark.gpu
def test_training_goes_upstream() -> None:
    gru = torch.nn.GRU(4, 5).cuda()
    gru(torch.randn(3, 2, 4, device="cuda"))[0].sum().backward()
    counts = aten_ext.counts("CUDA")["_cudnn_rnn"]
    assert (counts.ran, dict(counts.declined)) == (0, {"training": 1})
    assert gru.weight_hh_l0.grad is not None


@pytest.mark.gpu
def test_backward_through_inference_is_upstreams_error() -> None:
    gru = torch.nn.GRU(4, 5).cuda().eval()
    y, _ = gru(torch.randn(3, 2, 4, device="cuda"))
    assert_ran("_cudnn_rnn")
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        y.sum().backward()


@pytest.mark.gpu
def test_autocast() -> None:
    gru = torch.nn.GRU(16, 32).cuda().eval()
    x = torch.randn(5, 2, 16, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        y, _ = gru(x)
        assert_ran("_cudnn_rnn")
        with aten_ext.disabled():
            theirs, _ = gru(x)
    # PyTorch's autocast makes float16 of cuDNN's RNNs, whatever it was asked for.
    assert y.dtype == theirs.dtype
    torch.testing.assert_close(y, theirs, rtol=0, atol=2e-3)


# One call of each kernel that waits for other blocks, and of the one-step kernel.
CALLS = [(20, 4, 512), (20, 16, 512), (20, 4, 900), (20, 4, 128), (1, 4, 512)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("steps", "batch", "hidden"), CALLS)
def test_graph_capture(dtype: torch.dtype, steps: int, batch: int, hidden: int) -> None:
    gru = torch.nn.GRU(64, hidden).to("cuda", dtype).eval()
    x = torch.randn(steps, batch, 64, device="cuda").to(dtype)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        expected = gru(x)[0].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y, _ = gru(x)
        for _ in range(20):
            graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
    x.copy_(torch.randn_like(x))
    graph.replay()
    with torch.no_grad():
        assert torch.equal(y, gru(x)[0])


@pytest.mark.gpu
@pytest.mark.parametrize(("steps", "batch", "hidden"), CALLS)
def test_streams_and_threads(steps: int, batch: int, hidden: int) -> None:
    """Each has its own barrier; results are those of one call after the other, bit for bit."""
    grus = [torch.nn.GRU(32, hidden).cuda().eval() for _ in range(4)]
    xs = [torch.randn(steps, batch, 32, device="cuda") for _ in grus]
    with torch.no_grad():
        expected = [gru(x)[0] for gru, x in zip(grus, xs, strict=True)]
    torch.cuda.synchronize()
    failures: list[int] = []

    def work(i: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not torch.equal(grus[i](xs[i])[0], expected[i]):
                    failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(grus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.gpu
def test_device_that_is_not_current() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    gru = torch.nn.GRU(8, 300).to("cuda:1").eval()
    with torch.no_grad(), torch.cuda.device(0):
        y, _ = gru(torch.randn(5, 2, 8, device="cuda:1"))
    assert y.device.index == 1 and torch.cuda.current_device() == 0
    assert_ran("_cudnn_rnn")


@pytest.mark.gpu
def test_same_bits_every_time() -> None:
    gru = torch.nn.GRU(64, 700, bidirectional=True).to("cuda", torch.bfloat16).eval()
    x = torch.randn(30, 12, 64, device="cuda").bfloat16()
    with torch.no_grad():
        first = gru(x)[0]
        assert all(torch.equal(gru(x)[0], first) for _ in range(20))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"),
    [(1, 512, 512), (3, 5, 7), (8, 512, 512), (4, 1024, 1024), (2, 100, 333), (16, 128, 256), (40, 72, 64)],
)
def test_cell_matches_upstream(dtype: torch.dtype, bias: bool, batch: int, inputs: int, hidden: int) -> None:
    if dtype == torch.float32:
        batch = min(batch, 8)  # more are upstream's
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(inputs, hidden, bias=bias).to("cuda", dtype)
    x, h = (
        torch.randn(batch, inputs, device="cuda").to(dtype),
        torch.randn(batch, hidden, device="cuda").to(dtype),
    )
    with torch.no_grad():
        with aten_ext.disabled():
            theirs = cell(x, h)
        aten_ext.reset_counts()
        ours = cell(x, h)
        assert_ran("gru_cell")
        assert aten_ext.counts("CUDA")["_thnn_fused_gru_cell"].ran == 0, "one launch"
        exact = cell.double()(x.double(), h.double())
    no_less_accurate(ours, theirs, exact, FLOOR[dtype])


@pytest.mark.gpu
def test_cell_trains_through_its_parts() -> None:
    cell = torch.nn.GRUCell(6, 8).cuda()
    x, h = torch.randn(3, 6, device="cuda"), torch.randn(3, 8, device="cuda")
    gradients = []
    for off in (True, False):
        aten_ext.disable() if off else aten_ext.enable("gru_cell", "_thnn_fused_gru_cell")
        aten_ext.reset_counts()
        gradients.append(torch.autograd.grad(cell(x, h).sum(), list(cell.parameters())))
    assert aten_ext.counts("CUDA")["gru_cell"].ran == 0
    assert_ran("_thnn_fused_gru_cell")
    for mine, upstreams in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, upstreams)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "hidden"), [(1, 1), (3, 7), (64, 1024), (5, 333)])
def test_gates_match_upstream(dtype: torch.dtype, bias: bool, batch: int, hidden: int) -> None:
    torch.manual_seed(0)

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").to(dtype)

    arguments = [new(batch, 3 * hidden), new(batch, 3 * hidden), new(batch, hidden)]
    arguments += [new(3 * hidden), new(3 * hidden)] if bias else []
    with aten_ext.disabled():
        theirs = torch.ops.aten._thnn_fused_gru_cell(*arguments)
    aten_ext.reset_counts()
    ours = torch.ops.aten._thnn_fused_gru_cell(*arguments)
    assert_ran("_thnn_fused_gru_cell")
    size = {torch.float64: 1e-14, torch.float32: 2e-7, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]
    for mine, upstreams in zip(ours, theirs, strict=True):
        assert mine.stride() == upstreams.stride()
        torch.testing.assert_close(mine, upstreams, rtol=size, atol=size)
