"""Mutants of recurrent layers on the CPU: (name, file, old text, new text, tests that must notice)."""

from __future__ import annotations

_FOLDER = "aten_ext/ops/rnn/cpu"
_RULE = f"{_FOLDER}/choose.cpp"
_CELLS = f"{_FOLDER}/cells.cpp"
_TESTS = "tests/ops/rnn/cpu"
_DECLINES = f"{_TESTS}/test_declines.py"
_LAYERS = f"{_TESTS}/test_layers.py"
_OF_CELLS = f"{_TESTS}/test_cells.py"
_DENORMALS = f"{_TESTS}/test_flush_denormal.py"
_NODE = f"{_TESTS}/test_autograd.py"

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "rnn on CPU: threads of the pool may flush denormals",
        _RULE,
        "return multiplications > kOneThread && pool_flushes_otherwise() ?",
        "return multiplications > kOneThread && false ?",
        (f"{_DENORMALS}::test_threads_that_flush_for_a_caller_that_does_not",),
    ),
    (
        "rnn on CPU: small products ask the pool",
        _RULE,
        "return multiplications > kOneThread && pool",
        "return pool",
        (f"{_DENORMALS}::test_threads_that_flush_for_a_caller_that_does_not",),
    ),
    (
        "rnn on CPU: every dtype is taken",
        _RULE,
        "if (a.data.scalar_type() != at::kFloat && a.data.scalar_type() != at::kBFloat16) {",
        "if (false) {",
        (f"{_DECLINES}::test_padded",),
    ),
    (
        "rnn on CPU: an LSTM of bfloat16 that is not packed is taken",
        _RULE,
        "if (of_onednn && plan.bfloat16) {",
        "if (false) {",
        (f"{_TESTS}/test_bfloat16.py::test_training",),
    ),
    (
        "rnn on CPU: products that autocast would make are made here",
        _RULE,
        "if (at::autocast::is_autocast_enabled(at::kCPU)) {",
        "if (false) {",
        (f"{_DECLINES}::test_autocast",),
    ),
    (
        "rnn on CPU: less precision is not looked at",
        _RULE,
        "return precision != at::Float32Precision::NONE &&",
        "return false &&",
        (f"{_DECLINES}::test_less_precision",),
    ),
    (
        "rnn on CPU: weights of any shape",
        _RULE,
        "if (!(i % each < 2 ?",
        "if (false && !(i % each < 2 ?",
        (f"{_DECLINES}::test_padded",),
    ),
    (
        "rnn on CPU: a tangent is not looked at",
        _RULE,
        "return t._fw_grad(/*level=*/0).defined() ?",
        "return false ?",
        (f"{_DECLINES}::test_forward_mode",),
    ),
    (
        "rnn on CPU: long steps of an LSTM on one thread are taken",
        f"{_FOLDER}/threads.cpp",
        "<= kRates.short_lstm_step",
        "<= 1e30",
        (f"{_LAYERS}::test_lstm_on_one_thread",),
    ),
    (
        "rnn on CPU: an LSTM on one thread is taken with any input",
        f"{_FOLDER}/threads.cpp",
        "<= kRates.short_lstm_input",
        "<= 1e30",
        (f"{_LAYERS}::test_lstm_on_one_thread",),
    ),
    (
        "rnn on CPU: large steps of a plain RNN of bfloat16 are taken",
        f"{_FOLDER}/threads.cpp",
        "if (gates_of(work.cell) == 1 &&",
        "if (false && gates_of(work.cell) == 1 &&",
        (f"{_TESTS}/test_bfloat16.py::test_steps_that_upstream_multiplies_faster",),
    ),
    (
        "rnn on CPU: a packed LSTM of equal lengths is taken",
        _RULE,
        "(kPackedIsOnednns && even)",
        "false",
        (f"{_DECLINES}::test_a_packed_lstm_of_equal_lengths",),
    ),
    (
        "rnn on CPU: any one or two steps of large products are taken",
        _RULE,
        "if (even && is_all_product(work)) {",
        "if (false) {",
        (f"{_DECLINES}::test_few_steps_of_a_large_layer",),
    ),
    (
        "rnn on CPU: rows that begin late take the first rows' states",
        f"{_FOLDER}/forward.cpp",
        ".narrow(0, known, rows - known)",
        ".narrow(0, 0, rows - known)",
        (f"{_LAYERS}::test_a_gemm_for_each_step_of_several_lengths",),
    ),
    (
        "rnn on CPU: rows of the reverse direction began at the last step",
        f"{_FOLDER}/backward.cpp",
        "hand_back(d, t, begin);",
        "hand_back(d, t, 0);",
        (f"{_LAYERS}::test_a_gemm_for_each_step_of_several_lengths",),
    ),
    (
        "rnn on CPU: batch sizes may grow",
        f"{_FOLDER}/run.cpp",
        "(t > 0 && in.rows[t] > in.rows[t - 1])",
        "false",
        (f"{_DECLINES}::test_batch_sizes_that_do_not_fit_are_upstreams",),
    ),
    (
        "rnn on CPU: batch sizes may add up to anything",
        f"{_FOLDER}/run.cpp",
        "total == a.data.size(0);",
        "total > 0;",
        (f"{_DECLINES}::test_batch_sizes_that_do_not_fit_are_upstreams",),
    ),
    (
        "rnn on CPU: the last state of the reverse direction is that of the last step",
        f"{_FOLDER}/forward.cpp",
        "p.steps.offsets[p.reverse ? 0 : t] + row",
        "p.steps.offsets[t] + row",
        (f"{_LAYERS}::test_inference",),
    ),
    (
        "rnn on CPU: an LSTM writes to the caller's cell state",
        f"{_FOLDER}/forward.cpp",
        "/*copy=*/true",
        "/*copy=*/false",
        (f"{_LAYERS}::test_training",),
    ),
    (
        "rnn on CPU: the caller's output is what the backward reads",
        f"{_FOLDER}/forward.cpp",
        "const bool doubled = is_last &&",
        "const bool doubled = false && is_last &&",
        (f"{_NODE}::test_written_to_before_the_backward",),
    ),
    (
        "rnn on CPU: a row of the reverse direction begins where the longest ends",
        f"{_FOLDER}/forward_kernel.cpp",
        " || row >= p.steps.rows[before]) {",
        ") {",
        (f"{_LAYERS}::test_inference",),
    ),
    (
        "rnn on CPU: projections of an input with the batch first stay as they are",
        f"{_FOLDER}/forward.cpp",
        ".transpose(0, 1).contiguous();",
        ".contiguous();",
        (f"{_LAYERS}::test_inference",),
    ),
    (
        "rnn on CPU: the bias of the input's product is left out",
        f"{_FOLDER}/forward_kernel.cpp",
        "return bias == nullptr ? of_row :",
        "return true ? of_row :",
        (f"{_LAYERS}::test_inference",),
    ),
    (
        "rnn on CPU: gradients pass dropout unmasked",
        f"{_FOLDER}/backward.cpp",
        "      grad = grad.mul_(saved.noise[l - 1]);\n",
        "",
        (f"{_LAYERS}::test_dropout_draws_what_upstream_draws",),
    ),
    (
        "rnn on CPU: the second direction's gradient of the input is left out",
        f"{_FOLDER}/backward.cpp",
        "grad.defined() ? grad.add_(of_direction) : of_direction;",
        "grad.defined() ? grad : of_direction;",
        (f"{_LAYERS}::test_training",),
    ),
    (
        "rnn on CPU: a bias that was written to is not noticed",
        f"{_FOLDER}/node.cpp",
        "TORCH_CHECK(!again ||",
        "TORCH_CHECK(true || !again ||",
        (f"{_NODE}::test_bias_written_to_before_a_double_backward",),
    ),
    (
        "rnn on CPU: dropout is the composition's own in a double backward",
        f"{_FOLDER}/node.cpp",
        "if (l + 1 < plan.layers && !noise.empty()) {",
        "if (false) {",
        (f"{_NODE}::test_double_backward",),
    ),
    (
        "cells on CPU: one bias of two",
        _CELLS,
        "if (cuda::is_given(a.b_ih) != cuda::is_given(a.b_hh)) {",
        "if (false) {",
        (f"{_OF_CELLS}::test_declines",),
    ),
    (
        "cells on CPU: an LSTM's cell state of any shape",
        _CELLS,
        "&& a.cx.sizes() == a.hx.sizes() &&",
        "&&",
        (f"{_OF_CELLS}::test_state_of_an_lstm",),
    ),
    (
        "cells on CPU: every dtype is taken",
        _CELLS,
        "if (dtype != at::kFloat && dtype != at::kBFloat16) {",
        "if (false) {",
        (f"{_OF_CELLS}::test_declines",),
    ),
    (
        "cells on CPU: an LSTM writes to the caller's cell state",
        _CELLS,
        "/*copy=*/true",
        "/*copy=*/false",
        (f"{_OF_CELLS}::test_modules_and_strides",),
    ),
    (
        "cells on CPU: an LSTM's of bfloat16 are taken",
        _CELLS,
        "dtype == at::kBFloat16 && a.cell != RnnCell::Gru",
        "false",
        (f"{_OF_CELLS}::test_values",),
    ),
    (
        "cells on CPU: products that autocast would make are made here",
        _CELLS,
        "if (at::autocast::is_autocast_enabled(at::kCPU)) {",
        "if (false) {",
        (f"{_OF_CELLS}::test_autocast_and_less_precision",),
    ),
    (
        "rnn on CPU: large cells of bfloat16 are taken",
        "aten_ext/ops/rnn/cpu/cells.cpp",
        "products > kManyProducts",
        "false",
        ("tests/ops/rnn/cpu/test_cells.py::test_a_large_cell_of_bfloat16",),
    ),
)
