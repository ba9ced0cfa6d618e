"""Mutants of the linear layers: (name, file, old text, new text, tests that must notice).

The kernel's are noticed without a GPU, by running it on the CPU (tests/test_linear_on_host.py).
"""

from __future__ import annotations

_RULE = "aten_ext/cuda/linear.cpp"
_KERNEL = "aten_ext/cuda/linear.cu"
_DEVICE = "aten_ext/cuda/device"
_RULES = ("tests/test_linear.py::test_declines",)
_MM = ("tests/test_linear_on_host.py::test_mm",)
_PASS = "python/aten_ext/_inductor_pass.py"
_GRAPHS = "tests/test_inductor_pass.py"

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("linear: one row too many is taken", _RULE, "m > kMostRows", "m > kMostRows + 1", _RULES),
    ("linear: K need not be whole vectors", _RULE, "keeps_aligned(t, t.size(column)) && ", "", _RULES),
    ("linear: out may be the weight", _RULE, "out.is_alias_of(mat2) ||", "", _RULES),
    (
        "linear: TF32 is not asked about",
        _RULE,
        'is_ieee ? nullptr : "float32',
        'true ? nullptr : "float32',
        ("tests/test_linear.py::test_tf32_allowed_declines_fp32_alone",),
    ),
    (
        "linear: fp16 accumulation is not asked about",
        _RULE,
        "if (dtype == at::kHalf && context.allowFP16AccumulationCuBLAS()) {",
        "if (false) {",
        ("tests/test_linear.py::test_fp16_accumulation",),
    ),
    (
        "linear: deterministic algorithms are not asked about",
        _RULE,
        "if (context.deterministicAlgorithms() && ",
        "if (false && context.deterministicAlgorithms() && ",
        ("tests/test_linear.py::test_deterministic",),
    ),
    (
        "linear: a bias is read with beta = 0",
        _RULE,
        "bias != nullptr && beta != 0",
        "bias != nullptr",
        ("tests/test_linear_on_host.py::test_beta_zero_ignores_the_bias",),
    ),
    (
        "linear: a stage is used before it has arrived for all",
        _KERNEL,
        "__syncthreads();  // this stage",
        "// this stage",
        _MM,
    ),
    (
        "linear: one stage too few is waited for",
        _KERNEL,
        "wait_async_copies<S::kStages - 2>()",
        "wait_async_copies<S::kStages - 1>()",
        _MM,
    ),
    (
        "linear: what lies beyond K is read",
        f"{_DEVICE}/linear_tile.cuh",
        "column() < columns_left ? rows_left - first_row() : 0",
        "rows_left - first_row()",
        _MM,
    ),
    (
        "linear: a cluster's first block is left out",
        f"{_DEVICE}/linear_reduce.cuh",
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
)
