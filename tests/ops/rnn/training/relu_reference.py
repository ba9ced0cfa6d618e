"""Gradients in float64 of one layer of an RNN with relu, with the zeros where a given output has them.

The gradient of a relu jumps where its sum crosses zero. A sum that rounds to the other side brings or takes a
whole term, upstream's sums as well as ours. With the zeros given nothing jumps: the gradients of upstream and
ours are each compared with the exact ones for their own zeros.
"""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def zeros_are_seen(cell: str, dtype: torch.dtype, layers: int, *, tf32: bool = False) -> bool:
    """Whether gradients can be compared: of several layers with relu only the last one's zeros are seen.

    In fp32 so few sums round to the other side of zero that bounds hold without; not in TF32.
    """
    return cell != "relu" or layers == 1 or (dtype == torch.float32 and not tf32)


def relu_layer(
    rnn: torch.nn.RNNBase, x: torch.Tensor, lengths: torch.Tensor, state: torch.Tensor, positive: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [T, B, D * H] and last states [D, B, H], differentiable.

    Args:
        rnn: one layer, of one or two directions, in float64.
        x: [T, B, I].
        lengths: of the rows, [B].
        state: before the first step, [D, B, H].
        positive: [T, B, D * H], where a sum passes the relu.
    """
    directions, hidden = (2 if rnn.bidirectional else 1), rnn.hidden_size
    each = len(rnn._flat_weights) // directions
    outputs, last = [], []
    for direction in range(directions):
        w_ih, w_hh, *biases = rnn._flat_weights[direction * each : (direction + 1) * each]
        mine = positive[..., direction * hidden : (direction + 1) * hidden]
        projected = x @ w_ih.T + (sum(biases) if biases else 0.0)
        h = state[direction]
        steps = list(range(x.shape[0]))
        after = [h] * x.shape[0]
        for t in reversed(steps) if direction else steps:
            new = torch.where(mine[t], projected[t] + h @ w_hh.T, 0.0)
            h = torch.where((t < lengths)[:, None], new, h)
            after[t] = h
        outputs.append(torch.stack(after))
        last.append(h)
    return torch.cat(outputs, -1), torch.stack(last)


def gradients(
    rnn: torch.nn.RNNBase,
    x: torch.Tensor | PackedSequence,
    states: list[torch.Tensor],
    grads: list[torch.Tensor | None],
    outputs: torch.Tensor,
) -> list[torch.Tensor]:
    """Of the rows of x, the state if one is given, and all weights, in float64.

    Args:
        rnn: one layer, in float64.
        x: padded, or packed.
        states: the state before the first step, or nothing.
        grads: of the output and of the state behind the last step.
        outputs: what somebody's layer gave for x, laid out as it is.
    """
    assert rnn.num_layers == 1 and rnn.weight_ih_l0.dtype == torch.float64
    given = [s.detach().double().requires_grad_() for s in states]
    if isinstance(x, PackedSequence):
        data = x.data.detach().double().requires_grad_()
        rows, lengths = pad_packed_sequence(PackedSequence(data, x.batch_sizes))
        positive = pad_packed_sequence(PackedSequence(outputs > 0, x.batch_sizes))[0]
        order, back = x.sorted_indices, x.unsorted_indices
    else:
        data = x.detach().double().requires_grad_()
        rows, positive = (t.transpose(0, 1) if rnn.batch_first else t for t in (data, outputs > 0))
        lengths, order, back = torch.full(rows.shape[1:2], rows.shape[0]), None, None
    if given:
        state = given[0] if order is None else given[0].index_select(1, order)
    else:
        state = rows.new_zeros(2 if rnn.bidirectional else 1, rows.shape[1], rnn.hidden_size)
    y, last = relu_layer(rnn, rows, lengths.to(rows.device), state, positive)
    last = last if back is None else last.index_select(1, back)
    if isinstance(x, PackedSequence):
        y = pack_padded_sequence(y, lengths).data
    elif rnn.batch_first:
        y = y.transpose(0, 1)
    wanted = [(o, g.double()) for o, g in zip((y, last), grads, strict=True) if g is not None]
    inputs = [data, *given, *rnn._flat_weights]
    return list(torch.autograd.grad([o for o, _ in wanted], inputs, [g for _, g in wanted]))
