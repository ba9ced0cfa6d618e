"""Mutants of what watches calls, trace and shadow mode: (name, file, old, new, tests that must notice)."""

from __future__ import annotations

_WATCH = "aten_ext/watch/watch.cpp"
_COMPARE = "aten_ext/watch/compare.cpp"
_SHADOW = "tests/watch/test_shadow.py"
_WRONG = "tests/watch/test_wrong_kernels.py"
_COMPARISON = "tests/watch/test_compare.py"
_DISTANCES = (f"{_COMPARISON}::test_floating_point_distances",)

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "watch: a trace grows without end",
        _WATCH,
        "if (index_.size() >= Watch::kMaxRows && ",
        "if (false && index_.size() >= Watch::kMaxRows && ",
        ("tests/watch/test_trace.py::test_memory_is_bounded",),
    ),
    (
        "watch: every call is shadowed, whatever the rate",
        _WATCH,
        "|| next_random() < threshold;",
        "|| next_random() != 0;",
        (f"{_SHADOW}::test_the_rate_and_torchs_generator",),
    ),
    (
        "shadow: the caller gets the fused result all the same",
        "aten_ext/watch/shadow.h",
        "result = std::move(theirs);",
        "",
        (f"{_WRONG}::test_whose_result_the_caller_gets",),
    ),
    (
        "shadow: upstream draws random numbers of its own",
        "aten_ext/watch/shadow.cpp",
        "generator_->set_state(before_);",
        "",
        (f"{_WRONG}::test_random_numbers_are_drawn_once",),
    ),
    (
        "compare: negative numbers are ordered by their bits",
        _COMPARE,
        "return at::where(bits.lt(0), bits.bitwise_and(magnitude).neg().sub(1), bits);",
        "return magnitude == 0 ? bits.neg() : bits;",
        _DISTANCES,
    ),
    (
        "compare: NaN on one side is no difference",
        _COMPARE,
        "ulp.ne(0).logical_or_(nan);",
        "ulp.ne(0);",
        _DISTANCES,
    ),
    (
        "compare: strides are not looked at",
        _COMPARE,
        "return strides_differ(ours, theirs) ?",
        "return false && strides_differ(ours, theirs) ?",
        (f"{_COMPARISON}::test_layouts_that_differ",),
    ),
)
