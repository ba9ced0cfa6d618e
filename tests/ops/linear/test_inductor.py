"""The graph pass inductor_addmm_activation at work: how it gets into Inductor, and compiled models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._dynamo.utils import counters
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph

import aten_ext
import processes
from aten_ext import _inductor_pass, _inductor_slot
from ops.linear.graphs import (
    DTYPES,
    PLACES,
    F,
    Function,
    assert_special,
    classes,
    gelu_tanh,
    linear,
    special_operands,
    trace,
)

NAME = "inductor_addmm_activation"


@pytest.fixture(autouse=True)
def untouched_inductor() -> Iterator[None]:
    before = inductor_config.post_grad_custom_pre_pass
    yield
    inductor_config.post_grad_custom_pre_pass = before
    torch._dynamo.reset()


class Users(CustomGraphPass):
    """A pass of a user's, which counts its calls."""

    def __init__(self, identity: Any = "users") -> None:
        """Its identity is what is given."""
        self.calls = 0
        self.identity = identity

    def __call__(self, graph: Graph) -> None:
        """Count."""
        self.calls += 1

    def uuid(self) -> Any:
        """The identity."""
        return self.identity


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass at work without a GPU; for ReLU alone, which the operator has in one form everywhere."""
    monkeypatch.setattr(_inductor_pass, "DEVICES", ("cpu",))
    monkeypatch.setattr(
        _inductor_slot, "is_on", lambda: next(p for p in aten_ext.passes() if p.name == NAME).enabled
    )


def compile_and_run(dtype: torch.dtype = torch.float32) -> int:
    """Compiles Linear -> ReLU, checks its result, and says how many places were rewritten."""
    layer = torch.nn.Linear(64, 32, dtype=dtype)
    x = torch.randn(2, 4, 64, dtype=dtype)
    aten_ext.reset_counts()
    with torch.no_grad():
        result = torch.compile(lambda x: torch.relu(layer(x)))(x)
        torch.testing.assert_close(result, torch.relu(layer(x)))
    return aten_ext.passes()[0].rewrites


@pytest.mark.long
def test_is_called_and_toggled(on_cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On and off, and Inductor's cache of compiled graphs does not mix them up."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    aten_ext.enable(NAME)
    with (
        inductor_config.patch(fx_graph_cache=True),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        assert compile_and_run() == 1
        for turn, rewrites, hits in [
            (aten_ext.disable, 0, 0),  # not the graph of the pass that was on
            (aten_ext.disable, 0, 1),
            (aten_ext.enable, 0, 1),  # the graph of before, rewritten then
        ]:
            torch._dynamo.reset()
            turn(NAME)
            counters.clear()
            assert compile_and_run() == rewrites
            assert counters["inductor"]["fxgraph_cache_hit"] == hits


def test_a_users_pass_is_called_too(on_cpu: None) -> None:
    """One set before the pass is turned on, and one set after it."""
    with inductor_config.patch(force_disable_caches=True):
        before, after = Users(), Users()
        inductor_config.post_grad_custom_pre_pass = before
        aten_ext.enable(NAME)
        assert compile_and_run() == 1 and before.calls == 1
        inductor_config.post_grad_custom_pre_pass = after
        # Another dtype, or the graph compiled before would do.
        assert compile_and_run(torch.bfloat16) == 1 and (before.calls, after.calls) == (1, 1)


def test_on_by_default_and_switched_with_everything() -> None:
    assert [p.enabled for p in aten_ext.passes() if p.name == NAME] == [True]
    assert NAME not in {override.name for override in aten_ext.overrides()} | set(aten_ext.counts())
    assert f"{NAME}  on " in aten_ext.status()
    with aten_ext.disabled():
        assert not aten_ext.passes()[0].enabled
        aten_ext.enable(NAME)
        assert aten_ext.passes()[0].enabled
    with aten_ext.disabled(NAME):
        assert not aten_ext.passes()[0].enabled
        aten_ext.enable()
        assert aten_ext.passes()[0].enabled


def test_needs_its_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off where _addmm_activation is, or is not built."""
    aten_ext.enable(NAME)
    built = any("CUDA" in override.keys for override in aten_ext.overrides())
    assert _inductor_slot.is_on() is built
    aten_ext.disable("_addmm_activation")
    assert not _inductor_slot.is_on()


def test_identity_follows_the_toggle(on_cpu: None) -> None:
    own = _inductor_slot.AddmmActivationPass()
    aten_ext.enable(NAME)
    on = own.uuid()
    aten_ext.disable(NAME)
    assert on != own.uuid()


