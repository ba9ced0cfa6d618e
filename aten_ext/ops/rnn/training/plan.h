// The plan of a backward: which kernels, in numbers. Plain arithmetic. Standard library only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/choice.h"
#include "core/needs.h"
#include "ops/rnn/backward/plan.h"
#include "ops/rnn/pieces.h"
#include "ops/rnn/plan.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// Which gradients are wanted.
struct Wanted {
  bool input, hx, cx, weights;
};

struct RnnBackwardPlan {
  RnnProblem problem;
  Wanted wanted;
  bool tf32;                      // fp32: products of gates and of the sequential part in TF32
  bool tf32_results;              // fp32: those that make the gradients of weights, most of them, and input
  bool weights_apart;             // their gradients one direction after the other, each with the whole GPU
  bool few_rows;                  // products by kernels of our own, fp32 multiply-adds
  bool one_launch;                // the sequential part of a chunk; otherwise a product and a launch a step
  bool saved;                     // the forward saved the coefficients, of all steps
  bool overlaps;                  // what does not depend on the sequential part may run beside it
  RecurrenceBackward recurrence;  // for one_launch
  int64_t chunk;                  // steps whose coefficients exist at once: all, or a part of many
  int64_t part;                   // steps of a chunk whose gates' products exist at once

  std::string describe() const;
  Needs needs() const;
};

// There is one for every forward of ours. `saved`: whether it saved the coefficients.
RnnBackwardPlan plan_rnn_backward(const RnnProblem& problem, const Wanted& wanted, const Gpu& gpu,
                                  bool saved);

// The pieces that a backward goes through, from the last to the first.
std::vector<Piece> pieces_of_backward(const RnnBackwardPlan& plan);

// A recurrence for the first rows of the batch, by the same kernel (ops/rnn/plan.h).
RecurrenceBackward of_fewer_rows(const RnnProblem& problem, const RecurrenceBackward& recurrence,
                                 int64_t batch);

// Whether the gradient of weights of so many columns is multiplied in TF32. Of one column cuDNN's product is
// with a vector, and in fp32.
bool has_tf32_weights(const RnnBackwardPlan& plan, int64_t columns);

// Whether a forward saves what its backward will read: where there are gradients to come, kernels for it, and
// a backward in one launch, which is all that reads it.
bool saves_coefficients(const RnnPlan& forward, const Gpu& gpu);

// Steps that a forward that saves projects at once: fewer of an LSTM in 16 bits, whose projections and
// coefficients together would be more than upstream's peak.
int64_t choose_saving_chunk(const RnnPlan& forward);

// Why a forward in training is upstream's, of those that have a plan, which says already whether it saves;
// nullptr: it is ours.
const char* decline_training(const RnnPlan& forward, const Gpu& gpu);

}  // namespace aten_ext::cuda
