"""Long sequences in chunks: the same bits in less memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from device_on_host import library
from gpus import GPUS, pretended
from ops.rnn.cases import GRU, LSTM, RELU, TANH, new_module, tf32_allowed
from ops.rnn.on_host_cases import TF32_TOLERANCE, TOLERANCE, load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

MIB = 1 << 20
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.fixture
def no_tf32() -> Iterator[None]:
    with tf32_allowed(False):
        yield


class Layers:
    """A stack, its input and its state; runs it in chunks."""

    def __init__(
        self,
        dtype: torch.dtype,
        hidden: int,
        batch: int,
        steps: int,
        *,
        layers: int = 1,
        inputs: int = 8,
        mode: int = GRU,
    ) -> None:
        """Both directions, in one of them backwards in time."""
        torch.manual_seed(hidden + batch)
        # Large states: what is lost between two chunks would be seen.
        self.mode = mode
        module = new_module(mode, inputs, hidden, layers, bidirectional=True)
        self.module = module.to(dtype).requires_grad_(False)
        self.x = torch.randn(steps, batch, inputs).to(dtype)
        self.h = (3 * torch.randn(2 * layers, batch, hidden)).to(dtype)
        self.c = (3 * torch.randn(2 * layers, batch, hidden)).to(dtype) if mode == LSTM else None

    def run(
        self,
        ops: Any,
        chunk: int,
        x: torch.Tensor | None = None,
        batch_first: bool = False,
        batch_sizes: Sequence[int] = (),
    ) -> Any:
        """The plan's words, y, hy, and of an LSTM cy."""
        module = self.module
        results = ops.in_chunks(
            self.x if x is None else x,
            module._flat_weights,
            self.h,
            self.c,
            self.mode,
            module.hidden_size,
            module.num_layers,
            batch_first,
            True,
            batch_sizes,
            chunk,
        )
        return results if self.mode == LSTM else results[:3]


# Every kind of kernel: a part of the plan's words, dtype, hidden size, rows, TF32 allowed.
KERNELS = [
    ("each a block, fp32 multiply-adds", FP32, 40, 3, False),
    ("each a block, fp32 multiply-adds", BF16, 40, 3, False),
    ("each a block, fp32 multiply-adds", FP16, 128, 2, False),
    ("each a cluster of 8 blocks, fp32 multiply-adds", FP32, 132, 2, False),
    ("each a cluster of 8 blocks, fp32 multiply-adds", FP16, 132, 2, False),
    ("each a cluster of 8 blocks, tensor cores", BF16, 132, 17, False),
    ("each a cluster of 8 blocks, TF32 tensor cores", FP32, 196, 20, True),
    ("each a cluster of 16 blocks, tensor cores", FP16, 260, 2, False),
    ("over the GPU, fp32 multiply-adds", FP32, 514, 1, False),
    ("over the GPU, TF32 tensor cores", FP32, 260, 20, True),
    ("over the GPU, tensor cores", BF16, 642, 2, False),
]

OTHER_CELLS = [
    (LSTM, "each a block, fp32 multiply-adds", FP32, 64, 3, False),
    (LSTM, "each a block, fp32 multiply-adds", BF16, 40, 140, False),
    (LSTM, "each a cluster of 2 blocks, fp32 multiply-adds", FP16, 100, 2, False),
    (LSTM, "each a cluster of 8 blocks, tensor cores", BF16, 132, 17, False),
    (LSTM, "each a cluster of 8 blocks, TF32 tensor cores", FP32, 196, 20, True),
    (LSTM, "over the GPU, fp32 multiply-adds", FP32, 514, 1, False),
    (LSTM, "over the GPU, TF32 tensor cores", FP32, 260, 20, True),
    (LSTM, "over the GPU, tensor cores", BF16, 642, 2, False),
    (TANH, "each a block, fp32 multiply-adds", BF16, 40, 3, False),
    (RELU, "each a cluster of 16 blocks, tensor cores", FP16, 260, 2, False),
]


