"""Overrides that exist for a test alone: the same generated entries, compiled at the CPU key."""

from __future__ import annotations

import fcntl
import importlib.util
import sys
import tempfile
from pathlib import Path

import torch
import torch.utils.cpp_extension

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
import aten_headers  # noqa: E402

HERE = Path(__file__).parent
FOLDERS = [HERE / "composite_override", HERE / "paired_override"]


def load() -> None:
    """Generate the entries of every ``table.yaml``, compile them with the sources beside it, register them.

    One library for all, since what they share takes longest. For a process of its own: the overrides stay
    registered.

    Raises:
        RuntimeError: it does not compile.
    """
    spec = importlib.util.spec_from_file_location("aten_ext_codegen", ROOT / "scripts" / "codegen.py")
    assert spec is not None and spec.loader is not None
    codegen = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = codegen
    spec.loader.exec_module(codegen)
    build = ROOT / "build" / "compiled_overrides" / torch.__version__
    build.mkdir(parents=True, exist_ok=True)
    ours = [
        source
        for room in ("core", "watch")
        for source in sorted((ROOT / "aten_ext" / room).glob("*.cpp"))
        if source.name != "bindings.cpp"
    ]
    sources = [*(source for folder in FOLDERS for source in sorted(folder.glob("*.cpp"))), *ours]
    with (build / "process_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (build / "lock").unlink(missing_ok=True)  # torch's own outlives a process that is killed
        with tempfile.TemporaryDirectory() as temporary:
            table = Path(temporary) / "native_functions_ext.yaml"
            table.write_text("\n".join((folder / "table.yaml").read_text() for folder in FOLDERS))
            codegen.generate(table, build / "generated", with_cuda=False)
        sources.insert(0, build / "generated" / "entries.cpp")
        torch.utils.cpp_extension.load(  # type: ignore[no-untyped-call]
            "aten_ext_compiled_overrides",
            [str(aten_headers.behind_them(source, build / f"{source.stem}_.cpp")) for source in sources],
            extra_include_paths=[str(ROOT / "aten_ext"), *map(str, FOLDERS), str(build / "generated")],
            extra_cflags=aten_headers.flags(["-O0", "-std=c++20"]),
            extra_ldflags=aten_headers.LINK,
            build_directory=str(build),
            is_python_module=False,
        )
