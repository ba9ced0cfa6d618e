"""What a function of torch or aten_ext is to a call: its hop, read off the function's mangled name."""

from __future__ import annotations

import re
from typing import NamedTuple

import cuda_calls

ANONYMOUS = "(anonymous namespace)"

# Symbols that can be hops start with one of these.
PREFIXES = (
    b"_ZN2at4_ops",
    b"_ZN2at6native",
    b"_ZN2at3cpu",
    b"_ZN2at4cuda",
    b"_ZN2at12_GLOBAL__N_1",
    b"_ZN2at15functionalization",
    b"_ZN5torch8autograd",
    b"_ZN5torch15ADInplaceOrView",
    b"_ZN5torch9TraceType",
    b"_ZN3c104impl28wrap_kernel_functor_unboxed_",
    b"_ZN8aten_ext",
)

# Kinds that only ever stand inside a call of an operator; the others may begin one.
INNER = frozenset({"choose", "run", "upstream", "kernel", "fused"}) | cuda_calls.KINDS


class Hop(NamedTuple):
    """One function on the path of a call."""

    kind: str  # binding, call, autograd, redispatch, wrapper, entry, choose, run, fused, upstream, kernel;
    # launch, runtime, driver: calls into CUDA
    name: str  # what the function's own name says about the operator: "cat_out", "structured_cat_out_cpu"
    label: str  # "at::_ops::cat::call"
    note: str  # a few words for people


def components(mangled: str) -> list[str]:
    """The nested name of a function: `_ZN2at4_ops3cat4callE…` is at, _ops, cat, call; up to any template."""
    found: list[str] = []
    position = 3 if mangled.startswith("_ZN") else len(mangled)
    while position < len(mangled):
        if mangled[position] in "KL":
            position += 1
            continue
        length = re.compile(r"\d+").match(mangled, position)
        if length is None:
            break
        position = length.end() + int(length.group())
        part = mangled[length.end() : position]
        found.append(ANONYMOUS if part.startswith("_GLOBAL__N") else part)
    return found


def classify(mangled: str) -> Hop | None:
    """The hop that a function is, or None where it is none: boxing, templates, parts of functions."""
    if ".cold" in mangled or ".part" in mangled:
        return None
    if mangled.startswith("_ZN3c10"):
        # The dispatcher's functor around a kernel: a small kernel is inlined there and has no other symbol.
        wrapped = re.search(r"XadL_ZN.*?12_GLOBAL__N_1(\d+)(wrapper_\w+)", mangled)
        if wrapped:  # "at" may be abbreviated
            return _of_torch(["at", ANONYMOUS, wrapped.group(2)[: int(wrapped.group(1))]])
        start = mangled.find("XadL_ZN5torch")
        return _of_torch(components(mangled[start + 4 :])) if start >= 0 else None
    parts = components(mangled)
    return _of_torch(parts) or _of_aten_ext(parts, mangled)


def _of_torch(parts: list[str]) -> Hop | None:
    label = "::".join(part for part in parts if part != ANONYMOUS)
    last = parts[-1] if parts else ""
    if parts[:2] == ["at", "_ops"] and len(parts) == 4 and last in ("call", "redispatch"):
        return Hop(last, parts[2], label, "dispatcher" if last == "call" else "")
    if parts[:2] == ["torch", "autograd"]:
        if len(parts) == 3 and last.startswith("THPVariable_"):
            return Hop("binding", last[len("THPVariable_") :], label, "Python binding")
        if parts[2:3] == ["VariableType"] and len(parts) == 5:
            return Hop("autograd", last, label, "autograd")
    if parts[:1] == ["torch"] and len(parts) == 4 and parts[1] in ("ADInplaceOrView", "TraceType"):
        return Hop("autograd", last, label, parts[1])
    if parts[:2] == ["at", "functionalization"] and len(parts) == 3:
        return Hop("autograd", last, label, "functionalization")
    if parts[:2] == ["at", ANONYMOUS] and last.startswith("wrapper_"):
        key, _, name = last[len("wrapper_") :].partition("_")
        return Hop("wrapper", name, label, f"registered at {key}")
    if parts[:2] in (["at", "cpu"], ["at", "cuda"]) and len(parts) == 3:
        return Hop("upstream", last, label, "upstream")
    if parts[:2] == ["at", "native"]:
        if len(parts) == 3:
            return Hop("kernel", last, label, "PyTorch's kernel")
        if len(parts) == 4 and last == "impl" and parts[2].startswith("structured_"):
            return Hop("kernel", parts[2], label, "PyTorch's kernel")
    return None


def _of_aten_ext(parts: list[str], mangled: str) -> Hop | None:
    if len(parts) < 3 or parts[0] != "aten_ext":
        return None
    if parts[1] == "entry" and len(parts) == 3:
        return Hop("entry", parts[2], "::".join(parts), "override")
    notes = {"choose": "rule", "run": "fused kernel, prepared"}
    if parts[1] in ("cpu", "cuda") and len(parts) == 3 and parts[2] in notes:
        # An overload for each operator: choose(aten_ext::args::cat const&).
        operator = re.search(r"ERKNS_4args(\d+)(\w+)", mangled)
        if operator is None:
            return None
        name = operator.group(2)[: int(operator.group(1))]
        return Hop(parts[2], name, f"{'::'.join(parts)}(args::{name})", notes[parts[2]])
    if parts[1] == "cpu" and len(parts) == 4:
        return Hop("fused", parts[3], "::".join(parts), "fused kernel")
    return None


class Wanted(NamedTuple):
    """The functions to follow."""

    names: frozenset[str]  # what operators go by
    kernels: frozenset[str]  # what their kernels go by

    def has(self, hop: Hop) -> bool:
        """Whether a hop is on the path of the operators."""
        if hop.kind == "fused":
            return True
        if hop.kind == "entry":
            return hop.name.rpartition("_")[0] in self.names
        if hop.kind in ("choose", "run"):
            return hop.name in self.names
        if hop.kind == "wrapper":  # "_cat" of "wrapper_CPU__cat": no overload name before the underscore
            name = hop.name[1:] if hop.name.startswith("_") else hop.name
            return not {hop.name, name}.isdisjoint(self.names | self.kernels)
        return hop.name in self.names or (hop.kind == "kernel" and hop.name in self.kernels)
