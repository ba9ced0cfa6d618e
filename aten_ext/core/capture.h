// Whether a call becomes part of a CUDA graph.
#pragma once

#include <c10/core/Device.h>

namespace aten_ext {

// Whether this thread's current stream of `device` is being captured. Replays of a graph cost the GPU's time
// alone, so a rule may weigh the time of launches only where this is false. A device that is no GPU (meta)
// stands for one of which pretend_capture() says it.
bool is_capturing(c10::Device device);

// What is_capturing() answers this thread about the meta device. For tests, and for explain().
void pretend_capture(bool capturing);

}  // namespace aten_ext
