"""Modes, transforms and kinds of tensors around the overrides: value and route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import aten_ext
from programs.cases import Case, by_name, each
from programs.routes import (
    ANY,
    COMPOSED,
    GENERATED,
    UNCOUNTED,
    asked,
    check,
    eager_route,
    is_exact,
)
from torch_databases.comparison import differences

Map = Callable[[Tensor], Tensor]


def called(case: Case, device: str, change: Map | None = None) -> Any:
    """The result and the arguments afterwards."""
    arguments = case.make(device)
    if change is not None:
        arguments = pytree.tree_map_only(Tensor, change, arguments)
    return case.call(*arguments), arguments


# ---- nothing but a shape -------------------------------------------------------------------------------


@each()
def test_fake_tensor(case: Case, device: str) -> None:
    """Shapes without data: no kernel of ours is asked."""

    def program() -> Any:
        with FakeTensorMode() as mode:
            arguments = pytree.tree_map_only(Tensor, mode.from_tensor, case.make(device))
            result = case.call(*arguments)
        return [(t.shape, t.dtype, t.device, t.stride()) for t in pytree.tree_leaves(result) if t is not None]

    # Without a meta kernel FakeTensor calls the real one, with tensors of its own, and caches the result.
    calls_kernels = case.may_raise("meta", device) or device.upper() in case.traced_by_calling
    may_raise = case.may_raise("meta", device) or case.may_raise("fake", device)
    check(case, device, program, expect=UNCOUNTED if calls_kernels else GENERATED, may_raise=may_raise)


@each()
def test_meta(case: Case, device: str) -> None:
    def program() -> Any:
        return [t.shape for t in pytree.tree_leaves(called(case, "meta")[0]) if t is not None]

    check(case, device, program, expect=GENERATED, may_raise=case.may_raise("meta", device))


# ---- torch.func ----------------------------------------------------------------------------------------


@each(in_place=False)
def test_grad(case: Case, device: str) -> None:
    """Reverse mode by torch.func, through the operator."""

    def program() -> Any:
        arguments = case.make(device)

        def loss(*tensors: Tensor) -> Tensor:
            return torch.stack([t.square().sum() for t in pytree.tree_leaves(case.call(*tensors))]).sum()

        return torch.func.grad_and_value(loss, argnums=tuple(range(len(arguments))))(*arguments)

    check(case, device, program, expect=COMPOSED, may_raise=case.may_raise("grad", device))


@each(in_place=False)
def test_autograd(case: Case, device: str) -> None:
    def program() -> Any:
        arguments = [t.requires_grad_() for t in case.make(device)]
        outputs = pytree.tree_leaves(case.call(*arguments))
        return outputs, torch.autograd.grad(torch.stack([t.square().sum() for t in outputs]).sum(), arguments)

    check(case, device, program, expect=COMPOSED, may_raise=case.may_raise("autograd", device))


@each(in_place=False)
def test_jvp(case: Case, device: str) -> None:
    """Forward mode."""

    def program() -> Any:
        arguments = case.make(device)
        return torch.func.jvp(case.call, arguments, tuple(torch.ones_like(t) for t in arguments))

    check(case, device, program, expect=ANY, may_raise=case.may_raise("jvp", device))


@each()
def test_vmap(case: Case, device: str) -> None:
    """The same answer, or upstream's own error where the operator has no batching rule."""

    def program() -> Any:
        batched = pytree.tree_map_only(Tensor, lambda t: torch.stack([t, t + 1]), case.make(device))
        return torch.vmap(case.call)(*batched), batched

    check(case, device, program, expect=ANY, may_raise=case.may_raise("vmap", device))


@each()
def test_functionalize(case: Case, device: str) -> None:
    def program() -> Any:
        arguments = case.make(device)
        return torch.func.functionalize(case.call)(*arguments), arguments

    check(case, device, program, may_raise=case.may_raise("functionalize", device))


# ---- modes of PyTorch ----------------------------------------------------------------------------------


@each()
@pytest.mark.parametrize("inside", [False, True], ids=["made outside", "made inside"])
def test_inference_mode(case: Case, device: str, inside: bool) -> None:
    def program() -> Any:
        outside = case.make(device)
        with torch.inference_mode():
            arguments = case.make(device) if inside else outside
            return case.call(*arguments), arguments

    check(case, device, program)


@each()
def test_no_grad(case: Case, device: str) -> None:
    def program() -> Any:
        with torch.no_grad():
            return called(case, device)

    check(case, device, program)


@each()
def test_deterministic_algorithms(case: Case, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable that PyTorch asks for, or products of matrices are upstream's matter."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def program() -> Any:
        torch.use_deterministic_algorithms(True)
        try:
            return called(case, device)
        finally:
            torch.use_deterministic_algorithms(False)

    check(case, device, program)


@each(in_place=False)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(case: Case, device: str, dtype: torch.dtype) -> None:
    def program() -> Any:
        with torch.autocast(device, dtype):
            return called(case, device)

    check(case, device, program, expect=ANY)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["AdamW", "Adam"])
