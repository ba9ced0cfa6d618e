"""How much of the demo's time overrides can touch, and how long the decoder's GRU takes for one phoneme.

Both are asked of the trained twins after everything else, so they disturb none of the other times.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch

import aten_ext
from aten_ext.bench.interleave import CallClock
from aten_ext.bench.result import Samples
from aten_ext.demo.train import Trainer
from aten_ext.profile import summary

SECONDS = 0.5
"""How long a GRU call is timed."""
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Share:
    """Of upstream's time, the part in operators whose fused kernel runs when it is on; from 0 to 1."""

    cpu: float
    device: float | None
    """Of the time of all GPU kernels; None on a CPU."""


@dataclass(frozen=True)
class GruCall:
    """One call of the decoder's GRU, one step of a batch, from Python; medians in microseconds."""

    dtype: str
    upstream_us: float
    aten_ext_us: float

    @property
    def ratio(self) -> float:
        """Above 1, aten_ext is faster."""
        return self.upstream_us / self.aten_ext_us


def shares(trainer: Trainer) -> dict[str, Share]:
    """Of a training ``step`` and of the ``decode`` of a batch, both of them upstream's."""
    return {"step": _share(trainer, trainer.one_step), "decode": _share(trainer, trainer.one_decode)}


def gru_calls(trainer: Trainer) -> list[GruCall]:
    """The decoder's GRU for one step of a batch, in fp32, and with its weights in bf16."""
    return [_gru_call(trainer, dtype) for dtype in DTYPES]


def _share(trainer: Trainer, call: Callable[[bool], None]) -> Share:
    from torch.profiler import ProfilerActivity, profile

    key = trainer.device.type.upper()
    before = {name: count.ran for name, count in aten_ext.counts(key=key).items()}
    call(True)
    ran = {name for name, count in aten_ext.counts(key=key).items() if count.ran > before.get(name, 0)}
    touched = {f"aten::{name.partition('.')[0]}" for name in ran}
    activities = [ProfilerActivity.CPU]
    if key == "CUDA":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, acc_events=True):  # the first record takes longest
        call(False)
    with profile(activities=activities, acc_events=True) as record:
        start = time.perf_counter()
        call(False)
        seconds = time.perf_counter() - start
    times = summary.operators(record, touched)
    return Share(
        cpu=times["touched_cpu_us"] / (seconds * 1e6),
        device=summary.share(times["touched_device_us"], times["device_us"]) if key == "CUDA" else None,
    )


class _Switch:
    """The overrides as the user set them, or all off."""

    def __init__(self) -> None:
        self._off = ExitStack()

    def set(self, enabled: bool) -> None:
        self._off.close()
        if not enabled:
            self._off.enter_context(aten_ext.disabled())


def _gru_call(trainer: Trainer, dtype: torch.dtype) -> GruCall:
    gru = copy.deepcopy(trainer.aten_ext.model.decoder).to(dtype).eval()
    gru.flatten_parameters()  # a copy's weights are scattered, which upstream is slower with
    rows = trainer.batch_size
    x = torch.randn(rows, 1, gru.input_size, device=trainer.device).to(dtype)
    state = torch.randn(1, rows, gru.hidden_size, device=trainer.device).to(dtype)

    def call() -> object:
        with torch.no_grad():
            return gru(x, state)

    switch, samples = _Switch(), Samples()
    try:
        CallClock([call], switch).sample(samples, SECONDS)
    finally:
        switch.set(True)
    return GruCall(
        str(dtype).removeprefix("torch."),
        upstream_us=statistics.median(samples.upstream),
        aten_ext_us=statistics.median(samples.ours),
    )
