"""The very first call of a process in a graph capture: modules are loaded, tables read, facts asked there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paths import ROOT
from programs.cases import Case, each

# Prints what became of the capture, and the sums of a replay's results. Nothing has run before it.
PROGRAM = """
import sys
import torch
sys.path[:0] = sys.argv[2:]
from programs.cases import by_name
import aten_ext

if sys.argv[1].startswith("off:"):
    aten_ext.disable()
case = by_name[sys.argv[1].partition(":")[2]]
arguments = case.make("cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
try:
    with torch.no_grad(), torch.cuda.graph(graph):
        result = case.call(*arguments)
except Exception as error:
    print("error", type(error).__name__)
    sys.exit()
graph.replay()
torch.cuda.synchronize()
leaves = torch.utils._pytree.tree_leaves((result, arguments))
tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
print("ran", " ".join(f"{tensor.double().abs().sum().item():.4g}" for tensor in tensors))
print({name: counts.ran for name, counts in aten_ext.counts("CUDA").items() if counts.ran}, file=sys.stderr)
"""


def first_call(case: Case, state: str) -> tuple[str, str]:
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            PROGRAM,
            f"{state}:{case.name}",
            str(ROOT / "tests"),
            str(ROOT / "scripts/lib"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT / "tests",
    )
    assert run.returncode == 0, run.stderr
    return run.stdout, run.stderr


@pytest.mark.gpu
@each()
def test_first_call_in_a_capture(case: Case) -> None:
    """As upstream: captured with the same results, or an error where upstream has one."""
    theirs, _ = first_call(case, "off")
    ours, counts = first_call(case, "on")
    if theirs.startswith("ran"):
        assert ours == theirs
    if case.name in ("adamw", "adam", "sgd", "adagrad", "cat"):
        assert ours.startswith("ran") and any(name in counts for name in case.operators), counts
