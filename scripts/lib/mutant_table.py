"""The mutants: one line of the sources changed by hand, and the tests that must notice.

Each breaks one decline rule, one edge of a kernel or one promise of the registry. ``scripts/mutants``
applies, builds and tests them one at a time; tests/test_mutants.py checks that each old text still stands in
its file, once. docs/sanitizers.md explains what a surviving mutant means.
"""

from __future__ import annotations

from dataclasses import dataclass

from mutants_of_linear import ROWS as _LINEAR_ROWS

RULES = "tests/test_fused_adam_rules.py"
ADAM = "tests/test_fused_adam.py"
ON_HOST = "tests/test_fused_adam_on_host.py"
REGISTRY = "tests/test_registry.py"
LOAD = "tests/test_load.py"
FAULTS = "tests/test_faults.py"
ENVIRONMENT = "tests/test_environment.py"


@dataclass(frozen=True)
class Mutant:
    """One change."""

    name: str
    file: str
    """Relative to the root of the repository."""
    old: str
    """Stands there exactly once."""
    new: str
    tests: tuple[str, ...]
    """As pytest takes them; at least one must fail."""


def _family(file: str, *rows: tuple[str, str, str, tuple[str, ...]]) -> list[Mutant]:
    return [Mutant(name, file, old, new, tests) for name, old, new, tests in rows]


# The rule that both sides of the family share: each condition left out.
_ARGS = _family(
    "aten_ext/fused_adam_args.h",
    ("empty lists are taken", "if (count == 0) {", "if (false) {", (f"{RULES}::test_no_tensors",)),
    ("gradients may be fewer", "grads.size() != count || ", "", (f"{RULES}::test_lengths",)),
    ("first moments may be fewer", "exp_avgs.size() != count || ", "", (f"{RULES}::test_lengths",)),
    ("second moments may be fewer", "exp_avg_sqs.size() != count ||", "", (f"{RULES}::test_lengths",)),
    ("steps may be fewer", "steps.size() != count || ", "", (f"{RULES}::test_lengths",)),
    (
        "fifth list of any length",
        "max_exp_avg_sqs.size() != (amsgrad ? count : 0)",
        "false",
        (f"{RULES}::test_lengths", f"{RULES}::test_fifth_list_without_amsgrad"),
    ),
    (
        "every dtype is taken",
        "if (scalar_type != at::kFloat && ",
        "if (false && scalar_type != at::kFloat && ",
        (f"{RULES}::test_dtype_of_all",),
    ),
    (
        "dtypes may differ",
        "if (t.dtype() != dtype) {",
        "if (t.dtype() != dtype && !t.defined()) {",
        (f"{RULES}::test_dtype_of_one",),
    ),
    (
        "devices may differ",
        "if (t.device() != device) {",
        "if (false && t.device() != device) {",
        (f"{RULES}::test_device_of_one",),
    ),
    ("gaps are taken", "if (!is_dense(t)) {", "if (false) {", (f"{RULES}::test_one_not_dense",)),
    (
        "shapes may differ",
        "return same_geometry(param, t) ? nullptr",
        "return true || same_geometry(param, t) ? nullptr",
        (f"{RULES}::test_geometry_of_one",),
    ),
    (
        "only the first of each list is looked at",
        "for (size_t i = 0; i < count; ++i) {",
        "for (size_t i = 0; i < 1; ++i) {",
        (f"{RULES}::test_dtype_of_one",),
    ),
    (
        "second moments are not looked at",
        "reason = reason ? reason : decline_fused_adam_tensor(exp_avg_sqs[i], param, dtype, device);",
        "",
        (f"{RULES}::test_geometry_of_one",),
    ),
    (
        "fifth list is not looked at",
        "if (amsgrad && reason == nullptr) {",
        "if (false) {",
        (f"{RULES}::test_dtype_of_one",),
    ),
    (
        "steps are not looked at",
        "if (!is_float_scalar(steps[i], device)) {",
        "if (false && !is_float_scalar(steps[i], device)) {",
        (f"{RULES}::test_step",),
    ),
    (
        "grad_scale is not looked at",
        "!is_float_scalar_or_none(grad_scale, device) || ",
        "(false && !is_float_scalar_or_none(grad_scale, device)) || ",
        (f"{RULES}::test_scale",),
    ),
    (
        "found_inf is not looked at",
        " || !is_float_scalar_or_none(found_inf, device)",
        " || (false && !is_float_scalar_or_none(found_inf, device))",
        (f"{RULES}::test_scale",),
    ),
)

