"""Calls that reach each override, by its name: for tests that put every override under something.

A new override needs a row in CALLS: ``test_flags.py`` fails without. What the calls of ``cases.py`` reach is
an operator; here each overload has its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

import aten_ext
from programs.cases import CELL_SHAPES, GRU_SHAPES, SIZES, by_name
from torch_databases.table import TABLE, operator

CPU, CUDA = ("CPU",), ("CUDA",)
BOTH = CPU + CUDA


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that asks an override.

    Attributes:
        name: of the call.
        make: device -> the arguments, the same at each call.
        call: takes them; returns tensors, or None if the operator works in place.
        keys: the dispatch keys at which it reaches the override.
        fused_at: those of them at which the kernel must run while no switch is set.
        differentiates: gradients by all floating arguments are results as well.
    """

    name: str
    make: Callable[[str], tuple[Any, ...]]
    call: Callable[..., Any]
    keys: tuple[str, ...] = BOTH
    fused_at: tuple[str, ...] = BOTH
    differentiates: bool = False

    def results(self, device: str, dtype: torch.dtype | None = None) -> list[Tensor]:
        """What it returns and what it wrote; of arguments in ``dtype`` if one is given."""
        arguments = self.make(device)
        if dtype is not None:
            # Steps and learning rates are single numbers, of float32 whatever the parameters are.
            arguments = pytree.tree_map_only(
                Tensor, lambda t: t.to(dtype) if t.is_floating_point() and t.dim() else t, arguments
            )
        return self.results_of(arguments)

    def results_of(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        """The same, of arguments that ``make`` has made."""
        if not self.differentiates:
            with torch.no_grad():
                return _tensors((self.call(*arguments), arguments))
        inputs = [t.requires_grad_() for t in _tensors(arguments) if t.is_floating_point()]
        results = _tensors(self.call(*arguments))
        total = sum((r * r).sum() for r in results)
        assert isinstance(total, Tensor)
        return [*(r.detach() for r in results), *torch.autograd.grad(total, inputs)]


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _random(device: str, *shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


# ---- optimizers ----------------------------------------------------------------------------------------


def _lists(count: int, *, positive: tuple[int, ...] = (), steps: bool = True) -> Callable[..., Any]:
    def make(device: str) -> tuple[Any, ...]:
        lists = [_random(device, *SIZES, seed=seed) for seed in range(count)]
        for i, values in enumerate(lists):  # gradients and states with what a diverging training has
            if i in positive:
                for t in values:
                    t.abs_()
            values[0][i] = float("nan")
            values[1][i, 3] = float("inf")
            values[1][i, 4] = -0.0
            # Denormal, by its bits, for a thread that flushes; another thread's in upstream's kernel.
            values[3].flatten().view(torch.int32)[-1] = 2_000_000
        counters = [[torch.tensor(3.0, device=device) for _ in SIZES]] if steps else []
        return (*lists, *counters)

    return make


def _step(op: str, **options: Any) -> Callable[..., None]:
    def call(*lists: list[Tensor]) -> None:
        getattr(torch, op)(*lists, **options)

    return call


def _step_of_tensor_lr(op: str, **options: Any) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        *lists, lr = arguments
        getattr(torch, op)(*lists, lr=lr, **options)

    return call


def _optimizer(op: str, make: Callable[..., Any], **options: Any) -> dict[str, tuple[Call, ...]]:
    return {
        op: (Call("step", make, _step(op, lr=0.01, **options)),),
        f"{op}.tensor_lr": (
            Call(
                "step",
                lambda device: (*make(device), torch.tensor(0.01, device=device)),
                _step_of_tensor_lr(op, **options),
            ),
        ),
    }


_ADAM: dict[str, Any] = {
    "beta1": 0.9,
    "beta2": 0.99,
    "weight_decay": 0.1,
    "eps": 1e-8,
    "amsgrad": True,
    "maximize": False,
}
_OPTIMIZERS = (
    _optimizer("_fused_adamw_", _lists(5, positive=(3, 4)), **_ADAM)
    | _optimizer("_fused_adam_", _lists(5, positive=(3, 4)), **_ADAM)
    | _optimizer(
        "_fused_sgd_",
        _lists(3, steps=False),
        weight_decay=0.1,
        momentum=0.9,
        dampening=0.1,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
    | _optimizer(
        "_fused_adagrad_",
        _lists(3, positive=(2,)),
        lr_decay=0.1,
        weight_decay=0.1,
        eps=1e-8,
        maximize=False,
    )
)


def _counters(device: str) -> tuple[Any, ...]:
    return ([torch.tensor(float(i), device=device) for i in range(40)],)


# ---- cat -----------------------------------------------------------------------------------------------


def _pieces(device: str) -> tuple[Any, ...]:
    pieces = by_name["cat"].make(device)
    pieces[0][0, 0], pieces[1][1, 0], pieces[2][2, 0] = float("nan"), -0.0, float("-inf")
    return (list(pieces),)


def _cat_out(pieces: list[Tensor]) -> Tensor:
    out = pieces[0].new_empty(pieces[0].shape[0], sum(t.shape[1] for t in pieces))
    return torch.cat(pieces, 1, out=out)


# ---- products ------------------------------------------------------------------------------------------


def _operands(device: str) -> tuple[Any, ...]:
    bias, mat1, weight = _random(device, (512,), (8, 768), (512, 768))
    mat1[1, 3], weight[2, 5], bias[4] = float("nan"), float("inf"), float("-inf")
    return bias, mat1, weight


def _products() -> dict[str, tuple[Call, ...]]:
    def out(mat1: Tensor, weight: Tensor) -> Tensor:
        return mat1.new_empty(mat1.shape[0], weight.shape[0])

    calls: dict[str, Callable[..., Any]] = {
        "mm": lambda b, x, w: torch.mm(x, w.t()),
        "mm.out": lambda b, x, w: torch.mm(x, w.t(), out=out(x, w)),
        "addmm": lambda b, x, w: torch.addmm(b, x, w.t()),
        "addmm.out": lambda b, x, w: torch.addmm(b, x, w.t(), out=out(x, w)),
        "_addmm_activation": lambda b, x, w: torch._addmm_activation(b, x, w.t()),
        "_addmm_activation.out": lambda b, x, w: torch._addmm_activation(b, x, w.t(), out=out(x, w)),
    }
    return {name: (Call("product", _operands, call, CUDA, CUDA),) for name, call in calls.items()}


# ---- recurrent -----------------------------------------------------------------------------------------

_GATES = {"gru": 3, "lstm": 4, "rnn_tanh": 1, "rnn_relu": 1}
_LENGTHS = (4, 4, 3, 2, 1, 1, 1)  # rows of each step


def _recurrent(cell: str, shapes: tuple[tuple[int, ...], ...], *, special: bool) -> Callable[..., Any]:
    """Input, state (an LSTM has two), weights as large as modules start with."""

    def make(device: str) -> tuple[Any, ...]:
        hidden = shapes[1][-1]
        rows = _GATES[cell] * hidden
        x, h, c, *weights = _random("cpu", *shapes[:2], shapes[1], *((rows, *s[1:]) for s in shapes[2:]))
        if special:  # in two rows of the batch; the others stay numbers
            x[..., 0, 2], x[..., 1, 3] = float("nan"), float("inf")
        states = (h, c) if cell == "lstm" else (h,)
        return tuple(t.to(device) for t in (x, *states, *(w / hidden**0.5 for w in weights)))

    return make


def _cell(cell: str) -> Callable[..., Any]:
    def call(x: Tensor, *rest: Tensor) -> Any:
        function = getattr(torch, f"{cell}_cell")
        if cell == "lstm":
            return function(x, rest[:2], *rest[2:])
        return function(x, *rest)

    return call


def _layer(cell: str, *, packed: bool, train: bool) -> Callable[..., Any]:
    function = getattr(torch, cell)

    def call(x: Tensor, *rest: Tensor) -> Any:
        states = list(rest[:2]) if cell == "lstm" else rest[0]
        weights = list(rest[2:] if cell == "lstm" else rest[1:])
        if packed:
            data = torch.cat([x[step, :rows] for step, rows in enumerate(_LENGTHS)])
            return function(data, torch.tensor(_LENGTHS), states, weights, True, 1, 0.0, train, False)
        return function(x, states, weights, True, 1, 0.0, train, False, False)

    return call


def _layers(cell: str, *, keys: tuple[str, ...], packed: bool, inference_is_fused: bool) -> tuple[Call, ...]:
    kind = f"{cell}, {'packed' if packed else 'padded'}"
    return (
        Call(
            f"{kind}, inference",
            _recurrent(cell, GRU_SHAPES, special=True),
            _layer(cell, packed=packed, train=False),
            keys,
            keys if inference_is_fused else (),
        ),
        Call(
            f"{kind}, training",
            _recurrent(cell, GRU_SHAPES, special=False),
            _layer(cell, packed=packed, train=True),
            keys,
            keys,
            differentiates=True,
        ),
    )


def _recurrent_calls() -> dict[str, tuple[Call, ...]]:
    calls: dict[str, tuple[Call, ...]] = {}
    for cell in _GATES:
        calls[f"{cell}_cell"] = (Call("cell", _recurrent(cell, CELL_SHAPES, special=True), _cell(cell)),)
        for packed in (False, True):
            name = f"{cell}.{'data' if packed else 'input'}"
            # oneDNN runs an LSTM in inference.
            fused = packed or cell != "lstm"
            calls[name] = _layers(cell, keys=CPU, packed=packed, inference_is_fused=fused)
    for cell, operators in {
        "gru": ("_thnn_fused_gru_cell", "_thnn_fused_gru_cell_backward"),
        "lstm": ("_thnn_fused_lstm_cell", "_thnn_fused_lstm_cell_backward_impl"),
    }.items():
        in_training = Call(
            "cell, training",
            _recurrent(cell, CELL_SHAPES, special=False),
            _cell(cell),
            CUDA,
            CUDA,
            differentiates=True,
        )
        calls.update(dict.fromkeys(operators, (in_training,)))
    # Where the clock of the GPU or that of the call is better is measured: not every call is ours.
    every = [
        call
        for cell in _GATES
        for packed in (False, True)
        for call in _layers(cell, keys=CUDA, packed=packed, inference_is_fused=False)
    ]
    every = [dataclasses.replace(call, fused_at=()) for call in every]
    calls["_cudnn_rnn"] = tuple(every)
    calls["_cudnn_rnn_backward"] = tuple(call for call in every if call.differentiates)
    return calls


CALLS: dict[str, tuple[Call, ...]] = {
    **_OPTIMIZERS,
    "_foreach_add_.Scalar": (Call("step counters", _counters, lambda t: torch._foreach_add_(t, 1)),),
    "cat": (Call("many small", _pieces, lambda t: torch.cat(t, 1), BOTH, CPU),),
    "cat.out": (Call("many small", _pieces, _cat_out, BOTH, CPU),),
    **_products(),
    **_recurrent_calls(),
}


def keys_of(name: str) -> set[str]:
    """The dispatch keys at which some call reaches the override."""
    return {key for call in CALLS[name] for key in call.keys}


def is_exact(name: str, key: str) -> bool:
    """Whether the override gives upstream's bits there, by the databases' table."""
    return key in TABLE[operator(name)].exact


def each_override() -> pytest.MarkDecorator:
    """Parametrise a test with ``name`` and ``key``: every override at every dispatch key that it has."""
    rows = [
        pytest.param(name, key, id=f"{name}-{key}", marks=pytest.mark.gpu if key == "CUDA" else ())
        for name in CALLS
        for key in sorted(keys_of(name))
    ]
    return pytest.mark.parametrize(("name", "key"), rows)


def classes(t: Tensor) -> Tensor:
    """0: a number; 1, -1: an infinity; 2: NaN."""
    return t.isnan() * 2 + t.isinf() * t.sign().nan_to_num()


# Of the typical element: what rounding of the results and the order of sums make.
_FLOOR = {torch.float32: 2e-7, torch.float16: 5e-4, torch.bfloat16: 4e-3, torch.float64: 1e-15}


def distance(result: Tensor, truth: Tensor) -> float:
    """Root of the mean squared error of the elements that are numbers."""
    numbers = result.isfinite() & truth.isfinite()
    return float((result.double() - truth)[numbers].square().sum().sqrt()) / max(int(numbers.sum()), 1) ** 0.5


def floor(result: Tensor, truth: Tensor) -> float:
    """By how much the distance of a result may exceed upstream's: more of few elements, which is chance."""
    numbers = truth[truth.isfinite()]
    typical = float(numbers.square().mean().sqrt()) if numbers.numel() else 0.0
    return _FLOOR[result.dtype] * (1 + 20 / max(numbers.numel(), 1) ** 0.5) * typical


def assert_same(ours: list[Tensor], theirs: list[Tensor], exact: list[Tensor] | None) -> None:
    """Geometry, class of every element, and bits; or, with ``exact``, 1.5 times as far from it at most."""
    assert len(ours) == len(theirs)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device), i
        assert torch.equal(classes(a), classes(b)), i
        if exact is None:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=lambda m, i=i: f"{i}: {m}")
            continue
        error, yardstick = distance(a, exact[i]), distance(b, exact[i])
        assert error <= 1.5 * yardstick + floor(a, exact[i]), (i, error, yardstick)


def counted(name: str, key: str) -> tuple[int, int]:
    """Calls of the override since the counts were reset: (fused, declined)."""
    count = aten_ext.counts(key)[name]
    return count.ran, sum(count.declined.values())
