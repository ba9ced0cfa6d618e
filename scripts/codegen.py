#!/usr/bin/env python3
"""Generate the entries, the registration and the registry table from native_functions_ext.yaml.

``setup.py`` calls :func:`generate` before it compiles. The schemas come from the
``native_functions.yaml`` that the installed torch ships, so a generated file always fits the torch
that it is compiled against. The same input gives the same bytes.

Output (all in one folder):

===============  ============================================================================
``args.h``       ``aten_ext::args::<op>`` for each override: its arguments, by reference.
                 ``ops/<family>/overrides.h`` declares ``choose`` and ``run`` over these
``entries.cpp``  ``aten_ext::entry::<op>_<key>`` for each override, the registry table, the
                 ``TORCH_LIBRARY_IMPL`` blocks and the operators behind ``aten_ext.explain``
===============  ============================================================================
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path

# Loaded from a file by setup.py and by tests: what stands beside it has to be found.
sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
import override_docs
from override_table import (
    PASS_KEY,
    VALID_KEYS,
    GraphPass,
    Override,
    TableError,
    Upstream,
    read_passes,
    read_table,
)

__all__ = ["TableError", "Upstream", "generate"]

HEADER = "// Generated from native_functions_ext.yaml by scripts/codegen.py. Do not edit.\n"


def _arguments(overrides: list[Override]) -> str:
    """``args.h``: one struct for each overload, whatever its keys."""
    lines = [HEADER, "#pragma once\n\n#include <ATen/core/Generator.h>\n#include <ATen/core/IListRef.h>\n"]
    lines.append(
        "#include <ATen/core/List.h>\n#include <ATen/core/Tensor.h>\n#include <c10/core/Scalar.h>\n\n"
    )
    lines.append("#include <optional>\n\nnamespace aten_ext::args {\n")
    for override in {o.operator: o for o in overrides}.values():
        lines.append(f"\nstruct {override.operator} {{\n")
        names = override.argument_names.split(", ")
        lines.extend(f"  {kind} {name};\n" for kind, name in zip(override.argument_types, names, strict=True))
        lines.append("};\n")
    lines.append("\n}  // namespace aten_ext::args\n")
    return "".join(lines)


def _flags(flags: Collection[bool]) -> str:
    """Initialiser of an array of bool, which C++ does not let be empty."""
    return ", ".join(str(flag).lower() for flag in flags) or "false"


def _choice(override: Override, with_cuda: bool) -> str:
    """C++ that chooses for ``a_``; at CUDA, a GPU that the build has no code for is declined."""
    asked = f"{override.namespace}::choose(a_)"
    if override.key != "CUDA" or not with_cuda:
        return asked
    device = f"at::device_of(a_.{override.first_tensors})"
    return f"on_gpu([&a_] {{ return {asked}; }}, [&a_] {{ return {device}; }})"


def _site(index: int, override: Override, with_cuda: bool) -> str:
    """What ``enter`` and those who watch know about an override at one key."""
    names = override.argument_names.split(", ")
    quoted = ", ".join(f'"{name}"' for name in names)
    fields = ", ".join(f"a_.{name}" for name in names)
    parameters = ", ".join(
        f"[[maybe_unused]] {kind} {name}" for kind, name in zip(override.argument_types, names, strict=True)
    )
    saved = (
        f"  static bool saved_by_ours(const Args& a_) {{ return {override.namespace}::saved_by_ours(a_); }}\n"
        if override.pair
        else ""
    )
    return f"""
struct {override.symbol} {{
  using Args = args::{override.operator};
  using Result = {override.returns};
  using ArgumentTypes = Types<{", ".join(override.argument_types)}>;
  static constexpr const char* kEvent = "aten_ext::{override.name}";
  static constexpr const char* kNames[] = {{{quoted}}};
  static constexpr bool kWritten[] = {{{_flags(override.written)}}};
  static constexpr bool kOpaque[] = {{{_flags(override.opaque)}}};
  static constexpr bool kRandom = {str(override.random).lower()};
  static constexpr bool kOwnNode = {str(override.own_node).lower()};
  static constexpr bool kPaired = {str(bool(override.pair)).lower()};
  static Override& row() {{ return overrides[{index}]; }}
  static Watch& watch() {{ return the_watch; }}
  template <class F>
  static decltype(auto) unpack(const Args& a_, const F& f_) {{
    return f_({fields});
  }}
  static auto choose(const Args& a_) {{ return {_choice(override, with_cuda)}; }}
  template <class Plan>
  static Ran<Result> run(const Args& a_, const Plan& plan_) {{ return {override.namespace}::run(a_, plan_); }}
  static Result upstream({parameters}) {{
    return {override.upstream};
  }}
{saved}}};
"""


def _entry(override: Override) -> str:
    # Not inlined into the dispatcher's functor: the trace under gdb stops at it.
    return f"""
