"""Where upstream is not the same in every release of torch that tests run with."""

from __future__ import annotations

import torch
from torch.torch_version import TorchVersion

# Upstream's CPU kernel for fp16 and bf16 updates only what follows a tensor's last whole vector, and reads
# past the end of momentum buffers: aten_ext/ops/optimizer/cpu/upstream_numerics.h.
SGD_IN_16_BITS_IS_BROKEN = TorchVersion(torch.__version__) < (2, 14)

# Upstream runs a packed LSTM of equal lengths by oneDNN on the CPU, as one that is not packed.
PACKED_LSTM_IS_ONEDNNS = TorchVersion(torch.__version__) >= (2, 12)

# The deprecated torch.cholesky and torch.qr are in PyTorch's own test databases.
OP_DB_HAS_CHOLESKY_AND_QR = TorchVersion(torch.__version__) < (2, 14)
