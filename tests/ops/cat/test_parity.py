"""cat, and what is made of it: the same bits as upstream's, laid out alike, whoever runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import aten_ext
from ops.cat.reference import CONVERTED, COPIED, assert_ran, assert_same, compare, ones, upstream
from strategies import Concatenation, concatenations, fixture_is_fine

BITS = (torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.complex128)


@fixture_is_fine
@given(concatenations(BITS))
def test_any_layout(device: str, call: Concatenation) -> None:
    tensors = call.make(device)
    reason = compare(tensors, call.dim, device)
    if device == "cuda":
        assert reason in ("", "result without elements") or "upstream" in reason


@fixture_is_fine
@given(concatenations(BITS, plain=True))
def test_contiguous(device: str, call: Concatenation) -> None:
    tensors = call.make(device)
    reason = compare(tensors, call.dim, device)
    if device == "cuda":
        assert reason in ("", "result without elements")


@fixture_is_fine
@given(concatenations(CONVERTED, mixed=True))
def test_mixed_dtypes(device: str, call: Concatenation) -> None:
    compare(call.make(device), call.dim, device)


@fixture_is_fine
@given(
    call=concatenations(BITS, plain=True, max_inputs=3, max_elements=500),
    repeats=st.sampled_from([20, 64, 65, 200]),
)
def test_many_small_inputs(device: str, call: Concatenation, repeats: int) -> None:
    """On CPU this is where the override runs."""
    compare(call.make(device) * repeats, call.dim, device)


@pytest.mark.parametrize("dtype", COPIED, ids=str)
@pytest.mark.parametrize("shape", [(3,), (5, 2), (2, 1, 7)])
@pytest.mark.parametrize("dim", [0, -1])
def test_every_dtype(device: str, dtype: torch.dtype, shape: tuple[int, ...], dim: int) -> None:
    tensors = ones(70, *shape, dtype=dtype, device=device)
    assert compare(tensors, dim, device) == ""


@pytest.mark.parametrize("format", [torch.channels_last, torch.channels_last_3d], ids=["2d", "3d"])
@pytest.mark.parametrize("dim", range(-5, 4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(2, 3, 2, 3, 2), (2, 1, 3, 2, 2), (1, 4, 1, 1, 1), (3, 2, 1, 5, 1)])
def test_channels_last(
    device: str, format: torch.memory_format, dim: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    rank = 4 if format == torch.channels_last else 5
    if not -rank <= dim < rank:
        pytest.skip("no such dimension")
    last = [t.to(memory_format=format) for t in ones(80, *shape[:rank], dtype=dtype, device=device)]
    compare(last[:3], dim, device)
    assert compare(last, dim, device) in ("", "large inputs")
    # One that is not channels-last makes the result contiguous, and the inputs of two kinds.
    compare([*last, last[0].contiguous()], dim, device)
    compare([last[0].contiguous(), *last], dim, device)
    compare([torch.empty(0, dtype=dtype, device=device), *last], dim, device)


@pytest.mark.parametrize("run", [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 128, 255, 256, 257])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_runs_of_every_length_on_cpu(rows: int, run: int) -> None:
    tensors = [
        t[:, : (run + i) % run + 1].contiguous() for i, t in enumerate(ones(70, rows, run, dtype=torch.uint8))
    ]
    assert compare(tensors, 1, "cpu") == ""


@pytest.mark.parametrize("count", [1, 2, 3, 70, 600])
@pytest.mark.parametrize("rows", [2, 17, 300])
@pytest.mark.parametrize("columns", [(1,), (2,), (4,), (8,), (16,), (1, 3), (8, 5, 16), (2, 1, 64, 30)])
def test_short_runs_on_cpu(columns: tuple[int, ...], rows: int, count: int) -> None:
    """Columns of few bytes, of one length or of several, which are copied input by input."""
    if count * rows * max(columns) > 1 << 20:
        rows = 7
    every = ones(count, rows, max(columns), dtype=torch.uint8)
    tensors = [t[:, : columns[i % len(columns)]].contiguous() for i, t in enumerate(every)]
    small = sum(t.numel() for t in tensors) <= 32768
    assert compare(tensors, 1, "cpu") in ("", *([] if small else ["few inputs", "large inputs"]))


def test_short_runs_beside_an_empty_and_a_wide_input_on_cpu() -> None:
    empty, wide = torch.empty(9, 0, dtype=torch.uint8), ones(1, 9, 1500, dtype=torch.uint8)[0]
    assert compare([empty, wide, *ones(70, 9, 1, dtype=torch.uint8), empty], 1, "cpu") == ""


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.complex128], ids=str)
def test_labels_beside_one_another_on_cpu(dtype: torch.dtype) -> None:
    """``stack`` of vectors along a last dimension, more rows of them than are copied at once."""
    vectors = [t.unsqueeze(-1) for t in ones(2, 900, dtype=dtype)]
    assert compare(vectors, 1, "cpu") == ""


def test_the_result_is_new(device: str) -> None:
    """Also of one input, and of one and nothing."""
    x = torch.arange(6, device=device).view(2, 3)
    for tensors in ([x], [x, torch.empty(0, dtype=torch.long, device=device)]):
        result = torch.cat(tensors, 1)
        assert_ran(device)
        aten_ext.reset_counts()
        assert result.data_ptr() != x.data_ptr() and torch.equal(result, x)


def test_signed_zeros_and_nans_keep_their_bits(device: str) -> None:
    values = torch.tensor([0x7FC00001, -0x80000000, 0x7F800001, -0x3FFFFF, 0], dtype=torch.int32)
    tensors = [values.view(torch.float32).to(device)] * 100
    assert compare(tensors, 0, device) == ""
    assert torch.equal(torch.cat(tensors).view(torch.int32)[:5].cpu(), values)


def test_copy_on_write_inputs_stay_so(device: str) -> None:
    tensors = [torch._lazy_clone(t) for t in ones(100, 4, device=device)]
    assert compare(tensors, 0, device) == ""
    assert all(torch._C._is_cow_tensor(t) for t in tensors)


def test_inference_mode(device: str) -> None:
    with torch.inference_mode():
        tensors = ones(100, 4, device=device)
        result = torch.cat(tensors)
        assert_ran(device)
        assert result.is_inference()


def test_a_c10_list(device: str) -> None:
    """TorchScript hands the list over in a box."""
    scripted: Any = torch.jit.script(_concatenate)
    tensors = ones(100, 4, device=device)
    aten_ext.reset_counts()
    result = scripted(tensors)
    assert_ran(device)
    assert_same(result, upstream(lambda: torch.cat(tensors, 0)))


def _concatenate(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat(tensors, 0)


# ---- what is made of cat -----------------------------------------------------------------------------


COMPOSITES: list[Callable[[list[torch.Tensor]], torch.Tensor]] = [
    torch.stack,
    torch.hstack,
    torch.vstack,
    torch.dstack,
    torch.column_stack,
    torch.concat,
    torch.concatenate,
]


@pytest.mark.parametrize("function", COMPOSITES, ids=lambda f: f.__name__)
def test_composites_reach_it(device: str, function: Callable[[list[torch.Tensor]], torch.Tensor]) -> None:
    tensors = ones(100, 2, 3, dtype=torch.int32, device=device)
    theirs = upstream(lambda: function(tensors))
    aten_ext.reset_counts()
    ours = function(tensors)
    assert_ran(device)
    assert_same(ours, theirs)


def test_gradients(device: str) -> None:
    tensors = [torch.randn(2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(70)]
    assert torch.autograd.gradcheck(lambda *xs: torch.cat(xs) ** 2, tensors)
    assert torch.autograd.gradgradcheck(lambda *xs: torch.cat(xs) ** 2, tensors)
    counts = aten_ext.counts(device.upper())["cat"]
    assert counts.ran > 0
    result = torch.cat(tensors)
    (torch.cat([result, result]) * torch.arange(280, device=device)).sum().backward()
    expected = torch.arange(140, device=device) * 2.0 + 140
    assert torch.equal(torch.cat([t.grad for t in tensors if t.grad is not None]), expected.double())


def test_forward_mode(device: str) -> None:
    tensors = tuple(t.nan_to_num(0.0, 0.0, 0.0) for t in ones(70, 2, device=device))
    value, tangent = torch.func.jvp(lambda *xs: torch.cat(xs), tensors, tensors)
    assert_same(value, tangent)