C10_NOINLINE {override.returns} {override.symbol}({override.arguments}) {{
  return enter<site::{override.symbol}>({override.argument_names});
}}
"""


def _composite_entry(override: Override) -> str:
    """What stands before the entry of a composite operator's override, at the Autograd key of its backend.

    A kernel at a backend key takes an operator's decomposition away from everything that comes before that
    key: autograd, functorch, torch.compile. This gives it back to all of them and lets only plain calls
    through. An override with an autograd node of its own gets those that are differentiated, too, here above
    autograd.
    """
    name, overload = override.name.partition(".")[0], override.name.partition(".")[2]
    operator = f"at::_ops::{name}{'_' + overload if overload else ''}"
    if override.own_node:
        differentiated = " || ".join(f"is_differentiated({a})" for a in override.argument_names.split(", "))
        return f"""
{override.returns} {override.symbol}(c10::DispatchKeySet keys_, {override.arguments}) {{
  if (!is_plain(keys_, c10::DispatchKey::{override.key})) {{
    return {override.upstream};
  }}
  if ({differentiated}) {{
    return entry::{override.symbol}({override.argument_names});
  }}
  at::AutoDispatchBelowADInplaceOrView below_;
  return {operator}::redispatch(keys_ & c10::after_ADInplaceOrView_keyset, {override.argument_names});
}}
"""
    return f"""
{override.returns} {override.symbol}(c10::DispatchKeySet keys_, {override.arguments}) {{
  if (needs_decomposition(keys_, c10::DispatchKey::{override.key}, {override.argument_names})) {{
    return {override.upstream};
  }}
  at::AutoDispatchBelowADInplaceOrView below_;
  return {operator}::redispatch(keys_ & c10::after_ADInplaceOrView_keyset, {override.argument_names});
}}
"""


def _explain_schema(override: Override) -> str:
    """The schema of the operator behind ``aten_ext.explain``: the same arguments.

    It returns the override's name, the reason to go upstream or "", the plan in words and what it needs of a
    GPU: the fields of ``Needs``.
    """
    base, _, overload = override.name.partition(".")
    dotted = f".{overload}" if overload else ""
    return f"explain_{override.key}_{base}{dotted}({override.schema_arguments}) -> (str, str, str, int[])"


def _explain(override: Override, with_cuda: bool) -> str:
    explained = "explained_on_gpu" if override.key == "CUDA" else "explained"
    return f"""
Explained {override.symbol}({override.arguments}) {{
  [[maybe_unused]] const args::{override.operator} a_{{{override.argument_names}}};
  return {explained}("{override.name}", {_choice(override, with_cuda)});
}}
"""


def _row(name: str, key: str, summary: str, *, built: bool, measured: bool) -> str:
    """One line of the registry's table; what is not measured starts off."""
    text = summary.replace("\\", "\\\\").replace('"', '\\"')
    built_flag, on = str(built).lower(), str(measured).lower()
    return f'    {{"{name}", "{key}", "{text}", {built_flag}, {on}, {{{on}}}, {{}}}},\n'


