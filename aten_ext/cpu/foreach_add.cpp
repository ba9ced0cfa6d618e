// _foreach_add_.Scalar on CPU, for an optimizer's step counters: when, and the addition itself.
//
// Upstream calls add_ for one tensor after the other: for each a pass through the dispatcher, a tensor made
// of the scalar and a TensorIterator, for one addition.
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "foreach_add_args.h"
#include "overrides.h"

namespace aten_ext {

const char* decline::_foreach_add__Scalar_cpu(at::TensorList self, const at::Scalar& scalar) {
  return decline_foreach_add(self, scalar);
}

void run::_foreach_add__Scalar_cpu(at::TensorList self, const at::Scalar& scalar) {
  const float value =
      scalar.isFloatingPoint() ? static_cast<float>(scalar.toDouble()) : static_cast<float>(scalar.toLong());
  // Autograd learns from the version that a tensor which it saved was changed. No kernel above this one
  // counts it for a list: upstream's add_ does for each tensor, unless its caller has already.
  const bool counts_versions = !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
  for (const at::Tensor& t : self) {
    *t.mutable_data_ptr<float>() += value;
    if (counts_versions) {
      t.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace aten_ext
