"""Threads and every override: switches that change meanwhile, graphs captured beside, fewer processors."""

from __future__ import annotations

import functools
import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import aten_ext
import captures
import flags
from paths import ROOT, TESTS
from programs.override_calls import (
    CALLS,
    Call,
    assert_same,
    classes,
    distance,
    floor,
    is_exact,
    keys_of,
)

CALLERS = 4
MANY = 256
"""Elements of which an error in TF32 is no chance."""
BF16_ROUNDING = 2.0**-8
# Of the process: a switch of a thread means nothing to others. None that makes upstream raise.
SWITCHES = {
    "CPU": (
        "set_float32_matmul_precision high",
        "set_float32_matmul_precision medium",
        "no mkldnn",
        "mkldnn deterministic",
        "use_deterministic_algorithms",
    ),
    "CUDA": (
        "matmul.allow_tf32",
        "matmul.allow_fp16_accumulation",
        "matmul.allow_bf16_reduced_precision_reduction, no split",
        "set_float32_matmul_precision medium",
        "preferred_blas_library cublaslt",
        "deterministic algorithms, warnings",
        "cudnn.deterministic",
        "cudnn.allow_tf32",
        "cudnn.enabled",
    ),
}


def rows(key: str) -> list[tuple[str, Call]]:
    return [
        (name, call) for name in CALLS if key in keys_of(name) for call in CALLS[name] if key in call.keys
    ]


class Answers:
    """What a call may return: upstream's bits, or no further from float64 than upstream under some switch."""

    def __init__(self, name: str, call: Call, key: str) -> None:
        """Asks upstream, under each switch."""
        self.call, self.device = call, key.lower()
        # A unit of relu that TF32 moves across zero loses or gains its gradient: under two switches in one
        # call upstream, too, is up to 45 times as far from float64 as under each of them.
        self.is_by_chance = key == "CUDA" and call.differentiates and "relu" in call.name
        self.exact = None
        with aten_ext.disabled():
            self.upstreams = call.results(self.device)
            if is_exact(name, key):
                return
            self.exact = call.results(self.device, torch.double)
            self.distances = self._distances(self.upstreams)
            for switch in SWITCHES[key]:
                with flags.changed([switch]):
                    others = self._distances(call.results(self.device))
                self.distances = [max(two) for two in zip(self.distances, others, strict=True)]
            # Under two switches within one call products on the CPU may be in bf16: upstream's of an LSTM
            # that is not oneDNN's layer (without gradients in 6 of 17,094 calls, which all went upstream),
            # and any for which less is allowed just before it begins.
            if key == "CPU" and (call.differentiates or name == "lstm.input"):
                roundings = [BF16_ROUNDING * float(t.square().mean().sqrt()) for t in self.exact]
                self.distances = [max(two) for two in zip(self.distances, roundings, strict=True)]

    def _distances(self, results: list[Tensor]) -> list[float]:
        assert self.exact is not None
        return [distance(a, truth) for a, truth in zip(results, self.exact, strict=True)]

    def check(self, results: list[Tensor]) -> None:
        """These results are among them."""
        if self.exact is None:
            assert_same(results, self.upstreams, None)
            return
        assert len(results) == len(self.upstreams)
        for i, (a, b, truth, allowed) in enumerate(
            zip(results, self.upstreams, self.exact, self.distances, strict=True)
        ):
            assert (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device), i
            assert torch.equal(classes(a), classes(b)), i
            if self.is_by_chance:
                continue
            # A call may run under two of the switches, one in forward and one in backward: TF32 of few
            # elements is then chance.
            factor = 4.0 if a.numel() < MANY else 1.5
            assert distance(a, truth) <= factor * allowed + floor(a, truth), i


