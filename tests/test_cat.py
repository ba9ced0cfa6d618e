"""cat and cat.out: the same bits as upstream's, laid out alike, whoever runs; and every decline."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import aten_ext
from cat_reference import CONVERTED, COPIED, assert_same, bits, compare, outcome, upstream
from strategies import Concatenation, concatenations, random_bits

fixture_is_fine = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
BITS = (torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.complex128)
FEW = 63
MANY = 64


def assert_ran(device: str, name: str = "cat", calls: int = 1) -> None:
    counts = aten_ext.counts(device.upper())[name]
    assert (counts.ran, dict(counts.declined)) == (calls, {})


def ones(n: int, *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[torch.Tensor]:
    """``n`` tensors of one shape that differ."""
    values = random_bits(n * math.prod(shape), dtype, 0).to(device)
    return list(values.view(n, *shape).unbind())


# ---- parity ------------------------------------------------------------------------------------------


@fixture_is_fine
@given(concatenations(BITS))
def test_any_layout(device: str, call: Concatenation) -> None:
    tensors = call.make(device)
    reason = compare(tensors, call.dim, device)
    if device == "cuda":
        assert reason in ("", "result without elements")


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


# ---- out= --------------------------------------------------------------------------------------------


@fixture_is_fine
@given(
    call=concatenations((torch.int64, torch.int16), max_inputs=5, max_elements=3000),
    kind=st.sampled_from(["fits", "transposed", "strided", "empty", "wrong", "shared", "float"]),
)
def test_out(device: str, call: Concatenation, kind: str) -> None:
    tensors = call.make(device)
    expected = upstream(lambda: torch.cat(tensors, call.dim))

    def target() -> torch.Tensor:
        if kind == "transposed":
            return torch.zeros(expected.shape[::-1], dtype=expected.dtype, device=device).permute(
                *range(expected.dim() - 1, -1, -1)
            )
        if kind == "strided":
            shape = (*expected.shape[:-1], 2 * expected.shape[-1])
            return torch.zeros(shape, dtype=expected.dtype, device=device)[..., ::2]
        if kind == "wrong":
            return torch.zeros(5, dtype=expected.dtype, device=device)
        if kind == "float":
            return torch.zeros(expected.shape, dtype=torch.float64, device=device)
        if kind == "empty":
            return torch.empty(0, dtype=expected.dtype, device=device)
        return torch.zeros(expected.shape, dtype=expected.dtype, device=device)

    theirs = target()
    upstream(lambda: torch.cat(tensors, call.dim, out=theirs))
    ours = target()
    if kind == "shared" and expected.numel() and all(t.numel() for t in tensors):
        ours = tensors[0]
        error = upstream(lambda: torch.cat(tensors, call.dim, out=ours))
        assert outcome(lambda: torch.cat(tensors, call.dim, out=ours)) == error or ours is error
        return
    with pytest.warns(UserWarning) if kind == "wrong" and ours.shape != expected.shape else _nothing():
        explained = aten_ext.explain("cat.out", tensors, call.dim, out=ours)
        aten_ext.reset_counts()
        result = torch.cat(tensors, call.dim, out=ours)
    counts = aten_ext.counts(device.upper())["cat.out"]
    assert counts.ran == (explained.route == "fused")
    if device == "cuda" and kind in ("fits", "transposed") and expected.numel():
        assert counts.ran == 1
    assert result is ours
    assert_same(ours, theirs)


class _nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def test_out_runs(device: str) -> None:
    tensors = ones(100, 4, device=device)
    out = torch.empty(400, device=device)
    assert torch.cat(tensors, out=out) is out
    assert_ran(device, "cat.out")
    assert_same(out, upstream(lambda: torch.cat(tensors)))


def last_format(n: int) -> list[torch.Tensor]:
    return [t.to(memory_format=torch.channels_last) for t in ones(n, 2, 2, 2, 2)]


OUT_DECLINES: list[tuple[Callable[[], tuple[list[torch.Tensor], torch.Tensor]], str]] = [
    (lambda: (ones(70, 4), torch.empty(3)), "out that has to be resized"),
    (lambda: (ones(70, 4), torch.empty(0)), "out that has to be resized"),
    (lambda: (ones(70, 4), torch.empty(280).double()), "out of another dtype than the inputs' together"),
    (lambda: (ones(70, 4), torch.empty(560)[::2]), "out that is not dense"),
    (lambda: (ones(70, 4), torch.empty(1).expand(280)), "out that is not dense"),
    (lambda: (ones(70, 4), torch.empty(280, device="meta")), "more than one device"),
    (
        lambda: (last_format(70), torch.empty(140, 2, 2, 2)),
        "out in another memory format than the inputs",
    ),
]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(("make", "reason"), OUT_DECLINES, ids=[reason for _, reason in OUT_DECLINES])
def test_declined_out(make: Callable[[], tuple[list[torch.Tensor], torch.Tensor]], reason: str) -> None:
    tensors, theirs = make()
    expected = upstream(lambda: torch.cat(tensors, out=theirs))
    tensors, ours = make()
    assert aten_ext.explain("cat.out", tensors, out=ours, key="CPU").reason == reason
    result = outcome(lambda: torch.cat(tensors, out=ours))
    if isinstance(expected, tuple):
        assert result == expected
    elif ours.device.type == "cpu":
        assert dict(aten_ext.counts("CPU")["cat.out"].declined) == {reason: 1}
        assert_same(ours, theirs)


@pytest.mark.parametrize("begin", [0, 3])
def test_out_that_an_input_shares_memory_with(device: str, begin: int) -> None:
    """Upstream's error; or none, where it cannot tell."""
    storage = torch.zeros(600, device=device)
    tensors = [storage[begin : begin + 4], *ones(70, 4, device=device)]
    out = storage[:284]
    theirs = upstream(lambda: torch.cat(tensors, out=out))
    ours = outcome(lambda: torch.cat(tensors, out=out))
    assert isinstance(theirs, tuple) and ours == theirs
    reason = "out that shares memory with an input"
    assert dict(aten_ext.counts(device.upper())["cat.out"].declined) == {reason: 1}
    apart = storage[300:584]
    assert torch.cat(tensors, out=apart) is apart
    assert torch.equal(bits(apart), bits(upstream(lambda: torch.cat(tensors))))


