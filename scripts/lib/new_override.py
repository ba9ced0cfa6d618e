"""What a new override needs in the tree, written as stubs that fail until they are filled.

:func:`write` makes the edits of ``scripts/new_override``; docs/adding_an_override.md follows them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import override_docs
from override_table import Override, TableError, read_table

TO_WRITE = "To be written"
"""Stands wherever a person has to write something; tests/repository finds what is left of it."""
REASON = "not written yet"
"""The rule's answer until there is a kernel."""


class AlreadyThere(Exception):
    """A file that would be overwritten, or an override that the table has."""


@dataclasses.dataclass(frozen=True)
class Names:
    """What the new override is called, everywhere."""

    func: str  # "clamp_min.out"
    family: str
    keys: tuple[str, ...]

    @property
    def operator(self) -> str:
        """As a C++ and Python identifier: ``clamp_min_out``."""
        return self.func.replace(".", "_")

    @property
    def base(self) -> str:
        """Without the overload: ``clamp_min``."""
        return self.func.partition(".")[0]

    @property
    def plan(self) -> str:
        """The plan's C++ type: ``ClampMinOutPlan``."""
        return "".join(part.capitalize() for part in self.operator.split("_") if part) + "Plan"


def _entry(names: Names) -> str:
    return (
        f"- func: {names.func}\n  dispatch: {', '.join(names.keys)}\n  family: {names.family}\n"
        f"  summary: {TO_WRITE}\n  unmeasured: {', '.join(names.keys)}\n"
    )


def _into_table(text: str, names: Names) -> str:
    """The entry goes before the graph passes."""
    first_pass = re.search(r"^- pass:", text, re.MULTILINE)
    position = first_pass.start() if first_pass else len(text)
    return f"{text[:position]}{_entry(names)}\n{text[position:]}"


def _declarations(names: Names, override: Override) -> str:
    needs = "\n  Needs needs() const {\n    return {};\n  }\n" if override.key == "CUDA" else "\n"
    return f"""
namespace aten_ext::{override.namespace} {{

// {TO_WRITE}: what run() has to know.
struct {names.plan} {{
  std::string describe() const {{
    return "";
  }}{needs}}};

Choice<{names.plan}> choose(const args::{override.operator}& arguments);
Ran<{override.returns}> run(const args::{override.operator}& arguments, const {names.plan}& plan);

}}  // namespace aten_ext::{override.namespace}
"""


def _header(names: Names, rows: list[Override]) -> str:
    return (
        f"// The overrides of the family {names.family}: their plans, and who decides and runs.\n"
        "#pragma once\n\n"
        '#include <ATen/core/Tensor.h>\n\n#include <string>\n#include <tuple>\n\n#include "args.h"\n'
        '#include "core/choice.h"\n#include "core/needs.h"\n'
        + "".join(_declarations(names, row) for row in rows)
    )


def _source(names: Names, override: Override) -> str:
    space = override.namespace
    arguments = f"const args::{override.operator}& /*a*/, const {names.plan}& /*plan*/"
    run = f"""Ran<{override.returns}> {space}::run({arguments}) {{
  TORCH_CHECK(false, "[{names.func}] {TO_WRITE}");
}}
"""
    if override.key == "CUDA":
        run = f"#ifdef ATEN_EXT_WITH_CUDA\n{run}#endif\n"
    return f"""// {names.func} at {override.key}: {TO_WRITE}.
#include <c10/util/Exception.h>

#include "ops/{names.family}/overrides.h"

namespace aten_ext {{

Choice<{space}::{names.plan}> {space}::choose(const args::{override.operator}& /*a*/) {{
  return "{REASON}";
}}

{run}
}}  // namespace aten_ext
"""


def _test(names: Names) -> str:
    devices = [key.lower() for key in names.keys]
    markers = ", ".join(
        'pytest.param("cuda", marks=pytest.mark.gpu)' if device == "cuda" else f'"{device}"'
        for device in devices
    )
    return f'''"""``{names.func}``: route and value against upstream, and every reason to decline."""

from __future__ import annotations

import pytest
import torch

import aten_ext

NAME = "{names.func}"


def call(device: str) -> torch.Tensor:
    """A call that the fused kernel takes."""
    raise NotImplementedError("{TO_WRITE}")


@pytest.mark.parametrize("device", [{markers}])
def test_route_and_value(device: str) -> None:
    aten_ext.reset_counts()
    ours = call(device)
    assert aten_ext.counts(device.upper())[NAME].ran == 1
    with aten_ext.disabled(NAME):
        theirs = call(device)
    assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def test_declines() -> None:
    raise NotImplementedError("{TO_WRITE}: one case for each reason")
'''