def test_mixed_precision_training(device: str, dtype: torch.dtype, kind: str) -> None:
    """Autocast with GradScaler, which skips a step with infinite gradients: parameters, states and scale."""
    case = by_name[kind.lower()]

    def train() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.GELU(), torch.nn.Linear(40, 3)).to(
            device
        )
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-2, fused=True)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
        scales = []
        for step in range(6):
            x = torch.randn(16, 12, device=device)
            optimizer.zero_grad()
            with torch.autocast(device, dtype):
                loss = model(x).float().square().mean() * (torch.inf if step == 3 else 1.0)
            scaler.scale(loss).backward()
            if step == 4:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return [p.detach() for p in model.parameters()], optimizer.state_dict()["state"], scales

    # On CUDA upstream's fp32 Adam rounds one element in four differently; without decay it does not.
    *_, scales = check(case, device, train, calls=6)
    assert scales == [1024.0, 2048.0, 2048.0, 1024.0, 1024.0, 2048.0]


class CountingMode(TorchDispatchMode):
    """Passes every operator on, and keeps its name."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called above every backend kernel."""
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class PassingMode(TorchFunctionMode):
    """Passes every function on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called in place of every function of the torch namespace."""
        return func(*args, **(kwargs or {}))


@each()
def test_torch_dispatch_mode(case: Case, device: str) -> None:
    """The mode sees the operators as before, and what it passes on reaches the override."""

    def program() -> Any:
        with CountingMode() as mode:
            return called(case, device), mode.seen

    _, seen = check(case, device, program, expect=COMPOSED)
    assert seen


@each()
def test_torch_function_mode(case: Case, device: str) -> None:
    def program() -> Any:
        with PassingMode():
            return called(case, device)

    check(case, device, program)


# ---- kinds of tensors ----------------------------------------------------------------------------------


class Named(Tensor):
    """A subclass that adds nothing."""


@each()
def test_plain_subclass(case: Case, device: str) -> None:
    def program() -> Any:
        result, arguments = called(case, device, lambda t: t.as_subclass(Named))
        kinds = [type(t).__name__ for t in pytree.tree_leaves((result, arguments)) if t is not None]
        return pytree.tree_map_only(Tensor, lambda t: t.as_subclass(Tensor), (result, arguments)), kinds

    check(case, device, program)


@each()
def test_wrapper_subclass(case: Case, device: str) -> None:
    """Two tensors that travel as one: the operator runs twice."""

    def program() -> Any:
        result, arguments = called(case, device, lambda t: TwoTensor(t.clone(), t + 1))
        found = [t for t in pytree.tree_leaves((result, arguments)) if isinstance(t, TwoTensor)]
        return [(t.a, t.b) for t in found]

    check(case, device, program, expect=COMPOSED, calls=2)


@each()
def test_copy_on_write(case: Case, device: str) -> None:
    """What upstream reads through ``const_data_ptr`` we do not copy either; sources stay as they were."""
    if device == "cuda" and case.in_place:
        pytest.skip("upstream's kernels write through memory that is shared: see test_copy_on_write_in_place")
    runs = []

    def program() -> Any:
        sources = case.make(device)
        arguments = pytree.tree_map_only(Tensor, torch._lazy_clone, sources)
        result = case.call(*arguments)
        lazy = [torch._C._is_cow_tensor(t) for t in pytree.tree_leaves(arguments)]
        runs.append((lazy, [*differences(sources, case.make(device), exact=True)]))
        return result, pytree.tree_map_only(Tensor, torch.clone, arguments)

    check(case, device, program)
    (upstream, changed_by_upstream), (ours, changed) = runs
    assert not changed and not changed_by_upstream, "a tensor that only shares memory with an argument"
    assert all(mine for mine, theirs in zip(ours, upstream, strict=True) if theirs), (ours, upstream)


@pytest.mark.gpu
@each()
def test_copy_on_write_in_place(case: Case) -> None:
    """The optimizers' CUDA kernels upstream (2.11) write where they promise to read; ours do not.

    So what ours are held to is upstream's result of tensors that share nothing.
    """
    if not case.in_place:
        pytest.skip("writes to no argument: see test_copy_on_write")
    route = eager_route(case, "cuda")
    expected = case.make("cuda")
    with aten_ext.disabled():
        case.call(*expected)
    sources = case.make("cuda")
    arguments = pytree.tree_map_only(Tensor, torch._lazy_clone, sources)
    aten_ext.reset_counts()
    case.call(*arguments)
    assert asked(case, "CUDA") == route
    assert [*differences(sources, case.make("cuda"), exact=True)] == []
    assert all(torch._C._is_cow_tensor(t) for t in pytree.tree_leaves(arguments[1])), (
        "gradients are read only"
    )
    found = pytree.tree_map_only(Tensor, torch.clone, arguments)
    assert [*differences(found, expected, exact=is_exact(case, "cuda"))] == []


@each()
def test_negative_views(case: Case, device: str) -> None:
    """Tensors whose sign bit is to be flipped on reading, as the imaginary part of a conjugate is."""

    def program() -> Any:
        result, arguments = called(case, device, lambda t: torch._neg_view(-t) if t.dim() else t)
        return result, arguments

    check(case, device, program, expect=ANY, may_raise=case.may_raise("views", device))


@each()
def test_conjugate_views(case: Case, device: str) -> None:
    """Complex conjugates that nobody has computed yet; upstream's own error where it takes no complex."""

    def program() -> Any:
        return called(case, device, lambda t: torch.complex(t, -t).conj() if t.dim() else t)

    check(case, device, program, expect=ANY, may_raise=case.may_raise("views", device))


@each(in_place=True)
def test_complex_parameters(case: Case, device: str) -> None:
    """As torch.optim passes them: views as real tensors."""

    def program() -> Any:
        return called(case, device, lambda t: torch.view_as_real(torch.complex(t, t)) if t.dim() else t)

    check(case, device, program)
