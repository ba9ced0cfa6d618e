"""Puts the graph passes where Inductor looks for passes, without importing Inductor, which takes a second.

If Inductor's configuration is there already, at once; otherwise as soon as somebody imports it. And once
more whenever Dynamo begins to compile, because a user's own pass, set meanwhile, takes the place
(``torch._dynamo.reset()`` forgets that; ``enable()`` sees to it again).
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

CONFIG = "torch._inductor.config"
CALLBACK = "torch._dynamo.callback"

_waiting: set[str] = set()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``action`` after the module ``name`` has been imported; then it is gone."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give, with a loader that calls the action at the end."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self._action()

            loader.exec_module = exec_module
        return spec


def _when_imported(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` now if ``name`` is imported, else when it will have been."""
    if name in _waiting:
        return
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        action()
        return

    def once() -> None:
        _waiting.discard(name)
        action()

    _waiting.add(name)
    sys.meta_path.insert(0, _AfterImport(name, once))


def _install() -> None:
    from aten_ext._inductor_slot import install

    install(sys.modules[CONFIG])


def _at_compile_start(_: object) -> None:
    refresh()


def _watch_compiler() -> None:
    handler = sys.modules[CALLBACK].callback_handler
    if _at_compile_start not in handler.start_callbacks:
        handler.register_start_callback(_at_compile_start)


def refresh() -> None:
    """Install the passes, now or when Inductor is imported. A pass that is off does nothing there."""
    _when_imported(CONFIG, _install)
    _when_imported(CALLBACK, _watch_compiler)