def _entries(overrides: list[Override], passes: list[GraphPass], with_cuda: bool) -> str:
    # Upstream's own CUDA kernels do not exist in a CPU build; the decline rules do, so that explain()
    # can answer for a GPU that is elsewhere.
    def is_built(override: Override) -> bool:
        return override.key != "CUDA" or with_cuda

    built = [o for o in overrides if is_built(o)]
    # Tensor.h before the operators' headers, which only declare the classes that they name.
    out = [HEADER, "#include <ATen/core/Tensor.h>\n#include <ATen/DeviceGuard.h>\n"]
    for header in sorted({o.header for o in built}):
        out.append(f"#include <{header}>\n")
    composite = [o for o in built if o.composite]
    for base in sorted({o.name.partition(".")[0] for o in composite}):
        out.append(f"#include <ATen/ops/{base}_ops.h>\n")
    out.append("#include <torch/library.h>\n\n")
    ours = [
        "args.h",
        "core/entry.h",
        "core/explained.h",
        "core/gpu.h",
        "core/load_guard.h",
        "core/registry.h",
    ]
    ours += [f"ops/{family}/overrides.h" for family in sorted({o.family for o in overrides})]
    for header in sorted(["core/composite.h", *ours] if composite else ours):
        out.append(f'#include "{header}"\n')
    out.append("\n")
    out.append("namespace aten_ext {\n\n")
    out.append("// Constant-initialised: usable before any dynamic initialiser has run.\n")
    out.append(
        f"// Each: name, key, summary, built, measured, enabled, counts.\n"
        f"static Override overrides[{len(overrides) + len(passes)}] = {{\n"
    )
    out.extend(_row(o.name, o.key, o.summary, built=is_built(o), measured=o.measured) for o in overrides)
    # Passes come last: an entry finds its row by its place among the overrides.
    out.extend(_row(p.name, PASS_KEY, p.summary, built=True, measured=p.measured) for p in passes)
    out.append("};\n\n")
    out.append("static Watch the_watch;\n")
    out.append("static Registry the_registry{overrides, std::size(overrides), &the_watch};\n\n")
    out.append("Registry& registry() { return the_registry; }\n\n")
    out.append("namespace site {\n")
    out.extend(_site(index, o, with_cuda) for index, o in enumerate(overrides) if is_built(o))
    out.append("\n}  // namespace site\n\nnamespace entry {\n")
    out.extend(_entry(o) for o in built)
    out.append("\n}  // namespace entry\n\n")
    if composite:
        out.append("namespace autograd_entry {\n")
        out.extend(_composite_entry(override) for override in composite)
        out.append("\n}  // namespace autograd_entry\n\n")
    out.append("namespace explain {\n")
    out.extend(_explain(override, with_cuda) for override in overrides)
    out.append("\n}  // namespace explain\n}  // namespace aten_ext\n\n")

    out.append(
        "// Static objects of one file are made in the order written: the guard decides whether anything is\n"
        "// registered at all; the dispatcher's warning about replaced kernels is silent in between.\n"
        "static const bool allowed = aten_ext::may_register();\n"
        "static const bool silenced = aten_ext::silence_warnings();\n"
    )
    for key in VALID_KEYS:
        of_key = [o for o in built if o.key == key]
        if not of_key:
            continue
        out.append(f"\nTORCH_LIBRARY_IMPL(aten, {key}, m) {{\n  if (!allowed) return;\n")
        out.extend(f'  m.impl("{o.name}", TORCH_FN(aten_ext::entry::{o.symbol}));\n' for o in of_key)
        out.append("}\n")
        if any(o.composite for o in of_key):
            out.append(f"\nTORCH_LIBRARY_IMPL(aten, Autograd{key}, m) {{\n  if (!allowed) return;\n")
            out.extend(
                f'  m.impl("{o.name}", TORCH_FN(aten_ext::autograd_entry::{o.symbol}));\n'
                for o in of_key
                if o.composite
            )
            out.append("}\n")
    if composite:
        # Or vmap takes a slow loop, and warns of it.
        out.append("\nTORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {\n  if (!allowed) return;\n")
        for name, override in {o.name: o for o in composite}.items():
            target = override.upstream.partition("(")[0]
            if "." in name:  # one of several of that name
                kinds = ", ".join(override.argument_types)
                target = f"(static_cast<{override.returns} (*)({kinds})>({target}))"
            out.append(f'  m.impl("{name}", TORCH_FN({target}));\n')
        out.append("}\n")
    out.append("\nTORCH_LIBRARY_FRAGMENT(aten_ext, m) {\n  if (!aten_ext::may_define()) return;\n")
    out.extend(
        f'  m.def("{_explain_schema(o)}", TORCH_FN(aten_ext::explain::{o.symbol}));\n' for o in overrides
    )
    out.append("}\n\nstatic const bool restored = aten_ext::restore_warnings();\n")
    return "".join(out)


def _write_if_changed(path: Path, text: str) -> None:
    """Leave an unchanged file alone, so that ninja does not compile it again."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def generate(table: Path, folder: Path, *, with_cuda: bool, families: Collection[str] = ()) -> list[Path]:
    """Write the generated sources for ``table`` into ``folder`` and return the .cpp files among them.

    Args:
        table: native_functions_ext.yaml.
        folder: where the files go; created if needed.
        with_cuda: whether entries at the CUDA key are built (their rules always are).
        families: only overrides of these; of all where empty.

    Raises:
        TableError: see :func:`read_table`. Nothing is written then.
    """
    overrides, passes = read_table(table), read_passes(table)
    if unknown := sorted(set(families) - {o.family for o in overrides}):
        raise TableError(f"{table.name}: expected families of overrides, got {', '.join(unknown)}")
    overrides = [o for o in overrides if not families or o.family in families]
    files = {
        "args.h": _arguments(overrides),
        "entries.cpp": _entries(overrides, passes, with_cuda),
    }
    for name, text in files.items():
        _write_if_changed(folder / name, text)
    return [folder / name for name in files if name.endswith(".cpp")]


def main() -> int:
    """Command line: write the sources to a folder, or the states to a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--table", type=Path, default=Path(__file__).parent.parent / "native_functions_ext.yaml"
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=Path, help="where to write the sources")
    where.add_argument(
        "--docs", type=Path, metavar="PAGE", help="a page whose list of overrides is written anew"
    )
    parser.add_argument("--cpu-only", action="store_true", help="leave out the entries at the CUDA key")
    arguments = parser.parse_args()
    try:
        if arguments.docs:
            arguments.docs.write_text(override_docs.with_states(arguments.docs.read_text(), arguments.table))
        else:
            generate(arguments.table, arguments.folder, with_cuda=not arguments.cpu_only)
    except (TableError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
