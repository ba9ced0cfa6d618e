"""Whether the rows of a batch of sequences end in padding, by looking at the numbers."""

from __future__ import annotations

import torch


def padded_lengths(batch: torch.Tensor) -> list[int] | None:
    """The lengths of the rows of ``batch`` [B, T, I] without their padding, or None if it is not padded.

    Padding is one and the same vector (zeros, or the embedding of the padding token) at the end of two rows
    or more, or of zeros at the end of one. Real data that ends so cannot be told from it; what is no padding
    for certain is ruled out: a batch whose longest row is padded, too (nobody pads beyond the longest), a row
    that is nothing else, a single step that happens to be equal to the one before.
    """
    rows, steps = batch.shape[:2]
    if rows < 2 or steps < 2 or not batch.numel():
        return None
    last = batch[:, -1:, :]
    differs = (batch != last).any(dim=2)  # [B, T]
    # The position after the last step that differs from the final one; 0 for a row that never does.
    positions = torch.arange(1, steps + 1, device=batch.device)
    ends = (differs * positions).amax(dim=1)
    of_rows = ends.tolist()
    ending = [row for row, end in enumerate(of_rows) if steps - end >= 2]
    if not ending or any(of_rows[row] == 0 for row in ending) or len(ending) == rows:
        return None
    vectors = last[ending, 0, :]
    if not bool((vectors == vectors[:1]).all()):
        return None
    if len(ending) == 1 and bool((vectors != 0).any()):
        return None
    # A row of which only the last step is that vector is padded by one step; any other is whole.
    vector = vectors[0]
    whole = (last[:, 0, :] != vector).any(dim=1).tolist()
    lengths = [steps if whole[row] else of_rows[row] for row in range(rows)]
    return lengths if max(lengths) == steps else None
