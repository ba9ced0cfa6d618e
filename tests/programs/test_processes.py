"""Threads, processes, files, other plugins, and the end of the interpreter: value and route."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.utils.data import DataLoader

import aten_ext
from paths import TESTS
from programs.cases import Case, each
from programs.routes import asked, eager_route, is_exact, without_cudnn_tf32
from programs.workers import StepsOfAWorker, call_case, call_into_queue
from torch_databases.comparison import differences


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own, which ends as one."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ATEN_EXT")}
    path = os.pathsep.join([str(TESTS), *filter(None, [inherited.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def _upstream(case: Case) -> list[torch.Tensor]:
    with aten_ext.disabled():
        tensors: list[torch.Tensor] = call_case(case.name)["tensors"]
    return tensors


# ---- threads and processes -----------------------------------------------------------------------------


@each()
@without_cudnn_tf32()
def test_threads(case: Case, device: str) -> None:
    """Many threads at once: every result as alone, and no call uncounted."""
    plain = eager_route(case, device)
    with aten_ext.disabled():
        arguments = case.make(device)
        expected = case.call(*arguments), arguments
    aten_ext.reset_counts()
    wrong: list[str] = []

    def work() -> None:
        for _ in range(25):
            arguments = case.make(device)
            found = case.call(*arguments), arguments
            wrong.extend(differences(found, expected, exact=is_exact(case, device)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert asked(case, device.upper()) == {name: (200 * r, 200 * d) for name, (r, d) in plain.items()}


@pytest.mark.long
@each()
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_data_loader_workers(case: Case, start: str) -> None:
    """Overrides are there in a DataLoader's workers, forked or spawned, and in its default collation."""
    if start == "spawn" and case.name not in ("adamw", "cat"):
        pytest.skip("starting processes takes seconds; adamw and cat stand for all")
    plain, expected = eager_route(case, "cpu"), _upstream(case)
    loader = DataLoader(
        StepsOfAWorker(case.name), batch_size=3, num_workers=2, multiprocessing_context=start, timeout=120
    )
    batches = list(loader)
    assert len(batches) == 2
    for batch in batches:
        assert os.getpid() not in batch["pid"].tolist()
        assert batch["ran"].tolist() == [sum(ran for ran, _ in plain.values())] * 3
        assert batch["declined"].tolist() == [sum(declined for _, declined in plain.values())] * 3
        for found, theirs in zip(batch["tensors"], expected, strict=True):
            assert not [*differences(found, torch.stack([theirs] * 3), exact=is_exact(case, "cpu"))]


@each()
def test_forked_process(case: Case) -> None:
    """A process forked while overrides are on, and off: it inherits the flags, and counts for itself."""
    plain, expected = eager_route(case, "cpu"), _upstream(case)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def in_child() -> dict[str, Any]:
        process = context.Process(target=call_into_queue, args=(case.name, queue))
        process.start()
        found: dict[str, Any] = queue.get(timeout=120)
        process.join(120)
        assert process.exitcode == 0
        return found

    aten_ext.reset_counts()
    on = in_child()
    with aten_ext.disabled():
        off = in_child()
    assert on["ran"] == sum(ran for ran, _ in plain.values()) and off["ran"] == off["declined"] == 0
    assert off["tensors"] == [t.tolist() for t in expected]
    for found, theirs in zip(on["tensors"], expected, strict=True):
        assert not [
            *differences(torch.tensor(found, dtype=theirs.dtype), theirs, exact=is_exact(case, "cpu"))
        ]
    assert asked(case, "CPU") == {}, "the child's calls are the child's"


# ---- files ---------------------------------------------------------------------------------------------


def _train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range, device: str) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 6, generator=generator).to(device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def _setup(device: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 33), torch.nn.Tanh(), torch.nn.Linear(33, 2)).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


@pytest.mark.parametrize("way", ["state_dict", "torch.save", "pickle", "deepcopy"])
def test_saved_and_resumed(device: str, way: str) -> None:
    """A model and its optimizer, saved midway and loaded, end where an uninterrupted run without us ends."""
    with aten_ext.disabled():
        model, optimizer = _setup(device)
        _train(model, optimizer, range(6), device)
    aten_ext.reset_counts()
    first, its_optimizer = _setup(device)
    _train(first, its_optimizer, range(3), device)
    file = io.BytesIO()
    if way == "state_dict":
        torch.save((first.state_dict(), its_optimizer.state_dict()), file)
        second, second_optimizer = _setup(device)
        states = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        second.load_state_dict(states[0])
        second_optimizer.load_state_dict(states[1])
    elif way == "torch.save":
        torch.save((first, its_optimizer), file)
        second, second_optimizer = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    elif way == "pickle":
        file.write(pickle.dumps((first, its_optimizer)))
        second, second_optimizer = pickle.loads(file.getvalue())
    else:
        second, second_optimizer = copy.deepcopy((first, its_optimizer))
    assert b"aten_ext" not in file.getvalue(), "a file that needs the plugin to be read"
    _train(second, second_optimizer, range(3, 6), device)
    assert aten_ext.counts(device.upper())["_fused_adamw_"].ran == 6
    found = list(second.parameters()), second_optimizer.state_dict()["state"]
    assert not [*differences(found, (list(model.parameters()), optimizer.state_dict()["state"]), exact=True)]


