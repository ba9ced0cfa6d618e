"""What all tests share: the gpu marker, hypothesis profiles, and toggles and counts that start fresh."""

from __future__ import annotations

import collections
import gc
import os
from collections.abc import Generator, Iterator

import hypothesis
import pytest
import torch

import aten_ext
import captures
import developer_bench
from aten_ext._registry import restored
from aten_ext.bench import registry

# The same examples on every run in CI; more of them with HYPOTHESIS_PROFILE=long, a few, for a run under a
# sanitizer, with HYPOTHESIS_PROFILE=short. HYPOTHESIS_PROFILE=search is long, but shows a failure as it was
# found: to make it smaller may take all the time that there is.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, max_examples=60, database=None)
hypothesis.settings.register_profile("dev", deadline=None, max_examples=60)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000)
hypothesis.settings.register_profile(
    "search",
    deadline=None,
    max_examples=2000,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    print_blob=True,
)
hypothesis.settings.register_profile("short", deadline=None, derandomize=True, max_examples=8, database=None)
hypothesis.settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev")
)


_SEED = torch.initial_seed()  # of a process that has drawn nothing yet


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--full``: also what takes long and adds little; ``--one-in``: for ``scripts/test --quick``."""
    parser.addoption("--full", action="store_true", help="run every entry of PyTorch's own test databases")
    parser.addoption("--one-in", type=int, default=1, help="of each test's parameters, every Nth set alone")


def _why_no_gpu() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device, or a torch without CUDA"
    if not any("CUDA" in override.keys for override in aten_ext.overrides()):
        return "aten_ext was built without its CUDA kernels"
    return None


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What ``--one-in`` leaves out, by its place among the parameters of its test."""
    tests = collections.Counter[str]()
    kept, left = [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        (left if tests[test] % config.getoption("one_in") else kept).append(item)
        tests[test] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes millions of objects that live as long as the process: none is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is none, and those for several where there is one, and say why."""
    _leave_out(config, items)
    reason = _why_no_gpu()
    missing = {"gpu": reason, "multigpu": reason}
    if reason is None and torch.cuda.device_count() < 2:
        missing["multigpu"] = "needs two CUDA devices, there is one"
    for item in items:
        for marker, why in missing.items():
            if why and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each device that the overrides have kernels for."""
    name: str = request.param
    return name


@pytest.fixture
def developers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks for developers, which ``scripts/bench`` adds."""
    monkeypatch.setattr(registry, "OPS", dict(registry.OPS))
    monkeypatch.setattr(registry, "COMPILING", list(registry.COMPILING))
    developer_bench.register()


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[None]:
    """Every override on, measured or not, and every count zero; what a test changes is undone after it."""
    with restored():
        if aten_ext.is_active():
            aten_ext.enable(*(override.name for override in aten_ext.overrides()))
        aten_ext.reset_counts()
        yield
    aten_ext.reset_counts()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Random numbers are those of a fresh process, whatever tests this one ran before."""
    torch.default_generator.manual_seed(_SEED)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(_SEED)


@pytest.fixture(autouse=True)
def one_thread_on_host(request: pytest.FixtureRequest) -> Iterator[None]:
    """What CUDA kernels on the CPU are compared with is small: it takes longer to wake a thread for it."""
    if not request.path.name.endswith("_on_host.py"):
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_broken_capture(request: pytest.FixtureRequest) -> Iterator[None]:
    """A GPU test in which a graph capture broke fails if it leaves that to the tests after it."""
    yield
    if request.node.get_closest_marker("gpu") and torch.cuda.is_initialized():
        captures.check_none_left()
