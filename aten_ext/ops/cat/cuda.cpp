// cat and cat.out on CUDA: when, and which input goes to which kernel.
//
// The rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "core/gpu.h"
#include "ops/cat/crossover.h"
#include "ops/cat/inputs.h"
#include "ops/cat/overrides.h"

namespace aten_ext {
namespace {

using cuda::CatPlan;

// As many dimensions as the kernels' arguments hold (kCatMaxDims): more may merge into fewer, but whether
// they do is not the rule's to find out.
constexpr int64_t kMaxDims = 8;

C10_ALWAYS_INLINE const char* decline_on_cuda(const at::ITensorListRef& tensors, int64_t dim,
                                              CatInputs& found) {
  if (tensors.empty()) {
    return "no tensors";
  }
  found = with_tensors(tensors, [dim](const auto& inputs) { return inspect_cat(inputs, dim); });
  if (found.reason != nullptr) {
    return found.reason;
  }
  if (!is_copied(found.dtype)) {
    return "dtype that is not copied";
  }
  if (found.valid == nullptr || found.numel() == 0) {
    return "result without elements";
  }
  if (!found.contiguous && found.valid->dim() > kMaxDims) {
    return "more than 8 dimensions, not contiguous";
  }
  return decline_by_crossover(tensors, found);
}

CatPlan plan_of(const CatInputs& found, bool all_runs) {
  const Gpu& gpu = gpu_of(found.valid->device());
  return {found,
          all_runs,
          {gpu.argument_bytes, gpu.multiprocessors, gpu.l2_bytes, gpu.may_overlap(), gpu.has_async_copies()}};
}

}  // namespace

Choice<cuda::CatPlan> cuda::choose(const args::cat& a) {
  CatInputs found;
  const char* const reason = decline_on_cuda(a.tensors, a.dim, found);
  return reason != nullptr ? Choice<CatPlan>(reason) : plan_of(found, found.contiguous);
}

Choice<cuda::CatPlan> cuda::choose(const args::cat_out& a) {
  CatInputs found;
  const char* reason = decline_on_cuda(a.tensors, a.dim, found);
  reason = reason != nullptr ? reason : decline_cat_out(found, a.tensors, a.out);
  if (reason != nullptr) {
    return reason;
  }
  const bool in_format = a.out.is_contiguous(found.format);
  if (a.out.dim() > kMaxDims && !in_format) {
    return "more than 8 dimensions, not contiguous";
  }
  return plan_of(found, found.contiguous && in_format);
}

std::string cuda::CatPlan::describe() const {
  const auto counted = [](int64_t n, const char* what) {
    return std::to_string(n) + " " + what + (n != 1 ? "s" : "");
  };
  std::string text = counted(inputs.count, "input");
  if (all_runs) {
    const int64_t row = inputs.size_at_dim * inputs.stride_at_dim();
    const int64_t bytes = row * static_cast<int64_t>(c10::elementSize(inputs.dtype));
    text += " as runs, " + counted(inputs.numel() / row, "row") + " of " + std::to_string(bytes) + " bytes";
  } else {
    text += ", each by its strides";
  }
  return inputs.one_dtype ? text : text + ", converted to " + c10::toString(inputs.dtype);
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/launch.h"
#include "core/to_dtype.h"
#include "ops/cat/geometry.h"
#include "ops/cat/kernels.h"
#include "ops/cat/shares.h"

namespace aten_ext {
namespace {

using cuda::CatGatherInput;
using cuda::CatGatherParams;
using cuda::CatRun;
using cuda::CatRunsParams;
using cuda::CatStrided;
using cuda::CatStridedParams;
using cuda::LaunchSequence;

static_assert(kMaxDims == cuda::kCatMaxDims);

// The inputs with elements, and what each was found to be: for now a run, as if contiguous, in steps of
// `dim`.
struct Gathered {
  std::vector<const c10::TensorImpl*> inputs;
  std::vector<CatRun> runs;
};

Gathered gather(const at::ITensorListRef& tensors, const CatInputs& found) {
  Gathered g;
  g.inputs.reserve(static_cast<size_t>(found.count));
  g.runs.reserve(static_cast<size_t>(found.count));
  int64_t begin = 0;
  with_tensors(tensors, [&](const auto& list) {
    for (const at::Tensor& tensor : list) {
      const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
      const int64_t size = is_skipped(t) ? 0 : t.sizes()[found.dim];
      if (size != 0) {
        g.inputs.push_back(&t);
        g.runs.push_back({t.data(), begin, size, 0, to_dtype(t.dtype().toScalarType())});
        begin += size;
      }
    }
  });
  return g;
}

// What a run writes, and how.
struct Target {
  const CatPlan& plan;
  void* out;
  LaunchSequence sequence;
};

cudaError_t launch_runs(Target& target, const std::vector<CatRun>& runs, int64_t rows, int64_t row_size,
                        bool converts) {
  const CatInputs& found = target.plan.inputs;
  const CatRunsParams p{runs.data(),
                        static_cast<int64_t>(runs.size()),
                        target.out,
                        rows,
                        row_size,
                        static_cast<int>(c10::elementSize(found.dtype)),
                        to_dtype(found.dtype),
                        target.plan.gpu};
  return converts ? cuda::launch_cat_convert(p, target.sequence) : cuda::launch_cat_runs(p, target.sequence);
}

// Inputs of any strides by one kernel: all of them, or those that are converted, or those that are not.
enum class Gathers : uint8_t { All, Converted, AsTheyAre };

cudaError_t launch_gather(Target& target, const CatGeometry& geometry, const Gathered& g,
                          const std::vector<CatLaidOut>& inputs, const CatShares& shares, Gathers which) {
  const CatInputs& found = target.plan.inputs;
  // Not a vector: setting its elements to zero takes as long as finding out what is in them.
  const std::unique_ptr<CatGatherInput[]> gathered(new CatGatherInput[inputs.size()]);
  CatGatherParams p{};
  p.dtype = to_dtype(found.dtype);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const CatRun& run = g.runs[i];
    const bool converted = run.dtype != p.dtype;
    if (shares.ways[i] == CatWay::Gather &&
        (which == Gathers::All || converted == (which == Gathers::Converted))) {
      CatGatherInput& one = gathered[p.count++];
      one.data = run.data;
      one.begin = run.begin * geometry.step;
      one.segment = run.size * geometry.step;
      one.dims = merge_input(geometry, inputs[i].strides, run.size, one.sizes, one.strides);
      one.dtype = run.dtype;
      p.converts = p.converts || converted;
    }
  }
  p.inputs = gathered.get();
  p.out = target.out;
  p.rows = geometry.rows;
  p.row_size = found.size_at_dim * geometry.step;
  p.element_size = static_cast<int>(c10::elementSize(found.dtype));
  p.gpu = target.plan.gpu;
  return p.count == 0 ? cudaSuccess : cuda::launch_cat_gather(p, target.sequence);
}

// What is converted is moved element by element, and so would be what is beside it. More of that than so many
// elements for each multiprocessor has a launch of its own.
constexpr int64_t kLaunchOfTheirOwnPerSM = 8192;

cudaError_t launch_gathers(Target& target, const CatGeometry& geometry, const Gathered& g,
                           const std::vector<CatLaidOut>& inputs, const CatShares& shares) {
  int64_t as_they_are = 0;  // elements
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (shares.ways[i] == CatWay::Gather && g.runs[i].dtype == to_dtype(target.plan.inputs.dtype)) {
      as_they_are += inputs[i].size_at_dim * geometry.rows * geometry.step;
    }
  }
  if (target.plan.inputs.one_dtype ||
      as_they_are <= kLaunchOfTheirOwnPerSM * target.plan.gpu.multiprocessors) {
    return launch_gather(target, geometry, g, inputs, shares, Gathers::All);
  }
  const cudaError_t error = launch_gather(target, geometry, g, inputs, shares, Gathers::AsTheyAre);
  return error != cudaSuccess ? error
                              : launch_gather(target, geometry, g, inputs, shares, Gathers::Converted);
}

// Transposes: one launch for each way of going through memory. Mostly there is one.
cudaError_t launch_transposes(Target& target, const Gathered& g, const CatShares& shares) {
  const CatInputs& found = target.plan.inputs;
  if (shares.tiled.empty()) {
    return cudaSuccess;
  }
  const CatGeometry& geometry = *shares.merged;
  CatStridedParams p{};
  p.out = target.out;
  p.dims = static_cast<int>(geometry.sizes.size());
  p.dim = static_cast<int>(geometry.dim);
  std::copy(geometry.sizes.begin(), geometry.sizes.end(), p.sizes);
  std::copy(geometry.out_strides.begin(), geometry.out_strides.end(), p.out_strides);
  p.element_size = static_cast<int>(c10::elementSize(found.dtype));
  p.dtype = to_dtype(found.dtype);
  p.gpu = target.plan.gpu;
  std::vector<CatStrided> inputs;
  for (int tile_dim = 0; tile_dim < p.dims - 1; ++tile_dim) {
    inputs.clear();
    p.converts = false;
    for (const CatStridedInput& input : shares.tiled) {
      if (input.tile_dim == tile_dim) {
        const CatRun& run = g.runs[input.position];
        CatStrided& one = inputs.emplace_back();
        one = {run.data, run.begin * geometry.step, input.size_at_dim, {}, run.dtype};
        std::copy(input.strides.begin(), input.strides.end(), one.strides);
        p.converts = p.converts || run.dtype != p.dtype;
      }
    }
    if (!inputs.empty()) {
      p.inputs = inputs.data();
      p.count = static_cast<int64_t>(inputs.size());
      p.tile_dim = tile_dim;
      p.column_bytes = shares.column_bytes;
      const cudaError_t error = p.column_bytes > 0 ? cuda::launch_cat_panels(p, target.sequence)
                                                   : cuda::launch_cat_transpose(p, target.sequence);
      if (error != cudaSuccess) {
        return error;
      }
    }
  }
  return cudaSuccess;
}

cudaError_t fill_runs(Target& target, Gathered& g) {
  const CatInputs& found = target.plan.inputs;
  const int64_t step = found.stride_at_dim();
  for (CatRun& run : g.runs) {
    run.begin *= step;
    run.size *= step;
    run.row_stride = run.size;
  }
  const int64_t row_size = found.size_at_dim * step;
  return launch_runs(target, g.runs, found.numel() / row_size, row_size, !found.one_dtype);
}

// The runs among inputs of any strides.
cudaError_t launch_shared_runs(Target& target, const CatGeometry& geometry, const Gathered& g,
                               const std::vector<CatLaidOut>& inputs, const CatShares& shares) {
  const CatInputs& found = target.plan.inputs;
  std::vector<CatRun> runs;  // without data where another kernel takes the input
  runs.reserve(inputs.size());
  bool converts = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    CatRun& run = runs.emplace_back(g.runs[i]);
    run.begin *= geometry.step;
    run.size *= geometry.step;
    run.row_stride = inputs[i].is_run ? inputs[i].row_stride : 0;
    run.data = shares.ways[i] == CatWay::Runs ? run.data : nullptr;
    converts = converts || (run.data != nullptr && run.dtype != to_dtype(found.dtype));
  }
  return launch_runs(target, runs, geometry.rows, found.size_at_dim * geometry.step, converts);
}

cudaError_t fill_by_strides(Target& target, const Gathered& g, const at::Tensor& out) {
  const CatInputs& found = target.plan.inputs;
  const CatGeometry geometry(out.sizes(), out.strides(), found.dim);
  std::vector<CatLaidOut> inputs(g.inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    CatLaidOut& input = inputs[i];
    input.strides = g.inputs[i]->strides();
    input.size_at_dim = g.runs[i].size;
    input.is_run = geometry.is_run(input.strides, input.size_at_dim, input.row_stride);
  }
  const CatShares shares =
      share_out(geometry, inputs,
                {!found.one_dtype, static_cast<int64_t>(c10::elementSize(found.dtype)), target.plan.gpu});

  cudaError_t error = cudaSuccess;
  if (std::count(shares.ways.begin(), shares.ways.end(), CatWay::Runs) > 0) {
    error = launch_shared_runs(target, geometry, g, inputs, shares);
  }
  error = error != cudaSuccess ? error : launch_gathers(target, geometry, g, inputs, shares);
  return error != cudaSuccess ? error : launch_transposes(target, g, shares);
}

// Fills `out`, which is dense. False: the driver refused a launch, and upstream has to fill it: all of it, so
// what earlier launches wrote does not matter.
bool fill(const at::ITensorListRef& tensors, const CatPlan& plan, const at::Tensor& out) {
  Gathered g = gather(tensors, plan.inputs);
  Target target{plan, out.mutable_data_ptr(),
                LaunchSequence(c10::cuda::getCurrentCUDAStream(), plan.gpu.may_overlap)};
  const cudaError_t error = plan.all_runs ? fill_runs(target, g) : fill_by_strides(target, g, out);
  if (cuda::is_refusal(error)) {
    return false;
  }
  C10_CUDA_CHECK(error);
  return true;
}

}  // namespace

Ran<at::Tensor> cuda::run(const args::cat& a, const CatPlan& plan) {
  const CatInputs& found = plan.inputs;
  const c10::cuda::CUDAGuard guard(found.valid->device());
  at::Tensor out = at::detail::empty_cuda(found.sizes(), found.dtype, found.valid->device(), found.format);
  if (!fill(a.tensors, plan, out)) {
    return kRefused;
  }
  return out;
}

Ran<at::Tensor&> cuda::run(const args::cat_out& a, const CatPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.out.device());
  if (!fill(a.tensors, plan, a.out)) {
    return kRefused;
  }
  return a.out;
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
