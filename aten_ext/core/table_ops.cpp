// Measured tables for Python: torch.ops.aten_ext.{table_families, table_shape, add_table,
// remove_table, table_source, table_gpu}.
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/library.h>

#include <tuple>

#include "core/gpu.h"
#include "core/load_guard.h"
#include "core/tables.h"

namespace aten_ext {
namespace {

// Those of this build.
std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const TableShape& shape : table_shapes()) {
    if (!shape.name.empty()) {
      names.push_back(shape.name);
    }
  }
  return names;
}

TableFamily family_of(c10::string_view name) {
  for (size_t i = 0; i < kTableFamilies; ++i) {
    if (!name.empty() && table_shapes()[i].name == name) {
      return static_cast<TableFamily>(i);
    }
  }
  TORCH_CHECK_VALUE(false, "[tables] expected one of the families ", families(), ", got ", name);
}

std::vector<int64_t> table_shape(c10::string_view family) {
  return table_shapes()[static_cast<size_t>(family_of(family))].sizes;
}

void add(c10::string_view family, c10::string_view gpu, int64_t capability, int64_t multiprocessors,
         bool of_user, const at::Tensor& percent) {
  const std::vector<int64_t> shape = table_shape(family);
  TORCH_CHECK_VALUE(
      percent.device().is_cpu() && percent.scalar_type() == at::kByte && percent.sizes() == shape,
      "[tables] expected a table of uint8 in the shape ", at::IntArrayRef(shape), ", got ",
      percent.scalar_type(), " in the shape ", percent.sizes());
  const at::Tensor dense = percent.contiguous();
  add_table(family_of(family), std::string(gpu), static_cast<int>(capability),
            static_cast<int>(multiprocessors), of_user, dense.const_data_ptr<uint8_t>(),
            static_cast<size_t>(dense.numel()));
}

void remove(c10::string_view family, c10::string_view gpu, int64_t multiprocessors) {
  remove_table(family_of(family), std::string(gpu), static_cast<int>(multiprocessors));
}

std::string source(c10::string_view family, at::Device device) {
  return evidence(family_of(family), device).source;
}

// Its name, compute capability times 10, and multiprocessors.
std::tuple<std::string, int64_t, int64_t> gpu(at::Device device) {
  const Gpu& found = gpu_of(device);
  return {found.name, found.capability, found.multiprocessors};
}

}  // namespace
}  // namespace aten_ext

TORCH_LIBRARY_FRAGMENT(aten_ext, m) {
  if (aten_ext::may_define()) {
    m.def("table_families() -> str[]", aten_ext::families);
    m.def("table_shape(str family) -> int[]", aten_ext::table_shape);
    m.def(
        "add_table(str family, str gpu, int capability, int multiprocessors, bool of_user, Tensor percent) "
        "-> "
        "()",
        aten_ext::add);
    m.def("remove_table(str family, str gpu, int multiprocessors) -> ()", aten_ext::remove);
    m.def("table_source(str family, Device device) -> str", aten_ext::source);
    m.def("table_gpu(Device device) -> (str, int, int)", aten_ext::gpu);
  }
}
