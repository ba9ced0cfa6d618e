"""Mutants of the linear layers: (name, file, old text, new text, tests that must notice).

The kernel's are noticed without a GPU, by running it on the CPU (tests/ops/linear/test_on_host.py).
"""

from __future__ import annotations

_RULE = "aten_ext/ops/linear/choose.cpp"
_FEW_ROWS_RULE = "aten_ext/ops/linear/few_rows_rule.cpp"
_ARGS = "aten_ext/ops/linear/call.h"
_RUN = "aten_ext/ops/linear/run.cpp"
_LT = "aten_ext/ops/linear/lt.cpp"
_ROWS = "tests/ops/linear/test_on_host.py::test_rows_of_no_whole_vectors"
_KERNEL = "aten_ext/ops/linear/few_rows.cu"
_DEVICE = "aten_ext/ops/linear"
_RULES = ("tests/ops/linear/test_rules.py::test_declines",)
_MM = ("tests/ops/linear/test_on_host.py::test_mm",)
_PASS = "python/aten_ext/_inductor_pass.py"
_GRAPHS = "tests/ops/linear/test_inductor_pass.py"
_SMALL = "tests/ops/linear/test_small_numbers_on_host.py"
_PLANS = "tests/ops/linear/test_lt_on_host.py"
_IN_THE_L2 = "tests/ops/linear/test_in_the_l2.py"
_DOTS = "tests/ops/linear/test_gemv_on_host.py"

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "linear: a layer of little depth asks for no more than others",
        "aten_ext/ops/linear/crossover.h",
        "is_shallow(layer) || is_out_of_step(layer) ? kAskedMost",
        "is_out_of_step(layer) ? kAskedMost",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_a_layer_between_cells_asks_of_them",),
    ),
    (
        "linear: operands that begin between vectors ask for no more than others",
        "aten_ext/ops/linear/crossover.h",
        "is_shallow(layer) || is_out_of_step(layer) ? kAskedMost",
        "is_shallow(layer) ? kAskedMost",
        (
            "tests/ops/linear/test_asked_of_cells.py::test_many_columns_of_operands_that_begin_between_vectors",
        ),
    ),
    (
        "linear: the rows of a layer of little depth speak for it",
        "aten_ext/ops/linear/crossover.h",
        "is_shallow(layer) ? Neighbours{0, kRows - 1} :",
        "false ? Neighbours{0, kRows - 1} :",
        ("tests/ops/linear/test_asked_of_cells.py::test_all_rows_speak_for_layers_of_little_depth",),
    ),
    *(
        (f"linear: dot products: {whatever}", "aten_ext/ops/linear/gemv.cuh", old, to, (_DOTS,))
        for whatever, old, to in (
            (
                "a lane without a vector reads one",
                "exists ? load_past_l1(weight[c] + vector) : uint4{}",
                "load_past_l1(weight[c] + vector)",
            ),
            ("only the first vectors are read", "if (turn + step + steps < turns)", "if (turn < 0)"),
            (
                "lanes keep what they send",
                "upper ? sums[i + half] : sums[i];",
                "upper ? sums[i] : sums[i + half];",
            ),
            (
                "a warp's sums are left out",
                "for (int warp = 1; warp < warps",
                "for (int warp = 2; warp < warps",
            ),
            ("columns that do not exist are written", "own_row < p.M && own_column < p.N", "own_row < p.M"),
        )
    ),
    *(
        (
            f"linear: dot products: {whatever} that do not exist are read",
            "aten_ext/ops/linear/gemv.cuh",
            old,
            to,
            ("tests/ops/linear/test_on_host.py::test_nothing_beside_operands_is_touched",),
        )
        for whatever, old, to in (
            (
                "columns",
                "min(first_column + group * columns + c, p.N - 1)",
                "first_column + group * columns + c",
            ),
            ("rows", "min(m, p.M - 1)", "m"),
        )
    ),
    (
        "linear: dot products take two rows of 16 bits",
        "aten_ext/ops/linear/gemv_plan.h",
        "layer.m <= (layer.is_float ? 4 : 1)",
        "layer.m <= 4",
        ("tests/ops/linear/test_gemv_on_host.py::test_which_layers_it_takes",),
    ),
    *(
        (
            f"linear: {what}",
            "aten_ext/ops/linear/crossover.h",
            old,
            to,
            ("tests/ops/linear/test_asked_of_cells.py::test_what_a_layer_between_cells_asks_of_them",),
        )
        for what, old, to in (
            ("many columns ask for no more than others", "layer.n <= kManyColumns || is_cell(layer)", "true"),
            ("many columns of one row ask for no more", "layer.by_dots && !has_depth", "false"),
            ("many columns of any depth ask for more", "layer.by_dots && !has_depth", "layer.by_dots"),
            (
                "the largest weights ask for no more",
                "weight_bytes(layer) > kMostMeasured && !layer.by_dots",
                "false",
            ),
            (
                "dot products of the largest ask for more",
                "> kMostMeasured && !layer.by_dots",
                "> kMostMeasured",
            ),
        )
    ),
    (
        "linear: cuBLASLt gets no workspace",
        _LT,
        "product.workspace > 0 ? at::cuda::getCUDABlasLtWorkspace() : nullptr",
        "nullptr",
        ("tests/ops/linear/test_lt_on_host.py::test_values",),
    ),
    (
        "core: calls whose tensors lie otherwise are taken for alike",
        "aten_ext/core/declined.h",
        "add(static_cast<uint64_t>(t.strides()[d]));",
        "",
        ("tests/core/test_declined.py",),
    ),
    (
        "core: a call is declined for another one's reason",
        "aten_ext/core/declined.h",
        "place.fingerprint == fingerprint ? place.reason : nullptr",
        "place.reason",
        ("tests/core/test_declined.py",),
    ),
    (
        "linear: a layer of any depth may be ours",
        "aten_ext/ops/linear/crossover.h",
        "int more = is_too_deep(layer) ",
        "int more = false ",
        ("tests/ops/linear/test_asked_of_cells.py::test_the_deepest_layers_are_upstreams",),
    ),
    (
        "linear: rows of whole eight bytes may be as deep as others",
        "aten_ext/ops/linear/crossover.h",
        "layer.k > (likeness(layer) == Likeness::NoRowsQuads ?",
        "layer.k > (false ?",
        ("tests/ops/linear/test_asked_of_cells.py::test_the_deepest_layers_are_upstreams",),
    ),
    (
        "linear: in fp32 the largest weight is as large as in 16 bits",
        "aten_ext/ops/linear/crossover.h",
        "elements >= kLargest[layer.is_float] ",
        "elements >= kLargest[0] ",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_a_layer_between_cells_asks_of_them",),
    ),
    (
        "linear: fp16 between vectors asks for no more",
        "aten_ext/ops/linear/crossover.h",
        "layer.begins_between_vectors && layer.is_half ?",
        "false ?",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_operands_that_begin_between_vectors_ask",),
    ),
    (
        "linear: bf16 between vectors asks for as much as fp16",
        "aten_ext/ops/linear/crossover.h",
        "layer.begins_between_vectors && layer.is_half ?",
        "layer.begins_between_vectors ?",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_operands_that_begin_between_vectors_ask",),
    ),
    (
        "linear: one element for all columns is a bias as others",
        _ARGS,
        "bias->dim() == 1 && bias->size(0) == call.n() &&",
        "bias->dim() <= 1 &&",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_is_no_vector_asks_the_cells_without_a_bias",),
    ),
    (
        "linear: a matrix of one column is a bias",
        _ARGS,
        "bias->dim() == 1 && bias->size(0) == call.n() &&",
        "!(bias->dim() == 2 && bias->size(0) == call.m() && bias->size(1) == call.n()) &&",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_is_no_vector_asks_the_cells_without_a_bias",),
    ),
    (
        "tune: weights in the L2 are not asked for between other kernels",
        "python/aten_ext/tune/linear.py",
        "if between_in_l2 < AS_FAST else",
        "if False else",
        ("tests/commands/test_tune_linear.py",),
    ),
    (
        "tune: what gains less in the L2 counts as that",
        "python/aten_ext/tune/linear.py",
        "if between_in_l2 < AS_FAST else",
        "if True else",
        ("tests/commands/test_tune_linear.py",),
    ),
    (
        "tune: the table of weights in the L2 has what is from memory",
        "python/aten_ext/tune/linear.py",
        "else between, in_l2\n",
        "else between, alone\n",
        ("tests/commands/test_tune_linear.py",),
    ),
    (
        "tune: the second look is as long as the first",
        "python/aten_ext/tune/linear.py",
        "RESIDENT_CALLS if resident else self._grid.calls",
        "self._grid.calls",
        ("tests/commands/test_tune_linear.py",),
    ),
    (
        "tune: weights beyond the L2 are taken for resident",
        "python/aten_ext/tune/linear.py",
        "cell.weight_bytes > RESIDENT_SHARE * self._l2 or not",
        "not",
        ("tests/commands/test_tune_linear.py",),
    ),
    (
        "linear: a ReLU asks for no more",
        _FEW_ROWS_RULE,
        "call.epilogue == Epilogue::ReLU,\n          whole_rows",
        "false,\n          whole_rows",
        ("tests/ops/linear/test_asked_of_cells.py::test_one_row_in_fp32_with_a_relu_asks_for_more",),
    ),
    ("linear: one row too many is taken", _FEW_ROWS_RULE, "kMaxRows) {", "kMaxRows + 1) {", _RULES),
    (
        "linear: K need not be whole vectors",
        _FEW_ROWS_RULE,
        "keeps_aligned(t, t.size(column)) && ",
        "",
        (_ROWS,),
    ),
    ("linear: out may be the weight", _ARGS, "out.is_alias_of(mat2) ||", "", _RULES),
    (
        "linear: TF32 is not asked about",
        _FEW_ROWS_RULE,
        "return flags.precision != at::Float32Precision::NONE &&",
        "return false && flags.precision != at::Float32Precision::NONE &&",
        ("tests/ops/linear/test_rules.py::test_tf32_allowed_declines_fp32_alone",),
    ),
    (
        "linear: layers that leave multiprocessors idle ask for no more",
        _FEW_ROWS_RULE,
        "!crossover::has_measured_columns(layer) &&",
        "false &&",
        (
            "tests/ops/linear/test_asked_of_cells.py::test_a_layer_that_leaves_multiprocessors_idle_asks_for_more",
        ),
    ),
    *(
        (
            f"linear: a launch in a graph overlaps {whatever}",
            "aten_ext/core/last_launch.h",
            old,
            new,
            ("tests/ops/linear/test_on_host.py::test_a_captured_launch_overlaps_with_its_own_kind",),
        )
        for whatever, old, new in (
            ("behind any kernel", "before.node == last_.node && before", "before"),
            ("behind another graph's", " && before.capture == last_.capture;", ";"),
            ("behind none", "launch(!before.is_active || is_last(before));", "launch(!before.is_active);"),
        )
    ),
    *(
        (
            f"linear: {whatever} counts as another kernel's",
            "aten_ext/core/last_launch.h",
            old,
            new,
            ("tests/ops/linear/test_on_host.py::test_what_came_before_in_a_graph",),
        )
        for whatever, old, new in (
            ("a graph's beginning", "before.is_active && before.has_nodes &&", "before.is_active &&"),
            ("a launch of its own kind", "before.has_nodes && !is_last(before);", "before.has_nodes;"),
        )
    ),
    (
        "linear: cuBLAS is left to be set up in a capture",
        "aten_ext/ops/linear/run.cpp",
        "if (plan.is_blas_in_graphs) {",
        "if (false) {",
        ("tests/ops/linear/test_on_host.py::test_cublas_is_set_up_where_a_graph_takes_it",),
    ),
    (
        "linear: a layer in a graph asks the other table",
        _FEW_ROWS_RULE,
        "&& is_between_others(device);",
        "&& false;",
        ("tests/ops/linear/test_gain_in_graphs.py::test_each_table_speaks_for_its_calls",),
    ),
    (
        "linear: a layer outside a graph asks that of graphs",
        _FEW_ROWS_RULE,
        "&& is_between_others(device);",
        ";",
        ("tests/ops/linear/test_gain_in_graphs.py::test_each_table_speaks_for_its_calls",),
    ),
    (
        "linear: in a graph a layer asks for as much as outside",
        "aten_ext/ops/linear/crossover.h",
        "(in_graph ? kAskedInGraphs : kAsked)",
        "kAsked",
        ("tests/ops/linear/test_gain_in_graphs.py::test_what_a_layer_in_a_graph_asks_for",),
    ),
    (
        "linear: rows of whole eight bytes are taken for others",
        "aten_ext/ops/linear/crossover.h",
        "layer.k * size % kQuad == 0",
        "false",
        ("tests/ops/linear/test_gain_in_graphs.py::test_what_a_layer_in_a_graph_asks_for",),
    ),
    (
        "linear: layers between cells ask for no more",
        "aten_ext/ops/linear/crossover.h",
        "std::max({more, of_cell, asked_of_part",
        "std::max({of_cell, asked_of_part",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_a_layer_between_cells_asks_of_them",),
    ),
    (
        "linear: little depth is that of the first cell",
        "aten_ext/ops/linear/crossover.h",
        "layer.k < int64_t{1} << kFirstDepth",
        "false",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_a_layer_between_cells_asks_of_them",),
    ),
    (
        "linear: a large weight of rows that are no vectors asks for no more",
        "aten_ext/ops/linear/crossover.h",
        "return has_rows_of_vectors(layer) || elements < kLarge ? 0",
        "return true ? 0",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_a_layer_between_cells_asks_of_them",),
    ),
    (
        "linear: the largest weight of rows that are no vectors asks for as much as a large one",
        "aten_ext/ops/linear/crossover.h",
        "elements >= kLargest[layer.is_float] ",
        "false ",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_a_layer_between_cells_asks_of_them",),
    ),
    (
        "linear: tiles of 64 rows that leave multiprocessors idle ask for as much as others",
        "aten_ext/ops/linear/crossover.h",
        "has_rows_of_vectors(layer) && tile_of(layer) < kTiles - 1 ?",
        "has_rows_of_vectors(layer) ?",
        (
            "tests/ops/linear/test_asked_of_cells.py::test_a_layer_that_leaves_multiprocessors_idle_asks_for_more",
        ),
    ),
    (
        "linear: an even number of columns is an odd one",
        _FEW_ROWS_RULE,
        "call.n() % 2 == 0                  ? Layout::TransposedEven",
        "false ? Layout::TransposedEven",
        ("tests/ops/linear/test_asked_of_cells.py::test_dtype_bias_and_layout_have_cells_of_their_own",),
    ),
    (
        "linear: rows that end within a sector are like any",
        "aten_ext/ops/linear/crossover.h",
        "row * size % kSector != 0",
        "false",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_a_layer_between_cells_asks_of_them",),
    ),
    (
        "linear: a plan that is kept is that of any K",
        "aten_ext/ops/linear/few_rows_plan.h",
        "a.n == b.n && a.k == b.k &&",
        "",
        ("tests/ops/linear/test_plans.py::test_plans_that_are_kept_are_each_layer_s_own",),
    ),
    (
        "linear: fp16 has bf16's cells",
        "aten_ext/ops/linear/crossover.h",
        "layer.is_half ? 2 : 0",
        "0",
        ("tests/ops/linear/test_asked_of_cells.py::test_fp16_has_cells_of_its_own",),
    ),
    (
        "linear: words are asked for at odd addresses",
        _FEW_ROWS_RULE,
        "t.const_data_ptr()) % kWord == 0 &&",
        "t.const_data_ptr()) % 2 == 0 &&",
        ("tests/ops/linear/test_asked_of_cells.py::test_which_cells_speak_for_rows_of_no_vectors",),
    ),
    (
        "linear: an only row's stride counts",
        _RUN,
        "return t.size(row) == 1 ? 0 : t.stride(row);",
        "return t.stride(row);",
        (_ROWS,),
    ),
    (
        "linear: what follows a row is multiplied",
        f"{_DEVICE}/covered_rows.cuh",
        "min(max(left - missing, 0), 16)",
        "16",
        (_ROWS,),
    ),
    (
        "linear: rows of the weight that do not exist are multiplied",
        f"{_DEVICE}/covered_rows.cuh",
        "row < rows_left ? bytes : 0",
        "bytes",
        (_ROWS,),
    ),
    (
        "linear: a row's one vector more is not copied",
        f"{_DEVICE}/covered_rows.cuh",
        "if (row < rows) {",
        "if (row < 0) {",
        (_ROWS,),
    ),
    (
        "linear: an odd row's halves of words stay where they are",
        f"{_DEVICE}/covered_rows.cuh",
        "static_cast<uint32_t>(shift % 4) * 8",
        "0u",
        (_ROWS,),
    ),
    (
        "linear: rows of [K, N] are all shifted like the first",
        f"{_DEVICE}/covered_weight.cuh",
        "(shift_ + i * shift_of_row_) % 16",
        "shift_",
        (_ROWS,),
    ),
    (
        "linear: sums are sent one at a time, to where four go",
        f"{_DEVICE}/reduce.cuh",
        "const int element = thread * width + i * threads;",
        "const int element = thread + i * threads;",
        _MM,
    ),
    (
        "linear: fp16 accumulation is not asked about",
        _ARGS,
        "if (dtype == at::kHalf && context.allowFP16AccumulationCuBLAS()) {",
        "if (false) {",
        ("tests/ops/linear/test_rules.py::test_fp16_accumulation",),
    ),
    (
        "linear: deterministic algorithms are not asked about",
        _ARGS,
        "if (context.deterministicAlgorithms() && ",
        "if (false && context.deterministicAlgorithms() && ",
        ("tests/ops/linear/test_rules.py::test_deterministic",),
    ),
    (
        "linear: a bias is read with beta = 0",
        _RUN,
        "bias != nullptr && plan.beta != 0",
        "bias != nullptr",
        ("tests/ops/linear/test_on_host.py::test_beta_zero_ignores_the_bias",),
    ),
    (
        "linear: small sums stay as they are",
        _KERNEL,
        "size >= kTinySum && size <=",
        "size <=",
        (f"{_SMALL}::test_scales",),
    ),
    (
        "linear: sums of 0 are not looked into",
        _KERNEL,
        "if (!zeros_are_tiny) {",
        "if (true) {",
        (f"{_SMALL}::test_scales",),
    ),
    (
        "linear: what one row says holds for all",
        _KERNEL,
        "row == zeros_row ? zeros_are_tiny : has_tiny<vectors>(x, p.K);",
        "zeros_row >= 0 ? zeros_are_tiny : has_tiny<vectors>(x, p.K);",
        (f"{_SMALL}::test_small_rows_among_others", f"{_SMALL}::test_one_small_number_among_zeros"),
    ),
    (
        "linear: the end of a row is not looked at",
        _KERNEL,
        "32 * kAtOnce; k < K; k += 32 * kAtOnce) {",
        "32 * kAtOnce; k < K - 4; k += 32 * kAtOnce) {",
        (f"{_SMALL}::test_one_small_number_among_zeros",),
    ),
    (
        "linear: GELU halves before it doubles",
        "aten_ext/ops/linear/epilogue.cuh",
        "sizeof(T) == 2 ? fmaf(x, t, x) * 0.5f : ",
        "",
        ("tests/ops/linear/test_special_values_on_host.py::test_gelu_of_large_numbers",),
    ),
    (
        "linear: a plan does not know TF32",
        _RULE,
        "key.tf32 = flags.precision == at::Float32Precision::TF32;",
        "key.tf32 = false;",
        (f"{_PLANS}::test_precision_flags_make_plans_of_their_own",),
    ),
    (
        "linear: a plan does not know the bias's alignment",
        _RULE,
        "key.bias_alignment = alignment_of(call.bias->const_data_ptr());",
        "key.bias_alignment = 8;",
        (f"{_PLANS}::test_what_a_plan_depends_on",),
    ),
    (
        "linear: the first call's bias is every call's",
        _LT,
        "!product.usable || !set_bias(product, bias)",
        "!product.usable",
        (f"{_PLANS}::test_the_heuristic_is_asked_once",),
    ),
    (
        "linear: a plan is made that the GPU has no room for",
        "aten_ext/ops/linear/few_rows_plan.h",
        "return smem_bytes(plan.rows, plan.groups, plan.alone, of) <= machine.smem_bytes &&",
        "return",
        ("tests/ops/linear/test_plans.py::test_what_is_chosen_would_launch",),
    ),
    (
        "linear: a refused launch is an error",
        _RUN,
        "if (cuda::is_refusal(error)) {",
        "if (false) {",
        ("tests/ops/linear/test_plans.py::test_refused_launch_writes_nothing",),
    ),
    (
        "linear: plans are kept for ever",
        "aten_ext/core/lru_cache.h",
        "entries_.size() == capacity_",
        "false",
        (f"{_PLANS}::test_least_recently_used_goes_first",),
    ),
    (
        "linear: a stage is used before it has arrived for all",
        _KERNEL,
        "__syncthreads();  // this stage",
        "// this stage",
        _MM,
    ),
    (
        "linear: sums of other blocks are not waited for",
        f"{_DEVICE}/reduce.cuh",
        "    wait_for_phase(mbarrier(), 0);\n",
        "",
        _MM,
    ),
    (
        "linear: one stage too few is waited for",
        _KERNEL,
        "wait_async_copies<G::kSlots - 2>()",
        "wait_async_copies<G::kSlots - 1>()",
        _MM,
    ),
    (
        "linear: 29 to 31 rows have the cells of 24 and 28",
        "aten_ext/ops/linear/crossover.h",
        "kRowsOfCells[low + 1] <= size",
        "kRowsOfCells[low + 1] <= (size > 28 && size < 32 ? 24 : size)",
        ("tests/ops/linear/test_asked_of_cells.py::test_which_rows_speak_for_a_layer",),
    ),
    *(
        (f"linear: weights in the L2: {what}", f"aten_ext/ops/linear/{file}", old, to, (_IN_THE_L2,))
        for what, file, old, to in (
            ("none stays there", "crossover.h", "layer, kResidentTenths,", "layer, -1,"),
            ("twice as large ones stay", "crossover.h", "layer, kResidentTenths,", "layer, 20,"),
            (
                "large ones ask for no more",
                "crossover.h",
                " ||\n                          takes_tenths(layer, kMuchOfL2Tenths, l2_bytes)",
                "",
            ),
            ("more of them are large", "crossover.h", "kMuchOfL2Tenths = 6", "kMuchOfL2Tenths = 5"),
            ("a ragged depth asks for no more", "crossover.h", " || has_ragged_depth(layer)", ""),
            ("a little missing depth counts", "crossover.h", "20 * missing >=", "40 * missing >="),
            (
                "the depth of few rows counts",
                "crossover.h",
                "tile_of(layer) >= 2 && 20",
                "tile_of(layer) >= 0 && 20",
            ),
            (
                "rows that begin within a sector ask for no more",
                "crossover.h",
                "is_erratic = likeness(layer) == Likeness::HalfSectors ||",
                "is_erratic =",
            ),
            (
                "the largest tiles of parts of lines ask for no more",
                "crossover.h",
                " ||\n                          is_largest_tile_of_parts(layer);",
                ";",
            ),
            (
                "layers between cells ask for no more",
                "crossover.h",
                "std::max(of_cell, is_erratic ? kAskedInL2OfErratic : kAskedInL2[tile_of(layer)])",
                "of_cell",
            ),
            (
                "what is slow there is ours",
                "few_rows_rule.cpp",
                " || !is_fast_in_l2(layer, in_l2, gpu.l2_bytes)) {",
                ") {",
            ),
        )
    ),
    (
        "linear: a part of a wider matrix asks what others do in a graph",
        "aten_ext/ops/linear/crossover.h",
        "in_graph && layer.mat1_alignment < kSector",
        "in_graph && layer.mat1_alignment < 0",
        ("tests/ops/linear/test_gain_in_graphs.py::test_what_a_part_of_a_wider_matrix_asks_for",),
    ),
    (
        "linear: one row of a large weight asks what more rows do",
        "aten_ext/ops/linear/crossover.h",
        ": layer.m == 1                                  ? kAskedLargeOfOneRow",
        ": layer.m == 0                                  ? kAskedLargeOfOneRow",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_a_layer_between_cells_asks_of_them",),
    ),
    (
        "linear: any weight stays in the L2",
        _FEW_ROWS_RULE,
        "gpu.clusters, gpu.l2_bytes},",
        "gpu.clusters, int64_t{1} << 40},",
        (f"{_DOTS}::test_which_layers_it_takes",),
    ),
    (
        "linear: few terms take cuBLASLt's small tiles",
        "aten_ext/ops/linear/lt.cpp",
        "key.k < kMinTermsOfSmallTiles ||",
        "false ||",
        ("tests/ops/linear/test_lt_on_host.py::test_choice_among_the_answers",),
    ),
    (
        "linear: what lies beyond K is read",
        f"{_DEVICE}/weight.cuh",
        "elements_left <= 0 ? 0 : transposed",
        "transposed",
        _MM,
    ),
    (
        "linear: fp32 is two parts of bf16",
        f"{_DEVICE}/product.cuh",
        "for (int order = 2; order",
        "for (int order = 1; order",
        _MM,
    ),
    (
        "linear: what bf16 made of an infinity is kept",
        _KERNEL,
        "while (again != 0) {",
        "while (false) {",
        ("tests/ops/linear/test_on_host.py::test_operands_that_are_not_finite",),
    ),
    (
        "linear: a cluster's first block is left out",
        f"{_DEVICE}/reduce.cuh",
        "for (int block = 0; block < blocks",
        "for (int block = 1; block < blocks",
        _MM,
    ),
    (
        "linear: a result that others need is rewritten",
        _PASS,
        "if not users.issubset(inside):",
        "if False:",
        (f"{_GRAPHS}::test_leaves",),
    ),
    (
        "linear: GELU becomes ReLU",
        _PASS,
        "fwd_only), use_gelu=True)",
        "fwd_only), use_gelu=False)",
        (f"{_GRAPHS}::test_rewrites",),
    ),
    (
        "linear: any beta is cuBLASLt's",
        _ARGS,
        "bias != nullptr && call.beta->toDouble() == 1.0 &&",
        "bias != nullptr &&",
        (
            "tests/ops/linear/test_lt.py::test_declines",
            "tests/ops/linear/test_asked_of_cells.py::test_a_multiple_of_a_bias_asks_the_cells_without_one",
        ),
    ),
    (
        "rows of a mat1 within a larger matrix are whole lines",
        _FEW_ROWS_RULE,
        "t.size(0) > 1 && t.stride(0) != t.size(1) ?",
        "t.size(0) > 1 && false ?",
        ("tests/ops/linear/test_asked_of_cells.py::test_what_a_mat1_within_a_larger_matrix_asks",),
    ),
)
