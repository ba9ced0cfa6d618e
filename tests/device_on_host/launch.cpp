// Launches: what the driver refuses, and the blocks of a grid, one after the other or side by side.
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "block.h"
#include "crew.h"

namespace device_on_host {
namespace {

// Stacks of blocks that have ended, for the next ones: the pages of a new one are each a fault.
class SpareStacks {
 public:
  std::unique_ptr<Stacks> take(size_t count) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      const auto fits = std::find_if(spare_.begin(), spare_.end(),
                                     [count](const auto& stacks) { return stacks->count() == count; });
      if (fits != spare_.end()) {
        std::unique_ptr<Stacks> result = std::move(*fits);
        spare_.erase(fits);
        kept_ -= count;
        return result;
      }
    }
    return std::make_unique<Stacks>(count);
  }
  void give_back(std::unique_ptr<Stacks> stacks) {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (kept_ + stacks->count() <= kMostKept) {
      kept_ += stacks->count();
      spare_.push_back(std::move(stacks));
    }
  }

 private:
  static constexpr size_t kMostKept = 48 << 10;  // stacks, of which a kernel uses some pages each
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stacks>> spare_;
  size_t kept_ = 0;
};
SpareStacks spare_stacks;

// Its threads outlive the objects of this library.
Crew& crew() {
  static auto* const the_crew = new Crew;
  return *the_crew;
}

// Dynamic shared memory, of the block that runs on this system thread. It begins as garbage: all ones are a
// NaN in every floating-point type.
char* new_shared(size_t bytes) {
  thread_local std::vector<uint4> memory;
  if (const size_t count = bytes / sizeof(uint4) + 1; memory.size() != count) {
    memory = std::vector<uint4>(count);
  }
  memset(memory.data(), 0xff, bytes);
  return reinterpret_cast<char*>(memory.data());
}

struct FunctionLimits {
  int dynamic_shared = 48 << 10;
  bool non_portable_cluster = false;
};
std::mutex limits_mutex;
std::map<std::pair<int, const void*>, FunctionLimits> limits;  // of each device

constexpr size_t kRemembered = 4096;
std::vector<const char*> launched;
std::vector<bool> overlaps;
std::vector<int64_t> threads_of_launches;

struct Attributes {
  dim3 cluster{1, 1, 1};
  bool cooperative = false;
  bool overlaps = false;
};

Attributes read_attributes(const cudaLaunchConfig_t& config) {
  Attributes result;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      const auto& dim = attribute.val.clusterDim;
      result.cluster = dim3(dim.x, dim.y, dim.z);
    } else if (attribute.id == cudaLaunchAttributeCooperative) {
      result.cooperative = attribute.val.cooperative != 0;
    } else if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      result.overlaps = attribute.val.programmaticStreamSerializationAllowed != 0;
    }
  }
  return result;
}

// log2 of a power of two up to 16, for clusters.
int log2_of_cluster(uint64_t blocks) {
  int log2 = 0;
  while ((uint64_t{1} << log2) < blocks && log2 < 4) {
    ++log2;
  }
  return log2;
}

// What the driver refuses. Blocks that wait for one another have to be resident at once.
bool is_valid(const cudaLaunchConfig_t& config, const Attributes& attributes, const FunctionLimits& limit) {
  const dim3 grid = config.gridDim;
  const dim3 block = config.blockDim;
  const dim3 cluster = attributes.cluster;
  const uint64_t cluster_blocks = uint64_t{cluster.x} * cluster.y * cluster.z;
  return grid.x >= 1 && grid.x <= INT32_MAX && grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 &&
         grid.z <= 65535 && block.x >= 1 && block.y >= 1 && block.z >= 1 && block.z <= 64 &&
         uint64_t{block.x} * block.y * block.z <= 1024 &&
         config.dynamicSmemBytes <= static_cast<size_t>(limit.dynamic_shared) && cluster_blocks >= 1 &&
         cluster_blocks <= (limit.non_portable_cluster ? 16 : 8) && grid.x % cluster.x == 0 &&
         grid.y % cluster.y == 0 && grid.z % cluster.z == 0 &&
         (cluster_blocks == 1 || device().clusters[log2_of_cluster(cluster_blocks)] > 0);
}

}  // namespace

std::vector<std::string> take_launched() {
  std::vector<const char*> mangled;
  {
    const std::lock_guard<std::mutex> lock(limits_mutex);
    mangled.swap(launched);
  }
  std::vector<std::string> result;
  for (const char* const name : mangled) {
    int status = 0;
    char* const readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    result.emplace_back(status == 0 ? readable : name);
    std::free(readable);
  }
  return result;
}

std::vector<bool> take_overlaps() {
  const std::lock_guard<std::mutex> lock(limits_mutex);
  return std::exchange(overlaps, {});
}

std::vector<int64_t> take_threads() {
  const std::lock_guard<std::mutex> lock(limits_mutex);
  return std::exchange(threads_of_launches, {});
}

