"""cat where ours declines: every reason, upstream's own result, or upstream's own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import aten_ext
from ops.cat.reference import FEW, MANY, assert_ran, assert_same, ones, outcome, upstream
from strategies import random_bits

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


# ---- what upstream takes -----------------------------------------------------------------------------


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
