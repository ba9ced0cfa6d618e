"""The graph pass inductor_addmm_activation: what it rewrites, what it leaves, how it gets into Inductor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._dynamo.utils import counters
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule

import aten_ext
import processes
from aten_ext import _inductor_pass, _inductor_slot
from device_on_host import library
from ops.linear.test_on_host import load

NAME = "inductor_addmm_activation"
F = torch.nn.functional
aten = torch.ops.aten
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def untouched_inductor() -> Iterator[None]:
    before = inductor_config.post_grad_custom_pre_pass
    yield
    inductor_config.post_grad_custom_pre_pass = before
    torch._dynamo.reset()


def trace(
    function: Function, *shapes: tuple[int, ...], dtype: torch.dtype, device: str = "cuda"
) -> GraphModule:
    """What Inductor has of ``function`` when its passes begin, on a GPU that need not be there."""
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
        graph: GraphModule = make_fx(function, select_decomp_table())(*inputs)
    return graph


def targets(graph: GraphModule) -> list[Any]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def rewritten(graph: GraphModule) -> list[dict[str, Any]]:
    """Rewrites, and gives the keyword arguments of what was put in."""
    aten_ext.reset_counts()
    _inductor_pass.rewrite(graph.graph)
    graph.graph.lint()
    graph.recompile()
    new = [node for node in graph.graph.nodes if node.target is aten._addmm_activation.default]
    assert aten_ext.passes()[0].rewrites == len(new)
    return [dict(node.kwargs) for node in new]


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight, bias)


SHAPES = [(8, 64), (32, 64), (32,)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("act", "use_gelu"), [(torch.relu, False), (gelu_tanh, True)], ids=["relu", "gelu"])
@pytest.mark.parametrize("shape", [(8, 64), (2, 4, 64), (1, 1, 1, 64)], ids=str)
def test_rewrites(dtype: torch.dtype, act: Function, use_gelu: bool, shape: tuple[int, ...]) -> None:
    """Also through the views that nn.Linear makes of an input of more than two dimensions."""
    graph = trace(lambda x, w, b: act(linear(x, w, b)), shape, *SHAPES[1:], dtype=dtype)
    assert aten.addmm.default in targets(graph)
    old = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    assert rewritten(graph) == [{"use_gelu": use_gelu}]
    assert not {aten.addmm.default, aten.relu.default, aten.tanh.default}.intersection(targets(graph))
    new = next(node for node in graph.graph.nodes if node.op == "output").args[0]
    value, expected = new.meta["val"], old.meta["val"]
    assert (value.shape, value.stride(), value.dtype, value.device) == (
        expected.shape,
        expected.stride(),
        dtype,
        expected.device,
    )


def test_the_value_is_the_same() -> None:
    """The rewritten graph computes what the old one did (ReLU, which the CPU has in the same form)."""
    graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)).sum(0), *SHAPES, dtype=torch.float32)
    inputs = [torch.randn(shape) for shape in SHAPES]
    expected = graph(*inputs)
    assert len(rewritten(graph)) == 1
    torch.testing.assert_close(graph(*inputs), expected)


PLACES = ("x", "weight", "bias")


def special_operands(
    place: str, rows: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight and bias; one holds NaN, both infinities and -0, the others zeros where they meet."""
    generator = torch.Generator().manual_seed(rows)
    shapes = {"x": (rows, 64), "weight": (32, 64), "bias": (32,)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for name, values in tensors.items():
        if name == place:
            # In x by rows, as far as there are; in the weight by columns of the result.
            for i, value in enumerate((torch.nan, torch.inf, -torch.inf, -0.0)):
                at = i % len(values)
                values[at if name == "bias" else (at, 7 * i)] = value
        elif name != "bias":
            values[-1, 7] = 0  # times an infinity: NaN
            values[-1, 14] = -0.0
    x, weight, bias = (values.to(device, dtype) for values in tensors.values())
    return x, weight, bias


def classes(t: torch.Tensor) -> torch.Tensor:
    """0: a number; 1, -1: an infinity; 2: NaN."""
    return t.isnan() * 2 + t.isinf() * t.sign().nan_to_num()


def assert_special(results: torch.Tensor, place: str) -> None:
    """The inputs are what they are for: an activation that dropped a NaN would be seen."""
    assert results.isnan().any()
    # Of a single row x makes all NaN, and the weight may make the infinities negative.
    assert (results == torch.inf).any() or (place != "bias" and len(results) < 4)


def run_with(graph: GraphModule, operator: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """The rewritten graph with another operator in the place of ``_addmm_activation``."""
    for node in graph.graph.nodes:
        if node.target is aten._addmm_activation.default:
            node.target = operator
    graph.recompile()
    result: torch.Tensor = graph(*inputs)
    return result


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", [1, 4, 8, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values_by_the_cpus_kernel(dtype: torch.dtype, rows: int, place: str) -> None:
    """ReLU of the rewritten graph keeps NaN and infinities as the eager modules do."""
    if dtype == torch.float32 and rows > 32:
        pytest.skip("not rewritten")
    operands = special_operands(place, rows, dtype)
    graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)), *map(shape_of, operands), dtype=dtype)
    assert len(rewritten(graph)) == 1
    eager = torch.relu(linear(*operands))
    assert_special(eager, place)
    assert torch.equal(classes(graph(*operands)), classes(eager))