def test_chain_of_two_identities() -> None:
    own = _inductor_slot.AddmmActivationPass()
    users = Users()
    chain = _inductor_slot.Chain(users, own)
    assert chain.uuid() == ("users", own.uuid())
    assert _inductor_slot.Chain(Users("another"), own).uuid() != chain.uuid()
    # Without an identity of the user's there is none of both, and Inductor does not cache.
    assert _inductor_slot.Chain(Users(None), own).uuid() is None
    assert _inductor_slot.Chain(lambda graph: None, own).uuid() is None
    chain(trace(lambda x: x + 1, (2,), dtype=torch.float32).graph)
    assert users.calls == 1


def test_is_put_in_once() -> None:
    for current in (None, Users(), [Users(), Users()]):
        once = _inductor_slot.chained(current)
        assert once is not current and _inductor_slot.chained(once) is once


HOOK = """
import os, sys
import torch
import aten_ext
assert not [m for m in sys.modules if m.startswith(("torch._inductor", "torch._dynamo"))]
import torch._inductor.config as config
import torch._dynamo
print(type(config.post_grad_custom_pre_pass).__name__)
"""


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("NOTHING", "AddmmActivationPass"),
        ("ATEN_EXT_DISABLE", "NoneType"),
        ("ATEN_EXT_ONLY", "AddmmActivationPass"),
    ],
)
def test_importing_does_not_import_inductor(variable: str, expected: str) -> None:
    """The pass waits for Inductor; where it is off, nothing is put there."""
    environment = {**os.environ, variable: NAME}
    environment["PYTHONPATH"] = str(Path(aten_ext.__file__).parent.parent)
    run = processes.python("-c", HOOK, env=environment, timeout=300)
    assert run.stdout.strip() == expected, run.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("act", "gelu"), [(torch.relu, False), (gelu_tanh, True), (F.gelu, None)])
def test_compiled_model_reaches_the_override(dtype: torch.dtype, act: Function, gelu: bool | None) -> None:
    """Two layers, one activation after each; the erf GELU is left to Inductor."""
    layers = [torch.nn.Linear(256, 256, device="cuda", dtype=dtype) for _ in range(2)]
    x = torch.randn(2, 8, 256, device="cuda", dtype=dtype)

    def model(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = act(layer(x))
        return x

    aten_ext.enable(NAME)
    with torch.no_grad():
        compiled = torch.compile(model)
        compiled(x)
        aten_ext.reset_counts()
        ours = compiled(x)
        assert aten_ext.counts("CUDA")["_addmm_activation"].ran == (0 if gelu is None else 2)
        with aten_ext.disabled():
            theirs = model(x)
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("act", "gelu"), [(torch.relu, False), (gelu_tanh, True)], ids=["relu", "gelu"])
@pytest.mark.parametrize("rows", [1, 8, 512])
def test_special_values_on_a_gpu(rows: int, dtype: torch.dtype, act: Function, gelu: bool) -> None:
    """Every element is of eager upstream's class, and of the class that Inductor gives without the pass."""

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = act(linear(x, w, b))
        return result

    def compiled(operands: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
        torch._dynamo.reset()
        with inductor_config.patch(force_disable_caches=True), torch.no_grad():
            function = torch.compile(layer)
            return [function(*of_a_place) for of_a_place in operands]

    operands: list[tuple[torch.Tensor, ...]] = [
        special_operands(place, rows, dtype, "cuda") for place in PLACES
    ]
    aten_ext.enable(NAME)
    aten_ext.reset_counts()
    ours = compiled(operands)
    is_rewritten = dtype != torch.float32 or rows <= 32
    assert aten_ext.passes()[0].rewrites == is_rewritten
    asked = aten_ext.counts("CUDA")["_addmm_activation"]
    assert (asked.ran + sum(asked.declined.values()) > 0) == is_rewritten
    with aten_ext.disabled():
        inductors = compiled(operands)
        with torch.no_grad():
            eager = [layer(*of_a_place) for of_a_place in operands]
    for place, mine, without_pass, upstreams in zip(PLACES, ours, inductors, eager, strict=True):
        assert_special(upstreams, place)
        wanted = classes(upstreams)
        assert torch.equal(classes(mine), wanted), f"{place}: eager"
        assert torch.equal(classes(mine), classes(without_pass)), f"{place}: Inductor without the pass"


@pytest.mark.gpu
def test_training_is_right_with_the_pass() -> None:
    layer = torch.nn.Linear(256, 128, device="cuda")
    x = torch.randn(16, 256, device="cuda", requires_grad=True)

    def step(model: Function) -> list[torch.Tensor]:
        layer.zero_grad()
        x.grad = None
        model(x).square().sum().backward()
        assert x.grad is not None and layer.weight.grad is not None
        return [x.grad, layer.weight.grad]

    for act in (torch.relu, gelu_tanh):
        aten_ext.enable(NAME)
        ours = step(torch.compile(lambda x, act=act: act(layer(x))))
        with aten_ext.disabled():
            theirs = step(lambda x, act=act: act(layer(x)))
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
