"""What all tests share: the gpu marker, hypothesis profiles, and toggles and counts that start fresh."""

from __future__ import annotations

import collections
import gc
import itertools
import os
import random
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
    """``--full``: also what takes long and adds little; ``--one-in`` and ``--brief``: few; ``--rest``."""
    parser.addoption("--full", action="store_true", help="run every entry of PyTorch's own test databases")
    parser.addoption("--brief", action="store_true", help="sets of parameters for all pairs; few long tests")
    parser.addoption("--rest", action="store_true", help="of long tests what --brief leaves out; no others")
    parser.addoption("--one-in", type=int, default=1, help="of each test's parameters, every Nth set alone")


def _why_no_gpu() -> str | None:
    if not torch.cuda.is_available():
        return "no CUDA device, or a torch without CUDA"
    if not any("CUDA" in override.keys for override in aten_ext.overrides()):
        return "aten_ext was built without its CUDA kernels"
    return None


def _test_of(item: pytest.Item) -> str:
    """The test whose parameters ``item`` is one set of; those that need a GPU are a test of their own."""
    return item.nodeid.partition("[")[0] + " on a GPU" * (item.get_closest_marker("gpu") is not None)


def _choices(item: pytest.Item) -> list[tuple[object, ...]]:
    """What ``item`` takes from each list of parameters: a ``parametrize`` of several names is one list."""
    values: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
    lists = []
    for marker in item.iter_markers("parametrize"):
        names = marker.args[0]
        lists.append([name.strip() for name in names.split(",")] if isinstance(names, str) else list(names))
    lists += [[name] for name in values if not any(name in names for names in lists)]
    # By identity: equal values of another type, such as 1 and True, are two.
    return [tuple((name, id(values[name])) for name in names) for names in lists if names[0] in values]


def _pairs(item: pytest.Item) -> set[tuple[object, ...]]:
    """Which two choices of two lists of parameters meet in ``item``; with one list, its choice."""
    choices = _choices(item)
    return set(itertools.combinations(choices, min(2, len(choices))))


def _enough_for_all_pairs(items: list[pytest.Item]) -> set[pytest.Item]:
    """Pairwise testing: of each test, few items in which each two choices of its parameters meet.

    Most mistakes show with one choice or two that meet. In a shuffled order, an item is taken for a pair
    that no item before it has; with the same seed everywhere, so that all processes take the same ones.
    """
    met = collections.defaultdict[str, set[tuple[object, ...]]](set)
    taken = set()
    for item in random.Random(0).sample(items, len(items)):
        pairs, before = _pairs(item), met[_test_of(item)]
        if not pairs or pairs - before:
            before |= pairs
            taken.add(item)
    return taken


_OF_LONG_TESTS = 4  # --brief runs every so many of their sets of parameters


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What ``--brief``, ``--rest`` and ``--one-in`` leave out, by the place among its test's parameters."""
    tests = collections.Counter[str]()
    brief, rest = config.getoption("brief"), config.getoption("rest")
    taken = _enough_for_all_pairs(items) if brief else set(items)
    kept, left = [], []
    for item in items:
        place = tests[_test_of(item)]
        tests[_test_of(item)] += 1
        long = item.get_closest_marker("long") is not None
        is_brief = place % _OF_LONG_TESTS == 0 and hasattr(item, "callspec")
        if rest:
            leave = is_brief or not long
        elif brief and long:
            leave = not is_brief
        else:
            leave = place % config.getoption("one_in") > 0 or item not in taken
        (left if leave else kept).append(item)
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
