"""What an op's module declares: cases. Nothing here imports torch, so that ``--list`` is quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aten_ext.bench.result import Result

Call = Callable[[], object]

ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element, by the name of the dtype."""


@dataclass(frozen=True)
class Settings:
    """How to measure, as asked for on the command line."""

    device: str
    """"cpu" or "cuda"."""
    seconds: float = 1.5
    """Time to spend on one case, in seconds, after warm-up."""
    never_slower: float | None = None
    """The least ratio upstream / ours that passes, or None for no check."""
    one_set: bool = False
    """Call over one set of operands again and again, instead of going round more than the cache holds."""


@dataclass(frozen=True)
class Case:
    """One call to time, on any device."""

    op: str
    """The module that declares it."""
    name: str
    """What sets it apart from the op's other cases of the same dtype."""
    dtype: str
    override: str
    """The override that the call reaches, as ``aten_ext.overrides()`` names it."""
    make: Callable[[str], Call]
    """From a device to a call with operands of its own; called again, it makes fresh operands."""
    bytes: int
    """Bytes that one call has to move through memory: each input read once, each output written once."""
    footprint: int
    """Bytes that one set of operands occupies."""
    flops: int = 0
    """Floating-point operations of one call; 0 where they are not counted because memory is the limit."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """What the achieved rate is plotted against, e.g. "elements" and "tensors". With "steps",
    which follow one another in a call, the time of a step is plotted instead of a rate."""
    series: str = ""
    """Of which line of a plot this is a point. Where an op has such lines, its other cases are left out."""
    exact: bool = False
    """Whether the call returns upstream's bits, which a sweep then checks."""
    measure: Callable[[Case, Settings], Result] | None = None
    """For a case that is timed outside this process: what to call in place of the harness."""

    @property
    def label(self) -> str:
        """The name that is unique within the op, which ``--filter`` searches."""
        return f"{self.name} {self.dtype}"
