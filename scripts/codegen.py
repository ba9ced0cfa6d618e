#!/usr/bin/env python3
"""Generate the entries, the registration and the registry table from native_functions_ext.yaml.

``setup.py`` calls :func:`generate` before it compiles. The schemas come from the
``native_functions.yaml`` that the installed torch ships, so a generated file always fits the torch
that it is compiled against. The same input gives the same bytes.

Output (all in one folder):

=================  ==========================================================================
``overrides.h``    declarations of every ``decline::`` and ``run::``; a missing definition is a
                   link error, a wrong one a compile error that shows the signature expected
``entries.cpp``    ``aten_ext::entry::<op>_<key>`` for each override, the registry table, the
                   ``TORCH_LIBRARY_IMPL`` blocks and the operators behind ``aten_ext.explain``
=================  ==========================================================================
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path

# Loaded from a file by setup.py and by tests: what stands beside it has to be found.
sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))
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


def _declarations(overrides: list[Override], with_cuda: bool) -> str:
    lines = [HEADER, "#pragma once\n\n#include <ATen/core/Tensor.h>\n#include <optional>\n"]
    lines.append(
        "\n// nullptr: the fused kernel runs. A literal string: the reason why upstream runs instead."
    )
    lines.append("\nnamespace aten_ext::decline {\n")
    for override in overrides:
        lines.append(f"const char* {override.symbol}({override.arguments});\n")
    lines.append("}  // namespace aten_ext::decline\n\nnamespace aten_ext::run {\n")
    for override in overrides:
        if override.key != "CUDA" or with_cuda:
            lines.append(f"{override.returns} {override.symbol}({override.arguments});\n")
    lines.append("}  // namespace aten_ext::run\n")
    return "".join(lines)


def _flags(flags: Collection[bool]) -> str:
    """Initialiser of an array of bool, which C++ does not let be empty."""
    return ", ".join(str(flag).lower() for flag in flags) or "false"


def _site(index: int, override: Override, with_cuda: bool) -> str:
    """What ``watched`` and ``recorded`` know about an entry."""
    symbol = override.symbol
    names = ", ".join(f'"{name}"' for name in override.argument_names.split(", "))
    base = f'overrides[{index}], the_watch, "aten_ext::{override.name}"'
    arrays = f"{symbol}_names, {symbol}_written, {symbol}_opaque, {str(override.random).lower()}"
    return f"""
static constexpr const char* {symbol}_names[] = {{{names}}};
static constexpr bool {symbol}_written[] = {{{_flags(override.written)}}};
static constexpr bool {symbol}_opaque[] = {{{_flags(override.opaque)}}};
static const char* {symbol}_rule({override.arguments}) {{
  return {override.rule(with_cuda)};
}}
static {override.returns} {symbol}_upstream({override.arguments}) {{
  return {override.upstream};
}}
static constexpr Site {symbol}(SiteBase{{{base}, {arrays}}},
                               {symbol}_rule, run::{symbol}, {symbol}_upstream);
"""


def _entry(index: int, override: Override, with_cuda: bool) -> str:
    names = override.argument_names
    return f"""
{override.returns} {override.symbol}({override.arguments}) {{
  if (C10_UNLIKELY(the_watch.bits.load(std::memory_order_relaxed) != 0)) {{
    return watched(site::{override.symbol}, {names});
  }}
  Override& self_ = overrides[{index}];
  if (C10_UNLIKELY(!self_.enabled.load(std::memory_order_relaxed))) {{
    self_.counts.add_disabled();
    return {override.upstream};
  }}
  if (const char* reason_ = {override.rule(with_cuda)}) {{
    self_.counts.add_declined(reason_);
    return {override.upstream};
  }}
  self_.counts.add_ran();
  if (auto callbacks_ = profiler_callbacks(); C10_UNLIKELY(callbacks_.has_value())) {{
    return recorded(site::{override.symbol}, std::move(*callbacks_), {names});
  }}
  return run::{override.symbol}({names});
}}
"""


def _composite_entry(override: Override) -> str:
    """What stands before the entry of a composite operator's override, at the Autograd key of its backend.

    A kernel at a backend key takes an operator's decomposition away from everything that comes before that
    key: autograd, functorch, torch.compile. This gives it back to all of them and lets only plain calls
    through.
    """
    name, overload = override.name.partition(".")[0], override.name.partition(".")[2]
    operator = f"at::_ops::{name}{'_' + overload if overload else ''}"
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
    """The schema of the operator behind ``aten_ext.explain``: the same arguments, two strings returned."""
    base, _, overload = override.name.partition(".")
    dotted = f".{overload}" if overload else ""
    return f"explain_{override.key}_{base}{dotted}({override.schema_arguments}) -> (str, str)"


def _explain(override: Override, with_cuda: bool) -> str:
    return f"""
std::tuple<std::string, std::string> {override.symbol}({override.arguments}) {{
  const char* reason_ = {override.rule(with_cuda)};
  return {{"{override.name}", reason_ == nullptr ? "" : reason_}};
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
    out.append("#include <torch/library.h>\n#include <string>\n#include <tuple>\n\n")
    ours = ["gpu_support.h", "load_guard.h", "overrides.h", "registry.h", "watched.h"]
    for header in ["composite.h", *ours] if composite else ours:
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
    out.extend(_entry(index, o, with_cuda) for index, o in enumerate(overrides) if is_built(o))
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


def generate(table: Path, folder: Path, *, with_cuda: bool) -> list[Path]:
    """Write the generated sources for ``table`` into ``folder`` and return the .cpp files among them.

    Args:
        table: native_functions_ext.yaml.
        folder: where the files go; created if needed.
        with_cuda: whether entries at the CUDA key are built (their decline rules always are).

    Raises:
        TableError: see :func:`read_table`. Nothing is written then.
    """
    overrides, passes = read_table(table), read_passes(table)
    files = {
        "overrides.h": _declarations(overrides, with_cuda),
        "entries.cpp": _entries(overrides, passes, with_cuda),
    }
    for name, text in files.items():
        _write_if_changed(folder / name, text)
    return [folder / name for name in files if name.endswith(".cpp")]


def main() -> int:
    """Command line: print what would be generated, or write it to a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--table", type=Path, default=Path(__file__).parent.parent / "native_functions_ext.yaml"
    )
    parser.add_argument("--folder", type=Path, required=True, help="where to write")
    parser.add_argument("--cpu-only", action="store_true", help="leave out the entries at the CUDA key")
    arguments = parser.parse_args()
    try:
        generate(arguments.table, arguments.folder, with_cuda=not arguments.cpu_only)
    except TableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
