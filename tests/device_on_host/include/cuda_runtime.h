// What nvcc gives to device code without an include: built-in variables, barriers, warp functions, atomics,
// intrinsics.
#pragma once

#include <cuda_runtime_api.h>

#include <math.h>  // the overloads for float, outside of std
#include <algorithm>
#include <cassert>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __constant__
#define __constant__
#undef __managed__
#define __managed__

// Objects, not macros: a launch configuration has members of the same names.
#define DEVICE_ON_HOST_VARIABLE(name, value)     \
  struct name##_type {                           \
    struct X {                                   \
      operator unsigned() const {                \
        return device_on_host::current->value.x; \
      }                                          \
    } x;                                         \
    struct Y {                                   \
      operator unsigned() const {                \
        return device_on_host::current->value.y; \
      }                                          \
    } y;                                         \
    struct Z {                                   \
      operator unsigned() const {                \
        return device_on_host::current->value.z; \
      }                                          \
    } z;                                         \
  };                                             \
  inline constexpr name##_type name {}
DEVICE_ON_HOST_VARIABLE(threadIdx, index);
DEVICE_ON_HOST_VARIABLE(blockIdx, block->index);
DEVICE_ON_HOST_VARIABLE(blockDim, block->size);
DEVICE_ON_HOST_VARIABLE(gridDim, block->grid);
#undef DEVICE_ON_HOST_VARIABLE
constexpr int warpSize = 32;

using std::max;
using std::min;

// ---- barriers ----------------------------------------------------------------------------------------

inline void __syncthreads() {
  device_on_host::sync_block();
}
inline void __syncwarp(unsigned mask = 0xffffffff) {
  device_on_host::exchange(mask, nullptr, 0);
}
inline void __threadfence() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_system() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __nanosleep(unsigned /*ns*/) {
  device_on_host::yield();
}
[[noreturn]] inline void __trap() {
  device_on_host::fail("__trap");
}
inline long long clock64() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// ---- warps -------------------------------------------------------------------------------------------

namespace device_on_host {

template <typename T>
T from_lane(unsigned mask, T value, unsigned lane) {
  T result;
  memcpy(&result, exchange(mask, &value, sizeof(T))[lane], sizeof(T));
  return result;
}

// The lane to read from, or one's own where that is outside the segment of `width` lanes.
inline unsigned lane_or_own(int target, int first, int end) {
  return target >= first && target < end ? static_cast<unsigned>(target) : current->lane;
}

}  // namespace device_on_host

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned first = device_on_host::current->lane / width * width;
  return device_on_host::from_lane(mask, value, first + static_cast<unsigned>(source) % width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  const int own = static_cast<int>(device_on_host::current->lane);
  const int first = own / width * width;
  const int target = own ^ lanes;
  return device_on_host::from_lane(mask, value, target < first + width ? static_cast<unsigned>(target) : own);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int own = static_cast<int>(device_on_host::current->lane);
  const int first = own / width * width;
  return device_on_host::from_lane(
      mask, value, device_on_host::lane_or_own(own + static_cast<int>(delta), first, first + width));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int own = static_cast<int>(device_on_host::current->lane);
  const int first = own / width * width;
  return device_on_host::from_lane(
      mask, value, device_on_host::lane_or_own(own - static_cast<int>(delta), first, first + width));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return device_on_host::vote(mask, predicate != 0);
}
inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == mask;
}

// ---- atomics -----------------------------------------------------------------------------------------

namespace device_on_host {
template <typename T, typename Update>
T atomic_update(T* pointer, Update update) {
  T before;
  __atomic_load(pointer, &before, __ATOMIC_SEQ_CST);
  T after = update(before);
  while (!__atomic_compare_exchange(pointer, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    after = update(before);
  }
  return before;
}
}  // namespace device_on_host

template <typename T>
T atomicAdd(T* pointer, std::common_type_t<T> value) {
  return device_on_host::atomic_update(pointer, [value](T x) { return static_cast<T>(x + value); });
}
template <typename T>
T atomicSub(T* pointer, std::common_type_t<T> value) {
  return device_on_host::atomic_update(pointer, [value](T x) { return static_cast<T>(x - value); });
}
template <typename T>
T atomicMax(T* pointer, std::common_type_t<T> value) {
  return device_on_host::atomic_update(pointer, [value](T x) { return x < value ? value : x; });
}
template <typename T>
T atomicMin(T* pointer, std::common_type_t<T> value) {
  return device_on_host::atomic_update(pointer, [value](T x) { return value < x ? value : x; });
}
template <typename T>
T atomicOr(T* pointer, std::common_type_t<T> value) {
  return device_on_host::atomic_update(pointer, [value](T x) { return x | value; });
}
template <typename T>
T atomicExch(T* pointer, std::common_type_t<T> value) {
  return device_on_host::atomic_update(pointer, [value](T) { return value; });
}
template <typename T>
T atomicCAS(T* pointer, std::common_type_t<T> compare, std::common_type_t<T> value) {
  return device_on_host::atomic_update(pointer, [compare, value](T x) { return x == compare ? value : x; });
}

// ---- intrinsics --------------------------------------------------------------------------------------

template <typename T>
T __ldg(const T* pointer) {
  return *pointer;
}
template <typename T>
T __ldcs(const T* pointer) {
  return *pointer;
}
template <typename T>
T __ldcg(const T* pointer) {
  return *pointer;
}
template <typename T>
T __ldlu(const T* pointer) {
  return *pointer;
}
template <typename T>
T __ldcv(const T* pointer) {
  return *static_cast<const volatile T*>(pointer);
}
template <typename T>
void __stcs(T* pointer, std::common_type_t<T> value) {
  *pointer = value;
}
template <typename T>
void __stwb(T* pointer, std::common_type_t<T> value) {
  *pointer = value;
}
template <typename T>
void __stcg(T* pointer, std::common_type_t<T> value) {
  *pointer = value;
}
template <typename T>
void __stwt(T* pointer, std::common_type_t<T> value) {
  *pointer = value;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned choice = selector >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (choice & 7)) & 0xff);
    if (choice & 8) {
      byte = byte & 0x80 ? 0xff : 0;
    }
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> std::min(shift, 32u));
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(uint64_t{x} * y >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline float __fmaf_rn(float x, float y, float z) {
  return std::fmaf(x, y, z);
}
inline float __fdividef(float x, float y) {
  return x / y;
}
inline float __fdiv_rn(float x, float y) {
  return x / y;
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __fmul_rn(float x, float y) {
  return x * y;
}
inline float __fadd_rn(float x, float y) {
  return x + y;
}
inline float __expf(float x) {
  return std::exp(x);
}
inline float rsqrtf(float x) {
  return 1.0f / std::sqrt(x);
}
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline int __float_as_int(float x) {
  return static_cast<int>(__float_as_uint(x));
}
inline float __uint_as_float(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}
inline float __int_as_float(int bits) {
  return __uint_as_float(static_cast<unsigned>(bits));
}
inline void __builtin_assume(bool /*condition*/) {}
template <typename T>
size_t __cvta_generic_to_shared(const T* pointer) {
  return reinterpret_cast<size_t>(pointer);
}
