"""Dropout between layers by our kernels, run on the CPU: cuDNN's place is taken by a generator of the test.

The masks are read from what the forward kept and given to a reference in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

from device_on_host import library
from ops.rnn.cases import flattened, tf32_allowed
from ops.rnn.training.dropout_cases import exact, masks_in, unpacked
from ops.rnn.training.on_host_cases import DTYPES, MODES, Sizes, load, module, saved_bytes
from ops.rnn.training.test_gradients_on_host import close, flat

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

P = 0.375
STATES = 16
"""Bytes of the generator's states: p, and how often it was drawn from."""


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.fixture(autouse=True)
def as_before(ops: Any) -> Iterator[None]:
    yield
    ops.let_dropout(True, 1 << 30)
    torch.ops.aten_ext_on_host_cudnn_rnn.refuse(0)


# ---- kernels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 7, 8, 9, 255, 2048, 2051, 5000])
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_kernels(ops: Any, dtype: torch.dtype, count: int, offset: int) -> None:
    """Of whole groups and not, at any alignment; what is dropped is 0, whatever it was."""
    torch.manual_seed(count)
    x = torch.randn(count + offset).to(dtype)
    x[::5], x[1::7], x[2::11] = float("nan"), float("inf"), -float("inf")
    left = torch.where(torch.rand(-(-count // 8) * 8) < P, 0.0, 0.02).half()
    left[count:] = 0.02  # behind the last one nothing counts
    mask = left[:count] > 0
    scale = torch.tensor(1.0) / (torch.tensor(1.0) - torch.tensor(P))

    def expected(t: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, t.float() * scale, 0.0)

    to, kept = ops.first_drop(x[offset:], left, P)
    assert torch.equal(unpacked(kept, count), mask)
    assert int(kept[-1]) >> (count - 1) % 8 + 1 == 0, "no bits behind the last element"
    again = ops.drop(x, kept, P, offset)
    for result in (to, again[offset:]):
        torch.testing.assert_close(result, expected(x[offset:]).to(dtype), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(again[:offset], x[:offset], rtol=0, atol=0, equal_nan=True)
    other = torch.where(torch.rand(count) < P, 0.0, 1.0)
    first, second = x[offset:].float().clone(), torch.randn(count)
    other_kept = ops.first_drop(second, torch.cat([other, left[count:]]).half(), P)[1]
    result = torch.empty(count + offset, dtype=dtype)[offset:]
    ops.drop_sum(first, second, [kept, other_kept], P, result)
    total = expected(first) + torch.where(other > 0, second * scale, 0.0)
    torch.testing.assert_close(result, total.to(dtype), rtol=0, atol=0, equal_nan=True)


# ---- operators -----------------------------------------------------------------------------------------


class Dropped:
    """A layer stack in training with dropout, its forward by our kernels, and its gradients in float64."""

    def __init__(
        self,
        ops: Any,
        sizes: Sizes,
        lengths: list[int] | None = None,
        saves: bool = False,
        p: float = P,
        seed: int = 0,
    ) -> None:
        """Run the forward. ``lengths``: of a packed sequence."""
        torch.manual_seed(seed)
        self.sizes, self.p, self.saves = sizes, p, saves
        self.directions = 2 if sizes.bidirectional else 1
        self.rnn = module(sizes)
        for w in self.rnn._flat_weights:
            w.data.copy_(w.data.to(sizes.dtype))
        self.weights = [w.detach().to(sizes.dtype) for w in self.rnn._flat_weights]
        x = torch.randn(sizes.steps, sizes.batch, sizes.inputs).to(sizes.dtype)
        self.batch_sizes = None
        if lengths is not None:
            x, self.batch_sizes, *_ = pack_padded_sequence(x, torch.tensor(lengths))
        self.x = x
        states = (sizes.layers * self.directions, sizes.batch, sizes.hidden)
        self.hx, self.cx, self.grad_hy, self.grad_cy = torch.randn(4, *states).to(sizes.dtype)
        self.columns = self.directions * sizes.hidden
        self.grad_output = torch.randn(*x.shape[:-1], self.columns).to(sizes.dtype)
        self.lstm = sizes.cell == "lstm"
        self.buffer, self.views = flattened(self.weights)
        self.states = torch.zeros(STATES, dtype=torch.uint8)
        self.y, self.hy, self.cy, self.reserve, _ = self.forward(ops, self.states)

    def sizes_of_steps(self) -> list[int]:
        return [] if self.batch_sizes is None else self.batch_sizes.tolist()

    def given(self) -> tuple[Any, ...]:
        return (self.x, self.views, 4, self.buffer, self.hx, self.cx if self.lstm else None)

    def forward(self, ops: Any, states: torch.Tensor) -> Any:
        sizes = self.sizes
        options = (MODES[sizes.cell], sizes.hidden, sizes.layers, sizes.bidirectional)
        with tf32_allowed(False):
            return ops.forward(*self.given(), *options, self.sizes_of_steps(), self.saves, self.p, states)

    def backward(self, ops: Any, **plan: Any) -> Any:
        """By the operator's own plan, or by ``plan``: chunk, part, one_launch, few_rows."""
        sizes = self.sizes
        grads = (self.grad_output, self.grad_hy, self.grad_cy if self.lstm else None)
        first = (*self.given(), self.y, *grads, MODES[sizes.cell], sizes.hidden)
        mask = [True, True, self.lstm, True]
        with tf32_allowed(False):
            if not plan:
                options = (
                    0,
                    sizes.layers,
                    False,
                    self.p,
                    True,
                    sizes.bidirectional,
                    self.sizes_of_steps(),
                    None,
                )
                return torch.ops.aten_ext_on_host._cudnn_rnn_backward(*first, *options, self.reserve, mask)
            chosen = {"chunk": 0, "part": 0, "tf32": False, "one_launch": False, "few_rows": False} | plan
            last = (self.sizes_of_steps(), self.p)
            options = (sizes.layers, False, sizes.bidirectional, self.reserve, mask)
            return ops.backward(*first, *options, *chosen.values(), *last)

    def masks(self) -> list[list[torch.Tensor]]:
        """Of each layer but the first, by direction, as the layer's input."""
        return masks_in(self.reserve, self.grad_output.shape, self.sizes.layers, self.directions)

    def exact(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Results, and gradients of what they were made from."""
        grads = [self.grad_output, self.grad_hy, *([self.grad_cy] if self.lstm else [])]
        given = (self.weights, self.x, self.hx, self.cx)
        return exact(self.sizes, *given, grads, self.masks(), self.p, self.batch_sizes)

    def results(self) -> list[torch.Tensor]:
        return [self.y, self.hy, *([self.cy] if self.lstm else [])]


HIDDEN = 24


def skip_what_is_not(cell: str, dtype: torch.dtype, saves: bool) -> None:
    if cell == "relu" and dtype != torch.float32:
        pytest.skip("states of 16 bits that are rounded to 0 have another gradient")
    if saves and cell in ("tanh", "relu"):
        pytest.skip("a state says all of its step")


FACTOR = 6.0
"""Three layers and a scale of 1.6."""


def check(ops: Any, dropped: Dropped, **plan: Any) -> None:
    sizes, dtype = dropped.sizes, dropped.sizes.dtype
    results, gradients = dropped.exact()
    close(dropped.results(), results, dtype, FACTOR)
    kept = dropped.reserve.clone()
    found = flat(dropped.backward(ops, **plan))
    close(found, gradients, dtype, FACTOR)
    assert torch.equal(kept, dropped.reserve)
    again = flat(dropped.backward(ops, **plan))
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    drawn = (sizes.layers - 1) * dropped.directions
    assert dropped.states[8:].view(torch.int64).item() == drawn, "a mask for each direction behind dropout"


LENGTHS = [9, 8, 8, 4, 4, 2, 1, 1]


@pytest.mark.parametrize("cell", list(MODES))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
@pytest.mark.parametrize("saves", [False, True], ids=["", "saves"])
@pytest.mark.parametrize(
    ("steps", "batch", "lengths"),
    [(5, 3, None), (9, 8, None), (9, 8, LENGTHS)],
    ids=["few rows", "rows", "packed"],
)
def test_both_operators(
    ops: Any,
    cell: str,
    dtype: torch.dtype,
    bidirectional: bool,
    saves: bool,
    steps: int,
    batch: int,
    lengths: list[int] | None,
) -> None:
    """By the plans of the rule, where results and gradients go by the masks that the forward kept."""
    skip_what_is_not(cell, dtype, saves)
    sizes = Sizes(cell, steps, batch, 6, HIDDEN, 3, bidirectional, dtype=dtype)
    dropped = Dropped(ops, sizes, lengths, saves)
    rows = dropped.grad_output[..., 0].numel()
    number = 2 if bidirectional else 1
    inner = 2 * -(-rows * number * HIDDEN * dtype.itemsize // 256) * 256
    saved = 3 * number * saved_bytes(cell, steps * batch, HIDDEN, dtype) if saves else 0
    bits = 2 * number * (-(-rows * number * HIDDEN // 2048) * 256)
    assert dropped.reserve.shape == (1, inner + saved + bits)
    check(ops, dropped)


@pytest.mark.parametrize("cell", list(MODES))
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
@pytest.mark.parametrize("packed", [False, True], ids=["", "packed"])
@pytest.mark.parametrize(
    "plan",
    [
        {"chunk": 4, "part": 2},
        {"chunk": 4, "part": 3, "one_launch": True},
        {"few_rows": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gates_made_again(
    ops: Any, cell: str, bidirectional: bool, packed: bool, plan: dict[str, Any], dtype: torch.dtype
) -> None:
    """From each direction's own dropped input."""
    skip_what_is_not(cell, dtype, saves=False)
    if packed and "few_rows" in plan:
        pytest.skip("packed sequences have no such plan")
    sizes = Sizes(cell, 9, 8, 6, HIDDEN, 2, bidirectional, dtype=dtype)
    check(ops, Dropped(ops, sizes, LENGTHS if packed else None), **plan)


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one direction", "two"])
@pytest.mark.parametrize("cell", ["gru", "tanh"])
def test_a_launch_for_each_step(ops: Any, cell: str, bidirectional: bool) -> None:
    sizes = Sizes(cell, 2, 3, 6, 32 if cell == "gru" else 144, 3, bidirectional)
    torch.ops.aten_ext_on_host_cudnn_rnn.launched()
    dropped = Dropped(ops, sizes)
    launched = torch.ops.aten_ext_on_host_cudnn_rnn.launched()
    assert sum("CellParams" in name for name in launched) == 6
    check(ops, dropped)


def test_each_call_has_masks_of_its_own(ops: Any) -> None:
    dropped = Dropped(ops, Sizes("gru", 4, 3, 5, 16, 3, True))
    masks = list(itertools.chain(*dropped.masks()))
    again = dropped.forward(ops, dropped.states)
    same_states = torch.zeros(STATES, dtype=torch.uint8)
    repeated = dropped.forward(ops, same_states)
    assert all(not torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])
    assert not torch.equal(again[0], dropped.y) and torch.equal(repeated[0], dropped.y)
    dropped.reserve = repeated[3]
    assert all(torch.equal(a, b) for a, b in zip(masks, list(itertools.chain(*dropped.masks())), strict=True))


def test_refusals(ops: Any) -> None:
    """Before a mask is drawn the call is upstream's; after it is an error, not other masks."""
    dropped = Dropped(ops, Sizes("gru", 4, 3, 5, 16, 3, True))
    states = torch.zeros(STATES, dtype=torch.uint8)
    ops.let_dropout(False, 1 << 30)
    with pytest.raises(RuntimeError, match="declined late"):
        dropped.forward(ops, states)
    assert not states.any()
    ops.let_dropout(True, 0)
    with pytest.raises(RuntimeError, match="declined late"):
        dropped.forward(ops, states)
    ops.let_dropout(True, 1)
    with pytest.raises(RuntimeError, match="launches behind dropout"):
        dropped.forward(ops, states)
    ops.let_dropout(True, 1 << 30)
    late, behind = "declined late", "launches behind dropout"
    # Each layer has a projection and a recurrence, and between them are the masks of both directions.
    for after, message in ((0, late), (1, late), (4, behind), (5, behind)):
        torch.ops.aten_ext_on_host_cudnn_rnn.refuse(1, after)
        with pytest.raises(RuntimeError, match=message):
            dropped.forward(ops, states)
