"""Times ``at::_fused_adamw_`` in C++ with and without aten_ext: the process behind ``entry``.

Run as a script. It compiles the call once with ``torch.utils.benchmark.Timer(language="c++")`` and then forks
two processes, one that imports aten_ext and one that imports it with ATEN_EXT=0. Both therefore hold the same
code at the same addresses, and both stay on one core, since they take turns: only the registration differs.

On stdin: {"sys_path": [...]}, then any number of {"state": "disabled" or "declining", "seconds": ...}; stdout
answers each of those by one line. Samples are in microseconds per call.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.benchmark import Timer

CALLS = 1000
"""Calls of one sample, about a millisecond."""
FEWEST_ROUNDS = 15
STEPS_VARIABLE = "ATEN_EXT_BENCH_STEPS"
OVERRIDE = "_fused_adamw_"

INCLUDES = """
#include <ATen/ATen.h>
#include <cstdlib>
#include <string>
"""
# It runs before every sample, outside its clock, so each sample has its tensors in new places.
SETUP = f"""
torch::NoGradGuard no_grad;
const char* asked = std::getenv("{STEPS_VARIABLE}");
const auto step_type = asked != nullptr && std::string(asked) == "float64" ? at::kDouble : at::kFloat;
std::vector<at::Tensor> parameters, gradients, moments, squares, largest, steps;
for (int index = 0; index < 2; ++index) {{
  parameters.push_back(at::randn({{4}}));
  gradients.push_back(at::randn({{4}}));
  moments.push_back(at::randn({{4}}));
  squares.push_back(at::rand({{4}}) + 0.5);
  steps.push_back(at::ones({{}}, step_type));
}}
"""
CALL = """
at::_fused_adamw_(parameters, gradients, moments, squares, largest, steps,
                  1e-3, 0.9, 0.999, 0.01, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
"""


def _fork() -> int:
    """``os.fork`` without Python 3.12's warning of other threads: nothing was given them to do yet."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class Side:
    """A forked process that times calls on request."""

    def __init__(self, timer: Timer, registered: bool) -> None:
        requests_in, requests_out = os.pipe()
        answers_in, answers_out = os.pipe()
        if _fork() == 0:
            os.close(requests_out)
            os.close(answers_in)
            code = 1
            try:
                _serve(timer, registered, os.fdopen(requests_in), os.fdopen(answers_out, "w"))
                code = 0
            finally:
                if code:
                    sys.excepthook(*sys.exc_info())
                    sys.stderr.flush()
                # Not sys.exit(): the exit handlers, which delete the compiled module, are the parent's.
                os._exit(code)
        os.close(requests_in)
        os.close(answers_out)
        self._requests, self._answers = os.fdopen(requests_out, "w"), os.fdopen(answers_in)

    def ask(self, **request: object) -> Any:
        """Send one request and wait for its answer."""
        print(json.dumps(request), file=self._requests, flush=True)
        line = self._answers.readline()
        if not line:
            raise SystemExit(1)
        return json.loads(line)


def _serve(timer: Timer, registered: bool, requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until there are none: "counts", or the time of ``CALLS`` calls in a given state."""
    os.environ["ATEN_EXT"] = str(int(registered))
    import aten_ext

    for line in requests:
        request = json.loads(line)
        answer: object
        if "counts" in request:
            answer = _outcomes() if registered else {}
        else:
            os.environ[STEPS_VARIABLE] = request["steps"]
            if registered:
                (aten_ext.enable if request["enabled"] else aten_ext.disable)(OVERRIDE)
            answer = timer.timeit(CALLS).median * 1e6
        print(json.dumps(answer), file=answers, flush=True)


def _outcomes() -> Mapping[str, int]:
    """Calls by outcome since the last time."""
    import aten_ext

    counts = aten_ext.counts(key="CPU")[OVERRIDE]
    outcomes = {"ran": counts.ran, "disabled": counts.disabled}
    outcomes |= {f"declined: {reason}": calls for reason, calls in counts.declined.items()}
    aten_ext.reset_counts()
    return outcomes


def _sample(upstream: Side, ours: Side, state: str, seconds: float) -> dict[str, object]:
    """Alternate the two processes for about ``seconds``."""
    call = {"steps": "float64" if state == "declining" else "float32", "enabled": state == "declining"}
    for side in (upstream, ours):
        side.ask(**call)
    ours.ask(counts=True)
    times: dict[Side, list[float]] = {upstream: [], ours: []}
    start = time.perf_counter()
    while len(times[ours]) < FEWEST_ROUNDS or time.perf_counter() - start < seconds:
        for side in ((upstream, ours), (ours, upstream))[len(times[ours]) % 2]:
            times[side].append(side.ask(**call))
    return {"upstream": times[upstream], "ours": times[ours], "counts": ours.ask(counts=True)}


def main() -> None:
    """Serve stdin until it ends."""
    # Whatever prints (a compiler, a library) goes to stderr; the answers keep stdout to themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[:] = json.loads(sys.stdin.readline())["sys_path"]
    import torch
    from torch.utils.benchmark import Timer

    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    timer = Timer(CALL, SETUP, INCLUDES, num_threads=1, language="c++")
    timer.timeit(1)
    upstream, ours = Side(timer, registered=False), Side(timer, registered=True)
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(_sample(upstream, ours, **request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
