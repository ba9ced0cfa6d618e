"""The table of overrides: what native_functions_ext.yaml may say, checked against the installed torch.

:func:`read_table` and :func:`read_passes` give the overrides and the graph passes of a table;
:class:`Override` holds the C++ text that concerns one of them, as torchgen prints it.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
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

REQUIRED_FIELDS = ("func", "dispatch", "family", "summary")
VALID_FIELDS = (*REQUIRED_FIELDS, "unmeasured", "opaque", "writes", "pair", "autograd")
VALID_KEYS = ("CPU", "CUDA")
PASS_REQUIRED_FIELDS = ("pass", "summary")
PASS_VALID_FIELDS = (*PASS_REQUIRED_FIELDS, "unmeasured")
PASS_KEY = "Inductor"


class TableError(Exception):
    """The table asks for something that does not exist. The message starts with file and line."""


@dataclasses.dataclass(frozen=True)
class Override:
    """One line of the registry: one overload at one dispatch key, with the C++ text that concerns it."""

    name: str  # "cat.out"
    key: str  # "CUDA"
    family: str  # "cat": its folder below aten_ext/ops/ and tests/ops/
    summary: str
    measured: bool  # no benchmark has shown it to be faster yet: it starts off
    own_node: bool  # composite, and brings an autograd node of its own for calls that are differentiated
    pair: str  # "_cudnn_rnn": the forward whose backward this is; "" for all others
    returns: str  # "at::Tensor &"
    argument_types: tuple[str, ...]  # ("const at::ITensorListRef &", "int64_t", "at::Tensor &")
    arguments: str  # "const at::ITensorListRef & tensors, int64_t dim, at::Tensor & out"
    argument_names: str  # "tensors, dim, out"
    upstream: str  # "at::cuda::cat_outf(tensors, dim, out)": PyTorch's own kernel, called directly
    header: str  # the header that declares it
    composite: bool  # upstream is the decomposition into other operators, at every key: see _composite_entry
    schema_arguments: str  # "Tensor[] tensors, int dim=0, *, Tensor out"
    first_tensors: str  # "tensors": the argument whose device the call is on
    written: tuple[bool, ...]  # which arguments the operator writes to, by its schema or by the table
    opaque: tuple[bool, ...]  # which results only the same implementation can read
    random: bool  # it draws from a generator

    @property
    def operator(self) -> str:
        """C++ name of its arguments' struct: ``cat_out``, the same at every key."""
        return self.name.replace(".", "_")

    @property
    def symbol(self) -> str:
        """C++ name of its entry: ``cat_out_cuda``."""
        return f"{self.operator}_{self.key.lower()}"

    @property
    def namespace(self) -> str:
        """Where its ``choose`` and ``run`` stand: ``cuda``."""
        return self.key.lower()

    @classmethod
    def make(
        cls,
        function: NativeFunction,
        key: str,
        summary: str,
        *,
        family: str,
        upstream_key: str,
        measured: bool = True,
        opaque: Collection[int] = (),
        also_writes: Collection[str] = (),
        pair: str = "",
        own_node: bool = False,
    ) -> Override:
        """Let torchgen print the signatures of ``function``, with plain integers for sizes.

        ``upstream_key`` is where PyTorch's own kernel for ``key`` stands: see :meth:`Upstream.keys`.
        """
        namespace = upstream_key.lower()
        writes = {a.name: a.is_write or a.name in also_writes for a in function.func.arguments.flat_all}
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
                family=family,
                summary=summary,
                measured=measured,
                own_node=own_node,
                pair=pair,
                returns=signature.returns_type().cpp_type(),
                argument_types=tuple(a.type for a in signature.arguments()),
                arguments=", ".join(a.defn() for a in signature.arguments()),
                argument_names=", ".join(a.name for a in signature.arguments()),
                upstream=f"at::{namespace}::{target_name}({', '.join(a.expr for a in forwarded)})",
                header=f"ATen/ops/{function.root_name}_{namespace}_dispatch.h",
                composite=upstream_key == "CompositeImplicitAutograd",
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


def _mutates_or_aliases(function: NativeFunction) -> bool:
    """Whether it writes to an argument or returns a view: what a companion would have to tell autograd."""
    return "(a" in str(function.func)


@dataclasses.dataclass(frozen=True)
class GraphPass:
    """One row of the registry that is no override: a rewrite of the graphs that Inductor compiles."""

    name: str
    summary: str
    measured: bool


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

    def keys(self, name: str) -> dict[str, str]:
        """The keys among :data:`VALID_KEYS` at which ``name`` has a kernel, and where that kernel stands.

        It stands at the key itself (``at::cpu::``), or else at CompositeExplicitAutograd, which serves every
        backend that has none of its own. A function that PyTorch composes of others (at
        CompositeImplicitAutograd) may be overridden at every key: see :func:`_composite_entry`.
        """
        function, index = self._parse(name)
        if function.has_composite_implicit_autograd_kernel and not _mutates_or_aliases(function):
            return dict.fromkeys(VALID_KEYS, "CompositeImplicitAutograd")
        if function.structured_delegate is not None:
            # A functional or in-place overload whose kernel is that of its out= overload.
            _, index = self._parse(str(function.structured_delegate))
        composite = DispatchKey.CompositeExplicitAutograd
        where = {key: DispatchKey.parse(key) for key in VALID_KEYS}
        candidates = {key: own if own in index else composite for key, own in where.items()}
        return {key: found.name for key, found in candidates.items() if found in index}

    def _parse(self, name: str) -> tuple[NativeFunction, Any]:
        # from_yaml consumes the dictionary that it is given.
        where = Location(str(self.path), 0)
        function, index = NativeFunction.from_yaml(dict(self._entries[name]), where, self._tags)
        return function, index