def run_together(workers: list[Callable[[], None]]) -> None:
    """Each in a thread; raises what the first of them raises."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    # Python changes threads every 5 ms otherwise.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=guarded, args=(work,)) for work in workers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=300)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("key", ["CPU", pytest.param("CUDA", marks=pytest.mark.gpu)])
def test_switches_that_change_while_threads_call(key: str) -> None:
    """Each call keeps the decision that it made: right by one of the states, and counted once."""
    answers = [(name, Answers(name, call, key)) for name, call in rows(key)]
    overrides = [name for name in CALLS if key in keys_of(name)]
    at_work = [threading.Event() for _ in range(CALLERS)]
    for event in at_work:
        event.set()
    set_once = set()

    def caller(index: int) -> None:
        order = answers * 3
        random.Random(index).shuffle(order)
        try:
            for name, answer in order:
                try:
                    answer.check(answer.call.results(answer.device))
                except AssertionError as error:
                    raise AssertionError(f"{name}, {answer.call.name}: {error}") from error
        finally:
            at_work[index].clear()

    def toggle() -> None:
        turns = zip(itertools.cycle(SWITCHES[key]), itertools.cycle(overrides), strict=False)
        for switch, override in itertools.takewhile(lambda _: any(e.is_set() for e in at_work), turns):
            with flags.changed([switch]):
                time.sleep(1e-4)
                aten_ext.disable(override)
                time.sleep(1e-4)
                aten_ext.enable(override)
            set_once.add(switch)

    aten_ext.reset_counts()
    run_together([*(functools.partial(caller, i) for i in range(CALLERS)), toggle])
    assert set_once == set(SWITCHES[key])
    for name in overrides:
        count = aten_ext.counts(key)[name]
        total = count.ran + count.late + count.disabled + sum(count.declined.values())
        # Without cuDNN, and with another override off, upstream goes another way on a GPU.
        expected = 3 * CALLERS * sum(key in call.keys for call in CALLS[name]) if key == "CPU" else 1
        assert total >= expected, name


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in CALLS if "CUDA" in keys_of(name)])
def test_graph_captured_while_another_thread_calls(name: str) -> None:
    """The replay is right, and so are the calls beside; where upstream cannot be captured, neither are we."""
    for call in CALLS[name]:
        if "CUDA" in call.keys:
            try:
                with aten_ext.disabled():
                    theirs = capture_beside(name, call)
            except RuntimeError as error:  # cuDNN's own calls beside a capture
                pytest.skip(f"upstream: {error}")
            aten_ext.reset_counts()
            assert capture_beside(name, call) in (None, theirs), call.name
            count = aten_ext.counts("CUDA")[name]
            assert count.ran + sum(count.declined.values()) > 0, call.name


def capture_beside(name: str, call: Call) -> str | None:
    """Captures and replays in one thread, calls in another. Returns the type of the capture's error."""
    answer = Answers(name, call, "CUDA")
    call.results("cuda")  # modules are loaded, cuDNN's and cuBLAS's state is there
    torch.cuda.synchronize()
    captured, called = threading.Event(), threading.Event()
    errors: list[str | None] = []

    def capture() -> None:
        try:
            for _ in range(3):
                called.clear()
                arguments, graph, stream = call.make("cuda"), torch.cuda.CUDAGraph(), torch.cuda.Stream()
                torch.cuda.synchronize()
                try:
                    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                        results = call.results_of(arguments)
                        called.wait(timeout=30)  # at least one call beside ends during the capture
                except RuntimeError as error:
                    errors.append(type(error).__name__)
                    return
                with torch.cuda.stream(stream):
                    graph.replay()
                stream.synchronize()
                answer.check(results)
            errors.append(None)
        finally:
            captured.set()

    def beside() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not captured.is_set():
                answer.check(call.results("cuda"))
                called.set()

    with captures.may_break():
        run_together([capture, beside])
        torch.cuda.synchronize()
    return errors[0]


# Ends with 3 where there are no green contexts. Prints the counts of a large layer.
FEW_PROCESSORS = """
import sys
sys.path[:0] = sys.argv[1:]
import torch
import aten_ext
from programs.override_calls import CALLS
from programs.test_threads_and_flags import Answers, rows

try:
    from torch.cuda.green_contexts import GreenContext
    torch.zeros(1, device="cuda")
    context = GreenContext.create(num_sms=8, device_id=0)
except (ImportError, RuntimeError) as error:
    print(error)
    sys.exit(3)
answers = [
    (name, Answers(name, call, "CUDA")) for name, call in rows("CUDA") if not call.differentiates
]
gru = torch.nn.GRU(512, 1024).cuda().requires_grad_(False)
x = torch.randn(50, 32, 512, device="cuda")
with aten_ext.disabled():
    theirs = gru(x)[0]
torch.cuda.synchronize()

context.set_context()
results = [answer.call.results("cuda") for _, answer in answers]
aten_ext.reset_counts()
ours = gru(x)[0]
torch.cuda.synchronize()
context.pop_context()
count = aten_ext.counts("CUDA")["_cudnn_rnn"]

for (name, answer), result in zip(answers, results):
    try:
        answer.check(result)
    except AssertionError as error:
        raise AssertionError(f"{name}, {answer.call.name}: {error}") from error
torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
aten_ext.reset_counts()
gru(x)
whole = aten_ext.counts("CUDA")["_cudnn_rnn"]
print((count.ran, count.late, whole.ran, whole.late))
"""


@pytest.mark.gpu
def test_green_context() -> None:
    """Eight multiprocessors: every call is right, and a layer that needs more goes upstream.

    Without backward: autograd's own threads stay outside the context, and nothing orders their work behind
    that of the context's default stream.
    """
    run = subprocess.run(
        [sys.executable, "-c", FEW_PROCESSORS, str(TESTS), str(ROOT / "scripts/lib")],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=TESTS,
    )
    if run.returncode == 3:
        pytest.skip(f"no green contexts: {run.stdout.strip()}")
    assert run.returncode == 0, run.stderr
    ran, late, whole_ran, whole_late = map(int, run.stdout.strip().strip("()").split(","))
    assert (whole_ran, whole_late) == (1, 0)
    assert (ran, late) == (0, 1)