cudaError_t launch(const cudaLaunchConfig_t& config, const LaunchedKernel& kernel) {
  const Attributes attributes = read_attributes(config);
  FunctionLimits limit;
  {
    const std::lock_guard<std::mutex> lock(limits_mutex);
    limit = limits[{device().number, kernel.function}];
  }
  if (!is_valid(config, attributes, limit)) {
    return cudaErrorInvalidConfiguration;
  }
  Device& d = device();
  const uint64_t resident = static_cast<uint64_t>(d.multiprocessors) * d.blocks_per_multiprocessor;
  if (attributes.cooperative && uint64_t{config.gridDim.x} * config.gridDim.y * config.gridDim.z > resident) {
    return cudaErrorCooperativeLaunchTooLarge;
  }
  if (d.code == 0) {
    return cudaErrorNoKernelImageForDevice;
  }
  if (d.refused_after > 0) {
    --d.refused_after;
  } else if (d.refused > 0) {
    --d.refused;
    return cudaErrorCooperativeLaunchTooLarge;
  }
  {
    const std::lock_guard<std::mutex> lock(limits_mutex);
    if (launched.size() < kRemembered) {
      launched.push_back(kernel.arguments);
    }
    if (overlaps.size() < kRemembered) {
      overlaps.push_back(attributes.overlaps);
    }
    if (threads_of_launches.size() < kRemembered) {
      const dim3& grid = config.gridDim;
      const dim3& block = config.blockDim;
      threads_of_launches.push_back(int64_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z);
    }
    d.captured += d.capture == 0 ? 0 : 1;
  }
  const dim3 grid = config.gridDim;
  const dim3 cluster = attributes.cluster;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  const unsigned threads = config.blockDim.x * config.blockDim.y * config.blockDim.z;
  const unsigned cluster_blocks = cluster.x * cluster.y * cluster.z;
  const auto make_runner = [&](uint3 index, unsigned rank, char* shared) {
    Runner result;
    result.kernel = &kernel;
    result.block = {index, config.blockDim, grid, rank, cluster_blocks, shared, config.dynamicSmemBytes};
    return result;
  };
  const auto block_index = [&](uint64_t linear) {
    return uint3{static_cast<unsigned>(linear % grid.x), static_cast<unsigned>(linear / grid.x % grid.y),
                 static_cast<unsigned>(linear / (uint64_t{grid.x} * grid.y))};
  };

  if (cluster_blocks == 1 && !attributes.cooperative) {
    std::unique_ptr<Stacks> stacks = spare_stacks.take(threads);
    for (uint64_t linear = 0; linear < blocks; ++linear) {
      Runner self = make_runner(block_index(linear), 0, new_shared(config.dynamicSmemBytes));
      ClusterState state;
      state.threads = threads;
      state.anchors = {shared_anchor()};
      state.blocks = {&self.block};
      self.cluster = &state;
      run_block(self, *stacks, linear);
    }
    spare_stacks.give_back(std::move(stacks));
    return cudaSuccess;
  }

  // Blocks that may wait for one another: a system thread each, all of a cluster, or all of a cooperative
  // grid, at once.
  const uint64_t clusters = blocks / cluster_blocks;
  std::vector<ClusterState> states(clusters);
  const auto cluster_of = [&](uint3 b) {
    return (uint64_t{b.z / cluster.z} * (grid.y / cluster.y) + b.y / cluster.y) * (grid.x / cluster.x) +
           b.x / cluster.x;
  };
  const auto rank_of = [&](uint3 b) {
    return (b.z % cluster.z * cluster.y + b.y % cluster.y) * cluster.x + b.x % cluster.x;
  };
  for (ClusterState& state : states) {
    state.threads = threads * cluster_blocks;
    state.anchors.resize(cluster_blocks);
    state.blocks.resize(cluster_blocks);
  }
  std::vector<std::vector<uint64_t>> groups(attributes.cooperative ? 1 : clusters);
  for (uint64_t linear = 0; linear < blocks; ++linear) {
    groups[attributes.cooperative ? 0 : cluster_of(block_index(linear))].push_back(linear);
  }
  for (const std::vector<uint64_t>& group : groups) {
    std::latch ready(static_cast<std::ptrdiff_t>(group.size()));
    std::latch ended(static_cast<std::ptrdiff_t>(group.size()));
    crew().run(group.size(), [&](size_t i) {
      const uint64_t linear = group[i];
      const uint3 index = block_index(linear);
      std::unique_ptr<Stacks> stacks = spare_stacks.take(threads);
      Runner self = make_runner(index, rank_of(index), new_shared(config.dynamicSmemBytes));
      ClusterState& state = states[cluster_of(index)];
      self.cluster = &state;
      self.alone = false;
      state.anchors[self.block.cluster_rank] = shared_anchor();
      state.blocks[self.block.cluster_rank] = &self.block;
      ready.arrive_and_wait();
      run_block(self, *stacks, linear);
      // Its shared memory may be read and written by others of the cluster until they have ended too.
      ended.arrive_and_wait();
      spare_stacks.give_back(std::move(stacks));
    });
  }
  return cudaSuccess;
}

void set_function_limit(const void* function, int attribute, int value) {
  const std::lock_guard<std::mutex> lock(limits_mutex);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    limits[{device().number, function}].dynamic_shared = value;
  } else if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
    limits[{device().number, function}].non_portable_cluster = value != 0;
  }
}

void require_code(int version) {
  if (device().code < version) {
    fail("an instruction that the code for this GPU does not have: a trap");
  }
}

Device& device() {
  static Device the_device;
  return the_device;
}

}  // namespace device_on_host
