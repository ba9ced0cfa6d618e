"""Rules about the sources themselves: who may include whom, and that the docs keep up."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from paths import ROOT

SOURCES = ROOT / "aten_ext"


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def ours(names: list[str]) -> list[str]:
    return [name for name in names if (SOURCES / name).exists() or name == "overrides.h"]


FILES = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh"))
ROOMS = {"core", "watch", "ops", "device"}
TORCH = ("ATen/", "torch/", "c10/", "caffe2/")
CUDA_OF_TORCH = ("ATen/cuda", "c10/cuda")


def room_of(name: str) -> str:
    """``core``, ``watch``, ``device``, or the family: ``ops/cat``."""
    parts = Path(name).parts
    return "/".join(parts[:2]) if parts[0] == "ops" else parts[0]


def includes_torch(path: Path) -> bool:
    """Whether a file of ours includes headers of torch, itself or through others of ours."""
    names = includes(path)
    return any(name.startswith(TORCH) for name in names) or any(
        includes_torch(SOURCES / name) for name in ours(names) if (SOURCES / name).exists()
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_include_rule(path: Path) -> None:
    """device/ <- kernel (.cu, .cuh) <- bridge (.h without ATen) <- ATen side (.cpp) -> core/.

    A family includes no other family's files; core/ and watch/ know no family. Kernels know no ATen, and
    what they share with the ATen side knows neither ATen nor a kernel.
    """
    names = includes(path)
    mine = ours(names)
    where = str(path.relative_to(SOURCES))
    room = room_of(where)
    assert Path(where).parts[0] in ROOMS
    is_kernel = path.suffix in (".cu", ".cuh")
    allowed = {
        "core": {"core", "watch"},
        "watch": {"core", "watch"},
        "device": {"core", "device"},
    }.get(room, {"core", "device", room} if is_kernel else {"core", room})
    assert {room_of(name) for name in mine if name != "overrides.h"} <= allowed
    if is_kernel:
        assert not includes_torch(path), "device code knows no ATen"
        assert not [name for name in mine if name.endswith(".cpp")]
    else:
        assert not [name for name in mine if name.endswith((".cu", ".cuh"))]
    if room == "device":
        assert path.suffix == ".cuh"
    if "/cpu/" in where or where.endswith("/cpu.cpp"):
        assert not [name for name in names if name.startswith((*CUDA_OF_TORCH, "cuda")) or "/cuda/" in name]
    if "/cuda/" in where:
        assert not [name for name in mine if "/cpu/" in name]
    if path.name.endswith("_kernel.cpp"):
        assert all(name.startswith("core/") or "/cpu/" in name for name in mine)
    if path.stem in ("registry", "watch"):
        assert not includes_torch(path), "standard library only: the module _C has it too"
    if path.suffix == ".cpp":
        assert "<<<" not in path.read_text(), "launches belong into .cu files"


def test_registry_knows_no_operator() -> None:
    text = (SOURCES / "core" / "registry.h").read_text() + (SOURCES / "core" / "registry.cpp").read_text()
    assert "fused_adam" not in text


def test_every_override_is_documented() -> None:
    names = re.findall(r"^- func: (\S+)$", (ROOT / "native_functions_ext.yaml").read_text(), re.MULTILINE)
    documented = set(
        re.findall(r"^### `([^`]+)`", (ROOT / "docs" / "overrides.md").read_text(), re.MULTILINE)
    )
    assert names and documented == set(names)


def test_states_in_the_docs_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, family and whether an override starts on are written from the table, and nowhere by hand."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "lib"))
    import override_docs

    page = ROOT / "docs" / "overrides.md"
    text = page.read_text()
    assert override_docs.with_states(text, ROOT / "native_functions_ext.yaml") == text, (
        f"python scripts/codegen.py --docs {page.relative_to(ROOT)}"
    )
    by_hand = text.partition(override_docs.END)[2]
    for claim in (
        r"\bKeys?: (CPU|CUDA)",
        r"\bstarts? off\b(?! has)",
        r"\bis off until\b",
        "not measured yet",
    ):
        assert not re.search(claim, by_hand, re.IGNORECASE), claim


def test_every_decline_reason_is_documented() -> None:
    """What counts() may show is explained in docs/overrides.md, word for word."""
    text = (ROOT / "docs" / "overrides.md").read_text()
    for path in sorted(path for path in (SOURCES / "ops").rglob("*") if path.suffix in (".h", ".cpp")):
        # What a plan says of itself is no reason, nor what an assembler statement says of its operands.
        describe = r"^( *)(?:inline )?(?:std::string|const char\*) [\w:]*describe\w*\(.*?^\1}\n"
        rules = re.sub(describe, "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        rules = re.sub(r"\basm volatile\([^;]*;", "", rules)
        for reason in re.findall(r'return (?:upstream\()?"([^"]+)"|: "([^"]+)"|reason = "([^"]+)"', rules):
            literal = next(filter(None, reason))
            assert f"`{literal}`" in text, f"{path.name}: {literal}"


def test_no_merge_is_unfinished() -> None:
    """Git's markers of a conflict stand in no file."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in names.stdout.split("\0") if name]
    marker = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    assert not [str(path) for path in files if path.is_file() and marker.search(path.read_bytes())]
