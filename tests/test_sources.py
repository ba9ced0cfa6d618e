"""Rules about the sources themselves: who may include whom, and that the docs keep up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "aten_ext"


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def ours(names: list[str]) -> list[str]:
    return [name for name in names if (SOURCES / name).exists() or name == "overrides.h"]


DEVICE_TOO = ["cuda/tensor_list.h", "cuda/kernel_arguments.cuh", "cuda/gru_cell.h"]
"""What device code knows of the host's side: how a list of tensors, or a step's operands, reach it."""

SHARED_LAUNCH = "cuda/gru_launch.h"
"""Between the files that choose among the kernels of one recurrence."""

STANDARD_ONLY = ["floating_dtype.h", "lru_cache.h"]
"""Headers of ours that include nothing but the standard library."""

FILES = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_include_rule(path: Path) -> None:
    """device/ <- .cu <- .h -> .cpp -> checks.h; cuda/ and cpu/ do not know each other.

    A bridge <op>.h may name the tensor lists of its folder and what is standard library only; cpu/kernel/ is
    for the files that are compiled for an instruction set of their own.
    """
    names = includes(path)
    mine = ours(names)
    where = path.relative_to(SOURCES)
    torch_headers = [name for name in names if name.startswith(("ATen/", "torch/", "c10/"))]
    if where.parts[0] == "cuda":
        assert not [name for name in mine if name.startswith("cpu/")]
    else:
        assert not [name for name in names if name.startswith(("cuda/", "c10/cuda", "ATen/cuda", "cuda_"))]
    if where.parts[:2] == ("cuda", "device"):
        assert path.suffix == ".cuh" and not torch_headers
        assert all(name.startswith("cuda/device/") or name in DEVICE_TOO for name in mine)
    elif path.suffix in (".cu", ".cuh"):
        assert not torch_headers
        # cat_gather.cu has its launch declared in cat.h, as all of that family.
        bridges = {f"cuda/{path.stem}.h", f"cuda/{path.stem.partition('_')[0]}.h", SHARED_LAUNCH}
        for name in mine:
            assert name in bridges or name.startswith("cuda/device/") or name.endswith(".cuh")
    elif where.parts[:2] == ("cpu", "kernel"):
        assert all(name in STANDARD_ONLY or name.startswith("cpu/") for name in mine)
    elif where.parts[0] in ("cpu", "cuda") and path.suffix == ".h":
        # One without a .cu stands between .cpp files, which all know ATen.
        assert not torch_headers or not path.with_suffix(".cu").exists()
        known = {f"{where.parts[0]}/tensor_list.h", *STANDARD_ONLY}
        assert set(mine) <= (known | {"cuda/cudnn_rnn.h"} if str(where) == SHARED_LAUNCH else known)
    if not path.stem.endswith("_kernel") and where.parts[:2] != ("cpu", "kernel"):
        assert not [name for name in mine if name.startswith("cpu/kernel/")]
    if where.name.startswith("registry"):
        assert not torch_headers, "the registry is standard library only"
    if path.suffix == ".cpp" and where.parts[0] in ("cpu", "cuda"):
        assert "<<<" not in path.read_text(), "launches belong into .cu files"


def test_registry_knows_no_operator() -> None:
    text = (SOURCES / "registry.h").read_text() + (SOURCES / "registry.cpp").read_text()
    assert "fused_adam" not in text


def test_every_override_is_documented() -> None:
    names = re.findall(r"^- func: (\S+)$", (ROOT / "native_functions_ext.yaml").read_text(), re.MULTILINE)
    documented = set(
        re.findall(r"^### `([^`]+)`", (ROOT / "docs" / "overrides.md").read_text(), re.MULTILINE)
    )
    assert names and documented == set(names)


def test_every_decline_reason_is_documented() -> None:
    """What counts() may show is explained in docs/overrides.md, word for word."""
    text = (ROOT / "docs" / "overrides.md").read_text()
    for path in [
        *sorted(SOURCES.glob("*_args.h")),
        *sorted(SOURCES.glob("*_rule.h")),
        *sorted((SOURCES / "cpu").glob("*.cpp")),
        *sorted((SOURCES / "cuda").glob("*.cpp")),
    ]:
        for reason in re.findall(
            r'return (?:upstream\()?"([^"]+)"|: "([^"]+)"|reason = "([^"]+)"', path.read_text()
        ):
            literal = next(filter(None, reason))
            assert f"`{literal}`" in text, f"{path.name}: {literal}"
