// A block of a kernel at work: its threads, which are fibers of one system thread, and where they wait.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "context.h"
#include "late_stores.h"
#include "runtime.h"

namespace device_on_host {

// A kernel takes its arguments by value, up to 32 KB of them, on each thread's stack.
constexpr size_t kStackBytes = 256 << 10;

// A place where the lanes of one mask meet.
struct Meeting {
  unsigned mask = 0;
  unsigned arrived = 0;
  uint64_t phase = 0;
  unsigned votes[2] = {0, 0};
  alignas(16) char slots[2][kWarpSize][kSlotBytes];
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
  // It waits until the phase there is another one; null: it looks for itself, once in a pass.
  const uint64_t* phase = nullptr;
  uint64_t phase_seen = 0;
  uint64_t looked = 0;  // in this pass
  uint64_t cluster_token = 0;
};

struct Runner {  // of one block, on its system thread
  const LaunchedKernel* kernel = nullptr;
  Block block{};
  ClusterState* cluster = nullptr;
  bool alone = true;  // no other block can help it on
  std::vector<Fiber> fibers;
  std::vector<unsigned> order;  // of their turns
  size_t turn = 0;              // whose turn it is, in `order`
  // The part of `order` whose fibers have their turns until all of them wait. Lanes of a warp meet often, and
  // their stacks fit into a processor's first cache, which those of a block do not.
  size_t part_begin = 0;
  size_t part_end = 0;
  size_t part_size = 0;
  bool part_ran = false;
  bool polled = false;  // a thread looked at memory in this pass
  uint64_t pass = 0;    // over all parts, until every fiber waits
  Context scheduler{};
  std::vector<std::vector<std::unique_ptr<Meeting>>> meetings;  // of each warp
  Barrier block_barrier;
  std::map<int, Barrier> named;
  unsigned live = 0;
  uint64_t progress = 0;
  const char* waiting_for = "";
  std::minstd_rand late;  // of Order::Shuffled
};

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

// Runs its threads until all have ended.
void run_block(Runner& self, Stacks& stacks, uint64_t linear_block);

// Static shared memory is thread-local: one copy for each system thread, which is one for each running block.
// All copies have one layout, so that the distance to this anchor, of the caller's, is the same in all.
char* shared_anchor();

}  // namespace device_on_host
