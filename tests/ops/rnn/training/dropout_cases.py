"""What the tests of dropout between layers share: the masks that a forward kept, and a reference by them."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import PackedSequence

from ops.rnn.training.on_host_cases import Sizes, module


def unpacked(kept: torch.Tensor, count: int) -> torch.Tensor:
    """Bits, the lowest of a byte first, as bool."""
    bits = kept[:, None].int() >> torch.arange(8, device=kept.device) & 1
    return bits.flatten()[:count].bool()


def masks_in(
    reserve: torch.Tensor, shape: torch.Size, layers: int, directions: int
) -> list[list[torch.Tensor]]:
    """Of each layer but the first, by direction: what is kept of its input, which has this shape.

    They are at the end of what a forward of ours keeps for its backward.
    """
    count = shape.numel()
    each = -(-count // 2048) * 256  # bits, at multiples of 256 bytes
    number = (layers - 1) * directions
    bits = reserve[0, reserve.numel() - number * each :].view(number, each)
    masks = [unpacked(b, count).view(shape) for b in bits]
    return [masks[i : i + directions] for i in range(0, number, directions)]


def exact(
    sizes: Sizes,
    weights: list[torch.Tensor],
    x: torch.Tensor,
    hx: torch.Tensor,
    cx: torch.Tensor,
    grads: list[torch.Tensor],
    masks: list[list[torch.Tensor]],
    p: float,
    batch_sizes: torch.Tensor | None = None,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A layer stack in float64 on the CPU, with these masks.

    Returns:
        Output and states; and gradients of x, hx, cx (LSTM) and the weights.
    """
    lstm, d = sizes.cell == "lstm", 2 if sizes.bidirectional else 1
    x, h, c = (t.detach().cpu().double().requires_grad_() for t in (x, hx, cx))
    weights = [w.detach().cpu().double().requires_grad_() for w in weights]
    inputs, hy, cy = [x] * d, [], []
    y = x
    for layer in range(sizes.layers):
        one = module(
            Sizes(**vars(sizes) | {"layers": 1, "inputs": inputs[0].shape[-1], "batch_first": False})
        )
        names = [name for name, _ in one.named_parameters()]
        mine = dict(zip(names, weights[layer * 4 * d :], strict=False))
        of_layer = slice(layer * d, (layer + 1) * d)
        parts = []
        for direction, read in enumerate(inputs):  # each direction reads an input of its own
            given = read if batch_sizes is None else PackedSequence(read, batch_sizes)
            state = (h[of_layer], c[of_layer]) if lstm else h[of_layer]
            out, after = torch.func.functional_call(one, mine, (given, state))
            out = out if batch_sizes is None else out.data
            parts.append(out[..., direction * sizes.hidden : (direction + 1) * sizes.hidden])
            hy.append((after[0] if lstm else after)[direction])
            cy += [after[1][direction]] if lstm else []
        y = torch.cat(parts, -1)
        if layer < sizes.layers - 1:
            inputs = [y * mask.cpu() / (1 - p) for mask in masks[layer]]
    results = [y, torch.stack(hy), *([torch.stack(cy)] if lstm else [])]
    wanted = [x, h, *([c] if lstm else []), *weights]
    return results, list(torch.autograd.grad(results, wanted, [g.cpu().double() for g in grads]))
