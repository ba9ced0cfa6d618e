"""addmm, mm and _addmm_activation on a GPU against upstream and float64, over what hypothesis finds."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from ops.linear.cases import FAST, HALF, Linear

# One either side of tile heights; of 32 and 64 columns; of a stage of K in bytes (256), several, many.
ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64]
COLUMNS = [1, 2, 7, 8, 31, 32, 33, 63, 64, 65, 128, 1000, 4104]
DEPTHS = [8, 16, 56, 64, 72, 120, 128, 136, 512, 1032, 2048]


@st.composite
def linears(draw: st.DrawFn) -> Linear:
    """Calls that the kernel takes."""
    transposed = draw(st.booleans())
    m = draw(st.one_of(st.sampled_from(ROWS), st.integers(1, 64)))
    n = draw(st.one_of(st.sampled_from(COLUMNS), st.integers(1, 700)))
    if not transposed:
        n = -(-n // 8) * 8  # whole vectors of 16 bytes
    return Linear(
        m=m,
        n=n,
        k=draw(st.one_of(st.sampled_from(DEPTHS), st.integers(1, 200).map(lambda i: 8 * i))),
        dtype=draw(st.sampled_from([torch.float32, *HALF])),
        transposed=transposed,
        bias_shape=draw(st.sampled_from([(), (1,), (n,), (1, n), (m, 1), (m, n)])),
        pad=draw(st.sampled_from([0, 8, 64])),
        alpha=draw(st.sampled_from([1.0, 0.5, -3.0])),
        beta=draw(st.sampled_from([1.0, 0.0, -0.25])),
        use_gelu=draw(st.booleans()),
        seed=draw(st.integers(0, 3)),
    )


@pytest.mark.gpu
@given(case=linears(), name=st.sampled_from(FAST))
def test_parity(case: Linear, name: str) -> None:
    case.compare(name)
