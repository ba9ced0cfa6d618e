"""``aten_ext.explain()``: which kernel a call would run, without running it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

import torch

from aten_ext._cost import Cost, cost
from aten_ext._measured import Measured, machine_name, nearest
from aten_ext._registry import is_active, overrides
from aten_ext._roofline import roofline

Route = Literal["fused", "upstream"]


def _microseconds(time: float) -> str:
    return f"{time:,.0f} µs" if time >= 1000 else f"{time:.3g} µs"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What would happen to a call. ``str()`` says it in lines for people.

    The first four say which kernel runs, and two explanations are equal when these are. The others are there
    for fused calls alone.

    Attributes:
        override: the override whose entry the dispatcher would call, or None if there is none.
        key: the dispatch key, ``"CPU"`` or ``"CUDA"``.
        route: ``"fused"`` or ``"upstream"``.
        reason: why upstream; empty when fused.
        plan: what the rule decided, in words: which kernel, and how it is launched.
        cost: the bytes that the call has to move and its FLOPs.
        roofline_us: the least time that this takes on the tensors' GPU, in µs; None where that is not known.
        roofline: what sets it (``"4.92 TB/s of NVIDIA H200"``), or why it is not known.
        measured: the benchmark case on this machine that is nearest in bytes: what upstream and the fused
            kernel took for it. Its name and bytes are in it, because it is not this call.
        measured_note: why there is none.
    """

    override: str | None
    key: str
    route: Route
    reason: str
    plan: str = dataclasses.field(default="", compare=False)
    cost: Cost | None = dataclasses.field(default=None, compare=False)
    roofline_us: float | None = dataclasses.field(default=None, compare=False)
    roofline: str = dataclasses.field(default="", compare=False)
    measured: Measured | None = dataclasses.field(default=None, compare=False)
    measured_note: str = dataclasses.field(default="", compare=False)

    def __str__(self) -> str:
        """One line; for a fused call its cost, the limit and the nearest measurement below."""
        lines = [f"{self.override or 'no override'} at {self.key}: {self.route}"]
        lines[0] += f": {self.reason}" if self.reason else ""
        lines += [f"  plan: {self.plan}"] if self.plan else []
        if self.cost is not None:
            lines.append(f"  moves {self.cost.bytes:,} bytes, {self.cost.flops:,} FLOPs")
            least = "not known" if self.roofline_us is None else f"{_microseconds(self.roofline_us)} at least"
            lines.append(f"  roofline: {least} ({self.roofline})")
            if case := self.measured:
                lines.append(
                    f"  measured: {case.case} {case.dtype}, {case.bytes:,} bytes, {case.clock} time on "
                    f"{case.machine}, torch {case.torch}: "
                    f"upstream {_microseconds(case.upstream_us)}, fused {_microseconds(case.ours_us)}"
                )
            else:
                lines.append(f"  measured: {self.measured_note}")
        return "\n".join(lines)


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    """Every tensor in an argument, also inside lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _infer_key(tensors: Iterable[torch.Tensor]) -> str:
    devices = {tensor.device.type for tensor in tensors}
    # The dispatcher takes the key of highest priority among all arguments: CUDA before CPU.
    for device in ("cuda", "cpu"):
        if device in devices:
            return device.upper()
    expected = "tensors on a CPU or CUDA device, or key='CPU' or key='CUDA' for tensors elsewhere"
    raise ValueError(f"[explain] expected {expected}, got tensors on: {', '.join(sorted(devices)) or 'none'}")


def _name(op: Any) -> tuple[str, str | None]:
    """``op`` as (operator, overload); the overload is None when the arguments have to decide it."""
    if isinstance(op, torch._ops.OpOverload):
        base, _, overload = op._schema.name.rpartition("::")[2], None, op._schema.overload_name
        return base, overload
    text = op if isinstance(op, str) else getattr(op, "__name__", None)
    if not isinstance(text, str):
        raise TypeError(f"[explain] expected an operator's name or its Python function, got {op!r}")
    base, dot, overload = text.rpartition("::")[2].partition(".")
    if dot and isinstance(op, str):
        return base, "" if overload == "default" else overload
    return base, None


def _tensors_taken_for_numbers(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many tensors this overload would read the value of: its schema has a number in their place."""
    taken = 0
    for position, argument in enumerate(overload._schema.arguments):
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        taken += isinstance(given, torch.Tensor) and "Tensor" not in str(argument.type)
    return taken


