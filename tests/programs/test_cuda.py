"""Streams, events and devices of CUDA around the overrides: value and route."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

import aten_ext
from programs.cases import Case, each
from programs.routes import asked, check, eager_route, is_exact, without_cudnn_tf32
from torch_databases.comparison import differences

pytestmark = pytest.mark.gpu


@each()
def test_other_stream(case: Case) -> None:
    """On a stream of its own, ordered by events: filled before, read after, on the default stream."""

    def program() -> Any:
        stream, filled, done = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
        arguments = case.make("cuda")
        torch.cuda._sleep(2_000_000)  # a kernel on the wrong stream would read before this has ended
        pytree.tree_map_only(Tensor, lambda t: t.mul_(2), arguments)
        filled.record()
        with torch.cuda.stream(stream):
            stream.wait_event(filled)
            result = case.call(*arguments)
            done.record()
        torch.cuda.current_stream().wait_event(done)
        doubled = pytree.tree_map_only(Tensor, lambda t: t * 2, (result, arguments))
        torch.cuda.synchronize()
        return doubled

    check(case, "cuda", program)


@each()
def test_streams_side_by_side(case: Case) -> None:
    """Calls on several streams at once do not share anything."""

    def program() -> Any:
        streams = [torch.cuda.Stream() for _ in range(4)]
        everything = [case.make("cuda") for _ in streams]
        torch.cuda.synchronize()
        results = []
        for _ in range(5):
            for stream, arguments in zip(streams, everything, strict=True):
                with torch.cuda.stream(stream):
                    results.append(case.call(*arguments))
        torch.cuda.synchronize()
        return everything, results

    check(case, "cuda", program, calls=20)


@each()
def test_no_synchronisation(case: Case) -> None:
    """Where upstream does not wait for the device, neither do we."""
    case.call(*case.make("cuda"))

    def waits() -> bool:
        arguments = case.make("cuda")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            case.call(*arguments)
        except RuntimeError as error:
            assert "synchroniz" in str(error)
            return True
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return False

    with aten_ext.disabled():
        theirs = waits()
    assert not waits() or theirs


@each()
def test_memory_is_given_back(case: Case) -> None:
    """Nothing of ours stays allocated after a call."""
    case.call(*case.make("cuda"))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    case.call(*case.make("cuda"))
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.multigpu
@each()
@without_cudnn_tf32()
def test_other_device_than_the_current(case: Case) -> None:
    """Tensors on the last device while the first is current, which it still is afterwards."""
    plain = eager_route(case, "cuda")
    last = f"cuda:{torch.cuda.device_count() - 1}"
    with aten_ext.disabled(), torch.cuda.device(last):
        arguments = case.make(last)
        expected = case.call(*arguments), arguments
    aten_ext.reset_counts()
    with torch.cuda.device(0):
        arguments = case.make(last)
        found = case.call(*arguments), arguments
        assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(last)
    assert asked(case, "CUDA") == plain
    assert not [*differences(found, expected, exact=is_exact(case, "cuda"))]
