"""The sequential part of the backward of recurrent layers, run on the CPU: every kernel, cell, exchange.

What the kernels compute is held against float64. Time, weak memory ordering and registers are for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import processes
from device_on_host import library
from ops.rnn.backward.on_host_cases import CELLS, GRU, LSTM, TANH, check, load, new_case, run
from ops.rnn.on_host_cases import BLOCK, CLUSTER, FMA, GRID, MMA, ORDERS, TF32, order_of_threads
from paths import TESTS

pytestmark = [
    pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or ""),
]


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.fixture(params=[ORDERS["backward"], ORDERS["shuffled"]], ids=["backward", "shuffled"])
def order(ops: Any, request: pytest.FixtureRequest) -> Iterator[None]:
    with order_of_threads(*request.param):
        yield


# Each line: math, exchange, blocks, and the hidden sizes at both ends of what a kernel takes.
KERNELS = [
    (FMA, BLOCK, 1, [1, 7, 32]),
    (FMA, BLOCK, 1, [33, 64]),
    (FMA, BLOCK, 1, [65, 128]),
    (FMA, CLUSTER, 4, [70, 128]),
    (FMA, CLUSTER, 8, [130, 256]),
    (FMA, CLUSTER, 16, [257, 512]),
    (FMA, GRID, 17, [130]),
    (FMA, GRID, 65, [513]),
    (MMA, BLOCK, 1, [1, 7, 33, 64]),
    (MMA, BLOCK, 1, [65, 100, 128]),
    (MMA, CLUSTER, 8, [130, 256]),
    (MMA, CLUSTER, 16, [257, 512]),
    (MMA, GRID, 9, [130]),
    (MMA, GRID, 33, [513]),
    (TF32, CLUSTER, 8, [193, 256]),
    (TF32, GRID, 13, [200]),
    (TF32, GRID, 33, [513]),
]
BOTH_ENDS = [(*kernel[:3], hidden) for kernel in KERNELS for hidden in kernel[3]]
# One hidden size for each kernel, small ones: for what takes many runs.
ONE_EACH = [(*kernel[:3], kernel[3][0]) for kernel in KERNELS]
SMALL = [kernel for kernel in ONE_EACH if kernel[3] < 257]


def dtypes_of(math: int) -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16] if math == MMA else [torch.float32]


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), BOTH_ENDS)
def test_every_kernel(ops: Any, cell: int, math: int, exchange: int, blocks: int, hidden: int) -> None:
    for dtype in dtypes_of(math):
        for batch, rows in ((1, 1), (3, 3)):
            case = new_case(cell, dtype, hidden=hidden, batch=batch)
            check(ops, case, [math, exchange, blocks, rows])


@pytest.mark.long
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), SMALL)
def test_directions_groups_and_steps(
    ops: Any, cell: int, math: int, exchange: int, blocks: int, hidden: int
) -> None:
    """Two directions; several groups of the batch, the last of them smaller.

    With more rows than a turn has; 1 to 6 steps; gradients of the last state given or not; dy of any strides.
    """
    dtype = dtypes_of(math)[0]
    for steps, given, batch_first in ((1, True, False), (2, False, True), (6, True, True)):
        case = new_case(
            cell,
            dtype,
            hidden=hidden,
            batch=13,
            steps=steps,
            directions=2,
            given=given,
            batch_first=batch_first,
        )
        check(ops, case, [math, exchange, blocks, 9])


@pytest.mark.long
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), SMALL)
def test_many_rows(ops: Any, cell: int, math: int, exchange: int, blocks: int, hidden: int) -> None:
    """Several turns of a step, the last one partly without rows."""
    check(
        ops,
        new_case(cell, dtypes_of(math)[0], hidden=min(hidden, 200), batch=37),
        [math, exchange, blocks, 37 if exchange == GRID else 11],
    )


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), SMALL)
def test_any_order_of_threads(
    ops: Any, order: None, cell: int, math: int, exchange: int, blocks: int, hidden: int
) -> None:
    """Bits do not depend on it: they are those of the order forward."""
    case = new_case(cell, dtypes_of(math)[0], hidden=hidden, batch=3, steps=5)
    kernel = [math, exchange, blocks, 2 if exchange != GRID else 3]
    got = check(ops, case, kernel)
    with order_of_threads(0, 0):
        for result, first in zip(got, run(ops, case, kernel), strict=True):
            assert torch.equal(result.nan_to_num(), first.nan_to_num())


@pytest.mark.parametrize("cell", [GRU, TANH], ids=["gru", "tanh"])
@pytest.mark.parametrize("hidden", [129, 200, 256])
def test_four_blocks_beyond_128(ops: Any, order: None, cell: int, hidden: int) -> None:
    """Which have the registers for three gates: bits do not depend on the order of threads."""
    case = new_case(cell, torch.float32, hidden=hidden, batch=7, steps=3, directions=2)
    for rows in (1, 5):
        got = check(ops, case, [FMA, CLUSTER, 4, rows])
        with order_of_threads(0, 0):
            for result, first in zip(got, run(ops, case, [FMA, CLUSTER, 4, rows]), strict=True):
                assert torch.equal(result.nan_to_num(), first.nan_to_num())
    lstm = new_case(LSTM, torch.float32, hidden=hidden, batch=1)
    with pytest.raises(RuntimeError, match="no such kernel"):
        run(ops, lstm, [FMA, CLUSTER, 4, 1])


@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), SMALL)
def test_misaligned(ops: Any, math: int, exchange: int, blocks: int, hidden: int) -> None:
    """Parameters in one flat buffer begin anywhere, and so may dy."""
    for dtype in dtypes_of(math):
        check(ops, new_case(GRU, dtype, hidden=hidden, batch=2, offset=1), [math, exchange, blocks, 2])


@pytest.mark.parametrize(("math", "blocks"), [(FMA, 26), (MMA, 14), (TF32, 14)])
def test_no_block_is_without_units(ops: Any, math: int, blocks: int) -> None:
    """The others would not wait for it, and overwrite what it has not read."""
    case = new_case(GRU, dtypes_of(math)[0], hidden=200, batch=2)
    with pytest.raises(RuntimeError, match="no such kernel"):
        run(ops, case, [math, GRID, blocks, 2])


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_without_dy(ops: Any, cell: int) -> None:
    """Only the last state has a gradient."""
    for math, exchange, blocks in ((FMA, BLOCK, 1), (MMA, CLUSTER, 8), (TF32, GRID, 4)):
        case = new_case(cell, dtypes_of(math)[0], hidden=60, batch=3, steps=4)
        case.dy = None
        check(ops, case, [math, exchange, blocks, 3])


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_chunks_are_the_whole(ops: Any, cell: int) -> None:
    """What a chunk of later steps hands on, an earlier one takes: bits are those of one launch."""
    for math, exchange, blocks in ((FMA, BLOCK, 1), (MMA, CLUSTER, 8), (MMA, GRID, 4)):
        kernel = [math, exchange, blocks, 3]
        case = new_case(cell, dtypes_of(math)[0], hidden=50, batch=3, steps=7)
        whole = run(ops, case, kernel)
        assert case.dy is not None
        later = new_case(cell, dtypes_of(math)[0], hidden=50, batch=3, steps=7)
        later.coefficients = case.coefficients[:, 4:].contiguous()
        later.dy = case.dy[4:]
        second = run(ops, later, kernel)
        earlier = new_case(cell, dtypes_of(math)[0], hidden=50, batch=3, steps=7)
        earlier.coefficients = case.coefficients[:, :4].contiguous()
        earlier.dy = case.dy[:4]
        earlier.dh = second[2]
        earlier.dc = second[3] if cell == LSTM else None
        first = run(ops, earlier, kernel)
        assert torch.equal(torch.cat([first[0], second[0]], 1), whole[0])
        assert torch.equal(first[2], whole[2])
        if cell == LSTM:
            assert torch.equal(first[3], whole[3])


@pytest.mark.parametrize(("cell", "value"), [(GRU, float("nan")), (LSTM, float("inf")), (TANH, float("nan"))])
@pytest.mark.parametrize(("math", "exchange", "blocks", "hidden"), SMALL)
def test_rows_do_not_mix(
    ops: Any, cell: int, value: float, math: int, exchange: int, blocks: int, hidden: int
) -> None:
    """Rows of a batch share products; what one of them holds must not reach another, or another direction."""
    dtype = dtypes_of(math)[0]
    case = new_case(cell, dtype, hidden=hidden, batch=3, directions=2)
    kernel = [math, exchange, blocks, 3]
    clean = run(ops, case, kernel)
    assert case.dy is not None
    case.dy[2, 1, 0] = value
    spoiled = run(ops, case, kernel)
    for of_clean, of_spoiled, row in zip(clean, spoiled, (2, 2, 1, 1), strict=True):
        if of_clean.isnan().all():
            continue
        others = torch.tensor([0, 2])
        assert torch.equal(
            of_clean[0].index_select(row - 1, others), of_spoiled[0].index_select(row - 1, others)
        )
        assert torch.equal(of_clean[1], of_spoiled[1])
    assert not spoiled[0][0, 0, 1].isfinite().any()


def test_tf32_of_a_gru_in_a_cluster_of_16(ops: Any) -> None:
    for hidden, batch in ((257, 3), (512, 1), (300, 11)):
        check(ops, new_case(GRU, torch.float32, hidden=hidden, batch=batch), [TF32, CLUSTER, 16, batch])


def test_large_layers(ops: Any) -> None:
    """Both shapes over the whole GPU, and weights in shared memory."""
    check(ops, new_case(GRU, torch.bfloat16, hidden=1024, batch=2, steps=2), [MMA, GRID, 64, 2])
    check(ops, new_case(LSTM, torch.bfloat16, hidden=1030, batch=1, steps=2), [MMA, GRID, 65, 1])
    check(ops, new_case(GRU, torch.float16, hidden=1030, batch=1, steps=2), [MMA, GRID, 65, 1])
    check(ops, new_case(TANH, torch.float16, hidden=1030, batch=1, steps=2), [MMA, GRID, 65, 1])
    check(ops, new_case(LSTM, torch.float32, hidden=1001, batch=2, steps=2), [TF32, GRID, 63, 2])
    check(ops, new_case(LSTM, torch.float32, hidden=1001, batch=2, steps=2), [FMA, GRID, 126, 2])


@pytest.mark.parametrize(("cell", "dtype"), [(GRU, torch.bfloat16), (LSTM, torch.float16)])
def test_rows_and_columns_of_large_layers(ops: Any, cell: int, dtype: torch.dtype) -> None:
    """Words of several times eight rows, and warps with some or none of their columns."""
    check(ops, new_case(cell, dtype, hidden=1043, batch=18, steps=2), [MMA, GRID, 66, 18])
    check(ops, new_case(cell, dtype, hidden=523, batch=11, steps=3, directions=2), [MMA, GRID, 33, 9])


def test_nothing_is_touched_beyond_operands(ops: Any) -> None:
    """Forbidden pages around all that kernels read."""
    done = processes.python("-m", "ops.rnn.backward.guarded_calls", cwd=TESTS, timeout=600)
    assert done.returncode == 0, done.stderr
    calls, word = done.stdout.split()
    assert word == "calls" and int(calls) >= 2 * len(SMALL)
