"""Recurrent layers on the CPU: NaN, infinities, zeros and the ends of a range, in each argument by itself.

Every element of every result and gradient is of the class that upstream's is: a number, an infinity of its
sign, or NaN.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

import aten_ext
from upstream_versions import bf16_products_spread_nan

from .cases import CELLS, Case, assert_ran, call

INFO = torch.finfo(torch.float32)
VALUES = {
    "NaN": torch.nan,
    "inf": torch.inf,
    "-inf": -torch.inf,
    "-0": -0.0,
    "large": 1e30,
    "smallest normal": INFO.tiny,
    "denormal": -INFO.tiny / 8,
}
ENDS = {"largest": INFO.max, "least": INFO.min}
ARGUMENTS = ["x", "hx", "cx", "w_ih", "w_hh", "b_ih", "b_hh"]


def classes(t: torch.Tensor) -> torch.Tensor:
    """0: a number; 1, -1: an infinity; 2: NaN."""
    return t.isnan() * 2 + t.isinf() * t.sign().nan_to_num()


def special(case: Case, argument: str, value: float, dtype: torch.dtype) -> tuple[Any, list[torch.Tensor]]:
    """The layers and their inputs, with one element of ``argument`` replaced."""
    module, tensors = case.module(dtype), case.tensors(dtype)
    names = [*ARGUMENTS[:3][: len(tensors)], *ARGUMENTS[3:]]
    if argument not in names:
        pytest.skip("no cell state")
    operand = [*tensors, *list(module.parameters())[:4]][names.index(argument)]
    with torch.no_grad():
        operand.view(-1)[operand.numel() // 2] = value
    return module, tensors


def assert_same(ours: list[torch.Tensor], theirs: list[torch.Tensor], dtype: torch.dtype) -> None:
    rtol, atol = (1e-3, 1e-5) if dtype == torch.float32 else (0.1, 0.05)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(classes(a), classes(b))
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


LAYERS = [
    Case("gru", 4, 5, 6, 20),
    Case("gru", 3, 2, 30, 5, batch_first=True, bidirectional=True),
    Case("rnn_tanh", 4, 5, 40, 9, batch_first=True),
    Case("rnn_relu", 4, 9, 6, 17),
    Case("gru", 4, 5, 6, 20, lengths=(4, 4, 2, 1, 1)),
    Case("lstm", 4, 5, 6, 12, lengths=(4, 3, 3, 2, 1), bidirectional=True),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("case", LAYERS, ids=str)
def test_inference(case: Case, argument: str, dtype: torch.dtype) -> None:
    of_all_steps = (case.steps * case.batch, case.inputs)
    if dtype == torch.bfloat16 and argument == "x" and bf16_products_spread_nan(*of_all_steps):
        pytest.skip("upstream's product of all steps spreads NaN on this CPU")
    for value in {**VALUES, **(ENDS if dtype == torch.float32 else {})}.values():
        module, tensors = special(case, argument, value, dtype)
        with torch.no_grad():
            aten_ext.reset_counts()
            ours = call(case, module, tensors)
            assert_ran(case.name)
            with aten_ext.disabled():
                assert_same(ours, call(case, module, tensors), dtype)


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("case", [*LAYERS, Case("lstm", 3, 4, 5, 11)], ids=str)
def test_training(case: Case, argument: str) -> None:
    for value in VALUES.values():
        both = []
        for enabled in (True, False):
            module, tensors = special(case, argument, value, torch.float32)
            leaves = [t.requires_grad_() for t in tensors]
            aten_ext.reset_counts()
            with contextlib.nullcontext() if enabled else aten_ext.disabled():
                results = call(case, module, leaves)
                gradients = torch.autograd.grad([r.sum() for r in results], [*leaves, *module.parameters()])
            if enabled:
                assert_ran(case.name)
            both.append([*(r.detach() for r in results), *gradients])
        assert_same(both[0], both[1], torch.float32)


@pytest.mark.parametrize(
    "x", [-104.5, -104.0, -103.0, -89.5, -89.0, -88.9, -88.7, -88.0, -87.0, -80.5, 80.5, 104.0]
)
@pytest.mark.parametrize("cell", CELLS)
def test_ends_of_the_sigmoid(cell: str, x: float) -> None:
    """Where e^-x leaves the range of float; weights of 0, so that biases alone make the gates."""
    case = Case(cell, 2, 3, 4, 9, lengths=(2, 1, 1) if cell == "lstm" else None)
    module, tensors = case.module(), case.tensors()
    with torch.no_grad():
        for p in list(module.parameters())[:2]:
            p.zero_()
        for bias in list(module.parameters())[2:]:
            bias.fill_(x / 2)
        ours = call(case, module, tensors)
        with aten_ext.disabled():
            theirs = call(case, module, tensors)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(classes(a), classes(b))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-37)
