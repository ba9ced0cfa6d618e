"""What stands in Inductor's configuration: the graph pass, alone or after a user's own.

Imports of Inductor only what its configuration itself imports, because it is imported in the middle of that
(see ``_inductor_hook``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph

from aten_ext import _C

NAME = "inductor_addmm_activation"
OVERRIDE = "_addmm_activation"

_SOURCES = (__file__, str(Path(__file__).with_name("_inductor_pass.py")))


def is_on() -> bool:
    """Whether graphs are rewritten: the pass is on, and the override that it leads to is there and on."""
    rows = {(name, key): built and enabled for name, key, _, built, _, enabled in _C.rows()}
    return _C.active() and rows[NAME, "Inductor"] and rows[OVERRIDE, "CUDA"]


class AddmmActivationPass(CustomGraphPass):
    """What Inductor calls."""

    def __call__(self, graph: Graph) -> None:
        """Rewrite, if the pass is on and the user has not asked for Inductor's roundings."""
        import torch._inductor.config as config

        if is_on() and not config.emulate_precision_casts:
            from aten_ext._inductor_pass import rewrite

            rewrite(graph)

    def uuid(self) -> Any:
        """What compiled graphs depend on: the sources, and whether the pass is on."""
        return (NAME, get_hash_for_files(_SOURCES), is_on())


class Chain(CustomGraphPass):
    """A user's own pass, then ours."""

    def __init__(self, first: Callable[[Graph], object], second: AddmmActivationPass) -> None:
        """Both are called with the graph, in this order."""
        self.first = first
        self.second = second

    def __call__(self, graph: Graph) -> None:
        """Call both."""
        self.first(graph)
        self.second(graph)

    def uuid(self) -> Any:
        """Both identities; None, which switches the cache off, where the user's pass has none."""
        theirs = self.first.uuid() if isinstance(self.first, CustomGraphPass) else None
        return (theirs, self.second.uuid()) if theirs else None


_the_pass = AddmmActivationPass()


def chained(current: Any) -> Any:
    """What to put where ``current`` is: a user's pass, several, or None. The same if ours is in it."""
    if not current:
        return _the_pass
    if isinstance(current, (list, tuple)):  # torch 2.13 takes several
        return current if _the_pass in current else [*current, _the_pass]
    if current is _the_pass or (isinstance(current, Chain) and current.second is _the_pass):
        return current
    if hasattr(custom_graph_pass, "get_custom_graph_passes"):
        return [current, _the_pass]
    return Chain(current, _the_pass)


def install(config: ModuleType) -> None:
    """Put the pass into Inductor's configuration, after a pass of the user's that is there."""
    new = chained(config.post_grad_custom_pre_pass)
    if new is not config.post_grad_custom_pre_pass:
        config.post_grad_custom_pre_pass = new  # type: ignore[attr-defined]
