// Twin of aten_ext/device/mbarrier.cuh. A store arrives at once, or no earlier than its barrier is
// waited for (see device_on_host::Order); an arrival too many is an error.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <mutex>

namespace aten_ext::cuda {
namespace mbarriers {

struct State {
  int32_t bytes;  // that are still expected; negative: came before they were
  uint8_t threads;
  uint8_t pending;
  uint16_t phase;
};
static_assert(sizeof(State) == sizeof(uint64_t));

inline std::mutex& mutex() {
  static std::mutex one;
  return one;
}
// Under the mutex.
inline void end_phase_if_complete(State& state) {
  if (state.pending == 0 && state.bytes == 0) {
    state.pending = state.threads;
    ++state.phase;
  }
}

}  // namespace mbarriers

inline void make_mbarrier(uint64_t* mbarrier, uint32_t threads) {
  device_on_host::require_code(90);
  const mbarriers::State state{0, static_cast<uint8_t>(threads), static_cast<uint8_t>(threads), 0};
  memcpy(mbarrier, &state, sizeof(state));
}
inline void fence_mbarriers() {}

inline void arrive_and_expect(uint64_t* mbarrier, uint32_t bytes) {
  device_on_host::require_code(90);
  const std::lock_guard<std::mutex> guard(mbarriers::mutex());
  auto& state = *reinterpret_cast<mbarriers::State*>(mbarrier);
  if (state.pending == 0) {
    device_on_host::fail("one arrival too many at an mbarrier");
  }
  --state.pending;
  state.bytes += static_cast<int32_t>(bytes);
  mbarriers::end_phase_if_complete(state);
}

inline void wait_for_phase(uint64_t* mbarrier, uint32_t parity) {
  device_on_host::require_code(90);
  for (;;) {
    {
      const std::lock_guard<std::mutex> guard(mbarriers::mutex());
      if ((reinterpret_cast<const mbarriers::State*>(mbarrier)->phase & 1) != parity) {
        return;
      }
    }
    device_on_host::arrive_now(mbarrier);
    device_on_host::yield();
  }
}

struct PeerShared {
  uint32_t rank;
};
inline PeerShared peer_shared(void*, uint32_t rank) {
  device_on_host::require_code(90);
  return {rank};
}

template <typename Value>
void store_async(PeerShared peer, void* local, Value value, uint64_t* mbarrier) {
  static_assert(sizeof(Value) == 4 || sizeof(Value) == 8 || sizeof(Value) == 16);
  if (reinterpret_cast<uintptr_t>(local) % sizeof(Value) != 0) {
    device_on_host::fail("st.async to an address that is no multiple of its size");
  }
  void* const to = device_on_host::map_shared(local, peer.rank);
  auto& state = *static_cast<mbarriers::State*>(device_on_host::map_shared(mbarrier, peer.rank));
  device_on_host::store_later(peer.rank, &state, [to, &state, value] {
    const std::lock_guard<std::mutex> guard(mbarriers::mutex());
    memcpy(to, &value, sizeof(value));
    state.bytes -= static_cast<int32_t>(sizeof(value));
    mbarriers::end_phase_if_complete(state);
  });
}

}  // namespace aten_ext::cuda
