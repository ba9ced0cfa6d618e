"""Two copies of one model, trained and timed step by step in turns, with the overrides off and on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch

import aten_ext
from aten_ext.demo.data import (
    END,
    LETTERS,
    PAD,
    PHONEME_IDS,
    START,
    Batch,
    Entry,
    decode_phonemes,
    make_batches,
)
from aten_ext.demo.model import GraphemeToPhoneme, masked_loss
from aten_ext.demo.options import Options

LEARNING_RATE = 2e-3
WARM_UP_STEPS = 10  # not timed: memory is allocated, threads start, cuDNN chooses
DECODE_ROUNDS = 3  # the first one gives the pronunciations, all of them the time


@dataclass
class Twin:
    """One copy of the model and what was seen of it. Times are in seconds, losses in nats a phoneme."""

    overridden: bool
    model: GraphemeToPhoneme
    optimizer: torch.optim.AdamW
    train_losses: list[float] = field(default_factory=list)  # one a step
    held_out_losses: list[float] = field(default_factory=list)  # one an epoch
    step_times: list[float] = field(default_factory=list)  # one a timed step, the optimizer's part included
    optimizer_times: list[float] = field(default_factory=list)  # one a timed step
    decode_times: list[float] = field(default_factory=list)  # one a held-out batch and round
    decoded: dict[str, tuple[str, ...]] = field(default_factory=dict)  # held-out word -> phonemes

    def overrides(self) -> AbstractContextManager[None]:
        """Where this twin's work is done: as the user set the overrides, or with all of them off."""
        return nullcontext() if self.overridden else aten_ext.disabled()


class Progress(Protocol):
    """Who is told how far it is, always outside what is timed."""

    def show(self, share: float, what: str) -> None:
        """So much of ``what`` is done, from 0 to 1."""

    def say(self, line: str) -> None:
        """One line about something finished."""