@each()
def test_result_pickles(case: Case) -> None:
    arguments = case.make("cpu")
    result = case.call(*arguments), arguments
    assert not [*differences(pickle.loads(pickle.dumps(result)), result, exact=True)]


def test_saved_file_loads_without_the_plugin(tmp_path: Path) -> None:
    model, optimizer = _setup("cpu")
    _train(model, optimizer, range(2), "cpu")
    torch.save((model, optimizer), tmp_path / "file.pt")
    run = python(
        f"""
import sys, torch
model, optimizer = torch.load({str(tmp_path / "file.pt")!r}, weights_only=False)
print("aten_ext" in sys.modules, float(sum(p.detach().double().sum() for p in model.parameters())))
"""
    )
    total = float(sum(p.detach().double().sum() for p in model.parameters()))
    assert (run.stdout.split(), run.stderr) == (["False", repr(total)], "")


# ---- other plugins that override the same operator -----------------------------------------------------

OTHER = """
import warnings
warnings.simplefilter("ignore")  # PyTorch says that a kernel is replaced
import torch
calls = []
def other(*args, **kwargs):
    calls.append(len(args[0]))
def install():
    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_adamw_", other, "CPU")
    return library
def step():
    one = [[torch.ones(3)] for _ in range(4)]
    torch._fused_adamw_(*one, [], [torch.ones(())], lr=0.1, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1e-8,
                        amsgrad=False, maximize=False)
    return not torch.equal(one[0][0], torch.ones(3))
"""


def test_other_plugin_before() -> None:
    """Who registers last is called: aten_ext, also after the other has gone."""
    run = python(
        OTHER
        + """
library = install()
import aten_ext
print(step(), calls, aten_ext.counts("CPU")["_fused_adamw_"].ran)
library._destroy()
print(step(), calls, aten_ext.counts("CPU")["_fused_adamw_"].ran)
"""
    )
    assert run.stdout.splitlines() == ["True [] 1", "True [] 2"], run.stderr


def test_other_plugin_after() -> None:
    """The other is called, and counts() shows that aten_ext is not; when the other goes, it is again."""
    run = python(
        OTHER
        + """
import aten_ext
library = install()
print(step(), calls, aten_ext.counts("CPU")["_fused_adamw_"].ran)
library._destroy()
print(step(), calls, aten_ext.counts("CPU")["_fused_adamw_"].ran)
"""
    )
    assert run.stdout.splitlines() == ["False [1] 0", "True [1] 1"], run.stderr


# ---- the end of the interpreter ------------------------------------------------------------------------

ENDINGS = {
    "plain": "",
    "exit": "sys.exit(0)",
    "atexit": "import atexit; atexit.register(lambda: call_case('adamw'))",
    "object": """
class Late:
    def __del__(self, call_case=call_case): call_case('adamw')
late = Late()""",
    "thread": """
import threading
threading.Thread(target=lambda: [call_case('adamw') for _ in range(50)]).start()""",
    # One that waits: a daemon thread in the middle of a call aborts PyTorch itself, with us or without.
    "daemon thread": """
import threading
called = threading.Event()
def work():
    call_case('adamw')
    called.set()
    threading.Event().wait()
threading.Thread(target=work, daemon=True).start()
called.wait()""",
    "library reference": """
import ctypes
from aten_ext import _load
kernels = ctypes.CDLL(str(_load.kernels_path()))""",
}


@pytest.mark.long
@pytest.mark.parametrize("ending", ENDINGS)
def test_interpreter_exit(ending: str) -> None:
    """Exit code 0 and nothing on stderr, whatever still holds on to the library."""
    start = "import sys\nfrom programs.workers import call_case\nprint(call_case('adamw')['ran'])\n"
    run = python(start + ENDINGS[ending])
    assert (run.stdout, run.stderr, run.returncode) == ("1\n", "", 0)


def test_exit_without_use() -> None:
    run = python("import aten_ext")
    assert (run.stdout, run.stderr, run.returncode) == ("", "", 0)


def test_results_are_plain_tensors() -> None:
    """Nothing of ours is kept alive in what a call returns."""
    for case in ("cat", "linear"):
        for tensor in pytree.tree_leaves(call_case(case)["tensors"]):
            assert type(tensor) is torch.Tensor
