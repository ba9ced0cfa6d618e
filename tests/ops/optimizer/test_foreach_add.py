"""_foreach_add_.Scalar on lists of single numbers: against upstream, with versions, and every decline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import aten_ext
from aten_ext._cost import cost
from device_on_host import library
from gpus import GPUS, lacks, plan_needs, pretended

OPERATOR = "_foreach_add_"
NAME = f"{OPERATOR}.Scalar"
on_host = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


def meta(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def numbers(values: list[float], device: str = "cpu") -> list[Tensor]:
    return [torch.tensor(value, dtype=torch.float32, device=device) for value in values]


def add(tensors: list[Tensor], scalar: Any) -> None:
    torch._foreach_add_(tensors, scalar)


def upstream(tensors: list[Tensor], scalar: Any) -> None:
    with aten_ext.disabled(NAME):
        add(tensors, scalar)


def counts(device: str) -> tuple[int, dict[str, int]]:
    found = aten_ext.counts(device.upper())[NAME]
    return found.ran, dict(found.declined)


def outcome(action: Callable[[], object]) -> tuple[str, str] | None:
    """The type and text of the error that is raised, if one is."""
    try:
        action()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(floats, min_size=1, max_size=40),
    scalar=st.one_of(floats, st.floats(-1e30, 1e30), st.integers(-(2**62), 2**62)),
    twice=st.booleans(),
)
def test_sums_are_upstreams(device: str, values: list[float], scalar: float | int, twice: bool) -> None:
    ours, theirs = numbers(values, device), numbers(values, device)
    if twice and device == "cpu":  # on CUDA upstream itself races
        ours, theirs = ours + ours[:1], theirs + theirs[:1]
    aten_ext.reset_counts()
    add(ours, scalar)
    assert counts(device) == (1, {})
    upstream(theirs, scalar)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)
        assert mine._version == other._version


# One either side of what one launch takes with small kernel arguments, and with large ones.
@pytest.mark.parametrize("count", [1, 510, 511, 512, 4094, 4095])
def test_long_lists(device: str, count: int) -> None:
    values = [float(i) for i in range(count)]
    ours = numbers(values, device)
    add(ours, 1)
    assert counts(device) == (1, {})
    assert torch.stack(ours).tolist() == [value + 1 for value in values]


def test_any_shape_and_offset(device: str) -> None:
    """One number of any rank, in a storage of its own or not; what lies beside it is left alone."""
    storage = torch.zeros(8, device=device)
    add([storage[3], storage[5:6], storage[7:].view(1, 1)], 2.5)
    assert counts(device) == (1, {})
    assert storage.tolist() == [0, 0, 0, 2.5, 0, 2.5, 0, 2.5]


def test_no_grad_and_inference_mode(device: str) -> None:
    for mode in (torch.no_grad(), torch.inference_mode()):
        tensors = numbers([1.0, 2.0], device)
        with mode:
            add(tensors, 1)
        assert [t._version for t in tensors] == [1, 1]
    assert counts(device) == (2, {})


def test_autograd_notices_the_change(device: str) -> None:
    """A number that a graph has saved: backward raises, as it does with upstream."""
    x, saved = torch.ones((), device=device, requires_grad=True), torch.ones((), device=device)
    product = x * saved
    add([saved], 1)
    assert counts(device) == (1, {})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_versions_that_a_caller_counts_itself() -> None:
    """Below ADInplaceOrView upstream's add_ leaves the version to whoever went there, and so it stays."""
    ours, theirs = numbers([1.0]), numbers([1.0])
    with torch._C._AutoDispatchBelowADInplaceOrView():
        add(ours, 1)
        upstream(theirs, 1)
    assert counts("cpu") == (1, {})
    assert ours[0]._version == theirs[0]._version == 0
    assert torch.equal(ours[0], theirs[0])


def test_copy_on_write() -> None:
    source = torch.zeros(())
    lazy = torch._lazy_clone(source)
    add([lazy], 1)
    assert counts("cpu") == (1, {})
    assert (source.item(), lazy.item()) == (0, 1) and not torch._C._is_cow_tensor(lazy)


