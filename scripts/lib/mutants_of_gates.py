"""Mutants of the gates of cells in training: (name, file, old text, new text, tests that must notice)."""

from __future__ import annotations

_FOLDER = "aten_ext/ops/rnn"
_RULES = "tests/ops/rnn/test_cells_in_training.py"
_KERNELS = "tests/ops/rnn/test_gates_backward_on_host.py"

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "gates: autocast changes nothing",
        f"{_FOLDER}/gates_rules.h",
        "return casts && at::autocast",
        "return false && at::autocast",
        ("tests/ops/rnn/test_cells_in_training.py::test_declines_biases_of_16_bits_under_autocast",),
    ),
    (
        "gates: an LSTM's of any size in fp32 are ours",
        f"{_FOLDER}/gates_facts.h",
        "{kLstmGates, kFp32 | kFp64, kAnyBiases",
        "{kLstmGates, kFp64, kAnyBiases",
        (f"{_RULES}::test_what_upstream_computes_as_fast",),
    ),
    (
        "gates: many units of odd sizes are ours",
        f"{_FOLDER}/gates_facts.h",
        "{kLstmGatesBackward, kFp16 | kBf16, kBiases, kAny, at_least(1.5e6), /*odd=*/true},",
        "",
        (f"{_RULES}::test_what_upstream_computes_as_fast",),
    ),
    (
        "gates: even sizes are as odd ones",
        f"{_FOLDER}/gates_facts.h",
        "(!odd || call.hidden % 2 != 0)",
        "true",
        (f"{_RULES}::test_what_upstream_computes_as_fast",),
    ),
    (
        "gates: few units of many rows are ours",
        f"{_FOLDER}/gates_facts.h",
        "at_least(kMoreRows), at_most(kUnitsBeyondCaches)}",
        "at_least(kMoreRows), {kMoreUnits, kUnitsBeyondCaches}}",
        (f"{_RULES}::test_what_upstream_computes_as_fast",),
    ),
    (
        "gates: gradients without biases are those with them",
        f"{_FOLDER}/gates_facts.h",
        "(biases & (call.biases ? kBiases : kNoBiases)) != 0 &&",
        "true &&",
        (
            f"{_RULES}::test_what_upstream_computes_as_fast",
            f"{_RULES}::test_what_upstream_computes_as_fast_without_biases",
        ),
    ),
    (
        "a cell without split K answers where upstream raises",
        f"{_FOLDER}/cells.cpp",
        "if (const char* reason = decline_flags(a.input.scalar_type())) {",
        "if (const char* reason = decline_flags(at::kFloat)) {",
        ("tests/ops/rnn/test_flags.py::test_a_flag_changes_no_plan",),
    ),
    (
        "gates: two units of a gradient whose rows begin anywhere",
        f"{_FOLDER}/gates_rules.h",
        "grad->stride(0) % 2 == 0",
        "grad->stride(0) > 0",
        (f"{_RULES}::test_plans",),
    ),
    (
        "gates: two units of a gradient that are no neighbours",
        f"{_FOLDER}/gates_rules.h",
        "grad->stride(1) == 1 &&",
        "grad->stride(1) >= 0 &&",
        (f"{_RULES}::test_plans", f"{_KERNELS}::test_gru_backward"),
    ),
    (
        "gates: a gradient of another size is read",
        f"{_FOLDER}/thnn_fused_lstm_cell.cpp",
        "if ((*grad)->sizes() != a.cx.sizes()) {",
        "if (false) {",
        (f"{_RULES}::test_declines",),
    ),
    (
        "gates: no gradient at all is a call of ours",
        f"{_FOLDER}/thnn_fused_lstm_cell.cpp",
        "if (!cuda::is_given(a.grad_hy) && !cuda::is_given(a.grad_cy)) {",
        "if (false) {",
        (f"{_RULES}::test_declines",),
    ),
    (
        "gates: a gradient's rows are taken for dense ones",
        f"{_FOLDER}/gates_backward.cuh",
        "row * from.row + unit * from.unit",
        "row * from.row + unit",
        (f"{_KERNELS}::test_gru_backward",),
    ),
    (
        "gates: sums of a block's warps are not waited for",
        f"{_FOLDER}/gates_backward.cuh",
        "    __syncthreads();\n    const int threads",
        "    const int threads",
        (f"{_KERNELS}::test_any_order_of_threads",),
    ),
    (
        "gates: sums of unrounded gradients",
        f"{_FOLDER}/thnn_fused_gru_cell_backward.cu",
        "stored<T>(grads[i][k])",
        "grads[i][k]",
        (f"{_KERNELS}::test_gru_backward",),
    ),
    (
        "gates: the hidden bias of a GRU has the input's new gate",
        f"{_FOLDER}/gates_backward.cuh",
        "column != kGates - 1",
        "column < kGates",
        (f"{_KERNELS}::test_gru_backward",),
    ),
    (
        "gates: the last row of a part is left out",
        f"{_FOLDER}/gates_backward.cuh",
        "min(first + p.tile.rows, p.batch)",
        "min(first + p.tile.rows - (p.tile.parts > 1), p.batch)",
        (f"{_KERNELS}::test_gru_backward",),
    ),
    (
        "gates: parts beyond sixteen are not added",
        f"{_FOLDER}/gates_backward.cuh",
        "part < p.tile.parts; part += kAddingWarps",
        "part < min(p.tile.parts, int64_t{16}); part += kAddingWarps",
        (f"{_KERNELS}::test_on_other_gpus",),
    ),
    (
        "gates: what the cell gate of an LSTM forgets",
        f"{_FOLDER}/thnn_fused_lstm_cell.cu",
        "fma(-g, g, Op(1))",
        "(Op(1) - g) * g",
        (f"{_KERNELS}::test_lstm_backward",),
    ),
    (
        "gates: a fourth sigmoid",
        f"{_FOLDER}/thnn_fused_lstm_cell.cu",
        "gate == 2 ? tanh(sum) : sigmoid(sum)",
        "gate == 9 ? tanh(sum) : sigmoid(sum)",
        (f"{_KERNELS}::test_lstm_forward",),
    ),
    (
        "gates: a GRU's backward without biases in 16 bits is ours at any size",
        f"{_FOLDER}/gates_facts.h",
        "{kGruGatesBackward, kFp16 | kBf16, kNoBiases, kAny, at_least(1.8e5)}",
        "{kGruGatesBackward, kFp16 | kBf16, kNoBiases, kAny, at_least(2e6)}",
        (f"{_RULES}::test_what_upstream_computes_as_fast_without_biases",),
    ),
)
