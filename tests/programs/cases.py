"""One call of each overridden operator, for tests that put it into other and other programs.

A new override gets a line in CASES; every test beside this file then has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

BOTH = frozenset({"CPU", "CUDA"})
SIZES = ((257,), (33, 65), (5,), (8, 3, 3, 3))


@dataclasses.dataclass(frozen=True)
class Case:
    """A call to make.

    Attributes:
        name: for the test's name.
        operators: the overridden operators that it may reach, without their overloads.
        make: device -> the arguments, a tuple of tensors and lists of tensors, the same at each call.
        call: takes the arguments; returns a tensor, a tuple, or None if the operator works in place.
        fused_at: the dispatch keys at which its fused kernel must run when the registry has it. Elsewhere it
            may decline.
        generated: whether Inductor writes code of its own for the operator: compiled code then asks nothing.
        in_place: whether it writes its arguments. Such operators have no derivative.
        raises: programs in which upstream itself may raise an error: "meta", "vmap", "functionalize", "views"
            (negative and conjugate ones), "grad", "jvp". Where it does, it must be the same error with
            overrides on.
        raises_on_cuda: the same, of programs that upstream runs on CPU.
        traced_by_calling: the dispatch keys at which tracing calls a real kernel, because an operator that
            the call is made of has no meta kernel.
    """

    name: str
    operators: tuple[str, ...]
    make: Callable[[str], tuple[Any, ...]]
    call: Callable[..., Any]
    fused_at: frozenset[str] = frozenset()
    generated: bool = False
    in_place: bool = False
    raises: frozenset[str] = frozenset()
    raises_on_cuda: frozenset[str] = frozenset()
    traced_by_calling: frozenset[str] = frozenset()

    def may_raise(self, program: str, device: str) -> bool:
        """Whether upstream itself may raise an error in a kind of program."""
        return program in self.raises or (device == "cuda" and program in self.raises_on_cuda)


def _random(device: str, *shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def _adam_lists(device: str, *, amsgrad: bool) -> tuple[Any, ...]:
    params, grads, exp_avgs = (_random(device, *SIZES, seed=seed) for seed in range(3))
    squares, maxima = ([t.abs() for t in _random(device, *SIZES, seed=seed)] for seed in (3, 4))
    steps = [torch.tensor(3.0, device=device) for _ in params]
    return (params, grads, exp_avgs, squares, *([maxima] if amsgrad else []), steps)


def _adamw(*lists: list[Tensor]) -> None:
    torch._fused_adamw_(
        *lists, lr=0.01, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=True, maximize=False
    )


def _adam(*lists: list[Tensor]) -> None:
    *most, steps = lists
    torch._fused_adam_(
        *most,
        [],
        steps,
        lr=0.01,
        beta1=0.9,
        beta2=0.99,
        weight_decay=0.1,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def _sgd(params: list[Tensor], grads: list[Tensor], momenta: list[Tensor]) -> None:
    torch._fused_sgd_(
        params, grads, momenta, weight_decay=0.1, momentum=0.9, lr=0.01, dampening=0.0, nesterov=False,
        maximize=False, is_first_step=False,
    )  # fmt: skip


def _adagrad(params: list[Tensor], grads: list[Tensor], sums: list[Tensor], steps: list[Tensor]) -> None:
    torch._fused_adagrad_(
        params, grads, sums, steps, lr=0.01, lr_decay=0.1, weight_decay=0.1, eps=1e-8, maximize=False
    )


def _adagrad_lists(device: str) -> tuple[Any, ...]:
    params, grads, _, sums, steps = _adam_lists(device, amsgrad=False)
    return params, grads, sums, steps


def _cat(*tensors: Tensor) -> Tensor:
    return torch.cat(tensors, 1)


def _gru(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Any:
    return torch.gru(x, h, [w_ih, w_hh, b_ih, b_hh], True, 1, 0.0, True, False, False)


def _gru_inference(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Any:
    return torch.gru(x, h, [w_ih, w_hh, b_ih, b_hh], True, 1, 0.0, False, False, False)


def _lstm_cell(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Any:
    return torch.lstm_cell(x, (h, h.sin()), w_ih, w_hh, b_ih, b_hh)


def _recurrent(device: str, *shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Input, state, and weights as large as nn.GRU starts with: rounding does not grow from step to step."""
    x, h, *weights = _random("cpu", *shapes)
    return tuple(t.to(device) for t in (x, h, *(w / shapes[3][1] ** 0.5 for w in weights)))


