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
import dataclasses
import difflib
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from torchgen.api import cpp
from torchgen.api.translate import translate
from torchgen.api.types import CppSignatureGroup, DispatcherSignature
from torchgen.context import native_function_manager
from torchgen.gen import parse_tags_yaml
from torchgen.model import DispatchKey, Location, NativeFunction

REQUIRED_FIELDS = ("func", "dispatch", "summary")
VALID_FIELDS = (*REQUIRED_FIELDS, "unmeasured", "opaque")
VALID_KEYS = ("CPU", "CUDA")

HEADER = "// Generated from native_functions_ext.yaml by scripts/codegen.py. Do not edit.\n"


class TableError(Exception):
    """The table asks for something that does not exist. The message starts with file and line."""


@dataclasses.dataclass(frozen=True)
class Override:
    """One line of the registry: one overload at one dispatch key, with the C++ text that concerns it."""

    name: str  # "cat.out"
    key: str  # "CUDA"
    summary: str
    measured: bool  # no benchmark has shown it to be faster yet: it starts off
    returns: str  # "at::Tensor &"
    arguments: str  # "const at::ITensorListRef & tensors, int64_t dim, at::Tensor & out"
    argument_names: str  # "tensors, dim, out"
    upstream: str  # "at::cuda::cat_outf(tensors, dim, out)": PyTorch's own kernel, called directly
    header: str  # the header that declares it
    schema_arguments: str  # "Tensor[] tensors, int dim=0, *, Tensor out"
    first_tensors: str  # "tensors": the argument whose device the call is on
    written: tuple[bool, ...]  # which arguments the operator writes to, by its schema
    opaque: tuple[bool, ...]  # which results only the same implementation can read
    random: bool  # it draws from a generator

    @property
    def symbol(self) -> str:
        """C++ name of its entry, decline and run: ``cat_out_cuda``."""
        return f"{self.name.replace('.', '_')}_{self.key.lower()}"

    def rule(self, with_cuda: bool) -> str:
        """C++ that gives the reason to go upstream: the rule's, or that the GPU lacks code of this build."""
        asked = f"decline::{self.symbol}({self.argument_names})"
        if self.key != "CUDA" or not with_cuda:
            return asked
        return f"decline_gpu({asked}, at::device_of({self.first_tensors}))"

    @classmethod
    def make(
        cls,
        function: NativeFunction,
        key: str,
        summary: str,
        *,
        measured: bool = True,
        opaque: Collection[int] = (),
    ) -> Override:
        """Let torchgen print the signatures of ``function``, with plain integers for sizes."""
        writes = {a.name: a.is_write for a in function.func.arguments.flat_all}
        with native_function_manager(function):
            signature = DispatcherSignature.from_schema(function.func, symint=False)
            group = CppSignatureGroup.from_native_function(function, method=False)
            target = group.faithful_signature or group.signature
            target_name = cpp.name(
                function.func, faithful_name_for_out_overloads=group.faithful_signature is not None
            )
            forwarded = translate(signature.arguments(), target.arguments())
            return cls(
                name=str(function.func.name),
                key=key,
                summary=summary,
                measured=measured,
                returns=signature.returns_type().cpp_type(),
                arguments=", ".join(a.defn() for a in signature.arguments()),
                argument_names=", ".join(a.name for a in signature.arguments()),
                upstream=f"at::{key.lower()}::{target_name}({', '.join(a.expr for a in forwarded)})",
                header=f"ATen/ops/{function.root_name}_{key.lower()}_dispatch.h",
                schema_arguments=re.sub(r"Tensor\([^)]*\)", "Tensor", str(function.func.arguments)),
                first_tensors=next(
                    a.name for a in function.func.arguments.flat_all if a.type.is_tensor_like()
                ),
                written=tuple(writes[a.name] for a in signature.arguments()),
                opaque=tuple(position in opaque for position in range(len(function.func.returns))),
                random="nondeterministic_seeded" in function.tags,
            )


def _native_functions_folder() -> Path:
    import torchgen

    return Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"


