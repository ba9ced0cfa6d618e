"""Overrides that exist for a test alone: the same generated entries, compiled at the CPU key."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import torch
import torch.utils.cpp_extension

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
import aten_headers  # noqa: E402


def load(name: str, table: str, folder: Path) -> None:
    """Generate the entries of a table, compile them with the sources in a folder, and register them.

    For a process of its own: the overrides stay registered.

    Args:
        name: of the library that is made.
        table: text of a table like native_functions_ext.yaml.
        folder: its ``*.cpp`` are compiled,
            and ``ops/<family>/overrides.h`` in it declares ``choose`` and ``run``.

    Raises:
        RuntimeError: it does not compile.
    """
    spec = importlib.util.spec_from_file_location("aten_ext_codegen", ROOT / "scripts" / "codegen.py")
    assert spec is not None and spec.loader is not None
    codegen = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = codegen
    spec.loader.exec_module(codegen)
    build = ROOT / "build" / name / torch.__version__
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "native_functions_ext.yaml"
        path.write_text(table)
        codegen.generate(path, build / "generated", with_cuda=False)
    ours = [
        source
        for room in ("core", "watch")
        for source in sorted((ROOT / "aten_ext" / room).glob("*.cpp"))
        if source.name != "bindings.cpp"
    ]
    sources = [build / "generated" / "entries.cpp", *sorted(folder.glob("*.cpp")), *ours]
    torch.utils.cpp_extension.load(  # type: ignore[no-untyped-call]
        f"aten_ext_{name}",
        [str(aten_headers.behind_them(source, build / f"{source.stem}_.cpp")) for source in sources],
        extra_include_paths=[str(ROOT / "aten_ext"), str(folder), str(build / "generated")],
        extra_cflags=aten_headers.flags(["-O0", "-std=c++20"]),
        build_directory=str(build),
        is_python_module=False,
    )
