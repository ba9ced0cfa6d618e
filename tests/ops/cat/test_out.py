"""cat.out: what is written where, when it runs, and every decline of its own."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import aten_ext
from ops.cat.reference import assert_ran, assert_same, bits, ones, outcome, upstream
from strategies import Concatenation, concatenations, fixture_is_fine

STRIDED_VECTORS = "strided vectors that upstream reads as fast"


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
        assert counts.ran == 1 or explained.reason == STRIDED_VECTORS
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
