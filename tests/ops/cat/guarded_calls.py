"""Calls of the CUDA kernels of cat, compiled for the CPU, on memory with forbidden pages around it.

``python -m ops.cat.guarded_calls CALLS SEED`` in tests/ makes that many; started by test_on_host.py.
"""

from __future__ import annotations

import random
import sys

import torch

import aten_ext
from device_on_host import library
from gpus import ARCHITECTURES, pretended
from guarded import guarded
from ops.cat.reference import FEW_MULTIPROCESSORS, KERNELS, NO_L2, NO_SMALL_CALLS, bits
from strategies import random_bits

DTYPES = (torch.uint8, torch.int16, torch.float32, torch.int64, torch.complex128)
KINDS = ["runs", "runs", "transposed", "strided", "narrowed", "expanded", "repeated"]


def main(calls: int, seed: int) -> None:
    """Exits by a signal where a kernel strays."""
    library.load("cat", *KERNELS)
    ops = torch.ops.aten_ext_on_host_cat
    choose = random.Random(seed)
    for call in range(calls):
        dtype = choose.choice(DTYPES)
        rows = choose.choice([1, 2, 3, 9, 33, 64, 203])
        mixed = choose.random() < 0.3
        kinds = choose.choice([KINDS, ["transposed"], ["narrowed"]])
        narrow = choose.random() < 0.3
        tensors = []
        for _ in range(choose.choice([1, 2, 3, 8, 90])):
            n = choose.choice([1, 2, 5, 7] if narrow else [1, 2, 7, 8, 9, 15, 16, 17, 31, 65, 333])
            kind = choose.choice(kinds)
            of = choose.choice([torch.bool, dtype]) if mixed else dtype
            strides = {
                "runs": (n, 1),
                "transposed": (1, rows),
                "strided": (2 * n, 2),
                "narrowed": (n + 3, 1),
                "expanded": (1, 0),
                "repeated": (0, 1),
            }[kind]
            # What the tensor reaches, and no more.
            size = 1 + (rows - 1) * strides[0] + (n - 1) * strides[1]
            flat = guarded(random_bits(size, of, call), choose.random() < 0.5)
            tensors.append(flat.as_strided((rows, n), strides))
        dim = choose.choice([0, 1]) if len({t.shape for t in tensors}) == 1 else 1
        with aten_ext.disabled():
            expected = torch.cat(tensors, dim)
        out = guarded(torch.zeros(expected.numel(), dtype=expected.dtype), choose.random() < 0.5)
        with pretended(
            choose.choice([ARCHITECTURES["sm_90"], FEW_MULTIPROCESSORS, NO_SMALL_CALLS, NO_L2]), ops.set_gpu
        ):
            torch.ops.aten_ext_on_host.cat.out(tensors, dim, out=out.view(expected.shape))
        assert torch.equal(bits(out), bits(expected)), f"call {call} of seed {seed}"
    print(f"{calls} calls")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
