"""Calls the operators of table.yaml in shadow mode and prints what it found, as JSON.

A process of its own, because the kernels are wrong: ``python calls.py LIBRARY``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import aten_ext
from aten_ext import _C

torch.ops.load_library(sys.argv[1])
LIBRARY = ctypes.CDLL(sys.argv[1])
LIBRARY.wrong_registry.restype = ctypes.c_void_p
_C.attach(LIBRARY.wrong_registry())

X = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 10 - 0.5


def watched(call: Callable[[], object], keep: str = "fused") -> dict[str, Any]:
    """The one row of a shadowed call, its result, and the counts of its override."""
    aten_ext.reset_counts()
    error = None
    result: object = None
    with aten_ext.shadow(keep=keep) as report:
        try:
            result = call()
        except RuntimeError as raised:
            error = str(raised).splitlines()[0]
    rows = [dataclasses.asdict(row) for row in report.rows]
    ran = {name: counts.ran for name, counts in aten_ext.counts().items() if counts.ran}
    tensors = result if isinstance(result, (tuple, list)) else [result]
    values = [t.tolist() for t in tensors if isinstance(t, torch.Tensor)]
    return {"rows": rows, "ran": ran, "result": values, "error": error, "text": str(report)}


def upstream(call: Callable[[], Any]) -> Any:
    with aten_ext.disabled():
        return call()


def into(out: torch.Tensor) -> list[torch.Tensor]:
    """A call with out=, and everything that shares its memory."""
    torch.mul(X, X, out=out)
    return [out]


def draw(seed: int, generator: torch.Generator | None) -> list[torch.Tensor]:
    """Three draws one after the other."""
    (generator or torch.default_generator).manual_seed(seed)
    return [torch.empty(5).uniform_(generator=generator) for _ in range(3)]


def accumulate() -> torch.Tensor:
    """In place, with an argument that is the tensor itself and another elsewhere in the same memory."""
    base = X.clone().flatten()
    base[2:6].addcmul_(base[2:6], base[8:12])
    return base


def backward() -> list[torch.Tensor]:
    """Through autograd: upstream's derivative of the fused result."""
    x = X.clone().requires_grad_()
    y = torch.sigmoid(x)
    y.sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad]


def captured() -> torch.Tensor:
    LIBRARY.set_capturing(True)
    try:
        return torch.sigmoid(X)
    finally:
        LIBRARY.set_capturing(False)


def refused() -> dict[str, Any]:
    """A kernel that refuses: counts, trace and result, while nobody watches, with a trace, in shadow mode."""
    aten_ext.reset_counts()
    results = [torch.neg(X)]
    with aten_ext.trace_calls() as trace:
        results.append(torch.neg(X))
    with aten_ext.shadow() as report:
        results.append(torch.neg(X))
    counts = aten_ext.counts()["neg"]
    return {
        "counts": dataclasses.asdict(counts),
        "went upstream": counts.went_upstream,
        "routes": [(row.route, row.reason, row.count) for row in trace.rows],
        "shadowed": len(report.rows),
        "results": [torch.equal(result, upstream(lambda: torch.neg(X))) for result in results],
        "status": aten_ext.status(),
    }


generator = torch.Generator()
found = {
    "refused": refused(),
    "sigmoid": watched(lambda: torch.sigmoid(X)),
    "sigmoid upstream": watched(lambda: torch.sigmoid(X), keep="upstream"),
    "sigmoid truth": [upstream(lambda: torch.sigmoid(X)).tolist()],
    "sigmoid backward": watched(backward),
    "sigmoid captured": watched(captured),
    "sigmoid declined": watched(lambda: torch.sigmoid(X.double())),
    "mul.out": watched(lambda: into(torch.empty(3, 4))),
    "mul.out resized": watched(lambda: into(torch.empty(0))),
    "mul.out strided": watched(lambda: into(torch.empty(8, 8)[1:7:2, ::2])),
    "mul.out upstream": watched(lambda: into(torch.empty(8, 8)[1:7:2, ::2]), keep="upstream"),
    "mul.out truth": [(X.double() * X).float().tolist()],
    "aminmax": watched(lambda: torch.aminmax(X)),
    "aminmax upstream": watched(lambda: torch.aminmax(X), keep="upstream"),
    "cat": watched(lambda: torch.cat([X, X])),
    "uniform_": watched(lambda: draw(3, None)),
    "uniform_ truth": [t.tolist() for t in upstream(lambda: draw(3, None))],
    "uniform_ generator": watched(lambda: draw(4, generator)),
    "uniform_ generator truth": [t.tolist() for t in upstream(lambda: draw(4, generator))],
    "addcmul_": watched(accumulate),
    "addcmul_ truth": [upstream(accumulate).tolist()],
    "index": watched(lambda: X[:, torch.tensor([2, 0])]),
    "index failed": watched(lambda: torch.ones(1)[torch.tensor([7])], keep="upstream"),
    "relu_": watched(lambda: X.clone().relu_()),
}
print(json.dumps(found))