def shape_of(t: torch.Tensor) -> tuple[int, ...]:
    return tuple(t.shape)


@pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")
@pytest.mark.parametrize(("act", "use_gelu"), [(torch.relu, False), (gelu_tanh, True)], ids=["relu", "gelu"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values_on_host(
    dtype: torch.dtype, rows: int, place: str, act: Function, use_gelu: bool
) -> None:
    """The same with the override's own kernel for few rows, run by the CPU."""
    load()
    operands = special_operands(place, rows, dtype)
    graph = trace(lambda x, w, b: act(linear(x, w, b)), *map(shape_of, operands), dtype=dtype)
    assert rewritten(graph) == [{"use_gelu": use_gelu}]
    ours = run_with(graph, torch.ops.aten_ext_on_host._addmm_activation, *operands)
    eager = act(linear(*operands))
    assert_special(eager, place)
    assert torch.equal(classes(ours), classes(eager))


def test_alpha_and_beta_stay() -> None:
    graph = trace(
        lambda b, x, w: torch.relu(torch.addmm(b, x, w, beta=2, alpha=0.5)),
        (32,),
        (8, 64),
        (64, 32),
        dtype=torch.float32,
    )
    assert rewritten(graph) == [{"beta": 2, "alpha": 0.5, "use_gelu": False}]


def test_a_whole_network() -> None:
    def network(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for act in (torch.relu, gelu_tanh, F.gelu, torch.relu, torch.sigmoid):
            x = act(linear(x, w, b))
        return x

    graph = trace(network, (8, 64), (64, 64), (64,), dtype=torch.bfloat16)
    assert [kwargs["use_gelu"] for kwargs in rewritten(graph)] == [False, True, False]
    assert targets(graph).count(aten.addmm.default) == 2 and aten.erf.default in targets(graph)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.gelu(linear(x, w, b)),
        lambda x, w, b: F.silu(linear(x, w, b)),
        lambda x, w, b: 0.5 * linear(x, w, b) * (1 + torch.tanh(0.79 * linear(x, w, b))),
        lambda x, w, b: torch.relu(x @ w.t()),
        lambda x, w, b: (y := linear(x, w, b), torch.relu(y)),
        lambda x, w, b: gelu_tanh(y := linear(x, w, b)) + y,
        lambda x, w, b: torch.relu((y := linear(x, w, b)).view(2, 4, 32)).sum() + y.sum(),
        lambda x, w, b: torch.relu(linear(x, w, b).t()),
    ],
    ids=["erf", "silu", "almost", "mm", "output", "used again", "view used again", "transposed"],
)
def test_leaves(function: Function) -> None:
    graph = trace(function, *SHAPES, dtype=torch.float32)
    before = targets(graph)
    assert rewritten(graph) == []
    assert targets(graph) == before


@pytest.mark.parametrize(
    ("rows", "dtype", "device"),
    [(8, torch.float64, "cuda"), (8, torch.float32, "cpu")],
)
def test_leaves_what_the_override_does_not_take(rows: int, dtype: torch.dtype, device: str) -> None:
    graph = trace(
        lambda x, w, b: torch.relu(linear(x, w, b)), (rows, 64), *SHAPES[1:], dtype=dtype, device=device
    )
    assert rewritten(graph) == []


@pytest.mark.parametrize("act", [torch.relu, gelu_tanh], ids=["relu", "gelu"])
@pytest.mark.parametrize(
    ("dtype", "rows", "is_faster"),
    [
        (torch.float32, 1, True),
        (torch.float32, 32, True),
        (torch.float32, 33, False),
        (torch.float32, 2048, False),
        *((dtype, rows, True) for dtype in DTYPES[1:] for rows in (1, 64, 65, 2048)),
    ],
    ids=str,
)
def test_rewrites_where_it_is_faster(dtype: torch.dtype, rows: int, is_faster: bool, act: Function) -> None:
    """Both sides of each edge of what was measured; batch times sequence counts as rows."""
    for shape in [(rows, 64), (1, rows, 64)]:
        graph = trace(lambda x, w, b: act(linear(x, w, b)), shape, *SHAPES[1:], dtype=dtype)
        assert len(rewritten(graph)) == is_faster


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_that_cublaslt_does_not_add(dtype: torch.dtype) -> None:
    """In 16 bits more than a vector, or scaled, is upstream's slow way; in fp32 the kernel takes any."""
    for bias, beta in [((8, 32), 1), ((1, 32), 1), ((1,), 1), ((32,), 2), ((32,), 0)]:

        def layer(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor, beta: int = beta) -> torch.Tensor:
            return torch.relu(torch.addmm(b, x, w, beta=beta))

        graph = trace(lambda b, x, w: layer(b, x, w), bias, (8, 64), (64, 32), dtype=dtype)
        assert len(rewritten(graph)) == (dtype == torch.float32), (bias, beta)


def test_tf32_is_left() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        for dtype, count in ((torch.float32, 0), (torch.half, 1)):
            graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)), *SHAPES, dtype=dtype)
            assert len(rewritten(graph)) == count
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("columns", "is_faster"), [(4096, True), (4104, False)])
def test_one_row_of_fp32_is_cublas_s_where_the_weight_is_large(columns: int, is_faster: bool) -> None:
    shapes = [(1, 4096), (columns, 4096), (columns,)]
    graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)), *shapes, dtype=torch.float32)
    assert len(rewritten(graph)) == is_faster
    several = [(2, 4096), *shapes[1:]]
    graph = trace(lambda x, w, b: torch.relu(linear(x, w, b)), *several, dtype=torch.float32)
    assert len(rewritten(graph)) == 1


def test_leaves_what_has_no_fixed_number_of_rows() -> None:
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(
        lambda x, w, b: torch.relu(linear(x, w, b)), select_decomp_table(), tracing_mode="symbolic"
    )(*(torch.empty(shape) for shape in SHAPES))
    for node in graph.graph.nodes:
        assert "val" not in node.meta or node.meta["val"].device.type == "cpu"
    assert aten.addmm.default in targets(graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_inductor_pass, "DEVICES", ("cpu",))
        assert rewritten(graph) == []


# ---- in Inductor ------------------------------------------------------------------------------------------


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
    import os

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
