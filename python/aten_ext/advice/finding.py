"""A piece of advice, and what it is estimated to save."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """Time saved in microseconds a call, as an interval.

    Attributes:
        us: the middle.
        low_us: where a 95 % interval of the median begins, or a quarter of the cases lie below.
        high_us: where it ends, or a quarter lie above.
        now_us: what one call takes now.
        how: where the figures are from.
    """

    us: float
    low_us: float
    high_us: float
    now_us: float
    how: str


@dataclass(frozen=True)
class Advice:
    """One thing that the program could do otherwise.

    Attributes:
        kind: ``"optimizer"``, ``"flatten"``, ``"padding"``, ``"train mode"``, ``"declined"`` or
            ``"environment"``.
        site: the line of the program, ``"file:line"``; empty where it has none.
        text: what is so.
        advice: what to do.
        calls: calls of the program that it is about.
        per: what one call is: ``"step"`` or ``"call"``.
        estimate: None where nothing is known.
        why_none: why there is no estimate.
        share: the estimate's part of the time of the program; None where that is not known.
    """

    kind: str
    site: str
    text: str
    advice: str
    calls: int
    per: str = "call"
    estimate: Estimate | None = None
    why_none: str = ""
    share: float | None = None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)

    @staticmethod
    def of_json(fields: dict[str, Any]) -> Advice:
        """The other way round."""
        estimate = fields["estimate"]
        return Advice(**{**fields, "estimate": Estimate(**estimate) if estimate else None})

    def figure(self) -> str:
        """The estimate in words."""
        if self.estimate is None:
            return f"no estimate: {self.why_none}"
        e = self.estimate
        share = "" if self.share is None else f", {self.share:.1%} of the time"
        if e.low_us <= 0 <= e.high_us:
            between = f"{_us(e.low_us)} to {_us(e.high_us)} a {self.per}"
            return f"saves nothing that can be measured ({between}; {e.how})"
        return (
            f"saves {_us(e.us)} of {_us(e.now_us)} a {self.per} ({_us(e.low_us)} to {_us(e.high_us)})"
            f"{share}; {e.how}"
        )


def _us(us: float) -> str:
    return f"{us * 1e-3:.3g} ms" if abs(us) >= 1000 else f"{us:.3g} us"
