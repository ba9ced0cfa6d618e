"""How a packed sequence in training is cut into pieces (aten_ext/ops/rnn/pieces.h)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_on_host import library
from ops.rnn.training.on_host_cases import load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

HIDDEN = 16
SAVED = 2 * HIDDEN * 6 * 4  # bytes of a row: two directions, six coefficients in fp32
AT_ONCE = 2 * HIDDEN * 5 * 4  # gradients of four gates and of the output


def pieces_of(
    batch_sizes: list[int],
    *,
    layers: int = 1,
    hidden: int = HIDDEN,
    saved: bool = True,
    most: int = -1,
    steps: int = 1,
    half: bool = False,
    tf32: bool = False,
) -> Any:
    return load().pieces(batch_sizes, hidden, layers, saved, most, steps, half, tf32)


def pieces_alone(batch_sizes: list[int], hidden: int, half: bool = False, tf32: bool = False) -> Any:
    return load().pieces_alone(batch_sizes, hidden, half, tf32)


def batch_sizes_of(lengths: list[int]) -> list[int]:
    return [sum(length > step for length in lengths) for step in range(max(lengths))]


def beyond(batch_sizes: list[int], pieces: list[list[int]], layers: int = 1) -> int:
    """Bytes that pieces take beyond the rows that exist."""
    rows = [steps * batch for _, steps, batch, *_ in pieces]
    return (sum(rows) - sum(batch_sizes)) * layers * SAVED + max(rows) * AT_ONCE


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30),
    most=st.integers(0, 1 << 18),
    steps=st.integers(1, 20),
    layers=st.integers(1, 3),
)
def test_they_cover_all_steps_and_rows(lengths: list[int], most: int, steps: int, layers: int) -> None:
    batch_sizes = batch_sizes_of(lengths)
    pieces = pieces_of(batch_sizes, layers=layers, most=most, steps=steps)
    step = row = 0
    for first, count, batch, full, *rows in pieces:
        assert (first, batch, rows) == (step, batch_sizes[step], [row, row])
        assert full == (batch_sizes[first + count - 1] == batch)
        assert count >= min(steps, len(batch_sizes)) or first == 0
        step, row = step + count, row + count * batch
    assert step == len(batch_sizes)
    whole = [[0, len(batch_sizes), batch_sizes[0]]]
    assert beyond(batch_sizes, pieces, layers) <= beyond(batch_sizes, whole, layers)
    rows = sum(batch_sizes)
    allowed = max(most, rows * (layers * SAVED + AT_ONCE) // 16)
    if beyond(batch_sizes, whole, layers) <= allowed:
        assert len(pieces) == 1
    elif steps == 1 and allowed >= 64 * max(batch_sizes) * (layers * SAVED + AT_ONCE):
        assert beyond(batch_sizes, pieces, layers) <= allowed, "a step is little of what is allowed"


def test_a_piece_begins_where_rows_end() -> None:
    """One row of all steps, and nine that have a tenth of them: two pieces without padding."""
    batch_sizes = batch_sizes_of([100] + [10] * 9)
    pieces = pieces_of(batch_sizes, most=2 * 100 * AT_ONCE)
    assert [piece[:4] for piece in pieces] == [[0, 10, 10, True], [10, 90, 1, True]]


def test_a_piece_more_only_where_memory_asks() -> None:
    """Lengths fall evenly: no piece for small layers, a few for large ones, and never one of a few steps."""
    batch_sizes = batch_sizes_of([200 - 10 * i for i in range(16)])
    assert len(pieces_of(batch_sizes, hidden=64)) == 1
    few = pieces_of(batch_sizes, hidden=512)
    many = pieces_of(batch_sizes, hidden=512, layers=6)
    assert 1 < len(few) <= len(many) <= 16
    assert all(steps >= 12 for first, steps, *_ in many if first > 0)
    rows = [sum(steps * batch for _, steps, batch, *_ in pieces) for pieces in (few, many)]
    assert sum(batch_sizes) < rows[1] <= rows[0] < 200 * 16


def test_padding_that_takes_longer_than_a_piece() -> None:
    """Little memory, but products of rows that do not exist: two pieces, without gradients and with them."""
    batch_sizes = batch_sizes_of([24] + [2] * 63)
    two = [[0, 2, 64], [2, 22, 1]]
    assert [piece[:3] for piece in pieces_alone(batch_sizes, 512)] == two
    assert [piece[:3] for piece in pieces_of(batch_sizes, hidden=512)] == two
    # On tensor cores such rows take less; GEMMs of rows that are no whole vectors take longer.
    assert len(pieces_of(batch_sizes, hidden=256)) == len(pieces_of(batch_sizes, hidden=256, half=True)) == 1
    assert [piece[:3] for piece in pieces_of(batch_sizes, hidden=254)] == two
    assert [piece[:3] for piece in pieces_of(batch_sizes, hidden=257, half=True)] == two
    assert len(pieces_alone(batch_sizes, 200, half=True)) == 1
    assert len(pieces_alone(batch_sizes, 200, tf32=True)) == 1
    assert [piece[:3] for piece in pieces_alone(batch_sizes, 201, half=True)] == two
    assert [piece[:3] for piece in pieces_alone(batch_sizes, 201, tf32=True)] == two
    # In fp32 without gradients the kernels' own products are nearly all there is.
    assert [piece[:3] for piece in pieces_alone(batch_sizes, 32)] == [[0, 24, 64]]
    assert [piece[:3] for piece in pieces_alone(batch_sizes, 128)] == two


def test_a_piece_begins_where_most_rows_end() -> None:
    """Not as many steps from the end as padding allows: that is where the rows of two steps have ended."""
    batch_sizes = batch_sizes_of([8] * 11 + [3] * 27 + [2] * 28 + [1] * 28)
    assert [piece[:3] for piece in pieces_alone(batch_sizes, 128)] == [[0, 3, 94], [3, 5, 11]]


@pytest.mark.parametrize("hidden", [100, 192, 256, 512])
def test_a_backward_finds_the_pieces_of_its_forward(hidden: int) -> None:
    """Whether TF32 was allowed then or is now: what the forward saved lies where its pieces were."""
    batch_sizes = batch_sizes_of([40] * 3 + [9] * 20 + [2] * 63)
    assert pieces_of(batch_sizes, hidden=hidden) == pieces_of(batch_sizes, hidden=hidden, tf32=True)


def test_rows_of_a_piece_are_spread_over_as_many_groups() -> None:
    """With multiply-adds; on tensor cores groups of as many rows keep the bits."""
    rows_of_fewer = load().rows_of_fewer
    groups = [7, 3, 5 * 2 * 8]  # 45 rows in seven groups of a direction, 15 in five; clusters of eight blocks
    assert rows_of_fewer(False, False, 45, 250, 15) == [*groups, *groups]
    for half, tf32 in ((True, False), (False, True)):
        forward, fewer, _, backward, back, _ = rows_of_fewer(half, tf32, 40, 384, 9)
        assert (fewer, back) == (forward, backward)


@pytest.mark.parametrize("saves", [False, True])
def test_pieces_are_projected_together_where_memory_allows(saves: bool) -> None:
    """Gates, input and output of both directions, and of a forward that saves the padding of coefficients."""
    of_forward = 2 * (4 * HIDDEN * 4 + 2 * HIDDEN * 4)
    batch_sizes = [10, 10, 5, 5, 5, 1]
    bytes_of_all = 36 * of_forward  # each piece is full: nothing is padded
    are_together = load().are_together
    assert are_together(batch_sizes, HIDDEN, saves, bytes_of_all)
    assert not are_together(batch_sizes, HIDDEN, saves, bytes_of_all - 1)
    assert not are_together([5] * 5, HIDDEN, saves, 1 << 40), "one piece"
    # Rows end at more steps than pieces may begin at: 97 sizes in pieces of four steps and less.
    many = list(range(97, 0, -1))
    pieces = [[many[i], len(many[i : i + 4])] for i in range(0, 97, 4)]
    rows = sum(batch * steps for batch, steps in pieces)
    needed = rows * of_forward + (rows - sum(many)) * (SAVED if saves else 0)
    assert are_together(many, HIDDEN, saves, needed)
    assert not are_together(many, HIDDEN, saves, needed - 1)


@given(lengths=st.lists(st.integers(1, 9), min_size=2, max_size=12), hidden=st.sampled_from([16, 512, 1024]))
def test_pieces_of_least_time(lengths: list[int], hidden: int) -> None:
    """Of all ways to cut the steps none takes less: rows, and a piece as much as 1e9 multiply-adds' rows."""
    batch_sizes = batch_sizes_of([length * 3 for length in lengths])
    worth = int(1e9) // (2 * 4 * hidden * (8 + 24) * hidden)
    least = [0]  # of the last steps, by how many
    for begin in range(len(batch_sizes) - 1, -1, -1):
        ends = range(begin + 1, len(batch_sizes) + 1)
        least.append(
            min((end - begin) * batch_sizes[begin] + worth + least[len(batch_sizes) - end] for end in ends)
        )
    pieces = pieces_alone(batch_sizes, hidden)
    assert sum(steps * batch + worth for _, steps, batch, *_ in pieces) == least[-1]


@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=300))
def test_where_many_rows_end_apart(lengths: list[int]) -> None:
    """Of more steps at which rows end only some are tried, and the pieces have all steps and rows."""
    batch_sizes = batch_sizes_of(lengths)
    step = row = 0
    for first, count, batch, full, *rows in pieces_alone(batch_sizes, 1024):
        assert (first, batch, rows) == (step, batch_sizes[step], [row, row])
        assert full == (batch_sizes[first + count - 1] == batch)
        step, row = step + count, row + count * batch
    assert step == len(batch_sizes)
