"""GRU layers in programs on a GPU: training, autocast, graph capture, streams and threads, upstream's errors.

What the override of a composite operator must not disturb is also tested on the CPU (core/test_composite.py).
"""

from __future__ import annotations

import threading

import pytest
import torch

import aten_ext
from ops.rnn.cases import assert_ran


@pytest.mark.gpu
def test_empty_sequences_are_upstreams() -> None:
    gru = torch.nn.GRU(4, 5).cuda().eval()
    errors = []
    for off in (True, False):
        aten_ext.disable() if off else aten_ext.enable("_cudnn_rnn")
        with torch.no_grad(), pytest.raises(RuntimeError) as error:
            gru(torch.empty(0, 2, 4, device="cuda"))
        errors.append(str(error.value))
    assert errors[0] == errors[1]


@pytest.mark.gpu
def test_backward_through_inference_is_upstreams_error() -> None:
    gru = torch.nn.GRU(4, 5).cuda().eval()
    y, _ = gru(torch.randn(3, 2, 4, device="cuda"))
    assert_ran("_cudnn_rnn")
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
        y.sum().backward()


@pytest.mark.gpu
def test_autocast() -> None:
    gru = torch.nn.GRU(16, 32).cuda().eval()
    x = torch.randn(5, 2, 16, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        y, _ = gru(x)
        assert_ran("_cudnn_rnn")
        with aten_ext.disabled():
            theirs, _ = gru(x)
    # PyTorch's autocast makes float16 of cuDNN's RNNs, whatever it was asked for.
    assert y.dtype == theirs.dtype
    torch.testing.assert_close(y, theirs, rtol=0, atol=2e-3)


# One call of each kernel that waits for other blocks, and of the one-step kernel.
CALLS = [(20, 4, 512), (20, 16, 512), (20, 4, 900), (20, 4, 128), (1, 4, 512)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("steps", "batch", "hidden"), CALLS)
def test_graph_capture(dtype: torch.dtype, steps: int, batch: int, hidden: int) -> None:
    gru = torch.nn.GRU(64, hidden).to("cuda", dtype).eval()
    x = torch.randn(steps, batch, 64, device="cuda").to(dtype)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(stream):
        expected = gru(x)[0].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            y, _ = gru(x)
        for _ in range(20):
            graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
    x.copy_(torch.randn_like(x))
    graph.replay()
    with torch.no_grad():
        assert torch.equal(y, gru(x)[0])


@pytest.mark.gpu
@pytest.mark.parametrize(("steps", "batch", "hidden"), CALLS)
def test_streams_and_threads(steps: int, batch: int, hidden: int) -> None:
    """Each has its own barrier; results are those of one call after the other, bit for bit."""
    grus = [torch.nn.GRU(32, hidden).cuda().eval() for _ in range(4)]
    xs = [torch.randn(steps, batch, 32, device="cuda") for _ in grus]
    with torch.no_grad():
        expected = [gru(x)[0] for gru, x in zip(grus, xs, strict=True)]
    torch.cuda.synchronize()
    failures: list[int] = []

    def work(i: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not torch.equal(grus[i](xs[i])[0], expected[i]):
                    failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(grus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.gpu
def test_device_that_is_not_current() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    gru = torch.nn.GRU(8, 300).to("cuda:1").eval()
    with torch.no_grad(), torch.cuda.device(0):
        y, _ = gru(torch.randn(5, 2, 8, device="cuda:1"))
    assert y.device.index == 1 and torch.cuda.current_device() == 0
    assert_ran("_cudnn_rnn")
