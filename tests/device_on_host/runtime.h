// A CUDA device made of one CPU: enough of it to run the kernels below aten_ext/, compiled as C++, and
// see whether what they compute is right. Every thread of a block is a fiber; blocks run one after the other,
// or, where they may wait for one another (clusters, cooperative launches), each on a system thread of its
// own.
//
// What it checks beyond the result: threads that wait for a barrier that not all reach (an error, not a
// hang), shared memory that is read before it is written (it starts as NaN), code that leans on an order of
// threads (they run forward, backward or shuffled, see `Order`) or reads what has not arrived, addresses
// that are no multiple of what is read or written there, limits of a launch (sizes of grids, blocks,
// clusters, shared memory and arguments). What it cannot show: time, weak memory ordering, and the last bit
// of functions such as pow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <driver_types.h>
#include <vector_types.h>

namespace device_on_host {

constexpr unsigned kWarpSize = 32;
constexpr size_t kSlotBytes = 64;

struct Block;
struct Fiber;

// cp.async of one thread: copies that have not arrived, and how many of them each group has, oldest first.
// What has arrived stays in front for a while: a thread makes copies all the time, and allocates seldom.
struct AsyncCopies {
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  std::vector<Copy> copies;
  std::vector<size_t> ends;  // of the groups that are closed
  size_t arrived_copies = 0;
  size_t arrived_groups = 0;
};

struct Meeting;

// What a thread of a kernel knows of itself.
struct Thread {
  uint3 index;
  unsigned linear;  // in its block
  unsigned lane;
  Block* block;
  Fiber* fiber;
  std::unique_ptr<AsyncCopies> copies;  // of those that make any
  Meeting* meeting = nullptr;           // where the lanes of its warp met last, with this one among them
};

struct Block {
  uint3 index;
  dim3 size;
  dim3 grid;
  unsigned cluster_rank;
  unsigned cluster_size;
  char* dynamic_shared;
  size_t dynamic_shared_bytes;
};

// The thread that runs now on this system thread. A fiber never moves to another one.
extern constinit thread_local Thread* current;

// In which order the threads of a block get their turns, and when asynchronous stores to other blocks arrive:
// at once, as late as can be, or now one and now the other.
enum class Order { Forward, Backward, Shuffled };
// From the next launch on.
void set_order(Order order, uint64_t seed);

// Waiting. All of these let the other threads run.
void yield();                            // a turn of a loop that spins on memory
void sync_block();                       // __syncthreads
void sync_named(int id, int threads);    // bar.sync id, threads
void arrive_named(int id, int threads);  // bar.arrive id, threads
void cluster_arrive();
void cluster_wait();

// Every lane of `mask` brings `bytes` (at most kSlotBytes) and sees those of all: slot i is lane i's. Valid
// until the lane's next exchange but one.
const char (*exchange(unsigned mask, const void* value, size_t bytes))[kSlotBytes];

// Every lane of `mask` says yes or no: bit i is lane i's answer.
unsigned vote(unsigned mask, bool yes);

// Where `local`, in the shared memory of the caller's block, lies in the block of that rank in its cluster.
void* map_shared(void* local, unsigned rank);

// A store to the shared memory of the block of that rank in the caller's cluster, which `arrive` makes and
// which counts on `barrier` there: made at once, or when somebody waits for it. To a block that has ended it
// is an error, as is one that a block does not wait for before it ends.
void store_later(unsigned rank, const void* barrier, std::function<void()> arrive);
// Makes the stores that count on `barrier`, of the caller's block.
void arrive_now(const void* barrier);

[[noreturn]] void fail(const char* what);

struct LaunchedKernel {
  const void* function;
  std::function<void()> call;  // once for each thread
  const char* arguments;       // the types of its parameters, as the compiler spells them
};
// What the device says of itself, and what it holds launches and kernels to. A test may change it. By default
// an H200.
struct Device {
  // What cudaGetDevice says. One that a test describes has a number beyond those for which the host remembers
  // what was set, so that nothing is remembered of the one before.
  int number = 0;
  int compute_major = 9;
  int compute_minor = 0;
  int code = 90;  // the version of the code that runs: PTX may be older than the device
  int multiprocessors = 132;
  int shared_bytes_per_block = 227 << 10;  // at most, if a kernel asks for it
  int shared_bytes_per_multiprocessor = 228 << 10;
  int clusters[5] = {132, 66, 30, 15, 7};  // of 1, 2, 4, 8 and 16 blocks, resident at once
  int blocks_per_multiprocessor = 1;       // the answer of the occupancy query
  int driver = 13000;
  // Launches that are refused, as a green context refuses them: so many, after so many that are not.
  int refused_after = 0;
  int refused = 0;
  int blas_handles = 0;            // that were asked for
  unsigned long long capture = 0;  // the number of the capture that is under way; 0: none
  uintptr_t captured = 0;          // its launches, of which the last is the graph's last node
};
Device& device();

// Called by the twin of an instruction that code for an older compute capability than `version` does not
// have: there the real one is a trap, which takes the CUDA context with it.
void require_code(int version);

void set_function_limit(const void* function, int attribute, int value);
cudaError_t launch(const cudaLaunchConfig_t& config, const LaunchedKernel& kernel);

// What `arguments` says of each launch that was taken since the last call of this, up to a few thousand.
std::vector<std::string> take_launched();

// Whether each of them may overlap with the launch before it.
std::vector<bool> take_overlaps();

// The threads of each of them, of all blocks.
std::vector<int64_t> take_threads();

}  // namespace device_on_host
