// cat and cat.out on CPU: when, and the copy.
//
// The result, in its own order of memory, is `rows` rows of one run of bytes from each input. Shapes: input i
// is [rows, run_i], the result [rows, run_0 + run_1 + ...]; every byte is read and written once, so nothing
// can be won on large inputs. What upstream spends elsewhere is three passes over the list, two of them over
// copies of it, and, wherever its serial kernel does not apply, the setting up of an iterator for each input.
// Here the inputs are looked at once to decide and once to note their addresses.
#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>  // at::internal::GRAIN_SIZE
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cat/overrides.h"

namespace aten_ext {
namespace {

// ---- policy ------------------------------------------------------------------------------------------
//
// Where this is at least 1.3 times as fast as upstream, the call from Python included, which is most of it.

// Upstream has a serial kernel, for results below at::internal::GRAIN_SIZE elements or one thread, if the
// result is one row (dim 0), or floating-point, and no input is skipped. Its cost for an input is little, so
// there must be many, and so small that copying them takes no time.
constexpr int64_t kManyInputs = 64;
constexpr int64_t kMaxBytesSerialOneRow = 512;  // an input, on average
constexpr int64_t kMaxBytesSerial = 128;
// Otherwise it sets up an iterator for each input: with threads because the result is large enough for them
// (though no input is: below, one thread serves both),
constexpr int64_t kMaxBytesThreads = 2048;
// of results that the cache holds; beyond those, smaller inputs, up to where memory is the limit.
constexpr int64_t kMaxBytesThreadsLarge = 512;
constexpr int64_t kLargeResult = int64_t{1} << 20;
constexpr int64_t kMaxBytesOfResult = int64_t{1} << 22;
// and without because of the dtype (token ids!) or a skipped input. Then a few inputs are enough, if the
// result is so small that setting up is what it costs.
constexpr int64_t kMaxBytesIterator = 1024;
constexpr int64_t kMaxBytesOfSmallResult = 32768;

// A result of many rows is filled in columns of at least this many bytes: few enough inputs at a time for a
// cache line and a page of each to stay at hand until the next row needs the rest of them.
constexpr int64_t kMinWidth = 1024;
constexpr int64_t kMaxWidth = 32768;
// Runs of up to so many bytes on average are copied input by input, so many rows at once.
constexpr int64_t kShortRun = 64;
constexpr int64_t kBytesAtOnce = 16384;
constexpr int64_t kFewestRowsAtOnce = 16;

// ---- rule --------------------------------------------------------------------------------------------

// Bytes of an input, on average, up to which ours is faster, for 64 inputs and more.
int64_t max_bytes(int64_t result_bytes, bool threads, bool serial, bool one_row) {
  if (threads) {
    return result_bytes > kLargeResult ? kMaxBytesThreadsLarge : kMaxBytesThreads;
  }
  return !serial ? kMaxBytesIterator : one_row ? kMaxBytesSerialOneRow : kMaxBytesSerial;
}

const char* decline_by_size(const CatInputs& found, size_t listed) {
  const int64_t numel = found.numel();
  if (numel == 0) {
    return "result without elements";
  }
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(found.dtype));
  const bool one_row = found.dim == 0 && found.format == at::MemoryFormat::Contiguous;
  const bool threads = numel >= at::internal::GRAIN_SIZE && at::get_num_threads() > 1;
  const bool serial = !threads && static_cast<int64_t>(listed) == found.count &&
                      (one_row || c10::isFloatingType(found.dtype));
  if (!serial && !threads && bytes <= kMaxBytesOfSmallResult) {
    return nullptr;
  }
  if (found.count < kManyInputs) {
    return "few inputs";
  }
  if (bytes > found.count * max_bytes(bytes, threads, serial, one_row) || bytes > kMaxBytesOfResult) {
    return "large inputs";
  }
  const int64_t largest = numel / found.size_at_dim * found.largest_at_dim;
  return threads && largest >= at::internal::GRAIN_SIZE ? "input that upstream copies with threads" : nullptr;
}

// Looking at every input costs what upstream's own look costs, so a call that is to be declined for its size
// had better be declined before: by what the first input says about the others. Lists whose first input is
// large and whose others are small are lost by it. nullptr: undecided.
const char* decline_by_first(const at::Tensor& first, int64_t listed, int64_t dim) {
  const int64_t numel = first.numel();
  const int64_t bytes = numel * static_cast<int64_t>(first.element_size());
  const bool one_row = dim == 0 || dim == -first.dim();
  if (listed < kManyInputs) {
    // Two inputs are often one long and one short: tokens so far and the next one.
    const int64_t result = listed == 2 ? bytes : bytes * listed;
    return c10::isFloatingType(first.scalar_type()) || one_row || result > kMaxBytesOfSmallResult
               ? "few inputs"
               : nullptr;
  }
  const bool threads = numel * listed >= at::internal::GRAIN_SIZE && at::get_num_threads() > 1;
  const bool serial = !threads && (one_row || c10::isFloatingType(first.scalar_type()));
  const int64_t result = bytes * listed;
  return bytes > max_bytes(result, threads, serial, one_row) || result > kMaxBytesOfResult ? "large inputs"
                                                                                           : nullptr;
}

C10_ALWAYS_INLINE const char* decline_on_cpu(const at::ITensorListRef& tensors, int64_t dim,
                                             CatInputs& found) {
  // The common call, two inputs of a model in inference, is to lose no time here.
  const size_t listed = tensors.size();
  if (listed == 0) {
    return "no tensors";
  }
  if (const at::Tensor& first = tensors.front(); first.defined()) {
    if (const char* reason = decline_by_first(first, static_cast<int64_t>(listed), dim)) {
      return reason;
    }
  }
  found = with_tensors(tensors, [dim](const auto& inputs) { return inspect_cat(inputs, dim); });
  if (found.reason != nullptr) {
    return found.reason;
  }
  if (!found.one_dtype) {
    return "more than one dtype";
  }
  if (!is_copied(found.dtype)) {
    return "dtype that is not copied";
  }
  if (found.valid == nullptr) {
    return "result without elements";
  }
  if (!found.contiguous) {
    return "inputs that are not contiguous in the result's memory format";
  }
  return decline_by_size(found, listed);
}

// ---- kernel ------------------------------------------------------------------------------------------

struct Input {
  const char* data;  // [rows, run]
  int64_t begin;     // of its run in a row of the result
};

struct Cat {
  const Input* inputs;  // [count], and one more whose begin is the end of a row
  int64_t count;
  char* out;  // [rows, row_bytes]
  int64_t row_bytes;
};

// As memcpy, without a call for short runs.
C10_ALWAYS_INLINE void copy_bytes(char* to, const char* from, int64_t n) {
  struct Block {
    char bytes[16];
  };
  const auto move = [to, from](auto block, int64_t at) {
    std::memcpy(&block, from + at, sizeof(block));
    std::memcpy(to + at, &block, sizeof(block));
  };
  if (n > 256) {
    std::memcpy(to, from, n);
  } else if (n >= 16) {
    for (int64_t at = 0; at < n - 16; at += 16) {
      move(Block{}, at);
    }
    move(Block{}, n - 16);  // which may overlap the last one
  } else if (n >= 8) {
    move(uint64_t{}, 0);
    move(uint64_t{}, n - 8);
  } else if (n >= 4) {
    move(uint32_t{}, 0);
    move(uint32_t{}, n - 4);
  } else {
    for (int64_t at = 0; at < n; ++at) {
      to[at] = from[at];
    }
  }
}

// `rows` runs of kBytes, those of an input, to rows of the result. Several are read before the first is
// written: one by one a read waits to learn that it is not of what was written before.
template <int64_t kBytes>
C10_NOINLINE void copy_runs_of(char* to, const char* from, int64_t rows, int64_t row_bytes) {
  constexpr int64_t kAtOnce = 8;
  struct Run {
    char bytes[kBytes];
  };
  int64_t row = 0;
  for (; row + kAtOnce <= rows; row += kAtOnce) {
    Run runs[kAtOnce];
    std::memcpy(runs, from + row * kBytes, sizeof(runs));
#pragma GCC unroll 8
    for (int64_t i = 0; i < kAtOnce; ++i) {
      std::memcpy(to + (row + i) * row_bytes, &runs[i], kBytes);
    }
  }
  for (; row < rows; ++row) {
    std::memcpy(to + row * row_bytes, from + row * kBytes, kBytes);
  }
}

void copy_runs(char* to, const char* from, int64_t run, int64_t rows, int64_t row_bytes) {
  switch (run) {
    case 1:
      return copy_runs_of<1>(to, from, rows, row_bytes);
    case 2:
      return copy_runs_of<2>(to, from, rows, row_bytes);
    case 4:
      return copy_runs_of<4>(to, from, rows, row_bytes);
    case 8:
      return copy_runs_of<8>(to, from, rows, row_bytes);
    case 16:
      return copy_runs_of<16>(to, from, rows, row_bytes);
    default:
      for (int64_t row = 0; row < rows; ++row) {
        copy_bytes(to + row * row_bytes, from + row * run, run);
      }
  }
}

// One input after the other, of a few at a time in so many rows that the cache holds what they write: a
// length that is the same for many rows costs nothing to ask for.
void copy_short_runs(const Cat& cat, int64_t rows) {
  const Input* const end = cat.inputs + cat.count;
  for (const Input* first = cat.inputs; first != end;) {
    const Input* last = first + 1;
    while (last != end && last[1].begin - first->begin <= kMinWidth) {
      ++last;
    }
    const int64_t width = std::max<int64_t>(1, last->begin - first->begin);  // nothing, if those are empty
    const int64_t at_once = std::max(kFewestRowsAtOnce, kBytesAtOnce / width);
    for (int64_t row = 0; row < rows; row += at_once) {
      const int64_t n = std::min(at_once, rows - row);
      for (const Input* input = first; input != last; ++input) {
        const int64_t run = input[1].begin - input->begin;
        copy_runs(cat.out + row * cat.row_bytes + input->begin, input->data + row * run, run, n,
                  cat.row_bytes);
      }
    }
    first = last;
  }
}

// The bytes [begin, end) of every row.
void copy_column(const Cat& cat, int64_t rows, int64_t begin, int64_t end) {
  const Input* const first = std::upper_bound(cat.inputs, cat.inputs + cat.count, begin,
                                              [](int64_t at, const Input& i) { return at < i.begin; }) -
                             1;
  for (int64_t row = 0; row < rows; ++row) {
    char* const out = cat.out + row * cat.row_bytes;
    const Input* input = first;
    for (int64_t at = begin; at < end; ++input) {
      const int64_t run = input[1].begin - input->begin;
      const int64_t n = std::min(input[1].begin, end) - at;
      copy_bytes(out + at, input->data + row * run + (at - input->begin), n);
      at += n;
    }
  }
}

// Fills `out`, which is dense and in the memory format that was found.
void fill(const CatInputs& found, const at::ITensorListRef& tensors, void* out) {
  const int64_t itemsize = static_cast<int64_t>(c10::elementSize(found.dtype));
  const int64_t step = found.stride_at_dim() * itemsize;
  std::vector<Input> inputs;
  inputs.reserve(tensors.size() + 1);
  int64_t begin = 0;
  with_tensors(tensors, [&](const auto& list) {
    for (const at::Tensor& tensor : list) {
      const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
      if (!is_skipped(t)) {
        inputs.push_back({static_cast<const char*>(t.data()), begin});
        begin += t.sizes()[found.dim] * step;
      }
    }
  });
  inputs.push_back({nullptr, begin});
  const Cat cat{inputs.data(), found.count, static_cast<char*>(out), inputs.back().begin};
  if (cat.count == 1) {
    std::memcpy(out, inputs.front().data, static_cast<size_t>(found.numel() * itemsize));
    return;
  }
  const int64_t rows = found.numel() * itemsize / cat.row_bytes;
  const int64_t run = cat.row_bytes / cat.count;  // on average
  if (rows > 1 && run <= kShortRun) {
    copy_short_runs(cat, rows);
    return;
  }
  const int64_t width = rows == 1 ? cat.row_bytes : std::clamp(run, kMinWidth, kMaxWidth);
  for (int64_t begin = 0; begin < cat.row_bytes; begin += width) {
    copy_column(cat, rows, begin, std::min(begin + width, cat.row_bytes));
  }
}

}  // namespace

