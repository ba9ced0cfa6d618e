// Threads take turns millions of times, so this file is worth more than the -O1 of the kernels.
#pragma GCC optimize("O2")

#include "runtime.h"

#include "context.h"
#include "late_stores.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

namespace device_on_host {

constinit thread_local Thread* current = nullptr;

#ifdef DEVICE_ON_HOST_OWN_SWITCH
// Keeps the registers that a function must keep, on the stack that is left.
asm(R"(
  .text
  .p2align 4
  .hidden device_on_host_switch
  .globl device_on_host_switch
  .type device_on_host_switch, @function
device_on_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size device_on_host_switch, .-device_on_host_switch
)");
#endif

namespace {

// A kernel takes its arguments by value, up to 32 KB of them, on each thread's stack.
constexpr size_t kStackBytes = 256 << 10;
// From one thread's first address to the next one's: what all of them use would otherwise share a few lines
// of the cache.
constexpr size_t kStackShift = 17 * 64;
constexpr std::chrono::seconds kPatience{120};
constexpr std::chrono::microseconds kSlowTurn{100};

std::atomic<Order> the_order{Order::Forward};
std::atomic<uint64_t> the_seed{0};

}  // namespace

// A place where the lanes of one mask meet.
struct Meeting {
  unsigned mask = 0;
  unsigned arrived = 0;
  uint64_t phase = 0;
  char slots[2][kWarpSize][kSlotBytes];
};

struct Barrier {
  unsigned arrived = 0;
  uint64_t phase = 0;
};

struct ClusterState {
  std::atomic<unsigned> arrived{0};
  std::atomic<uint64_t> phase{0};
  unsigned threads = 0;
  std::vector<char*> anchors;  // of the static shared memory of each block
  std::vector<Block*> blocks;
  LateStores stores;
};

struct Runner;

struct Fiber {
  Thread thread{};
  Runner* runner = nullptr;
  Context context{};
  bool done = false;
  // It waits until the phase there is another one; null: it looks for itself.
  const uint64_t* phase = nullptr;
  uint64_t phase_seen = 0;
  uint64_t cluster_token = 0;
};

namespace {

// Static shared memory is thread-local: one copy for each system thread, which is one for each running block.
// All copies have one layout, so that the distance to this anchor is the same in all.
thread_local char anchor[16];

}  // namespace

struct Runner {  // of one block, on its system thread
  const LaunchedKernel* kernel = nullptr;
  Block block{};
  ClusterState* cluster = nullptr;
  bool alone = true;  // no other block can help it on
  std::vector<Fiber> fibers;
  std::vector<unsigned> order;  // of their turns
  size_t turn = 0;              // whose turn it is, in `order`; one too many: the scheduler's
  Context scheduler{};
  std::vector<std::vector<std::unique_ptr<Meeting>>> meetings;  // of each warp
  Barrier block_barrier;
  std::map<int, Barrier> named;
  unsigned live = 0;
  uint64_t progress = 0;
  const char* waiting_for = "";
};

namespace {

std::atomic<uint64_t> global_progress{0};

// That of the thread that runs now. Looked up once a call: for a thread-local variable of a library that is
// loaded late the loader is asked each time.
Runner& this_runner() {
  return *current->fiber->runner;
}

// Gives the turn to the first fiber from `turn` on that can go on; past the last one, to the scheduler.
void give_turn(Runner& self, Context& from) {
  for (; self.turn < self.order.size(); ++self.turn) {
    Fiber& fiber = self.fibers[self.order[self.turn]];
    if (!fiber.done && (fiber.phase == nullptr || *fiber.phase != fiber.phase_seen)) {
      current = &fiber.thread;
      switch_to(from, fiber.context);
      return;
    }
  }
  current = nullptr;
  if (&from != &self.scheduler) {
    switch_to(from, self.scheduler);
  }
}

// Lets the others go on first.
void wait_a_turn(Runner& self, const char* what) {
  self.waiting_for = what;
  Fiber& fiber = self.fibers[self.order[self.turn]];
  ++self.turn;
  give_turn(self, fiber.context);
}

void release_if_complete(Barrier& barrier, unsigned expected) {
  if (barrier.arrived > 0 && barrier.arrived >= expected) {
    barrier.arrived = 0;
    ++barrier.phase;
  }
}

void fiber_main() {
  Runner& self = this_runner();
  self.kernel->call();
  Fiber& fiber = self.fibers[self.order[self.turn]];
  fiber.done = true;
  --self.live;
  ++self.progress;
  // Threads that have ended are not waited for.
  release_if_complete(self.block_barrier, self.live);
  ++self.turn;
  give_turn(self, fiber.context);
}

// Waits while `phase` is what it is now, of which only this block's fibers make another.
void wait_for_phase(Runner& self, const char* what, const uint64_t& phase, uint64_t seen) {
  if (phase == seen) {
    Fiber& fiber = self.fibers[self.order[self.turn]];
    fiber.phase = &phase;
    fiber.phase_seen = seen;
    wait_a_turn(self, what);
    fiber.phase = nullptr;
  }
}

class Stacks {
 public:
  explicit Stacks(size_t count) : count_(count) {
    base_ = static_cast<char*>(mmap(nullptr, count * kStackBytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (base_ == MAP_FAILED) {
      fail("no memory for the stacks of a block");
    }
  }
  Stacks(const Stacks&) = delete;
  ~Stacks() {
    munmap(base_, count_ * kStackBytes);
  }
  char* operator[](size_t i) {
    return base_ + i * kStackBytes;
  }
  size_t count() const {
    return count_;
  }

 private:
  size_t count_;
  char* base_;
};

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
  static constexpr size_t kMostKept = 4096;  // stacks, of which a kernel uses some pages each
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stacks>> spare_;
  size_t kept_ = 0;
};
SpareStacks spare_stacks;

// Dynamic shared memory begins as garbage: all ones are a NaN in every floating-point type.
void poison(const Block& block) {
  memset(block.dynamic_shared, 0xff, block.dynamic_shared_bytes);
}

std::vector<unsigned> turns(unsigned threads, uint64_t block) {
  std::vector<unsigned> result(threads);
  for (unsigned i = 0; i < threads; ++i) {
    result[i] = the_order == Order::Backward ? threads - 1 - i : i;
  }
  if (the_order == Order::Shuffled) {
    std::mt19937_64 random(the_seed + block);
    std::shuffle(result.begin(), result.end(), random);
  }
  return result;
}

bool arrives_late() {
  if (the_order == Order::Shuffled) {
    thread_local std::minstd_rand random(static_cast<unsigned>(the_seed) + current->block->cluster_rank + 1);
    return random() % 2 == 0;
  }
  return the_order == Order::Backward;
}

void run_block(Runner& self, Stacks& stacks, uint64_t linear_block) {
  const dim3 size = self.block.size;
  const unsigned threads = size.x * size.y * size.z;
  self.fibers = std::vector<Fiber>(threads);
  self.meetings.clear();
  self.meetings.resize((threads + kWarpSize - 1) / kWarpSize);
  self.block_barrier = {};
  self.named.clear();
  self.live = threads;
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = self.fibers[i];
    fiber.thread = {
        {i % size.x, i / size.x % size.y, i / (size.x * size.y)}, i, i % kWarpSize, &self.block, &fiber};
    fiber.runner = &self;
    prepare(fiber.context, stacks[i], kStackBytes - i % 64 * kStackShift, fiber_main);
  }
  self.order = turns(threads, linear_block);
  // In shuffled order some blocks are slow: it shows what the others should wait for and do not.
  const bool slow = !self.alone && the_order == Order::Shuffled && (the_seed + linear_block) % 8 == 0;
  auto last_change = std::chrono::steady_clock::now();
  uint64_t last_global = global_progress;
  while (self.live > 0) {
    if (slow) {
      std::this_thread::sleep_for(kSlowTurn);
    }
    const uint64_t before = self.progress;
    self.turn = 0;
    give_turn(self, self.scheduler);
    if (self.progress != before) {
      global_progress.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    const std::string stuck = std::string("every thread of a block waits for ") + self.waiting_for;
    if (self.alone) {
      fail(stuck.c_str());
    }
    std::this_thread::yield();
    const auto now = std::chrono::steady_clock::now();
    if (const uint64_t global = global_progress; global != last_global) {
      last_global = global;
      last_change = now;
    } else if (now - last_change > kPatience) {
      fail(stuck.c_str());
    }
  }
  self.cluster->stores.end_block(self.block.cluster_rank);
}

struct FunctionLimits {
  int dynamic_shared = 48 << 10;
  bool non_portable_cluster = false;
};
std::mutex limits_mutex;
std::map<std::pair<int, const void*>, FunctionLimits> limits;  // of each device

constexpr size_t kRemembered = 4096;
std::vector<const char*> launched;

struct Attributes {
  dim3 cluster{1, 1, 1};
  bool cooperative = false;
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

void set_order(Order order, uint64_t seed) {
  the_order = order;
  the_seed = seed;
}

void fail(const char* what) {
  std::fprintf(stderr, "device_on_host: %s\n", what);
}

void yield() {
  wait_a_turn(this_runner(), "memory to change");
}

void sync_block() {
  Runner& self = this_runner();
  Barrier& barrier = self.block_barrier;
  const uint64_t phase = barrier.phase;
  ++barrier.arrived;
  ++self.progress;
  release_if_complete(barrier, self.live);
  wait_for_phase(self, "__syncthreads", barrier.phase, phase);
}

void sync_named(int id, int threads) {
  Runner& self = this_runner();
  Barrier& barrier = self.named[id];
  const uint64_t phase = barrier.phase;
  ++barrier.arrived;
  ++self.progress;
  release_if_complete(barrier, static_cast<unsigned>(threads));
  wait_for_phase(self, "a named barrier", barrier.phase, phase);
}

void arrive_named(int id, int threads) {
  Runner& self = this_runner();
  Barrier& barrier = self.named[id];
  ++barrier.arrived;
  ++self.progress;
  release_if_complete(barrier, static_cast<unsigned>(threads));
}

void cluster_arrive() {
  Runner& self = this_runner();
  ClusterState& cluster = *self.cluster;
  current->fiber->cluster_token = cluster.phase;
  ++self.progress;
  if (cluster.arrived.fetch_add(1) + 1 == cluster.threads) {
    cluster.arrived = 0;
    cluster.phase.fetch_add(1);
  }
}

void cluster_wait() {
  Runner& self = this_runner();
  while (self.cluster->phase.load() == current->fiber->cluster_token) {
    wait_a_turn(self, "the barrier of its cluster");
  }
  ++self.progress;
}

const char (*exchange(unsigned mask, const void* value, size_t bytes)) [kSlotBytes] {
  const Thread& thread = *current;
  Runner& self = *thread.fiber->runner;
  if ((mask >> thread.lane & 1) == 0) {
    fail("a lane calls a warp function with a mask that leaves it out");
  }
  if (bytes > kSlotBytes) {
    fail("a value too large for an exchange between lanes");
  }
  auto& of_warp = self.meetings[thread.linear / kWarpSize];
  auto found = std::find_if(of_warp.begin(), of_warp.end(), [&](const auto& m) { return m->mask == mask; });
  if (found == of_warp.end()) {
    of_warp.push_back(std::make_unique_for_overwrite<Meeting>());
    of_warp.back()->mask = mask;
    found = of_warp.end() - 1;
  }
  Meeting& meeting = **found;
  const uint64_t phase = meeting.phase;
  if (bytes > 0) {
    memcpy(meeting.slots[phase & 1][thread.lane], value, bytes);
  }
  meeting.arrived |= 1u << thread.lane;
  ++self.progress;
  if (meeting.arrived == mask) {
    meeting.arrived = 0;
    ++meeting.phase;
  }
  wait_for_phase(self, "the lanes of its warp", meeting.phase, phase);
  return meeting.slots[phase & 1];
}

void* map_shared(void* local, unsigned rank) {
  const Block& mine = *current->block;
  const ClusterState& cluster = *this_runner().cluster;
  if (rank >= cluster.blocks.size()) {
    fail("shared memory of a block that its cluster does not have");
  }
  char* pointer = static_cast<char*>(local);
  if (pointer >= mine.dynamic_shared && pointer < mine.dynamic_shared + mine.dynamic_shared_bytes) {
    return cluster.blocks[rank]->dynamic_shared + (pointer - mine.dynamic_shared);
  }
  return cluster.anchors[rank] + (pointer - anchor);
}

void store_later(unsigned rank, const void* barrier, std::function<void()> arrive) {
  this_runner().cluster->stores.add(rank, barrier, std::move(arrive), arrives_late());
}

void arrive_now(const void* barrier) {
  Runner& self = this_runner();
  if (self.cluster->stores.arrive(barrier)) {
    ++self.progress;
  }
}

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
    std::unique_ptr<uint4[]> shared(new uint4[config.dynamicSmemBytes / sizeof(uint4) + 1]);
    for (uint64_t linear = 0; linear < blocks; ++linear) {
      Runner self = make_runner(block_index(linear), 0, reinterpret_cast<char*>(shared.get()));
      poison(self.block);
      ClusterState state;
      state.threads = threads;
      state.anchors = {anchor};
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
    std::atomic<size_t> ready{0};
    std::vector<std::thread> system_threads;
    system_threads.reserve(group.size());
    for (const uint64_t linear : group) {
      system_threads.emplace_back([&, linear] {
        const uint3 index = block_index(linear);
        std::unique_ptr<Stacks> stacks = spare_stacks.take(threads);
        std::unique_ptr<uint4[]> shared(new uint4[config.dynamicSmemBytes / sizeof(uint4) + 1]);
        Runner self = make_runner(index, rank_of(index), reinterpret_cast<char*>(shared.get()));
        ClusterState& state = states[cluster_of(index)];
        self.cluster = &state;
        self.alone = false;
        state.anchors[self.block.cluster_rank] = anchor;
        state.blocks[self.block.cluster_rank] = &self.block;
        poison(self.block);
        ready.fetch_add(1);
        while (ready.load() < group.size()) {
          std::this_thread::yield();
        }
        run_block(self, *stacks, linear);
        // Its shared memory may be read and written by others of the cluster until they have ended too.
        ready.fetch_add(1);
        while (ready.load() < 2 * group.size()) {
          std::this_thread::yield();
        }
        spare_stacks.give_back(std::move(stacks));
      });
    }
    for (std::thread& thread : system_threads) {
      thread.join();
    }
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

// What the compiler calls before an access to an address that is no multiple of its type's alignment, or by
// an index that an array does not have (-fsanitize=alignment,bounds, without the library that comes with
// them).
namespace {

struct Where {
  const char* file;
  uint32_t line;
};

[[noreturn]] void fail_at(const void* where, uintptr_t what, const char* why) {
  const auto* const at = static_cast<const Where*>(where);
  std::fprintf(stderr, "%s:%u: %#zx\n", at->file, at->line, static_cast<size_t>(what));
  device_on_host::fail(why);
}

}  // namespace

extern "C" void __ubsan_handle_type_mismatch_v1_abort(const void* where, uintptr_t address) {
  fail_at(where, address, "a misaligned address");
}

extern "C" void __ubsan_handle_out_of_bounds_abort(const void* where, uintptr_t index) {
  fail_at(where, index, "an index beyond an array");
}
