"""Real models, unchanged: fifty training steps and inference with the overrides on and off.

``pytest tests/models -s`` also prints which fused kernels ran, and how often.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import aten_ext
import training
from developer_bench import zoo
from training import EXACT, STEPS, Run


def workload(name: str) -> zoo.Workload:
    """The model, or a skip that says which package is missing.

    Not pytest.importorskip, because torchvision for another torch raises RuntimeError.
    """
    try:
        return zoo.get(name)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))


def assert_only_kernels_differ(name: str, ours: Run, theirs: Run, device: str, **options: Any) -> None:
    """Same calls, same form of everything, and values as close as the overrides that ran promise."""
    training.assert_same_calls(ours, theirs)
    assert training.description(ours) == training.description(theirs)
    assert list(ours.model.state_dict()) == list(theirs.model.state_dict())
    assert ours.optimizer.state_dict().keys() == theirs.optimizer.state_dict().keys()
    assert ours.surroundings == theirs.surroundings

    key = device.upper()
    again = None
    if set(ours.ran(key)) <= EXACT[key]:
        # On a GPU, upstream's own kernels may add in another order from run to run.
        again = training.train(zoo.get(name), device, enabled=False, **options) if device == "cuda" else None
        if again is None or torch.equal(again.losses, theirs.losses):
            training.assert_same_bits(ours, theirs)
            assert str(ours.generators) == str(theirs.generators)
            return
    nudged = training.train(zoo.get(name), device, enabled=False, nudged=True, **options)
    allowed = training.drift(nudged, theirs)
    if again is not None:
        allowed = torch.maximum(allowed, training.drift(again, theirs))
    training.assert_within(ours, theirs, allowed)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Operators this small gain nothing from a second thread, and wait for it long on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", zoo.WORKLOADS)
def test_training_and_inference(name: str, device: str) -> None:
    model = workload(name)
    theirs = training.train(model, device, enabled=False)
    ours = training.train(model, device, enabled=True)
    ran = ours.ran(device.upper())
    print(f"\n{name} on {device}: {ran}")
    assert ran["_fused_adamw_"] == STEPS
    assert ours.losses.isfinite().all() and ours.losses[-5:].mean() < ours.losses[:5].mean()
    assert_only_kernels_differ(name, ours, theirs, device)


OPTIMIZERS: list[tuple[str, dict[str, Any], str]] = [
    ("Adam", {"amsgrad": True}, "_fused_adam_"),
    ("AdamW", {"lr": torch.tensor(1e-3)}, "_fused_adamw_.tensor_lr"),
    ("Adam", {"lr": torch.tensor(1e-3), "maximize": True}, "_fused_adam_.tensor_lr"),
    ("SGD", {"momentum": 0.9, "nesterov": True}, "_fused_sgd_"),
    ("SGD", {"lr": torch.tensor(1e-3), "momentum": 0.9}, "_fused_sgd_.tensor_lr"),
    ("Adagrad", {}, "_fused_adagrad_"),
]


@pytest.mark.parametrize(("kind", "options", "override"), OPTIMIZERS, ids=[o[2] for o in OPTIMIZERS])
def test_optimizers(kind: str, options: dict[str, Any], override: str, device: str) -> None:
    """Every fused optimizer over one model; those that nothing overrides are left alone."""
    if kind == "Adagrad" and device == "cuda":
        pytest.skip("torch.optim.Adagrad has no fused step on CUDA")
    model = zoo.get("transformer_encoder")
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    theirs = training.train(model, device, enabled=False, kind=kind, steps=20, **moved)
    ours = training.train(model, device, enabled=True, kind=kind, steps=20, **moved)
    built = {o.name for o in aten_ext.overrides() if device.upper() in o.keys}
    assert ours.ran(device.upper()).get(override, 0) == (20 if override in built else 0)
    assert_only_kernels_differ("transformer_encoder", ours, theirs, device, kind=kind, steps=20, **moved)


def test_status_says_what_ran() -> None:
    """The table that ``aten_ext.status()`` prints after a training has its calls."""
    training.train(zoo.get("transformer_encoder"), "cpu", enabled=True, steps=7)
    row = next(line.split() for line in aten_ext.status().splitlines() if line.startswith("_fused_adamw_ "))
    assert "7" in row


def test_drift_is_small_and_noticed() -> None:
    """The ruler itself: weights moved by a last bit change the losses; a wrong learning rate is too far."""
    model = zoo.get("transformer_encoder")
    base, nudged, wrong = (
        training.train(model, "cpu", enabled=False, steps=20, **changes)  # type: ignore[arg-type]
        for changes in ({}, {"nudged": True}, {"lr": 1.01e-3})
    )
    allowed = training.drift(nudged, base)
    assert 0 < allowed.max() < 1e-3
    training.assert_within(nudged, base, allowed)
    with pytest.raises(AssertionError, match="above"):
        training.assert_within(wrong, base, allowed)
