"""weight_buf on a GPU: cuDNN's order is the predicted one, and what is in the buffer counts, as upstream."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import aten_ext
from ops.rnn.cases import (
    CELLS,
    DTYPES,
    GRU,
    LSTM,
    assert_ran,
    documented,
    flattened,
    new_module,
    tf32_allowed,
    weights,
)

STALE = "weights that are not those of weight_buf"
HIDDEN, INPUTS = 200, 33


def new_weights(
    dtype: torch.dtype, layers: int, bidirectional: bool, bias: bool, mode: int = GRU
) -> list[torch.Tensor]:
    torch.manual_seed(0)
    module = new_module(mode, INPUTS, HIDDEN, layers, bias=bias, bidirectional=bidirectional)
    return [w.detach().to("cuda", dtype) for w in module._flat_weights]


def call(
    listed: list[torch.Tensor],
    buffer: torch.Tensor | None,
    layers: int,
    bidirectional: bool,
    bias: bool,
    mode: int = GRU,
) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    dtype = listed[0].dtype
    x = torch.randn(6, 3, INPUTS, device="cuda").to(dtype)
    h = torch.randn(layers * (2 if bidirectional else 1), 3, HIDDEN, device="cuda").to(dtype)
    c = torch.randn_like(h) if mode == LSTM else None
    options = (mode, HIDDEN, 0, layers, False, 0.0, False, bidirectional, [], None)
    with torch.no_grad():
        result: tuple[torch.Tensor, ...] = torch._cudnn_rnn(
            x, listed, 4 if bias else 2, buffer, h, c, *options
        )
    return result


STACKS = pytest.mark.parametrize(
    ("layers", "bidirectional", "bias"),
    [
        (1, False, True),
        (1, True, True),
        (2, False, True),
        (3, True, True),
        (1, False, False),
        (2, True, False),
    ],
)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@STACKS
def test_cudnns_order_is_as_predicted(
    dtype: torch.dtype, layers: int, bidirectional: bool, bias: bool, mode: int
) -> None:
    listed = new_weights(dtype, layers, bidirectional, bias, mode)
    buffer = torch._cudnn_rnn_flatten_weight(
        listed, 4 if bias else 2, INPUTS, mode, HIDDEN, 0, layers, False, bidirectional
    )
    directions = 2 if bidirectional else 1
    predicted, views = flattened(weights(INPUTS, HIDDEN, layers, directions, bias, mode), bias=bias)
    assert buffer.numel() == predicted.numel()
    assert [w.storage_offset() for w in listed] == [view.storage_offset() for view in views]
    aten_ext.reset_counts()
    result = call(listed, buffer, layers, bidirectional, bias, mode)
    assert_ran("_cudnn_rnn")
    assert result[4].data_ptr() == buffer.data_ptr()


@pytest.mark.gpu
@pytest.mark.parametrize("mode", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@STACKS
def test_what_is_packed_is_upstreams(
    dtype: torch.dtype, layers: int, bidirectional: bool, bias: bool, mode: int
) -> None:
    listed = new_weights(dtype, layers, bidirectional, bias, mode)
    case: Any = (listed, None, layers, bidirectional, bias, mode)
    with aten_ext.disabled():
        theirs = call(*case)
    aten_ext.reset_counts()
    ours = call(*case)
    assert_ran("_cudnn_rnn")
    assert torch.equal(ours[4], theirs[4])
    assert [t.shape for t in ours[:3]] == [t.shape for t in theirs[:3]], "cy of others than an LSTM is empty"


@pytest.mark.gpu
def test_replaced_weights_are_ignored() -> None:
    """As upstream ignores them: it computes from the buffer."""
    listed = new_weights(torch.float32, 1, False, True)
    buffer = torch._cudnn_rnn_flatten_weight(listed, 4, INPUTS, GRU, HIDDEN, 0, 1, False, False)
    replaced = [w + 1 for w in listed]
    with tf32_allowed(False):
        expected = call(listed, buffer, 1, False, True)
        with aten_ext.disabled():
            theirs = call(replaced, buffer, 1, False, True)
        aten_ext.reset_counts()
        ours = call(replaced, buffer, 1, False, True)
    assert dict(aten_ext.counts("CUDA")["_cudnn_rnn"].declined) == {documented(STALE): 1}
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(expected[0], theirs[0], rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_biases_of_the_buffer_count() -> None:
    """Of a layer without any, too."""
    listed = new_weights(torch.float32, 1, False, False)
    buffer = torch._cudnn_rnn_flatten_weight(listed, 2, INPUTS, GRU, HIDDEN, 0, 1, False, False)
    buffer[-6 * HIDDEN :].normal_()
    with tf32_allowed(False):
        with aten_ext.disabled():
            theirs = call(listed, buffer, 1, False, False)
        aten_ext.reset_counts()
        ours = call(listed, buffer, 1, False, False)
    assert_ran("_cudnn_rnn")
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-5)