_CHECKS = _family(
    "aten_ext/checks.h",
    (
        "gaps and overlaps are dense",
        " && t.is_non_overlapping_and_dense()",
        "",
        (f"{RULES}::test_one_not_dense",),
    ),
    (
        "ranks may differ",
        "if (sizes.size() != other.size()) {",
        "if (sizes.size() > other.size()) {",
        (f"{RULES}::test_geometry_of_one",),
    ),
    (
        "sizes may differ",
        "if (sizes[d] != other[d]) {",
        "if (false && sizes[d] != other[d]) {",
        (f"{RULES}::test_geometry_of_one",),
    ),
    (
        "one contiguous tensor is enough",
        "a.is_contiguous() && b.is_contiguous()",
        "a.is_contiguous() || b.is_contiguous()",
        (f"{RULES}::test_geometry_of_one",),
    ),
    (
        "strides of size 1 matter",
        "sizes[d] != 1 && a.strides()",
        "a.strides()",
        (f"{RULES}::test_strides_of_size_one_do_not_matter",),
    ),
    (
        "scalars of any dtype",
        "t.scalar_type() == at::kFloat && t.numel() == 1",
        "t.numel() == 1",
        (f"{RULES}::test_step",),
    ),
    (
        "scalars of any length",
        "at::kFloat && t.numel() == 1 && t.device() == device &&",
        "at::kFloat && t.device() == device &&",
        (f"{RULES}::test_step",),
    ),
    (
        "scalars anywhere",
        "at::kFloat && t.numel() == 1 && t.device() == device &&",
        "at::kFloat && t.numel() == 1 && (true || t.device() == device) &&",
        (f"{RULES}::test_scale",),
    ),
    (
        "numbers of any length",
        "return t.defined() && t.numel() == 1 && t.device()",
        "return t.defined() && t.device()",
        (f"{RULES}::test_lr", f"{RULES}::test_lr_on_the_host_that_is_no_number"),
    ),
)

# Left out: the early return for a list of empty tensors alone. Without it the kernel reads one struct in
# front of an array and does nothing with it, which AddressSanitizer sees (scripts/sanitize) but no test.
_CPU = _family(
    "aten_ext/cpu/fused_adam.cpp",
    ("runs without AVX2", "if (kernel == nullptr) {", "if (false) {", (f"{RULES}::test_cpu_without_avx2",)),
    (
        "any learning rate",
        ": is_number(lr, params[0].device()) ? nullptr",
        ": true ? nullptr",
        (f"{RULES}::test_lr",),
    ),
    (
        "found_inf is ignored",
        "*found_inf->const_data_ptr<float>() == 1.0f",
        "false",
        (f"{ADAM}::test_found_inf_changes_nothing",),
    ),
    (
        "a last partial unit is forgotten",
        "units += (numel + elements_per_unit - 1) / elements_per_unit;",
        "units += numel / elements_per_unit;",
        (f"{ADAM}::test_every_dtype",),
    ),
    (
        "a parameter given twice is stepped at once",
        " || has_duplicate(tensors);",
        " || (false && has_duplicate(tensors));",
        (f"{ADAM}::test_same_parameter_twice",),
    ),
    (
        "gradients are always written",
        "const_cast<void*>(grads[i].const_data_ptr());",
        "grads[i].mutable_data_ptr();",
        (f"{ADAM}::test_copy_on_write_tensors",),
    ),
    (
        "parameters are written behind copy-on-write's back",
        "tensor.param = params[i].mutable_data_ptr();",
        "tensor.param = const_cast<void*>(params[i].const_data_ptr());",
        (f"{ADAM}::test_copy_on_write_tensors",),
    ),
    (
        "fp16 is taken for bf16",
        "return AdamDtype::Half;",
        "return AdamDtype::BFloat16;",
        (f"{ADAM}::test_every_dtype",),
    ),
    (
        "grad_scale is 1",
        "p.grad_scale = p.has_grad_scale ? *grad_scale->const_data_ptr<float>() : 1.0f;",
        "p.grad_scale = 1.0f;",
        (f"{ADAM}::test_grad_scaler", f"{ADAM}::test_step_matches_upstream"),
    ),
)

