"""Mutants of the kernels of the fused optimizer steps: (name, file, old, new, tests).

CUDA kernels run on the CPU, thread by thread, in the tests named here (tests/device_on_host). Left out: the
early return of for_all_units for a list without rows. Without it the kernel reads one row in front of an
array and does nothing with it, which AddressSanitizer sees (scripts/sanitize) but no test.
"""

from __future__ import annotations

_ADAM = "tests/ops/optimizer/test_adam_parity.py"
_SGD = "tests/ops/optimizer/test_sgd.py::TestFusedSgd"
_ADAGRAD = "tests/ops/optimizer/test_adagrad.py::TestFusedAdagrad"
_ADAM_ON_HOST = "tests/ops/optimizer/test_adam_on_host.py"
_STEPS_ON_HOST = "tests/ops/optimizer/test_steps_on_host.py"

_ROWS = "aten_ext/ops/optimizer/lists.h"
_CPU = "aten_ext/ops/optimizer/cpu/fused_adam.cpp"
_CPU_LIST = "aten_ext/ops/optimizer/cpu/tensor_list.h"
_UNITS = "aten_ext/ops/optimizer/cpu/update_units.h"
_ADAM_KERNEL = "aten_ext/ops/optimizer/cpu/fused_adam_kernel.cpp"
_SGD_KERNEL = "aten_ext/ops/optimizer/cpu/fused_sgd_kernel.cpp"
_ADAGRAD_KERNEL = "aten_ext/ops/optimizer/cpu/fused_adagrad_kernel.cpp"
_CUDA_ADAM = "aten_ext/ops/optimizer/cuda/fused_adam.cu"
_CUDA_LIST = "aten_ext/ops/optimizer/cuda/tensor_list.cuh"
_CUDA_LAUNCH = "aten_ext/ops/optimizer/cuda/tensor_list_launch.cuh"

