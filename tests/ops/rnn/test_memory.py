"""Memory of GRU layers on a GPU: no more than upstream needs, and none that stays."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import aten_ext
from ops.rnn.cases import MIB, assert_ran, peak


@pytest.mark.gpu
@pytest.mark.parametrize(("steps", "inputs", "hidden"), [(4000, 256, 512), (1000, 512, 1024)])
def test_long_sequences_take_no_more_than_upstream(steps: int, inputs: int, hidden: int) -> None:
    gru = torch.nn.GRU(inputs, hidden).to("cuda", torch.bfloat16).eval()
    x = torch.randn(steps, 64, inputs, device="cuda").bfloat16()
    with torch.no_grad():
        with aten_ext.disabled():
            theirs = gru(x)[0]
            of_upstream = peak(lambda: gru(x))
        aten_ext.reset_counts()
        ours = gru(x)[0]
        assert_ran("_cudnn_rnn")
        assert peak(lambda: gru(x)) <= of_upstream
        assert torch.equal(gru(x)[0], ours)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05)


def holds_packed(rnn: torch.nn.RNNBase, lengths: list[int], dtype: torch.dtype) -> None:
    """Without gradients a packed call takes no more than upstream's, and 10 % or 32 MiB."""
    padded = torch.randn(lengths[0], len(lengths), rnn.input_size, device="cuda")
    x = pack_padded_sequence(padded.to(dtype), torch.tensor(lengths))
    with torch.no_grad():
        with aten_ext.disabled():
            rnn(x)
            of_upstream = peak(lambda: rnn(x))
        aten_ext.reset_counts()
        rnn(x)
        assert_ran("_cudnn_rnn")
        assert peak(lambda: rnn(x)) <= max(1.1 * of_upstream, of_upstream + 32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("short", [100, 200, 400], ids=str)
@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_packed_sequences_take_no_more_than_upstream(
    mode: str, kind: type[torch.nn.RNNBase], short: int, dtype: torch.dtype
) -> None:
    """What is padded is padded in chunks."""
    rnn = kind(128, 256, 2, bidirectional=True).to("cuda", dtype).train(mode == "train")
    holds_packed(rnn, [400] * 4 + [short] * 44, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM])
def test_one_long_row_takes_no_more_than_upstream(kind: type[torch.nn.RNNBase]) -> None:
    """Of few steps, padded to seven times as many rows."""
    holds_packed(kind(512, 512, 2, bidirectional=True).cuda().eval(), [100] + [12] * 63, torch.float32)


LENGTHS = {
    "even": [100 - i * 75 // 63 for i in range(64)],
    "half": [100] * 32 + [50] * 32,
    "one long": [100] + [12] * 63,
}


def step_holds(rnn: torch.nn.RNNBase, lengths: list[int], dtype: torch.dtype) -> None:
    """Forward and backward of a packed sequence take no more than upstream's, and 10 % or 32 MiB."""
    padded = torch.randn(lengths[0], len(lengths), rnn.input_size, device="cuda")
    x = pack_padded_sequence(padded.to(dtype), torch.tensor(lengths))

    def step() -> None:
        leaf = x._replace(data=x.data.detach().requires_grad_())
        y = rnn(leaf)[0].data
        torch.autograd.grad(y, [leaf.data, *rnn.parameters()], torch.ones_like(y))

    with aten_ext.disabled():
        step()
        of_upstream = peak(step)
    aten_ext.reset_counts()
    step()
    assert_ran("_cudnn_rnn")
    assert_ran("_cudnn_rnn_backward")
    assert peak(step) <= max(1.1 * of_upstream, of_upstream + 32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_packed_training_takes_no_more_than_upstream(
    lengths: list[int], kind: type[torch.nn.RNNBase], dtype: torch.dtype
) -> None:
    """What is saved is padded in pieces."""
    step_holds(kind(512, 512, 2, bidirectional=True).to("cuda", dtype), lengths, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM])
def test_many_rows_of_a_layer_take_no_more_than_upstream(
    kind: type[torch.nn.RNNBase], dtype: torch.dtype
) -> None:
    """Where gradients of gates are most of the peak: of a GRU r's and z's are kept once."""
    lengths = [1000 - i * 750 // 31 for i in range(32)]
    step_holds(kind(80, 320, bidirectional=True).to("cuda", dtype), lengths, dtype)


@pytest.mark.gpu
def test_threads_and_streams_leave_nothing_behind() -> None:
    gru = torch.nn.GRU(256, 256).cuda().eval()
    x = torch.randn(32, 4, 256, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(8)]
    with torch.no_grad():
        gru(x)
    before = torch.cuda.memory_allocated()

    def work() -> None:
        for stream in streams:
            with torch.no_grad(), torch.cuda.stream(stream):
                gru(x)
            stream.synchronize()

    for _ in range(10):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    torch.cuda.synchronize()
    assert_ran("_cudnn_rnn", 81)
    assert torch.cuda.memory_allocated() - before < MIB
