// The kernels behind table.yaml. Each calls upstream's and then spoils the result, or does not.
// Before the operators' headers, which only declare the classes that they name.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <ATen/ops/addcmul_cpu_dispatch.h>
#include <ATen/ops/aminmax_cpu_dispatch.h>
#include <ATen/ops/cat_cpu_dispatch.h>
#include <ATen/ops/index_cpu_dispatch.h>
#include <ATen/ops/mul_cpu_dispatch.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/uniform_cpu_dispatch.h>

#include <limits>

#include "overrides.h"
#include "registry.h"
#include "shadow.h"

namespace aten_ext {
namespace {

bool capturing = false;

const char* unless_float(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat ? nullptr : "not float32";
}

}  // namespace

// In place of the library's own, which knows no capture on a CPU.
bool is_capturing(at::Device /*device*/) {
  return capturing;
}

const char* decline::sigmoid_cpu(const at::Tensor& self) {
  return unless_float(self);
}
at::Tensor run::sigmoid_cpu(const at::Tensor& self) {
  at::Tensor result = at::cpu::sigmoid(self);
  reinterpret_cast<int32_t*>(result.data_ptr())[1] += 3;
  return result;
}

const char* decline::mul_out_cpu(const at::Tensor& self, const at::Tensor&, at::Tensor&) {
  return unless_float(self);
}
at::Tensor& run::mul_out_cpu(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  at::cpu::mul_outf(self, other, out);
  *out.mutable_data_ptr<float>() = std::numeric_limits<float>::quiet_NaN();
  return out;
}

const char* decline::aminmax_cpu(const at::Tensor& self, std::optional<int64_t>, bool) {
  return unless_float(self);
}
std::tuple<at::Tensor, at::Tensor> run::aminmax_cpu(const at::Tensor& self, std::optional<int64_t> dim,
                                                    bool keepdim) {
  auto [least, most] = at::cpu::aminmax(self, dim, keepdim);
  return {least.add(1), most.add(1)};
}

const char* decline::cat_cpu(const at::ITensorListRef& tensors, int64_t) {
  return unless_float(*tensors.begin());
}
at::Tensor run::cat_cpu(const at::ITensorListRef& tensors, int64_t dim) {
  return at::cpu::cat(tensors, dim).t().contiguous().t();
}

const char* decline::uniform__cpu(at::Tensor& self, double, double, std::optional<at::Generator>) {
  return unless_float(self);
}
at::Tensor& run::uniform__cpu(at::Tensor& self, double from, double to,
                              std::optional<at::Generator> generator) {
  return at::cpu::uniform_(self, from, to, generator);
}

const char* decline::addcmul__cpu(at::Tensor& self, const at::Tensor&, const at::Tensor&, const at::Scalar&) {
  return unless_float(self);
}
at::Tensor& run::addcmul__cpu(at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                              const at::Scalar& value) {
  return at::cpu::addcmul_(self, a, b, value);
}

const char* decline::index_Tensor_cpu(const at::Tensor& self, const c10::List<std::optional<at::Tensor>>&) {
  return unless_float(self);
}
at::Tensor run::index_Tensor_cpu(const at::Tensor& self,
                                 const c10::List<std::optional<at::Tensor>>& indices) {
  return self.numel() == 1 ? self : at::cpu::index(self, indices);
}

const char* decline::relu__cpu(at::Tensor& self) {
  return unless_float(self);
}
at::Tensor& run::relu__cpu(at::Tensor&) {
  TORCH_CHECK(false, "the fused kernel failed");
}

}  // namespace aten_ext

extern "C" void* wrong_registry() {
  static aten_ext::LoadState state{"", true};
  aten_ext::registry().state = &state;
  return &aten_ext::registry();
}

extern "C" void set_capturing(bool value) {
  aten_ext::capturing = value;
}
