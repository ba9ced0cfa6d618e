"""Mutants of the GRU: (name, file, old text, new text, tests that must notice).

Rule and policy are compiled in a CPU build too; the kernels run on the CPU in tests/device_on_host.
"""

from __future__ import annotations

_RULE = "aten_ext/cuda/cudnn_rnn.cpp"
_PLAN = "aten_ext/cuda/gru_plan.cpp"
_DEVICE = "aten_ext/cuda/device"
_TEST = "tests/test_gru_rules.py"
_KERNELS = "tests/test_gru_recurrence_on_host.py"
_DECLINES = (f"{_TEST}::test_declines",)

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("gru: training is taken", _RULE, "if (train) {", "if (false) {", _DECLINES),
    ("gru: packed sequences are taken", _RULE, "if (!batch_sizes.empty()) {", "if (false) {", _DECLINES),
    ("gru: weights may have gaps", _RULE, "if (!w.is_contiguous()) {", "if (false) {", _DECLINES),
    (
        "gru: deeper layers read the input's columns",
        _RULE,
        "first_layer ? input.size(2) : directions * hidden;",
        "input.size(2) + 0 * (first_layer + directions);",
        (f"{_TEST}::test_runs",),
    ),
    (
        "gru: a group has one row too many",
        _PLAN,
        "return plan.rows <= most ? nullptr",
        "return plan.rows <= most + 1 ? nullptr",
        (f"{_TEST}::test_policy_edges",),
    ),
    (
        "gru: a step of one row too many",
        _PLAN,
        "(batch <= kFmaStepRowsOfFewWeights &&",
        "(batch <= kFmaStepRowsOfFewWeights + 1 &&",
        (f"{_TEST}::test_policy_edges",),
    ),
    (
        "gru: small layers that cuDNN keeps on the chip are taken",
        _PLAN,
        "if (!sizes.bfloat16 && sizes.hidden > kSmallBlockHidden",
        "if (false && sizes.hidden > kSmallBlockHidden",
        _DECLINES,
    ),
    (
        "gru: two tiles of rows where the GPU has clusters for one",
        _PLAN,
        "if (!fma && plan.rows > kMmaTile) {",
        "if (false) {",
        (f"{_TEST}::test_policy_edges",),
    ),
    (
        "gru: a large projection is done in fp32",
        _PLAN,
        "&& projection > kProjectionFlops) {",
        "&& projection > 1e30) {",
        (f"{_TEST}::test_tf32_decides_too",),
    ),
    (
        "gru: the state of other blocks is not waited for (multiply-adds)",
        f"{_DEVICE}/gru_cluster_fma.cuh",
        "        wait_for_phase(mbarrier, (step - 1) / 2 % 2);\n",
        "",
        (f"{_KERNELS}::test_any_order_of_threads",),
    ),
    (
        "gru: the state of other blocks is not waited for (tensor cores)",
        f"{_DEVICE}/gru_cluster_mma.cuh",
        "        wait_for_phase(mbarrier, (step - 1) / 2 % 2);\n",
        "",
        (f"{_KERNELS}::test_any_order_of_threads",),
    ),
)
