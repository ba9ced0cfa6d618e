"""Cases of whole models: one training step, or one inference, from end to end.

The models are those of ``zoo``; a training step is forward, backward, clipping and ``AdamW(fused=True)``.
The override named is the optimizer's, which every step reaches; what else of the model reaches an override is
switched with it, so the ratio is that of the whole plugin. Bytes are not counted: what a step moves is
upstream's business for the most part.
"""

from __future__ import annotations

from aten_ext.bench import harness
from aten_ext.bench.case import Call, Case, Settings
from aten_ext.bench.interleave import CallClock
from aten_ext.bench.result import Result, Samples
from aten_ext.bench.route import Overrides, routes
from developer_bench import zoo

OVERRIDE = "_fused_adamw_"


def cases(device: str, full: bool) -> list[Case]:
    """A training step of every model; with ``full`` also inference."""
    del device
    return [
        Case(
            op="models",
            name=f"{name} {what}",
            dtype="float32",
            override=OVERRIDE,
            make=_not_made,
            bytes=0,
            footprint=0,
            measure=_measure,
        )
        for name in zoo.WORKLOADS
        for what in ("training", "inference")[: 1 + full]
    ]


def _not_made(device: str) -> Call:
    raise NotImplementedError(f"a model is not called with one set of operands on {device}")


def _measure(case: Case, settings: Settings) -> Result:
    """Time blocks of steps with the overrides off and on, in turns, of one model in this process."""
    result = Result(case, settings.device)
    name, what = case.name.split()
    try:
        call = make(name, what, settings.device)
    except zoo.Unavailable as reason:
        result.skipped = str(reason)
        return result
    with Overrides() as switch:
        for enabled in (False, True, False, True):  # memory is allocated, algorithms are chosen
            switch.set(enabled)
            call()
        result.route, result.reason = routes(call, case.override, settings.device, switch)
        if what == "inference":
            # It reaches no optimizer; what it reaches is for the counts to say.
            result.route, result.reason = _inference_route(call, settings.device)
        clock = CallClock([call], switch)
        samples = result.clocks["eager" if settings.device == "cuda" else "wall"] = Samples()
        return harness.settle(result, lambda: clock.sample(samples, settings.seconds), settings.never_slower)


def _inference_route(call: Call, device: str) -> tuple[str, str | None]:
    """Which overrides one call with all of them on reaches."""
    import aten_ext

    aten_ext.reset_counts()
    call()
    ran = [f"{name} {c.ran}" for name, c in aten_ext.counts(key=device.upper()).items() if c.ran]
    if ran:
        return f"fused: {', '.join(ran)}", None
    reason = "inference reaches no fused kernel"
    return f"upstream: {reason}", reason


def make(name: str, what: str, device: str) -> Call:
    """A call that makes one training step, or one inference, with the model ``name`` on ``device``.

    Raises:
        Unavailable: the model's library is missing.
    """
    import torch

    workload = zoo.get(name)
    size = zoo.BASE if device == "cuda" else zoo.SMALL
    torch.manual_seed(0)
    model = workload.build(size).to(device)
    batch = {name: tensor.to(device) for name, tensor in workload.batch(size).items()}
    if what == "inference":
        model.eval()

        def infer() -> None:
            with torch.inference_mode():
                workload.outputs(model, batch)

        return infer

    # So small a rate that the weights stay where they are: a model that has learnt its batch by heart has
    # gradients so small that a CPU takes many times as long with them.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step
