"""Builds apart from the checkout and the caller's environment, against one release of torch after another."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OLDEST = (2, 11)
BUILD_REQUIREMENTS = (
    *("setuptools>=77,<82", "wheel", "ninja", "pybind11>=2.13"),
    *("pyyaml", "numpy", "typing_extensions"),
)


class Failure(Exception):
    """One line that says what could not be done."""


def requirement(version: str) -> str:
    """What pip is asked for: ``2.13`` is the newest 2.13.x.

    Raises:
        Failure: not a version that aten_ext can be built against.
    """
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        raise Failure(f"expected versions like 2.13 or 2.13.0, or newest, got {version!r}")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise Failure(f"expected torch {'.'.join(map(str, OLDEST))} or newer, got {version}")
    return f"torch=={version}" + (".*" if version.count(".") == 1 else "")


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment without what would lead Python, or aten_ext, elsewhere; with ``changes``."""
    return (
        {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("ATEN_EXT")}
        | {k: v for k, v in os.environ.items() if k == "ATEN_EXT_BUILD_CUDA"}
        | changes
    )


def run(arguments: Sequence[str | Path], folder: Path, log: Path, **environment: str) -> None:
    """Run a command with its output in a file.

    Raises:
        Failure: it ended with something else than 0.
    """
    with log.open("w") as output:
        code = subprocess.run(
            arguments,
            cwd=folder,
            env=clean_environment(**environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code != 0:
        raise Failure(f"{' '.join(map(str, arguments[1:4]))} … ended with {code}: {log}")


def listed_sources() -> list[str]:
    """The files of the working tree, committed or not, without what git ignores.

    Raises:
        Failure: this is no git checkout.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode != 0:
        raise Failure(f"{ROOT} is not a git checkout")
    return sorted(name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file())


def copy_sources(target: Path) -> None:
    """Put the files of the working tree into ``target``; keep what was compiled there."""
    names = listed_sources()
    for old in target.iterdir() if target.exists() else ():
        if old.name != "build":
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
