"""What the tests of the backward recurrence on the CPU share: the kernels, compiled, and a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ops.rnn import on_host_cases
from ops.rnn.on_host_cases import TF32, TF32_TOLERANCE, TOLERANCE

RELU, TANH, LSTM, GRU = 0, 1, 2, 3
CELLS = {"gru": GRU, "lstm": LSTM, "rnn": TANH}
GATES = {GRU: 3, LSTM: 4, TANH: 1, RELU: 1}
COEFFICIENTS = {GRU: 5, LSTM: 6, TANH: 1, RELU: 1}


def load() -> Any:
    """The kernels, of the family's library, and their plan as operators."""
    on_host_cases.load()
    return torch.ops.aten_ext_on_host_rnn_backward


@dataclass
class Case:
    """The arguments of the operator ``backward``, without the kernel."""

    cell: int
    coefficients: torch.Tensor  # [directions, steps, batch, coefficients, hidden]
    w_hh: torch.Tensor  # [directions, gates * hidden, hidden]
    dy: torch.Tensor | None  # [steps, batch, directions * hidden]
    dh: torch.Tensor | None  # [directions, batch, hidden]
    dc: torch.Tensor | None


def new_case(
    cell: int,
    dtype: torch.dtype,
    *,
    hidden: int,
    batch: int,
    steps: int = 3,
    directions: int = 1,
    offset: int = 0,
    given: bool = True,
    batch_first: bool = False,
) -> Case:
    """Random numbers, seeded by the sizes.

    ``offset``: elements that w_hh and dy begin behind; ``given``: whether gradients of the last state are;
    ``batch_first``: how dy lies.
    """
    generator = torch.Generator().manual_seed(hidden * 1000 + batch * 10 + cell)

    def new(*shape: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(torch.Size(shape).numel() + offset, generator=generator) * scale
        return values.to(dtype)[offset:].view(shape)

    coefficients = torch.rand(directions, steps, batch, COEFFICIENTS[cell], hidden, generator=generator)
    # Of the sizes that gates have, of both signs, so that gradients neither die out nor grow.
    coefficients = coefficients * torch.where(coefficients > 0.5, 0.8, -0.8)
    dy = new(batch, steps, directions * hidden).transpose(0, 1) if batch_first else None
    state = torch.randn(2, directions, batch, hidden, generator=generator)
    return Case(
        cell,
        coefficients,
        new(directions, GATES[cell] * hidden, hidden, scale=hidden**-0.5),
        dy if batch_first else new(steps, batch, directions * hidden),
        state[0] if given else None,
        state[1] if given and cell == LSTM else None,
    )


def step(
    cell: int, c: torch.Tensor, dh: torch.Tensor, carry: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor | None, torch.Tensor]:
    """Gradients of the gates' hidden parts, of the new gate's input part, and what is carried.

    c: [batch, coefficients, hidden].
    """
    of = c.unbind(1)
    if cell == GRU:
        a_r, a_z, a_n, r, z = of
        d_new = a_n * dh
        return [a_r * dh, a_z * dh, r * d_new], d_new, z * dh
    if cell == LSTM:
        p, a_i, a_f, a_g, a_o, f = of
        dc = carry + p * dh
        return [a_i * dc, a_f * dc, a_g * dc, a_o * dh], None, f * dc
    return [of[0] * dh], None, carry


def reference(case: Case) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """All results in float64."""
    directions, steps, batch, _, hidden = case.coefficients.shape
    zero = torch.zeros(batch, hidden, dtype=torch.float64)
    hidden_gates, new, dh_out, dc_out = [], [], [], []
    for d in range(directions):
        w = case.w_hh[d].double()
        dh = case.dh[d].double() if case.dh is not None else zero
        carry = case.dc[d].double() if case.dc is not None else zero
        of_steps: dict[int, torch.Tensor] = {}
        new_of_steps: dict[int, torch.Tensor] = {}
        for t in reversed(range(steps)) if d == 0 else range(steps):
            if case.dy is not None:
                dh = dh + case.dy[t, :, d * hidden : (d + 1) * hidden].double()
            gates, d_new, carry = step(case.cell, case.coefficients[d, t].double(), dh, carry)
            of_steps[t] = torch.stack(gates, 1)
            if d_new is not None:
                new_of_steps[t] = torch.stack([*gates[:-1], d_new], 1)
            dh = torch.cat(gates, 1) @ w
            if case.cell == GRU:
                dh = dh + carry
        hidden_gates.append(torch.stack([of_steps[t] for t in range(steps)]))
        if case.cell == GRU:
            new.append(torch.stack([new_of_steps[t] for t in range(steps)]))
        dh_out.append(dh)
        dc_out.append(carry)
    return (
        torch.stack(hidden_gates),
        torch.stack(new) if new else None,
        torch.stack(dh_out),
        torch.stack(dc_out),
    )


def run(ops: Any, case: Case, kernel: list[int]) -> tuple[torch.Tensor, ...]:
    results: tuple[torch.Tensor, ...] = ops.backward(
        case.cell, case.coefficients, case.w_hh, case.dy, case.dh, case.dc, kernel
    )
    return results


def check(ops: Any, case: Case, kernel: list[int]) -> tuple[torch.Tensor, ...]:
    """Runs a case with a kernel (math, exchange, blocks, rows) and holds all results against float64."""
    got = run(ops, case, kernel)
    tolerance = TF32_TOLERANCE if kernel[0] == TF32 else TOLERANCE[case.w_hh.dtype]
    names = ("d_hidden_gates", "d_input_gates", "dh_out", "dc_out")
    exact = reference(case)
    scale = max(float(wanted.abs().max()) for wanted in exact if wanted is not None)
    for name, result, wanted in zip(names, got, exact, strict=True):
        if wanted is None or (name == "dc_out" and case.cell != LSTM):
            assert result.isnan().all(), f"{name} is none of this cell's results"
            continue
        error = (result.double() - wanted).abs().max()
        assert error <= tolerance * scale, f"{name}: {error} of {scale}"
    return got
