// The functions behind RnnKernels, for the files that are compiled for one instruction set.
#pragma once

#include "ops/rnn/cpu/recurrence.h"

namespace aten_ext::cpu::CPU_CAPABILITY {

int64_t forward_blocks(RnnCell cell, int64_t hidden);
int64_t forward_block_size(RnnCell cell, int64_t hidden);
void pack_forward(RnnCell cell, const float* w_hh, int64_t hidden, float* panels, RnnRange blocks);
void forward_step(const RnnForward& p, int64_t t, RnnRange rows, RnnRange blocks);

int64_t backward_blocks(int64_t hidden);
int64_t backward_block_size(RnnCell cell, int64_t hidden);
void pack_backward(RnnCell cell, const float* w_hh, int64_t hidden, float* panels, RnnRange blocks);
void backward_step(const RnnBackward& p, int64_t t, RnnRange rows, RnnRange blocks);
void backward_first(const RnnBackward& p, RnnRange rows, RnnRange blocks);

}  // namespace aten_ext::cpu::CPU_CAPABILITY