def _is_pass(node: yaml.Node) -> bool:
    """Whether an entry of the table is a graph pass, not an override."""
    return isinstance(node, yaml.MappingNode) and any(key.value == "pass" for key, _ in node.value)


def _entry_fields(node: yaml.Node, where: str) -> dict[str, tuple[str, str]]:
    """Field -> (value, "file:line") of one entry of the table."""
    required_fields, valid_fields = (
        (PASS_REQUIRED_FIELDS, PASS_VALID_FIELDS) if _is_pass(node) else (REQUIRED_FIELDS, VALID_FIELDS)
    )
    valid = ", ".join(valid_fields)
    if not isinstance(node, yaml.MappingNode):
        raise TableError(f"{where}: expected an entry with the fields {valid}")
    path = where.rpartition(":")[0]
    fields: dict[str, tuple[str, str]] = {}
    for key_node, value_node in node.value:
        line = f"{path}:{key_node.start_mark.line + 1}"
        if key_node.value not in valid_fields:
            raise TableError(f"{line}: unknown field {key_node.value!r}; valid fields: {valid}")
        if not isinstance(value_node, yaml.ScalarNode) or not value_node.value.strip():
            raise TableError(f"{line}: expected one line of text for {key_node.value!r}")
        fields[key_node.value] = (value_node.value.strip(), line)
    for field in required_fields:
        if field not in fields:
            required = ", ".join(required_fields)
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


def _written(fields: dict[str, tuple[str, str]], function: NativeFunction) -> set[str]:
    """The arguments that the field ``writes`` names."""
    text, line = fields.get("writes", ("", ""))
    tensors = [a.name for a in function.func.arguments.flat_all if a.type.is_tensor_like()]
    names = {name.strip() for name in text.split(",")} if text else set()
    for name in sorted(names - set(tensors)):
        valid = ", ".join(tensors)
        raise TableError(
            f"{line}: expected 'writes' to name tensors among the arguments ({valid}), got {name!r}"
        )
    return names


def _root(path: Path) -> yaml.SequenceNode:
    """The list of entries in the table."""
    try:
        root = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise TableError(f"{path.name}:{line}: not valid YAML: {error.problem}") from error
    if not isinstance(root, yaml.SequenceNode):
        raise TableError(f"{path.name}:1: expected a list of entries")
    return root


def read_passes(path: Path) -> list[GraphPass]:
    """Read and check the graph passes of the table.

    Raises:
        TableError: an unknown or missing field, a name that is no identifier or stands there already.
    """
    passes: list[GraphPass] = []
    for node in _root(path).value:
        if not _is_pass(node):
            continue
        fields = _entry_fields(node, f"{path.name}:{node.start_mark.line + 1}")
        name, line = fields["pass"]
        if not name.isidentifier():
            raise TableError(f"{line}: expected an identifier as the name of a pass, got {name!r}")
        if name in {p.name for p in passes}:
            raise TableError(f"{line}: {name!r} stands in the table already")
        unmeasured, unmeasured_line = fields.get("unmeasured", ("", ""))
        if unmeasured not in ("", PASS_KEY):
            raise TableError(f"{unmeasured_line}: expected 'unmeasured: {PASS_KEY}', got {unmeasured!r}")
        passes.append(GraphPass(name, fields["summary"][0], measured=not unmeasured))
    return passes


def read_table(path: Path, upstream: Upstream | None = None) -> list[Override]:
    """Read and check the overrides of the table.

    Args:
        path: native_functions_ext.yaml.
        upstream: the operators to check it against; by default those of the installed torch.

    Raises:
        TableError: an unknown field, operator or key, a key without an upstream kernel, a duplicate.
    """
    upstream = upstream or Upstream()
    overrides: list[Override] = []
    seen: dict[str, str] = {}
    pairs: list[tuple[str, str]] = []
    for node in _root(path).value:
        if _is_pass(node):
            continue
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
        autograd_text, autograd_line = fields.get("autograd", ("", ""))
        own_node = [key.strip() for key in autograd_text.split(",")] if autograd_text else []
        for key in own_node:
            if key not in keys or with_upstream[key] != "CompositeImplicitAutograd":
                raise TableError(
                    f"{autograd_line}: expected 'autograd' to name keys of 'dispatch' ({', '.join(keys)}) "
                    f"of an operator that PyTorch composes of others, got {key!r}"
                )
        family, family_line = fields["family"]
        if not family.isidentifier():
            raise TableError(f"{family_line}: expected an identifier as the name of a family, got {family!r}")
        pair, pair_line = fields.get("pair", ("", ""))
        if pair:
            pairs.append((pair, pair_line))
        function = upstream.function(name)
        opaque = _positions(fields, len(function.func.returns))
        also_writes = _written(fields, function)
        overrides.extend(
            Override.make(
                function,
                key,
                fields["summary"][0],
                family=family,
                upstream_key=with_upstream[key],
                measured=key not in unmeasured,
                opaque=opaque,
                also_writes=also_writes,
                pair=pair,
                own_node=key in own_node,
            )
            for key in keys
        )
    for pair, line in pairs:
        if pair not in seen:
            known = ", ".join(sorted(seen))
            raise TableError(
                f"{line}: expected 'pair' to name an override of this table ({known}), got {pair!r}"
            )
    return overrides
