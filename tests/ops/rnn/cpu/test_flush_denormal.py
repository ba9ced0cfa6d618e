"""Recurrent layers and cells among threads that flush denormals and threads that do not.

In a process of their own: the threads of the pool take the mode of the one that starts them, for good.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import processes
from paths import TESTS

from .cases import documented

OTHERWISE = documented("threads that flush denormals otherwise")
pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="this CPU has no AVX2"
)

PROGRAM = """
import json, sys
import torch
import aten_ext
from torch.nn.utils.rnn import pack_padded_sequence

def bits(tensors):
    return [t.view(torch.int32) for t in tensors]

def results(module, x, *, train):
    leaf = x.clone().requires_grad_(train)
    given = leaf
    if x.dim() == 3 and train:  # packed, so that an LSTM is ours
        given = pack_padded_sequence(leaf, [8] * 8 + [5] * 8)
    with torch.set_grad_enabled(train):
        out = module(given)
    tensors = [out] if isinstance(out, torch.Tensor) else [out[0].data if x.dim() == 3 else out[0]]
    if train:
        tensors += torch.autograd.grad(tensors[0].sum(), [leaf, *module.parameters()])
    return [t.detach() for t in tensors]

def answers():
    nn = torch.nn
    made = {"gru.data": nn.GRU(24, 40), "lstm.data": nn.LSTM(24, 40), "rnn_tanh.data": nn.RNN(24, 40),
            "rnn_relu.data": nn.RNN(24, 40, nonlinearity="relu"), "gru_cell": nn.GRUCell(256, 512),
            "lstm_cell": nn.LSTMCell(256, 512), "rnn_tanh_cell": nn.RNNCell(256, 512),
            "rnn_relu_cell": nn.RNNCell(256, 512, nonlinearity="relu"), "small": nn.GRUCell(4, 4)}
    found = {}
    for name, module in made.items():
        cell = isinstance(module, nn.RNNCellBase)
        x = (torch.rand(64, module.input_size) if cell else torch.rand(8, 16, module.input_size)) * 1e-39
        if name == "small":
            x = x[:2]
        for parameter in module.parameters():
            if parameter.dim() == 1:  # what products of denormals leave over
                parameter.data = torch.rand(parameter.shape) * 1e-39
        aten_ext.reset_counts()
        ours = results(module, x, train=not cell)
        count = aten_ext.counts("CPU")["gru_cell" if name == "small" else name]
        with aten_ext.disabled():
            theirs = results(module, x, train=not cell)
        same = all(map(torch.equal, bits(ours), bits(theirs)))
        # Of the result, not of gradients, by its bits: a thread that flushes takes every denormal for 0.
        zeros = [int((t[0] == 0).sum()) for t in (bits(ours), bits(theirs))]
        found[name] = [count.ran, dict(count.declined), same, zeros, ours[0].numel()]
    return found

when = sys.argv[1]
torch.manual_seed(0)  # a product of two of these numbers may be 0, too, of which this seed has none
torch.set_num_threads(2)
torch.set_flush_denormal(when != "no thread")
torch.ones(1_000_000).add_(1)  # starts the threads
torch.set_flush_denormal(when == "every thread")
print(json.dumps(answers()))
"""


def answers(when: str) -> Mapping[str, Any]:
    run = processes.python("-c", PROGRAM, when, cwd=TESTS)
    assert run.stderr == ""
    found: dict[str, Any] = json.loads(run.stdout)
    assert len(found) == 9
    return found


def test_threads_that_flush_for_a_caller_that_does_not() -> None:
    """Upstream's bits, whichever elements it deals to those threads: it runs."""
    found = answers("the pool")
    assert sum(flushed > 0 for *_, (_, flushed), _ in found.values()) >= 3, "the threads do flush"
    for name, (ran, declined, same, (_, flushed), _) in found.items():
        if name == "small":  # on the calling thread alone, in upstream as well
            assert (ran, declined, same, flushed) == (1, {}, True, 0)
            continue
        assert (ran, declined, same) == (0, {OTHERWISE: 1}, True), name


@pytest.mark.parametrize("when", ["no thread", "every thread"])
def test_threads_of_one_mode(when: str) -> None:
    """Ours, and zero where upstream's are."""
    for name, (ran, declined, _, (mine, upstreams), elements) in answers(when).items():
        assert (ran, declined) == (1, {}), name
        assert mine == upstreams, name
        assert name.startswith("rnn_relu") or mine == (elements if when == "every thread" else 0), name
