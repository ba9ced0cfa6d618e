"""Train a model of the developers' zoo with the overrides on or off, and compare two such runs."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aten_ext
from developer_bench import zoo
from torch_databases.table import TABLE, comparable, decomposed, operator

STEPS = 50

# Overrides whose results are documented to be upstream's to the last bit, by dispatch key. What is not in
# here is compared within the drift of upstream itself.
EXACT: dict[str, set[str]] = {
    key: {override.name for override in aten_ext.overrides() if key in TABLE[operator(override.name)].exact}
    for key in ("CPU", "CUDA")
}


@dataclasses.dataclass
class Run:
    """What came out of one training and of inference after it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: Tensor  # [steps], float64
    outputs: Tensor  # of inference with the trained weights
    generators: list[Any]  # the states of every random generator after it
    surroundings: dict[str, object]  # what a program may have set for the whole process
    counts: dict[tuple[str, str], aten_ext.Counts]  # by override and dispatch key

    def ran(self, key: str) -> dict[str, int]:
        """Override -> calls of its fused kernel at ``key``, of those that ran at all."""
        return {name: c.ran for (name, k), c in self.counts.items() if k == key and c.ran}


def surroundings() -> dict[str, object]:
    """Settings of the process that no override may touch."""
    return {
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "autocast": [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")],
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark),
        "precision": torch.get_float32_matmul_precision(),
    }


def generators(device: str) -> list[Any]:
    """The states of Python's and torch's random generators."""
    states: list[Any] = [random.getstate(), torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if device == "cuda" else states


@contextmanager
def without_tf32() -> Iterator[None]:
    """Products of matrices in full precision, those of cuDNN too, so that runs differ by little."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    # Not through torch.backends, which torch.testing._internal locks for a whole process.
    torch._C._set_cudnn_allow_tf32(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch._C._set_cudnn_allow_tf32(before[1])


def all_counts() -> dict[tuple[str, str], aten_ext.Counts]:
    """Counts of every override at every key that it is built for."""
    return {
        (override.name, key): aten_ext.counts(key)[override.name]
        for override in aten_ext.overrides()
        for key in override.keys
    }


def make_optimizer(model: nn.Module, kind: str = "AdamW", **options: Any) -> torch.optim.Optimizer:
    """The fused optimizer ``kind`` of torch.optim over all parameters."""
    optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(
        model.parameters(), fused=True, **({"lr": 1e-3} | options)
    )
    return optimizer


def nudge(model: nn.Module) -> None:
    """Move about half of all weights to the next number: what another order of rounding amounts to."""
    with torch.no_grad():
        for parameter in model.parameters():
            moved = torch.nextafter(parameter, torch.full_like(parameter, torch.inf))
            parameter.copy_(torch.where(torch.rand_like(parameter) < 0.5, moved, parameter))


def train(
    workload: zoo.Workload,
    device: str,
    *,
    enabled: bool,
    steps: int = STEPS,
    nudged: bool = False,
    kind: str = "AdamW",
    **options: Any,
) -> Run:
    """``steps`` optimizer steps over two batches in turns, then inference, always from the same seeds."""
    aten_ext.reset_counts()
    with without_tf32(), nullcontext() if enabled else aten_ext.disabled():
        torch.manual_seed(0)
        random.seed(0)
        batches = [workload.batch(zoo.TINY) for _ in range(2)]
        try:
            model = workload.build(zoo.TINY)
        except zoo.Unavailable as reason:
            pytest.skip(str(reason))
        if nudged:
            nudge(model)
        torch.manual_seed(1)
        model.to(device).train()
        batches = [{name: t.to(device) for name, t in batch.items()} for batch in batches]
        optimizer = make_optimizer(model, kind, **options)
        losses = []
        for _, batch in zip(range(steps), itertools.cycle(batches), strict=False):
            optimizer.zero_grad()
            loss = workload.loss(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.detach())
        model.eval()
        with torch.inference_mode():
            outputs = workload.outputs(model, batches[0])
    counts = all_counts()  # before anything of ours calls an operator
    return Run(
        model,
        optimizer,
        torch.stack(losses).double().cpu(),
        outputs,
        generators(device),
        surroundings(),
        counts,
    )


def drift(one: Run, other: Run) -> Tensor:
    """How far two runs had come apart at each step or before it: [steps]."""
    return (one.losses - other.losses).abs().cummax(0).values


def tensors(run: Run) -> dict[str, Tensor]:
    """Everything that training changed, by name."""
    named = {f"model.{name}": t for name, t in run.model.state_dict().items()}
    named |= {f"grad.{name}": p.grad for name, p in run.model.named_parameters() if p.grad is not None}
    for index, state in run.optimizer.state_dict()["state"].items():
        named |= {f"optimizer.{index}.{name}": t for name, t in state.items() if isinstance(t, Tensor)}
    return named


def description(run: Run) -> dict[str, object]:
    """What must not depend on which kernel ran, values apart."""
    return {
        name: (t.dtype, t.shape, t.stride(), t.device, t.requires_grad, t.is_leaf)
        for name, t in [*tensors(run).items(), *run.model.named_parameters(), ("outputs", run.outputs)]
        # Greedy decoding may end earlier after a different last bit.
        if name != "outputs" or t.is_floating_point()
    }


def assert_same_calls(ours: Run, theirs: Run) -> None:
    """Every call that upstream's run made, ours made too, and each was counted once."""
    for name, c in theirs.counts.items():
        assert (c.ran, dict(c.declined)) == (0, {}), f"{name} ran although it was disabled"
    for key in EXACT:
        counted = {name: c for (name, at), c in ours.counts.items() if at == key}
        calls = decomposed(
            {name: c.ran + sum(c.declined.values()) for name, c in counted.items()},
            ran := {name: c.ran for name, c in counted.items()},
        )
        disabled = {name: c.disabled for (name, at), c in theirs.counts.items() if at == key and c.disabled}
        calls, disabled = comparable(calls, ran), comparable(disabled, ran)
        assert calls == disabled, f"{calls} instead of {disabled} at {key}"
    assert not any(c.disabled for c in ours.counts.values())


def assert_same_bits(ours: Run, theirs: Run) -> None:
    """Losses, weights, gradients, states and outputs."""
    assert torch.equal(ours.losses, theirs.losses)
    mine, other = tensors(ours), tensors(theirs)
    for name in other:
        assert torch.equal(mine[name], other[name]), name
    assert torch.equal(ours.outputs, theirs.outputs)


def assert_within(ours: Run, theirs: Run, allowed: Tensor, factor: float = 4.0) -> None:
    """The loss curve is no further from upstream's than upstream's own drift, step by step.

    A single sample of a drift says little about its size, so ``factor`` times as much is let through, and
    what one rounding of the loss itself is worth.
    """
    distance = (ours.losses - theirs.losses).abs()
    limit = factor * allowed + 1e-6 * theirs.losses.abs()
    assert (distance <= limit).all(), f"{distance.tolist()} above {limit.tolist()}"
