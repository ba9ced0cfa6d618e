// How the blocks of a cluster hand products to each other between two steps of the backward.
//
// dh of a unit is a sum over the gates of all units. Each block multiplies the gradients of its own units'
// gates by their rows of W_hh, which gives its part of the sums of all units, and sends each unit's part to
// the block that has the unit. That is H values a row, whatever the number of gates; gates' gradients handed
// to everybody would be kGates * H, and the sums over the lanes of a warp would come on top.
//
// Parts are asynchronous stores that count their bytes on the receiver's barrier, one's own among them. Two
// buffers are enough: a block sends the parts of step t + 2 when it has all of step t + 1, so also those that
// the receiver sent after all its threads had read step t.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cluster.cuh"
#include "device/mbarrier.cuh"

namespace aten_ext::cuda {

template <int kBlocks>
class ScatterExchange {
 public:
  static constexpr bool kInCluster = kBlocks > 1;
  static constexpr int kBarriers = 2;  // of 8 bytes of shared memory

  // `bytes`: that a block receives in a step. All threads of the block.
  __device__ __forceinline__ ScatterExchange(uint64_t* arrived, uint32_t bytes, int thread)
      : arrived_(arrived), bytes_(bytes), thread_(thread) {
    if constexpr (kInCluster) {
      if (thread == 0) {
        for (int i = 0; i < kBarriers; ++i) {
          make_mbarrier(arrived_ + i, 1);
        }
        fence_mbarriers();
        for (int i = 0; i < kBarriers; ++i) {
          arrive_and_expect(arrived_ + i, bytes_);
        }
      }
    }
  }

  // No block may write into another before that one has made its barriers.
  __device__ __forceinline__ void start() const {
    if constexpr (kInCluster) {
      cluster_arrive();
      cluster_wait();
    } else {
      __syncthreads();
    }
  }

  // Until all parts of the step's sums are here. The first step has none. Thread 0 is among those that wait.
  __device__ __forceinline__ void wait(int step) const {
    if constexpr (kInCluster) {
      if (step > 0) {
        uint64_t* const mbarrier = arrived_ + step % 2;
        wait_for_phase(mbarrier, (step - 1) / 2 % 2);
        if (thread_ == 0) {  // the next phase: of step + 2
          arrive_and_expect(mbarrier, bytes_);
        }
      }
    }
  }

  // Of the block of that rank.
  __device__ __forceinline__ PeerShared peer(int rank) const {
    if constexpr (kInCluster) {
      return peer_shared(arrived_, static_cast<uint32_t>(rank));
    } else {
      return {};
    }
  }

  // A part of a step's sums, to where `to`, in this block, lies in the peer. Value: float or float2.
  template <typename Value>
  __device__ __forceinline__ void send(PeerShared peer, float* to, const Value& value, int step) const {
    if constexpr (!kInCluster) {
      *reinterpret_cast<Value*>(to) = value;
    } else if constexpr (sizeof(Value) == sizeof(float)) {
      store_async(peer, to, __float_as_uint(value), arrived_ + step % 2);
    } else {
      store_async(peer, to, uint2{__float_as_uint(value.x), __float_as_uint(value.y)}, arrived_ + step % 2);
    }
  }

  // Once all of this block's parts of a step are sent: within a block nothing else says that they are there.
  __device__ __forceinline__ void sent() const {
    if constexpr (!kInCluster) {
      __syncthreads();
    }
  }

 private:
  uint64_t* arrived_;
  uint32_t bytes_;
  int thread_;
};

}  // namespace aten_ext::cuda
