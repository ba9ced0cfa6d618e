"""torch.compile, torch.export and CUDA graphs around the overrides: value and route."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

import aten_ext
from programs.cases import Case, by_name, each
from programs.routes import (
    ANY,
    EAGER,
    GENERATED,
    UNCOUNTED,
    check,
    eager_route,
    is_exact,
    is_registered,
    without_cudnn_tf32,
)

pytestmark = pytest.mark.filterwarnings("ignore")


UNTRACEABLE = "upstream cannot trace it: no meta kernel, or an empty list that it takes for plain tensors"


def untraceable(case: Case) -> bool:
    """Whether upstream itself fails to trace a direct call of the operator."""
    return bool(case.raises & {"meta", "functionalize"})


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def _inductor_expects(case: Case) -> str:
    """Inductor writes its own code for some operators, and calls the others through the dispatcher."""
    if case.generated:
        return GENERATED
    return EAGER if case.in_place else ANY


def needs_compiler(device: str) -> None:
    """Inductor's CPU code is C++."""
    if device == "cpu" and shutil.which("g++") is None:
        pytest.skip("no g++, which Inductor compiles with")


def returning(case: Case, compiled: Callable[..., Any], device: str, times: int = 3) -> Callable[[], Any]:
    """A program: call ``compiled`` some times (compilation, warm-up, steady state); results and arguments."""

    def program() -> Any:
        arguments = case.make(device)
        results = [pytree.tree_map_only(Tensor, torch.clone, compiled(*arguments)) for _ in range(times)]
        return results, arguments

    return program


def trace(case: Case, compiled: Callable[..., Any], device: str) -> None:
    """Let it compile: tracing may call real kernels, which only the first of two programs would do."""
    with contextlib.suppress(Exception) if untraceable(case) else contextlib.nullcontext():
        compiled(*case.make(device))


def recording(case: Case, mode: str) -> Callable[[], Any]:
    """A program that compiles anew: CUDA graphs play back those kernels that were on at their recording."""

    def program() -> Any:
        torch.compiler.reset()
        return returning(case, torch.compile(case.call, mode=mode), "cuda")()

    return program


@each()
def test_aot_eager(case: Case, device: str) -> None:
    """Traced, functionalised and run operator by operator."""
    expect = EAGER if case.in_place else ANY
    compiled = torch.compile(case.call, backend="aot_eager", fullgraph=True)
    trace(case, compiled, device)
    check(
        case, device, returning(case, compiled, device), expect=expect, may_raise=untraceable(case), calls=3
    )


@each()
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_inductor(case: Case, device: str, mode: str) -> None:
    needs_compiler(device)
    expect = _inductor_expects(case)
    if mode == "default" or device == "cpu":
        compiled = torch.compile(case.call, mode=mode)
        trace(case, compiled, device)
        program, calls = returning(case, compiled, device), 3
    else:
        program, calls = recording(case, mode), 1
        expect = UNCOUNTED if device.upper() in case.traced_by_calling else expect
    check(case, device, program, expect=expect, may_raise=untraceable(case), calls=calls)


@each()
def test_dynamic_shapes(case: Case, device: str) -> None:
    """One compilation for several sizes."""
    if untraceable(case):
        pytest.skip(UNTRACEABLE)
    if case.name in ("gru", "gru_inference", "gru_cell", "lstm_cell", "linear"):
        pytest.skip("the sizes of its arguments depend on each other")
    compiled = torch.compile(case.call, backend="aot_eager", dynamic=True)

    def program() -> Any:
        everything = []
        for rows in (2, 5, 9):
            arguments = pytree.tree_map_only(
                Tensor,
                lambda t, rows=rows: t.repeat(rows, *[1] * (t.dim() - 1)) if t.dim() else t,
                case.make(device),
            )
            everything.append((compiled(*arguments), arguments))
        return everything

    check(case, device, program, calls=3)


