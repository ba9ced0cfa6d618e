"""Fused kernels behind PyTorch's own operators.

``import aten_ext`` replaces the kernels of some ATen operators at the CPU and CUDA dispatch keys. Models
need no change: where a fused kernel applies it runs, everywhere else PyTorch's own kernel does, and
:func:`counts` says which, call by call.

Environment, read once when the package is imported:

* ``ATEN_EXT=0``: replace nothing.
* ``ATEN_EXT_DISABLE=a,b``: start with these overrides off.
* ``ATEN_EXT_ONLY=a,b``: start with only these on.
* ``ATEN_EXT_ENABLE=a,b``: start with these on too, where one is off because it is not measured yet.
* ``ATEN_EXT_TRACE=1``: print what the calls did when the process ends; ``calls``: each kind of call, too.
* ``ATEN_EXT_SHADOW=0.01``: compare this fraction of the fused calls with upstream, and print the differences.
* ``ATEN_EXT_REPORT=time``: print how long fused kernels took when the process ends; ``100``: also what they
  saved, from one call in a hundred beside which upstream runs, too.
* ``ATEN_EXT_TRACE_FILE=path``: append what these three print to a file.
* ``ATEN_EXT_TABLES=folder``: where ``python -m aten_ext tune`` writes what it measured, and where it is read.
* ``ATEN_EXT_AUTOLOAD=1``: ``import torch`` alone is enough.

Raises:
    ImportError: the kernels are missing, were built for another torch, or an environment variable makes
        no sense. The message is one line that says what to do; torch itself is left as it was.
"""

from __future__ import annotations

from aten_ext._load import load_or_exit as _load_kernels

__version__ = "0.1.0"

_load_kernels()

from aten_ext import _at_exit, _measured_tables  # noqa: E402  (needs the kernels)
from aten_ext._explain import Explanation, explain  # noqa: E402  (needs the kernels)
from aten_ext._registry import (  # noqa: E402
    Counts,
    GraphPass,
    Override,
    counts,
    disable,
    disabled,
    enable,
    is_active,
    overrides,
    passes,
    reset_counts,
)
from aten_ext._registry import refresh_passes as _refresh_passes  # noqa: E402
from aten_ext._report import (  # noqa: E402
    Report,
    ReportRow,
    Saved,
    disable_report,
    enable_report,
    report,
)
from aten_ext._shadow import ShadowReport, ShadowRow, shadow  # noqa: E402
from aten_ext._status import status  # noqa: E402
from aten_ext._trace import CallTrace, TracedCall, trace_calls  # noqa: E402

_at_exit.install()

__all__ = [
    "CallTrace",
    "Counts",
    "Explanation",
    "GraphPass",
    "Override",
    "Report",
    "ReportRow",
    "Saved",
    "ShadowReport",
    "ShadowRow",
    "TracedCall",
    "counts",
    "disable",
    "disable_report",
    "disabled",
    "enable",
    "enable_report",
    "explain",
    "is_active",
    "overrides",
    "passes",
    "report",
    "reset_counts",
    "shadow",
    "status",
    "trace_calls",
]

_refresh_passes()
if is_active():
    _measured_tables.load()
