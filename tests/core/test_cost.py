"""Bytes, FLOPs, rooflines and measurements that explain() adds."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import aten_ext
from aten_ext import _measured, _roofline
from aten_ext._cost import FORMULAS, Cost, cost
from aten_ext.bench.parameter_sets import PARAMETER_SETS
from aten_ext.bench.registry import load
from ops.optimizer.adam_reference import make_state, options
from paths import ROOT


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_every_override_has_a_formula() -> None:
    names = {override.name.partition(".")[0] for override in aten_ext.overrides()}
    assert names <= set(FORMULAS), "add it to aten_ext/_cost.py"


def test_adam_moves_what_its_benchmark_says() -> None:
    """Two statements of one formula, made for different purposes."""
    for case in load("fused_adam").cases("cuda", True):
        words = case.name.split()
        shapes = PARAMETER_SETS[words[-1]]()
        dtype = getattr(torch, case.dtype)
        scalar = torch.empty((), device="meta")
        arguments = options(
            self=[meta(*shape, dtype=dtype) for shape in shapes],
            amsgrad="amsgrad" in words,
            grad_scale=scalar if "grad_scale" in case.name else None,
        )
        found = cost(case.override, arguments)
        assert found is not None and (found.bytes, found.dtype) == (case.bytes, case.dtype), case.name


MEGA = 1 << 20
NONE = dict(grad_scale=None, found_inf=None, maximize=False, weight_decay=0.0)
SGD = NONE | dict(self=[meta(8)], nesterov=True)
GATES = dict(input_gates=meta(2, 12), hidden_gates=meta(2, 12), hx=meta(2, 4))
CELL = GATES | dict(input_bias=meta(12), hidden_bias=meta(12))
LSTM_GATES = dict(
    input_gates=meta(2, 16),
    hidden_gates=meta(2, 16),
    cx=meta(2, 4),
    input_bias=meta(16),
    hidden_bias=meta(16),
)
LSTM_BACKWARD = dict(grad_hy=meta(2, 4), cx=meta(2, 4), cy=meta(2, 4), workspace=meta(2, 16))
GRU = dict(input=meta(2, 3), hx=meta(2, 4), w_ih=meta(12, 3), w_hh=meta(12, 4), b_ih=meta(12), b_hh=meta(12))
ADDMM = dict(self=meta(5), mat1=meta(2, 3), mat2=meta(3, 5), beta=1, alpha=1)
LAYERS = dict(hx=meta(1, 2, 4), params=[meta(12, 3), meta(12, 4)], bidirectional=False)
RNN = dict(mode=3, hidden_size=4, proj_size=0, num_layers=1, bidirectional=False, cx=None)
RNN_BACKWARD = RNN | dict(
    input=meta(5, 2, 3),
    weight=[meta(12, 3), meta(12, 4)],
    hx=meta(1, 2, 4),
    output=meta(5, 2, 4),
    grad_output=meta(5, 2, 4),
    grad_hy=None,
    grad_cy=None,
)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("cat", {"tensors": [meta(2, 3), meta(4, 3)], "dim": 0}, (2 * 18 * 4, 0)),
        # The narrow input is converted: 6 halfs read, 6 floats read, 12 floats written.
        ("cat", {"tensors": [meta(6, dtype=torch.float16), meta(6)], "dim": 0}, (12 + 24 + 48, 0)),
        ("cat.out", {"tensors": [meta(6)], "dim": 0, "out": meta(6, dtype=torch.float64)}, (24 + 48, 0)),
        ("_fused_sgd_", SGD | dict(momentum=0, is_first_step=True), (96, 16)),
        ("_fused_sgd_", SGD | dict(momentum=0.9, is_first_step=False), (160, 56)),
        ("_fused_sgd_", SGD | dict(momentum=0.9, is_first_step=True), (128, 32)),
        ("_fused_adagrad_", NONE | dict(self=[meta(8)]), (160, 56)),
        ("_thnn_fused_gru_cell", CELL, ((24 + 24 + 8 + 24 + 48) * 4, 8 * 22)),
        (
            "_thnn_fused_gru_cell_backward",
            dict(grad_hy=meta(2, 4), workspace=meta(2, 20), has_bias=True),
            ((8 + 40 + 24 + 24 + 8 + 24) * 4, 8 * 20),
        ),
        ("_thnn_fused_lstm_cell", LSTM_GATES, ((32 + 32 + 8 + 32 + 8 + 8 + 32) * 4, 8 * 30)),
        (
            "_thnn_fused_lstm_cell_backward_impl",
            LSTM_BACKWARD | dict(grad_cy=None, has_bias=True),
            ((8 + 8 + 8 + 32 + 32 + 8 + 16) * 4, 8 * 27),
        ),
        (
            "_thnn_fused_lstm_cell_backward_impl",
            LSTM_BACKWARD | dict(grad_cy=meta(2, 4), has_bias=False),
            ((8 + 8 + 8 + 8 + 32 + 32 + 8) * 4, 8 * 23),
        ),
        ("gru_cell", GRU, ((6 + 8 + 36 + 48 + 24 + 8) * 4, 2 * 2 * 84 + 8 * 22)),
        # 4 gates of 2 x 8 elements from 6 inputs: two states read and two written.
        (
            "lstm_cell",
            GRU
            | dict(input=meta(2, 6), hx=[meta(2, 8), meta(2, 8)], w_ih=meta(32, 6), w_hh=meta(32, 8))
            | dict(b_ih=meta(32), b_hh=meta(32)),
            ((12 + 32 + 192 + 256 + 64 + 32) * 4, 2 * 2 * 448 + 16 * 30),
        ),
        (
            "rnn_tanh_cell",
            GRU
            | dict(input=meta(2, 6), hx=meta(2, 8), w_ih=meta(8, 6), w_hh=meta(8, 8), b_ih=None, b_hh=None),
            ((12 + 16 + 48 + 64 + 16) * 4, 2 * 2 * 112 + 16 * 2),
        ),
        ("mm", {"self": meta(2, 3), "mat2": meta(3, 5)}, ((6 + 15 + 10) * 4, 60)),
        ("addmm", ADDMM, ((5 + 6 + 15 + 10) * 4, 60 + 10)),
        ("addmm.out", ADDMM | dict(beta=2, alpha=3), ((5 + 6 + 15 + 10) * 4, 60 + 30)),
        ("addmm", ADDMM | dict(beta=0), ((6 + 15 + 10) * 4, 60)),
        ("_addmm_activation", ADDMM | dict(use_gelu=False), ((5 + 6 + 15 + 10) * 4, 60 + 20)),
        ("_addmm_activation", ADDMM | dict(use_gelu=True), ((5 + 6 + 15 + 10) * 4, 60 + 100)),
        ("gru.input", LAYERS | dict(input=meta(5, 2, 3)), ((30 + 36 + 48 + 16 + 40) * 4, 2 * 10 * 12 * 7)),
        ("gru.data", LAYERS | dict(data=meta(7, 3)), ((21 + 36 + 48 + 16 + 28) * 4, 2 * 7 * 12 * 7)),
        (
            "lstm.data",
            LAYERS | dict(data=meta(7, 3), hx=[meta(1, 2, 4)] * 2),
            ((21 + 36 + 48 + 32 + 28) * 4, 2 * 7 * 12 * 7),
        ),
        # T 5, B 2, I 3, H 4, one layer: 2 * T * B * 3 * H * (I + H) FLOPs.
        (
            "_cudnn_rnn",
            RNN | dict(input=meta(5, 2, 3), weight=[meta(12, 3), meta(12, 4)], hx=meta(1, 2, 4)),
            ((30 + 36 + 48 + 16 + 40) * 4, 2 * 10 * 12 * 7),
        ),
        # Two layers of two directions: the second layer reads 2 * H numbers a step.
        (
            "_cudnn_rnn",
            RNN | dict(num_layers=2, bidirectional=True, input=meta(10, 3), weight=[], hx=meta(4, 2, 4)),
            ((30 + 64 + 80) * 4, 2 * (2 * 10 * 12 * 7) + 2 * (2 * 10 * 12 * 12)),
        ),
        # Each of the forward's products three times; without the input's gradient one less.
        (
            "_cudnn_rnn_backward",
            RNN_BACKWARD | dict(output_mask=(True, True, False, True)),
            ((30 + 84 + 88 + 84 + 30 + 8) * 4, 3 * 2 * 10 * 12 * 7),
        ),
        (
            "_cudnn_rnn_backward",
            RNN_BACKWARD | dict(output_mask=(False, True, False, True)),
            ((30 + 84 + 88 + 84 + 8) * 4, 3 * 2 * 10 * 12 * 7 - 2 * 10 * 12 * 3),
        ),
    ],
)
def test_formulas(name: str, arguments: dict[str, Any], expected: tuple[int, int]) -> None:
    found = cost(name, arguments)
    assert found is not None and (found.bytes, found.flops) == expected


def test_an_override_without_a_formula() -> None:
    assert cost("sin", {"self": meta(3)}) is None


# ---- roofline ---------------------------------------------------------------------------------------

BANDWIDTH = 2 * 3.201e9 * 6144 / 8 / 1e6  # bytes/us
BUSY16 = Cost(1000, 10**12, "bfloat16")
BUSY32 = Cost(1000, 10**12, "float32")


def h200(**changes: object) -> SimpleNamespace:
    """What torch says of an H200."""
    properties = dict(
        name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, clock_rate=1_980_000,
        memory_clock_rate=3_201_000, memory_bus_width=6144,
    )  # fmt: skip
    return SimpleNamespace(**properties | changes)


@pytest.mark.parametrize(
    ("work", "changes", "microseconds", "limit"),
    [
        (Cost(4_917 * MEGA, 0, "float32"), {}, 4_917 * MEGA / BANDWIDTH, "4.92 TB/s of NVIDIA H200"),
        (BUSY16, {}, 1e12 / (4096 * 132 * 1.98e3), "1,070.5 TFLOP/s of NVIDIA H200"),
        (BUSY32, {}, 1e12 / (256 * 132 * 1.98e3), "66.9 TFLOP/s of NVIDIA H200"),
        (BUSY16, {"major": 99}, 1000 / BANDWIDTH, "4.92 TB/s of NVIDIA H200 (arithmetic unknown)"),
        (BUSY16, {"memory_clock_rate": 0}, None, "the driver does not tell the memory clock of NVIDIA H200"),
    ],
)
def test_roofline(
    monkeypatch: pytest.MonkeyPatch,
    work: Cost,
    changes: dict[str, object],
    microseconds: float | None,
    limit: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: h200(**changes))
    least, why = _roofline.roofline(work, torch.device("cuda"))
    assert why == limit
    assert least == (None if microseconds is None else pytest.approx(microseconds))


# ---- measurements -----------------------------------------------------------------------------------


def test_measured_json_is_made_from_the_benchmarks() -> None:
    script = ROOT / "scripts" / "measured"
    if not script.exists() or not (ROOT / "docs" / "benchmarks").is_dir():
        pytest.skip("needs a checkout")
    run = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=300
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_the_nearest_case_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def case(name: str, bytes: int, machine: str = "here") -> _measured.Measured:
        return _measured.Measured("cat", name, "float32", machine, "2.13", "gpu", bytes, 2.0, 1.0, "cat.json")

    all_cases = (case("small", 1000), case("large", 10_000), case("mine", 3000, "elsewhere"))
    monkeypatch.setattr(_measured, "cases", lambda: all_cases)

    def ask(name: str, bytes: int, machine: str | None = "here") -> tuple[str | None, str]:
        found, note = _measured.nearest(name, Cost(bytes, 0, "float32"), machine)
        return found.case if found else None, note

    assert ask("cat", 1500) == ("small", "")
    assert ask("cat", 9000) == ("large", "")
    assert ask("cat", 3000) == (None, "the nearest case measured here, small, moves 1,000 bytes")
    assert ask("cat", 3000, "elsewhere") == ("mine", "")
    assert ask("cat", 3000, None)[1].endswith("measured on elsewhere, here, not on a GPU elsewhere")
    assert ask("cat.out", 1000) == (None, "cat.out in float32 is measured on no machine, not on here")


def explained(shapes: list[tuple[int, ...]], device: str, key: str | None = None) -> aten_ext.Explanation:
    state = make_state(shapes, device=device)
    lists = (state.params, state.grads, state.exp_avgs, state.exp_avg_sqs, state.max_exp_avg_sqs, state.steps)
    return aten_ext.explain(torch._fused_adamw_, *lists, key=key, **options())


def test_explain(device: str) -> None:
    """A fused call has a cost; of the time there is a number or the reason why there is none."""
    found = explained([(1000, 4)], device)
    assert found.route == "fused" and found.cost == Cost(4000 * 28, 4000 * 15, "float32")
    if device == "cpu":
        assert (found.roofline_us, found.roofline) == (None, "no ceiling is known for CPU")
    else:
        assert found.roofline_us is not None and torch.cuda.get_device_name() in found.roofline
    assert (found.measured is None) == bool(found.measured_note)
    lines = str(found).splitlines()
    assert lines[0] == f"_fused_adamw_ at {device.upper()}: fused"
    assert found.plan and lines[1] == f"  plan: {found.plan}"
    assert lines[2] == "  moves 112,000 bytes, 60,000 FLOPs"
    assert len(lines) == 5 and found.roofline in lines[3]


def test_explain_quotes_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    here = _measured.Measured(
        "_fused_adamw_", "adamw x", "float32", "a CPU", "2.13.0", "wall", 112, 12345.6, 1.25, "x.json"
    )
    monkeypatch.setattr(_measured, "cases", lambda: (here,))
    monkeypatch.setattr("aten_ext._explain.machine_name", lambda device: "a CPU")
    found = explained([(4,)], "cpu")
    assert found.measured == here
    assert str(found).splitlines()[-1] == (
        "  measured: adamw x float32, 112 bytes, wall time on a CPU, torch 2.13.0: "
        "upstream 12,346 µs, fused 1.25 µs"
    )


def test_explain_about_a_gpu_that_is_elsewhere() -> None:
    found = explained([(4,)], "meta", key="CUDA")
    assert found.cost is not None and found.roofline_us is None
    assert found.roofline == "the tensors are on no such device" and found.measured is None


def test_calls_that_go_upstream_have_no_cost() -> None:
    with aten_ext.disabled():
        found = explained([(4,)], "cpu")
    assert (found.cost, found.roofline_us, found.measured) == (None, None, None)
    assert str(found) == "_fused_adamw_ at CPU: upstream: disabled"