def inference_tensor() -> Tensor:
    with torch.inference_mode():
        return torch.zeros(())


NOT_ONE_FLOAT = "tensor that is not one float32 on the first one's device"
NOT_REAL = "scalar that is not a real number"
BEYOND = "scalar beyond the range of float32"
DECLINES: list[tuple[Callable[[], list[Tensor]], Any, str]] = [
    (lambda: [torch.zeros(()), torch.zeros(2)], 1, NOT_ONE_FLOAT),
    (lambda: [torch.zeros(0)], 1, NOT_ONE_FLOAT),
    (lambda: [torch.zeros(1).expand(3)], 1, NOT_ONE_FLOAT),
    (lambda: [torch.zeros((), dtype=torch.float64)], 1, NOT_ONE_FLOAT),
    (lambda: [torch.zeros((), dtype=torch.bfloat16)], 1, NOT_ONE_FLOAT),
    (lambda: [torch.zeros((), dtype=torch.int32)], 1, NOT_ONE_FLOAT),
    (lambda: [torch.zeros((), dtype=torch.int64)], 2**63 - 1, NOT_ONE_FLOAT),
    (lambda: [torch.zeros((), dtype=torch.int32)], 1.5, NOT_ONE_FLOAT),
    (lambda: [torch.zeros((), dtype=torch.bool)], 1, NOT_ONE_FLOAT),
    (lambda: [torch.zeros((), dtype=torch.complex64)], 1, NOT_ONE_FLOAT),
    (lambda: [torch.zeros(())], 1j, NOT_REAL),
    (lambda: [torch.zeros(())], True, NOT_REAL),
    (lambda: [torch.zeros(())], 1e39, BEYOND),
    (lambda: [torch.zeros(())], -1e300, BEYOND),
    (lambda: [torch.zeros(()), inference_tensor()], 1, "inference tensor"),
]


@pytest.mark.parametrize(("make", "scalar", "reason"), DECLINES)
def test_decline_is_upstream(make: Callable[[], list[Tensor]], scalar: Any, reason: str) -> None:
    """Same result or same error as without aten_ext, and counted under its own reason."""
    ours, theirs = make(), make()
    expected = outcome(lambda: upstream(theirs, scalar))
    aten_ext.reset_counts()
    assert outcome(lambda: add(ours, scalar)) == expected
    assert counts("cpu") == (0, {reason: 1})
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)


def test_no_tensors_is_upstreams_error() -> None:
    """Without a tensor no backend is meant, so the call does not reach an override at all."""
    with pytest.raises(RuntimeError, match="Tensor list must have at least one tensor"):
        add([], 1)
    assert counts("cpu") == (0, {})


def test_a_leaf_that_requires_grad_is_upstreams_error() -> None:
    leaf = torch.zeros((), requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        add([leaf], 1)
    assert counts("cpu") == (0, {}) and leaf.item() == 0


def test_another_device_is_declined() -> None:
    """Asked with meta tensors: no GPU needed."""
    answer = aten_ext.explain(
        torch._foreach_add_, [torch.zeros(()), torch.zeros((), device="meta")], 1, key="CUDA"
    )
    assert answer.reason == NOT_ONE_FLOAT
    answer = aten_ext.explain(torch._foreach_add_, [torch.zeros((), device="meta")] * 2, 1, key="CUDA")
    assert (answer.override, answer.reason) == (NAME, "")


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "Adagrad"])
def test_step_counters_of_an_optimizer(kind: str) -> None:
    """What the override is for: torch.optim counts each parameter's steps with it."""
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(5)]
    optimizer = getattr(torch.optim, kind)(parameters, fused=True)
    for _ in range(3):
        sum(p.square().sum() for p in parameters).backward()  # type: ignore[union-attr]
        optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in parameters] == [3.0] * 5
    assert aten_ext.counts("CPU")[NAME].ran == 3


