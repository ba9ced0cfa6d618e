"""Mutants of the registry, of loading and of the generated entries: (name, file, old, new, tests)."""

from __future__ import annotations

_ADAM = "tests/ops/optimizer/test_adam_declines.py"
_REGISTRY = "tests/core/test_registry.py"
_ROWS_TESTS = "tests/core/test_registry_rows.py"
_LOAD = "tests/core/test_load.py"
_FAULTS = "tests/core/test_faults.py"
_ENVIRONMENT = "tests/core/test_environment.py"

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (
        "unknown names in the environment are accepted",
        "aten_ext/core/registry.cpp",
        "if (count_matching(pattern) == 0) {",
        "if (false) {",
        (
            f"{_REGISTRY}::test_environment_that_makes_no_sense",
            f"{_ENVIRONMENT}::test_rubbish_in_the_environment",
        ),
    ),
    (
        "a wildcard turns on what is not measured",
        "aten_ext/core/registry.cpp",
        "const bool by_wildcard = !pattern.is_name(override);",
        """const bool by_wildcard = text == "*";""",
        (f"{_ROWS_TESTS}::test_rows",),
    ),
    (
        "a tab is part of a name in the environment",
        "aten_ext/core/registry.cpp",
        r"""name.find_first_not_of(" \t");""",
        """name.find_first_not_of(" ");""",
        (f"{_ROWS_TESTS}::test_rows",),
    ),
    (
        "a tab behind a name in the environment is part of it",
        "aten_ext/core/registry.cpp",
        r"""name.find_last_not_of(" \t")""",
        """name.find_last_not_of(" ")""",
        (f"{_ROWS_TESTS}::test_rows",),
    ),
    (
        "rubbish in ATEN_EXT is 0",
        "aten_ext/core/registry.cpp",
        """if (value != "0") {""",
        "if (false) {",
        (f"{_ENVIRONMENT}::test_rubbish_in_the_environment",),
    ),
    (
        "equal reasons are told apart",
        "aten_ext/core/counts.h",
        "if (seen == reason) {",
        "if (false) {",
        (f"{_REGISTRY}::test_declines_are_added_up_by_reason",),
    ),
    (
        "disabled calls are not counted",
        "aten_ext/core/counts.h",
        "disabled_.add(owned());",
        "",
        (f"{_REGISTRY}::test_disable_and_enable_flip_the_route",),
    ),
    (
        "calls are counted with a lost update",
        "aten_ext/core/counts.h",
        "others_.fetch_add(1, std::memory_order_relaxed);",
        "others_.store(others_.load() + 1);",
        (f"{_FAULTS}::test_counting_loses_nothing",),
    ),
    (
        "every thread owns the counts",
        "aten_ext/core/counts.h",
        "return owner == caller ||",
        "return owner != nullptr ||",
        (f"{_FAULTS}::test_counting_loses_nothing",),
    ),
    (
        "reset keeps what ran",
        "aten_ext/core/registry.cpp",
        "ran_.reset();",
        "",
        (f"{_REGISTRY}::test_counts_by_key_and_reset",),
    ),
    (
        "any torch will do",
        "aten_ext/core/load_guard.cpp",
        "if (major == TORCH_VERSION_MAJOR && minor == TORCH_VERSION_MINOR) {",
        "if (true) {",
        (f"{_LOAD}::test_library_looks_at_the_version_itself",),
    ),
    (
        "ATEN_EXT=0 registers all the same",
        "aten_ext/core/load_guard.cpp",
        "decided.active = wanted && decided.error.empty();",
        "decided.active = (true || wanted) && decided.error.empty();",
        (f"{_REGISTRY}::test_nothing_is_registered_with_aten_ext_0",),
    ),
    (
        "loading warns",
        "aten_ext/core/load_guard.cpp",
        "c10::WarningUtils::set_warning_handler(&silent_handler());",
        "(void)silent_handler();",
        (f"{_LOAD}::test_import_is_silent",),
    ),
    (
        "warnings stay silent after loading",
        "aten_ext/core/load_guard.cpp",
        "c10::WarningUtils::set_warning_handler(saved_handler);",
        "(void)saved_handler;",
        (f"{_LOAD}::test_warnings_are_heard_again",),
    ),
    (
        "entries do not ask whether they are on",
        "aten_ext/core/entry.h",
        "S::kPaired || S::row().enabled.load(std::memory_order_relaxed);",
        "true;",
        (f"{_ADAM}::test_disabled_is_counted",),
    ),
    (
        "entries do not ask the rule",
        "aten_ext/core/entry.h",
        "if (choice.reason() == nullptr) {",
        "if (true) {",
        (f"{_ADAM}::test_decline_is_upstream",),
    ),
    (
        "entries at CUDA do not ask for code for the GPU",
        "scripts/codegen.py",
        """if override.key != "CUDA" or not with_cuda:""",
        "if True:",
        ("tests/core/test_codegen.py::test_entries_at_cuda_ask_for_code_for_the_gpu",),
    ),
    (
        "explain looks at positional tensors alone for the key",
        "python/aten_ext/_explain.py",
        "key = _infer_key(_tensors([*args, *kwargs.values()]))",
        "key = _infer_key(_tensors([*args]))",
        ("tests/core/test_explain.py::test_the_key_is_that_of_all_tensors_also_of_those_given_by_name",),
    ),
    (
        "autoload survives only an ImportError",
        "python/aten_ext_autoload.py",
        "except Exception as error:",
        "except ImportError as error:",
        (f"{_LOAD}::test_any_failure_of_autoload_is_a_warning",),
    ),
    (
        "a graph pass may be opaque",
        "scripts/lib/override_table.py",
        """PASS_VALID_FIELDS = (*PASS_REQUIRED_FIELDS, "unmeasured")""",
        """PASS_VALID_FIELDS = (*PASS_REQUIRED_FIELDS, "unmeasured", "opaque")""",
        ("tests/core/test_codegen.py::test_errors_of_graph_passes",),
    ),
    (
        "a truncated library is opened",
        "python/aten_ext/_load.py",
        "if path.stat().st_size < max(ends, default=0):",
        "if False:",
        (f"{_ENVIRONMENT}::test_spoilt_kernels",),
    ),
)
