"""Checks of a forward and a backward that are a pair, each a function; for a process of their own.

Prints one JSON object: the name of each check, and "" or what went wrong. The forward of ours doubles, its
backward triples; upstream's dropout with p = 0 does neither.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from compiled_overrides import load  # noqa: E402

BACKWARD = "native_dropout_backward"
OURS, UPSTREAM = 3.0, 1.0


def enable(name: str, enabled: bool) -> None:
    torch.ops.aten_ext_paired.set_enabled(name, enabled)


def counts(name: str) -> list[int]:
    """Ran, disabled, declined, late."""
    result: list[int] = torch.ops.aten_ext_paired.counts(name)
    return result


def forward(x: torch.Tensor) -> torch.Tensor:
    return torch.native_dropout(x, 0.0, True)[0]


def gradient(y: torch.Tensor, x: torch.Tensor) -> float:
    (found,) = torch.autograd.grad(y.sum(), [x])
    assert bool((found == found[0]).all())
    return float(found[0])


def fresh() -> torch.Tensor:
    return torch.ones(5, requires_grad=True)


def check_both_are_ours() -> None:
    x = fresh()
    y = forward(x)
    assert float(y[0].detach()) == 2.0 and gradient(y, x) == OURS
    assert counts("native_dropout") == [1, 0, 0, 0] and counts(BACKWARD) == [1, 0, 0, 0]


def check_disabled_between_forward_and_backward() -> None:
    x = fresh()
    y = forward(x)
    enable("*", False)
    assert gradient(y, x) == OURS
    assert counts(BACKWARD) == [1, 0, 0, 0]


def check_backward_disabled_from_the_start() -> None:
    enable(BACKWARD, False)
    x = fresh()
    assert gradient(forward(x), x) == OURS


def check_enabled_between_forward_and_backward() -> None:
    enable("*", False)
    x = fresh()
    y = forward(x)
    enable("*", True)
    assert gradient(y, x) == UPSTREAM
    assert counts("native_dropout") == [0, 1, 0, 0] and counts(BACKWARD) == [0, 0, 1, 0]


def check_all_disabled() -> None:
    enable("*", False)
    x = fresh()
    assert gradient(forward(x), x) == UPSTREAM
    assert counts(BACKWARD) == [0, 1, 0, 0]


def check_disabled_in_another_thread() -> None:
    stop = threading.Event()

    def toggle() -> None:
        while not stop.is_set():
            enable("*", False)
            enable("*", True)

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        for _ in range(300):
            x = fresh()
            y = forward(x)
            expected = OURS if float(y[0].detach()) == 2.0 else UPSTREAM
            assert gradient(y, x) == expected
    finally:
        stop.set()
        thread.join()


def check_two_graphs_alive_at_once() -> None:
    ours, theirs = fresh(), fresh()
    y = forward(ours)
    enable("*", False)
    z = forward(theirs)
    assert gradient(z, theirs) == UPSTREAM and gradient(y, ours) == OURS


def check_retained_graph() -> None:
    x = fresh()
    y = forward(x).sum()
    first, second = (torch.autograd.grad(y, [x], retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second) and float(first[0]) == OURS


def check_saved_tensors_cloned_and_moved() -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
        x = fresh()
        assert gradient(forward(x), x) == OURS
    with torch.autograd.graph.save_on_cpu():
        x = fresh()
        y = forward(x)
    enable("*", False)
    assert gradient(y, x) == OURS


def check_checkpointed() -> None:
    for reentrant in (True, False):
        x = fresh()
        y = checkpoint(forward, x, use_reentrant=reentrant)
        assert gradient_by_backward(y, x) == OURS
    enable("*", False)
    for reentrant in (True, False):
        x = fresh()
        y = checkpoint(forward, x, use_reentrant=reentrant)
        assert gradient_by_backward(y, x) == UPSTREAM


def gradient_by_backward(y: torch.Tensor, x: torch.Tensor) -> float:
    y.sum().backward()
    assert x.grad is not None
    return float(x.grad[0])


def check_watched() -> None:
    torch.ops.aten_ext_paired.watch(True)
    try:
        x = fresh()
        y = forward(x)
        enable("*", False)
        assert gradient(y, x) == OURS
    finally:
        torch.ops.aten_ext_paired.watch(False)
    assert counts(BACKWARD) == [1, 0, 0, 0]


def check_a_refused_backward_is_an_error() -> None:
    x = fresh()
    y = forward(x)
    torch.ops.aten_ext_paired.refuse()
    try:
        gradient(y, x)
    except RuntimeError as error:
        assert "native_dropout_backward] expected the GPU to take the launch" in str(error)
    else:
        raise AssertionError("upstream cannot read what ours has saved")
    assert counts(BACKWARD) == [0, 0, 0, 1]


def check_arguments_that_do_not_fit_are_an_error() -> None:
    reserve = torch.zeros(1, 3, dtype=torch.uint8)
    try:
        torch.ops.aten.native_dropout_backward(torch.ones(5), reserve, 1.0)
    except RuntimeError as error:
        assert "gradient of another size" in str(error)
    else:
        raise AssertionError("upstream cannot read what ours has saved")


def main() -> None:
    """Run every check."""
    load()
    answers = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            torch.ops.aten_ext_paired.reset()
            try:
                check()
                answers[name.removeprefix("check_")] = ""
            except Exception:
                answers[name.removeprefix("check_")] = traceback.format_exc()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
