"""Which overrides there are, turning them on and off, and what their calls did."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from aten_ext import _C
from aten_ext._inductor_hook import refresh as _refresh_hook

_PASS_KEY = "Inductor"
"""Where a dispatch key stands in a row of the registry that is a graph pass."""


@dataclasses.dataclass(frozen=True)
class Override:
    """One overload of an ATen operator whose kernel aten_ext replaces.

    Attributes:
        name: the overload, e.g. ``"cat.out"``.
        keys: the dispatch keys at which this build replaces its kernel, e.g. ``("CPU", "CUDA")``; none
            for an override at CUDA alone in a CPU build.
        enabled_keys: the dispatch keys at which the entry asks for the fused kernel at all.
        unmeasured: the dispatch keys at which it starts off, because no benchmark has shown the kernel to
            be faster than upstream's there yet.
        summary: one line for people.
    """

    name: str
    keys: tuple[str, ...]
    enabled_keys: tuple[str, ...]
    unmeasured: tuple[str, ...]
    summary: str

    @property
    def enabled(self) -> bool:
        """Whether it is on at any dispatch key."""
        return bool(self.enabled_keys)


@dataclasses.dataclass(frozen=True)
class GraphPass:
    """A rewrite of the graphs that Inductor compiles, so that compiled models reach an override.

    Attributes:
        name: its name in the toggles, e.g. ``"inductor_addmm_activation"``.
        summary: one line for people.
        measured: whether a benchmark has shown it to be faster than what Inductor makes itself; it starts off
            where not.
        enabled: whether graphs compiled from now on are rewritten.
        rewrites: places rewritten since the process began or :func:`reset_counts`.
    """

    name: str
    summary: str
    measured: bool
    enabled: bool
    rewrites: int


LATE = "declined late: the driver refused the launch"
"""The reason that stands for :attr:`Counts.late`."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """What the calls of one override did since the process began or :func:`reset_counts`.

    Attributes:
        ran: calls in which the fused kernel ran.
        disabled: calls that went upstream because the override was off.
        declined: calls that went upstream because the fused kernel does not apply, by reason.
        late: calls that went upstream because the driver refused the fused kernel's launch ("declined late"),
            as it may in a green context or under a limit of MPS.
    """

    ran: int
    disabled: int
    declined: Mapping[str, int]
    late: int = 0

    @property
    def went_upstream(self) -> dict[str, int]:
        """``declined``, and ``late`` as one more reason where it is not 0."""
        return {**self.declined, **({LATE: self.late} if self.late else {})}


def is_active() -> bool:
    """Whether the overrides are registered with the dispatcher at all (not with ``ATEN_EXT=0``)."""
    return _C.active()


def overrides() -> list[Override]:
    """Every override of this build, in the order of native_functions_ext.yaml."""
    result: dict[str, Override] = {}
    for name, key, summary, built, measured, enabled in _C.rows():
        if key == _PASS_KEY:
            continue
        earlier = result.get(name, Override(name, (), (), (), summary))
        result[name] = Override(
            name,
            (*earlier.keys, key) if built else earlier.keys,
            (*earlier.enabled_keys, key) if enabled and is_active() else earlier.enabled_keys,
            earlier.unmeasured if measured else (*earlier.unmeasured, key),
            summary,
        )
    return list(result.values())


def passes() -> list[GraphPass]:
    """Every graph pass, in the order of native_functions_ext.yaml."""
    rewrites = {name: row.ran for name, key, row in _C.counts() if key == _PASS_KEY}
    return [
        GraphPass(name, summary, measured, enabled and is_active(), rewrites[name])
        for name, key, summary, _, measured, enabled in _C.rows()
        if key == _PASS_KEY
    ]


def _check(function: str, names: tuple[str, ...]) -> None:
    """Reject a name that no override has, before anything is changed."""
    for name in names:
        if not isinstance(name, str) or _C.count_matching(name) == 0:
            raise ValueError(f"[{function}] expected names of overrides ({_C.names()}), got {name!r}")


def refresh_passes() -> None:
    """See to it that the passes that are on are where Inductor looks for passes."""
    if is_active() and _C.is_any_enabled(_PASS_KEY):
        _refresh_hook()


def enable(*names: str) -> None:
    """Let fused kernels run again; every override without arguments.

    Flips a flag that every call reads; nothing is registered anew, so nothing is traced anew. An override
    that is off because it is not measured yet (:attr:`Override.unmeasured`) is turned on by its exact name
    alone, not by a wildcard nor by ``enable()``.

    Args:
        *names: names of overrides (``"cat.out"``) or graph passes, exactly, or with the wildcards ``*`` and
            ``?``.

    Raises:
        ValueError: a name matches no override. Nothing is changed then.
        RuntimeError: ``ATEN_EXT=0``: there is nothing registered to turn on.
    """
    _check("enable", names)
    if not is_active():
        raise RuntimeError("[enable] expected overrides to be registered, got ATEN_EXT=0 at import")
    for name in names or ("*",):
        _C.set_enabled(name, True)
    refresh_passes()


def disable(*names: str) -> None:
    """Send every call of these overrides upstream; of all overrides without arguments.

    Args:
        *names: names of overrides, exactly, or with the wildcards ``*`` and ``?``.

    Raises:
        ValueError: a name matches no override. Nothing is changed then.
    """
    _check("disable", names)
    for name in names or ("*",):
        _C.set_enabled(name, False)


@contextmanager
def disabled(*names: str) -> Iterator[None]:
    """:func:`disable` for the length of a ``with`` block; what was on or off before is so again after it.

    The flag is one for the whole process: calls of other threads go upstream too meanwhile.
    """
    with restored():
        disable(*names)
        yield


@contextmanager
def restored() -> Iterator[None]:
    """Whatever is turned on or off in a ``with`` block is as before after it, key by key."""
    before = [enabled for *_, enabled in _C.rows()]
    try:
        yield
    finally:
        _C.set_flags(before)


def counts(key: str | None = None) -> dict[str, Counts]:
    """What the calls of each override did.

    Args:
        key: only calls at this dispatch key (``"CPU"``, ``"CUDA"``); all keys together by default.

    Returns:
        Name of the override -> :class:`Counts`, a snapshot. Overrides without a kernel at ``key`` are
        left out.

    Raises:
        ValueError: ``key`` is no dispatch key of any override.
    """
    if key not in (None, "CPU", "CUDA"):
        raise ValueError(f"[counts] expected key 'CPU' or 'CUDA', got {key!r}")
    result: dict[str, Counts] = {}
    for name, row_key, row in _C.counts():
        if row_key == _PASS_KEY or key not in (None, row_key):
            continue
        earlier = result.get(name, Counts(0, 0, {}))
        declined = dict(earlier.declined)
        for reason, number in row.declined.items():
            declined[reason] = declined.get(reason, 0) + number
        result[name] = Counts(
            earlier.ran + row.ran, earlier.disabled + row.disabled, declined, earlier.late + row.late
        )
    return result


def reset_counts() -> None:
    """Start counting from zero."""
    _C.reset_counts()
