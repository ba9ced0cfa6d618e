"""Switching the overrides off and on, and proving which kernel ran."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from aten_ext._cli import CommandError
from aten_ext.bench.case import Call


class Switch(Protocol):
    """Turns every override on or off."""

    def set(self, enabled: bool) -> None:
        """Switch."""


class Overrides:
    """The switch of this process. As a context it leaves each override as it was found."""

    def __init__(self) -> None:
        """Note which overrides are off; ``CommandError`` if there is nothing to switch."""
        import aten_ext
        from aten_ext._registry import restored

        if not aten_ext.is_active():
            raise CommandError("nothing is registered with ATEN_EXT=0, so there is nothing to compare")
        # Measuring is what an override that is off until measured waits for: on means all of them, and the
        # graph passes.
        self._names = [override.name for override in aten_ext.overrides()]
        self._names += [graph_pass.name for graph_pass in aten_ext.passes()]
        self._restored = restored()

    def __enter__(self) -> Overrides:
        """The switch itself."""
        self._restored.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore what was on and off."""
        self._restored.__exit__(kind, error, trace)

    def set(self, enabled: bool) -> None:
        """Turn every override on or off."""
        import aten_ext

        if enabled:
            aten_ext.enable(*self._names)
        else:
            aten_ext.disable()


def routes(call: Call, override: str, device: str, switch: Switch) -> tuple[str, str | None]:
    """Make the call with the overrides off, then on: the route when on, and the reason if upstream ran.

    Raises:
        RuntimeError: the call ran the fused kernel although the overrides were off.
    """
    import aten_ext

    key = device.upper()
    aten_ext.reset_counts()
    switch.set(False)
    call()
    off = aten_ext.counts(key=key).get(override)
    if off is not None and off.ran:
        raise RuntimeError(f"{override} ran its fused kernel while disabled")
    aten_ext.reset_counts()
    switch.set(True)
    call()
    on = aten_ext.counts(key=key).get(override)
    if on is not None and on.ran:
        return "fused", None
    if on is not None and on.declined:
        reason = "; ".join(on.declined)
    else:
        reason = f"the call does not reach {override} at {key}"
    return f"upstream: {reason}", reason
