"""Makes advice of what was seen."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from aten_ext import _measured
from aten_ext._trace import TracedCall
from aten_ext.advice import trials
from aten_ext.advice.finding import Advice, Estimate
from aten_ext.advice.observe import Facts, OptimizerFact, RecurrentFact, TrainModeFact

LEAST_PADDING = 0.1
"""Of the steps of the batches that were looked at; below it packing costs more than it saves."""
FEWEST_CASES = 4
"""Benchmark cases that say something about an override on this machine."""
FUSED = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad)

CONTIGUOUS = "call .contiguous() on it where it is made, once"
MENDABLE: dict[str, str] = {
    "dtype other than float32, float16, bfloat16": "use float32, float16 or bfloat16 here",
    "dtype other than float32, bfloat16": "use float32 or bfloat16 here",
    "more than one dtype": "give all tensors of the call one dtype",
    "shape that upstream multiplies faster, and rows of no multiple of 16 bytes": (
        "make the inner size K (in_features) a multiple of 8 elements in 16 bits, of 4 in float32: "
        "pad it with zeros"
    ),
    "mat1 whose rows are not contiguous": CONTIGUOUS,
    "mat2 with neither rows nor columns contiguous": CONTIGUOUS,
    "many rows, and a matrix with neither rows nor columns contiguous": CONTIGUOUS,
    "many rows, and out that is not contiguous": "give a contiguous out=",
    "out whose rows are not contiguous": "give a contiguous out=",
    "weights that are not contiguous": "call flatten_parameters() after the weights were replaced",
    "weights that are not those of weight_buf": "call flatten_parameters() after the weights were replaced",
    "initial state that is not contiguous or of another size": CONTIGUOUS,
    "tensor that is not contiguous": CONTIGUOUS,
    "tensor that is not dense": "give the optimizer parameters without gaps, not slices of other tensors",
    "shapes or strides that differ between the lists": (
        "give gradients the memory format of their parameters (a hook that permutes them, or "
        ".to(memory_format=) after the optimizer's first step, makes them differ)"
    ),
    "tensors that share memory": "give each parameter to the optimizer once",
    "flush-denormal is on": "leave torch.set_flush_denormal off, or set it in the threads that need it",
    "inputs that are not contiguous in the result's memory format": CONTIGUOUS,
    "out that is not dense": "give a contiguous out=",
    "no table of the shapes that upstream multiplies faster": "python -m aten_ext tune, once on this machine",
}
"""Reasons to decline that the caller can do something about, and what. The others are as they should be."""


@dataclass(frozen=True)
class Context:
    """What is known of the program's time.

    Attributes:
        steps: optimizer steps while it was watched.
        step_us: time of one, from a record without the watching; None without steps.
        total_us: time that was watched; None where it is not known.
        device_us: GPU time of a call, by operator (``"aten::addmm"``), from a profiler's record.
    """

    steps: int = 0
    step_us: float | None = None
    total_us: float | None = None
    device_us: Mapping[str, float] = field(default_factory=dict)

    def share(self, us: float, calls: int) -> float | None:
        """The part of the program's time that ``calls`` of ``us`` each are."""
        if self.steps and self.step_us:
            found = us * calls / self.steps / self.step_us
        elif self.total_us:
            found = us * calls / self.total_us
        else:
            return None
        return found if 0 <= found <= 1 else None


def advise(facts: Facts, context: Context) -> list[Advice]:
    """Everything there is to say, what saves most first."""
    found: list[Advice] = []
    for optimizer in facts.optimizers:
        found += _optimizer(optimizer)
    for layers in _by_site(facts.recurrent):
        found += _recurrent(layers)
    for fact in facts.train_mode:
        found += _train_mode(fact)
    found += _calls(facts.calls, context)
    found += _environment()
    with_shares = [
        replace(each, share=context.share(each.estimate.us, each.calls)) if each.estimate else each
        for each in found
    ]
    return sorted(with_shares, key=lambda each: -(each.estimate.us * each.calls if each.estimate else 0.0))


def _tried(trial: Callable[[], Estimate]) -> dict[str, Any]:
    """The estimate, or why there is none: whatever goes wrong in a trial is not the program's fault."""
    try:
        return {"estimate": trial()}
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        return {"estimate": None, "why_none": lines[0]}


def _optimizer(fact: OptimizerFact) -> Iterator[Advice]:
    kind = next((kind for kind in FUSED if fact.kind is kind), None)
    if kind is None or all(options.get("fused") for options, _ in fact.groups):
        return
    if not trials.fused_is_possible(fact):
        return
    tensors = [tensor for _, group in fact.groups for tensor in group]
    text = f"{kind.__name__} without fused=True over {len(tensors)} parameters"
    yield Advice(
        "optimizer",
        fact.site,
        text,
        f"torch.optim.{kind.__name__}(…, fused=True)",
        fact.steps,
        "step",
        **_tried(lambda: trials.fused(fact)),
    )


def _by_site(facts: list[RecurrentFact]) -> list[list[RecurrentFact]]:
    sites: dict[tuple[str, str], list[RecurrentFact]] = defaultdict(list)
    for fact in facts:
        sites[fact.site, fact.kind.__name__].append(fact)
    return list(sites.values())


