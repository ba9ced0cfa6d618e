"""Mutants of the GRU: (name, file, old text, new text, tests that must notice).

Rule and policy are compiled in a CPU build too; the kernels run on the CPU in tests/device_on_host.
"""

from __future__ import annotations

_RULE = "aten_ext/ops/rnn/problem.cpp"
_PLAN = "aten_ext/ops/rnn/plan.cpp"
_DEVICE = "aten_ext/ops/rnn"
_TEST = "tests/ops/rnn/test_rules.py"
_KERNELS = "tests/ops/rnn/test_recurrence_on_host.py"
_DECLINES = (f"{_TEST}::test_declines",)
_PLANS = "tests/ops/rnn/test_plans.py"
_DROPOUT = "tests/ops/rnn/training/test_dropout_on_host.py"
_CHUNKS = "tests/ops/rnn/test_chunks_on_host.py"

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "gru: small layers train that cuDNN keeps on the chip",
        "aten_ext/ops/rnn/training/plan.cpp",
        "if (is_kept_in_training(problem, forward.saves) && !is_launch_bound(problem, gpu)) {",
        "if (false) {",
        ("tests/ops/rnn/training/test_training_rules.py",),
    ),
    (
        "gru: a captured call goes by the time of launches",
        "aten_ext/ops/rnn/launch_bound.h",
        "return !problem.captured && steps <= most.steps &&",
        "return steps <= most.steps &&",
        _DECLINES,
    ),
    (
        "gru: launches decide about a stack as about one layer",
        "aten_ext/ops/rnn/launch_bound.h",
        "static_cast<double>(sequence.steps) * problem.layers;",
        "static_cast<double>(sequence.steps);",
        (f"{_TEST}::test_launches_decide_outside_a_graph",),
    ),
    (
        "gru: a packed sequence of equal rows is none of padded ones",
        "aten_ext/ops/rnn/problem.cpp",
        "const bool equal = a.batch_sizes.front() == a.batch_sizes.back();",
        "const bool equal = a.batch_sizes.size() > 1;",
        ("tests/ops/rnn/test_packed_on_host.py",),
    ),
    (
        "gru: dropout between layers is left out",
        "aten_ext/ops/rnn/problem.h",
        "return train && layers > 1 && dropout != 0.0;",
        "return false;",
        ("tests/ops/rnn/training/test_training_rules.py::test_dropout_between_layers",),
    ),
    (
        "dropout: both directions' gradients have one mask",
        f"{_DEVICE}/training/layer.cpp",
        "layer_.kept[1] + byte",
        "layer_.kept[0] + byte",
        (f"{_DROPOUT}::test_both_operators",),
    ),
    (
        "dropout: what is dropped is multiplied by zero",
        f"{_DEVICE}/training/dropout.cu",
        "x * scale : 0.0f",
        "x * scale : x * 0.0f",
        (f"{_DROPOUT}::test_kernels",),
    ),
    (
        "dropout: a refusal behind it goes upstream",
        f"{_DEVICE}/cudnn_rnn.cpp",
        "!dropout.has_value() || !dropout->has_drawn(),",
        "true,",
        (f"{_DROPOUT}::test_refusals",),
    ),
    (
        "gru: batch sizes may add up to anything",
        _RULE,
        "return sum != rows ? kOtherPackedRows : nullptr;",
        "return nullptr;",
        _DECLINES,
    ),
    ("gru: batch sizes may grow", _RULE, "size < 1 || size > before", "size < 1", _DECLINES),
    ("gru: weights may have gaps", _RULE, "if (!w.is_contiguous()) {", "if (false) {", _DECLINES),
    (
        "gru: deeper layers read the input's columns",
        _RULE,
        "first_layer ? problem.sequence.features : problem.directions * hidden;",
        "problem.sequence.features + 0 * (first_layer + hidden);",
        (f"{_TEST}::test_runs",),
    ),
    (
        "gru: a group has one row too many",
        _PLAN,
        "return r.rows <= most ? nullptr",
        "return r.rows <= most + 1 ? nullptr",
        (f"{_TEST}::test_policy_edges",),
    ),
    (
        "gru: a step of one row too many",
        "aten_ext/ops/rnn/step_policy.cpp",
        "(batch <= kMaxFmaStepRows &&",
        "(batch <= kMaxFmaStepRows + 1 &&",
        (f"{_TEST}::test_policy_edges",),
    ),
    (
        "gru: small layers that cuDNN keeps on the chip are taken",
        _PLAN,
        "const bool on_chip = by_gpu && !problem.given_packed &&",
        "const bool on_chip = false &&",
        _DECLINES,
    ),
    (
        "gru: few steps that upstream runs in less time are taken",
        _PLAN,
        "&& is_kept_without_gradients(problem)) {",
        "&& false) {",
        ("tests/ops/rnn/test_few_steps.py",),
    ),
    (
        "gru: rows of whole vectors go upstream with the others",
        "aten_ext/ops/rnn/layers_in_ranges.h",
        "!(only_without_vectors && problem.has_vectors())",
        "true",
        ("tests/ops/rnn/test_few_steps.py",),
    ),
    (
        "gru: many units of a block are multiplied for as many rows",
        _PLAN,
        "ceil_div(sizes.hidden, int64_t{blocks}) > kGridFmaUnits) {",
        "false) {",
        (f"{_TEST}::test_policy_edges",),
    ),
    (
        "gru: clusters of eight alone",
        _PLAN,
        "of_four.rows < of_eight.rows &&",
        "of_four.rows > of_eight.rows &&",
        ("tests/ops/rnn/test_policy_on_host.py::test_policy",),
    ),
    (
        "gru: two tiles of rows where the GPU has clusters for one",
        _PLAN,
        "} else if (r.rows > kMmaTile) {",
        "} else if (false) {",
        (f"{_TEST}::test_policy_edges",),
    ),
    (
        "gru: a large projection is done in fp32",
        _PLAN,
        "in_time > kTf32ProjectionFlops;",
        "false;",
        ("tests/ops/rnn/test_policy_on_host.py::test_tf32_products",),
    ),
    (
        "gru: a small layer is projected in fp32",
        _PLAN,
        "         has_tf32_projection(problem.cell",
        "         !has_tf32_projection(problem.cell",
        ("tests/ops/rnn/test_policy_on_host.py::test_tf32_products",),
    ),
    (
        "gru: few rows are a library's product",
        "aten_ext/ops/rnn/projection.cpp",
        "if (input.how == Projection::FewRows) {",
        "if (false) {",
        ("tests/ops/rnn/test_projection_on_host.py",),
    ),
    (
        "gru: a row's sums are another's",
        "aten_ext/ops/rnn/cell_step.cuh",
        "const int row = row0 + lane / kLanes;",
        "const int row = row0 + (lane / kLanes ^ 1);",
        ("tests/ops/rnn/test_gru_cell_on_host.py", "tests/ops/rnn/test_cells_on_host.py"),
    ),
    (
        "gru: a vector that begins between two vectors is read as one",
        "aten_ext/ops/rnn/one_row.cuh",
        " | reinterpret_cast<uintptr_t>(vector) |\n",
        " |\n",
        ("tests/ops/rnn/test_gru_cell_on_host.py::test_a_tensor_that_begins_between_two_vectors",),
    ),
    (
        "gru: whole vectors are taken for granted",
        "aten_ext/ops/rnn/cell_step.cuh",
        "bytes |= reinterpret_cast<uintptr_t>(pointer);",
        "bytes |= 0 * reinterpret_cast<uintptr_t>(pointer);",
        ("tests/ops/rnn/test_gru_cell_on_host.py::test_a_tensor_that_begins_between_two_vectors",),
    ),
    (
        "gru: groups of an odd row are those of its neighbour lane",
        "aten_ext/ops/rnn/one_row.cuh",
        "multiply_groups<Cell, kHidden, 1, 8>(sums, row, vector, lane, lanes, length);",
        "multiply_groups<Cell, kHidden, 1, 8>(sums, row, vector, lane, lanes - 1, length);",
        ("tests/ops/rnn/test_gru_cell_on_host.py::test_cell",),
    ),
    (
        "gru: four steps are four launches",
        "aten_ext/ops/rnn/step_policy.cpp",
        "return !problem.differentiated && is_in(kShorterInOneLaunch, problem);",
        "return false;",
        ("tests/ops/rnn/test_policy_on_host.py::test_policy",),
    ),
    (
        "gru: tensor cores on a GPU that has none",
        "aten_ext/ops/rnn/cell_kernel.h",
        "return math == Math::Fma ? 75 : 80;",
        "return math == Math::Fma ? 75 : 75;",
        (f"{_PLANS}::test_tensor_cores_need_the_code_of_sm_80",),
    ),
    (
        "gru: blocks that wait for one another are not counted",
        "aten_ext/ops/rnn/plan_description.cpp",
        "needs.resident_blocks = recurrence.grid;",
        "needs.resident_blocks = 0;",
        (f"{_PLANS}::test_grids_are_counted",),
    ),
    (
        "gru: one direction of two has no place on the GPU",
        _PLAN,
        "if (of_direction < 1) {",
        "if (of_direction < 0) {",
        (f"{_PLANS}::test_one_multiprocessor",),
    ),
    (
        "gru: the state of other blocks of a cluster is not waited for",
        f"{_DEVICE}/cluster_exchange.cuh",
        "        wait_for_phase(mbarrier, (step - 1) / 2 % 2);\n",
        "",
        (f"{_KERNELS}::test_any_order_of_threads",),
    ),
    (
        "gru: weights that are not those of the buffer are taken",
        _RULE,
        "return flattened ? decline_buffer(a, problem) : nullptr;",
        "return nullptr;",
        (f"{_TEST}::test_weights_that_are_not_those_of_the_buffer",),
    ),
    (
        "gru: chunks of too few steps",
        _PLAN,
        "std::min(wanted, sequence.steps / fewest)",
        "wanted + 0 * fewest",
        (f"{_CHUNKS}::test_policy",),
    ),
    (
        "gru: the state between two chunks is rounded",
        f"{_DEVICE}/first_state.cuh",
        "    if (d.h0_fp32 != nullptr) {\n",
        "    if (false) {\n",
        (f"{_CHUNKS}::test_same_bits_in_chunks",),
    ),
    (
        "gru: a projection in TF32 where cuDNN may not",
        f"{_DEVICE}/lt_product.cpp",
        "key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32",
        "!key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32",
        ("tests/ops/rnn/test_flags.py::test_compute_type_is_cudnns",),
    ),
    (
        "lstm: NaN arrives as a number where words have none of their step",
        f"{_DEVICE}/bounded_words.cuh",
        "+ 0x00010001) & kBoundedTag);",
        "+ 0) & kBoundedTag);",
        (f"{_KERNELS}::test_words_without_a_number",),
    ),
    (
        "lstm: words of both buffers carry the same turn for four steps",
        f"{_DEVICE}/bounded_words.cuh",
        "((step - 1) >> 1 & 1)",
        "((step - 1) >> 2 & 1)",
        (f"{_KERNELS}::test_words_without_a_number",),
    ),
    (
        "rnn: weights are packed to where the first of them is",
        f"{_DEVICE}/pack_weights.cu",
        "      next += part.bytes;\n",
        "",
        ("tests/ops/rnn/test_layers_on_host.py::test_weight_buffer_of_each_cell",),
    ),
    (
        "gru: the biases of r and z of W_hh have n's gradient",
        f"{_DEVICE}/training/layer.cpp",
        "{input, gates, to.db_ih, to.db_hh, others_than_n()}",
        "{input, gates, to.db_ih, nullptr, 0}",
        ("tests/ops/rnn/training/test_packed_gradients_on_host.py",),
    ),
    (
        "lstm: more rows than the whole GPU takes stay upstream's",
        _PLAN,
        "!grid(sizes, gpu, over_gpu) || over_gpu.rows > kGridRows[0][static_cast<int>(Math::Mma)]",
        "!grid(sizes, gpu, over_gpu)",
        ("tests/ops/rnn/test_policy_on_host.py::test_policy_of_an_lstm",),
    ),
)
