// What a plan says of itself: in words, and what it needs of a GPU.
#include <sstream>

#include "ops/rnn/plan.h"

namespace aten_ext::cuda {
namespace {

std::string describe_recurrence(const Recurrence& r) {
  const std::string blocks = std::to_string(r.blocks) + " blocks";
  const std::string where = r.exchange == Exchange::Block     ? "a block"
                            : r.exchange == Exchange::Cluster ? "a cluster of " + blocks
                                                              : blocks + " over the GPU";
  return "one launch: groups of " + std::to_string(r.rows) + " rows, each " + where;
}

const char* describe_math(Math math) {
  return math == Math::Fma ? "fp32 multiply-adds" : math == Math::Mma ? "tensor cores" : "TF32 tensor cores";
}

}  // namespace

std::string RnnPlan::describe() const {
  std::ostringstream text;
  if (route == Route::Step) {
    text << "a launch for each step, " << describe_math(step[0].math);
  } else {
    text << (problem.sequence.is_packed() ? "padded, " : "") << describe_recurrence(recurrence) << ", "
         << describe_math(recurrence.math);
    if (recurrence.math == Math::Fma &&
        (projection[0] == Projection::Tf32 || (problem.layers > 1 && projection[1] == Projection::Tf32))) {
      text << ", the input's product in TF32";
    }
    if (problem.sequence.is_packed() && pieces.size() > 1) {
      text << ", in " << pieces.size() << " pieces";
    } else if (chunk < problem.sequence.steps) {
      text << ", " << chunk << " steps at a time";
    }
    text << (saves ? ", saves what the backward needs" : "");
  }
  if (problem.drops()) {
    text << ", dropout " << problem.dropout << " as cuDNN draws it";
  }
  return text.str();
}

Needs RnnPlan::needs() const {
  Needs needs;
  needs.code = 80;  // tensor cores and asynchronous copies; nothing was measured on an older GPU
  if (route == Route::Recurrence) {
    needs.shared_bytes = recurrence.shared_bytes;
    if (recurrence.exchange == Exchange::Cluster) {
      needs.code = 90;
      needs.cluster = recurrence.blocks;
    } else if (recurrence.exchange == Exchange::Grid) {
      needs.resident_blocks = recurrence.grid;
    }
  }
  return needs;
}

}  // namespace aten_ext::cuda
