"""The ops that can be benchmarked, and where their cases are declared."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

import aten_ext.bench.ops
from aten_ext._cli import CommandError
from aten_ext.bench.case import Case

OPS: dict[str, str] = {}
"""Op -> the module with its cases, in the order in which they run: that of their names."""
COMPILING: list[str] = []
"""Those that take minutes first, most to compile: measured only when named, or with ``--full``."""
FOR_DEVELOPERS = ("optimizer_peers", "linear_peers", "inductor_pass", "models")
"""Those that ``scripts/bench`` of the repository adds."""


def add(op: str, module: str, *, compiling: bool = False) -> None:
    """Add a benchmark: ``module`` is imported when ``op`` is measured.

    Args:
        op: as on the command line.
        module: the full name of a :class:`CaseModule`.
        compiling: whether it compiles for a minute first.
    """
    OPS[op] = module
    if compiling and op not in COMPILING:
        COMPILING.append(op)


for _found in pkgutil.iter_modules(aten_ext.bench.ops.__path__, f"{aten_ext.bench.ops.__name__}."):
    _op = _found.name.rpartition(".")[2]
    if not _op.startswith("_"):  # a helper of its neighbour
        add(_op, _found.name, compiling=_op in ("entry", "programs"))


class CaseModule(Protocol):
    """What a module named in ``OPS`` provides."""

    def cases(self, device: str, full: bool) -> list[Case]:
        """The short list for ``device``, or with ``full`` the whole sweep."""


def load(op: str) -> CaseModule:
    """Import the module of ``op``.

    Raises:
        CommandError: there is no such op.
    """
    if op not in OPS and op in FOR_DEVELOPERS:
        raise CommandError(f"{op} is not in the package: scripts/bench {op} in a checkout of the repository")
    if op not in OPS:
        raise CommandError(f"unknown op {op!r}; choose from: {', '.join(OPS)}")
    return cast(CaseModule, importlib.import_module(OPS[op]))


def chosen(ops: Sequence[str], full: bool) -> list[str]:
    """The ops to measure where ``ops`` were asked for; none: all that start at once, with ``full`` all."""
    default = list(OPS) if full else [op for op in OPS if op not in COMPILING]
    return list(dict.fromkeys(ops or default))


def select(
    ops: Sequence[str], device: str, *, full: bool = False, dtypes: Iterable[str] = (), text: str = ""
) -> list[Case]:
    """The cases of ``ops``, see :func:`chosen`, whose dtype is asked for and whose label contains ``text``.

    Raises:
        CommandError: an op or dtype is unknown, or nothing is left.
    """
    modules = [load(op) for op in chosen(ops, full)]
    found = [case for module in modules for case in module.cases(device, full)]
    if not found:
        raise CommandError(f"{', '.join(chosen(ops, full))}: nothing to measure on {device}")
    wanted = set(dtypes)
    available = sorted({case.dtype for case in found})
    if unknown := sorted(wanted.difference(available)):
        raise CommandError(f"no case has dtype {', '.join(unknown)}; there are: {', '.join(available)}")
    found = [case for case in found if not wanted or case.dtype in wanted]
    wanted_cases = [case for case in found if text in case.label]
    if not wanted_cases:
        raise CommandError(f"no case contains {text!r}; there are: {', '.join(case.label for case in found)}")
    return wanted_cases