_KERNEL = _family(
    "aten_ext/cpu/fused_adam_kernel.cpp",
    ("the tail is left out", "if (at < to) {", "if (false) {", (f"{ADAM}::test_every_dtype",)),
    (
        "the tail rounds as the body",
        "Flags<decay, amsgrad, true>>",
        "Flags<decay, amsgrad, false>>",
        (f"{ADAM}::test_every_dtype",),
    ),
    (
        "the tail is a whole vector",
        "for (; at + Impl::kSize <= to; at += Impl::kSize) {",
        "for (; at < to; at += Impl::kSize) {",
        (f"{ADAM}::test_every_dtype",),
    ),
    (
        "a thread starts at the tensor after its own",
        "begin, starts_after) - 1;",
        "begin, starts_after);",
        (f"{ADAM}::test_every_dtype",),
    ),
    (
        "a thread starts at its tensor's beginning",
        "std::max<int64_t>(begin - tensor->first_unit, 0) * kElementsPerUnit;",
        "0 * begin;",
        (f"{ADAM}::test_one_large_among_many_small",),
    ),
    (
        "a thread ends at its tensor's end",
        "std::min((end - tensor->first_unit) * kElementsPerUnit, tensor->numel);",
        "tensor->numel;",
        (f"{ADAM}::test_one_large_among_many_small",),
    ),
    (
        "all tensors have the first one's step",
        "if (tensor->step != step) {",
        "if (false) {",
        (f"{ADAM}::test_step_matches_upstream",),
    ),
    (
        "lerp has one branch",
        "const bool from_grad = !(std::abs(weight) < Op(0.5));",
        "const bool from_grad = false;",
        (f"{ADAM}::test_step_matches_upstream",),
    ),
    (
        "amsgrad divides by the latest second moment",
        "second_moment = x.max_exp_avg_sq;",
        "second_moment = x.exp_avg_sq;",
        (f"{ADAM}::test_every_dtype",),
    ),
    ("maximize is ignored", "if (s.maximize) {", "if (false) {", (f"{ADAM}::test_step_matches_upstream",)),
    (
        "unscaled fp32 gradients are not written back",
        "x.grad.store(grad, count);",
        "",
        (f"{ADAM}::test_step_matches_upstream",),
    ),
    (
        "unscaled 16-bit gradients are not written back",
        "store(grad, g.low, g.high, count);",
        "",
        (f"{ADAM}::test_step_matches_upstream",),
    ),
    (
        "no decay in AdamW",
        "x.param = x.param * s.decay;",
        "",
        (f"{ADAM}::test_every_dtype",),
    ),
)

# CUDA kernels run on the CPU, thread by thread, in these tests (tests/device_on_host).
_CUDA_KERNEL = [
    *_family(
        "aten_ext/cuda/fused_adam.cu",
        (
            "a block goes past its tensor's end",
            "const uint32_t count = left < chunk ? static_cast<uint32_t>(left) : chunk;",
            "const uint32_t count = left < 0 ? 0u : chunk;",
            (f"{ON_HOST}::test_nothing_beside_a_tensor_is_written",),
        ),
        (
            "a ragged end is whole vectors",
            "bool vectors = count % kVector == 0;",
            "bool vectors = true;",
            (f"{ON_HOST}::test_nothing_beside_a_tensor_is_written",),
        ),
        (
            "a thread stores past the end",
            "if (is_written(list) && at < count) {",
            "if (is_written(list)) {",
            (f"{ON_HOST}::test_nothing_beside_a_tensor_is_written",),
        ),
        (
            "a tensor's first block is the one before's",
            "if (args.first_block[middle] <= block) {",
            "if (args.first_block[middle] < block) {",
            (f"{ON_HOST}::test_parity",),
        ),
        (
            "a last partial chunk has no block",
            "blocks += (tensors[i].numel + chunk - 1) / chunk;",
            "blocks += tensors[i].numel / chunk;",
            (f"{ON_HOST}::test_parity",),
        ),
        (
            "every launch takes the first tensors",
            "args, p.tensors + from, count,",
            "args, p.tensors, count,",
            (f"{ON_HOST}::test_lists_of_any_length",),
        ),
        (
            "found_inf is ignored by whole vectors",
            """      }
    }
    if (s.found_inf != nullptr && *s.found_inf == 1.0f) {""",
            """      }
    }
    if (s.found_inf != nullptr && *s.found_inf == 2.0f) {""",
            (f"{ON_HOST}::test_found_inf_changes_nothing",),
        ),
        (
            "the two bias corrections are swapped",
            "pow(threadIdx.x % 2 == 0 ?",
            "pow(threadIdx.x % 2 == 1 ?",
            (f"{ON_HOST}::test_parity",),
        ),
    ),
    Mutant(
        "empty tensors are passed to the kernel",
        "aten_ext/cuda/fused_adam.cpp",
        "if (numel == 0) {",
        "if (false) {",
        (f"{ON_HOST}::test_nothing_beside_a_tensor_is_written",),
    ),
]