class Trainer:
    """Trains the twins, then lets them decode."""

    def __init__(
        self,
        options: Options,
        training: Sequence[Entry],
        held_out: Sequence[Entry],
        progress: Progress,
    ) -> None:
        """Make the twins: equal weights, drawn by ``options.seed``, on ``options.device``."""
        self._options = options
        self._training = training
        self._device = options.torch_device
        self._held_out = make_batches(held_out, options.batch_size, f"{options.seed} held out", self._device)
        self._progress = progress
        self.upstream = self._twin(overridden=False)
        self.aten_ext = self._twin(overridden=True)
        self.parameters = sum(parameter.numel() for parameter in self.upstream.model.parameters())
        self._turns = 0

    def train(self) -> None:
        """Every epoch: a step of both twins on each batch, then the held-out loss of both."""
        steps_done = 0
        for epoch in range(self._options.epochs):
            order = f"{self._options.seed} epoch {epoch}"
            batches = make_batches(self._training, self._options.batch_size, order, self._device)
            steps = len(batches) * self._options.epochs  # every epoch has as many
            for batch in batches:
                # A run of a few steps still times half of them.
                timed = steps_done >= min(WARM_UP_STEPS, steps // 2)
                for twin in self._in_turn():
                    _set_learning_rate(twin.optimizer, steps_done, steps)
                    with twin.overrides():
                        self._step(twin, batch, timed)
                steps_done += 1
                self._progress.show(steps_done / steps, f"epoch {epoch + 1} of {self._options.epochs}")
            for twin in self._in_turn():
                with twin.overrides():
                    twin.held_out_losses.append(self._held_out_loss(twin.model))
            self._progress.say(
                f"epoch {epoch + 1} of {self._options.epochs}: held-out loss "
                f"{self.upstream.held_out_losses[-1]:.4f} upstream, "
                f"{self.aten_ext.held_out_losses[-1]:.4f} aten_ext"
            )

    def decode(self) -> None:
        """Greedy pronunciations of the held-out words by both twins, batch by batch in turns.

        Leaves both in evaluation mode, in which a GRU keeps nothing for a backward pass.
        """
        for twin in (self.upstream, self.aten_ext):
            twin.model.eval()
        for twin in self._in_turn():  # not timed
            with twin.overrides():
                twin.model.greedy(self._held_out[0].letters, START, END)
        for round_ in range(DECODE_ROUNDS):
            for done, batch in enumerate(self._held_out, start=1):
                for twin in self._in_turn():
                    with twin.overrides():
                        start = self._now()
                        ids = twin.model.greedy(batch.letters, START, END)
                        twin.decode_times.append(self._now() - start)
                    if round_ == 0:
                        for entry, row in zip(batch.entries, ids.tolist(), strict=True):
                            twin.decoded[entry.word] = decode_phonemes(row)
                share = (round_ + done / len(self._held_out)) / DECODE_ROUNDS
                self._progress.show(share, "decoding")

    def one_step(self, overridden: bool) -> None:
        """A training step on a held-out batch, of one of the twins, that is neither timed nor noted."""
        twin = self._which(overridden)
        twin.model.train()
        with twin.overrides():
            self._update(twin, self._held_out[0])

    def one_decode(self, overridden: bool) -> None:
        """Decode a held-out batch with one of the twins."""
        twin = self._which(overridden)
        twin.model.eval()
        with twin.overrides():
            twin.model.greedy(self._held_out[0].letters, START, END)
            self._now()

    @property
    def device(self) -> torch.device:
        """Where the twins are."""
        return self._device

    @property
    def batch_size(self) -> int:
        """Words in a batch."""
        return self._options.batch_size

    def _which(self, overridden: bool) -> Twin:
        return self.aten_ext if overridden else self.upstream

    def _step(self, twin: Twin, batch: Batch, timed: bool) -> None:
        loss, total, optimizer = self._update(twin, batch)
        if timed:
            twin.step_times.append(total)
            twin.optimizer_times.append(optimizer)
        twin.train_losses.append(loss.item())

    def _update(self, twin: Twin, batch: Batch) -> tuple[torch.Tensor, float, float]:
        """The loss before, and the seconds that the step and the optimizer in it took."""
        start = self._now()
        twin.optimizer.zero_grad()
        loss = masked_loss(twin.model(batch.letters, batch.inputs), batch.targets, PAD)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(twin.model.parameters(), 1.0)
        before_optimizer = self._now()
        twin.optimizer.step()
        end = self._now()
        return loss.detach(), end - start, end - before_optimizer

    @torch.no_grad()
    def _held_out_loss(self, model: GraphemeToPhoneme) -> float:
        # Each batch counts by the phonemes in it, so that the mean does not depend on the batch size.
        total, count = 0.0, 0
        model.eval()
        for batch in self._held_out:
            phonemes = sum(len(entry.phonemes) + 1 for entry in batch.entries)
            loss = masked_loss(model(batch.letters, batch.inputs), batch.targets, PAD)
            total += loss.item() * phonemes
            count += phonemes
        model.train()
        return total / count

    def _in_turn(self) -> tuple[Twin, Twin]:
        """Both twins; the one that came last comes first next time, so neither always has warm caches."""
        self._turns += 1
        return (self.upstream, self.aten_ext) if self._turns % 2 else (self.aten_ext, self.upstream)

    def _now(self) -> float:
        """Seconds, once the device has done all it was asked to."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _twin(self, overridden: bool) -> Twin:
        # Built anew rather than copied: on a GPU a copied GRU has its weights scattered, which is slower.
        torch.manual_seed(self._options.seed)
        model = GraphemeToPhoneme(len(LETTERS), PHONEME_IDS, self._options.hidden).to(self._device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
        return Twin(overridden, model, optimizer)


def _set_learning_rate(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Linear: up over the first 50 steps, down to nothing at the end."""
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / 50) * (1 - step / steps)
