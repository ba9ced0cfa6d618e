"""The node that recurrent layers on the CPU bring: what it saves, what differentiates or transforms it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import functional_call, functionalize, grad, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import aten_ext

from .cases import CELLS, Case, assert_close, assert_ran, call

PACKED = (5, 3, 3, 1)


def both(compute: Callable[[], Any]) -> tuple[Any, Any]:
    """What a program gives with overrides on, and with all off."""
    ours = compute()
    with aten_ext.disabled():
        return ours, compute()


def outcome(compute: Callable[[], Any]) -> str:
    """The first words of what it raises."""
    try:
        compute()
    except RuntimeError as error:
        return str(error)[:80]
    return "nothing"


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("lengths", [None, PACKED])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_double_backward(cell: str, lengths: tuple[int, ...] | None, dropout: float) -> None:
    """create_graph runs the composition again, with the masks of the forward."""
    case = Case(cell, 5, 4, 3, 9, layers=2, bidirectional=True, lengths=lengths, dropout=dropout)

    def penalty() -> list[torch.Tensor]:
        module, tensors = case.module(), [t.requires_grad_() for t in case.tensors()]
        torch.manual_seed(3)
        results = call(case, module, tensors)
        first = torch.autograd.grad(
            [r.square().sum() for r in results], [*tensors, *module.parameters()], create_graph=True
        )
        second = torch.autograd.grad(sum(g.square().sum() for g in first), [*tensors, *module.parameters()])
        return [*(f.detach() for f in first), *second]

    aten_ext.reset_counts()
    with aten_ext.disabled():
        theirs = outcome(penalty)
    if theirs != "nothing":  # oneDNN's LSTM
        assert outcome(penalty) == theirs
        return
    ours, expected = both(penalty)
    assert aten_ext.counts("CPU")[case.name].ran == 1
    assert_close(ours, expected)


@pytest.mark.parametrize("cell", CELLS)
def test_gradcheck(cell: str) -> None:
    """Float64 goes to the composition, which passes."""
    case = Case(cell, 3, 2, 2, 3)
    module = case.module(torch.double)
    tensors = [t.requires_grad_() for t in case.tensors(torch.double)]
    aten_ext.reset_counts()
    assert torch.autograd.gradcheck(lambda *t: tuple(call(case, module, list(t))), tensors)
    assert torch.autograd.gradgradcheck(lambda *t: tuple(call(case, module, list(t))), tensors)
    assert aten_ext.counts("CPU")[case.name].ran == 0


def change_output(module: Any, tensors: list[torch.Tensor], y: torch.Tensor) -> None:
    y.mul_(2)


def change_bias(module: Any, tensors: list[torch.Tensor], y: torch.Tensor) -> None:
    with torch.no_grad():
        module.bias_hh_l0.add_(1)
        module.bias_ih_l0.add_(1)


def change_weight(module: Any, tensors: list[torch.Tensor], y: torch.Tensor) -> None:
    with torch.no_grad():
        module.weight_hh_l0.add_(1)


def change_input(module: Any, tensors: list[torch.Tensor], y: torch.Tensor) -> None:
    tensors[0].add_(1)


@pytest.mark.parametrize("cell", ["gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("change", [change_output, change_bias, change_weight, change_input])
@pytest.mark.parametrize("lengths", [None, PACKED])
def test_written_to_before_the_backward(
    cell: str, change: Callable[..., None], lengths: tuple[int, ...] | None
) -> None:
    """What upstream allows is allowed, with the same gradients; what it refuses is refused."""
    case = Case(cell, 5, 4, 3, 9, lengths=lengths)

    def gradients() -> list[torch.Tensor]:
        module, tensors = case.module(), case.tensors()
        y = call(case, module, tensors)[0]
        change(module, tensors, y)
        return list(torch.autograd.grad(y.square().sum(), list(module.parameters())))

    with aten_ext.disabled():
        theirs = outcome(gradients)
    aten_ext.reset_counts()
    assert outcome(gradients) == theirs
    assert_ran(case.name)
    if theirs == "nothing":
        assert_close(*both(gradients))


def test_bias_written_to_before_a_double_backward() -> None:
    case = Case("gru", 5, 4, 3, 9)
    module, tensors = case.module(), case.tensors()
    y = call(case, module, tensors)[0]
    change_bias(module, tensors, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), list(module.parameters()), create_graph=True)


def test_frozen_input_weights() -> None:
    """Upstream does not save an input whose weights are frozen."""
    case = Case("gru", 5, 4, 3, 9)

    def gradients() -> list[torch.Tensor]:
        module, (x, h) = case.module(), case.tensors()
        module.weight_ih_l0.requires_grad_(False)
        leaf = x.requires_grad_()
        moved = leaf * 1
        y = module(moved, h)[0]
        moved.add_(1)
        return list(torch.autograd.grad(y.sum(), [leaf, module.weight_hh_l0]))

    aten_ext.reset_counts()
    assert_close(*both(gradients))
    assert aten_ext.counts("CPU")["gru.input"].ran == 1


@pytest.mark.parametrize("cell", CELLS)
def test_backward_twice(cell: str) -> None:
    case = Case(cell, 5, 4, 3, 9, layers=2)
    module, tensors = case.module(), [t.requires_grad_() for t in case.tensors()]
    y = call(case, module, tensors)[0]
    first = torch.autograd.grad(y.sum(), tensors, retain_graph=True)
    second = torch.autograd.grad(y.sum(), tensors)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(y.sum(), tensors)


def test_hooks() -> None:
    """Hooks of tensors run once; those of saved tensors may move and restride what is saved."""
    case = Case("gru", 5, 4, 3, 9, layers=2, lengths=PACKED)
    seen: list[str] = []

    def gradients() -> list[torch.Tensor]:
        module, tensors = case.module(), [t.requires_grad_() for t in case.tensors()]
        for name, p in module.named_parameters():
            p.register_hook(lambda g, name=name: seen.append(name))
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.clone(), lambda t: torch.stack([t, t], dim=-1)[..., 0]
        ):
            y = call(case, module, tensors)[0]
        y.sum().backward(create_graph=len(seen) == 0)
        return [t.grad.detach() for t in [*tensors, *module.parameters()] if t.grad is not None]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # backward() with create_graph makes a cycle, which is fine here
        ours, theirs = both(gradients)
    assert sorted(seen) == sorted(2 * [name for name, _ in case.module().named_parameters()])
    assert_close(ours, theirs)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    case = Case("gru", 5, 4, 3, 9)

    def gradients() -> list[torch.Tensor]:
        module, tensors = case.module(), [t.requires_grad_() for t in case.tensors()]
        y = checkpoint(lambda *t: module(*t)[0], *tensors, use_reentrant=reentrant)
        return list(torch.autograd.grad(y.sum(), tensors)) if not reentrant else run_backward(y, tensors)

    aten_ext.reset_counts()
    ours, theirs = both(gradients)
    assert_close(ours, theirs)
    # The recomputation that is not reentrant stops inside the call, when it has what it needs.
    assert aten_ext.counts("CPU")["gru.input"].ran == (2 if reentrant else 1)


def run_backward(y: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    y.sum().backward()
    return [t.grad for t in tensors if t.grad is not None]


def test_toggle_between_forward_and_backward() -> None:
    case = Case("gru", 5, 4, 3, 9)
    module, tensors = case.module(), [t.requires_grad_() for t in case.tensors()]
    y = module(*tensors)[0]
    with aten_ext.disabled():
        ours = torch.autograd.grad(y.sum(), tensors)
        theirs = torch.autograd.grad(module(*tensors)[0].sum(), tensors)
    assert_close(list(ours), list(theirs))


class Nothing(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call on."""
        return func(*args, **(kwargs or {}))