class Upstream:
    """PyTorch's own operators, as the installed torch describes them."""

    def __init__(self, folder: Path | None = None) -> None:
        """Read the operators in ``folder``; by default those that torch ships."""
        folder = folder or _native_functions_folder()
        self.path = folder / "native_functions.yaml"
        with self.path.open() as file:
            entries = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        self._entries: dict[str, dict[str, Any]] = {e["func"].partition("(")[0]: e for e in entries}
        self._tags = parse_tags_yaml(str(folder / "tags.yaml"))

    def names(self) -> list[str]:
        """Every overload, e.g. ``cat.out``."""
        return sorted(self._entries)

    def function(self, name: str) -> NativeFunction:
        """Torchgen's model of the overload ``name``."""
        return self._parse(name)[0]

    def keys(self, name: str) -> list[str]:
        """The keys among :data:`VALID_KEYS` at which ``name`` has a kernel of its own."""
        function, index = self._parse(name)
        if function.structured_delegate is not None:
            # A functional or in-place overload whose kernel is that of its out= overload.
            _, index = self._parse(str(function.structured_delegate))
        return [key for key in VALID_KEYS if DispatchKey.parse(key) in index]

    def _parse(self, name: str) -> tuple[NativeFunction, Any]:
        # from_yaml consumes the dictionary that it is given.
        where = Location(str(self.path), 0)
        function, index = NativeFunction.from_yaml(dict(self._entries[name]), where, self._tags)
        return function, index


def _entry_fields(node: yaml.Node, where: str) -> dict[str, tuple[str, str]]:
    """Field -> (value, "file:line") of one entry of the table."""
    valid = ", ".join(VALID_FIELDS)
    if not isinstance(node, yaml.MappingNode):
        raise TableError(f"{where}: expected an entry with the fields {valid}")
    path = where.rpartition(":")[0]
    fields: dict[str, tuple[str, str]] = {}
    for key_node, value_node in node.value:
        line = f"{path}:{key_node.start_mark.line + 1}"
        if key_node.value not in VALID_FIELDS:
            raise TableError(f"{line}: unknown field {key_node.value!r}; valid fields: {valid}")
        if not isinstance(value_node, yaml.ScalarNode) or not value_node.value.strip():
            raise TableError(f"{line}: expected one line of text for {key_node.value!r}")
        fields[key_node.value] = (value_node.value.strip(), line)
    for field in REQUIRED_FIELDS:
        if field not in fields:
            required = ", ".join(REQUIRED_FIELDS)
            raise TableError(f"{where}: field {field!r} is missing; every entry has {required}")
    return fields


def _unknown_operator(name: str, where: str, upstream: Upstream) -> TableError:
    names = upstream.names()
    base = name.partition(".")[0]
    overloads = [n for n in names if n.partition(".")[0] == base]
    candidates = overloads or difflib.get_close_matches(name, names, n=5)
    hint = f"; did you mean one of: {', '.join(candidates)}" if candidates else ""
    return TableError(f"{where}: {name!r} is not an operator of {upstream.path.name} in this torch{hint}")


def _positions(fields: dict[str, tuple[str, str]], results: int) -> set[int]:
    """The positions of results that the field ``opaque`` names."""
    text, line = fields.get("opaque", ("", ""))
    positions = set()
    for part in text.split(",") if text else []:
        if not part.strip().isdecimal() or int(part) >= results:
            valid = f"0 to {results - 1}" if results else "none"
            raise TableError(
                f"{line}: expected 'opaque' to name positions of results ({valid}), got {part.strip()!r}"
            )
        positions.add(int(part))
    return positions


