"""The kernels of cat are tested by calls of a few elements, whoever is faster at those."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tables import every_call_is_ours_on_this_gpu

GPU = ("NVIDIA H200", 90, 132)


@pytest.fixture(autouse=True)
def _every_kind_is_ours(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test with the fixture ``crossover`` asks the shipped table."""
    if "crossover" in request.fixturenames or "cat" not in torch.ops.aten_ext.table_families():
        yield
        return
    if request.node.get_closest_marker("gpu") is not None:
        with every_call_is_ours_on_this_gpu("cat"):
            yield
        return
    percent = torch.full(list(torch.ops.aten_ext.table_shape("cat")), 255, dtype=torch.uint8)
    torch.ops.aten_ext.add_table("cat", *GPU, True, percent)
    yield
    torch.ops.aten_ext.remove_table("cat", GPU[0], GPU[2])


@pytest.fixture
def crossover() -> None:
    """The shipped table decides."""