def transforms(module: torch.nn.RNNBase, x: torch.Tensor, h: Any) -> dict[str, Callable[[], Any]]:
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(p: dict[str, torch.Tensor]) -> torch.Tensor:
        y: torch.Tensor = functional_call(module, p, (x, h))[0]
        return y.square().sum()

    def of_x(t: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = functional_call(module, parameters, (t, h))[0]
        return y

    def under_mode() -> torch.Tensor:
        with Nothing():
            return torch.autograd.grad(module(x, h)[0].sum(), [module.weight_hh_l0])[0]

    return {
        "grad": lambda: grad(loss)(parameters)["weight_hh_l0"],
        "jacrev": lambda: jacrev(of_x)(x),
        "jvp": lambda: jvp(of_x, (x,), (torch.ones_like(x),))[1],
        "vmap": lambda: vmap(of_x)(torch.stack([x, 2 * x])),
        "functionalize": lambda: functionalize(of_x)(x),
        "make_fx": lambda: make_fx(of_x)(x)(x),
        "mode": under_mode,
    }


@pytest.mark.parametrize("cell", ["gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("name", ["grad", "jacrev", "jvp", "vmap", "functionalize", "make_fx", "mode"])
def test_transforms_see_the_composition(cell: str, name: str) -> None:
    case = Case(cell, 3, 2, 4, 5)
    module, (x, h) = case.module(), case.tensors()
    program = transforms(module, x, h)[name]
    with aten_ext.disabled():
        refused = outcome(program)
    if refused != "nothing":  # vmap, of the question whether cuDNN takes the tensor
        assert outcome(program) == refused
        return
    aten_ext.reset_counts()
    ours, theirs = both(program)
    # functionalize() unwraps its tensors and calls on: what comes here is plain, so it may run.
    assert aten_ext.counts("CPU")[case.name].ran == (name == "functionalize")
    assert_close([ours.detach()], [theirs.detach()])


def test_inference_mode_and_no_grad() -> None:
    case = Case("gru", 3, 2, 4, 5)
    module, tensors = case.module(), case.tensors()
    for context in (torch.no_grad(), torch.inference_mode()):
        aten_ext.reset_counts()
        with context:
            y = module(*tensors)[0]
        assert_ran("gru.input")
        assert not y.requires_grad and y.grad_fn is None


def test_anomaly_mode_and_profiler() -> None:
    case = Case("gru", 3, 2, 4, 5)
    module, tensors = case.module(), case.tensors()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(), torch.profiler.profile() as profile:
            module(*tensors)[0].sum().backward()
    assert [e.key for e in profile.key_averages() if e.key == "aten_ext::gru.input"]


@pytest.mark.parametrize("lengths", [None, PACKED])
def test_training_in_threads(lengths: tuple[int, ...] | None) -> None:
    """Several Python threads at once, each with its own graph."""
    from concurrent.futures import ThreadPoolExecutor

    case = Case("gru", 5, 4, 30, 40, lengths=lengths)

    def gradients(_: int) -> list[torch.Tensor]:
        module = torch.nn.GRU(30, 40)
        module.load_state_dict(state)
        tensors = [t.requires_grad_() for t in case.tensors()]
        return list(torch.autograd.grad(call(case, module, tensors)[0].sum(), tensors))

    state = case.module().state_dict()
    expected = gradients(0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(gradients, range(16)):
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
