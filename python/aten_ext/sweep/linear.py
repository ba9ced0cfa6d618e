"""Random linear layers: ``addmm``, ``mm`` and ``_addmm_activation``."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from aten_ext.bench.case import Case
from aten_ext.bench.ops.linear import Linear
from aten_ext.sweep import draw, known_layers

MAX_WEIGHT = 1 << 28
"""Elements of a weight: 1 GB in fp32."""
MAX_COLUMNS = 1 << 18
"""As many as the largest vocabularies have words."""


def case(random: Random, device: str) -> Case | None:
    """A layer of 1 to 64 rows mostly, of up to 4096 sometimes. None: the operators are upstream's there."""
    if device != "cuda":
        return None
    if random.random() < 0.5:
        model, (k, n) = draw.entry(random, known_layers.LINEAR)
    else:
        model, k, n = "", draw.awkward(random, 8, 32768), draw.awkward(random, 8, MAX_COLUMNS)
    while k * n > MAX_WEIGHT:
        k, n = max(8, k // 2), max(8, n // 2)
    few = random.random() < 0.85
    m = draw.log_uniform(random, 1, 64) if few else draw.awkward(random, 65, 4096)
    op = random.choice(("addmm", "addmm", "mm", "_addmm_activation"))
    layer = Linear(
        m=m,
        k=k,
        n=n,
        dtype=random.choice(("float32", "bfloat16", "float16")),
        op=op,
        activation=random.choice(("relu", "gelu")),
        row_major=random.random() < 0.15,
        bias_2d=op == "addmm" and random.random() < 0.1,
    ).case()
    return replace(layer, name=" ".join(filter(None, (model, layer.name))))
