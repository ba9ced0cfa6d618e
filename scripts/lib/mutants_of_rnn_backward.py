"""Mutants of the backward of recurrent layers: (name, file, old text, new text, tests that must notice)."""

from __future__ import annotations

_FOLDER = "aten_ext/ops/rnn/backward"
_KERNELS = "tests/ops/rnn/backward/test_backward_on_host.py"
_PLANS = "tests/ops/rnn/backward/test_backward_plans_on_host.py"

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "rnn: rows that are no whole vectors cost no more in a piece",
        "aten_ext/ops/rnn/pieces.cpp",
        "constexpr int64_t kOfRaggedRows = 4;",
        "constexpr int64_t kOfRaggedRows = 1;",
        ("tests/ops/rnn/training/test_pieces_on_host.py::test_padding_that_takes_longer_than_a_piece",),
    ),
    (
        "rnn: products in fp32 cost no more in a piece",
        "aten_ext/ops/rnn/pieces.cpp",
        "constexpr int64_t kOfFloats = 8;",
        "constexpr int64_t kOfFloats = 1;",
        ("tests/ops/rnn/training/test_pieces_on_host.py::test_padding_that_takes_longer_than_a_piece",),
    ),
    (
        "rnn backward: parts of other blocks of a cluster are not waited for",
        f"{_FOLDER}/scatter_exchange.cuh",
        "        wait_for_phase(mbarrier, (step - 1) / 2 % 2);\n",
        "",
        (f"{_KERNELS}::test_any_order_of_threads",),
    ),
    (
        "rnn backward: parts within a block are not waited for",
        f"{_FOLDER}/scatter_exchange.cuh",
        "    if constexpr (!kInCluster) {\n      __syncthreads();\n    }\n  }\n\n private:",
        "  }\n\n private:",
        (f"{_KERNELS}::test_any_order_of_threads",),
    ),
    (
        "rnn backward: gates' gradients are multiplied before they are there",
        f"{_FOLDER}/cluster_fma.cuh",
        "    __syncthreads();\n",
        "",
        (f"{_KERNELS}::test_any_order_of_threads",),
    ),
    (
        "rnn backward: gates' gradients are multiplied before they are there, on tensor cores",
        f"{_FOLDER}/cluster_mma.cuh",
        "    __syncthreads();\n",
        "",
        (f"{_KERNELS}::test_any_order_of_threads",),
    ),
    (
        "rnn backward: words of the step before are taken",
        f"{_FOLDER}/grid_fma.cuh",
        "missing,\n                  static_cast<uint32_t>(step)};",
        "0,\n                  static_cast<uint32_t>(step)};",
        (f"{_KERNELS}::test_any_order_of_threads",),
    ),
    (
        "rnn backward: words of the first eight rows are taken for all",
        f"{_FOLDER}/grid_mma.cuh",
        "row0 += 8, from += kOfEight)",
        "row0 += 8)",
        (f"{_KERNELS}::test_many_rows",),
    ),
    (
        "rnn backward: the fourth gate of a pair of units is that of the pair before",
        f"{_FOLDER}/grid_words.cuh",
        "__shfl_down_sync(0xffffffff, pair[3], 2)",
        "__shfl_down_sync(0xffffffff, pair[3], 0)",
        (f"{_KERNELS}::test_every_kernel",),
    ),
    (
        "rnn backward: a row beyond the batch",
        f"{_FOLDER}/items.cuh",
        "return has_unit_ && row(turn) < rows_;",
        "return has_unit_ && row(turn) <= rows_;",
        (f"{_KERNELS}::test_many_rows",),
    ),
    (
        "rnn backward: a unit beyond the layer",
        f"{_FOLDER}/items.cuh",
        "has_unit_(unit < place.end_unit)",
        "has_unit_(unit <= place.end_unit)",
        (f"{_KERNELS}::test_every_kernel",),
    ),
    (
        "rnn backward: the second direction runs as the first",
        f"{_FOLDER}/arguments.cuh",
        "return place.direction == 0 ? a.steps - 1 - step : step;",
        "return a.steps - 1 - step;",
        (f"{_KERNELS}::test_directions_groups_and_steps",),
    ),
    (
        "rnn backward: the part of dh that bypasses the gates is left out",
        f"{_FOLDER}/items.cuh",
        "      products += carry;\n",
        "",
        (f"{_KERNELS}::test_every_kernel",),
    ),
    (
        "rnn backward: r is left out of the new gate's hidden part",
        f"{_FOLDER}/cells.cuh",
        "c[kR] * input_new}",
        "input_new}",
        (f"{_KERNELS}::test_every_kernel",),
    ),
    (
        "rnn backward: dc of the last state is not taken",
        f"{_FOLDER}/items.cuh",
        "d_.dc_in != nullptr && exists(turn)",
        "d_.dc_in == nullptr && exists(turn)",
        (f"{_KERNELS}::test_chunks_are_the_whole",),
    ),
    (
        "rnn backward: blocks that wait for one another are not counted",
        f"{_FOLDER}/plan.cpp",
        "needs.resident_blocks = grid;",
        "needs.resident_blocks = 0;",
        (f"{_PLANS}::test_grids_are_counted",),
    ),
    (
        "rnn backward: TF32 where cuDNN has none",
        f"{_FOLDER}/plan.cpp",
        "sizes.hidden % 4 == 0 &&",
        "",
        (f"{_PLANS}::test_what_an_h200_takes",),
    ),
    (
        "rnn backward: pairs of columns change places with those of other rows, in a cluster",
        f"{_FOLDER}/cluster_mma.cuh",
        "lane / 8 * 8 + lane / 4 % 2",
        "lane / 4",
        (f"{_KERNELS}::test_every_kernel",),
    ),
    (
        "rnn backward: pairs of columns change places with those of other rows, over the whole GPU",
        f"{_FOLDER}/grid_mma.cuh",
        "lane / 8 * 4 + lane / 4 % 2",
        "lane / 4",
        (f"{_KERNELS}::test_every_kernel",),
    ),
)
