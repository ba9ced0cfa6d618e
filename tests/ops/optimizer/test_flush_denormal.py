"""The fused steps on CPU under torch.set_flush_denormal, which changes the thread that calls it and no other.

In a process of their own: the threads of the pool take the mode of the one that starts them, for good.
"""

from __future__ import annotations

import textwrap

import pytest
import torch

import processes
from paths import TESTS

STEPS = ("_fused_adamw_", "_fused_adam_", "_fused_sgd_", "_fused_adagrad_")
pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="this CPU has no AVX2"
)

PROGRAM = """
import sys
import torch
import aten_ext
from ops.optimizer.step_suite import Maker, Step
from ops.optimizer.test_adagrad import make as make_adagrad
from ops.optimizer.test_sgd import make as make_sgd

def make_adam(maker, op):
    lists = {"params": maker.many(), "grads": maker.many(), "exp_avgs": maker.many(),
             "exp_avg_sqs": maker.many(positive=True), "max": [], "steps": maker.steps()}
    options = dict(lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)
    return Step(op, lists, options, ("params", "exp_avgs", "exp_avg_sqs"))

def make(op):
    # Two lengths that no number of threads divides alike.
    maker = Maker([(40_000,), (25_536,)])
    others = {"_fused_sgd_": make_sgd, "_fused_adagrad_": make_adagrad}
    step = others[op](maker) if op in others else make_adam(maker, op)
    for name in (*step.written, "grads"):
        for t in step.lists[name]:
            t.fill_(3e-39)  # denormal
    return step

def run(op):
    step = make(op)
    theirs = step.upstream()
    aten_ext.reset_counts()
    step.call()
    counts = aten_ext.counts("CPU")[op]
    differ = sum(int((a.view(torch.int32) != b.view(torch.int32)).sum())
                 for name in step.written
                 for a, b in zip(step.lists[name], theirs.lists[name]))
    zeros = sum(int((t == 0).sum()) for name in step.written for t in theirs.lists[name])
    if differ:  # only where ours kept what upstream flushed
        assert all(t.count_nonzero() == t.numel() for name in step.written for t in step.lists[name])
    return counts.ran, dict(counts.declined), differ, zeros > 0

def start_threads():
    torch.ones(1_000_000).add_(1)

def replace_a_thread():
    for count in (2, 3):
        torch.set_num_threads(count)
        start_threads()

op, when = sys.argv[1:]
torch.set_num_threads(3)
if when == "after the threads":
    start_threads()
if when == "unseen":
    print(run(op))
torch.set_flush_denormal(True)
if when == "before those of a caller that does not":
    start_threads()
elif when == "unseen":
    replace_a_thread()
else:
    print(run(op))
torch.set_flush_denormal(False)
if when != "before the threads":
    print(run(op))
if when == "before those of a caller that does not":
    replace_a_thread()
    torch.set_flush_denormal(True)
    print(run(op))
    torch.set_flush_denormal(False)
    print(run(op))
if when == "unseen":
    print(run(op))
"""


def printed(op: str, when: str) -> list[str]:
    run = processes.python("-c", textwrap.dedent(PROGRAM), op, when, cwd=TESTS)
    assert run.stderr == ""
    return run.stdout.splitlines()


@pytest.mark.parametrize("op", STEPS)
def test_threads_that_do_not_flush(op: str) -> None:
    """Upstream flushes what it deals to the calling thread; ours would deal it another part."""
    on, off = printed(op, "after the threads")
    assert on == "(0, {'flush-denormal is on': 1}, 0, True)"
    assert off == "(1, {}, 0, False)", "denormals are kept, and the fused step is back"


@pytest.mark.parametrize("op", STEPS)
def test_threads_that_flush(op: str) -> None:
    """Started by a thread that flushes, they do too."""
    assert printed(op, "before the threads") == ["(0, {'flush-denormal is on': 1}, 0, True)"]


@pytest.mark.parametrize("op", STEPS)
def test_threads_that_flush_for_a_caller_that_does_not(op: str) -> None:
    """They keep the mode of their start: only upstream knows which elements it deals to them."""
    otherwise = "(0, {'threads that flush denormals otherwise': 1}, 0, True)"
    first, flushing, one_of_two = printed(op, "before those of a caller that does not")
    assert first == otherwise
    assert flushing == "(0, {'flush-denormal is on': 1}, 0, True)"
    assert one_of_two == otherwise, "one of two threads was started anew"


@pytest.mark.parametrize("op", STEPS)
def test_threads_that_were_asked_and_replaced(op: str) -> None:
    """Not seen before the step, which keeps the caller's mode in all threads; seen by the next."""
    before, step, after = printed(op, "unseen")
    assert before == "(1, {}, 0, False)"
    ran, declined, differ, zeros = eval(step)
    assert (ran, declined, zeros) == (1, {}, True) and differ > 0, "upstream flushes in one thread, ours not"
    assert after == "(0, {'threads that flush denormals otherwise': 1}, 0, True)"
