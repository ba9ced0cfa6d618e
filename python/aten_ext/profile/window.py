"""Which stretch of a program is recorded, when the program knows nothing about being profiled.

A training loop is recognised by its optimizer: a step ends where the first ``torch.optim`` optimizer that
steps has stepped (a hook of torch's own, for all optimizers). The first steps are left out, since they
allocate, choose algorithms and load kernels; then some are recorded, and the rest of the program runs without
a profiler. A program without such steps is recorded from its start, for a limited time.

There is one record while the program runs, never a second: the hook runs inside a range
(``Optimizer.step#…``), and a profiler that begins while a range of an earlier profiler is open made torch
(2.13) crash, apparently when that range ends.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from aten_ext.advice.observe import Observer

INTERRUPT = signal.SIGVTALRM
"""Never sent: the number of the handler that Python is asked to run in the main thread."""


class Window:
    """Records one stretch of the process that it is in; start it in the main thread, outside any range."""

    def __init__(
        self,
        skip: int,
        steps: int,
        seconds: float,
        from_start: bool = False,
        observer: Observer | None = None,
    ) -> None:
        """Leave out ``skip`` steps, at least one, then record ``steps``, or fewer that fill ``seconds``.

        With ``from_start`` record from now on, for ``seconds``, whatever steps there are. An ``observer``
        watches before and after the record, where it disturbs no time; of a program recorded from its start,
        during it.
        """
        self._observer = observer
        self._skip, self._wanted, self._seconds = skip, steps, seconds
        self._optimizer: weakref.ref[torch.optim.Optimizer] | None = None
        self._recording = False
        self._began = 0.0
        self.from_start = from_start
        self.profile: torch.profiler.profile | None = None
        """The record; None if it never began."""
        self.made = 0
        """Steps that the program made."""
        self.recorded = 0
        """Steps in the record."""
        self.duration = 0.0
        """Length of the record in seconds."""
        self.counts: dict[str, dict[str, Any]] = {}
        """What the calls in the record did, by override."""

    def start(self) -> None:
        """Wait for steps, or begin with the record."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        # CUDA graphs that are captured before a process first uses the profiler may break under it later
        # (https://github.com/pytorch/pytorch/pull/100441); and the first use takes longest.
        with torch.profiler.profile(acc_events=True):
            pass
        if self._observer is not None:
            self._observer.start()
        register_optimizer_step_post_hook(self._stepped)
        if self.from_start:
            # Only the thread that has started a record can end it, and this one is busy with the program.
            signal.signal(INTERRUPT, lambda number, frame: self._end())
            timer = threading.Timer(self._seconds, _thread.interrupt_main, (INTERRUPT,))
            timer.daemon = True
            self._begin()
            timer.start()

    def finish(self) -> None:
        """End the record if it has not ended yet."""
        self._end()

    def _stepped(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        # A program with several optimizers steps each of them once in an iteration.
        if self._optimizer() is not optimizer or threading.current_thread() is not threading.main_thread():
            return
        self.made += 1
        if self._recording:
            self.recorded += 1
            full = self.recorded == self._wanted or time.perf_counter() - self._began >= self._seconds
            if full and not self.from_start:
                self._end()
        elif self.made == self._skip and not self.from_start:
            self._begin()

    def _begin(self) -> None:
        import torch

        import aten_ext

        if self._observer is not None and not self.from_start:
            self._observer.stop()
        # There is one cycle; without this torch 2.11 warns that events of earlier ones are lost.
        self.profile = torch.profiler.profile(acc_events=True)
        _synchronize()
        aten_ext.reset_counts()
        self.profile.start()
        self._recording = True
        self._began = time.perf_counter()

    def _end(self) -> None:
        if not self._recording or self.profile is None:
            return
        self._recording = False
        _synchronize()
        self.duration = time.perf_counter() - self._began
        self.counts = _counts()
        self.profile.stop()
        if self._observer is not None:
            self._observer.start()


def _synchronize() -> None:
    """Wait for the GPU, if the program uses one; asking for one would change a program that forks."""
    import torch

    initialized: Any = torch.cuda.is_initialized  # torch leaves it without types
    if initialized():
        torch.cuda.synchronize()


def _counts() -> dict[str, dict[str, Any]]:
    """What calls did since the last reset, of the overrides that had any."""
    import aten_ext

    return {
        name: {"ran": count.ran, "disabled": count.disabled, "declined": count.went_upstream}
        for name, count in aten_ext.counts().items()
        if count.ran or count.disabled or count.went_upstream
    }
