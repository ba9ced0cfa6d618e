"""Calls that are ours from Python, where launches are what they take, and upstream's in a CUDA graph."""

from __future__ import annotations

import textwrap

import pytest

import processes
from paths import TESTS

PROGRAM = """
    import sys

    import torch

    import aten_ext

    dtype = getattr(torch, sys.argv[1])
    rnn = torch.nn.GRU(96, 72).to("cuda", dtype)
    x = torch.randn(70, 12, 96, device="cuda", dtype=dtype, requires_grad=True)

    def call():
        y = rnn(x)[0]
        return [y.detach(), *torch.autograd.grad(y, [x, *rnn.parameters()], torch.ones_like(y))]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        eager = call()
    torch.cuda.synchronize()
    counted = aten_ext.counts("CUDA")
    assert counted["_cudnn_rnn"].ran == 1 and counted["_cudnn_rnn_backward"].ran == 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = call()
    graph.replay()
    torch.cuda.synchronize()
    assert aten_ext.counts("CUDA")["_cudnn_rnn"].ran == 1, "the captured call is upstream's"
    for ours, theirs in zip(eager, captured, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05 * theirs.abs().max().item())
    print("done")
"""


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_upstream_is_captured_after_calls_of_ours(dtype: str) -> None:
    """A thread's first handle of cuDNN cannot be made in a capture; autograd's thread has had one made."""
    run = processes.python("-c", textwrap.dedent(PROGRAM), dtype, cwd=TESTS, timeout=300)
    assert run.returncode == 0 and run.stdout.endswith("done\n"), run.stderr
