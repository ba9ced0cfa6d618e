"""Operands of linear layers, what the rules say of them, and how a result is judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import aten_ext

HALF = (torch.float16, torch.bfloat16)
FAST = ("mm", "addmm", "_addmm_activation")
WHOLE_MATRIX = "16 bits, and a matrix to add"
SLOWER = "shape that upstream multiplies faster"
NAMES = tuple(name + suffix for name in FAST for suffix in ("", ".out"))


def meta(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that has a shape and no memory."""
    return torch.empty(sizes, device="meta", dtype=dtype)


@dataclasses.dataclass
class Linear:
    """A call, with operands on the GPU.

    Attributes:
        m, n, k: mat1 is [m, k], mat2 [k, n].
        transposed: mat2 is the view that nn.Linear makes of its weight [n, k].
        bias_shape: shape of the bias; ``(n,)`` by default.
        pad: how much further apart rows of mat1 and of mat2's memory lie than they are long, in elements.
    """

    m: int
    n: int
    k: int
    dtype: torch.dtype
    transposed: bool = True
    bias_shape: tuple[int, ...] | None = None
    pad: int = 0
    alpha: float = 1.0
    beta: float = 1.0
    use_gelu: bool = False
    seed: int = 0
    mat1: torch.Tensor = dataclasses.field(init=False)
    mat2: torch.Tensor = dataclasses.field(init=False)
    bias: torch.Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Make the operands: normal numbers, the weight of a scale that keeps the result's near 1."""
        generator = torch.Generator("cuda").manual_seed(self.seed)

        def rows(count: int, length: int, scale: float) -> torch.Tensor:
            values = torch.randn(count, length + self.pad, device="cuda", generator=generator) * scale
            return values.to(self.dtype)[:, :length]

        self.mat1 = rows(self.m, self.k, 1.0)
        scale = self.k**-0.5
        self.mat2 = rows(self.n, self.k, scale).t() if self.transposed else rows(self.k, self.n, scale)
        shape = (self.n,) if self.bias_shape is None else self.bias_shape
        self.bias = torch.randn(shape, device="cuda", generator=generator).to(self.dtype)

    def call(self, name: str, **kwargs: Any) -> torch.Tensor:
        """The overload ``name``."""
        base = name.removesuffix(".out")
        if base == "mm":
            return torch.mm(self.mat1, self.mat2, **kwargs)
        options = {"alpha": self.alpha, "beta": self.beta, **kwargs}
        if base == "addmm":
            return torch.addmm(self.bias, self.mat1, self.mat2, **options)
        operator: Any = torch.ops.aten._addmm_activation
        overload = operator.out if "out" in kwargs else operator.default
        result: torch.Tensor = overload(self.bias, self.mat1, self.mat2, use_gelu=self.use_gelu, **options)
        return result

    def exact(self, name: str) -> torch.Tensor:
        """In float64."""
        product = self.mat1.double() @ self.mat2.double()
        if name == "mm":
            return product
        result = self.alpha * product
        if self.beta != 0:
            result = result + self.beta * self.bias.double()
        if name == "addmm":
            return result
        return torch.nn.functional.gelu(result, approximate="tanh") if self.use_gelu else result.relu()

    def reason(self, name: str) -> str:
        """Why upstream runs; empty when one of ours does."""
        if name == "mm":
            return aten_ext.explain(name, self.mat1, self.mat2, key="CUDA").reason
        options: dict[str, Any] = {"alpha": self.alpha, "beta": self.beta}
        if name == "_addmm_activation":
            options["use_gelu"] = self.use_gelu
        return aten_ext.explain(name, self.bias, self.mat1, self.mat2, key="CUDA", **options).reason

    def compare(self, name: str) -> None:
        """The route is the explained one, a kernel where none was measured to be slower; the same bits twice.

        And the result is about as close to float64 as upstream.

        Its error (2-norm) is at most 1.25 times upstream's, or half a unit in the last place of the
        result's: what correct rounding costs, below which a sum of few terms may lie by luck. Results
        are about 1 times alpha, so a few roundings of that in fp32 are added: of a result of one element
        upstream's error is chance, and 8 % of such products would fail without it.
        """
        aten_ext.reset_counts()
        ours = self.call(name)
        counts = aten_ext.counts("CUDA")[name]
        reason = self.reason(name)
        assert reason in ("", SLOWER, WHOLE_MATRIX)
        assert (counts.ran, dict(counts.declined)) == ((0, {reason: 1}) if reason else (1, {}))
        with aten_ext.disabled():
            theirs = self.call(name)
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        assert torch.equal(ours, self.call(name)), "not the same bits on every run"
        exact = self.exact(name)
        error, upstream = ((result.double() - exact).norm() for result in (ours, theirs))
        allowance = torch.finfo(self.dtype).eps / 2 * exact.norm()
        chance = 3 * torch.finfo(torch.float32).eps / 2 * max(1.0, abs(self.alpha))
        assert error <= 1.25 * upstream + allowance + chance, f"{name}: {error:.3g}, upstream {upstream:.3g}"


def route(name: str, *args: Any, **kwargs: Any) -> str:
    """The reason why upstream would run at CUDA; empty when the kernel would."""
    answer = aten_ext.explain(name, *args, key="CUDA", **kwargs)
    assert answer.override == name and (answer.route == "fused") == (answer.reason == "")
    return answer.reason


def all_routes(bias: Any, mat1: Any, mat2: Any, **kwargs: Any) -> set[str]:
    """What each overload says; mm has no bias, alpha and beta."""
    out = meta(mat1.shape[0], mat2.shape[1], dtype=mat1.dtype)
    reasons = {
        route("addmm", bias, mat1, mat2, **kwargs),
        route("addmm.out", bias, mat1, mat2, **kwargs, out=out),
        route("_addmm_activation", bias, mat1, mat2, **kwargs),
        route("_addmm_activation.out", bias, mat1, mat2, **kwargs, use_gelu=True, out=out),
    }
    return reasons


def all_mm_routes(mat1: Any, mat2: Any) -> set[str]:
    """What the overloads of mm say."""
    out = meta(mat1.shape[0], mat2.shape[1], dtype=mat1.dtype)
    return {route("mm", mat1, mat2), route("mm.out", mat1, mat2, out=out)}


@contextmanager
def restored(getter: Callable[[], Any], setter: Callable[[Any], Any]) -> Iterator[None]:
    """A setting is as before after a ``with`` block."""
    before = getter()
    try:
        yield
    finally:
        setter(before)
