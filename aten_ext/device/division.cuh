// Division by a number that is known at launch, as one multiplication and one correction.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace aten_ext::cuda {

template <typename Index>
struct Quotient {
  Index quotient;
  Index remainder;
};

// For n < 2^b, b the bits of Index, and m = floor(2^b / d): n / d - n * m / 2^b = n * (2^b mod d) / (d *
// 2^b), which is below 1, so the high half of n * m is the quotient or one less. (Granlund & Montgomery 1994,
// "Division by invariant integers using multiplication", without their larger multiplier.)
template <typename Index>
class Divider {
 public:
  Divider() = default;
  explicit Divider(Index divisor)
      : divisor_(divisor),
        // For 1, 2^b itself does not fit; one less keeps the bound.
        multiplier_(divisor == 1 ? ~Index{0}
                                 : static_cast<Index>(~Index{0} / divisor +
                                                      (~Index{0} % divisor == divisor - 1 ? 1 : 0))) {}

  __device__ __forceinline__ Quotient<Index> operator()(Index n) const {
    Index quotient = high_half(n, multiplier_);
    Index remainder = n - quotient * divisor_;
    if (remainder >= divisor_) {
      ++quotient;
      remainder -= divisor_;
    }
    return {quotient, remainder};
  }

  __device__ __forceinline__ Index divisor() const {
    return divisor_;
  }

 private:
  static __device__ __forceinline__ uint32_t high_half(uint32_t a, uint32_t b) {
    return __umulhi(a, b);
  }
  static __device__ __forceinline__ uint64_t high_half(uint64_t a, uint64_t b) {
    return __umul64hi(a, b);
  }

  Index divisor_;
  Index multiplier_;
};

}  // namespace aten_ext::cuda
