"""Cases of ``_addmm_activation``, ``addmm`` and ``mm``: linear layers, on CUDA alone.

With few rows a call reads the weight once, which is nearly all of its bytes, and does two FLOPs for each
element of the weight and row. Sets of operands rotate, so that the weight comes from memory, as it does in a
model. With many rows the product is cuBLASLt's on both sides; what may differ is the time of a call on the
CPU, the column "eager" of small layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from aten_ext.bench.case import ITEMSIZE, Call, Case

SHAPES = ((768, 3072), (1280, 8000), (4096, 4096), (4096, 11008), (3072, 768))
"""(K, N): GPT-2's two, a word classifier, a square, Llama's."""
ROWS = (1, 2, 4, 8, 16, 32, 64)
MANY_ROWS = (65, 128, 512, 2048)


@dataclass(frozen=True)
class Linear:
    """The arguments of one linear layer."""

    m: int
    k: int
    n: int
    dtype: str
    op: str = "_addmm_activation"
    activation: str = "relu"
    row_major: bool = False
    """mat2 lies in memory as [k, n], instead of being the transposed view of a weight [n, k]."""
    bias_2d: bool = False

    @property
    def name(self) -> str:
        """What sets it apart from others of the same dtype."""
        kind = self.activation if self.op == "_addmm_activation" else self.op
        parts = [kind, f"M={self.m} K={self.k} N={self.n}"]
        parts += ["row-major"] * self.row_major + ["bias[M,N]"] * self.bias_2d
        return " ".join(parts)

    @property
    def _plotted(self) -> bool:
        """One kind of call at each number of rows."""
        plain = self.op == "_addmm_activation" and self.activation == "relu"
        return plain and not self.row_major and not self.bias_2d and (self.k, self.n) in SHAPES

    def case(self) -> Case:
        """The layer as a case."""
        m, k, n = self.m, self.k, self.n
        bias = 0 if self.op == "mm" else m * n if self.bias_2d else n
        elements = k * n + m * k + m * n + bias
        return Case(
            op="linear",
            name=self.name,
            dtype=self.dtype,
            override=self.op,
            make=partial(make, self),
            bytes=elements * ITEMSIZE[self.dtype],
            footprint=elements * ITEMSIZE[self.dtype],
            flops=2 * m * n * k,
            sizes={"rows": m},
            series=f"K={k} N={n}" if self._plotted else "",
        )


def targets() -> list[Linear]:
    """The shapes that the kernel was written for, and one of many rows."""
    layers = [Linear(m, 4096, 4096, "float32") for m in (8, 16, 32, 64)]
    layers += [Linear(m, 4096, 11008, "float32") for m in (8, 16, 32)]
    layers += [Linear(m, 768, 3072, "float32") for m in (16, 32, 64)]
    layers += [Linear(m, 1280, 8000, "float32") for m in (16, 32)]
    layers += [Linear(m, 768, 3072, "bfloat16") for m in ROWS]
    layers += [Linear(m, 4096, 4096, "bfloat16") for m in (1, 2, 4, 8, 16)]
    layers += [Linear(2048, 4096, 4096, "bfloat16", activation="gelu")]
    return layers


def _sweep() -> Iterable[Linear]:
    """Every number of rows, shape and dtype, and what else can be asked for."""
    for dtype in ("float32", "bfloat16", "float16"):
        for k, n in SHAPES:
            for m in ROWS:
                yield Linear(m, k, n, dtype)
    for dtype in ("float32", "bfloat16"):
        for m in (1, 16, 64):
            for k, n in ((768, 3072), (4096, 4096)):
                layer = Linear(m, k, n, dtype)
                yield replace(layer, activation="gelu")
                yield replace(layer, op="addmm")
                yield replace(layer, op="mm")
                yield replace(layer, row_major=True)
                yield replace(layer, bias_2d=True)
        # Without a bias upstream takes other kernels.
        yield from (Linear(m, k, n, dtype, op="mm") for m in ROWS[1:] for k, n in SHAPES)
        # One row more than tiles have; many columns; one tile of columns and much of K; nearly nothing to do.
        yield from (Linear(m, 1024, 1024, dtype) for m in (3, 5, 9, 17, 33, 63))
        yield from (Linear(m, 768, 50257, dtype, op="mm") for m in (1, 16))
        yield from (Linear(m, 16384, 64, dtype) for m in (1, 16, 64))
        yield from (Linear(m, 64, 64, dtype, op="addmm") for m in (1, 64))
        yield Linear(65, 1024, 1024, dtype)
        yield Linear(256, 1024, 1024, dtype, op="addmm")
        yield from (Linear(m, k, n, dtype) for m in MANY_ROWS for k, n in SHAPES)
        for m in (65, 256):
            for k, n in ((64, 64), (256, 256), (768, 768)):
                layer = Linear(m, k, n, dtype)
                yield layer
                yield replace(layer, activation="gelu")
                yield replace(layer, op="addmm")


def cases(device: str, full: bool) -> list[Case]:
    """The targets; with ``full`` the sweep too. Nothing on a CPU, where these operators are upstream's."""
    if device != "cuda":
        return []
    layers = dict.fromkeys([*targets(), *(_sweep() if full else ())])
    return [layer.case() for layer in layers]


def make(layer: Linear, device: str) -> Call:
    """A call with operands of its own."""
    import torch

    dtype = getattr(torch, layer.dtype)
    m, k, n = layer.m, layer.k, layer.n
    x = torch.randn(m, k, device=device, dtype=dtype)
    if layer.row_major:
        weight = torch.randn(k, n, device=device, dtype=dtype).mul_(k**-0.5)
    else:
        weight = torch.randn(n, k, device=device, dtype=dtype).mul_(k**-0.5).t()
    if layer.op == "mm":
        return partial(torch.mm, x, weight)
    bias = torch.randn((m, n) if layer.bias_2d else (n,), device=device, dtype=dtype)
    if layer.op == "addmm":
        return partial(torch.addmm, bias, x, weight)
    gelu = layer.activation == "gelu"
    return partial(torch.ops.aten._addmm_activation.default, bias, x, weight, use_gelu=gelu)
