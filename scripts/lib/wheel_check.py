"""Run by the Python of a fresh environment: is the wheel there, and does a fused call run right?

The last line is what it found, in JSON. Nothing of the checkout is imported.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

import aten_ext

if not Path(aten_ext.__file__).is_relative_to(sys.prefix):
    sys.exit(f"expected aten_ext of {sys.prefix}, imported {aten_ext.__file__}")


def step() -> list[torch.Tensor]:
    """Some steps of AdamW over tensors of several sizes, upstream or fused as the toggles say."""
    torch.manual_seed(1)
    parameters = [torch.randn(n, requires_grad=True) for n in (1, 7, 64, 1000)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, fused=True)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


with aten_ext.disabled():
    expected = step()
aten_ext.reset_counts()
got = step()
counts = aten_ext.counts("CPU")["_fused_adamw_"]
if counts.ran != 3 or counts.declined:
    sys.exit(f"_fused_adamw_: expected 3 fused calls, got {counts}")
if not all(torch.equal(a, b) for a, b in zip(expected, got, strict=True)):
    sys.exit("_fused_adamw_: the fused kernel's parameters are not upstream's")
autoload = "import sys, torch; sys.exit('aten_ext' not in sys.modules)"
done = subprocess.run(
    [sys.executable, "-c", autoload], env=os.environ | {"ATEN_EXT_AUTOLOAD": "1"}, check=False
)
if done.returncode != 0:
    sys.exit("ATEN_EXT_AUTOLOAD=1: expected import torch to import aten_ext")
keys = sorted({key for override in aten_ext.overrides() for key in override.keys})
print(json.dumps({"version": importlib.metadata.version("aten_ext"), "keys": keys}))
