"""Hypothesis strategies that the tests of all overrides share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, settings

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# One either side of a vector (4, 8 and 16 elements), of a cache line, of a chunk of a CUDA block (256 and
# 1024 elements in fp32, 512 and 2048 in 16-bit types) and of what one CPU thread takes.
EDGE_SIZES = sorted(
    {0, 1, 2} | {size + d for size in (4, 8, 16, 64, 256, 512, 1024, 2048, 8192) for d in (-1, 0, 1)}
)

fixture_is_fine = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
"""For tests of ``cat``: a fixture, ``device``, that examples do not change, and inputs that take a while."""

sizes = st.one_of(st.sampled_from(EDGE_SIZES), st.integers(0, 5000))


def shapes(max_rank: int = 4, max_elements: int = 6000) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of rank 0 to ``max_rank``, empty and size-1 dimensions among them."""
    flat = sizes.map(lambda n: (n,))
    several = st.lists(st.one_of(st.integers(0, 3), st.integers(1, 20)), min_size=0, max_size=max_rank).map(
        tuple
    )
    return st.one_of(flat, several).filter(lambda s: torch.Size(s).numel() <= max_elements)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How one input of ``cat`` lies in memory."""

    order: tuple[int, ...]
    """Dimensions from the outermost in memory to the innermost."""
    offset: int = 0
    """Elements before the first."""
    steps: tuple[int, ...] = ()
    """Every how many elements one of the tensor, dimension by dimension; 0 for an expanded dimension."""
    pad: int = 0
    """Elements between two rows of the innermost dimension."""

    def make(self, shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
        """A tensor of random bits, NaNs of all kinds among them."""
        steps = self.steps or (1,) * len(shape)
        strides = [0] * len(shape)
        stride = 1
        for position, d in enumerate(reversed(self.order)):
            strides[d] = stride * steps[d]
            stride *= max(1, (shape[d] if steps[d] else 1) * max(1, steps[d]))
            stride += self.pad if position == 0 else 0
        storage = random_bits(stride + self.offset, dtype, seed).to(device)
        return storage.as_strided(shape, strides, self.offset)


def random_bits(numel: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """[numel] of dtype, every bit random (0 and 1 for bool)."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (numel,), generator=generator).bool()
    size = torch.empty((), dtype=dtype).element_size()
    return torch.randint(0, 256, (numel * size,), generator=generator, dtype=torch.uint8).view(dtype)


@dataclasses.dataclass(frozen=True)
class Concatenation:
    """The inputs of one call of ``cat``."""

    shapes: tuple[tuple[int, ...], ...]
    dim: int
    layouts: tuple[Layout, ...]
    dtypes: tuple[torch.dtype, ...]
    seed: int
    shared: bool = False
    """Whether the first input stands in the list a second time, as the last."""

    def make(self, device: str) -> list[torch.Tensor]:
        """The tensors."""
        tensors = [
            layout.make(shape, dtype, device, self.seed + i)
            for i, (shape, layout, dtype) in enumerate(
                zip(self.shapes, self.layouts, self.dtypes, strict=True)
            )
        ]
        return [*tensors, tensors[0]] if self.shared else tensors


# Lengths about those at which a kernel changes its way: a 16-byte vector of any dtype, a tile of a transpose,
# a warp, a block.
CAT_SIZES = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 300)


@st.composite
def layouts(draw: st.DrawFn, rank: int, plain: bool | None = None) -> Layout:
    """Every order of dimensions, offsets, steps and expanded dimensions; or, if ``plain``, none of that."""
    if plain if plain is not None else draw(st.booleans()):
        return Layout(tuple(range(rank)), draw(st.sampled_from([0, 0, 1, 3, 8])))
    order = tuple(draw(st.permutations(range(rank))))
    steps = tuple(draw(st.sampled_from([1, 1, 1, 1, 2, 3, 0])) for _ in range(rank))
    return Layout(order, draw(st.integers(0, 9)), steps, draw(st.sampled_from([0, 0, 1, 8])))


@st.composite
def concatenations(
    draw: st.DrawFn,
    dtypes: Sequence[torch.dtype],
    *,
    mixed: bool = False,
    plain: bool | None = None,
    min_inputs: int = 1,
    max_inputs: int = 7,
    max_elements: int = 12000,
) -> Concatenation:
    """Calls of ``cat`` of rank 1 to 8.

    Args:
        draw: hypothesis's.
        dtypes: what to draw from, once for all inputs or, if ``mixed``, for each.
        mixed: see above.
        plain: whether all inputs are contiguous; None: some.
        min_inputs: the fewest inputs.
        max_inputs: the most.
        max_elements: of the result.
    """
    rank = draw(st.integers(1, 8))
    count = draw(st.integers(min_inputs, max_inputs))
    axis = draw(st.integers(0, rank - 1))
    small = st.integers(1, 3) if rank > 3 else st.one_of(st.integers(0, 3), st.sampled_from(CAT_SIZES))
    common = [draw(small) for _ in range(rank)]
    along = [draw(st.one_of(st.integers(0, 4), st.sampled_from(CAT_SIZES))) for _ in range(count)]
    # Too large: shorten the longest.
    while math.prod(n for d, n in enumerate(common) if d != axis) * sum(along) > max_elements:
        if max(along) * count >= max(common):
            along = [n // 2 for n in along]
        else:
            common[common.index(max(common))] //= 2
    shapes_ = [(*common[:axis], n, *common[axis + 1 :]) for n in along]
    layouts_ = [draw(layouts(rank, plain)) for _ in range(count)]
    one = draw(st.sampled_from(list(dtypes)))
    chosen = [draw(st.sampled_from(list(dtypes))) if mixed else one for _ in range(count)]
    if draw(st.integers(0, 5)) == 0:  # the inputs that cat skips, whatever their rank
        at = draw(st.integers(0, count))
        shapes_.insert(at, (0,))
        layouts_.insert(at, Layout((0,)))
        chosen.insert(at, one)
    return Concatenation(
        shapes=tuple(shapes_),
        dim=axis - rank if draw(st.booleans()) else axis,
        layouts=tuple(layouts_),
        dtypes=tuple(chosen),
        seed=draw(st.integers(0, 2**16)),
        shared=draw(st.integers(0, 4)) == 0,
    )
