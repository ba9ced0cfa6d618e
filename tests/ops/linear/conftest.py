"""On a GPU the kernels of linear layers are tested by shapes of any kind, whoever is faster at those."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tables import every_call_is_ours_on_this_gpu


@pytest.fixture(autouse=True)
def _every_shape_is_ours(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    with every_call_is_ours_on_this_gpu("linear"):
        yield
