"""What a run of the demo found out, as plain numbers that can be printed, drawn and written as JSON."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

import aten_ext
from aten_ext import Counts
from aten_ext.demo import share
from aten_ext.demo.data import Entry
from aten_ext.demo.options import Options
from aten_ext.demo.score import phoneme_error_rate
from aten_ext.demo.share import GruCall, Share
from aten_ext.demo.train import Trainer, Twin

# What training and decoding call, so that at least one call of each must have run our kernel.
EXPECTED = ("_fused_adamw_",)
EXPECTED_AT = {"CPU": ("gru.input",), "CUDA": ("_cudnn_rnn", "cat")}  # beside those

TIMES = ("step_ms", "optimizer_ms", "decode_ms")


@dataclass(frozen=True)
class TwinResult:
    """One twin. Losses in nats a phoneme; times are medians in ms: a step, its optimizer, a batch."""

    train_losses: list[float]
    held_out_losses: list[float]
    phoneme_error_rate: float
    words_right: float  # share of the held-out words with no error
    step_ms: float
    optimizer_ms: float
    decode_ms: float
    timed_steps: int
    timed_decodes: int


@dataclass(frozen=True)
class Result:
    """Both twins and how the overrides were used. ``samples``: word, reference, upstream's, aten_ext's."""

    options: Options
    parameters: int
    training_words: int
    held_out_words: int
    upstream: TwinResult
    aten_ext: TwinResult
    identical_decodes: float  # share of the held-out words that both twins pronounce alike
    counts: Mapping[str, Counts]
    warnings: list[str]
    shares: Mapping[str, Share]  # of a training "step" and of the "decode" of a batch
    gru_calls: list[GruCall]
    samples: list[tuple[str, str, str, str]]

    def ratio(self, time: str) -> float:
        """Upstream's time / aten_ext's for one of TIMES: above 1, aten_ext is faster."""
        return float(getattr(self.upstream, time) / getattr(self.aten_ext, time))

    @property
    def optimizer_share(self) -> float:
        """The part of upstream's step that is spent in ``optimizer.step()``, from 0 to 1."""
        return self.upstream.optimizer_ms / self.upstream.step_ms


def collect(
    options: Options, trainer: Trainer, training: Sequence[Entry], held_out: Sequence[Entry]
) -> Result:
    """Sum up a trainer that has trained and decoded; reads the counts as they are now."""
    counts = aten_ext.counts()  # before the calls that shares() and gru_calls() make
    ours, theirs = trainer.aten_ext.decoded, trainer.upstream.decoded
    return Result(
        options=options,
        parameters=trainer.parameters,
        training_words=len(training),
        held_out_words=len(held_out),
        upstream=_twin_result(trainer.upstream, held_out),
        aten_ext=_twin_result(trainer.aten_ext, held_out),
        identical_decodes=sum(ours[entry.word] == theirs[entry.word] for entry in held_out) / len(held_out),
        counts=counts,
        warnings=missing_runs(counts, options.torch_device.type.upper()),
        shares=share.shares(trainer),
        gru_calls=share.gru_calls(trainer),
        samples=[
            (
                entry.word,
                " ".join(entry.phonemes),
                " ".join(theirs[entry.word]),
                " ".join(ours[entry.word]),
            )
            for entry in held_out[:10]
        ],
    )


def missing_runs(counts: Mapping[str, Counts], key: str) -> list[str]:
    """One line for each expected override whose kernel never ran at dispatch key ``key``, with the reason."""
    overrides = {override.name: override for override in aten_ext.overrides()}
    lines = []
    for name in (*EXPECTED, *EXPECTED_AT.get(key, ())):
        override = overrides.get(name)
        if override is None:
            why = "this build has no such override"
        elif counts[name].ran:
            continue
        elif key not in override.keys:
            why = f"this build has no kernel of it for {key}"
        elif key not in override.enabled_keys:
            why = "it is switched off (ATEN_EXT, ATEN_EXT_DISABLE or ATEN_EXT_ONLY)"
        else:
            declined = [f"{number} x {reason}" for reason, number in counts[name].went_upstream.items()]
            why = f"declined: {'; '.join(declined)}" if declined else "it was never called"
        lines.append(f"{name} was expected to run and did not: {why}")
    return lines


def to_json(result: Result, origin: Mapping[str, object]) -> bytes:
    """The file demo.json, UTF-8: ``origin`` (machine, versions, date, commit), then the result."""
    document = {
        **origin,
        "settings": {**dataclasses.asdict(result.options), "threads": torch.get_num_threads()},
        "data": {"training_words": result.training_words, "held_out_words": result.held_out_words},
        "parameters": result.parameters,
        "twins": {
            "upstream": dataclasses.asdict(result.upstream),
            "aten_ext": dataclasses.asdict(result.aten_ext),
        },
        "ratios": {time.removesuffix("_ms"): result.ratio(time) for time in TIMES},
        "optimizer_share": result.optimizer_share,
        "shares": {what: dataclasses.asdict(part) for what, part in result.shares.items()},
        "gru_calls": [{**dataclasses.asdict(call), "ratio": call.ratio} for call in result.gru_calls],
        "identical_decodes": result.identical_decodes,
        "counts": {
            name: {"ran": count.ran, "disabled": count.disabled, "declined": count.went_upstream}
            for name, count in result.counts.items()
        },
        "warnings": result.warnings,
        "samples": [
            dict(zip(("word", "reference", "upstream", "aten_ext"), sample, strict=True))
            for sample in result.samples
        ],
    }
    return (json.dumps(_without_nan(document), indent=2, ensure_ascii=False) + "\n").encode()


def _without_nan(value: object) -> object:
    """Training that diverged gives NaN, which JSON lacks: null stands for it."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and value - value != 0 else value


def _twin_result(twin: Twin, held_out: Sequence[Entry]) -> TwinResult:
    pairs = [(entry.phonemes, twin.decoded[entry.word]) for entry in held_out]
    return TwinResult(
        train_losses=twin.train_losses,
        held_out_losses=twin.held_out_losses,
        phoneme_error_rate=phoneme_error_rate(pairs),
        words_right=sum(reference == decoded for reference, decoded in pairs) / len(pairs),
        step_ms=statistics.median(twin.step_times) * 1e3,
        optimizer_ms=statistics.median(twin.optimizer_times) * 1e3,
        decode_ms=statistics.median(twin.decode_times) * 1e3,
        timed_steps=len(twin.step_times),
        timed_decodes=len(twin.decode_times),
    )
