"""Mutants of cat: (name, file, old text, new text, tests that must notice).

What no test can notice has none: copying a run twice, or beyond the column that is being filled, gives the
same result.
"""

from __future__ import annotations

_RULE = "aten_ext/ops/cat/inputs.h"
_CPU = "aten_ext/ops/cat/cpu.cpp"
_WORDS = "aten_ext/ops/cat/words.cu"
_WORD_KERNELS = "aten_ext/ops/cat/words_kernels.cuh"
_PARITY = "tests/ops/cat/test_parity.py"
_OUT = "tests/ops/cat/test_out.py"
_ON_HOST = "tests/ops/cat/test_on_host.py"
_ANSWERS = "tests/ops/cat/test_answers.py"
_LAYOUTS = "tests/ops/cat/test_layouts.py"
_CHOICE = "tests/ops/cat/test_choice_of_kernel.py"
_GATHER = "aten_ext/ops/cat/gather.cuh"
_EDGES = ("tests/ops/cat/test_policy.py::test_edges_on_cpu",)
_RUNS = (f"{_PARITY}::test_runs_of_every_length_on_cpu",)

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "cat: short runs on the CPU begin at the first row again",
        "aten_ext/ops/cat/cpu.cpp",
        "input->data + row * run, run, n,",
        "input->data, run, n,",
        (f"{_PARITY}::test_short_runs_on_cpu",),
    ),
    (
        "cat: parts of few rows that lie far apart go upstream",
        "aten_ext/ops/cat/crossover.h",
        "in(parts.rows, rows, rows) &&",
        "",
        ("tests/ops/cat/test_crossover.py",),
    ),
    (
        "cat: parts of one matrix are taken for parts of several",
        "aten_ext/ops/cat/crossover.h",
        "return several;",
        "return true;",
        ("tests/ops/cat/test_crossover.py",),
    ),
    (
        "cat: sizes beside the dimension may differ",
        _RULE,
        "fits = sizes[d] == expected[d] || ",
        "fits = true || sizes[d] == expected[d] || ",
        ("tests/ops/cat/test_declines.py::test_upstream_raises",),
    ),
    ("cat: empty vectors are not skipped", _RULE, "if (sizes[0] == 0) {", "if (false) {", _EDGES),
    (
        "cat: channels-last runs are those of contiguous tensors",
        _RULE,
        "channels_last && dim != 1 ? sizes[1] : 1;",
        "1;",
        (f"{_PARITY}::test_channels_last",),
    ),
    (
        "cat: out may share memory with an input",
        _RULE,
        "if (t.unsafeGetTensorImpl()",
        "if (false && t.unsafeGetTensorImpl()",
        (f"{_OUT}::test_out_that_an_input_shares_memory_with",),
    ),
    (
        "cat: out of any dtype is filled",
        _RULE,
        "if (out.scalar_type() != found.dtype) {",
        "if (false) {",
        (f"{_OUT}::test_declined_out",),
    ),
    (
        "cat: a large first input decides nothing",
        _CPU,
        "return bytes > max_bytes(result, threads, serial, one_row) || ",
        "return ",
        _EDGES,
    ),
    (
        "cat: the second of two is as long as the first",
        _CPU,
        "listed == 2 ? bytes : bytes * listed;",
        "bytes * listed;",
        _EDGES,
    ),
    (
        "cat: 64 inputs are few to the first one",
        _CPU,
        "if (listed < kManyInputs) {",
        "if (listed <= kManyInputs) {",
        _EDGES,
    ),
    (
        "cat: a column starts at its first input's beginning",
        _CPU,
        "row * run + (at - input->begin)",
        "row * run",
        _RUNS,
    ),
    ("cat: every row is the first", _CPU, "input->data + row * run + ", "input->data + 0 * run + ", _RUNS),
    ("cat: the end of a run is not copied", _CPU, "move(Block{}, n - 16);", "", _RUNS),
    (
        "cat: a vector reads on past the end of a run",
        "aten_ext/ops/cat/runs.cu",
        "left < static_cast<Offset>(16 - filled) ? static_cast<int>(left) : 16 - filled;",
        "left < 0 ? 0 : 16 - filled;",
        (f"{_ON_HOST}::test_every_phase_of_the_result",),
    ),
    (
        "cat: a pack is taken from one run",
        _WORD_KERNELS,
        "const bool in_one = count == 1 || at + count <= run.end;",
        "const bool in_one = true;",
        (f"{_ON_HOST}::test_runs_of_words",),
    ),
    (
        "cat: a column of packs is taken from one run",
        _WORD_KERNELS,
        "  bool in_one = count == 1 || at + count <= run.end;",
        "  bool in_one = true;",
        (f"{_ON_HOST}::test_runs_of_words",),
    ),
    (
        "cat: a column is its first row again and again",
        _WORD_KERNELS,
        "min(i, last) * stride",
        "0 * stride",
        (f"{_ON_HOST}::test_runs_of_words",),
    ),
    (
        "cat: packs are loaded as if in step",
        _WORD_KERNELS,
        "shift_bytes(low[i], high[i], phase[i]);",
        "low[i];",
        (f"{_ON_HOST}::test_runs_of_words",),
    ),
    (
        "cat: sizes of runs do not matter to words",
        _WORDS,
        "(run.begin | run.size | stride)",
        "(run.begin | stride)",
        (f"{_ON_HOST}::test_runs_of_words",),
    ),
    (
        "cat: the last of eight or sixteen inputs is the one before",
        "aten_ext/ops/cat/words.cuh",
        "for (int i = 1; i < most; ++i) {",
        "for (int i = 1; i < most - 1; ++i) {",
        (f"{_ON_HOST}::test_many_runs_of_words",),
    ),
    (
        "cat: what has no elements does not count for the memory format",
        _RULE,
        "&& found.format != suggested_format(t)) {",
        "&& t.numel() != 0 && found.format != suggested_format(t)) {",
        (
            f"{_ANSWERS}::test_an_input_without_elements_counts_for_the_memory_format",
            f"{_ANSWERS}::test_the_memory_format_on_host",
        ),
    ),
    (
        "cat: what has no elements does not count for the dtype",
        _RULE,
        "if (C10_UNLIKELY(t.dtype() != type)) {",
        "if (t.numel() != 0 && t.dtype() != type) {",
        (
            f"{_ANSWERS}::test_an_input_without_elements_counts_for_the_dtype",
            f"{_ANSWERS}::test_the_dtype_on_host",
        ),
    ),
    (
        "cat: pairs are stored at odd addresses",
        "aten_ext/ops/cat/transpose.cu",
        "((in | out | strides) & 1) == 0;",
        "((in | strides) & 1) == 0;",
        (f"{_ANSWERS}::test_pairs_of_a_transpose_at_odd_addresses",),
    ),
    (
        "cat: pairs are loaded from odd addresses",
        "aten_ext/ops/cat/transpose.cu",
        "((in | out | strides) & 1) == 0;",
        "((out | strides) & 1) == 0;",
        (f"{_ON_HOST}::test_tiles",),
    ),
    (
        "cat: pairs of rows that are an odd number of elements apart",
        "aten_ext/ops/cat/transpose.cu",
        "((in | out | strides) & 1) == 0;",
        "((in | out) & 1) == 0;",
        (f"{_ON_HOST}::test_tiles",),
    ),
    (
        "cat: a vector never lies in two inner dimensions",
        _GATHER,
        "const bool crosses = inside < static_cast<Index>(place.count());",
        "const bool crosses = false;",
        (f"{_LAYOUTS}::test_every_length",),
    ),
    (
        "cat: what is before a segment is written",
        _GATHER,
        "kBytes * skip,\n                                           kBytes * end);",
        "0,\n                                           kBytes * end);",
        (f"{_LAYOUTS}::test_every_length",),
    ),
    (
        "cat: what is after a segment is written",
        _GATHER,
        "kBytes * skip,\n                                           kBytes * end);",
        "kBytes * skip,\n                                           16);",
        (f"{_LAYOUTS}::test_every_length",),
    ),
    (
        "cat: vectors are loaded beyond an input",
        _GATHER,
        "if (!window_fits(from, extent) || ",
        "if (false && !window_fits(from, extent) && ",
        (f"{_ON_HOST}::test_nothing_outside_of_the_tensors_is_touched",),
    ),
    (
        "cat: all segments have the first one's phase",
        "aten_ext/ops/cat/gather.cu",
        ": bytes - p.element_size;",
        ": static_cast<int64_t>(first) & (bytes - 1);",
        (f"{_LAYOUTS}::test_every_length",),
    ),
    (
        "cat: a strip is never of two inner dimensions",
        _GATHER,
        "const bool crosses = inside < static_cast<Index>(place[i].count());",
        "const bool crosses = false;",
        (f"{_LAYOUTS}::test_every_length",),
    ),
    (
        "cat: strips past the end are more than the last one",
        _GATHER,
        "shape, min(item, shape.items - 1));",
        "shape, item);",
        (f"{_LAYOUTS}::test_every_length",),
    ),
    (
        "cat: the last patch is full",
        _GATHER,
        "const int count = static_cast<int>(min(left, Index{kPatch}));",
        "const int count = left != 0 ? kPatch : 0;",
        (f"{_LAYOUTS}::test_patches",),
    ),
    (
        "cat: a patch lies in neighbouring elements of the result",
        _GATHER,
        "step = inner;",
        "step = 1;",
        (f"{_LAYOUTS}::test_patches",),
    ),
    (
        "cat: patches are loaded beyond an input",
        _GATHER,
        "if (window_fits(address, Extent{",
        "if (true || window_fits(address, Extent{",
        (f"{_ON_HOST}::test_nothing_outside_of_the_tensors_is_touched",),
    ),
    (
        "cat: a line begins where the result does",
        _GATHER,
        "reinterpret_cast<T*>(args.out) + args.begin[input];\n  T x[count];",
        "reinterpret_cast<T*>(args.out);\n  T x[count];",
        (f"{_LAYOUTS}::test_every_rank",),
    ),
    (
        "cat: partly empty tiles are as good as full ones",
        "aten_ext/ops/cat/shares.h",
        "return elements >= of_tiles * (",
        "return true || elements >= of_tiles * (",
        (f"{_CHOICE}::test_small_elements_in_tiles_that_are_full",),
    ),
    (
        "cat: tiles are made in small results",
        "aten_ext/ops/cat/shares.h",
        "across && by.gpu.is_large(elements * by.element_size)",
        "across",
        (f"{_CHOICE}::test_transposes_of_large_results_are_made_by_tiles",),
    ),
    (
        "cat: inputs of one size lie alike",
        "aten_ext/ops/cat/gather.cu",
        "std::equal(a.strides, a.strides + a.dims, b.strides)",
        "true",
        (f"{_LAYOUTS}::test_two_layouts",),
    ),
    (
        "cat: inputs with as many vectors as another need not",
        "aten_ext/ops/cat/gather.cu",
        " || one.items != all[i - 1].items",
        "",
        (f"{_CHOICE}::test_inputs_alike_in_different_phases",),
    ),
    (
        "cat: neighbouring dimensions are one",
        "aten_ext/ops/cat/geometry.h",
        "count > 0 && merged_strides[count - 1] == stride * size",
        "count > 0",
        (f"{_LAYOUTS}::test_two_layouts",),
    ),
    (
        "cat: tiles are made of slivers",
        "aten_ext/ops/cat/geometry.h",
        "elements >= kMinTileElements",
        "true",
        (f"{_CHOICE}::test_transposes_far_from_their_neighbours",),
    ),
    (
        "cat: transposes in company are as if alone",
        "aten_ext/ops/cat/shares.h",
        "alone = alone && shares.tiled.size() == inputs.size();",
        "",
        (f"{_CHOICE}::test_bytes_that_are_converted_in_pieces_of_sectors",),
    ),
    (
        "cat: runs always have a launch of their own",
        "aten_ext/ops/cat/shares.h",
        "by.element_size) : !gathers;",
        "by.element_size) : true;",
        (f"{_CHOICE}::test_few_runs_beside_others_are_gathered",),
    ),
    (
        "cat: few runs go through a large result",
        "aten_ext/ops/cat/shares.h",
        " && kRunsOfAll[1] * runs >= kRunsOfAll[0] * elements",
        "",
        (f"{_CHOICE}::test_few_runs_beside_others_are_gathered",),
    ),
    (
        "cat: inputs sit out the turns that are theirs",
        "aten_ext/ops/cat/gather_arguments.cuh",
        "static_cast<uint32_t>((before + share) >> 32) != block",
        "static_cast<uint32_t>((before + share) >> 32) == block",
        (f"{_CHOICE}::test_inputs_of_unequal_blocks_take_turns",),
    ),
    (
        "cat: the last turn of an input is left out",
        "aten_ext/ops/cat/gather_arguments.cuh",
        "(whole + static_cast<uint64_t>(turns) - 1) / static_cast<uint64_t>(turns) - 1",
        "whole / static_cast<uint64_t>(turns) - 1",
        (f"{_CHOICE}::test_inputs_of_unequal_blocks_take_turns",),
    ),
    (
        "cat: tiles write sectors in pieces",
        "aten_ext/ops/cat/shares.h",
        "if (bytes || in_pieces ||",
        "if (bytes ||",
        (f"{_CHOICE}::test_tiles_write_whole_sectors_of_large_results",),
    ),
    (
        "cat: rows that are apart follow each other",
        "aten_ext/ops/cat/runs.cu",
        "if (has_rows_apart(params)) {",
        "if (false) {",
        (f"{_CHOICE}::test_long_rows_apart_in_any_phase",),
    ),
    (
        "cat: rows of single inputs follow each other",
        _WORDS,
        "if (p.count < 2 || has_rows_apart(p)) {",
        "if (p.count < 2) {",
        (f"{_CHOICE}::test_tiny_inputs_with_rows_apart",),
    ),
    (
        "cat: a pack of a row is of one input",
        _WORD_KERNELS,
        "const bool in_one = count == 1 || at + count <= run.end;",
        "const bool in_one = true;",
        (f"{_ON_HOST}::test_every_way_of_words",),
    ),
    (
        "cat: a pack is of one row",
        _WORD_KERNELS,
        "const auto [its_row, its_at] = locate(index + j);",
        "const auto [its_row, its_at] = Quotient<uint32_t>{row, at + j};",
        (f"{_ON_HOST}::test_narrow_rows",),
    ),
    (
        "cat: many tiny inputs are none where one is large",
        _WORDS,
        "p.count * p.rows * longest_run(p) * p.element_size / word",
        "p.rows * p.row_size * p.element_size / word",
        (f"{_CHOICE}::test_many_inputs_by_their_words",),
    ),
    (
        "cat: rows of single inputs follow each other in the result",
        "aten_ext/ops/cat/by_inputs.cu",
        "[run.begin + row * args.row_size + ",
        "[run.begin + row * run.size + ",
        (f"{_CHOICE}::test_many_tiny_inputs",),
    ),
    (
        "cat: the words that a thread makes of an input are one row",
        "aten_ext/ops/cat/by_inputs.cu",
        "if (args.rows > 1 && at >= run.size) {",
        "if (args.rows > 2 && at >= run.size) {",
        (f"{_CHOICE}::test_a_thread_makes_two_words_of_an_input",),
    ),
    (
        "cat: a thread makes words behind the end of its input",
        "aten_ext/ops/cat/by_inputs.cu",
        "if (first + j * threads < words) {",
        "if (true) {",
        (f"{_CHOICE}::test_lists_by_their_words",),
    ),
    (
        "cat: lists of one long input go input by input",
        _WORDS,
        "most_of_list) &&\n      all_longest <= kIdleList * words",
        "most_of_list) &&\n      all_longest <= 2 * kIdleList * words",
        (f"{_CHOICE}::test_lists_by_their_words",),
    ),
    *(
        (
            f"cat: rows of {whatever} go input by input",
            _WORDS,
            old,
            new,
            (f"{_CHOICE}::test_rows_of_a_few_inputs_by_their_words",),
        )
        for whatever, old, new in (
            ("many inputs", "p.rows > 1 && !many &&", "p.rows > 1 &&"),
            ("one long input", "!many && all_longest <= kIdleList", "!many && all_longest <= 2 * kIdleList"),
            ("few words", "word == by.word && !up_to(words, by.least) &&", "word == by.word &&"),
            ("any number of words", "&& up_to(words, by.most)) {", ") {"),
            ("no length", "        return by.words;", "        return 0;"),
        )
    ),
    (
        "cat: a vector of an element is stored beyond the input's",
        "aten_ext/ops/cat/gather.cuh",
        "    const Index item = first + i * blockDim.x;\n    if (item < shape.items) {\n      const Place",
        "    const Index item = first + i * blockDim.x;\n    if (true) {\n      const Place",
        ("tests/ops/cat/test_layouts.py::test_one_element_everywhere",),
    ),
    (
        "cat: an element is stored a vector a thread",
        "aten_ext/ops/cat/gather.cu",
        "      return kFilled;",
        "      return 2 * kFilled;",
        ("tests/ops/cat/test_layouts.py::test_one_element_everywhere",),
    ),
    (
        "cat: inputs of more dimensions are upstream's from as many bytes on as others",
        "aten_ext/ops/cat/crossover.h",
        "(few_dims ? kBytesOfLaunch : kBytesOfLaunchOfInput)",
        "kBytesOfLaunch",
        ("tests/ops/cat/test_crossover.py::test_edges",),
    ),
    (
        "cat: one array is copied by a kernel",
        "aten_ext/ops/cat/runs.cu",
        "return sequence.copy(params.out, whole.data,",
        "if (params.element_size == 0) return sequence.copy(params.out, whole.data,",
        (f"{_CHOICE}::test_one_array_is_copied_as_memory",),
    ),
    (
        "cat: a warp's vectors are taken for those of one run",
        "aten_ext/ops/cat/convert.cu",
        "whole && is_larger && is_of_first",
        "whole && is_larger",
        (f"{_ON_HOST}::test_every_conversion_in_vectors",),
    ),
    (
        "cat: vectors of a result that begins between two are whole",
        "aten_ext/ops/cat/convert.cu",
        "reinterpret_cast<uintptr_t>(p.out) | (p.rows > 1",
        "(p.rows > 1",
        (f"{_CHOICE}::test_vectors_of_a_result_that_begins_anywhere",),
    ),
    (
        "cat: what is not converted is moved as what is beside it",
        "aten_ext/ops/cat/cuda.cpp",
        "as_they_are <= kLaunchOfTheirOwnPerSM * target.plan.gpu.multiprocessors",
        "as_they_are >= 0",
        (f"{_CHOICE}::test_what_is_converted_has_little_beside_it",),
    ),
    (
        "cat: upstream takes one launch for inputs of many dimensions",
        "aten_ext/ops/cat/crossover.h",
        "few_dims ? (found.count + kUpstreamInputs - 1) / kUpstreamInputs : int64_t{found.count};",
        "(found.count + kUpstreamInputs - 1) / kUpstreamInputs;",
        ("tests/ops/cat/test_crossover.py::test_edges",),
    ),
    *(
        (
            f"cat: strided vectors of any {what} are upstream's",
            "aten_ext/ops/cat/crossover.h",
            f"{old} &&",
            "true &&",
            ("tests/ops/cat/test_crossover.py::test_edges",),
        )
        for what, old in (
            ("number", "has(vectors.inputs, found.count)"),
            ("element", "has(vectors.element, size)"),
        )
    ),
    *(
        (
            f"cat: one input {whatever} is upstream's",
            "aten_ext/ops/cat/crossover.h",
            old,
            new,
            ("tests/ops/cat/test_crossover.py::test_edges",),
        )
        for whatever, old, new in (
            ("of few", "|| found.count < kOneLongInput.inputs", ""),
            ("as long as others", "if (if_all_were < kOneLongInput.times * found.size_at_dim)", "if (false)"),
            ("of few bytes", "bytes < kOneLongInput.vectors[0] * vector_of_each ||", ""),
            ("of any bytes", " bytes > kOneLongInput.vectors[1] * vector_of_each)", " false)"),
            ("of no vectors", "* step % kVectorBytes == 0;", "* step % kVectorBytes >= 0;"),
        )
    ),
    (
        "cat: strided vectors of any length are upstream's",
        "aten_ext/ops/cat/crossover.h",
        "has(vectors.elements, found.numel());",
        "true;",
        ("tests/ops/cat/test_crossover.py::test_edges",),
    ),
    (
        "cat: two vectors that begin anywhere are upstream's",
        "aten_ext/ops/cat/crossover.h",
        "return is_skipped(t) || t.strides()[0] > 1;",
        "return true;",
        ("tests/ops/cat/test_crossover.py::test_edges",),
    ),
)
