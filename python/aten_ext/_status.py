"""``aten_ext.status()``: a table for people."""

from __future__ import annotations

import io

import torch

from aten_ext import _C
from aten_ext._measured_tables import source
from aten_ext._registry import Override, counts, is_active, overrides, passes


def _header() -> str:
    cuda = f"CUDA {_C.built_for_cuda}" if _C.built_for_cuda else "CPU only"
    gpu = _gpu()
    state = "active" if is_active() else "nothing is registered (ATEN_EXT=0)"
    return (
        f"aten_ext for torch {_C.built_for_torch} ({cuda}), running torch {torch.__version__}, {gpu}: {state}"
    )


def _gpu() -> str:
    """The GPU that the program uses; if it uses none yet, how many there are.

    A name is to be had from a CUDA context only, and a process that has one cannot fork and use CUDA in the
    child: looking at a table must not bring that about. ``device_count`` asks NVML.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call, unused-ignore]
        return torch.cuda.get_device_name()
    count = torch.cuda.device_count()
    return f"{count or 'no'} GPU{'s' if count > 1 else ''}"


def _state(override: Override) -> str:
    """What is on where: ``on``, ``off``, or which keys are off and why."""
    off = [key for key in override.keys if key not in override.enabled_keys]
    waiting = [key for key in off if key in override.unmeasured]
    if not off:
        return "on" if override.enabled or not override.unmeasured else "off (not measured)"
    if len(off) == len(override.keys):
        return "off (not measured)" if waiting else "off"
    return f"on, {' '.join(off)} off" + (" (not measured)" if waiting else "")


def _tables() -> list[str]:
    """Which measured table decides for each family that has one, on the GPU that the program uses."""
    if not is_active() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call, unused-ignore]
        return []
    device = torch.device("cuda", torch.cuda.current_device())
    return [
        f"{family}: upstream's shapes and ours: {source(family, device)}"
        for family in torch.ops.aten_ext.table_families()
    ]


def status() -> str:
    """The build, the overrides and graph passes, whether each is on, and what it did, as text."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("override", "keys", "state", "ran", "disabled", "declined"):
        table.add_column(column, justify="right" if column in ("ran", "disabled") else "left")
    numbers = counts()
    for override in overrides():
        count = numbers[override.name]
        table.add_row(
            override.name,
            " ".join(override.keys),
            _state(override),
            str(count.ran),
            str(count.disabled),
            "\n".join(f"{number} x {reason}" for reason, number in count.went_upstream.items()) or "0",
        )
    rewrites = Table(box=None, pad_edge=False)
    for column in ("graph pass", "state", "rewrites"):
        rewrites.add_column(column, justify="right" if column == "rewrites" else "left")
    for graph_pass in passes():
        off = "off" if graph_pass.measured else "off (not measured)"
        rewrites.add_row(graph_pass.name, "on" if graph_pass.enabled else off, str(graph_pass.rewrites))
    text = io.StringIO()
    console = Console(file=text, width=140, color_system=None, highlight=False)
    console.print(_header(), soft_wrap=True)
    console.print(table)
    for line in _tables():
        console.print(line, soft_wrap=True)
    console.print()
    console.print(rewrites)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
