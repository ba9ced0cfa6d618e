"""Linear layers against others than upstream: torch.compile's output, FlagGems (if it is installed).

In these rows the column of upstream is the peer, which does the same work (the linear layer and its
activation) with the overrides off; ours is ``_addmm_activation`` with them on.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from aten_ext.bench import harness
from aten_ext.bench.case import Call, Case, Settings
from aten_ext.bench.ops import linear
from aten_ext.bench.result import Result
from aten_ext.bench.route import Overrides, Switch

PEERS = ("torch.compile", "max-autotune", "FlagGems")


class Versus:
    """A switch between the peer, with the overrides off, and our call, with them on."""

    def __init__(self, overrides: Switch) -> None:
        """Start with the peer."""
        self._overrides = overrides
        self.ours = False

    def set(self, enabled: bool) -> None:
        """Our call if ``enabled``."""
        self._overrides.set(enabled)
        self.ours = enabled

    def call(self, peer: Call, ours: Call) -> object:
        """The one that is switched on."""
        return ours() if self.ours else peer()


def cases(device: str, full: bool) -> list[Case]:
    """Every target of :mod:`linear` with ReLU or GELU, once for each peer."""
    del full
    if device != "cuda":
        return []
    return [_case(layer, peer) for peer in PEERS for layer in linear.targets()]


def _case(layer: linear.Linear, peer: str) -> Case:
    case = layer.case()
    return replace(
        case,
        op="linear_peers",
        name=f"{case.name} vs {peer}",
        sizes={},
        series="",
        measure=partial(_measure, layer, peer),
    )


def _measure(layer: linear.Linear, peer: str, case: Case, settings: Settings) -> Result:
    """The harness, switching between the peer and ours."""
    if peer == "FlagGems" and importlib.util.find_spec("flag_gems") is None:
        return Result(case, settings.device, skipped="needs the package flag_gems")
    with Overrides() as overrides:
        versus = Versus(overrides)
        overrides.set(False)
        function = _peer(layer, peer)

        def make(device: str) -> Call:
            ours: Any = linear.make(layer, device)
            bias, x, weight = ours.args
            return partial(versus.call, partial(function, bias, x, weight), ours)

        return harness.measure(replace(case, measure=None, make=make), settings, versus)


def _peer(layer: linear.Linear, peer: str) -> Callable[..., object]:
    """A function of bias, x and weight."""
    import torch

    if peer == "FlagGems":
        return _function(layer, importlib.import_module("flag_gems").addmm)
    torch.compiler.reset()
    # With CUDA graphs of its own a compiled function could not be captured in the benchmark's.
    return compiled(layer, "max-autotune-no-cudagraphs" if peer == "max-autotune" else "default")


def compiled(layer: linear.Linear, mode: str) -> Callable[..., object]:
    """What ``torch.compile`` makes of the layer, at its first call: a function of bias, x and weight."""
    import torch

    return torch.compile(_function(layer, torch.addmm), mode=mode, dynamic=False)


def _function(layer: linear.Linear, addmm: Callable[..., Any]) -> Callable[..., object]:
    import torch

    def activate(y: torch.Tensor) -> torch.Tensor:
        if layer.activation == "gelu":
            return torch.nn.functional.gelu(y, approximate="tanh")
        return torch.relu(y)

    def function(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return activate(addmm(bias, x, weight))

    # Dynamo keeps what it has compiled with the code object: a second function is to be compiled by itself.
    function.__code__ = function.__code__.replace()
    return function
