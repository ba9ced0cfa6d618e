"""Call with overrides off, call with overrides on, compare, and count what ran."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import aten_ext
from torch_databases.comparison import SUMS, differences, outcome_of
from torch_databases.table import comparable, decomposed


@dataclasses.dataclass
class Tally:
    """What running one database entry showed.

    Attributes:
        key: the dispatch key whose counts are kept.
        exact: whether elements have to be equal, not only close.
        samples: comparisons of a call with overrides against the same call without.
        errors: those of them in which both raised an error.
        failures: where the two differed, one line each.
        sums: how much rounding adds up where elements need not be equal (``comparison.differences``).
        known: pattern of the samples whose result upstream itself leaves undefined, if there are such.
        undefined: how many those were; their values are not compared.
        ran: override -> calls in which its fused kernel ran.
        declined: override -> calls that its rule sent upstream.
    """

    key: str
    exact: bool
    known: str | None = None
    sums: float = SUMS
    samples: int = 0
    errors: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    undefined: int = 0
    ran: dict[str, int] = dataclasses.field(default_factory=dict)
    declined: dict[str, int] = dataclasses.field(default_factory=dict)

    def compare_each(
        self,
        make: Callable[[], list[Any]],
        call: Callable[[Any], Any],
        where: Callable[[int, Any], str],
        *,
        errors_only: bool = False,
    ) -> None:
        """Call with each of some arguments, overrides off and on; compare results, and arguments afterwards.

        Args:
            make: the arguments, new and equal at each call.
            call: takes one of them.
            where: names one (index, argument) in a failure.
            errors_only: compare errors and warnings alone. Error inputs are made of memory that nobody has
                written.
        """
        for i, (theirs, ours) in enumerate(zip(make(), make(), strict=True)):
            aten_ext.reset_counts()  # making the arguments may have called overrides too
            with aten_ext.disabled():
                expected = outcome_of(lambda theirs=theirs: call(theirs))
            found = outcome_of(lambda ours=ours: call(ours))
            self.failures += [f"{where(i, ours)}: {line}" for line in self._add_counts()]
            self.samples += 1
            self.errors += expected.error is not None
            if errors_only:
                expected, found = expected.without_value(), found.without_value()
            lines = [*differences(found, expected, exact=self.exact, sums=self.sums)]
            if not errors_only:
                lines += [
                    f"arguments afterwards: {line}"
                    for line in differences(_plain(ours), _plain(theirs), exact=self.exact)
                ]
            name = where(i, ours)
            if self.known and re.search(self.known, name):
                self.undefined += 1
            else:
                self.failures.extend(f"{name}: {line}" for line in lines)

    def _add_counts(self) -> Iterator[str]:
        """Add what the two calls were counted as, and say where they were not asked equally often."""
        everything = aten_ext.counts(self.key)
        on = decomposed(
            {name: counts.ran + sum(counts.declined.values()) for name, counts in everything.items()},
            {name: counts.ran for name, counts in everything.items()},
        )
        known = comparable(everything, {name: counts.ran for name, counts in everything.items()})
        for name, counts in everything.items():
            declined = sum(counts.declined.values())
            if counts.ran or declined or counts.disabled:
                self.ran[name] = self.ran.get(name, 0) + counts.ran
                self.declined[name] = self.declined.get(name, 0) + declined
            if name in known and on.get(name, 0) != counts.disabled:
                yield (
                    f"{name}: {counts.ran} fused and {declined} declined calls with overrides on, "
                    f"{counts.disabled} calls with overrides off"
                )


def _plain(argument: Any) -> Any:
    """The containers inside a sample object of the databases."""
    if isinstance(argument, (list, tuple)):
        return [_plain(item) for item in argument]
    if hasattr(argument, "sample_input"):
        argument = argument.sample_input
    if hasattr(argument, "args") and hasattr(argument, "kwargs"):
        return [getattr(argument, "input", None), list(argument.args), argument.kwargs]
    return argument


@contextmanager
def one_thread() -> Iterator[None]:
    """Samples are small: on a busy machine, waking other threads for them takes most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def tallied(key: str, *, exact: bool, known: str | None = None, sums: float = SUMS) -> Iterator[Tally]:
    """A :class:`Tally` to compare with, on one thread, with all warnings given and none of them shown.

    cuDNN computes in fp32, not in TF32, which is too coarse to compare with.
    """
    warn_always, tf32 = torch.is_warn_always_enabled(), torch.backends.cudnn.allow_tf32
    torch.set_warn_always(True)  # or the second of two equal calls would warn less
    torch._C._set_cudnn_allow_tf32(False)
    try:
        with warnings.catch_warnings(), one_thread():
            warnings.simplefilter("ignore")  # of making samples; those of calls are part of their outcome
            yield Tally(key, exact, known, sums)
    finally:
        torch._C._set_cudnn_allow_tf32(tf32)
        torch.set_warn_always(warn_always)
