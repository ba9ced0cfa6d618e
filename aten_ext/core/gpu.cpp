#include "core/gpu.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <set>
#include <string>

#ifdef ATEN_EXT_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include "core/device_cache.h"
#include "core/query_gpu.h"
#endif

namespace aten_ext {
namespace {

thread_local std::optional<Gpu> pretended;

// log2 of a power of two up to 16; -1 for anything else.
int log2_of_cluster(int blocks) {
  for (int i = 0; i < 5; ++i) {
    if (blocks == 1 << i) {
      return i;
    }
  }
  return -1;
}

}  // namespace

namespace {

// A copy that lives as long as the process; one for each name.
const char* kept_name(const char* name) {
  static std::mutex mutex;
  static auto* const names = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return names->emplace(name).first->c_str();
}

constexpr const char* kNoCode = "GPU that the kernels were not built for";

}  // namespace

const char* lacks(const Gpu& gpu, const Needs& needs) {
  if (gpu.code == 0) {
    return kNoCode;
  }
  if (gpu.code < needs.code) {
    return "GPU, or code built for it, too old for the kernel";
  }
  if (needs.shared_bytes > gpu.shared_bytes) {
    return "GPU with too little shared memory for the kernel";
  }
  const int log2 = log2_of_cluster(needs.cluster);
  if (log2 < 0 || (log2 > 0 && gpu.clusters[log2] < 1)) {
    return "GPU without clusters of that size";
  }
  if (needs.resident_blocks > static_cast<int64_t>(gpu.multiprocessors) * needs.blocks_of_multiprocessor) {
    return "GPU with too few multiprocessors for the kernel";
  }
  return nullptr;
}

const Gpu& reference_gpu() {
  static constexpr Gpu kHopper{
      90,     90,    132,          227 << 10, 228 << 10, {132, 66, 30, 15, 7}, int64_t{50} << 20,
      4.8e12, 32764, "NVIDIA H200"};
  return kHopper;
}

void pretend_gpu(c10::ArrayRef<int64_t> facts, const std::string& name) {
  if (facts.empty()) {
    pretended.reset();
    return;
  }
  TORCH_CHECK_VALUE(facts.size() == 12, "[pretend_gpu] expected 12 numbers, got ", facts.size());
  const auto fact = [&](size_t i) { return static_cast<int>(facts[i]); };
  Gpu gpu = reference_gpu();
  gpu.capability = fact(0);
  gpu.code = fact(1);
  gpu.multiprocessors = fact(2);
  gpu.shared_bytes = fact(3);
  gpu.multiprocessor_shared_bytes = fact(4);
  for (size_t i = 0; i < gpu.clusters.size(); ++i) {
    gpu.clusters[i] = fact(5 + i);
  }
  gpu.argument_bytes = fact(10);
  gpu.l2_bytes = facts[11];
  gpu.name = kept_name(name.c_str());
  pretended = gpu;
}

#ifdef ATEN_EXT_WITH_CUDA
namespace {

Gpu query(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  cuda::GpuFacts facts{};
  C10_CUDA_CHECK(cuda::query_gpu(facts));
  Gpu gpu{facts.capability,
          facts.code,
          facts.multiprocessors,
          facts.shared_bytes,
          facts.multiprocessor_shared_bytes,
          {},
          facts.l2_bytes,
          facts.bytes_per_second,
          facts.argument_bytes,
          kept_name(facts.name)};
  std::copy(std::begin(facts.clusters), std::end(facts.clusters), gpu.clusters.begin());
  return gpu;
}

}  // namespace
#endif

const Gpu& gpu_of([[maybe_unused]] c10::Device device) {
#ifdef ATEN_EXT_WITH_CUDA
  if (device.is_cuda()) {
    static DeviceCache<Gpu> known;
    return known.get(device, query);
  }
#endif
  return pretended.has_value() ? *pretended : reference_gpu();
}

const char* decline_gpu(std::optional<c10::Device> device) {
  if (!device.has_value() || device->is_cpu()) {
    return nullptr;
  }
  return gpu_of(*device).code == 0 ? kNoCode : nullptr;
}

}  // namespace aten_ext
