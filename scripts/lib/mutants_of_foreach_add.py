"""Mutants of the override of foreach_add: (name, file, old, new, tests)."""

from __future__ import annotations

_TESTS = "tests/ops/optimizer/test_foreach_add.py"
_RULE = "aten_ext/ops/optimizer/foreach_add.h"
_CPU = "aten_ext/ops/optimizer/cpu/foreach_add.cpp"

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "foreach_add: inference tensors are taken",
        _RULE,
        "if (t.is_inference()) {",
        "if (false) {",
        (f"{_TESTS}::test_decline_is_upstream",),
    ),
    (
        "foreach_add: a number beyond float32 is taken",
        _RULE,
        "return std::isfinite(value) && ",
        "return false && ",
        (f"{_TESTS}::test_decline_is_upstream",),
    ),
    (
        "foreach_add: versions are not counted",
        _CPU,
        "if (plan.counts_versions) {",
        "if (false) {",
        (f"{_TESTS}::test_autograd_notices_the_change",),
    ),
    (
        "foreach_add: versions are counted twice",
        _CPU,
        "if (plan.counts_versions) {",
        "if (true) {",
        (f"{_TESTS}::test_versions_that_a_caller_counts_itself",),
    ),
    (
        "foreach_add: a last partial block is left out",
        "aten_ext/ops/optimizer/cuda/foreach_add.cu",
        "ceil_div(args.count, kThreads)",
        "args.count / kThreads",
        (f"{_TESTS}::test_every_length_on_host",),
    ),
)
