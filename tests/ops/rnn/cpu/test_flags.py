"""Every switch that steers upstream on the CPU, by itself and in pairs: value, gradients and route."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import aten_ext

from .cases import CELLS, FLOOR_OF_FEW, Case, assert_close, call, documented, with_gradients

LESS = documented("products of float32 in less precision")
AUTOCAST = documented("autocast")
LSTM_ON_ONE_THREAD = documented("LSTM on one thread, which oneDNN runs as fast")
LSTM_IN_INFERENCE = documented("LSTM in inference, which oneDNN runs")


@contextlib.contextmanager
def _calling(set_flag: Callable[[], object], take_back: Callable[[], object]) -> Iterator[None]:
    set_flag()
    try:
        yield
    finally:
        take_back()


def _precision(backend: str, op: str, value: str) -> contextlib.AbstractContextManager[None]:
    """Not by ``torch.backends``, which ``torch.testing._internal`` locks for a whole process."""
    before = torch._C._get_fp32_precision_getter(backend, op)
    setter = torch._C._set_fp32_precision_setter
    return _calling(lambda: setter(backend, op, value), lambda: setter(backend, op, before))


def _matmul_precision(value: str) -> contextlib.AbstractContextManager[None]:
    return _calling(
        lambda: torch.set_float32_matmul_precision(value),
        lambda: torch.set_float32_matmul_precision("highest"),
    )


def _threads(count: int) -> contextlib.AbstractContextManager[None]:
    before = torch.get_num_threads()
    return _calling(lambda: torch.set_num_threads(count), lambda: torch.set_num_threads(before))


FLAGS: dict[str, Callable[[], Any]] = {
    "matmul precision high": lambda: _matmul_precision("high"),
    "matmul precision medium": lambda: _matmul_precision("medium"),
    "mkldnn matmul bf16": lambda: _precision("mkldnn", "matmul", "bf16"),
    "mkldnn matmul tf32": lambda: _precision("mkldnn", "matmul", "tf32"),
    "mkldnn matmul ieee": lambda: _precision("mkldnn", "matmul", "ieee"),
    "mkldnn rnn bf16": lambda: _precision("mkldnn", "rnn", "bf16"),
    "mkldnn all bf16": lambda: _precision("mkldnn", "all", "bf16"),
    "no mkldnn": lambda: _calling(
        lambda: torch._C._set_mkldnn_enabled(False), lambda: torch._C._set_mkldnn_enabled(True)
    ),
    "mkldnn deterministic": lambda: _calling(
        lambda: torch._C._set_mkldnn_deterministic(True),
        lambda: torch._C._set_mkldnn_deterministic(False),
    ),
    "no cudnn": lambda: _calling(
        lambda: torch._C._set_cudnn_enabled(False), lambda: torch._C._set_cudnn_enabled(True)
    ),
    "deterministic algorithms": lambda: _calling(
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "flush denormal": lambda: _calling(
        lambda: torch.set_flush_denormal(True), lambda: torch.set_flush_denormal(False)
    ),
    "one thread": lambda: _threads(1),
    "three threads": lambda: _threads(3),
    "default dtype float64": lambda: _calling(
        lambda: torch.set_default_dtype(torch.double), lambda: torch.set_default_dtype(torch.float)
    ),
    "autocast bf16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast fp16": lambda: torch.autocast("cpu", torch.float16),
    "autocast disabled": lambda: torch.autocast("cpu", enabled=False),
    "anomaly mode": lambda: torch.autograd.detect_anomaly(check_nan=True),
    "no multithreading of backward": lambda: torch.autograd.set_multithreading_enabled(False),
}


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

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(FLAGS[name]())
        wanted = reasons()
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