# ---- what upstream rejects ---------------------------------------------------------------------------

ERRORS: list[tuple[Callable[[], tuple[Any, int]], str]] = [
    (lambda: ([], 0), "no tensors"),
    (lambda: ([*ones(70, 4), torch.tensor(1.0)], 0), "zero-dimensional tensor"),
    (lambda: ([torch.tensor(1), *ones(70, 4)], 0), "zero-dimensional tensor"),
    (lambda: (ones(70, 4), 1), "dimension that does not exist"),
    (lambda: (ones(70, 4), -2), "dimension that does not exist"),
    (lambda: ([*ones(70, 4), *ones(1, 4, 1)], 0), "shapes that do not fit together"),
    (lambda: ([*ones(70, 2, 3), *ones(1, 2, 4)], 0), "shapes that do not fit together"),
    (lambda: ([*ones(70, 4), torch.empty(4, device="meta")], 0), "more than one device"),
    (
        lambda: ([*ones(70, 4), random_bits(4, torch.float8_e5m2, 0)], 0),
        "dtypes that are not converted",
    ),
]


@pytest.mark.parametrize(("make", "reason"), ERRORS, ids=[reason for _, reason in ERRORS])
def test_upstream_raises(make: Callable[[], tuple[Any, int]], reason: str) -> None:
    tensors, dim = make()
    theirs = upstream(lambda: torch.cat(tensors, dim))
    assert isinstance(theirs, tuple)
    assert outcome(lambda: torch.cat(tensors, dim)) == theirs
    for key in ("CPU", "CUDA"):
        assert aten_ext.explain("cat", tensors, dim, key=key).reason == reason


# ---- declines ----------------------------------------------------------------------------------------


def nested() -> list[torch.Tensor]:
    return [torch.nested.nested_tensor([torch.zeros(4)])] * MANY


