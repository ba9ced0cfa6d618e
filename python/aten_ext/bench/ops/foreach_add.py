"""Cases of ``_foreach_add_.Scalar``: an optimizer's step counters, one fp32 number in a tensor each.

Eight bytes a number, read and written; what counts is the time of issuing the call.
"""

from __future__ import annotations

from functools import partial

from aten_ext.bench.case import Call, Case

SHORT = (161, 1000)
FULL = (1, 10, 148, *SHORT, 4000, 20_000)


def cases(device: str, full: bool) -> list[Case]:
    """As many counters as models have parameters."""
    del device
    return [
        Case(
            op="foreach_add",
            name=f"{count} counters",
            dtype="float32",
            override="_foreach_add_.Scalar",
            make=partial(_make, count),
            bytes=8 * count,
            footprint=4 * count,
        )
        for count in (FULL if full else SHORT)
    ]


def _make(count: int, device: str) -> Call:
    """Counters that start at 0; beyond 2^24 they stay where they are, which takes as long."""
    import torch

    return partial(torch._foreach_add_, [torch.zeros((), device=device) for _ in range(count)], 1)
