"""Random calls of ``cat`` as programs make them: views of one tensor, caches, maps, features, steps.

Sizes are random; how the inputs lie in memory is what such a program's tensors do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from aten_ext.bench.case import Call, Case
from aten_ext.sweep import draw
from aten_ext.sweep.cat import ITEMSIZE, MAX_ELEMENTS, filled

if TYPE_CHECKING:
    import torch

ITEMSIZES = {**ITEMSIZE, "int32": 4, "int16": 2, "complex64": 8}
# Half of the calls of models are in 16 bits, and one in four is of none of the three.
DTYPES = ("float32", "bfloat16", "float16", "bfloat16", "float32", "float16", "", "")
OTHERS = ("float64", "int64", "int32", "int16", "uint8", "bool", "complex64")
HEADS, HEAD_SIZES = (1, 2, 4, 8, 12, 16, 32, 40), (40, 64, 80, 96, 128, 256)
SIDES = (7, 8, 14, 16, 28, 32, 56, 64)
"""Of maps of a convolutional network."""

Fill = Callable[..., "torch.Tensor"]
"""From sizes to a tensor of the call's dtype."""


@dataclass(frozen=True)
class Drawn:
    """What one call joins."""

    what: str
    elements: int
    """Of the result."""
    dim: int
    inputs: Callable[[Fill], Sequence[torch.Tensor]]


def case(random: Random, device: str) -> Case | None:
    """A call of one of the kinds of this module."""
    while True:
        drawn = random.choice(KINDS)(random)
        if 0 < drawn.elements <= MAX_ELEMENTS[device] // 2:
            break
    dtype = random.choice(DTYPES) or random.choice(OTHERS)

    def make(device: str) -> Call:
        import torch

        return partial(torch.cat, list(drawn.inputs(lambda *sizes: filled(sizes, dtype, device))), drawn.dim)

    size = drawn.elements * ITEMSIZES[dtype]
    return Case(
        op="cat_programs",
        name=drawn.what,
        dtype=dtype,
        override="cat",
        make=make,
        bytes=2 * size,
        footprint=2 * size,
        exact=True,
    )


def _key_cache(random: Random) -> Drawn:
    """Keys of earlier tokens and of new ones; a projection made those, [rows, new, heads, size]."""
    rows, heads, size = draw.log_uniform(random, 1, 64), random.choice(HEADS), random.choice(HEAD_SIZES)
    before, new = draw.log_uniform(random, 1, 4096), random.choice((1, 1, 1, draw.log_uniform(random, 1, 64)))
    room = random.choice((0, 0, 37))  # the cache is the beginning of a longer one

    def inputs(fill: Fill) -> list[torch.Tensor]:
        cache = fill(rows, heads, before + room, size)[:, :, :before]
        return [cache, fill(rows, new, heads, size).transpose(1, 2)]

    elements = rows * heads * (before + new) * size
    return Drawn(f"key cache [{rows},{heads},{before}+{new},{size}] room {room}", elements, 2, inputs)


