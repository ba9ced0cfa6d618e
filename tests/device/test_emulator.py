"""The device made of a CPU (tests/device_on_host) is right about what kernels rely on."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
import torch

import processes
from device_on_host import library
from paths import TESTS

pytestmark = [
    pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or ""),
]

ORDERS = [(0, 0), (1, 0), (2, 1), (2, 2)]


@pytest.fixture(scope="module")
def ops() -> torch._ops._OpNamespace:
    library.load_selftest()
    return torch.ops.aten_ext_on_host_selftest


@pytest.fixture(params=ORDERS, ids=["forward", "backward", "shuffled", "shuffled-2"])
def order(ops: torch._ops._OpNamespace, request: pytest.FixtureRequest) -> Iterator[None]:
    ops.set_order(*request.param)
    yield
    ops.set_order(0, 0)


@pytest.mark.parametrize("threads", [32, 64, 1024])
def test_shuffles_and_barriers(ops: torch._ops._OpNamespace, order: None, threads: int) -> None:
    x = torch.arange(3 * threads, dtype=torch.float32)
    assert ops.sum_of_blocks(x, threads).tolist() == x.view(3, threads).sum(1).tolist()


def run_apart(code: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which a fault ends; ``ops`` are the operators of selftest.cu."""
    prepare = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); import torch\n"
        "from device_on_host import library; library.load_selftest()\n"
        "ops = torch.ops.aten_ext_on_host_selftest\n"
    )
    return processes.python("-c", prepare + code, timeout=300)


def test_a_missing_barrier_shows() -> None:
    # In a process of its own: what an earlier launch left in shared memory is what this one expects there.
    run = run_apart("print(bool((ops.race() == (torch.arange(64) + 63) % 64).all()))")
    assert (run.stdout.strip(), run.returncode) == ("False", 0), run.stderr


def test_a_misaligned_address_ends_the_process() -> None:
    run = run_apart("print(ops.word(4).item(), flush=True); ops.word(6)")
    assert run.stdout == "0\n" and run.returncode == -signal.SIGABRT
    assert "device_on_host: a misaligned address" in run.stderr and "selftest.cu:" in run.stderr


def test_an_index_beyond_an_array_ends_the_process() -> None:
    run = run_apart("print(ops.element(2).item(), flush=True); ops.element(-1)")
    assert run.stdout == "4.0\n" and run.returncode == -signal.SIGABRT
    assert "device_on_host: an index beyond an array" in run.stderr and "selftest.cu:" in run.stderr


@pytest.mark.parametrize(("blocks", "cluster"), [(2, 2), (8, 8), (12, 4), (6, 1)])
def test_clusters_share_memory(ops: torch._ops._OpNamespace, order: None, blocks: int, cluster: int) -> None:
    steps = 5
    rank = torch.arange(blocks) % cluster
    expected = ((rank - steps) % cluster).int()
    assert torch.equal(ops.ring(blocks, cluster, steps), torch.stack([expected, expected], 1))


def test_stores_to_other_blocks_arrive(ops: torch._ops._OpNamespace, order: None) -> None:
    assert ops.exchange(4, True, True).tolist() == [3, 0, 1, 2]


def test_stores_that_are_not_waited_for_arrive_late(ops: torch._ops._OpNamespace) -> None:
    ops.set_order(1, 0)
    assert ops.exchange(4, True, False).tolist() == [99] * 4
    ops.set_order(0, 0)


@pytest.mark.parametrize(("blocks", "cluster"), [(16, 16), (6, 4)])
def test_a_cluster_that_a_gpu_refuses(ops: torch._ops._OpNamespace, blocks: int, cluster: int) -> None:
    """More than eight blocks without the attribute for it; a grid that clusters do not divide."""
    with pytest.raises(RuntimeError, match="launch refused"):
        ops.ring(blocks, cluster, 1)


def test_a_cooperative_grid_waits_for_all(ops: torch._ops._OpNamespace) -> None:
    assert ops.grid(20, True).tolist() == [sum(range(20))] * 20


def test_words_of_three_values(ops: torch._ops._OpNamespace, order: None) -> None:
    """The tag comes with its values; on a GPU an address that is no multiple of 16 would be an error."""
    assert ops.triples(20, False).tolist() == [3 * sum(range(20)) + 20 * 300] * 20
    run = run_apart("ops.triples(2, True)")
    assert run.returncode == -signal.SIGABRT and "no multiple of 16" in run.stderr


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tensor_core_fragments(ops: torch._ops._OpNamespace, order: None, dtype: torch.dtype) -> None:
    a, b = torch.randn(16, 16).to(dtype), torch.randn(16, 8).to(dtype)
    torch.testing.assert_close(ops.mma(a, b), a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def test_tf32_fragments(ops: torch._ops._OpNamespace) -> None:
    a, b = torch.randn(16, 8), torch.randn(8, 8)
    exact = (a.double() @ b.double()).float()
    result = ops.mma_tf32(a, b)
    torch.testing.assert_close(result, exact, rtol=0, atol=2e-2)
    assert not torch.allclose(result, exact, rtol=1e-6, atol=1e-6), "TF32 has ten bits"


def test_transposition(ops: torch._ops._OpNamespace) -> None:
    matrix = torch.arange(64, dtype=torch.int16).view(8, 8)
    assert torch.equal(ops.transposed(matrix), matrix.T)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [(0x3210, 0x44332211), (0x7654, 0x08776655), (0x4321, 0x55443322), (0xB, 0x11111100)],
)
def test_byte_perm(ops: torch._ops._OpNamespace, selector: int, expected: int) -> None:
    assert ops.bits(0x44332211, 0x08776655, selector)[0].item() & 0xFFFFFFFF == expected


@pytest.mark.parametrize("call", ["stuck()", "grid(2, False)"])
def test_a_kernel_that_hangs_is_an_error(call: str) -> None:
    """Threads that wait for different barriers; blocks that wait for each other in an ordinary launch."""
    run = run_apart(f"ops.{call}")
    assert (
        run.returncode == -signal.SIGABRT
        and "device_on_host: every thread of a block waits for" in run.stderr
    )


def test_a_store_that_nobody_waits_for_is_an_error() -> None:
    run = run_apart("ops.set_order(1, 0); ops.exchange(4, False, False)")
    assert run.returncode == -signal.SIGABRT and "asynchronous store" in run.stderr