def _recurrent(facts: list[RecurrentFact]) -> Iterator[Advice]:
    """Of all layers of one kind that one line calls; a trial is made with the one called most often."""
    scattered = [fact for fact in facts if not fact.flat and fact.device.type == "cuda"]
    if scattered:
        fact = max(scattered, key=lambda each: each.calls)
        known = bool(fact.shape)
        yield Advice(
            "flatten",
            fact.site,
            f"the weights of this {fact.kind.__name__} do not lie in one piece of memory",
            "call flatten_parameters() after the weights were moved or replaced",
            sum(each.calls for each in scattered),
            **(_tried(lambda: trials.flattening(fact)) if known else {"why_none": "its inputs are packed"}),
        )
    padded = [fact for fact in facts if fact.padded]
    elements = sum(fact.elements for fact in facts)
    padding = sum(fact.padding for fact in facts)
    if padded and padding >= LEAST_PADDING * elements:
        fact = max(padded, key=lambda each: each.calls)
        looked = sum(each.looked for each in facts)
        yield Advice(
            "padding",
            fact.site,
            f"{padding / elements:.0%} of the steps given to this {fact.kind.__name__} look like padding "
            f"({sum(each.padded for each in padded)} of {looked} batches looked at)",
            "pack_padded_sequence(…, enforce_sorted=False), if those steps mean nothing; final states are "
            "then those of each row's own end",
            sum(each.calls for each in padded),
            **_tried(lambda: trials.packing(fact)),
        )


def _train_mode(fact: TrainModeFact) -> Iterator[Advice]:
    what = ", ".join(f"{count} {name}" if count > 1 else name for name, count in fact.modules.items())
    random = any(name.startswith(("Dropout", "Alpha", "Feature")) for name in fact.modules) or any(
        options.get("dropout") for _, options, _ in fact.parts
    )
    recording = "without recording gradients" if fact.without_grad else "and no gradient was ever asked for"
    text = f"{fact.model} is called in training mode, {recording}: {what}"
    advice = "model.eval() before" + ("; its results are random now" if random else "")
    if not fact.without_grad:
        advice += ", and torch.inference_mode() around it"
    yield Advice(
        "train mode",
        fact.site,
        text,
        advice,
        fact.calls,
        **(_tried(lambda: trials.evaluating(fact)) if fact.parts else {"why_none": "its inputs are packed"}),
    )


def _calls(calls: list[TracedCall], context: Context) -> Iterator[Advice]:
    """Of calls that went upstream and need not: one piece for each line, override and reason."""
    groups: dict[tuple[str, str, str, str, str], list[TracedCall]] = defaultdict(list)
    for call in calls:
        mend = MENDABLE.get(call.reason) if call.route == "declined" else None
        if call.route == "declined" and mend:
            groups["declined", call.site, call.override, call.key, call.reason].append(call)
        elif call.route == "disabled" and (why := _variable_that_disabled(call.override)):
            groups["environment", call.site, call.override, call.key, why].append(call)
    for (kind, site, override, key, why), group in groups.items():
        number = sum(call.count for call in group)
        now: float | None = sum(call.microseconds for call in group) / number
        if key == "CUDA":
            now = context.device_us.get(f"aten::{override.partition('.')[0]}")
        most = max(group, key=lambda call: call.count)
        if kind == "declined":
            text = f"{override} goes upstream: {why} ({most.signature})"
            advice = MENDABLE[why]
        else:
            text, advice = f"{override} is off by {why} ({most.signature})", f"unset {why}"
        estimate, why_none = _from_benchmarks(override, key, _dtype(most.signature), now)
        yield Advice(kind, site, text, advice, number, "call", estimate, why_none)


def _dtype(signature: str) -> str:
    """The first one of a signature, where benchmarks have it; float32 for others, which is advised then."""
    first = next((part for part in ("float32", "float16", "bfloat16") if f"{part}[" in signature), "float32")
    return "bfloat16" if first == "float16" and "bfloat16[" in signature else first


def _from_benchmarks(
    override: str, key: str, dtype: str, now_us: float | None
) -> tuple[Estimate | None, str]:
    """What a fused call saves of ``now_us``, by the middle half of this machine's benchmark cases."""
    machine = _measured.machine_name(torch.device("cuda" if key == "CUDA" else "cpu"))
    ratios = sorted(
        case.upstream_us / case.ours_us
        for case in _measured.cases()
        if case.override == override and case.machine == machine and case.dtype == dtype
    )
    if len(ratios) < FEWEST_CASES:
        number = len(ratios) or "no"
        return None, f"{number} benchmark cases of {override} in {dtype} on {machine or 'this GPU'}"
    if now_us is None:
        return None, "what a call takes on the GPU was not recorded (python -m aten_ext profile does)"
    low, middle, high = statistics.quantiles(ratios, n=4)

    def saved(ratio: float) -> float:
        return now_us * (1 - 1 / ratio)

    how = f"by the middle half of {len(ratios)} benchmark cases here, {low:.2f} to {high:.2f} times as fast"
    return Estimate(saved(middle), saved(low), saved(high), now_us, how), ""


def _variable_that_disabled(override: str) -> str:
    from aten_ext.doctor.installation import variable_that_disabled

    return variable_that_disabled(override)


def _environment() -> Iterator[Advice]:
    """Variables that cost time and may have been left by somebody."""
    from aten_ext.doctor.installation import costly_variables

    for name, text in costly_variables():
        advice = f"unset {name}, if nobody needs it any longer"
        yield Advice("environment", "", text, advice, 0, why_none="it was not measured")
