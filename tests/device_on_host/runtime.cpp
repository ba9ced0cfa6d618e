// Threads take turns millions of times, so this file is worth more than the -O1 of the kernels.
#pragma GCC optimize("O2")

#include "runtime.h"

#include "block.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <utility>

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

// From one thread's first address to the next one's: what all of them use would otherwise share a few lines
// of the cache.
constexpr size_t kStackShift = 17 * 64;
constexpr std::chrono::seconds kPatience{120};
constexpr std::chrono::microseconds kSlowTurn{100};

std::atomic<Order> the_order{Order::Forward};
std::atomic<uint64_t> the_seed{0};

}  // namespace

namespace {

thread_local char anchor[16];

}  // namespace

char* shared_anchor() {
  return anchor;
}

namespace {

std::atomic<uint64_t> global_progress{0};

// That of the thread that runs now. Looked up once a call: for a thread-local variable of a library that is
// loaded late the loader is asked each time.
Runner& this_runner() {
  return *current->fiber->runner;
}

bool can_go_on(const Runner& self, const Fiber& fiber) {
  return !fiber.done &&
         (fiber.phase == nullptr ? fiber.looked != self.pass : *fiber.phase != fiber.phase_seen);
}

// Gives the turn to the next fiber that can go on: of this part as long as there is one, then of the next
// part; past the last part, to the scheduler.
void give_turn(Runner& self, Context& from) {
  for (;;) {
    for (; self.turn < self.part_end; ++self.turn) {
      Fiber& fiber = self.fibers[self.order[self.turn]];
      if (can_go_on(self, fiber)) {
        self.part_ran = true;
        current = &fiber.thread;
        switch_to(from, fiber.context);
        return;
      }
    }
    if (self.part_ran && self.part_size < self.order.size()) {
      self.turn = self.part_begin;
    } else if (self.part_end < self.order.size()) {
      self.part_begin = self.part_end;
      self.part_end = std::min(self.part_begin + self.part_size, self.order.size());
    } else {
      break;
    }
    self.part_ran = false;
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
  fiber.looked = self.pass;
  self.polled |= fiber.phase == nullptr;
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

bool arrives_late(Runner& self) {
  return the_order == Order::Shuffled ? self.late() % 2 == 0 : the_order == Order::Backward;
}

}  // namespace

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
  self.late.seed(static_cast<unsigned>(the_seed) + self.block.cluster_rank + 1);
  self.part_size = the_order == Order::Shuffled ? threads : kWarpSize;
  // In shuffled order some blocks are slow: it shows what the others should wait for and do not.
  const bool slow = !self.alone && the_order == Order::Shuffled && (the_seed + linear_block) % 8 == 0;
  auto last_change = std::chrono::steady_clock::now();
  uint64_t last_global = global_progress;
  while (self.live > 0) {
    if (slow) {
      std::this_thread::sleep_for(kSlowTurn);
    }
    const uint64_t before = self.progress;
    self.turn = self.part_begin = 0;
    self.part_end = std::min<size_t>(self.part_size, threads);
    self.part_ran = false;
    self.polled = false;
    ++self.pass;
    give_turn(self, self.scheduler);
    if (self.progress != before) {
      global_progress.fetch_add(1, std::memory_order_relaxed);
      if (self.polled && !self.alone) {
        std::this_thread::yield();  // memory is another block's to change
      }
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

void set_order(Order order, uint64_t seed) {
  the_order = order;
  the_seed = seed;
}

void fail(const char* what) {
  std::fprintf(stderr, "device_on_host: %s\n", what);
  std::abort();
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

namespace {

// Where the lanes of `mask`, of the caller's warp, meet.
Meeting& meeting_of(Runner& self, Thread& thread, unsigned mask) {
  if (thread.meeting != nullptr && thread.meeting->mask == mask) {
    return *thread.meeting;
  }
  if ((mask >> thread.lane & 1) == 0) {
    fail("a lane calls a warp function with a mask that leaves it out");
  }
  auto& of_warp = self.meetings[thread.linear / kWarpSize];
  for (const auto& meeting : of_warp) {
    if (meeting->mask == mask) {
      thread.meeting = meeting.get();
      return *meeting;
    }
  }
  of_warp.push_back(std::make_unique_for_overwrite<Meeting>());
  of_warp.back()->mask = mask;
  thread.meeting = of_warp.back().get();
  return *thread.meeting;
}

// Waits for the others. What each brought lies in the slots, and in the votes, of the phase that it found.
void meet(Runner& self, Meeting& meeting, unsigned lane) {
  const uint64_t phase = meeting.phase;
  meeting.arrived |= 1u << lane;
  ++self.progress;
  if (meeting.arrived == meeting.mask) {
    meeting.arrived = 0;
    ++meeting.phase;
    meeting.votes[meeting.phase & 1] = 0;
    return;
  }
  wait_for_phase(self, "the lanes of its warp", meeting.phase, phase);
}

}  // namespace

const char (*exchange(unsigned mask, const void* value, size_t bytes)) [kSlotBytes] {
  Thread& thread = *current;
  const unsigned lane = thread.lane;
  Runner& self = *thread.fiber->runner;
  if (bytes > kSlotBytes) {
    fail("a value too large for an exchange between lanes");
  }
  Meeting& meeting = meeting_of(self, thread, mask);
  const auto& slots = meeting.slots[meeting.phase & 1];
  if (bytes == sizeof(float)) {  // nearly always
    memcpy(meeting.slots[meeting.phase & 1][lane], value, sizeof(float));
  } else if (bytes > 0) {
    memcpy(meeting.slots[meeting.phase & 1][lane], value, bytes);
  }
  meet(self, meeting, lane);
  return slots;
}

unsigned vote(unsigned mask, bool yes) {
  Thread& thread = *current;
  Runner& self = *thread.fiber->runner;
  Meeting& meeting = meeting_of(self, thread, mask);
  const unsigned& votes = meeting.votes[meeting.phase & 1];
  meeting.votes[meeting.phase & 1] |= (yes ? 1u : 0u) << thread.lane;
  meet(self, meeting, thread.lane);
  return votes;
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
  Runner& self = this_runner();
  self.cluster->stores.add(rank, barrier, std::move(arrive), arrives_late(self));
}

void arrive_now(const void* barrier) {
  Runner& self = this_runner();
  if (self.cluster->stores.arrive(barrier)) {
    ++self.progress;
  }
}

}  // namespace device_on_host
