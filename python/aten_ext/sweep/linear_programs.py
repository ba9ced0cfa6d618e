"""Random linear layers as programs call them: sequences, slices, gradients, ``out=``, beta and alpha."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from aten_ext.bench.case import ITEMSIZE, Call, Case
from aten_ext.sweep import draw
from aten_ext.sweep.linear import MAX_WEIGHT

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16")
WIDTHS = (
    128,
    256,
    384,
    512,
    768,
    896,
    1024,
    1152,
    1280,
    1536,
    1600,
    2048,
    2560,
    3072,
    3584,
    4096,
    5120,
    6144,
    8192,
)
CLASSES = (2, 10, 100, 1000, 4096, 32000, 50257, 128256, 151936)
PAD = 8
"""Columns of a matrix that a slice leaves out."""

Fill = Callable[..., "torch.Tensor"]
"""From sizes to random numbers in the call's dtype."""


def case(random: Random, device: str) -> Case | None:
    """A layer of up to 64 rows mostly. None: the operators are upstream's there."""
    if device != "cuda":
        return None
    kind = random.choice(tuple(KINDS))
    m, k, n = _sizes(random)
    dtype = random.choice(DTYPES)
    override, build = KINDS[kind]

    def make(device: str) -> Call:
        import torch

        return build(partial(torch.randn, device=device, dtype=getattr(torch, dtype)), m, k, n)

    size = (k * n + m * k + m * n + n) * ITEMSIZE[dtype]
    return Case(
        op="linear_programs",
        name=f"{kind} M={m} K={k} N={n}",
        dtype=dtype,
        override=override,
        make=make,
        bytes=size,
        footprint=size,
        flops=2 * m * n * k,
    )


def _sizes(random: Random) -> tuple[int, int, int]:
    """Rows, depth, columns."""
    width = random.choice(
        (draw.log_uniform(random, 16, 8192), 64 * random.randint(1, 128), random.choice(WIDTHS))
    )
    other = random.choice(
        (
            *(width * i for i in (1, 2, 3, 4)),
            max(1, width // 2),
            max(1, width // 4),
            (8 * width // 3 + 127) // 128 * 128,  # a gated layer's
            random.choice(CLASSES),
            draw.log_uniform(random, 1, 16384),
        )
    )
    k, n = (other, width) if random.random() < 0.3 else (width, other)
    if random.random() < 0.03:  # deeper than the tables
        k, n = draw.log_uniform(random, 1 << 14, 1 << 18), draw.log_uniform(random, 1, 512)
    while k * n > MAX_WEIGHT:
        n //= 2
    few = random.random() < 0.8
    rows = (random.randint(1, 64), random.randint(1, 16), draw.log_uniform(random, 1, 64))
    return random.choice(rows) if few else draw.log_uniform(random, 65, 2048), k, n


def _weight(fill: Fill, n: int, k: int) -> torch.Tensor:
    weight: torch.Tensor = fill(n, k) / k**0.5
    return weight


def _linear(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.nn.functional.linear, fill(m, k), _weight(fill, n, k), fill(n))


def _of_a_sequence(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    x = fill(2, m // 2, k) if m % 2 == 0 else fill(1, m, k)
    return partial(torch.nn.functional.linear, x, _weight(fill, n, k), fill(n))


def _without_bias(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.nn.functional.linear, fill(m, 1, k), _weight(fill, n, k))


def _last_step(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.nn.functional.linear, fill(m, 3, k)[:, -1], _weight(fill, n, k), fill(n))


def _slice(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.nn.functional.linear, fill(m, k + PAD)[:, PAD:], _weight(fill, n, k), fill(n))


def _part_of_a_weight(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(
        torch.nn.functional.linear, fill(m, k), _weight(fill, 3 * n, k)[n : 2 * n], fill(3 * n)[n : 2 * n]
    )


def _flat(fill: Fill, m: int, k: int, n: int) -> Call:
    """Operands that begin anywhere in a flat buffer."""
    import torch

    x, weight = fill(m * k + 1)[1:].view(m, k), (fill(n * k + 3) / k**0.5)[3:].view(n, k)
    return partial(torch.nn.functional.linear, x, weight, fill(n))


def _column(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.addmm, fill(m, 1), fill(m, k), _weight(fill, n, k).t())


def _rows(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.addmm, fill(n), fill(m, k), _weight(fill, k, n))


def _product(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.mm, fill(m, k), _weight(fill, k, n))


def _gradient_of_input(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.mm, fill(m, n), _weight(fill, n, k))


def _gradient_of_weight(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.mm, fill(m, n).t(), fill(m, k))


def _activation(gelu: bool, fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch._addmm_activation, fill(n), fill(m, k), _weight(fill, n, k).t(), use_gelu=gelu)


def _to_out(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.addmm, fill(n), fill(m, k), _weight(fill, n, k).t(), out=fill(m, n))


def _scaled(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.addmm, fill(n), fill(m, k), _weight(fill, n, k).t(), beta=0.5, alpha=2.0)


def _residual(fill: Fill, m: int, k: int, n: int) -> Call:
    import torch

    return partial(torch.addmm, fill(m, n), fill(m, k), _weight(fill, n, k).t())


KINDS: dict[str, tuple[str, Callable[[Fill, int, int, int], Call]]] = {
    "linear": ("addmm", _linear),
    "linear of a sequence": ("addmm", _of_a_sequence),
    "linear without a bias": ("mm", _without_bias),
    "linear of the last step": ("addmm", _last_step),
    "linear of a slice": ("addmm", _slice),
    "linear by a part of a weight": ("addmm", _part_of_a_weight),
    "linear of flat buffers": ("addmm", _flat),
    "addmm of a column": ("addmm", _column),
    "addmm row-major": ("addmm", _rows),
    "mm": ("mm", _product),
    "mm for the input's gradient": ("mm", _gradient_of_input),
    "mm for the weight's gradient": ("mm", _gradient_of_weight),
    "relu": ("_addmm_activation", partial(_activation, False)),
    "gelu": ("_addmm_activation", partial(_activation, True)),
    "addmm to out": ("addmm.out", _to_out),
    "addmm beta 0.5 alpha 2": ("addmm", _scaled),
    "addmm of a residual": ("addmm", _residual),
}
"""Kind -> the override that its calls reach, and what makes one."""
