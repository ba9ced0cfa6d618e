// pretend_gpu() and pretend_capture() for Python: torch.ops.aten_ext.pretend_gpu, .pretend_capture.
#include <torch/library.h>

#include "core/capture.h"
#include "core/gpu.h"
#include "core/load_guard.h"

TORCH_LIBRARY_FRAGMENT(aten_ext, m) {
  if (aten_ext::may_define()) {
    m.def("pretend_gpu(int[] facts, str name='') -> ()", [](at::IntArrayRef facts, c10::string_view name) {
      aten_ext::pretend_gpu(facts, std::string(name));
    });
    m.def("pretend_capture(bool capturing) -> ()",
          [](bool capturing) { aten_ext::pretend_capture(capturing); });
  }
}
