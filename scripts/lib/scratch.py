"""A copy of the working tree that can be built otherwise, or spoilt, without touching the tree itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class BuildError(Exception):
    """The copy does not build; the text is the compiler's."""


class Scratch:
    """The copy, in a folder that is kept, so that only what has changed is copied and compiled again."""

    def __init__(self, folder: Path) -> None:
        """Copy what git knows or would add; ``folder`` is created if needed."""
        self.folder = folder
        listed = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            check=True,
        ).stdout
        names = [
            os.fsdecode(name) for name in listed.split(b"\0") if name and (ROOT / os.fsdecode(name)).is_file()
        ]
        for name in names:
            self.restore(name)
        known = {folder / name for name in names}
        for path in folder.rglob("*"):
            # A test that is gone from the tree must not run in the copy, nor a header be found there.
            is_source = path.suffix in {".py", ".h", ".cuh", ".cpp", ".cu"}
            if is_source and path not in known and "build" not in path.relative_to(folder).parts:
                path.unlink()

    def restore(self, name: str) -> None:
        """Make the file ``name`` as it is in the tree; one that is so already keeps its time."""
        source, target = ROOT / name, self.folder / name
        if not target.exists() or source.read_bytes() != target.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            shutil.copymode(source, target)

    def environment(self, **changes: str) -> dict[str, str]:
        """What a process needs to find the copy's package instead of an installed one."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("ATEN_EXT")}
        paths = [str(self.folder / "python"), *filter(None, [inherited.get("PYTHONPATH")])]
        return inherited | {"PYTHONPATH": os.pathsep.join(paths)} | changes

    def build(self, **environment: str) -> None:
        """Compile what has changed, in place.

        Raises:
            BuildError: it does not compile.
        """
        run = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
        )
        if run.returncode != 0:
            raise BuildError((run.stdout + run.stderr)[-4000:])
