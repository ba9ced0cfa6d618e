"""cuBLASLt's way of linear layers, run on the CPU against a stand-in for the library (include/cublasLt.h).

The stand-in counts how often its heuristic is asked, and takes an algorithm only for the problem and the
alignments that it was chosen for. That the real one's bits are upstream's, only a GPU can say
(test_lt.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from device_on_host import library
from ops.linear.test_on_host import EPILOGUES, assert_close, load, reference

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
MiB = 1 << 20


@pytest.fixture
def lt() -> Iterator[Any]:
    load()
    ops = torch.ops.aten_ext_on_host_linear_lt
    ops.set_fake(True, True, 0)
    yield ops
    ops.set_fake(True, True, 0)
    ops.set_answers(66, 1.0, 1)


def memory(count: int, dtype: torch.dtype = torch.float32, offset: int = 0) -> torch.Tensor:
    """NaN, ``offset`` elements behind a multiple of 512 bytes: where CUDA's allocator puts a tensor."""
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.full((count + offset + 512 // size,), torch.nan, dtype=dtype)
    begin = -raw.data_ptr() % 512 // size + offset
    return raw[begin : begin + count]


def place(t: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """A contiguous copy there."""
    return memory(t.numel(), t.dtype, offset).view(t.shape).copy_(t)


def layer(
    m: int, n: int, k: int, dtype: torch.dtype = torch.float32, pad: int = 0, columns: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """bias, mat1 and mat2; rows lie ``pad`` elements further apart than they are long."""
    generator = torch.Generator().manual_seed(m * n + k)

    def rows(count: int, length: int) -> torch.Tensor:
        view = memory(count * (length + pad), dtype).view(count, length + pad)[:, :length]
        view.copy_(torch.randn(count, length, generator=generator))
        return view

    bias = place(torch.randn(n, generator=generator).to(dtype))
    mat1 = rows(k, m).t() if columns else rows(m, k)
    return bias, mat1, rows(n, k).t()


def into(bias: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    m, n = mat1.shape[0], mat2.shape[1]
    return memory(m * n, bias.dtype).view(m, n)


def lt_product(*args: torch.Tensor, alpha: float = 1.0, act: str = "") -> torch.Tensor:
    """Through cuBLASLt, wherever upstream is faster, into memory aligned as CUDA's allocator's."""
    ops = torch.ops.aten_ext_on_host_linear
    result: torch.Tensor = ops.lt(*args, alpha=alpha, epilogue=EPILOGUES[act], out=into(*args))
    return result


def addmm(*args: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
    return lt_product(*args, alpha=alpha)


def activation(*args: torch.Tensor, alpha: float = 1.0, use_gelu: bool = False) -> torch.Tensor:
    return lt_product(*args, alpha=alpha, act="gelu" if use_gelu else "relu")


def questions(lt: Any, call: Any) -> int:
    before = lt.asked()
    call()
    asked: int = lt.asked() - before
    return asked


LARGE, SMALL = 66024, 66020
"""Kernels of the stand-in: upstream's, the first answer; the same with tiles of 128 x 128."""


@pytest.mark.parametrize(
    ("dtype", "m", "k", "id_", "waves", "split", "expected"),
    [
        (torch.bfloat16, 384, 256, 66, 2.01, 1, SMALL),
        (torch.half, 512, 3072, 66, 4.83, 1, SMALL),
        (torch.bfloat16, 640, 256, 66, 2.0, 1, LARGE),  # few tiles
        (torch.bfloat16, 256, 256, 66, 4.0, 1, LARGE),  # few rows
        (torch.bfloat16, 385, 256, 66, 4.0, 1, LARGE),  # a tile that is not full
        (torch.bfloat16, 384, 255, 66, 4.0, 1, LARGE),  # few terms
        (torch.bfloat16, 384, 3073, 66, 4.0, 1, LARGE),  # many terms
        (torch.float32, 384, 256, 66, 4.0, 1, LARGE),
        (torch.bfloat16, 768, 256, 66, 4.0, 2, LARGE),  # sums in another order
        (torch.bfloat16, 896, 256, 21, 4.0, 1, 21024),  # another kernel to begin with
    ],
)
def test_choice_among_the_answers(
    lt: Any, dtype: torch.dtype, m: int, k: int, id_: int, waves: float, split: int, expected: int
) -> None:
    """Smaller tiles of the same kernel where there are many and K is not long, not tiny; else upstream's."""
    lt.set_answers(id_, waves, split)
    bias, mat1, mat2 = layer(m, 5, k, dtype)
    result, exact = addmm(bias, mat1, mat2), reference(bias, mat1, mat2, 1, 1, "none")
    torch.testing.assert_close(result.double(), exact, rtol=1e-2, atol=1e-3)  # up to 3073 terms in one sum
    assert lt.kernel() == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ["none", "relu", "gelu"])
@pytest.mark.parametrize("workspace", [0, 4096])
def test_values(lt: Any, dtype: torch.dtype, act: str, workspace: int) -> None:
    lt.set_fake(True, True, workspace)
    # Workspace is not part of a key: every case has a shape of its own.
    for m, n, k in [(65, 7 + workspace % 7, 33), (128, 16, 8 + workspace % 7)]:
        for pad, columns in [(0, False), (3, False), (0, True)]:
            bias, mat1, mat2 = layer(m, n, k, dtype, pad, columns)
            for alpha in (1.0, 0.5):
                if act == "none":
                    result = addmm(bias, mat1, mat2, alpha=alpha)
                else:
                    result = activation(bias, mat1, mat2, alpha=alpha, use_gelu=act == "gelu")
                assert result.is_contiguous()
                assert_close(result, reference(bias, mat1, mat2, alpha, 1.0, act), k)


def test_row_major_weight_and_a_new_result(lt: Any) -> None:
    bias, mat1, _ = layer(70, 24, 16)
    mat2 = torch.randn(16, 24)
    result = torch.ops.aten_ext_on_host.addmm(bias, mat1, mat2)
    assert result.is_contiguous()
    assert_close(result, reference(bias, mat1, mat2, 1.0, 1.0, "none"), 16)


def test_the_heuristic_is_asked_once(lt: Any) -> None:
    bias, mat1, mat2 = layer(90, 40, 48)
    calls = [lambda: addmm(bias, mat1, mat2) for _ in range(5)]
    assert [questions(lt, call) for call in calls] == [1, 0, 0, 0, 0]
    other = (place(bias), place(mat1), place(mat2.t()).t())
    assert questions(lt, lambda: addmm(*other)) == 0, "another layer of the same kind"
    assert torch.equal(addmm(*other), addmm(bias, mat1, mat2))
    moved = place(bias + 1)
    assert questions(lt, lambda: addmm(moved, mat1, mat2, alpha=0.5)) == 0, "the bias moves between calls"
    assert_close(addmm(moved, mat1, mat2, alpha=0.5), reference(moved, mat1, mat2, 0.5, 1, "none"), 48)


def test_what_a_plan_depends_on(lt: Any) -> None:
    """Anything that upstream tells the heuristic makes another plan; the stand-in checks that it is used."""
    bias, mat1, mat2 = layer(91, 40, 48)
    addmm(bias, mat1, mat2)
    long = memory(91 * 52).view(91, 52)[:, :48].copy_(mat1)
    long2 = memory(40 * 52).view(40, 52)[:, :48].copy_(mat2.t()).t()
    half, bf16 = ([place(t.to(dtype)) for t in (bias, mat1, mat2.t())] for dtype in DTYPES[1:])
    changes = {
        "m": lambda: addmm(bias, mat1[:89], mat2),
        "n": lambda: addmm(bias[:39], mat1, mat2[:, :39]),
        "k": lambda: addmm(bias, mat1[:, :47], mat2[:47]),
        "stride of mat1": lambda: addmm(bias, long, mat2),
        "stride of mat2": lambda: addmm(bias, mat1, long2),
        "mat1 by columns": lambda: addmm(bias, place(mat1.t()).t(), mat2),
        "mat2 by rows": lambda: addmm(bias, mat1, place(mat2)),
        "alignment of mat1": lambda: addmm(bias, place(mat1, 1), mat2),
        "alignment of the bias": lambda: addmm(place(bias, 2), mat1, mat2),
        "ReLU": lambda: activation(bias, mat1, mat2),
        "GELU": lambda: activation(bias, mat1, mat2, use_gelu=True),
        "dtype": lambda: addmm(half[0], half[1], half[2].t()),
        "another dtype": lambda: addmm(bf16[0], bf16[1], bf16[2].t()),
    }
    for what, call in changes.items():
        assert (questions(lt, call), questions(lt, call)) == (1, 0), what
    assert questions(lt, lambda: addmm(bias, mat1, mat2)) == 0, "the first is still there"


def test_precision_flags_make_plans_of_their_own(lt: Any) -> None:
    args = layer(92, 40, 48)
    half = layer(92, 40, 48, torch.half)
    addmm(*args), addmm(*half)
    assert lt.preference()[5] == 2**32 - 1, "every reduction"
    before = torch.get_float32_matmul_precision()
    flags = torch._C._get_cublas_allow_fp16_reduced_precision_reduction()
    try:
        torch.set_float32_matmul_precision("high")
        assert [questions(lt, lambda: addmm(*args)) for _ in range(2)] == [1, 0]
        assert questions(lt, lambda: addmm(*half)) == 0, "TF32 is not half's"
        for allowed, mask in [((False, True), 2), ((False, False), 0)]:
            torch._C._set_cublas_allow_fp16_reduced_precision_reduction(*allowed)
            assert [questions(lt, lambda: addmm(*half)) for _ in range(2)] == [1, 0]
            assert lt.preference()[5] == mask
            assert questions(lt, lambda: addmm(*args)) == 0, "fp32 is not meant"
    finally:
        torch.set_float32_matmul_precision(before)
        torch._C._set_cublas_allow_fp16_reduced_precision_reduction(*flags)


def test_preferences_are_upstreams(lt: Any) -> None:
    """Its workspace limit; alignments of mat2, mat1, the result and the bias, of 256 at most."""
    bias, mat1, mat2 = layer(93, 40, 48)
    addmm(place(bias, 2), place(mat1, 4), mat2)
    limit, of_mat2, of_mat1, of_out, of_bias, _ = lt.preference()
    assert limit == 32 * MiB
    assert (of_mat2, of_mat1, of_out, of_bias) == (256, 16, 256, 8)


@pytest.mark.parametrize(
    ("address", "expected"), [(1, 0), (2, 1), (6, 1), (12, 2), (16, 4), (48, 4), (256, 8), (512, 8), (0, 8)]
)
def test_alignment_of_an_address(lt: Any, address: int, expected: int) -> None:
    assert lt.log2_alignment(address) == expected


def test_plans_of_each_thread(lt: Any) -> None:
    args = layer(94, 40, 48)
    expected = addmm(*args)
    results = []

    def work() -> None:
        results.append((questions(lt, lambda: addmm(*args)), torch.equal(addmm(*args), expected)))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert results == [(1, True)] * 2


def test_eviction(lt: Any) -> None:
    """One layer more than plans are kept: the one used longest ago is asked about again, and is right."""
    most = lt.max_products()
    bias, mat1, mat2 = layer(65 + most, 3, 4)

    def call(m: int) -> int:
        rows = mat1[:m]
        expected = reference(bias, rows, mat2, 1, 1, "")
        return questions(lt, lambda: assert_close(addmm(bias, rows, mat2), expected, 4))

    assert [call(65 + i) for i in range(most)] == [1] * most
    assert [call(65 + i) for i in range(most)] == [0] * most
    assert call(65 + most) == 1
    assert call(66) == 0, "used after the first"
    assert call(65) == 1, "forgotten"


def test_least_recently_used_goes_first(lt: Any) -> None:
    keys = [1, 2, 3, 1, 4, 1, 2, 3, 3, 3, 4]
    assert lt.misses(3, keys) == [True, True, True, False, True, False, True, True, False, False, True]
    assert lt.misses(1, [1, 1, 2, 1]) == [True, False, True, True]
    assert lt.misses(64, [*range(64), *range(64)]) == [True] * 64 + [False] * 64


def test_what_cannot_be_made_is_not_kept(lt: Any) -> None:
    assert lt.size_after_failure() == 1


def test_no_algorithm_is_declined_late(lt: Any) -> None:
    """Before anything is written; the answer is remembered."""
    bias, mat1, mat2 = layer(95, 41, 48)
    out = into(bias, mat1, mat2).fill_(7.0)

    def call() -> None:
        with pytest.raises(RuntimeError, match="declined late"):
            torch.ops.aten_ext_on_host.addmm.out(bias, mat1, mat2, out=out)

    lt.set_fake(False, True, 0)
    assert [questions(lt, call) for _ in range(2)] == [1, 0]
    assert (out == 7.0).all()
    lt.set_fake(True, True, 0)
    args = layer(95, 42, 48)
    assert_close(addmm(*args), reference(*args, 1, 1, ""), 48)


def test_refused_algorithm_is_declined_late(lt: Any) -> None:
    args = layer(96, 40, 48)
    lt.set_fake(True, False, 0)
    for call in (addmm, activation):
        with pytest.raises(RuntimeError, match="declined late"):
            call(*args)
    lt.set_fake(True, True, 0)
    assert_close(addmm(*args), reference(*args, 1, 1, ""), 48)


def test_the_decision_asks_no_heuristic(lt: Any) -> None:
    """It is asked where the call is carried out, about what the decision said: a key of plain data."""
    args = layer(97, 40, 48)
    lt.set_fake(False, True, 0)
    assert questions(lt, lambda: torch.ops.aten_ext_on_host_linear.choose(*args)) == 0
