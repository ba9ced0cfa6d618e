// Conversion between dtypes, in the directions that type promotion takes: as c10::convert does it, that is a
// static_cast, by way of float to or from fp16 and bf16, with 0 for an imaginary part that was not there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"

namespace aten_ext::cuda {

// A byte of which any bit makes it true.
struct BoolByte {
  uint8_t byte;
};

template <typename Real>
struct alignas(2 * sizeof(Real)) Complex {
  using real_type = Real;
  Real real;
  Real imag;
};

template <typename T>
constexpr bool is_complex = false;
template <typename Real>
constexpr bool is_complex<Complex<Real>> = true;

template <typename T>
constexpr bool is_floating =
    std::is_floating_point_v<T> || std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

template <typename From, typename To>
constexpr bool promotes_to() {
  if constexpr (std::is_same_v<From, To> || std::is_same_v<From, BoolByte>) {
    return true;
  } else if constexpr (std::is_same_v<To, BoolByte>) {
    return false;
  } else if constexpr (is_complex<To>) {
    using Real = typename To::real_type;
    if constexpr (is_complex<From>) {
      return sizeof(From) < sizeof(To);
    } else {
      return !std::is_same_v<From, double> || std::is_same_v<Real, double>;
    }
  } else if constexpr (is_complex<From>) {
    return false;
  } else if constexpr (is_floating<To>) {
    return !is_floating<From> || sizeof(From) < sizeof(To);
  } else if constexpr (is_floating<From> || sizeof(From) >= sizeof(To)) {
    return false;
  } else {
    return std::is_signed_v<To>;  // uint8 and int8 become int16
  }
}

// Whether promoting `From` with `To` gives `To` (c10::promoteTypes).
template <typename From, typename To>
constexpr bool promotes = promotes_to<From, To>();

// The dtypes that promote to T although their elements are larger: integers. Bit i is dtype number i.
template <typename T>
constexpr uint32_t kLargerDtypes =
    is_floating<T> ? uint32_t{sizeof(int32_t) > sizeof(T)} << static_cast<int>(Dtype::Int32) |
                         uint32_t{sizeof(int64_t) > sizeof(T)} << static_cast<int>(Dtype::Int64)
                   : 0;

template <typename To, typename From>
__device__ __forceinline__ To convert(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (is_complex<To>) {
    using Real = typename To::real_type;
    if constexpr (is_complex<From>) {
      return {static_cast<Real>(x.real), static_cast<Real>(x.imag)};
    } else {
      return {convert<Real>(x), Real(0)};
    }
  } else if constexpr (std::is_same_v<From, BoolByte>) {
    return convert<To>(static_cast<uint8_t>(x.byte != 0));
  } else if constexpr (std::is_same_v<From, __half>) {
    return convert<To>(__half2float(x));
  } else if constexpr (std::is_same_v<From, __nv_bfloat16>) {
    return convert<To>(__bfloat162float(x));
  } else if constexpr (std::is_same_v<To, __half>) {
    return __float2half_rn(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, __nv_bfloat16>) {
    return __float2bfloat16_rn(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

// `count` consecutive elements, in vectors where the address allows it: those are not read again, so that
// they are the first to leave the caches.
template <typename T, int count>
__device__ __forceinline__ void load_elements(T (&to)[count], const T* from) {
  constexpr int kBytes = sizeof(to);
  constexpr int kVector = kBytes < 16 ? kBytes : 16;  // a power of two, as sizes of dtypes and vectors are
  using Word = std::conditional_t<
      kVector == 1, uint8_t,
      std::conditional_t<
          kVector == 2, uint16_t,
          std::conditional_t<kVector == 4, uint32_t, std::conditional_t<kVector == 8, uint2, uint4>>>>;
  if (kVector > static_cast<int>(sizeof(T)) && reinterpret_cast<uintptr_t>(from) % kVector == 0) {
#pragma unroll
    for (int i = 0; i < kBytes / kVector; ++i) {
      const Word word = __ldcs(reinterpret_cast<const Word*>(from) + i);
      memcpy(reinterpret_cast<char*>(to) + i * kVector, &word, kVector);
    }
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      to[i] = from[i];
    }
  }
}

// Calls f(From{}) with the type of a dtype that is known at run time. Dtypes that do not promote to T do not
// occur.
template <typename T, typename F>
__device__ __forceinline__ void with_dtype_to(Dtype dtype, const F& f) {
  const auto as = [&](auto tag) {
    if constexpr (promotes<decltype(tag), T>) {
      f(tag);
    }
  };
  switch (dtype) {
    case Dtype::Bool:
      return as(BoolByte{});
    case Dtype::UInt8:
      return as(uint8_t{});
    case Dtype::Int8:
      return as(int8_t{});
    case Dtype::Int16:
      return as(int16_t{});
    case Dtype::Int32:
      return as(int32_t{});
    case Dtype::Int64:
      return as(int64_t{});
    case Dtype::Half:
      return as(__half{});
    case Dtype::BFloat16:
      return as(__nv_bfloat16{});
    case Dtype::Float:
      return as(float{});
    case Dtype::Double:
      return as(double{});
    case Dtype::ComplexFloat:
      return as(Complex<float>{});
    case Dtype::ComplexDouble:
      return as(Complex<double>{});
    default:
      return;
  }
}

// `count` consecutive elements each from `places` places in an array of a dtype that is known at run time,
// converted; all loads before the first conversion.
template <typename T, int places, int count>
__device__ __forceinline__ void load_as(T (&to)[places][count], const void* const (&data)[places],
                                        const int64_t (&element)[places], Dtype dtype) {
  with_dtype_to<T>(dtype, [&](auto tag) {
    using From = decltype(tag);
    From from[places][count];
#pragma unroll
    for (int p = 0; p < places; ++p) {
      load_elements(from[p], static_cast<const From*>(data[p]) + element[p]);
    }
#pragma unroll
    for (int p = 0; p < places; ++p) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        to[p][i] = convert<T>(from[p][i]);
      }
    }
  });
}

// One element of such an array.
template <typename T>
__device__ __forceinline__ T load_one_as(const void* data, int64_t element, Dtype dtype) {
  T x[1][1];
  load_as(x, {data}, {element}, dtype);
  return x[0][0];
}

// Calls f(T{}, std::bool_constant<converts>{}) with the type of the result's elements: one of the same size
// where they are only copied. Host code.
template <typename F, typename Result>
Result with_element_type(Dtype dtype, int element_size, bool converts, const F& f, Result invalid) {
  if (!converts) {
    switch (element_size) {
      case 1:
        return f(uint8_t{}, std::false_type{});
      case 2:
        return f(uint16_t{}, std::false_type{});
      case 4:
        return f(uint32_t{}, std::false_type{});
      case 8:
        return f(uint2{}, std::false_type{});
      case 16:
        return f(uint4{}, std::false_type{});
      default:
        return invalid;
    }
  }
  switch (dtype) {
    case Dtype::UInt8:
      return f(uint8_t{}, std::true_type{});
    case Dtype::Int8:
      return f(int8_t{}, std::true_type{});
    case Dtype::Int16:
      return f(int16_t{}, std::true_type{});
    case Dtype::Int32:
      return f(int32_t{}, std::true_type{});
    case Dtype::Int64:
      return f(int64_t{}, std::true_type{});
    case Dtype::Half:
      return f(__half{}, std::true_type{});
    case Dtype::BFloat16:
      return f(__nv_bfloat16{}, std::true_type{});
    case Dtype::Float:
      return f(float{}, std::true_type{});
    case Dtype::Double:
      return f(double{}, std::true_type{});
    case Dtype::ComplexFloat:
      return f(Complex<float>{}, std::true_type{});
    case Dtype::ComplexDouble:
      return f(Complex<double>{}, std::true_type{});
    default:  // nothing but bool promotes to bool
      return invalid;
  }
}

}  // namespace aten_ext::cuda
