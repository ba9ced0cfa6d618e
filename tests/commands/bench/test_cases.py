"""The cases of the benchmark: distinct, of the published sizes, on operands that stay normal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import aten_ext
from aten_ext.bench import interleave, registry
from aten_ext.bench.case import Settings
from aten_ext.bench.ops import fused_adagrad, fused_adam, fused_sgd, optimizer_step
from aten_ext.bench.parameter_sets import PARAMETER_SETS
from aten_ext.bench.route import Overrides, routes
from developer_bench import optimizer_peers


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("op", [*registry.OPS, *registry.FOR_DEVELOPERS])
@pytest.mark.usefixtures("developers")
def test_cases_are_distinct_and_name_known_overrides(op: str, device: str) -> None:
    short, full = (registry.load(op).cases(device, full) for full in (False, True))
    labels = [case.label for case in full]
    assert len(set(labels)) == len(labels)
    # Programs have other sizes without --full, and are no override's.
    programs = op == "programs"
    assert programs or {case.label for case in short} <= set(labels)
    known = {override.name for override in aten_ext.overrides()}
    for case in full:
        assert case.op == op
        assert case.override in known or programs
        # What is not one call of one kernel counts no bytes.
        assert 0 < case.footprint <= case.bytes or op == "models" or programs


@pytest.mark.parametrize(
    ("name", "tensors", "elements"),
    [
        ("resnet50", 161, 25_557_032),
        ("gpt2", 148, 124_439_808),
        ("llama1b", 146, 1_235_814_400),
        ("gru_seq2seq", 14, 17_496_384),
        ("4000x64", 4000, 256_000),
    ],
)
def test_parameter_sets_have_the_published_sizes(name: str, tensors: int, elements: int) -> None:
    shapes = PARAMETER_SETS[name]()
    assert len(shapes) == tensors
    assert sum(math.prod(shape) for shape in shapes) == elements


@pytest.mark.parametrize(
    ("step", "moved", "held"),
    [
        (fused_adam.Step("14x1.25M"), 7 * 17_500_000 * 4, 4 * 17_500_000 * 4),
        (fused_adam.Step("14x1.25M", "bfloat16"), 7 * 17_500_000 * 2, 4 * 17_500_000 * 2),
        (fused_adam.Step("14x1.25M", amsgrad=True), 9 * 17_500_000 * 4, 5 * 17_500_000 * 4),
        (fused_adam.Step("14x1.25M", grad_scale=True), 8 * 17_500_000 * 4, 4 * 17_500_000 * 4),
    ],
)
def test_bytes_of_an_adam_step(step: fused_adam.Step, moved: int, held: int) -> None:
    case = step.case()
    assert (case.bytes, case.footprint) == (moved, held)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("variant", ["plain", "amsgrad", "grad_scale", "maximize", "misaligned"])
def test_operands_stay_normal_numbers(dtype: str, variant: str) -> None:
    step = fused_adam.Step(
        "1x10",
        dtype,
        amsgrad=variant == "amsgrad",
        grad_scale=variant == "grad_scale",
        maximize=variant == "maximize",
        offset=int(variant == "misaligned"),
    )
    call = step.case().make("cpu")
    for _ in range(5000):
        call()
    parameters, gradients, moments, squares, largest, steps = call.args  # type: ignore[attr-defined]
    for (tensor,) in (parameters, gradients, moments, squares, largest or gradients):
        assert tensor.isfinite().all()
        assert (tensor.abs() >= torch.finfo(tensor.dtype).smallest_normal).all()
        assert (tensor.abs() < 100).all()
        assert tensor.storage_offset() == (step.offset if tensor is not gradients[0] else 0)
    assert steps[0] == 1


@pytest.mark.parametrize(
    ("step", "moved", "held"),
    [
        (fused_sgd.Step("14x1.25M"), 5, 3),
        (fused_sgd.Step("14x1.25M", momentum=0.0), 3, 2),
        (fused_sgd.Step("14x1.25M", grad_scale=True), 6, 3),
        (fused_adagrad.Step("14x1.25M"), 5, 3),
        (fused_adagrad.Step("14x1.25M", grad_scale=True), 6, 3),
    ],
)
def test_bytes_of_other_steps(step: fused_sgd.Step | fused_adagrad.Step, moved: int, held: int) -> None:
    case = step.case()
    assert (case.bytes, case.footprint) == (moved * 70_000_000, held * 70_000_000)


@pytest.mark.parametrize(
    "step",
    [
        fused_sgd.Step("1x10"),
        fused_sgd.Step("1x10", momentum=0.0),
        fused_sgd.Step("1x10", nesterov=True, maximize=True),
        fused_sgd.Step("1x10", grad_scale=True, tensor_lr=True, offset=1),
        fused_adagrad.Step("1x10"),
        fused_adagrad.Step("1x10", "float16"),
        fused_adagrad.Step("1x10", "bfloat16", lr_decay=0.1, grad_scale=True, offset=1),
    ],
    ids=lambda step: step.case().label,
)
def test_operands_of_other_steps_stay_normal_numbers(step: fused_sgd.Step | fused_adagrad.Step) -> None:
    call = step.case().make("cpu")
    for _ in range(5000):
        call()
    for tensor in [tensors[0] for tensors in call.args[:3] if tensors]:  # type: ignore[attr-defined]
        assert tensor.isfinite().all() and (tensor.abs() < 1000).all()
        assert (tensor.abs() >= torch.finfo(tensor.dtype).smallest_normal).all()
        assert tensor.storage_offset() == step.offset


@pytest.mark.parametrize("kind", optimizer_step.OVERRIDES)
def test_optimizer_step_reaches_its_override(kind: str) -> None:
    case = optimizer_step.step_of(kind, "1x10")
    with Overrides() as switch:
        call = case.make("cpu")
        assert routes(call, case.override, "cpu", switch) == ("fused", None)
        ran = {name: count.ran for name, count in aten_ext.counts("CPU").items() if count.ran}
        # All but SGD count their steps, which is an override too.
        assert ran.pop(case.override) == 1 and list(ran.values()) == ([] if kind == "SGD" else [1])


def test_a_rival_is_measured_in_turns_or_skipped() -> None:
    """Without a GPU: a rival that notes whether overrides were on when it ran, and one that is missing."""
    on = []

    def make_rival(name: str, device: str) -> Callable[[], object]:
        return lambda: on.append(any(override.enabled for override in aten_ext.overrides()))

    def missing(name: str, device: str) -> Callable[[], object]:
        raise ModuleNotFoundError("No module named 'rival'")

    case = optimizer_peers.beside("1x10", "a rival", make_rival)
    assert case.measure is not None and case.name == "AdamW.step 1x10 beside a rival"
    result = case.measure(case, Settings("cpu", seconds=0.02, never_slower=1e9))
    samples = result.clocks["eager"]
    assert len(samples.upstream) == len(samples.ours) >= interleave.FEWEST_PAIRS
    assert result.failures(1e9) == [] and not any(on[3:])
    case = optimizer_peers.beside("1x10", "a rival", missing)
    assert case.measure is not None
    assert case.measure(case, Settings("cpu")).skipped == "ModuleNotFoundError: No module named 'rival'"