std::string cpu::CatPlan::describe() const {
  return std::to_string(inputs.count) + " inputs as rows of runs, one thread";
}

Choice<cpu::CatPlan> cpu::choose(const args::cat& a) {
  CatPlan plan;
  const char* const reason = decline_on_cpu(a.tensors, a.dim, plan.inputs);
  return reason != nullptr ? Choice<CatPlan>(reason) : plan;
}

Choice<cpu::CatPlan> cpu::choose(const args::cat_out& a) {
  CatPlan plan;
  const char* reason = decline_on_cpu(a.tensors, a.dim, plan.inputs);
  reason = reason != nullptr ? reason : decline_cat_out(plan.inputs, a.tensors, a.out);
  if (reason == nullptr && !a.out.is_contiguous(plan.inputs.format)) {
    reason = "out in another memory format than the inputs";
  }
  return reason != nullptr ? Choice<CatPlan>(reason) : plan;
}

Ran<at::Tensor> cpu::run(const args::cat& a, const CatPlan& plan) {
  const CatInputs& found = plan.inputs;
  at::Tensor out = at::detail::empty_cpu(found.sizes(), found.dtype, /*pin_memory=*/false, found.format);
  fill(found, a.tensors, out.mutable_data_ptr());
  return out;
}

Ran<at::Tensor&> cpu::run(const args::cat_out& a, const CatPlan& plan) {
  fill(plan.inputs, a.tensors, a.out.mutable_data_ptr());
  return a.out;
}

}  // namespace aten_ext
