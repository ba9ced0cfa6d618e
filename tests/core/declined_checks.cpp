// What makes calls alike to core/declined.h, and what it remembers. Prints a line for each question.
#include "core/declined.h"

#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

namespace {

using Sizes = std::vector<int64_t>;

// A tensor of a GPU that is not there: nobody reads its memory.
at::Tensor tensor(uintptr_t address, const Sizes& sizes, const Sizes& strides,
                  at::ScalarType dtype = at::kFloat, int device = 0) {
  const c10::Device gpu(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  c10::Storage storage(c10::Storage::use_byte_size_t(), size_t{1} << 30,
                       c10::DataPtr(reinterpret_cast<void*>(address), gpu), nullptr, false);
  auto made = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::scalarTypeToTypeMeta(dtype));
  made->set_sizes_and_strides(sizes, strides);
  return at::Tensor(std::move(made));
}

at::Tensor moved(at::Tensor t, int64_t elements) {
  t.unsafeGetTensorImpl()->set_storage_offset(elements);
  return t;
}

std::string print_of(const at::Tensor& t) {
  aten_ext::Fingerprint print;
  return print.add(t) ? std::to_string(print.value()) : "none";
}

}  // namespace

int main() {
  constexpr uintptr_t kBase = uintptr_t{1} << 40;
  const std::string first = print_of(tensor(kBase, {8, 32}, {32, 1}));
  const auto compare = [&first](const char* what, const at::Tensor& t) {
    const std::string print = print_of(t);
    std::cout << what << ": " << (print == first ? "same" : print == "none" ? "none" : "other") << "\n";
  };
  compare("elsewhere", tensor(kBase + 4096, {8, 32}, {32, 1}));
  compare("a line further", tensor(kBase + 128, {8, 32}, {32, 1}));
  compare("half a line further", tensor(kBase + 64, {8, 32}, {32, 1}));
  compare("an element further", moved(tensor(kBase, {8, 32}, {32, 1}), 1));
  compare("32 elements further", moved(tensor(kBase, {8, 32}, {32, 1}), 32));
  compare("more rows", tensor(kBase, {9, 32}, {32, 1}));
  compare("more columns", tensor(kBase, {8, 33}, {32, 1}));
  compare("rows apart", tensor(kBase, {8, 32}, {33, 1}));
  compare("columns apart", tensor(kBase, {8, 32}, {32, 2}));
  compare("transposed", tensor(kBase, {32, 8}, {1, 32}));
  compare("three dimensions", tensor(kBase, {8, 32, 1}, {32, 1, 1}));
  compare("dtype", tensor(kBase, {8, 32}, {32, 1}, at::kInt));
  compare("device", tensor(kBase, {8, 32}, {32, 1}, at::kFloat, 1));
  compare("undefined", at::Tensor());

  const char* const reason = "a reason";
  const char* const later = "a later one";
  aten_ext::Declined declined;
  const auto known = [&declined](uint64_t print) {
    const char* found = declined.reason(print);
    return std::string(found == nullptr ? "unknown" : found);
  };
  constexpr uint64_t kPrint = 5;
  constexpr uint64_t kSamePlace = kPrint + (uint64_t{1} << 40);
  std::cout << "before: " << known(kPrint) << "\n";
  declined.add(kPrint, reason);
  std::cout << "after: " << known(kPrint) << "\n";
  std::cout << "of another print: " << known(kSamePlace) << "\n";
  declined.add(kSamePlace, later);
  std::cout << "the place taken: " << known(kPrint) << ", " << known(kSamePlace) << "\n";
}
