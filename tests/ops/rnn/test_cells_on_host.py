"""The step of each recurrent cell against float64, and the order of a sequence's rows, on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from device_on_host import library

pytestmark = [
    pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or ""),
]

GATES = {"gru": 3, "lstm": 4, "tanh": 1, "relu": 1}
FAST, ACCURATE, FINISH = range(3)


@pytest.fixture(scope="module")
def ops() -> Any:
    library.load("rnn_cells", str(library.HERE / "rnn_cells.cu"))
    return torch.ops.aten_ext_on_host_rnn_cells


def reference(
    cell: str, x: torch.Tensor, sums: torch.Tensor, h: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """PyTorch's formulas in float64; x and sums [units, gates] with their biases."""
    if cell == "gru":
        (xr, xz, xn), (hr, hz, hn) = x.T, sums.T
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        n = torch.tanh(xn + r * hn)
        return n + z * (h - n), c
    if cell == "lstm":
        i, f, g, o = (x + sums).T
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    total = (x + sums)[:, 0]
    return (torch.tanh(total) if cell == "tanh" else torch.relu(total)), c


def check(
    ops: Any,
    cell: str,
    form: int,
    x: torch.Tensor,
    sums: torch.Tensor,
    biases: tuple[torch.Tensor, torch.Tensor] | None,
    h: torch.Tensor,
    c: torch.Tensor,
    relative: float = 2e-6,
) -> None:
    got = ops.step(cell, form, x, sums, *(biases or (None, None)), h, c)
    b_ih, b_hh = (b.double().view(-1, len(h)).T for b in biases) if biases else (0, 0)
    exact = reference(cell, x.double() + b_ih, sums.double() + b_hh, h.double(), c.double())
    for result, wanted in zip(got, exact, strict=True):
        assert torch.equal(torch.isnan(result), torch.isnan(wanted))
        assert torch.equal(torch.isinf(result), torch.isinf(wanted))
        finite = torch.isfinite(wanted)
        error = (result.double() - wanted)[finite].abs()
        assert (error <= relative * wanted[finite].abs().clamp_min(1)).all(), error.max()


@pytest.mark.parametrize("form", [FAST, ACCURATE, FINISH], ids=["fast", "accurate", "finish"])
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("bias", [True, False])
def test_random_values(ops: Any, cell: str, form: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    units, gates = 500, GATES[cell]

    def new(*shape: int) -> torch.Tensor:
        size = torch.randn(*shape, generator=generator) * 2
        return size * torch.rand(shape, generator=generator)

    biases = (new(gates * units), new(gates * units)) if bias else None
    check(ops, cell, form, new(units, gates), new(units, gates), biases, new(units), new(units))


@pytest.mark.parametrize("form", [FAST, ACCURATE, FINISH], ids=["fast", "accurate", "finish"])
@pytest.mark.parametrize("cell", GATES)
def test_special_values(ops: Any, cell: str, form: int) -> None:
    """Each gate in turn gets NaN, infinities, large and small numbers, in x, in the sums and in the state."""
    special = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 100.0, -100.0, 1e-30, 0.0, -0.0, 0.55]
    gates = GATES[cell]
    rows = [(gate, value) for gate in range(2 * gates + 2) for value in special]
    values = torch.full((len(rows), 2 * gates + 2), 0.25)
    for i, (gate, value) in enumerate(rows):
        values[i, gate] = value
    x, sums, h, c = values.split([gates, gates, 1, 1], 1)
    check(ops, cell, form, x.contiguous(), sums.contiguous(), None, h[:, 0].clone(), c[:, 0].clone())


@pytest.mark.parametrize("cell", ["tanh", "lstm"])
def test_small_values_keep_relative_accuracy(ops: Any, cell: str) -> None:
    """Near zero, tanh by 1 - 2 / (1 + e^2x) would lose it."""
    x = torch.logspace(-30, 0, 200).mul(torch.tensor([1.0, -1.0]).repeat(100))
    gates = GATES[cell]
    sums = torch.zeros(200, gates)
    wide = torch.zeros(200, gates)
    wide[:, 2 if cell == "lstm" else 0] = x
    h, c = ops.step(cell, FAST, wide, sums, None, None, torch.zeros(200), torch.zeros(200))
    exact_h, exact_c = reference(
        cell, wide.double(), sums.double(), torch.zeros(()), torch.zeros(200).double()
    )
    for got, exact in ((h, exact_h), (c, exact_c)):
        assert ((got.double() - exact).abs() <= 1e-6 * exact.abs()).all()


def test_relu_keeps_nan(ops: Any) -> None:
    h, _ = ops.step(
        "relu",
        FAST,
        torch.tensor([[float("nan")]]),
        torch.zeros(1, 1),
        None,
        None,
        torch.zeros(1),
        torch.zeros(1),
    )
    assert torch.isnan(h).all()


@pytest.mark.parametrize("direction", [0, 1])
def test_padded_sequence(ops: Any, direction: int) -> None:
    steps, batch = 4, 3
    places = torch.arange(steps * batch * 10).view(steps, batch, 10)[:, :, 0]
    walked = ops.walk_padded(steps, batch, direction, 30, 10)
    times = range(steps) if direction == 0 else range(steps - 1, -1, -1)
    for of_step, time in zip(walked, times, strict=True):
        assert of_step[:batch] == places[time].tolist()
    assert all(of_step[batch] == (30 if direction == 0 else -30) for of_step in walked[:-1])


@pytest.mark.parametrize("direction", [0, 1])
def test_packed_sequence(ops: Any, direction: int) -> None:
    """A step's rows are those that are long enough, where pack_padded_sequence puts them."""
    lengths = [5, 3, 3, 1]
    padded = torch.arange(5 * 4, dtype=torch.float32).view(5, 4)
    packed = torch.nn.utils.rnn.pack_padded_sequence(padded, torch.tensor(lengths))
    walked = ops.walk_packed(packed.batch_sizes.tolist(), direction, 7)
    times = list(range(5)) if direction == 0 else list(range(4, -1, -1))
    for step, (of_step, time) in enumerate(zip(walked, times, strict=True)):
        rows = sum(length > time for length in lengths)
        data = packed.data[[offset // 7 for offset in of_step[:rows]]]
        assert data.tolist() == padded[time, :rows].tolist()
        if step + 1 < len(walked):
            assert of_step[rows] == walked[step + 1][0] - of_step[0]
