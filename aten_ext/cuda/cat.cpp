// cat and cat.out on CUDA: when, and which input goes to which kernel.
//
// The decline rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "cat_rule.h"
#include "overrides.h"

namespace aten_ext {
namespace {

// As many dimensions as the kernels' arguments hold (kCatMaxDims): more may merge into fewer, but whether
// they do is not the rule's to find out.
constexpr int64_t kMostDims = 8;

C10_ALWAYS_INLINE const char* decline_on_cuda(const at::ITensorListRef& tensors, int64_t dim,
                                              CatInputs& found) {
  if (tensors.empty()) {
    return "no tensors";
  }
  found = with_tensors(tensors, [dim](const auto& inputs) {
    return inspect_cat<CatPass::Decide>(inputs, dim, [](const c10::TensorImpl&, int64_t) {});
  });
  if (found.reason != nullptr) {
    return found.reason;
  }
  if (!is_copied(found.dtype)) {
    return "dtype that is not copied";
  }
  if (found.valid == nullptr || found.numel() == 0) {
    return "result without elements";
  }
  return !found.contiguous && found.valid->dim() > kMostDims ? "more than 8 dimensions, not contiguous"
                                                             : nullptr;
}

}  // namespace

const char* decline::cat_cuda(const at::ITensorListRef& tensors, int64_t dim) {
  CatInputs found;
  return decline_on_cuda(tensors, dim, found);
}

const char* decline::cat_out_cuda(const at::ITensorListRef& tensors, int64_t dim, at::Tensor& out) {
  CatInputs found;
  const char* reason = decline_on_cuda(tensors, dim, found);
  reason = reason != nullptr ? reason : decline_cat_out(found, tensors, out);
  if (reason != nullptr) {
    return reason;
  }
  return out.dim() > kMostDims && !out.is_contiguous(found.format) ? "more than 8 dimensions, not contiguous"
                                                                   : nullptr;
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "cat_plan.h"
#include "cuda/cat.h"

namespace aten_ext {
namespace {

using cuda::CatDtype;
using cuda::CatRun;
using cuda::CatRunsParams;
using cuda::CatStrided;
using cuda::CatStridedParams;

static_assert(kMostDims == cuda::kCatMaxDims);

// A tile of a transpose is 64 or 32 elements long and wide: where there are fewer than this in either
// direction, most of its threads would be idle.
constexpr int64_t kLeastTile = 8;

CatDtype to_cat_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return CatDtype::Bool;
    case at::kByte:
      return CatDtype::UInt8;
    case at::kChar:
      return CatDtype::Int8;
    case at::kShort:
      return CatDtype::Int16;
    case at::kInt:
      return CatDtype::Int32;
    case at::kLong:
      return CatDtype::Int64;
    case at::kHalf:
      return CatDtype::Half;
    case at::kBFloat16:
      return CatDtype::BFloat16;
    case at::kFloat:
      return CatDtype::Float;
    case at::kDouble:
      return CatDtype::Double;
    case at::kComplexFloat:
      return CatDtype::ComplexFloat;
    case at::kComplexDouble:
      return CatDtype::ComplexDouble;
    default:
      return CatDtype::Other;
  }
}

// The inputs with elements, and what each was found to be: for now a run, as if contiguous, in steps of
// `dim`.
struct Gathered {
  CatInputs found;
  std::vector<const c10::TensorImpl*> inputs;
  std::vector<CatRun> runs;
};

Gathered gather(const at::ITensorListRef& tensors, int64_t dim) {
  Gathered g;
  g.inputs.reserve(tensors.size());
  g.runs.reserve(tensors.size());
  int64_t begin = 0;
  g.found = with_tensors(tensors, [&](const auto& list) {
    return inspect_cat<CatPass::Run>(list, dim, [&](const c10::TensorImpl& t, int64_t size) {
      if (size != 0) {
        g.inputs.push_back(&t);
        g.runs.push_back({t.data(), begin, size, 0, to_cat_dtype(t.dtype().toScalarType())});
        begin += size;
      }
    });
  });
  return g;
}

void launch_runs(const std::vector<CatRun>& runs, int64_t rows, int64_t row_size, const CatInputs& found,
                 bool converts, void* out) {
  const CatRunsParams p{runs.data(),
                        static_cast<int64_t>(runs.size()),
                        out,
                        rows,
                        row_size,
                        static_cast<int>(c10::elementSize(found.dtype)),
                        to_cat_dtype(found.dtype)};
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  C10_CUDA_CHECK(converts ? cuda::launch_cat_convert(p, stream) : cuda::launch_cat_runs(p, stream));
}

// A dimension along which the memory of an input runs, and long enough for tiles; -1: none.
int tile_dim_of(const CatGeometry& geometry, const CatStridedInput& input) {
  const int last = static_cast<int>(geometry.sizes.size()) - 1;
  const auto size = [&](int d) {
    return static_cast<size_t>(d) == geometry.dim ? input.size_at_dim : geometry.sizes[d];
  };
  if (input.strides[last] == 1 || size(last) < kLeastTile) {
    return -1;
  }
  for (int d = 0; d < last; ++d) {
    if (input.strides[d] == 1 && size(d) >= kLeastTile) {
      return d;
    }
  }
  return -1;
}

// Inputs that are no runs.
void launch_strided(CatGeometry& geometry, std::vector<CatStridedInput>& strided, const Gathered& g,
                    void* out) {
  std::vector<CatStridedInput*> all;
  for (CatStridedInput& input : strided) {
    all.push_back(&input);
  }
  const int64_t step = geometry.step;
  merge_dimensions(geometry, all);

  CatStridedParams p{};
  p.out = out;
  p.dims = static_cast<int>(geometry.sizes.size());
  p.dim = static_cast<int>(geometry.dim);
  std::copy(geometry.sizes.begin(), geometry.sizes.end(), p.sizes);
  std::copy(geometry.out_strides.begin(), geometry.out_strides.end(), p.out_strides);
  p.element_size = static_cast<int>(c10::elementSize(g.found.dtype));
  p.dtype = to_cat_dtype(g.found.dtype);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  // One kernel for each way of going through memory: mostly there is one.
  std::vector<CatStrided> inputs;
  for (int tile_dim = -1; tile_dim < p.dims - 1; ++tile_dim) {
    inputs.clear();
    p.converts = false;
    for (const CatStridedInput& input : strided) {
      if (tile_dim_of(geometry, input) == tile_dim) {
        const CatRun& run = g.runs[input.position];
        CatStrided& one = inputs.emplace_back();
        one = {run.data, run.begin * step, input.size_at_dim, {}, run.dtype};
        std::copy(input.strides.begin(), input.strides.end(), one.strides);
        p.converts = p.converts || g.inputs[input.position]->dtype() != g.found.dtype;
      }
    }
    if (!inputs.empty()) {
      p.inputs = inputs.data();
      p.count = static_cast<int64_t>(inputs.size());
      p.tile_dim = tile_dim;
      C10_CUDA_CHECK(tile_dim < 0 ? cuda::launch_cat_gather(p, stream)
                                  : cuda::launch_cat_transpose(p, stream));
    }
  }
}

// Fills `out`, which is dense.
void fill(Gathered& g, const at::Tensor& out) {
  void* const data = out.mutable_data_ptr();
  const CatInputs& found = g.found;
  if (found.contiguous && out.is_contiguous(found.format)) {
    const int64_t step = found.stride_at_dim();
    for (CatRun& run : g.runs) {
      run.begin *= step;
      run.size *= step;
      run.row_stride = run.size;
    }
    const int64_t row_size = found.size_at_dim * step;
    launch_runs(g.runs, found.numel() / row_size, row_size, found, !found.one_dtype, data);
    return;
  }

  CatGeometry geometry(out.sizes(), out.strides(), found.dim);
  std::vector<CatRun> runs;
  std::vector<CatStridedInput> strided;
  bool converts = false;
  for (size_t i = 0; i < g.inputs.size(); ++i) {
    const CatRun& input = g.runs[i];
    CatRun& run = runs.emplace_back(
        CatRun{nullptr, input.begin * geometry.step, input.size * geometry.step, 0, input.dtype});
    auto strides = geometry.strides_of(g.inputs[i]->strides());
    if (geometry.is_run(strides, input.size, run.row_stride)) {
      run.data = input.data;
      converts = converts || g.inputs[i]->dtype() != found.dtype;
    } else {
      strided.push_back({std::move(strides), input.size, i});
    }
  }
  if (strided.size() < runs.size()) {
    launch_runs(runs, geometry.rows, found.size_at_dim * geometry.step, found, converts, data);
  }
  if (!strided.empty()) {
    launch_strided(geometry, strided, g, data);
  }
}

}  // namespace

at::Tensor run::cat_cuda(const at::ITensorListRef& tensors, int64_t dim) {
  Gathered g = gather(tensors, dim);
  const c10::cuda::CUDAGuard guard(g.found.valid->device());
  at::Tensor out =
      at::detail::empty_cuda(g.found.sizes(), g.found.dtype, g.found.valid->device(), g.found.format);
  fill(g, out);
  return out;
}

at::Tensor& run::cat_out_cuda(const at::ITensorListRef& tensors, int64_t dim, at::Tensor& out) {
  Gathered g = gather(tensors, dim);
  const c10::cuda::CUDAGuard guard(out.device());
  fill(g, out);
  return out;
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
