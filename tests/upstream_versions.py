"""Where upstream is not the same in every release of torch that tests run with."""

from __future__ import annotations

import torch
from torch.torch_version import TorchVersion

# Upstream's CPU kernel for fp16 and bf16 updates only what follows a tensor's last whole vector, and reads
# past the end of momentum buffers: aten_ext/cpu/upstream_numerics.h.
SGD_IN_16_BITS_IS_BROKEN = TorchVersion(torch.__version__) < (2, 14)
