"""Whole programs at real sizes, unchanged, with random weights: off and on in turns, what overrides touch.

A program is a model as its own library defines it, made from a configuration; nothing is downloaded. A
training step is forward, backward, clipping and ``AdamW(fused=True)``; inference is a forward or a decoding
step. On a CPU the sizes are reduced, and the names say so, unless ``--full`` asks for the real ones. A
program whose library is missing is skipped by name.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from aten_ext.bench import harness
from aten_ext.bench.case import Call, Case, Settings
from aten_ext.bench.graph import CaptureError, GraphClock
from aten_ext.bench.interleave import CallClock
from aten_ext.bench.program_zoo import PROGRAMS, Program, Unavailable
from aten_ext.bench.result import Result, Samples
from aten_ext.bench.route import Overrides, Switch

REDUCED = " reduced"


def cases(device: str, full: bool) -> list[Case]:
    """Every program: training and inference of each that has both."""
    small = device == "cpu" and not full
    return [
        Case(
            op="programs",
            name=f"{program.name}{REDUCED if small else ''} {what}",
            dtype=dtype,
            override="",
            make=_not_made,
            bytes=0,
            footprint=0,
            measure=partial(_measure, program, what, small),
        )
        for program in PROGRAMS
        for what in program.kinds
        for dtype in program.dtypes
    ]


def _not_made(device: str) -> Call:
    raise NotImplementedError(f"a program is not called with one set of operands on {device}")


def _measure(program: Program, what: str, small: bool, case: Case, settings: Settings) -> Result:
    """Time a program in blocks, in turns, and where it can be captured its graph, too."""
    import torch

    result = Result(case, settings.device)
    torch.manual_seed(0)
    with Overrides() as switch, _stream_to_capture_on(settings.device) as stream:
        switch.set(False)
        try:
            _free(settings.device)
            call = program.make(what, small, settings.device, getattr(torch, case.dtype))
            call()
        except Unavailable as reason:
            result.skipped = str(reason)
            return result
        except Exception as error:  # another version of the library, or no memory: the other programs go on
            result.skipped = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return result
        for enabled in (True, False, True):  # memory is allocated, algorithms are chosen
            switch.set(enabled)
            call()
        ran, declined = _counts(call, settings.device, switch)
        share = _share(call, settings.device, switch)
        result.details = {"ran": ran, "declined": declined, "share_touched": share}
        touched = "" if share is None else f"; {share:.1%} of the time in operators with overrides"
        names = ", ".join(f"{name} {number}" for name, number in ran.items())
        result.route = f"fused: {names}{touched}" if ran else f"upstream: no fused kernel ran{touched}"
        result.reason = None if ran else "no fused kernel ran"
        clocks: dict[str, Any] = {}
        if settings.device == "cuda":
            try:
                clocks["gpu"] = GraphClock([call], switch, stream=stream)
            except (CaptureError, RuntimeError) as error:
                result.missing["gpu"] = str(error).partition("\n")[0]
        clocks["eager" if settings.device == "cuda" else "wall"] = CallClock([call], switch)

        def sample() -> None:
            for name, clock in clocks.items():
                clock.sample(result.clocks.setdefault(name, Samples()), settings.seconds / len(clocks))

        return harness.settle(result, sample, settings.never_slower)


@contextmanager
def _stream_to_capture_on(device: str) -> Iterator[Any]:
    """All calls of a program are made on the stream that is captured.

    A parameter's ``AccumulateGrad`` node belongs to the stream of the forward that made it. AWD-LSTM keeps
    such nodes alive from call to call: its layers' lists hold the dropped weights. Made on the default
    stream, they would have a capture wait for that stream, which CUDA refuses.
    """
    import torch

    if device != "cuda":
        yield None
        return
    stream_type: Any = torch.cuda.Stream  # torch leaves its constructor without types
    stream = stream_type()
    with torch.cuda.stream(stream):
        yield stream


def _free(device: str) -> None:
    """Give back what the program before has left: models are cycles, and a graph has memory of its own."""
    import torch

    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def _counts(call: Call, device: str, switch: Switch) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """What one call with the overrides on did: fused calls by override, and those declined by reason."""
    import aten_ext

    switch.set(True)
    aten_ext.reset_counts()
    call()
    counts = aten_ext.counts(key=device.upper())
    ran = {name: count.ran for name, count in counts.items() if count.ran}
    return ran, {name: dict(count.went_upstream) for name, count in counts.items() if count.went_upstream}


def _share(call: Call, device: str, switch: Switch) -> float | None:
    """The part of upstream's time in operators that have an override: what could be won at most.

    Of the GPU's time where there is one. A profiler slows small operators down most, so it is a rough figure.
    """
    import torch

    from aten_ext.profile import summary

    switch.set(False)
    with torch.profiler.profile(acc_events=True) as profile:
        call()
        if device == "cuda":
            torch.cuda.synchronize()
    found = summary.operators(profile, summary.overridden())
    if device == "cuda":
        return summary.share(found["touched_device_us"], found["device_us"])
    whole = sum(row["self_cpu_us"] for row in found["operators"])
    return summary.share(found["touched_cpu_us"], whole)
