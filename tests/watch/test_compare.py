"""The comparison behind shadow mode: distances, NaN, layouts, and which of many is the worst."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

FIELDS = ("elements", "different", "nan", "layouts", "absolute", "relative", "ulp", "worst", "layout")


def compare(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> dict[str, Any]:
    return dict(zip(FIELDS, torch.ops.aten_ext.compare_lists(ours, theirs), strict=True))


def reference(ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """The same one number at a time, with Python's integers."""
    width = ours.dtype.itemsize * 8
    bits = np.dtype(f"u{ours.dtype.itemsize}")

    def ordered(number: int) -> int:
        return number if number < 1 << (width - 1) else -(number - (1 << (width - 1))) - 1

    result = dict(different=0, nan=0, absolute=0.0, relative=0.0, ulp=0.0)
    pairs = zip(ours, theirs, ours.view(bits), theirs.view(bits), strict=True)
    for a, b, a_bits, b_bits in pairs:
        x, y = float(a), float(b)
        if math.isnan(x) or math.isnan(y):
            result["nan"] += math.isnan(x) != math.isnan(y)
            result["different"] += math.isnan(x) != math.isnan(y)
            continue
        ulp = abs(ordered(int(a_bits)) - ordered(int(b_bits)))
        distance = 0.0 if x == y else abs(x - y)
        relative = distance
        if 0 < distance < math.inf:
            relative = distance / abs(y) if y else math.inf
        result["different"] += ulp != 0
        for name, value in (("absolute", distance), ("relative", relative), ("ulp", float(ulp))):
            result[name] = max(result[name], value)
    return result


FLOAT = st.floats(width=64) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 5e-324])


@given(st.lists(st.tuples(FLOAT, FLOAT, st.booleans()), min_size=1, max_size=20), st.sampled_from("efd"))
def test_floating_point_distances(pairs: list[tuple[float, float, bool]], code: str) -> None:
    with np.errstate(over="ignore", under="ignore"):
        theirs = np.array([b for _, b, _ in pairs], dtype=np.dtype(code))
        ours = np.array([a for a, _, _ in pairs], dtype=np.dtype(code))
        # Neighbours, too: independent numbers are far apart.
        close = np.array([near for *_, near in pairs])
        ours = np.where(close, np.nextafter(theirs, np.array(np.inf, theirs.dtype)), ours)
    found = compare([torch.from_numpy(ours)], [torch.from_numpy(theirs)])
    expected = reference(ours, theirs)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert (found["elements"], found["layouts"]) == (len(pairs), 0)


def test_bfloat16() -> None:
    ours, theirs = torch.tensor([1.0, 2.0, -3.0]).bfloat16(), torch.tensor([1.0, 2.0, -3.0]).bfloat16()
    ours.view(torch.int16)[2] += 5
    found = compare([ours], [theirs])
    assert (found["ulp"], found["different"], found["absolute"]) == (5, 1, 5 * 2**-6)


def test_exponents_without_a_sign() -> None:
    """Of float8_e8m0fnu all eight bits are the exponent, which goes on above 127."""
    ours, theirs = (torch.tensor(bits, dtype=torch.uint8) for bits in ([100, 127, 200], [200, 130, 200]))
    found = compare([ours.view(torch.float8_e8m0fnu)], [theirs.view(torch.float8_e8m0fnu)])
    assert (found["different"], found["ulp"]) == (2, 100)


def test_integers_booleans_and_complex() -> None:
    big = 2**62
    found = compare([torch.tensor([big + 1, 5])], [torch.tensor([big, 5])])
    assert (found["different"], found["absolute"], found["ulp"]) == (1, 1, 1)
    found = compare([torch.tensor([True, False])], [torch.tensor([True, True])])
    assert (found["different"], found["ulp"]) == (1, 1)
    found = compare([torch.tensor([1 + 2j])], [torch.tensor([1 + 4j])])
    assert (found["elements"], found["different"], found["absolute"], found["relative"]) == (2, 1, 2, 0.5)


@pytest.mark.parametrize(
    ("ours", "theirs", "layout"),
    [
        (torch.ones(2), torch.ones(3), "shape [2] instead of [3]"),
        (torch.ones(2), torch.ones(2).double(), "dtype Float instead of Double"),
        (torch.ones(2, 2), torch.ones(2, 2).t(), "strides [2, 1] instead of [1, 2]"),
    ],
)
def test_layouts_that_differ(ours: torch.Tensor, theirs: torch.Tensor, layout: str) -> None:
    found = compare([torch.ones(1), ours], [torch.ones(1), theirs])
    assert (found["layouts"], found["layout"], found["different"]) == (1, f"tensor[1]: {layout}", 0)


def test_strides_that_no_element_uses_are_alike() -> None:
    found = compare([torch.ones(1, 3).as_strided((1, 3), (9, 1))], [torch.ones(1, 3)])
    assert (found["layouts"], found["different"]) == (0, 0)


def test_transposed_and_overlapping_memory() -> None:
    ours = torch.arange(6.0).reshape(2, 3).t()
    theirs = ours.clone()
    theirs[2, 1] += 1
    found = compare([ours], [theirs.contiguous()])
    assert (found["different"], found["absolute"], found["layouts"]) == (1, 1, 1)
    assert compare([torch.ones(1).expand(5)], [torch.ones(5)])["different"] == 0


def test_the_worst_of_many_across_chunks() -> None:
    """Small results are compared together and large ones in parts; the name is right in both."""
    ours = [torch.zeros(3) for _ in range(100)] + [torch.zeros((1 << 20) + 7)] + [torch.zeros(2)]
    theirs = [t.clone() for t in ours]
    for index, element, value in ((41, 2, 1e-45), (100, 1 << 20, 1e-43), (101, 1, 1e-44)):
        theirs[index][element] = value
    found = compare(ours, theirs)
    assert (found["different"], found["worst"]) == (3, "tensor[100]")
    assert found["elements"] == 300 + (1 << 20) + 9
