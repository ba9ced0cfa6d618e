// Recurrent layers on the CPU: from the arguments of a call to the tensors of the layers, and back.
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <ATen/core/LegacyTypeDispatch.h>

#include "ops/rnn/cpu/call.h"

namespace aten_ext::cpu {
namespace {

// Rows of each step: the batch, or those that a packed sequence names. False: they are no such list.
bool read_steps(const RnnArguments& a, RnnInputs& in) {
  const int64_t batch = a.states[0].size(1);
  if (a.batch_sizes == nullptr) {
    in.rows.assign(a.data.size(a.batch_first ? 1 : 0), batch);
  } else {
    const int64_t* const sizes = a.batch_sizes->const_data_ptr<int64_t>();
    in.rows.assign(sizes, sizes + a.batch_sizes->numel());
    if (in.rows[0] != batch) {
      return false;
    }
  }
  int64_t total = 0;
  for (size_t t = 0; t < in.rows.size(); ++t) {
    if (in.rows[t] < 1 || (t > 0 && in.rows[t] > in.rows[t - 1])) {
      return false;
    }
    in.offsets.push_back(total);
    total += in.rows[t];
  }
  return a.batch_sizes == nullptr || total == a.data.size(0);
}

}  // namespace

std::optional<RnnOutputs> run_rnn(const RnnArguments& a, const CpuRnnPlan& plan) {
  RnnInputs in;
  if (!read_steps(a, in)) {
    return std::nullopt;
  }
  std::optional<at::AutoDispatchBelowADInplaceOrView> below;
  if (!plan.differentiated) {
    below.emplace();
  }
  // Where a gradient is wanted these are recorded; a tensor that is dense is taken as it is.
  const bool moved = !plan.packed && a.batch_first && !plan.projects_as_given;
  in.x = moved ? a.data.transpose(0, 1) : a.data;
  in.x = in.x.reshape({-1, a.data.size(-1)});
  for (const at::Tensor& t : a.states) {
    in.states.push_back(t.contiguous());
  }
  for (const at::Tensor& t : a.params) {
    in.params.push_back(t.contiguous());
  }
  RnnOutputs out = plan.differentiated ? differentiable_layers(in, plan) : forward_layers(in, plan, nullptr);
  if (!plan.packed) {
    const int64_t steps = static_cast<int64_t>(in.rows.size());
    out.y = out.y.view({steps, in.rows[0], out.y.size(1)});
    if (plan.batch_first) {
      out.y = out.y.transpose(0, 1);
    }
  }
  return out;
}

}  // namespace aten_ext::cpu
