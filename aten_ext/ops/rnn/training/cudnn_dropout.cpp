// cuDNN's functions are taken from the library that torch has loaded. Nothing here is linked against cuDNN or
// sees its headers: a build knows no version of it, and a torch without cuDNN loads this library all the
// same.
#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/training/cudnn_dropout.h"

#include <dlfcn.h>

#include <type_traits>

#include "core/math.h"
#include "ops/rnn/cudnn_handle.h"

namespace aten_ext::cuda {
namespace {

// Of cudnn.h.
constexpr int kSuccess = 0;    // CUDNN_STATUS_SUCCESS
constexpr int kRowMajor = 0;   // CUDNN_TENSOR_NCHW
constexpr int kHalf = 2;       // CUDNN_DATA_HALF
constexpr int kPositive = 28;  // a byte twice: fp16 0.004, which no scale makes infinite

constexpr int64_t kAlignment = 256;

void* loaded_cudnn() {
  for (const char* name : {"libcudnn.so.9", "libcudnn.so.8"}) {
    if (void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
      return library;
    }
  }
  return RTLD_DEFAULT;  // part of torch
}

struct Functions {
  int (*create_tensor)(void** descriptor);
  int (*set_tensor)(void* descriptor, int format, int dtype, int n, int c, int h, int w);
  int (*destroy_tensor)(void* descriptor);
  int (*create_dropout)(void** descriptor);
  int (*restore_dropout)(void* descriptor, cudnnContext* handle, float p, void* states, size_t bytes,
                         unsigned long long seed);
  int (*destroy_dropout)(void* descriptor);
  int (*reserve_bytes)(void* tensor, size_t* bytes);
  int (*forward)(cudnnContext* handle, void* dropout, void* from_tensor, const void* from, void* to_tensor,
                 void* to, void* reserve, size_t reserve_bytes);
  bool complete;

  Functions() {
    void* const library = loaded_cudnn();
    complete = at::native::getCudnnHandle != nullptr;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      complete = complete && function != nullptr;
    };
    find(create_tensor, "cudnnCreateTensorDescriptor");
    find(set_tensor, "cudnnSetTensor4dDescriptor");
    find(destroy_tensor, "cudnnDestroyTensorDescriptor");
    find(create_dropout, "cudnnCreateDropoutDescriptor");
    find(restore_dropout, "cudnnRestoreDropoutDescriptor");
    find(destroy_dropout, "cudnnDestroyDropoutDescriptor");
    find(reserve_bytes, "cudnnDropoutGetReserveSpaceSize");
    find(forward, "cudnnDropoutForward");
  }
};

// When torch has loaded cuDNN: with its first handle, or with itself.
const Functions& cudnn() {
  static const Functions functions;
  return functions;
}

}  // namespace

CudnnDropout::CudnnDropout(double p, const at::Tensor& states, int64_t rows, int64_t columns)
    : count_(rows * columns) {
  const Functions& f = cudnn();
  if (!f.complete) {
    return;
  }
  cudnnContext* const handle = at::native::getCudnnHandle();
  if (f.create_tensor(&numbers_) == kSuccess &&
      f.set_tensor(numbers_, kRowMajor, kHalf, static_cast<int>(rows), static_cast<int>(columns), 1, 1) ==
          kSuccess &&
      f.reserve_bytes(numbers_, &reserve_bytes_) == kSuccess && f.create_dropout(&dropout_) == kSuccess &&
      f.restore_dropout(dropout_, handle, static_cast<float>(p), states.mutable_data_ptr(),
                        static_cast<size_t>(states.numel()), 0) == kSuccess) {
    handle_ = handle;
  }
}

CudnnDropout::~CudnnDropout() {
  if (numbers_ != nullptr) {
    (void)cudnn().destroy_tensor(numbers_);
  }
  if (dropout_ != nullptr) {
    (void)cudnn().destroy_dropout(dropout_);
  }
}

int64_t CudnnDropout::bytes() const {
  return round_up(count_ * int64_t{2}, kAlignment) + static_cast<int64_t>(reserve_bytes_);
}

bool CudnnDropout::draw(void* to, cudaStream_t stream) {
  const int64_t numbers = round_up(count_ * int64_t{2}, kAlignment);
  if (cudaMemsetAsync(to, kPositive, static_cast<size_t>(numbers), stream) != cudaSuccess ||
      cudnn().forward(handle_, dropout_, numbers_, to, numbers_, to, static_cast<char*>(to) + numbers,
                      reserve_bytes_) != kSuccess) {
    return false;
  }
  has_drawn_ = true;
  return true;
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