def _rotary_halves(random: Random) -> Drawn:
    """``rotate_half`` of a rotary embedding: the halves of a head change places."""
    rows, heads = draw.log_uniform(random, 1, 64), random.choice(HEADS)
    length, size = draw.log_uniform(random, 1, 2048), random.choice(HEAD_SIZES)
    swapped = random.random() < 0.5

    def inputs(fill: Fill) -> list[torch.Tensor]:
        x = fill(rows, length, heads, size)
        x = x.transpose(1, 2) if swapped else x
        return [x[..., size // 2 :], x[..., : size // 2]]

    what = f"rotary halves [{rows},{length},{heads},{size}]{' transposed' if swapped else ''}"
    return Drawn(what, rows * length * heads * size, -1, inputs)


def _skip_connection(random: Random) -> Drawn:
    """Maps of a U-Net, each by itself channels-last or not."""
    import torch

    rows, side = draw.log_uniform(random, 1, 64), random.choice(SIDES)
    channels = [draw.log_uniform(random, 3, 640) for _ in range(2)]
    last = [random.random() < 0.65 for _ in channels]

    def inputs(fill: Fill) -> list[torch.Tensor]:
        formats = [torch.channels_last if one else torch.contiguous_format for one in last]
        maps = [fill(rows, n, side, side) for n in channels]
        return [x.contiguous(memory_format=one) for x, one in zip(maps, formats, strict=True)]

    what = f"maps [{rows},{'+'.join(map(str, channels))},{side},{side}] channels last {last}"
    return Drawn(what, rows * sum(channels) * side * side, 1, inputs)


def _dense_block(random: Random) -> Drawn:
    """What a DenseNet's layer reads: the block's input and all layers' maps."""
    rows, side = draw.log_uniform(random, 1, 32), random.choice(SIDES)
    first, growth = random.choice((24, 64, 128, 256)), random.choice((12, 24, 32, 48))
    layers = draw.log_uniform(random, 1, 24)

    def inputs(fill: Fill) -> list[torch.Tensor]:
        return [fill(rows, n, side, side) for n in (first, *[growth] * layers)]

    elements = rows * (first + layers * growth) * side * side
    return Drawn(f"dense block [{rows},{first}+{layers}x{growth},{side},{side}]", elements, 1, inputs)


def _numbers(random: Random) -> Drawn:
    """Losses or counts of many steps."""
    count, size = draw.log_uniform(random, 1, 1500), random.choice((1, 1, 2, 3, 7))
    return Drawn(f"{count} x [{size}]", count * size, 0, lambda fill: [fill(size) for _ in range(count)])


def _steps(random: Random) -> Drawn:
    """``stack`` of a recurrent loop's steps, made one by one or parts of one tensor."""
    count, rows = draw.log_uniform(random, 2, 300), draw.log_uniform(random, 1, 256)
    hidden, dim, parts = draw.log_uniform(random, 1, 1024), random.randrange(3), random.random() < 0.5

    def inputs(fill: Fill) -> list[torch.Tensor]:
        made = fill(rows, count, hidden).unbind(1) if parts else [fill(rows, hidden) for _ in range(count)]
        return [x.unsqueeze(dim) for x in made]

    what = f"stack of {count} x [{rows},{hidden}] d{dim}{' of one tensor' if parts else ''}"
    return Drawn(what, count * rows * hidden, dim, inputs)


def _features(random: Random) -> Drawn:
    """A recommender's features: columns of any width."""
    rows = draw.log_uniform(random, 1, 65536)
    widths = [draw.log_uniform(random, 1, 200) for _ in range(random.randint(2, 40))]
    what = f"{len(widths)} features of [{rows}], {max(widths)} at most, {sum(widths)} in all"
    return Drawn(what, rows * sum(widths), 1, lambda fill: [fill(rows, n) for n in widths])


def _broadcast(random: Random) -> Drawn:
    """A row's or a position's vector beside each token's."""
    rows, length = draw.log_uniform(random, 1, 256), draw.log_uniform(random, 1, 1024)
    one, other = (draw.log_uniform(random, 1, 512) for _ in range(2))
    of_row = random.random() < 0.5

    def inputs(fill: Fill) -> list[torch.Tensor]:
        shared = fill(rows, 1, one) if of_row else fill(1, length, one)
        both = [shared.expand(rows, length, one), fill(rows, length, other)]
        return both if of_row else both[::-1]

    what = f"a {'row' if of_row else 'position'}'s {one} beside [{rows},{length},{other}]"
    return Drawn(what, rows * length * (one + other), 2, inputs)


def _directions(random: Random) -> Drawn:
    """Both directions of a recurrent layer, the second one turned round."""
    length, rows = draw.log_uniform(random, 1, 1000), draw.log_uniform(random, 1, 256)
    hidden = draw.log_uniform(random, 1, 1024)

    def inputs(fill: Fill) -> list[torch.Tensor]:
        both = fill(length, rows, 2, hidden)
        return [both[:, :, 0], both[:, :, 1].flip(0)]

    return Drawn(f"two directions [{length},{rows},{hidden}]", 2 * length * rows * hidden, 2, inputs)


def _transposed(random: Random) -> Drawn:
    """Matrices, some of them transposed."""
    count, rows, columns = random.randint(1, 8), *(draw.log_uniform(random, 1, 4096) for _ in range(2))
    turned, dim = random.randrange(2), random.randrange(2)

    def inputs(fill: Fill) -> list[torch.Tensor]:
        return [fill(columns, rows).t() if i % 2 == turned else fill(rows, columns) for i in range(count)]

    return Drawn(
        f"{count} x [{rows},{columns}] d{dim}, every other one transposed",
        count * rows * columns,
        dim,
        inputs,
    )


def _permuted(random: Random) -> Drawn:
    """Inputs whose dimensions all lie in one other order."""
    sizes, count = [draw.log_uniform(random, 1, 40) for _ in range(4)], random.randint(2, 8)
    order, dim = random.sample(range(4), 4), random.randrange(4)

    def inputs(fill: Fill) -> list[torch.Tensor]:
        stored = [sizes[i] for i in order]
        return [fill(*stored).permute([order.index(i) for i in range(4)]) for _ in range(count)]

    return Drawn(f"{count} x {sizes} d{dim} in order {order}", count * math.prod(sizes), dim, inputs)


def _chunks(random: Random) -> Drawn:
    """The halves of a gate, or of a batch, joined again."""
    rows, width, dim = *(draw.log_uniform(random, 1, 4096) for _ in range(2)), random.randrange(2)
    what = f"halves of [{rows},2x{width}] d{dim}"
    return Drawn(what, 2 * rows * width, dim, lambda fill: list(fill(rows, 2 * width).chunk(2, 1)))


def _narrowed(random: Random) -> Drawn:
    """Matrices without their first columns."""
    sizes, count = [draw.log_uniform(random, 1, 128) for _ in range(3)], random.randint(2, 5)
    off, dim = random.randint(1, 3), random.randrange(3)

    def inputs(fill: Fill) -> list[torch.Tensor]:
        return [fill(*sizes[:2], sizes[2] + off)[..., off:] for _ in range(count)]

    return Drawn(f"{count} x {sizes} d{dim} without the first {off}", count * math.prod(sizes), dim, inputs)


def _grown(random: Random) -> Drawn:
    """A list that begins with ``torch.empty(0)``."""
    rows, columns = draw.log_uniform(random, 1, 256), draw.log_uniform(random, 1, 4096)
    count, dim = random.randint(1, 20), random.randrange(2)

    def inputs(fill: Fill) -> list[torch.Tensor]:
        return [fill(0), *(fill(rows, columns) for _ in range(count))]

    return Drawn(f"[0] and {count} x [{rows},{columns}] d{dim}", count * rows * columns, dim, inputs)


KINDS = (
    _key_cache,
    _rotary_halves,
    _skip_connection,
    _dense_block,
    _numbers,
    _steps,
    _features,
    _broadcast,
    _directions,
    _transposed,
    _permuted,
    _chunks,
    _narrowed,
    _grown,
)
