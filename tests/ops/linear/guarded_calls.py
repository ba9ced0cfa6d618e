"""Linear layers between pages that may not be touched, on the CUDA kernel run on the CPU.

``python -m ops.linear.guarded_calls`` in tests/ makes them; started by test_on_host.py.
"""

from __future__ import annotations

import itertools

import torch

from guarded import guarded
from ops.linear.test_on_host import few_rows, load

# Rows of several remainders of 16 bytes, one stage of K and several, one block a tile and several.
SHAPES = [
    (1, 17, 33), (2, 24, 40), (5, 503, 65), (8, 1031, 640), (16, 2187, 31), (31, 258, 97), (64, 1543, 66),
    (40, 516, 10), (3, 4001, 7), (9, 1, 5),
    (1, 264, 33), (1, 1032, 67), (1, 4096, 5), (2, 520, 67), (3, 264, 35),  # dot products
]  # fmt: skip


def main() -> None:
    load()
    generator = torch.Generator().manual_seed(0)
    for (m, k, n), dtype, row_major, at_end in itertools.product(
        SHAPES, (torch.bfloat16, torch.float32), (False, True), (False, True)
    ):

        def matrix(
            rows: int, columns: int, dtype: torch.dtype = dtype, at_end: bool = at_end
        ) -> torch.Tensor:
            flat = torch.randn(rows * columns, generator=generator).to(dtype)
            return guarded(flat, at_end).view(rows, columns)

        mat1, bias = matrix(m, k), matrix(1, n)[0]
        mat2 = matrix(k, n) if row_major else matrix(n, k).t()
        out = matrix(m, n)
        few_rows(bias, mat1, mat2, out=out)
        expected = mat1.double() @ mat2.double() + bias.double()
        torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.02 * k**0.5)
    print("done")


if __name__ == "__main__":
    main()