# [T, B, I], [1, B, H], [3H, I], [3H, H], [3H], [3H]; the cell: [B, I], [B, H]
GRU_SHAPES = ((7, 4, 16), (1, 4, 32), (96, 16), (96, 32), (96,), (96,))
CELL_SHAPES = ((4, 16), (4, 32), *GRU_SHAPES[2:])
LSTM_CELL_SHAPES = ((4, 16), (4, 32), (128, 16), (128, 32), (128,), (128,))

GRU_OPERATORS = (
    "gru",
    "_cudnn_rnn",
    "_cudnn_rnn_backward",
    "_thnn_fused_gru_cell",
    "_thnn_fused_gru_cell_backward",
    "gru_cell",
)

# PyTorch has no batching rule for an operator that writes lists of tensors, and computes no lazy sign or
# conjugate for it. torch.func.functionalize takes an empty list (Adam's maxima) for a list of plain tensors.
LISTS = frozenset({"vmap", "views"})
EMPTY_LIST = LISTS | {"functionalize"}
NO_META = LISTS | {"meta", "functionalize"}

CASES = (
    Case(
        "adamw",
        ("_fused_adamw_",),
        lambda d: _adam_lists(d, amsgrad=True),
        _adamw,
        BOTH,
        in_place=True,
        raises=LISTS,
    ),
    Case(
        "adam",
        ("_fused_adam_",),
        lambda d: _adam_lists(d, amsgrad=False),
        _adam,
        BOTH,
        in_place=True,
        raises=EMPTY_LIST,
    ),
    Case(
        "sgd",
        ("_fused_sgd_",),
        lambda d: tuple(_random(d, *SIZES, seed=s) for s in range(3)),
        _sgd,
        BOTH,
        in_place=True,
        raises=NO_META,
    ),
    Case("adagrad", ("_fused_adagrad_",), _adagrad_lists, _adagrad, BOTH, in_place=True, raises=NO_META),
    Case(
        "cat",
        ("cat",),
        lambda d: tuple(_random(d, *((4, 1 + n % 3) for n in range(80)))),
        _cat,
        frozenset({"CPU"}),
        generated=True,
    ),
    Case(
        "linear",
        ("linear", "addmm", "mm", "_addmm_activation"),
        lambda d: tuple(_random(d, (32, 16), (24, 16), (24,))),
        torch.nn.functional.linear,
    ),
    Case(
        "gru_inference",
        GRU_OPERATORS,
        lambda d: _recurrent(d, *GRU_SHAPES),
        _gru_inference,
        raises=frozenset({"vmap"}),
        # As below; and cuDNN has no derivative of what was computed for inference.
        raises_on_cuda=frozenset({"grad", "jvp", "views", "autograd", "fake"}),
    ),
    Case(
        "gru",
        GRU_OPERATORS,
        lambda d: _recurrent(d, *GRU_SHAPES),
        _gru,
        raises=frozenset({"vmap"}),
        # cuDNN's weight buffer is looked for behind the wrappers of torch.func; it has no complex numbers.
        # Its dropout state is kept for the process: a fake tensor may meet the real one of an earlier test.
        raises_on_cuda=frozenset({"grad", "jvp", "views", "fake"}),
    ),
    Case(
        "gru_cell",
        ("_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward", "gru_cell"),
        lambda d: _recurrent(d, *CELL_SHAPES),
        torch.gru_cell,
        # On CUDA one operator is all gates: without forward mode, complex numbers or a meta kernel.
        raises_on_cuda=frozenset({"jvp", "views"}),
        traced_by_calling=frozenset({"CUDA"}),
    ),
    Case(
        "lstm_cell",
        ("_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl", "lstm_cell"),
        lambda d: _recurrent(d, *LSTM_CELL_SHAPES),
        _lstm_cell,
        raises_on_cuda=frozenset({"jvp", "views"}),
        traced_by_calling=frozenset({"CUDA"}),
    ),
)

by_name = {case.name: case for case in CASES}


def each(*, in_place: bool | None = None) -> pytest.MarkDecorator:
    """Parametrise a test with ``case``: all of them, or those that work in place, or those that do not."""
    chosen = [case for case in CASES if in_place in (None, case.in_place)]
    return pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)
