#include "ops/rnn/backward/plan.h"
namespace aten_ext::cuda {
std::string RecurrenceBackward::describe() const {
  return "";
}
Needs RecurrenceBackward::needs() const {
  return {};
}
Choice<RecurrenceBackward> choose_recurrence_backward(const RecurrenceBackwardSizes&, Cell, Dtype, bool,
                                                      const Gpu&) {
  return "none";
}
}  // namespace aten_ext::cuda
#ifdef ATEN_EXT_WITH_CUDA
#include "ops/rnn/backward/recurrence_backward.h"
namespace aten_ext::cuda {
cudaError_t launch_recurrence_backward(const RecurrenceBackwardParams&, cudaStream_t) {
  return cudaErrorNotSupported;
}
}  // namespace aten_ext::cuda
#endif
