"""A flag that changes while calls run: each call keeps the decision that it made."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from device_on_host import library
from ops.rnn.cases import GRU, tf32_allowed
from ops.rnn.on_host_cases import TF32_TOLERANCE, load

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")


@pytest.fixture(scope="module")
def ops() -> Any:
    return load()


@pytest.mark.long
def test_tf32_toggled_by_another_thread(ops: Any) -> None:
    """One step of 56 rows is ours in TF32 and upstream's in fp32."""
    torch.manual_seed(0)
    gru = torch.nn.GRU(8, 132).requires_grad_(False)
    x, h = torch.randn(1, 24, 8), torch.randn(1, 24, 132)
    wide = torch.nn.GRU(136, 136).requires_grad_(False)
    wide_x, wide_h = torch.randn(1, 56, 136), torch.randn(1, 56, 136)
    long_x, long_h = torch.randn(2, 9, 8), torch.randn(1, 9, 132)
    cases = [(gru, x, h), (wide, wide_x, wide_h), (gru, long_x, long_h)]
    exact = []
    for module, a, b in cases:
        double = torch.nn.GRU(module.input_size, module.hidden_size).double()
        double.load_state_dict(module.state_dict())
        exact.append(double.requires_grad_(False)(a.double(), b.double())[0])
    done = threading.Event()

    def toggle() -> None:
        allowed = False
        while not done.is_set():
            allowed = not allowed
            torch._C._set_cudnn_allow_tf32(allowed)

    ran = declined = 0
    with tf32_allowed(True):
        thread = threading.Thread(target=toggle)
        thread.start()
        try:
            for i in range(90):
                module, a, b = cases[i % len(cases)]
                options = (GRU, module.hidden_size, 0, 1, False, 0.0, False, False, [], None)
                try:
                    y, *_ = torch.ops.aten_ext_on_host._cudnn_rnn(
                        a, module._flat_weights, 4, None, b, None, *options
                    )
                except RuntimeError as error:
                    assert str(error).startswith("declined: one step of a large batch"), error
                    declined += 1
                    continue
                ran += 1
                assert (y.double() - exact[i % len(cases)]).abs().max() < TF32_TOLERANCE
        finally:
            done.set()
            thread.join()
    assert ran and declined