def _choose_overload(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The overload that PyTorch's Python binding would choose.

    The packet itself takes the first whose schema fits, and a tensor of one element fits a ``float``; the
    binding prefers the overload with a tensor there.
    """
    overloads = [getattr(packet, name) for name in packet.overloads()]
    # With out= the overload that has one, which the others would reject.
    fitting = [o for o in overloads if set(kwargs) <= {argument.name for argument in o._schema.arguments}]
    return min(fitting or overloads, key=lambda overload: _tensors_taken_for_numbers(overload, args, kwargs))


def _bound(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by their names in the schema, defaults filled in."""
    bound = {}
    for position, argument in enumerate(overload._schema.arguments):
        given = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
        bound[argument.name] = given
    return bound


def _fused(name: str, key: str, plan: str, arguments: dict[str, Any]) -> Explanation:
    """The explanation of a call that the fused kernel takes."""
    work = cost(name, arguments)
    if work is None:
        return Explanation(name, key, "fused", "", plan)
    devices = [t.device for t in _tensors(list(arguments.values())) if t.device.type == key.lower()]
    device = devices[0] if devices else torch.device(key.lower())
    least, limit = roofline(work, device)
    # Tensors elsewhere (meta) ask about some GPU, not about the one that happens to be here.
    measured, note = nearest(name, work, machine_name(device) if devices else None)
    if not devices:
        least, limit = None, "the tensors are on no such device"
    return Explanation(name, key, "fused", "", plan, work, least, limit, measured, note)


def explain(op: Any, *args: Any, key: str | None = None, **kwargs: Any) -> Explanation:
    """Which override a call would ask, and whether the fused kernel or upstream would run and why.

    The operator is not run; no memory of a tensor is read or written, so tensors on the meta device will
    do: with ``key="CUDA"`` a machine without a GPU can ask about one.

    Args:
        op: the Python function (``torch.cat``), an overload (``torch.ops.aten.cat.out``) or the schema
            name (``"cat"``, ``"cat.out"``).
        *args: the call's positional arguments.
        key: the dispatch key to ask about; by default that of the tensors' devices.
        **kwargs: the call's keyword arguments.

    Returns:
        The :class:`Explanation`.

    Raises:
        ValueError: the dispatch key is unknown, or cannot be told from the tensors.
        TypeError: ``op`` is neither a name nor a function.
        RuntimeError: the arguments fit no overload of the operator.
    """
    base, overload = _name(op)
    if key is None:
        key = _infer_key(_tensors([*args, *kwargs.values()]))
    elif key not in ("CPU", "CUDA"):
        raise ValueError(f"[explain] expected key 'CPU' or 'CUDA', got {key!r}")
    known = {override.name: override for override in overrides()}
    packet = getattr(torch.ops.aten_ext, f"explain_{key}_{base}", None)
    if packet is None or (overload is not None and (overload or "default") not in packet.overloads()):
        name = f"{base}.{overload}" if overload else base
        return Explanation(None, key, "upstream", f"no override of {name} at {key}")
    asked = (
        _choose_overload(packet, args, kwargs) if overload is None else getattr(packet, overload or "default")
    )
    # Not under no_grad: some rules ask whether a gradient is wanted.
    name, reason, plan, _ = asked(*args, **kwargs)
    if not is_active():
        return Explanation(None, key, "upstream", "nothing is registered (ATEN_EXT=0)")
    if key not in known[name].enabled_keys:
        waits = f"off until it is measured; aten_ext.enable({name!r}) turns it on"
        return Explanation(name, key, "upstream", waits if key in known[name].unmeasured else "disabled")
    if reason:
        return Explanation(name, key, "upstream", reason)
    return _fused(name, key, plan, _bound(asked, args, kwargs))
