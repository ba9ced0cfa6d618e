"""Mutants of the rules of the fused optimizer steps: (name, file, old, new, tests).

Each leaves out one condition. The rules of CUDA are compiled in a CPU build too.
"""

from __future__ import annotations

_RULES = "tests/ops/optimizer/test_adam_rules.py"
_SGD = "tests/ops/optimizer/test_sgd.py"
_ADAGRAD = "tests/ops/optimizer/test_adagrad.py"
_DENORMALS = "tests/ops/optimizer/test_flush_denormal.py"

_DECLINES = "tests/ops/optimizer/test_adam_declines.py"

_LISTS = "aten_ext/ops/optimizer/lists.h"
_OVERLAP = "aten_ext/ops/optimizer/overlap.h"
_ADAM_ARGS = "aten_ext/ops/optimizer/adam.h"
_FIVE_LISTS = "a.exp_avgs,\n                         a.exp_avg_sqs, a.max_exp_avg_sqs);"
_CUDA_STEP = "aten_ext/ops/optimizer/cuda/step.h"
_CHECKS = "aten_ext/core/checks.h"

_IN_COMMON = (f"{_DECLINES}::test_memory_in_common", f"{_SGD}::TestFusedSgd::test_memory_in_common")
_LENGTHS = (f"{_RULES}::test_lengths",)
_DTYPE_OF_ONE = (f"{_RULES}::test_dtype_of_one",)
_GEOMETRY_OF_ONE = (f"{_RULES}::test_geometry_of_one",)
_STEP = (f"{_RULES}::test_step",)
_SCALE = (f"{_RULES}::test_scale",)
_LR = (f"{_RULES}::test_lr",)
_HOST_LR = (f"{_RULES}::test_lr_on_the_host_that_is_no_number",)

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    # ---- every fused step ----
    ("empty lists are taken", _LISTS, "if (count == 0) {", "if (false) {", (f"{_RULES}::test_no_tensors",)),
    ("gradients may be fewer", _LISTS, "grads.size() != count || ", "", _LENGTHS),
    (
        "states may be fewer",
        _LISTS,
        "((states.size() != count) || ...)",
        "((false && states.size() != count) || ...)",
        _LENGTHS,
    ),
    ("steps may be fewer", _LISTS, "(steps != nullptr && steps->size() != count)", "false", _LENGTHS),
    (
        "every dtype is taken",
        _LISTS,
        "if (!is_floating_dtype(params[0].scalar_type())) {",
        "if (false) {",
        (f"{_RULES}::test_dtype_of_all",),
    ),
    (
        "dtypes may differ",
        _LISTS,
        "if (t.dtype() != dtype) {",
        "if (t.dtype() != dtype && !t.defined()) {",
        _DTYPE_OF_ONE,
    ),
    (
        "devices may differ",
        _LISTS,
        "if (t.device() != device) {",
        "if (false && t.device() != device) {",
        (f"{_RULES}::test_device_of_one",),
    ),
    ("gaps are taken", _LISTS, "if (!is_dense(t)) {", "if (false) {", (f"{_RULES}::test_one_not_dense",)),
    (
        "shapes may differ",
        _LISTS,
        "return same_geometry(param, t) ? nullptr",
        "return true || same_geometry(param, t) ? nullptr",
        _GEOMETRY_OF_ONE,
    ),
    (
        "only the first of each list is looked at",
        _LISTS,
        "for (size_t i = 0; i < count; ++i) {",
        "for (size_t i = 0; i < 1; ++i) {",
        _DTYPE_OF_ONE,
    ),
    (
        "steps are not looked at",
        _LISTS,
        "if (steps != nullptr && !is_float_scalar(",
        "if (false && !is_float_scalar(",
        _STEP,
    ),
    (
        "grad_scale is not looked at",
        _LISTS,
        "!is_float_scalar_or_none(grad_scale, device) || ",
        "(false && !is_float_scalar_or_none(grad_scale, device)) || ",
        _SCALE,
    ),
    (
        "found_inf is not looked at",
        _LISTS,
        " || !is_float_scalar_or_none(found_inf, device)",
        " || (false && !is_float_scalar_or_none(found_inf, device))",
        _SCALE,
    ),
    (
        "memory in common is not looked for",
        _LISTS,
        "if (lists_overlap(",
        "if (false && lists_overlap(",
        _IN_COMMON,
    ),
    (
        "unscaled gradients may share memory",
        _LISTS,
        "unscales ? all.size() : all.size() - 1;",
        "all.size() - 1;",
        (f"{_DECLINES}::test_memory_in_common",),
    ),
    (
        "memory in common: a tensor twice is none",
        _OVERLAP,
        "return slot == 0 && (slot = mark(address)) != 0;",
        "return (slot = mark(address)) != 0;",
        _IN_COMMON,
    ),
    (
        "memory in common: what is read is not looked at",
        _OVERLAP,
        "if (has_memory(t) && seen.has(base_of(t))) {",
        "if (false && seen.has(base_of(t))) {",
        _IN_COMMON,
    ),
    (
        "memory in common: two that read alike",
        _OVERLAP,
        "(span.written && span.begin < end_of_any)",
        "(span.begin < end_of_any)",
        (f"{_SGD}::TestFusedSgd::test_parts_of_one_buffer",),
    ),
    (
        "memory in common: one element is none",
        _OVERLAP,
        "if (span.begin < end_of_written ||",
        "if (span.begin + 4 < end_of_written ||",
        (f"{_DECLINES}::test_memory_in_common",),
    ),
    (
        "memory in common: empty tensors share it",
        _OVERLAP,
        "return t.numel() != 0 && base_of(t) != 0;",
        "return base_of(t) != 0;",
        (f"{_SGD}::TestFusedSgd::test_empty_tensors_share_nothing",),
    ),
    (
        "denormals may be flushed by one thread",
        "aten_ext/ops/optimizer/cpu/step.h",
        "if (flushes_denormals()) {",
        "if (false) {",
        (f"{_DENORMALS}::test_threads_that_do_not_flush",),
    ),
    (
        "denormals may be flushed by the other threads",
        "aten_ext/ops/optimizer/cpu/step.h",
        "return may_share && pool_flushes_otherwise() ?",
        "return may_share && false ?",
        (f"{_DENORMALS}::test_threads_that_flush_for_a_caller_that_does_not",),
    ),
    (
        "denormals: threads are asked once",
        "aten_ext/core/denormals.cpp",
        "pool.threads != threads || pool.mode != mode || pool.stale.load(std::memory_order_relaxed)",
        "pool.threads != threads",
        (
            f"{_DENORMALS}::test_threads_that_flush_for_a_caller_that_does_not",
            f"{_DENORMALS}::test_threads_that_were_asked_and_replaced",
        ),
    ),
    (
        "denormals: a thread keeps its own mode",
        "aten_ext/core/denormals.cpp",
        "    set_mode(mode.bits_);",
        "    set_mode(before_);",
        (f"{_DENORMALS}::test_threads_that_were_asked_and_replaced",),
    ),
    (
        "denormals: a thread does not get its mode back",
        "aten_ext/core/denormals.cpp",
        "    set_mode(before_);",
        "",
        (f"{_DENORMALS}::test_threads_that_were_asked_and_replaced",),
    ),
    (
        "any learning rate",
        "aten_ext/ops/optimizer/cpu/step.h",
        "return is_number(lr, device) ?",
        "return true ?",
        _LR,
    ),
    (
        "any tensor on the host is a learning rate",
        _CUDA_STEP,
        "lr.is_cpu() && is_number(lr, lr.device())",
        "lr.is_cpu()",
        _HOST_LR,
    ),
    (
        "a learning rate of any dtype on the device",
        _CUDA_STEP,
        "return is_float_scalar(lr, device)",
        "return is_number(lr, device)",
        _LR,
    ),
    (
        "fp16 is taken for bf16",
        "aten_ext/core/to_dtype.h",
        "return Dtype::Half;",
        "return Dtype::BFloat16;",
        ("tests/ops/optimizer/test_adam_parity.py::test_every_dtype",),
    ),
    # ---- which lists an optimizer has ----
    (
        "fifth list of any length",
        _ADAM_ARGS,
        "!a.max_exp_avg_sqs.empty()",
        "false",
        (f"{_RULES}::test_fifth_list_without_amsgrad",),
    ),
    (
        "first moments are not looked at",
        _ADAM_ARGS,
        _FIVE_LISTS,
        _FIVE_LISTS.replace("a.exp_avgs,", ""),
        _LENGTHS,
    ),
    (
        "second moments are not looked at",
        _ADAM_ARGS,
        _FIVE_LISTS,
        _FIVE_LISTS.replace("a.exp_avg_sqs, a.max", "a.max"),
        _GEOMETRY_OF_ONE,
    ),
    (
        "fifth list is not looked at",
        _ADAM_ARGS,
        _FIVE_LISTS,
        _FIVE_LISTS.replace(", a.max_exp_avg_sqs", ""),
        _DTYPE_OF_ONE,
    ),
    (
        "second moments are not looked at without amsgrad",
        _ADAM_ARGS,
        "a.found_inf, a.exp_avgs, a.exp_avg_sqs);",
        "a.found_inf, a.exp_avgs);",
        (f"{_RULES}::test_geometry_without_amsgrad",),
    ),
    (
        "the learning rate is looked at without a parameter",
        "aten_ext/ops/optimizer/cuda/fused_adam.cpp",
        "reason = reason != nullptr ? reason : decline_lr(",
        "reason = false ? reason : decline_lr(",
        (f"{_RULES}::test_first_rule_of_tensor_lr_is_that_of_the_lists", f"{_RULES}::test_lengths"),
    ),
    (
        "sgd: buffers are taken without momentum",
        "aten_ext/ops/optimizer/sgd.h",
        "!a.momentum_buffer_list.empty()",
        "false",
        (f"{_SGD}::test_buffers_without_momentum",),
    ),
    (
        "sgd: 16 bits are taken on CPU",
        "aten_ext/ops/optimizer/cpu/fused_sgd.cpp",
        "return kSgdIn16BitsIsBroken && (",
        "return false && (",
        (f"{_SGD}::test_16_bit_is_upstreams_on_cpu",),
    ),
    (
        "adagrad: sums are not looked at",
        "aten_ext/ops/optimizer/adagrad.h",
        ", a.state_sums);",
        ");",
        (f"{_ADAGRAD}::TestFusedAdagrad::test_decline_is_upstream[short_states]",),
    ),
    (
        "adagrad: steps are not looked at",
        "aten_ext/ops/optimizer/adagrad.h",
        "&a.state_steps",
        "nullptr",
        (f"{_ADAGRAD}::test_float64_step",),
    ),
    # ---- predicates that rules share ----
    (
        "gaps and overlaps are dense",
        _CHECKS,
        " && t.is_non_overlapping_and_dense()",
        "",
        (f"{_RULES}::test_one_not_dense",),
    ),
    (
        "ranks may differ",
        _CHECKS,
        "if (sizes.size() != other.size()) {",
        "if (sizes.size() > other.size()) {",
        _GEOMETRY_OF_ONE,
    ),
    (
        "sizes may differ",
        _CHECKS,
        "if (sizes[d] != other[d]) {",
        "if (false && sizes[d] != other[d]) {",
        _GEOMETRY_OF_ONE,
    ),
    (
        "one contiguous tensor is enough",
        _CHECKS,
        "a.is_contiguous() && b.is_contiguous()",
        "a.is_contiguous() || b.is_contiguous()",
        _GEOMETRY_OF_ONE,
    ),
    (
        "strides of size 1 matter",
        _CHECKS,
        "sizes[d] != 1 && a.strides()",
        "a.strides()",
        (f"{_RULES}::test_strides_of_size_one_do_not_matter",),
    ),
    (
        "scalars of any dtype",
        _CHECKS,
        "t.scalar_type() == at::kFloat && t.numel() == 1",
        "t.numel() == 1",
        _STEP,
    ),
    (
        "scalars of any length",
        _CHECKS,
        "at::kFloat && t.numel() == 1 && t.device() == device &&",
        "at::kFloat && t.device() == device &&",
        _STEP,
    ),
    (
        "scalars anywhere",
        _CHECKS,
        "at::kFloat && t.numel() == 1 && t.device() == device &&",
        "at::kFloat && t.numel() == 1 && (true || t.device() == device) &&",
        _SCALE,
    ),
    (
        "numbers of any length",
        _CHECKS,
        "return t.defined() && t.numel() == 1 && t.device()",
        "return t.defined() && t.device()",
        (*_LR, *_HOST_LR),
    ),
)