@pytest.mark.gpu
def test_graph_capture() -> None:
    tensors = numbers([float(i) for i in range(5000)], "cuda")
    add(numbers([0.0], "cuda"), 1)  # load the kernel outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add(tensors, 1)
    for _ in range(3):
        graph.replay()
    assert torch.stack(tensors).tolist() == [i + 3.0 for i in range(5000)]
    assert counts("cuda") == (2, {})


@pytest.mark.gpu
def test_other_stream_and_device() -> None:
    """On the last device, from a stream of its own, while device 0 is the current one."""
    device = f"cuda:{torch.cuda.device_count() - 1}"
    tensors = numbers([1.0, 2.0, 3.0], device)
    torch.cuda.synchronize(device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        add(tensors, 1)
    stream.synchronize()
    assert counts("cuda") == (1, {})
    assert torch.stack(tensors).tolist() == [2.0, 3.0, 4.0]


def test_the_plan_in_words() -> None:
    answer = aten_ext.explain(NAME, numbers([1.0, 2.0]), 1, key="CPU")
    assert (answer.override, answer.reason, answer.plan) == (NAME, "", "one loop over the numbers")


@pytest.mark.parametrize(
    ("overload", "arguments", "expected"),
    [
        ("Scalar", dict(self=[meta(10), meta(6)], scalar=1), (128, 16)),
        ("List", dict(self=[meta(10)], other=[meta(10)], alpha=2), (120, 20)),
        ("Tensor", dict(self=[meta(10)], other=meta(), alpha=1), (80, 10)),
    ],
)
def test_cost(overload: str, arguments: dict[str, Any], expected: tuple[int, int]) -> None:
    """Lists read and written, a second list read."""
    found = cost(f"{OPERATOR}.{overload}", arguments)
    assert found is not None and (found.bytes, found.flops, found.dtype) == (*expected, "float32")


def test_shadow_mode_of_a_tensor_twice_in_the_list() -> None:
    """Twins share memory where the originals do: two additions, one after the other, on both sides."""
    counter, other = torch.tensor(3.0), torch.tensor(5.0)
    with aten_ext.shadow() as report:
        add([counter, other, counter], 1)
    (only,) = report.rows
    assert (only.override, only.compared, only.error) == (NAME, 1, "")
    assert report.exact and counts("cpu") == (1, {})
    assert (counter.item(), other.item()) == (5.0, 6.0)


@pytest.mark.parametrize("gpu", GPUS)
def test_what_is_chosen_fits(gpu: str) -> None:
    with pretended(GPUS[gpu]) as facts:
        needs = plan_needs(NAME, [torch.empty((), device="meta")] * 90, 1)
        assert needs is not None and lacks(facts, needs) is None


def on_the_emulator() -> Any:
    """The CUDA side, compiled for the CPU."""
    library.load("foreach_add", "ops/optimizer/cuda/foreach_add.cpp", "ops/optimizer/cuda/foreach_add.cu")
    return torch.ops.aten_ext_on_host._foreach_add_.Scalar


@on_host
@pytest.mark.parametrize("count", [1, 127, 128, 129, 511, 512, 4094, 4095, 9000])
def test_every_length_on_host(count: int) -> None:
    """Every number once, whatever the number of blocks and launches, and versions as upstream counts them."""
    tensors = [torch.tensor(float(i)) for i in range(count)]
    on_the_emulator()(tensors, 1)
    assert torch.stack(tensors).tolist() == [i + 1.0 for i in range(count)]
    assert {t._version for t in tensors} == {1}


@on_host
def test_refused_launches() -> None:
    tensors = [torch.tensor(1.0) for _ in range(5000)]
    call, control = on_the_emulator(), torch.ops.aten_ext_on_host_foreach_add
    control.refuse(1)
    with pytest.raises(RuntimeError, match="declined late"):
        call(tensors, 1)
    assert {t.item() for t in tensors} == {1.0} and {t._version for t in tensors} == {0}
    control.refuse(1, 1)
    with pytest.raises(RuntimeError, match="an error of device_on_host"):
        call(tensors, 1)
    assert tensors[0].item() == 2.0 and tensors[-1].item() == 1.0
