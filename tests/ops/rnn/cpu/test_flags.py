"""Every switch that steers upstream on the CPU, by itself and in pairs: value, gradients and route."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

import aten_ext
from flags import OF_ANY, OF_THE_CPU, changed

from .cases import CELLS, FLOOR_OF_FEW, Case, assert_close, assert_ran, call, documented, with_gradients

LESS = documented("products of float32 in less precision")
OTHERWISE = documented("threads that flush denormals otherwise")
AUTOCAST = documented("autocast")
LSTM_ON_ONE_THREAD = documented("LSTM on one thread, which oneDNN runs as fast")
LSTM_IN_INFERENCE = documented("LSTM in inference, which oneDNN runs")


FLAGS = OF_THE_CPU | OF_ANY


def reasons() -> set[str]:
    """Why everything goes upstream under the switches of now, if anything says so."""
    if torch.is_autocast_enabled("cpu"):
        return {AUTOCAST}
    return {LESS} if torch._C._get_fp32_precision_getter("mkldnn", "matmul") in ("bf16", "tf32") else set()


@pytest.fixture(scope="module")
def cases() -> list[tuple[Case, list[torch.Tensor]]]:
    """A layer of each cell, padded and packed, with what float64 makes of it while no switch is set."""
    made = [
        Case(
            cell, 7, 6, 24, 40, layers=2, bidirectional=packed, lengths=(7, 7, 5, 3, 1, 1) if packed else None
        )
        for cell in CELLS
        for packed in (False, True)
    ]
    with aten_ext.disabled():
        return [(case, with_gradients(case, torch.double)) for case in made]


def outcome(f: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor] | str:
    """What it returns, or its error: some processors have no LSTM of oneDNN in fp16."""
    try:
        return f()
    except RuntimeError as error:
        return str(error)


def hold(names: tuple[str, ...], case: Case, exact: list[torch.Tensor]) -> None:
    """Training and inference under the switches: the route, and no further from float64 than upstream."""
    module, tensors = case.module(), case.tensors()

    def infer() -> list[torch.Tensor]:
        with torch.no_grad():
            return call(case, module, tensors)

    with changed(names):
        wanted = reasons()
        if not wanted and "flush denormal" in names and torch.get_num_threads() > 1:
            wanted = {OTHERWISE}  # the threads of the pool are older than the switch
        for f, of_lstm in ((lambda: with_gradients(case), LSTM_ON_ONE_THREAD), (infer, LSTM_IN_INFERENCE)):
            aten_ext.reset_counts()
            ours = outcome(f)
            count = aten_ext.counts("CPU")[case.name]
            assert set(count.declined) <= wanted | ({of_lstm} if case.name == "lstm.input" else set())
            with aten_ext.disabled():
                theirs = outcome(f)
            if count.declined:
                assert count.ran == 0
            else:
                assert not wanted and count.ran == 1
            if isinstance(ours, str) or isinstance(theirs, str):
                assert ours == theirs and count.declined
            elif count.declined:  # both are upstream's
                assert all(map(torch.equal, ours, theirs))
            else:
                of_few = 1e-4 if case.cell == "rnn_relu" else FLOOR_OF_FEW
                assert_close(ours, theirs, exact[: len(ours)], of_few=of_few)


@pytest.mark.parametrize("name", FLAGS)
def test_each(name: str, cases: list[tuple[Case, list[torch.Tensor]]]) -> None:
    for case, exact in cases:
        hold((name,), case, exact)


def test_pairs(cases: list[tuple[Case, list[torch.Tensor]]]) -> None:
    """All of them; the layers take turns."""
    turns = itertools.cycle(cases)
    for names in itertools.combinations(FLAGS, 2):
        case, exact = next(turns)
        try:
            hold(names, case, exact)
        except AssertionError as error:
            raise AssertionError(f"{names}, {case}") from error


@pytest.mark.parametrize("lengths", [None, (7, 7, 5, 3, 1, 1)], ids=["padded", "packed"])
@pytest.mark.parametrize("cell", CELLS)
def test_a_backward_keeps_to_the_precision_of_its_forward(cell: str, lengths: tuple[int, ...] | None) -> None:
    """Less is allowed in between: on a processor with AMX products are in bf16 then."""
    case = Case(cell, 7, 6, 24, 40, layers=2, lengths=lengths)
    both = []
    for between in ((), ("set_float32_matmul_precision medium",)):
        module, tensors = case.module(), [t.requires_grad_() for t in case.tensors()]
        aten_ext.reset_counts()
        results = call(case, module, tensors)
        assert_ran(case.name)
        with changed(between):
            total = torch.stack([(r * r).sum() for r in results]).sum()
            both.append(torch.autograd.grad(total, [*tensors, *module.parameters()]))
    for a, b in zip(*both, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))
