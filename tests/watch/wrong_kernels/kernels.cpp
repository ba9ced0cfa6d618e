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

#include "core/registry.h"
#include "ops/wrong/overrides.h"
#include "watch/shadow.h"

namespace aten_ext {
namespace {

bool capturing = false;

}  // namespace

// In place of the library's own, which knows no capture on a CPU.
bool is_capturing(at::Device /*device*/) {
  return capturing;
}

namespace cpu {
namespace {

// Fused for float32.
Choice<WrongPlan> choose_float(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat ? Choice<WrongPlan>(WrongPlan{}) : "not float32";
}

}  // namespace

Choice<WrongPlan> choose(const args::sigmoid& a) {
  return choose_float(a.self);
}
Ran<at::Tensor> run(const args::sigmoid& a, const WrongPlan& /*plan*/) {
  at::Tensor result = at::cpu::sigmoid(a.self);
  reinterpret_cast<int32_t*>(result.data_ptr())[1] += 3;
  return result;
}

Choice<WrongPlan> choose(const args::mul_out& a) {
  return choose_float(a.self);
}
Ran<at::Tensor&> run(const args::mul_out& a, const WrongPlan& /*plan*/) {
  at::cpu::mul_outf(a.self, a.other, a.out);
  *a.out.mutable_data_ptr<float>() = std::numeric_limits<float>::quiet_NaN();
  return a.out;
}

Choice<WrongPlan> choose(const args::aminmax& a) {
  return choose_float(a.self);
}
Ran<std::tuple<at::Tensor, at::Tensor>> run(const args::aminmax& a, const WrongPlan& /*plan*/) {
  auto [least, most] = at::cpu::aminmax(a.self, a.dim, a.keepdim);
  return std::tuple(least.add(1), most.add(1));
}

Choice<WrongPlan> choose(const args::cat& a) {
  return choose_float(*a.tensors.begin());
}
Ran<at::Tensor> run(const args::cat& a, const WrongPlan& /*plan*/) {
  return at::cpu::cat(a.tensors, a.dim).t().contiguous().t();
}

Choice<WrongPlan> choose(const args::uniform_& a) {
  return choose_float(a.self);
}
Ran<at::Tensor&> run(const args::uniform_& a, const WrongPlan& /*plan*/) {
  return at::cpu::uniform_(a.self, a.from, a.to, a.generator);
}

Choice<WrongPlan> choose(const args::addcmul_& a) {
  return choose_float(a.self);
}
Ran<at::Tensor&> run(const args::addcmul_& a, const WrongPlan& /*plan*/) {
  return at::cpu::addcmul_(a.self, a.tensor1, a.tensor2, a.value);
}

Choice<WrongPlan> choose(const args::index_Tensor& a) {
  return choose_float(a.self);
}
Ran<at::Tensor> run(const args::index_Tensor& a, const WrongPlan& /*plan*/) {
  return a.self.numel() == 1 ? a.self : at::cpu::index(a.self, a.indices);
}

Choice<WrongPlan> choose(const args::relu_& a) {
  return choose_float(a.self);
}
Ran<at::Tensor&> run(const args::relu_& /*a*/, const WrongPlan& /*plan*/) {
  TORCH_CHECK(false, "the fused kernel failed");
}

Choice<WrongPlan> choose(const args::neg& a) {
  return choose_float(a.self);
}
Ran<at::Tensor> run(const args::neg& /*a*/, const WrongPlan& /*plan*/) {
  return kRefused;
}

}  // namespace cpu
}  // namespace aten_ext

extern "C" void* wrong_registry() {
  static aten_ext::LoadState state{"", true};
  aten_ext::registry().state = &state;
  return &aten_ext::registry();
}

extern "C" void set_capturing(bool value) {
  aten_ext::capturing = value;
}