_DTYPES = (f"{_ADAM}::test_every_dtype",)
_NAN = (f"{_ADAM}::test_nan_with_amsgrad",)
_UPSTREAM = (f"{_ADAM}::test_step_matches_upstream",)
_MANY_SMALL = (f"{_ADAM}::test_one_large_among_many_small",)
_COPY_ON_WRITE = (f"{_ADAM}::test_copy_on_write_tensors",)
_SGD_UPSTREAM = (f"{_SGD}::test_step_matches_upstream",)
_SGD_DTYPES = (f"{_SGD}::test_every_dtype",)
_ADAGRAD_DTYPES = (f"{_ADAGRAD}::test_every_dtype",)
_MARGINS_ON_HOST = (f"{_ADAM_ON_HOST}::test_nothing_beside_a_tensor_is_written",)
_PARITY_ON_HOST = (f"{_ADAM_ON_HOST}::test_parity",)

ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    # ---- CPU: over what ----
    (
        "runs without AVX2",
        "aten_ext/ops/optimizer/cpu/step.h",
        "return has_avx2() ? nullptr",
        "return true ? nullptr",
        ("tests/ops/optimizer/test_adam_rules.py::test_cpu_without_avx2",),
    ),
    (
        "found_inf is ignored",
        "aten_ext/ops/optimizer/cpu/step.h",
        "*found_inf->const_data_ptr<float>() == 1.0f",
        "false",
        (f"{_ADAM}::test_found_inf_changes_nothing",),
    ),
    (
        "gradients are always written",
        _ROWS,
        "const_cast<void*>(grads[i].const_data_ptr());",
        "grads[i].mutable_data_ptr();",
        _COPY_ON_WRITE,
    ),
    (
        "parameters are written behind copy-on-write's back",
        _ROWS,
        "= params[i].mutable_data_ptr();",
        "= const_cast<void*>(params[i].const_data_ptr());",
        _COPY_ON_WRITE,
    ),
    (
        "grad_scale is 1",
        _CPU,
        "p.grad_scale = plan.unscales ? *float_pointer(a.grad_scale) : 1.0f;",
        "p.grad_scale = 1.0f;",
        ("tests/ops/optimizer/test_adam_programs.py::test_grad_scaler", *_UPSTREAM),
    ),
    (
        "a last partial unit is forgotten",
        _CPU_LIST,
        "units += ceil_div(numel * element_size, kUnitBytes);",
        "units += numel * element_size / kUnitBytes;",
        _DTYPES,
    ),
    (
        "found_inf is ignored where the learning rate is a tensor",
        _CPU,
        "if (found_infinity(a.found_inf)) {",
        "if (!std::is_reference_v<decltype(a.lr)> && found_infinity(a.found_inf)) {",
        (f"{_ADAM}::test_found_inf_of_every_overload",),
    ),
    # ---- CPU: the loop of every step ----
    ("the tail is left out", _UNITS, "if (at < to) {", "if (false) {", _DTYPES),
    ("the tail rounds as the body", _UNITS, "update_vector<T, true>(", "update_vector<T, false>(", _DTYPES),
    (
        "the tail is a whole vector",
        _UNITS,
        "for (; at + kVector <= to; at += kVector) {",
        "for (; at < to; at += kVector) {",
        (f"{_ADAM}::test_nothing_beside_a_tensor_is_written",),
    ),
    (
        "a thread starts at the tensor after its own",
        _UNITS,
        "begin, starts_after) - 1;",
        "begin, starts_after);",
        _DTYPES,
    ),
    (
        "a thread starts at its tensor's beginning",
        _UNITS,
        "std::max<int64_t>(begin - tensor->first_unit, 0) * kElementsPerUnit;",
        "0 * begin;",
        _MANY_SMALL,
    ),
    (
        "a thread ends at its tensor's end",
        _UNITS,
        "std::min((end - tensor->first_unit) * kElementsPerUnit, tensor->numel);",
        "tensor->numel;",
        _MANY_SMALL,
    ),
    (
        "all tensors have the first one's step",
        _UNITS,
        "if (tensor->step != count_of_steps) {",
        "if (false) {",
        _UPSTREAM,
    ),
    (
        "unscaled fp32 gradients are not written back",
        _UNITS,
        "x[kGrad].store(data[kGrad], count);",
        "",
        _UPSTREAM,
    ),
    (
        "unscaled 16-bit gradients are not written back",
        _UNITS,
        "at::vec::convert_from_float<T>(low[kGrad], high[kGrad]).store(data[kGrad], count);",
        "",
        _UPSTREAM,
    ),
    # ---- CPU: the formulas ----
    (
        "lerp has one branch",
        _ADAM_KERNEL,
        "const bool from_grad = !(std::abs(weight) < Op(0.5));",
        "const bool from_grad = false;",
        _UPSTREAM,
    ),
    (
        "amsgrad divides by the latest second moment",
        _ADAM_KERNEL,
        "second_moment = x[kMaxExpAvgSq];",
        "second_moment = x[kExpAvgSq];",
        _DTYPES,
    ),
    (
        "amsgrad's maximum loses a NaN",
        _ADAM_KERNEL,
        ": at::vec::maximum(x[kMaxExpAvgSq], x[kExpAvgSq]);",
        ": Vec::blendv(x[kMaxExpAvgSq], x[kExpAvgSq], x[kMaxExpAvgSq] < x[kExpAvgSq]);",
        _NAN,
    ),
    (
        "amsgrad's maximum hands on a NaN in the tail",
        _ADAM_KERNEL,
        "tail ? Vec::blendv(x[kMaxExpAvgSq]",
        "false ? Vec::blendv(x[kMaxExpAvgSq]",
        _NAN,
    ),
    ("maximize is ignored", _ADAM_KERNEL, "if (maximize) {", "if (false) {", _UPSTREAM),
    ("no decay in AdamW", _ADAM_KERNEL, "x[kParam] = x[kParam] * weight_decay;", "", _DTYPES),
    (
        "sgd: the tail rounds as the body",
        _SGD_KERNEL,
        "return tail ? at::vec::fmadd(",
        "return false ? at::vec::fmadd(",
        _SGD_DTYPES,
    ),
    (
        "sgd: a first step with nesterov reads the buffer",
        _SGD_KERNEL,
        "kFirst = momentum_ == Momentum::First || momentum_ == Momentum::FirstNesterov;",
        "kFirst = momentum_ == Momentum::First;",
        _SGD_UPSTREAM,
    ),
    (
        "sgd: dampening is ignored",
        _SGD_KERNEL,
        "one_minus_dampening(Op(1 - p.dampening))",
        "one_minus_dampening(Op(1))",
        _SGD_UPSTREAM,
    ),
    (
        "adagrad: the first step decays already",
        _ADAGRAD_KERNEL,
        "std::fma(step - 1.0, p.lr_decay, 1.0)",
        "std::fma(step, p.lr_decay, 1.0)",
        _ADAGRAD_DTYPES,
    ),
    (
        "adagrad: the tail's scalars are those of the body",
        _ADAGRAD_KERNEL,
        "if constexpr (tail && kIs16Bit<T>) {",
        "if constexpr (false) {",
        _ADAGRAD_DTYPES,
    ),
    # ---- CUDA ----
    (
        "a block goes past its tensor's end",
        _CUDA_LIST,
        "const uint32_t count = left < chunk ? static_cast<uint32_t>(left) : chunk;",
        "const uint32_t count = left < 0 ? 0u : chunk;",
        _MARGINS_ON_HOST,
    ),
    (
        "a ragged end is whole vectors",
        _CUDA_LIST,
        "bool vectors = count % kVector == 0 &&",
        "bool vectors =",
        _MARGINS_ON_HOST,
    ),
    (
        "a ragged end is whole halves of vectors",
        _CUDA_LIST,
        "bool halves = count % kElementsAtOnce == 0;",
        "bool halves = true;",
        _MARGINS_ON_HOST,
    ),
    (
        "a thread takes more at once than its chunk has",
        _CUDA_LAUNCH,
        "const int at_once = std::min(kElementsAtOnce, most);",
        "const int at_once = kElementsAtOnce;",
        (f"{_STEPS_ON_HOST}::test_lists_of_few_chunks",),
    ),
    (
        "a thread stores past the end",
        _CUDA_LIST,
        "if (is_written(s, list) && at < count) {",
        "if (is_written(s, list)) {",
        _MARGINS_ON_HOST,
    ),
    (
        "a tensor's first block is the one before's",
        "aten_ext/device/search.cuh",
        "if (begin[middle] <= at) {",
        "if (begin[middle] < at) {",
        (f"{_ADAM_ON_HOST}::test_lists_of_any_length",),
    ),
    (
        "found_inf is ignored by whole vectors",
        _CUDA_LIST,
        """  if (at < count) {
    load(at);
  }
  if (is_skipped(s)) {""",
        """  if (at < count) {
    load(at);
  }
  if (false) {""",
        (f"{_ADAM_ON_HOST}::test_found_inf_changes_nothing",),
    ),
    (
        "a last partial chunk has no block",
        _CUDA_LAUNCH,
        "const int64_t of_tensor = ceil_div(tensors[i].numel, chunk);",
        "const int64_t of_tensor = tensors[i].numel / chunk;",
        _PARITY_ON_HOST,
    ),
    (
        "each tensor is one block, though one has more",
        _CUDA_LAUNCH,
        "is_tensor_of_block && of_tensor == 1;",
        "is_tensor_of_block && of_tensor > 0;",
        (f"{_STEPS_ON_HOST}::test_lists_of_few_chunks",),
    ),
    (
        "each tensor is one block, though one has none",
        _CUDA_LAUNCH,
        "is_tensor_of_block && of_tensor == 1;",
        "is_tensor_of_block && of_tensor <= 1;",
        (f"{_STEPS_ON_HOST}::test_lists_of_few_chunks",),
    ),
    (
        "each block of an only tensor is its first",
        _CUDA_LIST,
        "begin = static_cast<int64_t>(blockIdx.x) * chunk;",
        "begin = 0;",
        (f"{_STEPS_ON_HOST}::test_lists_of_few_chunks",),
    ),
    (
        "every launch takes the first tensors",
        _CUDA_LAUNCH,
        "describe_tensors<Optimizer>(args, tensors + from, count,",
        "describe_tensors<Optimizer>(args, tensors, count,",
        (f"{_ADAM_ON_HOST}::test_lists_of_any_length",),
    ),
    (
        "the two bias corrections are swapped",
        _CUDA_ADAM,
        "pow(threadIdx.x % 2 == 0 ?",
        "pow(threadIdx.x % 2 == 1 ?",
        _PARITY_ON_HOST,
    ),
    (
        "amsgrad's maximum loses a NaN at CUDA",
        _CUDA_ADAM,
        "x[kMaxExpAvgSq] < second_moment ? second_moment : x[kMaxExpAvgSq];",
        "fmax(x[kMaxExpAvgSq], second_moment);",
        (f"{_ADAM_ON_HOST}::test_nan_with_amsgrad",),
    ),
    (
        "L2 decay multiplies the gradient",
        _CUDA_ADAM,
        "grad = fma(param, s.weight_decay, grad);",
        "grad = fma(grad, s.weight_decay, grad);",
        (f"{_ADAM_ON_HOST}::test_decay_of_every_overload",),
    ),
    (
        "Adam is AdamW where the learning rate is a tensor",
        "aten_ext/ops/optimizer/cuda/fused_adam.cpp",
        "p.decoupled = kDecoupled<Args>;",
        "p.decoupled = kDecoupled<Args> || std::is_reference_v<decltype(a.lr)>;",
        (f"{_ADAM_ON_HOST}::test_decay_of_every_overload",),
    ),
    (
        "empty tensors are passed to the kernel",
        _ROWS,
        "if (numel == 0) {",
        "if (false) {",
        (
            f"{_ADAM}::test_only_empty_tensors",
            f"{_STEPS_ON_HOST}::test_only_empty_tensors",
        ),
    ),
    (
        "SGD rounds all that upstream loads by fours in one order",
        "aten_ext/ops/optimizer/cuda/fused_sgd.cu",
        "tensor.is_upstreams_vectors && s.maximize",
        "tensor.is_upstreams_vectors && false && s.maximize",
        (f"{_STEPS_ON_HOST}::test_sgd_rounds_what_upstream_rounds",),
    ),
    (
        "SGD takes tensors that are no multiple of four for upstream's fours",
        "aten_ext/ops/optimizer/cuda/tensor_list.cuh",
        "halves && args.numel[tensor] % kUpstreamsVector == 0",
        "halves",
        (f"{_STEPS_ON_HOST}::test_sgd_rounds_what_upstream_rounds",),
    ),
)
