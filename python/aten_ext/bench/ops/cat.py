"""Cases of ``cat``: every layout, from two tensors of a decoding step to ten thousand.

Nothing is computed: each element is read once and written once, converted where dtypes differ. What the
strides of an input skip is not counted, though memory moves it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from aten_ext.bench.case import ITEMSIZE, Call, Case

if TYPE_CHECKING:
    import torch

_ITEMSIZE = ITEMSIZE | {"int64": 8, "int32": 4, "int16": 2, "uint8": 1, "bool": 1, "complex64": 8}

Shape = tuple[int, ...]
BOTH = ("float32", "bfloat16")


@dataclass(frozen=True)
class Join:
    """The arguments of one call."""

    name: str
    shapes: tuple[Shape, ...]
    """Of the inputs."""
    dim: int
    dtype: str = "float32"
    """Of the result, and of every input that ``dtypes`` does not name."""
    layout: str = "contiguous"
    """What each input is: see ``_input``."""
    dtypes: tuple[str, ...] = ()
    """Of the first inputs, where they differ."""
    out: bool = False
    """Whether the result is given."""
    series: str = ""
    """Of which line in the plot against the bytes of a slice."""

    def case(self) -> Case:
        """The call as a case."""
        elements = [math.prod(shape) for shape in self.shapes]
        dtypes = [*self.dtypes, *[self.dtype] * len(self.shapes)][: len(self.shapes)]
        read = sum(n * _ITEMSIZE[dtype] for n, dtype in zip(elements, dtypes, strict=True))
        written = sum(elements) * _ITEMSIZE[self.dtype]
        first = self.shapes[0]
        slice_ = math.prod(first[self.dim :]) if self.layout == "contiguous" else first[self.dim]
        return Case(
            op="cat",
            name=self.name,
            dtype=self.dtype,
            override="cat.out" if self.out else "cat",
            make=partial(_make, self, tuple(dtypes)),
            bytes=read + written,
            footprint=read * (2 if self.layout == "strided" else 1) + written * self.out,
            sizes={"slice_bytes": slice_ * _ITEMSIZE[dtypes[0]]},
            series=self.series,
        )


def cases(device: str, full: bool) -> list[Case]:
    """The calls that upstream is far from the limit of memory on, and those that it is good at."""
    joins = _cpu() if device == "cpu" else _gpu()
    if full:
        joins += _cpu_sweep() if device == "cpu" else _gpu_sweep()
    return [join.case() for join in joins]


def _in_dtypes(joins: list[Join], dtypes: tuple[str, ...] = BOTH) -> list[Join]:
    return [replace(join, dtype=dtype) for join in joins for dtype in dtypes]


def _many(
    count: int, shape: Shape, dim: int, name: str = "", *, dtype: str = "float32", layout: str = "contiguous"
) -> Join:
    size = ",".join(map(str, shape))
    return Join(f"{name or f'{count} x [{size}]'} d{dim}", (shape,) * count, dim, dtype, layout)


def _ragged(count: int, most: int, width: int) -> Join:
    """Lengths from 1 to ``most`` in no order (the factor is 2^32 divided by the golden ratio)."""
    shapes = tuple((1 + i * 2654435761 % most, width) for i in range(count))
    return Join(f"ragged {count} x [1..{most},{width}] d0", shapes, 0)


def _gpu() -> list[Join]:
    """Lengths of runs, alignments, layouts and numbers of inputs, each where it hurts upstream."""
    return [
        *_in_dtypes(
            [
                _many(2, (4096, 4096), 0),
                _many(2, (4096, 4096), 1),
                Join("decode [1,1,512]+[1,1,256] d2", ((1, 1, 512), (1, 1, 256)), 2),
                Join("unaligned [16384,333]+[16384,65] d1", ((16384, 333), (16384, 65)), 1),
                _many(4, (4096, 1024), 1, "transposed 4 x [4096,1024].T", layout="transposed"),
                _many(4, (32, 64, 56, 56), 1, "channels_last 4 x [32,64,56,56]", layout="channels_last"),
                _many(1000, (64, 16), 1),
                _many(10000, (37,), 0),
                _ragged(512, 4096, 64),
            ]
        ),
        Join("mixed bf16+fp32 2 x [4096,1024] d1", ((4096, 1024),) * 2, 1, dtypes=("bfloat16",)),
        _many(300, (64, 512), 0, "strided by 2, 300 x [64,512]", layout="strided"),
        _many(3, (4, 8, 16, 32, 32, 16), 3),
    ]


def _gpu_sweep() -> list[Join]:
    joins = [
        _many(2, (16384, 8192), 1),
        Join("attention [32,50,512]+[32,50,1024] d2", ((32, 50, 512), (32, 50, 1024)), 2),
        Join("kv cache [8,32,2047,128]+[8,32,1,128] d2", ((8, 32, 2047, 128), (8, 32, 1, 128)), 2),
        _many(2, (8, 32, 2048, 64), 3, "rotary 2 x [8,32,2048,64]"),
        _many(100, (1, 128), 0),
        _many(1000, (4096, 16), 1, "embeddings 1000 x [4096,16]"),
        _many(2, (1, 4096), 0, "decode 2 x [1,4096]"),
        _many(2, (32, 1, 128), 1, "decode 2 x [32,1,128]"),
        Join("decode kv [1,8,512,128]+[1,8,1,128] d2", ((1, 8, 512, 128), (1, 8, 1, 128)), 2),
        _many(8, (1, 1024), 0, "decode 8 x [1,1024]"),
        _many(2, (4095, 4097), 1, "odd 2 x [4095,4097]"),
        Join("one large among small, 1000 x [100] + [8388608] d0", ((100,),) * 1000 + ((1 << 23,),), 0),
        _many(64, (128, 7), 1),
        _many(5000, (64, 16), 1),
        _many(4, (8, 32, 32, 32, 32), 1, "channels_last_3d 4 x [8,32,32,32,32]", layout="channels_last"),
        _many(3, (32, 64, 56, 56), 0, "channels_last 3 x [32,64,56,56]", layout="channels_last"),
        _many(2, (64, 1024, 256), 2, "batched transpose 2 x [64,1024,256]", layout="transposed"),
        _many(2, (2, 3, 4, 5, 6, 7, 8, 512), 7, "8-D 2 x [2,3,4,5,6,7,8,512]"),
        _many(2, (4096, 2048), 1, "offset by one element, 2 x [4096,2048]", layout="offset"),
        _many(2, (4096, 2048), 1, "rows apart, 2 x [4096,2048]", layout="padded"),
        _many(16, (1 << 20,), 0),
    ]
    # The rate against the length of a slice: 32 MiB from each of two inputs, in and out of step.
    for size in (16, 32, 64, 128, 256, 512, 1024, 4096, 16384, 65536):
        columns = size // 4
        rows = (1 << 23) // columns
        aligned = _many(2, (rows, columns), 1, f"slices of {size} bytes")
        odd = _many(2, (rows, columns + 1), 1, f"slices of {size} bytes and one element")
        joins += [replace(aligned, series="multiples of 16 bytes"), replace(odd, series="one element more")]
    swept = _in_dtypes(joins)
    swept += _in_dtypes(
        [
            _many(2, (4096, 4096), 1),
            _many(1000, (64, 16), 1),
            Join("unaligned [16384,333]+[16384,65] d1", ((16384, 333), (16384, 65)), 1),
            _many(4, (4096, 1024), 1, "transposed 4 x [4096,1024].T", layout="transposed"),
        ],
        ("float64", "float16", "uint8", "int64", "complex64"),
    )
    swept += [
        replace(_many(2, (4096, 4096), 1, "out= 2 x [4096,4096]"), out=True),
        replace(_many(1000, (64, 16), 1, "out= 1000 x [64,16]"), out=True),
        Join("mixed int64+fp32 2 x [4096,1024] d1", ((4096, 1024),) * 2, 1, dtypes=("int64",)),
        Join("mixed bool+int64 2 x [4096,1024] d1", ((4096, 1024),) * 2, 1, "int64", dtypes=("bool",)),
        Join("mixed fp16+fp32 100 x [64,100] d1", ((64, 100),) * 100, 1, dtypes=("float16",) * 50),
        Join("mixed bf16+fp32 2 x [1,128] d1", ((1, 128),) * 2, 1, dtypes=("bfloat16",)),
        Join(
            "mixed and transposed 2 x [4096,1024].T d1",
            ((4096, 1024),) * 2,
            1,
            layout="transposed",
            dtypes=("bfloat16",),
        ),
    ]
    return swept


def _cpu() -> list[Join]:
    """Where upstream sets up an iterator for each input, and the call that has to lose nothing."""
    return [
        _many(1000, (37,), 0),
        _many(1000, (64, 4), 1),
        _many(1000, (16,), 0, dtype="int64"),
        _many(1000, (1, 8), 1, dtype="int64"),
        _many(2, (8, 128), 1, "token ids 2 x [8,128]", dtype="int64"),
        Join("decode [1,1,512]+[1,1,256] d2", ((1, 1, 512), (1, 1, 256)), 2),
    ]


def _cpu_sweep() -> list[Join]:
    joins = [
        _many(count, shape, dim, dtype=dtype)
        for count in (2, 8, 32, 63, 64, 100, 256, 1000)
        for shape, dim in (((4,), 0), ((128,), 0), ((512,), 0), ((4, 8), 1), ((8, 16), 1), ((64, 16), 1))
        for dtype in ("float32", "bfloat16", "int64")
    ]
    joins += [
        _many(10000, (37,), 0),
        replace(_many(1000, (37,), 0, "out= 1000 x [37]"), out=True),
        replace(_many(200, (2, 4, 2, 2), 1, "channels_last 200 x [2,4,2,2]"), layout="channels_last"),
        _many(2, (1, 1), 1, "token ids 2 x [1,1]", dtype="int64"),
        _many(2, (1, 2048), 1, "token ids 2 x [1,2048]", dtype="int64"),
        Join("token ids [8,511]+[8,1] d1", ((8, 511), (8, 1)), 1, "int64"),
        _many(2, (8, 512), 1, "masks 2 x [8,512]", dtype="bool"),
        Join("skipped [0] + 100 x [4,32] d1", ((0,), *((4, 32),) * 100), 1),
        _many(2, (1024, 1024), 0),
        _many(2, (1024, 1024), 1),
    ]
    known = {join.case().label for join in _cpu()}
    return [join for join in joins if join.case().label not in known]


def _make(join: Join, dtypes: tuple[str, ...], device: str) -> Call:
    """A call with operands of its own."""
    import torch

    inputs = [
        _input(join.layout, shape, getattr(torch, dtype), device)
        for shape, dtype in zip(join.shapes, dtypes, strict=True)
    ]
    if join.out:
        return partial(torch.cat, inputs, join.dim, out=torch.cat(inputs, join.dim))
    return partial(torch.cat, inputs, join.dim)


def _input(layout: str, shape: Shape, dtype: torch.dtype, device: str) -> torch.Tensor:
    """One input, with a storage of its own; zeros, whose copying takes as long as any other values'."""
    import torch

    zeros = partial(torch.zeros, dtype=dtype, device=device)
    if layout == "transposed":  # the last two dimensions
        return zeros((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)
    if layout == "channels_last":
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return zeros(shape).to(memory_format=formats[len(shape)])
    if layout == "strided":  # every second element of the last dimension
        return zeros((*shape[:-1], 2 * shape[-1]))[..., ::2]
    if layout == "offset":
        return zeros(math.prod(shape) + 1)[1:].view(shape)
    if layout == "padded":  # rows that do not follow each other
        return zeros((*shape[:-1], shape[-1] + 8))[..., :-8]
    return zeros(shape)