Made = Callable[[], tuple[Any, int]]
# (inputs and dim, reason, keys of which it is one)
DECLINES: list[tuple[Made, str, tuple[str, ...]]] = [
    (lambda: (ones(FEW, 4), 0), "few inputs", ("CPU",)),
    (lambda: (ones(3, 70, 4, dtype=torch.int64), 0), "few inputs", ("CPU",)),
    (lambda: (ones(70, 1024), 0), "large inputs", ("CPU",)),
    (lambda: ([torch.zeros(4), *ones(70, 4, dtype=torch.int16)] * 2, 0), "more than one dtype", ("CPU",)),
    (
        lambda: ([t[::2] for t in ones(70, 4)], 0),
        "inputs that are not contiguous in the result's memory format",
        ("CPU",),
    ),
    (lambda: (ones(70, 0), 0), "result without elements", ("CPU", "CUDA")),
    (lambda: (ones(70, 4, 0), 0), "result without elements", ("CPU", "CUDA")),
    (lambda: ([torch.zeros(4).to_sparse()] * MANY, 0), "sparse tensor", ("CPU", "CUDA")),
    (lambda: ([torch.zeros(4, 4).to_sparse_csr()] * MANY, 0), "sparse tensor", ("CPU", "CUDA")),
    (
        lambda: ([torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8)] * MANY, 0),
        "quantized tensor",
        ("CPU", "CUDA"),
    ),
    (lambda: (nested(), 0), "nested tensor", ("CPU", "CUDA")),
    (
        lambda: ([torch.zeros(4).to_mkldnn()] * MANY, 0),
        "tensor of another kind (a subclass, named, batched, ...)",
        ("CPU", "CUDA"),
    ),
    (lambda: (ones(MANY, 4, dtype=torch.bits8), 0), "dtype that is not copied", ("CPU", "CUDA")),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "reason", "keys"), DECLINES, ids=[reason for _, reason, _ in DECLINES])
def test_declined(make: Made, reason: str, keys: tuple[str, ...]) -> None:
    tensors, dim = make()
    for key in ("CPU", "CUDA"):
        assert aten_ext.explain("cat", tensors, dim, key=key).reason == (reason if key in keys else "")
    theirs = upstream(lambda: torch.cat(tensors, dim))
    aten_ext.reset_counts()
    ours = outcome(lambda: torch.cat(tensors, dim))
    if isinstance(theirs, tuple):
        assert ours == theirs
        return
    if theirs.is_nested or theirs.is_quantized or theirs.layout != torch.strided:
        # They have kernels of their own, which may call this one for their parts.
        assert str(ours) == str(theirs)
        return
    assert_same(ours, theirs)
    counts = aten_ext.counts("CPU")["cat"]
    if "CPU" in keys:
        assert (counts.ran, dict(counts.declined)) == (0, {reason: 1})


@pytest.mark.parametrize("key", ["Conjugate", "Negative", "ZeroTensor"])
def test_lazy_values_are_resolved_before(device: str, key: str) -> None:
    """By a dispatch key that comes first; without it, the rule says no."""
    complex_ = [t.nan_to_num(0.0) for t in ones(70, 4, dtype=torch.complex64, device=device)]
    lazy = {
        "Conjugate": lambda: [t.conj() for t in complex_],
        "Negative": lambda: [t.conj().imag for t in complex_],
        "ZeroTensor": lambda: [torch._efficientzerotensor(4, device=device), *ones(70, 4, device=device)],
    }[key]()
    theirs = upstream(lambda: torch.cat(lazy))
    aten_ext.reset_counts()
    ours = torch.cat(lazy)
    if key != "ZeroTensor":
        assert_ran(device)
    assert_same(ours, theirs)
    excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    with torch._C._ExcludeDispatchKeyGuard(excluded):
        explained = aten_ext.explain("cat", lazy)
    assert explained.reason == "conjugate, negative or zero tensor that is not resolved"


def test_tensors_of_transformations_are_left_alone(device: str) -> None:
    """Functionalization and vmap see to theirs first, and what is plain then arrives."""
    tensors = ones(70, 4, dtype=torch.int32, device=device)
    batched = torch.vmap(lambda *xs: torch.cat([x[None] for x in xs]))
    theirs = upstream(lambda: batched(*tensors))
    aten_ext.reset_counts()
    assert_same(batched(*tensors), theirs)
    assert aten_ext.counts(device.upper())["cat"].ran == 1
    functional = torch.func.functionalize(lambda *xs: torch.cat(xs))
    assert_same(functional(*tensors), upstream(lambda: torch.cat(tensors)))
    assert aten_ext.counts(device.upper())["cat"].ran == 2


