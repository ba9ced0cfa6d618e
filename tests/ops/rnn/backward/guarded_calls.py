"""Calls of the kernels of a backward recurrence on memory with forbidden pages around it.

``python -m ops.rnn.backward.guarded_calls`` in tests/ makes them; started by test_backward_on_host.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from guarded import guarded
from ops.rnn.backward.on_host_cases import CELLS, LSTM, Case, check, load, new_case
from ops.rnn.backward.test_backward_on_host import SMALL
from ops.rnn.on_host_cases import MMA


def around(tensor: torch.Tensor, at_end: bool) -> torch.Tensor:
    """The same elements, directly before or behind such a page."""
    return guarded(tensor.flatten(), at_end).view(tensor.shape)


def moved(case: Case, at_end: bool) -> Case:
    """All that the kernels read."""
    given = {
        "coefficients": case.coefficients,
        "w_hh": case.w_hh,
        "dy": case.dy,
        "dh": case.dh,
        "dc": case.dc,
    }
    return replace(
        case, **{name: around(tensor, at_end) for name, tensor in given.items() if tensor is not None}
    )


def main() -> None:
    """Exits by a signal where a kernel strays."""
    ops = load()
    calls = 0
    for math, exchange, blocks, hidden in SMALL:
        dtypes = (torch.float16, torch.bfloat16) if math == MMA else (torch.float32,)
        for dtype in dtypes:
            for cell in CELLS.values():
                if cell == LSTM and dtype == torch.bfloat16:
                    continue  # as in fp16
                case = new_case(cell, dtype, hidden=hidden, batch=3, steps=2, directions=1)
                for at_end in (False, True):
                    check(ops, moved(case, at_end), [math, exchange, blocks, 2])
                    calls += 1
    print(calls, "calls")


if __name__ == "__main__":
    main()
