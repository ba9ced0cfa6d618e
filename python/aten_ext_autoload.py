"""Entry point that lets ``import torch`` load aten_ext; only with ``ATEN_EXT_AUTOLOAD=1``.

PyTorch calls :func:`activate` at the end of ``import torch``. This module is apart from the package and
imports nothing at top level, because importing the package would import torch, which is not ready yet.
"""

from __future__ import annotations


def activate() -> None:
    """Import aten_ext if the environment asks for it. Any failure becomes a warning, never an error."""
    import os
    import sys

    value = os.environ.get("ATEN_EXT_AUTOLOAD", "")
    if value not in ("", "0", "1"):
        import warnings

        message = f"ATEN_EXT_AUTOLOAD: expected 0 or 1, got {value!r}; aten_ext was not loaded"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    if value != "1":
        return
    if "aten_ext" in sys.modules:
        return  # aten_ext came first and is importing torch right now; it goes on when torch is there
    try:
        import aten_ext  # noqa: F401
    except Exception as error:
        import warnings

        warnings.warn(f"ATEN_EXT_AUTOLOAD=1: aten_ext was not loaded: {error}", RuntimeWarning, stacklevel=2)