def _bench(names: Names) -> str:
    return f'''"""Cases of ``{names.func}``. {TO_WRITE}: what a call has to move."""

from __future__ import annotations

from functools import partial

from aten_ext.bench.case import Call, Case


def cases(device: str, full: bool) -> list[Case]:
    """Sizes that models have."""
    del device, full
    return [
        Case(
            op="{names.operator}",
            name="{TO_WRITE}",
            dtype="float32",
            override="{names.func}",
            make=partial(_make, 1 << 20),
            bytes=8 << 20,
            footprint=8 << 20,
        )
    ]


def _make(count: int, device: str) -> Call:
    raise NotImplementedError("{TO_WRITE}")
'''


def _kernels_page(names: Names) -> str:
    page = "formula, layout, what limits, what was tried"
    return f"# Kernels of the family {names.family}\n\n{TO_WRITE}: {page}.\n"


def _into_overrides_page(text: str, names: Names, table: Path) -> str:
    section = (
        f"\n### `{names.func}`\n\n{TO_WRITE}.\n\n| reason | why |\n|---|---|\n"
        f"| `{REASON}` | there is no kernel yet |\n"
    )
    return override_docs.with_states(text.rstrip("\n") + "\n" + section, table)


def _into_index(text: str, names: Names) -> str:
    link = f"[{names.family}](kernels/{names.family}.md)"
    return (
        text
        if link in text
        else re.sub(r"(\(overrides\.md\)[^\n]*\n)", rf"\1   Kernels: {link}.\n", text, count=1)
    )


def _into_costs(text: str, names: Names) -> str:
    if f'    "{names.base}": ' in text:  # one formula for all overloads
        return text
    formula = f'''def _{names.base}(a: Arguments) -> Cost:
    """{TO_WRITE}: bytes and FLOPs of a call."""
    raise NotImplementedError("{TO_WRITE}")


'''
    text = text.replace("FORMULAS: dict", f"{formula}FORMULAS: dict", 1)
    return text.replace("Cost]] = {\n", f'Cost]] = {{\n    "{names.base}": _{names.base},\n', 1)


def _into_databases(text: str, names: Names) -> str:
    if f'    "{names.base}": Row(' in text:
        return text
    return text.replace(
        "TABLE: dict[str, Row] = {\n",
        f'TABLE: dict[str, Row] = {{\n    "{names.base}": Row(operators=("{names.base}",)),\n',
        1,
    )


def _edit(root: Path, path: str, change: Callable[[str], str]) -> str:
    file = root / path
    before = file.read_text()
    after = change(before)
    if after != before:
        file.write_text(after)
    return path


def _make(root: Path, path: str, text: str) -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return path


def write(root: Path, names: Names) -> list[str]:
    """Write everything that a new override needs into the tree at ``root``.

    Returns:
        The paths that were made or changed, relative to ``root``, in the order in which to fill them.

    Raises:
        TableError: no such operator, or no upstream kernel at a key. Nothing is changed then.
        AlreadyThere: the table has the override, or a file of its name exists. Nothing is changed then.
    """
    table = root / "native_functions_ext.yaml"
    before = table.read_text()
    if names.func in {override.name for override in read_table(table)}:
        raise AlreadyThere(f"{names.func} stands in {table.name} already")
    sources = {key: f"aten_ext/ops/{names.family}/{names.operator}_{key.lower()}.cpp" for key in names.keys}
    test = f"tests/ops/{names.family}/test_{names.operator}.py"
    bench = f"python/aten_ext/bench/ops/{names.operator}.py"
    for path in (*sources.values(), test, bench):
        if (root / path).exists():
            raise AlreadyThere(f"{path} exists")
    table.write_text(_into_table(before, names))
    try:
        rows = [override for override in read_table(table) if override.name == names.func]
    except TableError:
        table.write_text(before)
        raise
    header = f"aten_ext/ops/{names.family}/overrides.h"
    kernels_page = f"docs/kernels/{names.family}.md"
    changed = [table.name]
    if (root / header).exists():
        more = "".join(_declarations(names, row) for row in rows)
        changed.append(_edit(root, header, lambda text: text.rstrip("\n") + "\n" + more))
    else:
        changed.append(_make(root, header, _header(names, rows)))
    changed += [_make(root, sources[row.key], _source(names, row)) for row in rows]
    if not (root / f"tests/ops/{names.family}/__init__.py").exists():
        changed.append(_make(root, f"tests/ops/{names.family}/__init__.py", ""))
    changed.append(_make(root, test, _test(names)))
    changed.append(_edit(root, "tests/torch_databases/table.py", lambda text: _into_databases(text, names)))
    changed.append(_edit(root, "python/aten_ext/_cost.py", lambda text: _into_costs(text, names)))
    changed.append(_make(root, bench, _bench(names)))
    changed.append(_edit(root, "docs/overrides.md", lambda text: _into_overrides_page(text, names, table)))
    if not (root / kernels_page).exists():
        changed.append(_make(root, kernels_page, _kernels_page(names)))
        changed.append(_edit(root, "docs/index.md", lambda text: _into_index(text, names)))
    return changed
