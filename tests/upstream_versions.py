"""Where upstream is not the same in every release of torch that tests run with."""

from __future__ import annotations

import functools

import torch
from torch.torch_version import TorchVersion

# Upstream's CPU kernel for fp16 and bf16 updates only what follows a tensor's last whole vector, and reads
# past the end of momentum buffers: aten_ext/ops/optimizer/cpu/upstream_numerics.h.
SGD_IN_16_BITS_IS_BROKEN = TorchVersion(torch.__version__) < (2, 14)

# Upstream runs a packed LSTM of equal lengths by oneDNN on the CPU, as one that is not packed.
PACKED_LSTM_IS_ONEDNNS = TorchVersion(torch.__version__) >= (2, 12)

# The deprecated torch.cholesky and torch.qr are in PyTorch's own test databases.
OP_DB_HAS_CHOLESKY_AND_QR = TorchVersion(torch.__version__) < (2, 14)


@functools.cache
def bf16_products_spread_nan(rows: int, depth: int) -> bool:
    """Whether a NaN in a row of the input makes NaN of another row of a product in bf16 on this CPU.

    oneDNN with AMX reads beyond a row at some sizes, and multiplies what it finds by 0.
    """
    x = torch.zeros(rows, depth, dtype=torch.bfloat16)
    x[rows // 2, 0] = torch.nan
    product = torch.nn.functional.linear(x, torch.ones(9, depth, dtype=torch.bfloat16))
    return int(product.isnan().any(-1).sum()) > 1
