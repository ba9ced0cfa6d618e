"""How far decoded pronunciations are from the dictionary's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """The least number of insertions, deletions and substitutions that turn ``first`` into ``second``."""
    row = list(range(len(second) + 1))
    for i, left in enumerate(first, start=1):
        diagonal, row[0] = row[0], i
        for j, right in enumerate(second, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (left != right))
    return row[-1]


def phoneme_error_rate(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> float:
    """Edit distance over reference length, both summed over the (reference, decoded) pairs; 0 is perfect.

    It can exceed 1, when much more is decoded than the references hold.

    Raises:
        ValueError: the references hold no phoneme.
    """
    distance = length = 0
    for reference, decoded in pairs:
        distance += edit_distance(reference, decoded)
        length += len(reference)
    if length == 0:
        raise ValueError("no phoneme to compare with")
    return distance / length
