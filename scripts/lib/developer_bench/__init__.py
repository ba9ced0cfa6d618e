"""Benchmarks for those who develop aten_ext: other libraries, compiled graphs, whole models.

``scripts/bench`` runs them beside those of ``python -m aten_ext bench``. They are not in the wheel.
"""

from aten_ext.bench import registry


def register() -> None:
    """Add them to what the command line can measure."""
    for op in ("optimizer_peers", "linear_peers", "inductor_pass"):
        registry.add(op, f"{__name__}.{op}", compiling=True)
    registry.add("models", f"{__name__}.models")