# The rules of CUDA are compiled in a CPU build too.
_CUDA = _family(
    "aten_ext/cuda/fused_adam.cpp",
    (
        "any tensor on the host is a learning rate",
        "lr.is_cpu() && is_number(lr, lr.device())",
        "lr.is_cpu()",
        (f"{RULES}::test_lr_on_the_host_that_is_no_number",),
    ),
    (
        "a learning rate of any dtype on the device",
        "return is_float_scalar(lr, device)",
        "return is_number(lr, device)",
        (f"{RULES}::test_lr",),
    ),
    (
        "the learning rate is looked at without a parameter",
        "return reason != nullptr ? reason : decline_tensor_lr(",
        "return false ? reason : decline_tensor_lr(",
        (f"{RULES}::test_first_rule_of_tensor_lr_is_that_of_the_lists", f"{RULES}::test_lengths"),
    ),
)

_REGISTRY = [
    Mutant(
        "unknown names in the environment are accepted",
        "aten_ext/registry.cpp",
        "if (count_matching(pattern) == 0) {",
        "if (false) {",
        (
            f"{REGISTRY}::test_environment_that_makes_no_sense",
            f"{ENVIRONMENT}::test_rubbish_in_the_environment",
        ),
    ),
    Mutant(
        "rubbish in ATEN_EXT is 0",
        "aten_ext/registry.cpp",
        """if (value != "0") {""",
        "if (false) {",
        (f"{ENVIRONMENT}::test_rubbish_in_the_environment",),
    ),
    Mutant(
        "equal reasons are told apart",
        "aten_ext/registry.h",
        "if (seen == reason) {",
        "if (false) {",
        (f"{REGISTRY}::test_declines_are_added_up_by_reason",),
    ),
    Mutant(
        "disabled calls are not counted",
        "aten_ext/registry.h",
        "disabled_.fetch_add(1, std::memory_order_relaxed);",
        "",
        (f"{REGISTRY}::test_disable_and_enable_flip_the_route",),
    ),
    Mutant(
        "calls are counted with a lost update",
        "aten_ext/registry.h",
        "ran_.fetch_add(1, std::memory_order_relaxed);",
        "ran_.store(ran_.load() + 1);",
        (f"{FAULTS}::test_counting_loses_nothing",),
    ),
    Mutant(
        "reset keeps what ran",
        "aten_ext/registry.cpp",
        "ran_.store(0, std::memory_order_relaxed);",
        "",
        (f"{REGISTRY}::test_counts_by_key_and_reset",),
    ),
    Mutant(
        "any torch will do",
        "aten_ext/load_guard.cpp",
        "if (major == TORCH_VERSION_MAJOR && minor == TORCH_VERSION_MINOR) {",
        "if (true) {",
        (f"{LOAD}::test_library_looks_at_the_version_itself",),
    ),
    Mutant(
        "ATEN_EXT=0 registers all the same",
        "aten_ext/load_guard.cpp",
        "decided.active = wanted && decided.error.empty();",
        "decided.active = (true || wanted) && decided.error.empty();",
        (f"{REGISTRY}::test_nothing_is_registered_with_aten_ext_0",),
    ),
    Mutant(
        "loading warns",
        "aten_ext/load_guard.cpp",
        "c10::WarningUtils::set_warning_handler(&silent_handler());",
        "(void)silent_handler();",
        (f"{LOAD}::test_import_is_silent",),
    ),
    Mutant(
        "warnings stay silent after loading",
        "aten_ext/load_guard.cpp",
        "c10::WarningUtils::set_warning_handler(saved_handler);",
        "(void)saved_handler;",
        (f"{LOAD}::test_torchs_own_warning_is_left_to_others",),
    ),
    Mutant(
        "entries do not ask whether they are on",
        "scripts/codegen.py",
        "if (C10_UNLIKELY(!self_.enabled.load(std::memory_order_relaxed))) {{",
        "if (false) {{",
        (f"{ADAM}::test_disabled_is_counted",),
    ),
    Mutant(
        "entries do not ask the rule",
        "scripts/codegen.py",
        "if (const char* reason_ = {override.rule(with_cuda)}) {{",
        "if (const char* reason_ = nullptr) {{",
        (f"{ADAM}::test_decline_is_upstream",),
    ),
    Mutant(
        "entries at CUDA do not ask for code for the GPU",
        "scripts/codegen.py",
        """if self.key != "CUDA" or not with_cuda:""",
        "if True:",
        ("tests/test_codegen.py::test_entries_at_cuda_ask_for_code_for_the_gpu",),
    ),
    Mutant(
        "a truncated library is opened",
        "python/aten_ext/_load.py",
        "if path.stat().st_size < max(ends, default=0):",
        "if False:",
        (f"{ENVIRONMENT}::test_spoilt_kernels",),
    ),
]

_LINEAR = [Mutant(*row) for row in _LINEAR_ROWS]

MUTANTS: list[Mutant] = [*_ARGS, *_CHECKS, *_CPU, *_KERNEL, *_CUDA, *_CUDA_KERNEL, *_REGISTRY, *_LINEAR]