def test_meta_and_fake_tensors_never_come_here() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert torch.cat([torch.zeros(4)] * 70).shape == (280,)
    assert torch.cat([torch.zeros(4, device="meta")] * 70).shape == (280,)
    assert aten_ext.counts("CPU")["cat"].ran == 0


# ---- edges of the policy on CPU ----------------------------------------------------------------------

GRAIN = 32768
# (inputs, dim, threads, whether ours runs), one either side of each edge.
EDGES: list[tuple[Callable[[], list[torch.Tensor]], int, int, bool]] = [
    # Upstream's serial kernel, one row: 64 inputs of 512 bytes.
    (lambda: ones(FEW, 4), 0, 1, False),
    (lambda: ones(MANY, 4), 0, 1, True),
    (lambda: ones(70, 128), 0, 1, True),
    (lambda: ones(70, 129), 0, 1, False),
    # The same, many rows: 128 bytes.
    (lambda: ones(70, 4, 8), 1, 1, True),
    (lambda: ones(70, 4, 9), 1, 1, False),
    (lambda: ones(FEW, 4, 4), 1, 1, False),
    # Iterators with threads: 2048 bytes, GRAIN elements of the result, no input of GRAIN.
    (lambda: ones(64, 512), 0, 2, True),
    (lambda: ones(64, 512), 0, 1, False),
    (lambda: ones(65, 513), 0, 2, False),
    (lambda: ones(64, 511), 0, 2, False),
    (lambda: ones(FEW, 521), 0, 2, False),
    (lambda: ones(512, 512), 0, 2, True),
    (lambda: ones(513, 512), 0, 2, False),  # beyond 1 MiB: 512 bytes, 4 MiB
    (lambda: ones(2049, 128), 0, 2, True),
    (lambda: ones(2049, 129), 0, 2, False),
    (lambda: ones(8192, 128), 0, 2, True),
    (lambda: ones(8193, 128), 0, 2, False),
    (lambda: [*ones(70, 16), *ones(1, GRAIN - 1)], 0, 2, True),
    (lambda: [*ones(70, 16), *ones(1, GRAIN)], 0, 2, False),
    # Iterators without: any dtype but floating-point in many rows; 32 KiB, then 64 inputs of 1024 bytes.
    (lambda: ones(2, 1, 2048, dtype=torch.int64), 1, 1, True),
    (lambda: ones(2, 1, 2049, dtype=torch.int64), 1, 1, False),
    (lambda: ones(1, 1, 2048, dtype=torch.int64), 1, 1, True),
    (lambda: ones(70, 4, 32, dtype=torch.int64), 1, 1, True),
    (lambda: ones(70, 4, 33, dtype=torch.int64), 1, 1, False),
    (lambda: ones(FEW, 4, 32, dtype=torch.int64), 1, 1, False),
    # A skipped input, in floating point.
    (lambda: [torch.empty(0), *ones(70, 4, 64)], 1, 1, True),
    (lambda: [torch.empty(0), *ones(70, 4, 65)], 1, 1, False),
    # Decided by the first input: a large one in front of many small ones is given away.
    (lambda: [*ones(1, 1000), *ones(700, 4)], 0, 1, False),
    (lambda: [*ones(70, 4), *ones(1, 1000)], 0, 1, True),
    (lambda: ones(2, 4, dtype=torch.int64), 0, 1, False),
    (lambda: [*ones(1, 8, 511, dtype=torch.int64), *ones(1, 8, 1, dtype=torch.int64)], 1, 1, True),
]


@pytest.mark.parametrize(("make", "dim", "threads", "runs"), EDGES)
def test_edges_on_cpu(make: Callable[[], list[torch.Tensor]], dim: int, threads: int, runs: bool) -> None:
    tensors = make()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert (compare(tensors, dim, "cpu") == "") == runs
    finally:
        torch.set_num_threads(before)


def test_an_input_that_upstream_copies_with_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tensors = [*ones(70, 16), *ones(1, GRAIN)]
        assert compare(tensors, 0, "cpu") == "input that upstream copies with threads"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("run", [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 128, 255, 256, 257])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_runs_of_every_length_on_cpu(rows: int, run: int) -> None:
    tensors = [
        t[:, : (run + i) % run + 1].contiguous() for i, t in enumerate(ones(70, rows, run, dtype=torch.uint8))
    ]
    assert compare(tensors, 1, "cpu") == ""
