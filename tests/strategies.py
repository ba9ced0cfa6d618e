"""Hypothesis strategies that the tests of all overrides share."""

from __future__ import annotations

import hypothesis.strategies as st
import torch

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# One either side of a vector (4, 8 and 16 elements), of a cache line, of a chunk of a CUDA block (256 and
# 1024 elements in fp32, 512 and 2048 in 16-bit types) and of what one CPU thread takes.
EDGE_SIZES = sorted(
    {0, 1, 2} | {size + d for size in (4, 8, 16, 64, 256, 512, 1024, 2048, 8192) for d in (-1, 0, 1)}
)

sizes = st.one_of(st.sampled_from(EDGE_SIZES), st.integers(0, 5000))


def shapes(max_rank: int = 4, max_elements: int = 6000) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of rank 0 to ``max_rank``, empty and size-1 dimensions among them."""
    flat = sizes.map(lambda n: (n,))
    several = st.lists(st.one_of(st.integers(0, 3), st.integers(1, 20)), min_size=0, max_size=max_rank).map(
        tuple
    )
    return st.one_of(flat, several).filter(lambda s: torch.Size(s).numel() <= max_elements)