@pytest.mark.parametrize(("words", "dtype", "hidden", "batch", "tf32"), KERNELS)
def test_same_bits_in_chunks(
    ops: Any, words: str, dtype: torch.dtype, hidden: int, batch: int, tf32: bool
) -> None:
    """Between two launches the state is kept as the kernel has it, in fp32."""
    steps = 7
    layers = Layers(dtype, hidden, batch, steps)
    with tf32_allowed(tf32):
        plan, y, hy = layers.run(ops, steps)
        assert plan.endswith(words), plan
        for chunk in (1, 2, 3, 6):
            in_chunks, y_in_chunks, hy_in_chunks = layers.run(ops, chunk)
            assert in_chunks == f"{plan}, {chunk} steps at a time"
            assert torch.equal(y_in_chunks, y), chunk
            assert torch.equal(hy_in_chunks, hy), chunk


@pytest.mark.long
@pytest.mark.parametrize(("mode", "words", "dtype", "hidden", "batch", "tf32"), OTHER_CELLS)
def test_other_cells_in_chunks(
    ops: Any, mode: int, words: str, dtype: torch.dtype, hidden: int, batch: int, tf32: bool
) -> None:
    """The LSTM's cell state is kept in fp32 too."""
    layers = Layers(dtype, hidden, batch, 5, mode=mode)
    with tf32_allowed(tf32):
        plan, *results = layers.run(ops, 5)
        assert plan.endswith(words), plan
        assert len(results) == (3 if mode == LSTM else 2)
        for chunk in (2, 4):
            for whole, in_chunks in zip(results, layers.run(ops, chunk)[1:], strict=True):
                assert torch.equal(whole, in_chunks), chunk


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "words", "dtype", "hidden", "batch", "tf32"), [*((GRU, *k) for k in KERNELS), *OTHER_CELLS]
)
def test_packed_sequences(
    ops: Any, mode: int, words: str, dtype: torch.dtype, hidden: int, batch: int, tf32: bool
) -> None:
    """Rows retire, or begin, within a chunk and between two: every kernel, against float64."""
    steps = 6
    layers = Layers(dtype, hidden, batch, steps, mode=mode)
    lengths = [steps] + [1 + (batch - 1 - i) * (steps - 1) // batch for i in range(1, batch)]
    packed = pack_padded_sequence(layers.x, torch.tensor(lengths))
    sizes = packed.batch_sizes.tolist()
    with tf32_allowed(tf32):
        plan, *results = layers.run(ops, steps, packed.data, batch_sizes=sizes)
        assert words in plan and ("padded" in plan) == (len(set(lengths)) > 1), plan
        for chunk in (1, 4):
            in_chunks = layers.run(ops, chunk, packed.data, batch_sizes=sizes)[1:]
            assert all(torch.equal(a, b) for a, b in zip(results, in_chunks, strict=True)), chunk
    module = layers.module.double()
    states = [s.double() for s in (layers.h, layers.c) if s is not None]
    y, after = module(
        packed._replace(data=packed.data.double()), tuple(states) if layers.c is not None else states[0]
    )
    exact = [y.data, *(after if isinstance(after, tuple) else (after,))]
    for ours, truth in zip(results, exact, strict=True):
        allowed = (TF32_TOLERANCE if tf32 else TOLERANCE[dtype]) * max(1.0, truth.abs().max().item())
        torch.testing.assert_close(ours.double(), truth, rtol=0, atol=2 * allowed)


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
def test_layouts_and_layers(
    ops: Any, no_tf32: None, dtype: torch.dtype, batch_first: bool, layout: str
) -> None:
    layers = Layers(dtype, 24, 3, 8, layers=2, inputs=6)
    x = layers.x.transpose(0, 1).contiguous() if batch_first else layers.x
    if layout == "transposed":
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "strided":
        x = torch.stack([x, torch.full_like(x, torch.nan)], -1).flatten(2)[..., ::2]
    _, y, hy = layers.run(ops, 8, x, batch_first)
    exact, exact_state = layers.module.double()(layers.x.double(), layers.h.double())
    tolerance = 4e-6 if dtype == FP32 else 6e-2
    assert ((y.transpose(0, 1) if batch_first else y).double() - exact).abs().max() < tolerance
    assert (hy.double() - exact_state).abs().max() < tolerance
    layers.module.to(dtype)
    for chunk in (3, 5):
        _, y_in_chunks, hy_in_chunks = layers.run(ops, chunk, x, batch_first)
        assert torch.equal(y_in_chunks, y) and torch.equal(hy_in_chunks, hy)


def test_a_part_is_multiplied_as_the_whole(ops: Any, no_tf32: None) -> None:
    """By the whole's algorithm, asked for once; one that does not take parts is asked for again."""
    layers = Layers(FP32, 40, 15, 9, inputs=11)
    ops.lt()
    expected = layers.run(ops, 9)[1]
    asked, products, *_ = ops.lt()
    assert (asked, products) == (1, 1), "both directions at once"
    assert torch.equal(layers.run(ops, 4)[1], expected)
    asked, products, *_ = ops.lt()
    # Weights of the directions may be aligned differently.
    assert products == 6 and asked in (2, 4), "for chunks of 4 and of 1"
    assert torch.equal(layers.run(ops, 4)[1], expected)
    assert ops.lt()[:2] == [0, 6]
    ops.set_lt(True, True, False, 0)
    try:
        other = Layers(FP32, 40, 15, 10, inputs=11)
        expected = other.run(ops, 10)[1]
        ops.lt()
        assert torch.equal(other.run(ops, 6)[1], expected)
        assert ops.lt()[0] in (4, 8), "of the whole and of a part, for chunks of 6 and of 4"
    finally:
        ops.set_lt(True, True, True, 0)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_chunk_that_is_refused(ops: Any, no_tf32: None, after: int) -> None:
    """The call goes upstream: nobody has seen what earlier chunks wrote."""
    layers = Layers(FP32, 40, 3, 9)
    torch.ops.aten_ext_on_host_cudnn_rnn.refuse(1, after)
    with pytest.raises(RuntimeError, match="declined late"):
        layers.run(ops, 3)
    assert torch.equal(layers.run(ops, 3)[1], layers.run(ops, 9)[1])


def chunk_of(ops: Any, sixteen: bool, *sizes: int, mode: int = GRU) -> int:
    """Steps, batch, input and hidden size, directions, on an H200."""
    with pretended(GPUS["sm_90"], torch.ops.aten_ext_on_host_cudnn_rnn.set_gpu):
        steps: int = ops.chunk(sixteen, *sizes, mode)
    return steps


@pytest.mark.parametrize(
    ("sixteen", "steps", "batch", "inputs", "hidden", "directions", "expected"),
    [
        # Few bytes: never.
        (True, 4000, 8, 256, 512, 1, 4000),
        (False, 1000, 8, 128, 256, 1, 1000),
        (True, 256, 64, 1024, 1024, 1, 256),
        # 375 KiB a step: more than 256 MiB from 683 steps on, but 640 steps at least at a time.
        (True, 682, 64, 256, 512, 1, 682),
        (True, 1279, 64, 256, 512, 1, 1279),
        (True, 1280, 64, 256, 512, 1, 640),
        (True, 4000, 64, 256, 512, 1, 667),
        (True, 2000, 64, 256, 512, 2, 667),
        # 768 KiB a step, over the whole GPU: 320 steps at least.
        (True, 341, 64, 512, 1024, 1, 341),
        (True, 639, 64, 512, 1024, 1, 639),
        (True, 640, 64, 512, 1024, 1, 320),
        (True, 1000, 64, 512, 1024, 1, 334),
        (True, 1, 8, 64, 64, 1, 0),
    ],
)
def test_policy(
    ops: Any,
    sixteen: bool,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    directions: int,
    expected: int,
) -> None:
    assert chunk_of(ops, sixteen, steps, batch, inputs, hidden, directions) == expected


@pytest.mark.parametrize(
    ("steps", "inputs", "hidden", "upstream"), [(4000, 256, 512, 686), (1000, 512, 1024, 437)]
)
def test_no_more_memory_than_upstream(ops: Any, steps: int, inputs: int, hidden: int, upstream: int) -> None:
    """Result and projections of one chunk, 64 rows of bf16, against upstream's peak on an H200 in MiB."""
    chunk = chunk_of(ops, True, steps, 64, inputs, hidden, 1)
    result = steps * 64 * hidden * 2
    assert result + chunk * 64 * 3 * hidden * 4 < upstream * MIB
