"""What every subcommand of ``python -m aten_ext`` shares."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


class CommandError(Exception):
    """A mistake of the user's that one line explains: printed to stderr, exit code 2, no traceback."""


def prepare_folder(path: str | Path) -> Path:
    """Create ``path`` if needed and prove that a file can be written there.

    Raises:
        CommandError: the folder cannot be created or written.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(f"cannot write to folder {os.fspath(folder)!r}: {error.strerror}") from error
    return folder


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path`` so that a reader finds the old file or the new one, never half of one.

    Raises:
        CommandError: the file cannot be written.
    """
    target = Path(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".tmp")
    except OSError as error:
        raise CommandError(f"cannot write {os.fspath(target)!r}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        # mkstemp makes the file private; give it what an ordinary open() would have given.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise CommandError(f"cannot write {os.fspath(target)!r}: {error.strerror}") from error