@each()
def test_toggle_recompiles_nothing(case: Case, device: str) -> None:
    """The flag is read at each call: turning overrides on and off is none of the compiler's business."""
    if untraceable(case):
        pytest.skip(UNTRACEABLE)
    compiled = torch.compile(case.call, backend="aot_eager")
    arguments = case.make(device)
    compiled(*arguments)
    torch._dynamo.utils.counters.clear()
    with aten_ext.disabled():
        compiled(*arguments)
    compiled(*arguments)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0


class Program(torch.nn.Module):
    """A case as a module, for torch.export."""

    def __init__(self, case: Case) -> None:
        """Its forward calls ``case``."""
        super().__init__()
        self.case = case

    def forward(self, *arguments: Any) -> Any:
        """Call it."""
        return self.case.call(*arguments)


@each()
def test_export(case: Case, device: str) -> None:
    if untraceable(case):
        pytest.skip(UNTRACEABLE)
    exported = torch.export.export(Program(case), case.make(device))
    program = returning(case, exported.module(), device, times=1)
    check(case, device, program, expect=EAGER if case.in_place or case.name == "cat" else ANY)


def test_compiled_optimizer(device: str) -> None:
    """torch.compile of a fused optimizer's step calls the fused operator, and the override with it."""
    needs_compiler(device)

    def train() -> Any:
        torch.compiler.reset()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        step = torch.compile(optimizer.step)
        x = torch.randn(5, 7, device=device)
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            step()
        return [p.detach() for p in model.parameters()], optimizer.state_dict()["state"]

    case = by_name["adamw"]
    check(case, device, train, expect=ANY)
    counts = aten_ext.counts(device.upper())
    assert sum(counts[name].ran for name in ("_fused_adamw_", "_fused_adamw_.tensor_lr")) == 4


# ---- CUDA graphs ---------------------------------------------------------------------------------------


def _captured(case: Case, arguments: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries are loaded, workspaces made
        case.call(*case.make("cuda"))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = case.call(*arguments)
    return graph, result


@pytest.mark.gpu
@each()
@without_cudnn_tf32()
def test_graph_replays(case: Case) -> None:
    """A thousand replays with changed inputs, the same after each as replays of upstream's own capture."""
    plain = eager_route(case, "cuda")
    sides = []
    for enabled in (False, True):
        aten_ext.reset_counts()
        arguments = case.make("cuda")
        if enabled:
            graph, result = _captured(case, arguments)
            fused = sum(counts.ran for counts in aten_ext.counts("CUDA").values())
        else:
            with aten_ext.disabled():
                graph, result = _captured(case, arguments)
        sides.append((graph, arguments, result))
    if is_registered(case, "CUDA") and any(ran for ran, _ in plain.values()):
        assert fused >= 2, "once to warm up, once captured"
    aten_ext.reset_counts()
    tolerance = {"rtol": 0.0, "atol": 0.0} if is_exact(case, "cuda") else {"rtol": 1e-4, "atol": 1e-5}
    generator = torch.Generator().manual_seed(0)
    for _ in range(1000):
        changed = [torch.randn(t.shape, generator=generator) for t in _inputs(case, sides[0][1])]
        for graph, arguments, _ in sides:
            for t, new in zip(_inputs(case, arguments), changed, strict=True):
                t.copy_(new, non_blocking=True)
            graph.replay()
        for mine, other in zip(*(pytree.tree_leaves(side[1:]) for side in sides), strict=True):
            if mine is not None:
                torch.testing.assert_close(mine, other, equal_nan=True, **tolerance)
    assert not any(counts.ran or counts.disabled for counts in aten_ext.counts("CUDA").values()), (
        "replays call no one"
    )


def _inputs(case: Case, arguments: Any) -> list[Tensor]:
    """What changes between replays: the gradients of an optimizer, the first argument of others."""
    chosen = arguments[1] if case.in_place else arguments[0]
    return chosen if isinstance(chosen, list) else [chosen]
