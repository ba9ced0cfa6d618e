// Launches of the kernel for one row, or up to four (gemv.cuh).
#include "ops/linear/gemv.h"

#include <type_traits>

#include "core/launch.h"
#include "core/launch_sequence.h"
#include "core/math.h"
#include "ops/linear/gemv.cuh"

namespace aten_ext::cuda {
namespace {

struct Launch {
  const LinearParams& params;
  const gemv::Plan& plan;
  bool overlap;
  cudaStream_t stream;
};

template <typename T, int rows, int warps, int columns, int steps>
cudaError_t launch_plan(const Launch& launch) {
  using Shape = GemvShape<warps, columns>;
  const GemvArguments args{launch.params, launch.plan.prefetches};
  static_assert(std::is_trivially_copyable_v<GemvArguments>, "kernel arguments are copied as bytes");
  const LaunchShape shape{ceil_div(launch.params.N, Shape::kColumns), Shape::kThreads};
  return launch_kernel(gemv_kernel<T, rows, warps, columns, steps>, shape, launch.overlap, args,
                       launch.stream);
}

template <typename T, int rows, int warps, int columns>
cudaError_t launch_columns(const Launch& launch) {
  cudaError_t error = cudaErrorInvalidValue;
  const auto launch_steps = [&](auto steps) {
    if constexpr (gemv::is_plan(rows, warps, columns, steps)) {
      if (launch.plan.steps == steps) {
        error = launch_plan<T, rows, warps, columns, steps>(launch);
      }
    }
  };
  launch_steps(std::integral_constant<int, 1>());
  launch_steps(std::integral_constant<int, 2>());
  launch_steps(std::integral_constant<int, 4>());
  return error;
}

template <typename T, int rows, int warps>
cudaError_t launch_warps(const Launch& launch) {
  switch (launch.plan.columns) {
    case 1:
      return launch_columns<T, rows, warps, 1>(launch);
    case 2:
      return launch_columns<T, rows, warps, 2>(launch);
    default:
      return launch_columns<T, rows, warps, 4>(launch);
  }
}

template <typename T, int rows>
cudaError_t launch_rows(const Launch& launch) {
  switch (launch.plan.warps) {
    case 1:
      return launch_warps<T, rows, 1>(launch);
    case 2:
      return launch_warps<T, rows, 2>(launch);
    case 4:
      return launch_warps<T, rows, 4>(launch);
    case 8:
      return launch_warps<T, rows, 8>(launch);
    default:
      return launch_warps<T, rows, gemv::kMostWarps>(launch);
  }
}

}  // namespace

cudaError_t launch_gemv(const LinearParams& params, const gemv::Plan& plan, bool overlap,
                        cudaStream_t stream) {
  const Launch launch{params, plan, overlap, stream};
  if (params.dtype == Dtype::BFloat16) {
    return launch_rows<__nv_bfloat16, 1>(launch);
  }
  if (params.dtype == Dtype::Half) {
    return launch_rows<__half, 1>(launch);
  }
  switch (plan.rows) {
    case 1:
      return launch_rows<float, 1>(launch);
    case 2:
      return launch_rows<float, 2>(launch);
    default:
      return launch_rows<float, 4>(launch);
  }
}

}  // namespace aten_ext::cuda