def read_table(path: Path, upstream: Upstream | None = None) -> list[Override]:
    """Read and check the table.

    Args:
        path: native_functions_ext.yaml.
        upstream: the operators to check it against; by default those of the installed torch.

    Raises:
        TableError: an unknown field, operator or key, a key without an upstream kernel, a duplicate.
    """
    upstream = upstream or Upstream()
    try:
        root = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise TableError(f"{path.name}:{line}: not valid YAML: {error.problem}") from error
    if not isinstance(root, yaml.SequenceNode):
        raise TableError(f"{path.name}:1: expected a list of entries")

    overrides: list[Override] = []
    seen: dict[str, str] = {}
    for node in root.value:
        where = f"{path.name}:{node.start_mark.line + 1}"
        fields = _entry_fields(node, where)
        name, name_line = fields["func"]
        if name not in upstream.names():
            raise _unknown_operator(name, name_line, upstream)
        if name in seen:
            raise TableError(f"{name_line}: {name!r} stands in the table already, at {seen[name]}")
        seen[name] = name_line
        keys_text, keys_line = fields["dispatch"]
        with_upstream = upstream.keys(name)
        keys = [key.strip() for key in keys_text.split(",")]
        for position, key in enumerate(keys):
            if key not in VALID_KEYS:
                raise TableError(
                    f"{keys_line}: unknown dispatch key {key!r}; valid keys: {', '.join(VALID_KEYS)}"
                )
            if key in keys[:position]:
                raise TableError(f"{keys_line}: dispatch key {key!r} is given twice")
            if key not in with_upstream:
                valid = ", ".join(with_upstream) or "none"
                raise TableError(
                    f"{keys_line}: {name!r} has no upstream kernel at {key} (at::{key.lower()}:: lacks it); "
                    f"valid keys: {valid}"
                )
        unmeasured_text, unmeasured_line = fields.get("unmeasured", ("", ""))
        unmeasured = [key.strip() for key in unmeasured_text.split(",")] if unmeasured_text else []
        for key in unmeasured:
            if key not in keys:
                raise TableError(
                    f"{unmeasured_line}: expected 'unmeasured' to name keys of 'dispatch' "
                    f"({', '.join(keys)}), got {key!r}"
                )
        function = upstream.function(name)
        opaque = _positions(fields, len(function.func.returns))
        overrides.extend(
            Override.make(function, key, fields["summary"][0], measured=key not in unmeasured, opaque=opaque)
            for key in keys
        )
    return overrides


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


def _entries(overrides: list[Override], with_cuda: bool) -> str:
    # Upstream's own CUDA kernels do not exist in a CPU build; the decline rules do, so that explain()
    # can answer for a GPU that is elsewhere.
    def is_built(override: Override) -> bool:
        return override.key != "CUDA" or with_cuda

    built = [o for o in overrides if is_built(o)]
    # Tensor.h before the operators' headers, which only declare the classes that they name.
    out = [HEADER, "#include <ATen/core/Tensor.h>\n#include <ATen/DeviceGuard.h>\n"]
    for header in sorted({o.header for o in built}):
        out.append(f"#include <{header}>\n")
    out.append(
        "#include <torch/library.h>\n"
        "#include <string>\n#include <tuple>\n\n"
        '#include "gpu_support.h"\n#include "load_guard.h"\n#include "overrides.h"\n#include "registry.h"\n'
        '#include "watched.h"\n\n'
    )
    out.append("namespace aten_ext {\n\n")
    out.append("// Constant-initialised: usable before any dynamic initialiser has run.\n")
    out.append(
        f"// Each: name, key, summary, built, measured, enabled, counts.\n"
        f"static Override overrides[{len(overrides)}] = {{\n"
    )
    for override in overrides:
        summary = override.summary.replace("\\", "\\\\").replace('"', '\\"')
        built_flag, on = str(is_built(override)).lower(), str(override.measured).lower()
        row = f'"{override.name}", "{override.key}", "{summary}", {built_flag}, {on}, {{{on}}}'
        out.append(f"    {{{row}, {{}}}},\n")
    out.append("};\n\n")
    out.append("static Watch the_watch;\n")
    out.append("static Registry the_registry{overrides, std::size(overrides), &the_watch};\n\n")
    out.append("Registry& registry() { return the_registry; }\n\n")
    out.append("namespace site {\n")
    out.extend(_site(index, o, with_cuda) for index, o in enumerate(overrides) if is_built(o))
    out.append("\n}  // namespace site\n\nnamespace entry {\n")
    out.extend(_entry(index, o, with_cuda) for index, o in enumerate(overrides) if is_built(o))
    out.append("\n}  // namespace entry\n\nnamespace explain {\n")
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
    overrides = read_table(table)
    files = {
        "overrides.h": _declarations(overrides, with_cuda),
        "entries.cpp": _entries(overrides, with_cuda),
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
