"""Checks of an override of a composite operator, each a function; run as a script, in a process of its own.

The override would stay registered for everything that follows in the same process. Prints one JSON object:
the name of each check, and "" or what went wrong.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.func import functional_call, functionalize, grad, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from compiled_overrides import load  # noqa: E402

torch.manual_seed(0)
cell = torch.nn.GRUCell(5, 4)
frozen = torch.nn.GRUCell(5, 4).requires_grad_(False)
x, h = torch.randn(3, 5), torch.randn(3, 4)
xs, hs = torch.randn(7, 3, 5), torch.randn(7, 3, 4)
before: dict[str, torch.Tensor] = {}


def ran() -> int:
    count: int = torch.ops.aten_ext_composite.ran()
    return count


def values() -> dict[str, Any]:
    """What plain PyTorch computes, before anything is registered."""
    with torch.no_grad():
        out = {"cell": cell(x, h), "frozen": frozen(x, h)}
    y = cell(x, h)
    (out["grad"],) = torch.autograd.grad(y.sum(), [cell.weight_hh])
    return out


def calls(expected: int, call: Callable[[], Any]) -> Any:
    """The call's result; its override ran that many times."""
    earlier = ran()
    result = call()
    assert ran() - earlier == expected, (
        f"expected the override to run {expected} times, it ran {ran() - earlier}"
    )
    return result


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def check_no_grad() -> None:
    with torch.no_grad():
        same(calls(1, lambda: cell(x, h)), before["cell"])


def check_inference_mode() -> None:
    with torch.inference_mode():
        same(calls(1, lambda: cell(x, h)), before["cell"])


def check_frozen_weights_with_grad_mode() -> None:
    result = calls(1, lambda: frozen(x, h))
    same(result, before["frozen"])
    assert not result.requires_grad


def check_declined() -> None:
    with torch.no_grad():
        result = calls(0, lambda: frozen.double()(x.double(), h.double()))
    frozen.float()
    torch.testing.assert_close(result.float(), before["frozen"])


def check_training() -> None:
    y = calls(0, lambda: cell(x, h))
    (g,) = torch.autograd.grad(y.sum(), [cell.weight_hh])
    same(g, before["grad"])


def check_gradient_of_the_input_alone() -> None:
    leaf = x.clone().requires_grad_()
    assert calls(0, lambda: frozen(leaf, h)).requires_grad


def check_gradcheck() -> None:
    weights = [w.detach().double().requires_grad_() for w in cell.parameters()]
    assert torch.autograd.gradcheck(torch.gru_cell, (x.double(), h.double(), *weights))


def check_second_derivative() -> None:
    weights = [w.detach().double().requires_grad_() for w in cell.parameters()]
    assert torch.autograd.gradgradcheck(torch.gru_cell, (x.double(), h.double(), *weights))


def check_forward_mode() -> None:
    with torch.no_grad():
        value, tangent = calls(0, lambda: jvp(lambda v: frozen(v, h), (x,), (torch.ones_like(x),)))
    same(value, before["frozen"])
    eps = 1e-3
    with torch.no_grad():
        numeric = (frozen(x + eps, h) - frozen(x - eps, h)) / (2 * eps)
    torch.testing.assert_close(tangent, numeric, rtol=1e-2, atol=1e-3)


def check_dual_numbers() -> None:
    import torch.autograd.forward_ad as fw

    with torch.no_grad(), fw.dual_level():
        dual = fw.make_dual(x, torch.ones_like(x))
        assert calls(0, lambda: fw.unpack_dual(frozen(dual, h))).tangent is not None


def check_vmap() -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        batched = calls(0, lambda: vmap(frozen)(xs, hs))
    with torch.no_grad():
        torch.testing.assert_close(batched, torch.stack([frozen(a, b) for a, b in zip(xs, hs, strict=True)]))


def check_jacrev() -> None:
    jacobian = calls(0, lambda: jacrev(lambda v: frozen(v, h))(x))
    assert jacobian.shape == (3, 4, 3, 5) and jacobian.abs().sum() > 0


def check_functional_grad() -> None:
    parameters = {k: v.detach() for k, v in cell.named_parameters()}
    g = calls(0, lambda: grad(lambda p: functional_call(cell, p, (x, h)).sum())(parameters))
    same(g["weight_hh"], before["grad"])


def check_subclass() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    with torch.no_grad():
        both = calls(2, lambda: (frozen(x, h), frozen(2 * x, h)))
        parts = [TwoTensor(t, t) for t in (h, *frozen.parameters())]
        result = calls(0, lambda: torch.gru_cell(TwoTensor(x, 2 * x), *parts))
    same(result.a, both[0])
    same(result.b, both[1])


def check_mode() -> None:
    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Mode():
        result = calls(0, lambda: frozen(x, h))
    same(result, before["frozen"])
    assert len(seen) > 1, seen


def check_fake_tensor() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode, torch.no_grad():
        fake = calls(0, lambda: torch.gru_cell(*(mode.from_tensor(t) for t in (x, h, *frozen.parameters()))))
    assert fake.shape == (3, 4)


def check_functionalize() -> None:
    # The transformation unwraps its tensors and calls on: what the override sees is plain, so it may run.
    with torch.no_grad():
        same(functionalize(lambda v: frozen(v, h))(x), before["frozen"])


def check_make_fx() -> None:
    with torch.no_grad():
        graph = calls(0, lambda: make_fx(lambda v: frozen(v, h))(x))
    targets = {str(node.target) for node in graph.graph.nodes}
    assert "aten.sigmoid_.default" in targets or "aten.sigmoid.default" in targets, targets


def check_export() -> None:
    with torch.no_grad():
        program = torch.export.export(frozen, (x, h)).run_decompositions({})
        torch.testing.assert_close(program.module()(x, h), before["frozen"])


def check_meta() -> None:
    with torch.no_grad():
        meta = calls(0, lambda: torch.gru_cell(*(t.to("meta") for t in (x, h, *frozen.parameters()))))
    assert meta.shape == (3, 4)


def _compile(backend: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(frozen, backend=backend, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, h), before["frozen"])
    torch._dynamo.reset()
    trained = torch.compile(cell, backend=backend, fullgraph=True)
    (g,) = torch.autograd.grad(trained(x, h).sum(), [cell.weight_hh])
    torch.testing.assert_close(g, before["grad"])


def check_compile_aot_eager() -> None:
    _compile("aot_eager")


def check_compile_inductor() -> None:
    _compile("inductor")


def check_autocast() -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result = frozen(x, h)
    torch.testing.assert_close(result.float(), before["frozen"], rtol=0.05, atol=0.05)


def check_errors_are_upstreams() -> None:
    try:
        with torch.no_grad():
            torch.gru_cell(x.double()[:, :3], h.double(), *(w.double() for w in frozen.parameters()))
    except RuntimeError as error:
        assert "inconsistent input_size" in str(error), error
    else:
        raise AssertionError("expected an error")


def check_nn_gru_is_not_touched() -> None:
    gru = torch.nn.GRU(5, 4)
    with torch.no_grad():
        calls(0, lambda: gru(xs))


CHECKS = {name.removeprefix("check_"): f for name, f in list(globals().items()) if name.startswith("check_")}


def main() -> None:
    before.update(values())
    load()
    answers = {}
    for name, check in CHECKS.items():
        try:
            check()
            answers[name] = ""
        except BaseException:
            answers[name] = traceback.format_exc()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
