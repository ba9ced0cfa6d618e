"""Random calls of ``cat``: any layout, dtype, number of inputs and length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from aten_ext.bench.case import Call, Case
from aten_ext.sweep import draw, known_layers

if TYPE_CHECKING:
    import torch

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int64": 8, "uint8": 1, "bool": 1}
DTYPES = ("float32", "float32", "bfloat16", "bfloat16", "float16", "float64", "int64", "uint8", "bool")
LAYOUTS = ("plain", "permuted", "narrowed", "strided", "expanded")
MAX_ELEMENTS = {"cuda": 1 << 27, "cpu": 1 << 21}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Input:
    """One input, and the memory that it is a view of."""

    shape: Shape
    layout: str = "plain"
    choice: int = 0
    """Which dimension is expanded, by how much a narrowed one is off, and the like."""
    dtype: str = "float32"

    def make(self, device: str) -> torch.Tensor:
        """The view, of memory of its own."""
        last = len(self.shape) - 1
        if self.layout == "permuted":
            order = list(range(len(self.shape)))
            Random(self.choice).shuffle(order)
            stored = filled(tuple(self.shape[i] for i in order), self.dtype, device)
            return stored.permute([order.index(i) for i in range(len(order))])
        if self.layout == "narrowed":
            before = 1 + self.choice % 9
            wide = filled((*self.shape[:-1], before + self.shape[-1] + 1), self.dtype, device)
            return wide.narrow(last, before, self.shape[-1])
        if self.layout == "strided":
            step = 2 + self.choice % 2
            return filled((*self.shape[:-1], step * self.shape[-1]), self.dtype, device)[..., ::step]
        if self.layout == "expanded":
            at = self.choice % len(self.shape)
            one = filled((*self.shape[:at], 1, *self.shape[at + 1 :]), self.dtype, device)
            return one.expand(self.shape)
        return filled(self.shape, self.dtype, device)


@dataclass(frozen=True)
class Join:
    """The arguments of one call."""

    inputs: tuple[Input, ...]
    dim: int

    def make(self, device: str) -> Call:
        """A call with operands of its own."""
        import torch

        return partial(torch.cat, [one.make(device) for one in self.inputs], self.dim)


def case(random: Random, device: str) -> Case | None:
    """A call, half of them as well-known models make it."""
    limit = MAX_ELEMENTS[device]
    model = random.random() < 0.5
    name, inputs, dim = _of_model(random, limit) if model else _drawn(random, limit)
    layout = "plain" if model and random.random() < 0.5 else random.choice((*LAYOUTS, "mixed"))
    base = random.choice(DTYPES)
    other = random.choice(("float32", "bfloat16")) if random.random() < 0.08 else base
    made = []
    for i, shape in enumerate(inputs):
        kind = random.choice(LAYOUTS) if layout == "mixed" else layout
        made.append(Input(shape, kind, random.randrange(1 << 16), other if i % 2 else base))
    elements = [math.prod(one.shape) for one in made]
    read = sum(n * ITEMSIZE[one.dtype] for n, one in zip(elements, made, strict=True))
    written = sum(elements) * max(ITEMSIZE[base], ITEMSIZE[other])
    first = ",".join(map(str, inputs[0]))
    what = f"{len(inputs)} x [{first}] d{dim}{' ragged' if len(set(inputs)) > 1 else ''}"
    return Case(
        op="cat",
        name=" ".join(filter(None, (name, what, layout, f"and {other}" if other != base else ""))),
        dtype=base,
        override="cat",
        make=Join(tuple(made), dim).make,
        bytes=read + written,
        footprint=read * (3 if layout in ("strided", "mixed") else 1),
        exact=True,
    )


def _of_model(random: Random, limit: int) -> tuple[str, list[Shape], int]:
    name, (first, rest, dim) = draw.entry(random, known_layers.CAT)
    per_row = math.prod(abs(n) for n in first) + math.prod(abs(n) for n in rest)
    batch = draw.log_uniform(random, 1, max(1, min(4096, limit // per_row)))
    sizes = [tuple(batch if n == -1 else n for n in shape) for shape in (first, rest)]
    return name, [sizes[0]] + [sizes[1]] * random.choice((1, 1, 1, 2, 3)), dim


def _drawn(random: Random, limit: int) -> tuple[str, list[Shape], int]:
    count = draw.log_uniform(random, 1, 1000) if random.random() < 0.3 else random.randint(1, 8)
    dims = random.choice((1, 2, 2, 3, 3, 4, 5))
    elements = draw.log_uniform(random, 8, max(8, limit // count))
    shape: list[int] = []
    for left in range(dims, 1, -1):
        at_most = max(1, round(elements ** (random.uniform(0.5, 1.5) / left)))
        shape.append(draw.log_uniform(random, 1, max(1, at_most)))
        elements = max(1, elements // shape[-1])
    shape.append(elements)
    random.shuffle(shape)
    dim = random.randrange(dims)
    shapes = [tuple(shape)] * count
    if random.random() < 0.3:  # ragged, a third of them one long input and short ones
        most = max(1, shape[dim] // random.choice((1, 1, count)))
        shapes = [(*shape[:dim], random.randint(1, most), *shape[dim + 1 :]) for _ in shapes]
        shapes[random.randrange(count)] = tuple(shape)
    return "", shapes, dim


def filled(shape: Shape, dtype: str, device: str) -> torch.Tensor:
    """Ones and zeros at random, which every dtype has."""
    import torch

    bits = torch.randint(0, 2, shape, device=device, dtype=torch.uint8)
    return bits.to(getattr(torch, dtype))
