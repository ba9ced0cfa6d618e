"""The reference for gradients of a relu: autograd's where the zeros are float64's own, and none but its."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import aten_ext
from ops.rnn.training import relu_reference, test_gradients, test_packed_gradients

LENGTHS = [3, 9, 1, 9]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layout", ["padded", "batch first", "packed", "no state"])
def test_is_that_of_autograd(layout: str, bidirectional: bool, bias: bool) -> None:
    torch.manual_seed(0)
    options = {"bidirectional": bidirectional, "bias": bias, "batch_first": layout == "batch first"}
    rnn = torch.nn.RNN(5, 7, nonlinearity="relu", **options).double()
    padded = torch.randn(*((4, 9) if rnn.batch_first else (9, 4)), 5).double()
    x = padded
    if layout == "packed":
        x = pack_padded_sequence(padded, torch.tensor(LENGTHS), enforce_sorted=False)
    directions = 2 if bidirectional else 1
    states = [] if layout == "no state" else [torch.randn(directions, 4, 7).double()]
    with aten_ext.disabled(), torch.no_grad():
        y = rnn(x, *states)[0]
    y = y.data if layout == "packed" else y
    grads = [torch.randn_like(y), torch.randn(directions, 4, 7).double()]
    with aten_ext.disabled():
        get = test_packed_gradients.gradients if layout == "packed" else test_gradients.gradients
        expected = get(rnn, x, states, [*grads])
    actual = relu_reference.gradients(rnn, x, states, [*grads], y)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_zeros_that_were_given_are_kept() -> None:
    torch.manual_seed(0)
    rnn = torch.nn.RNN(5, 7, nonlinearity="relu").double()
    x = torch.randn(9, 4, 5).double()
    nowhere = torch.zeros(9, 4, 7)
    for gradient in relu_reference.gradients(rnn, x, [], [torch.ones(9, 4, 7), torch.ones(1, 4, 7)], nowhere):
        assert not gradient.any()
