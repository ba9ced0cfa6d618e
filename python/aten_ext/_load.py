"""Load the kernels' library, once, after everything that could be wrong with it has been looked at."""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
from pathlib import Path

REBUILD = "pip install --no-build-isolation --no-deps --force-reinstall ."

failure: ImportError | None = None
"""Why the kernels could not be loaded; only ``python -m aten_ext doctor`` goes on with that."""


def kernels_path() -> Path:
    """Where the library with all kernels and entries lies. A C++ program can ``dlopen`` it."""
    return Path(__file__).parent / "_kernels.abi3.so"


def wheel_tag(torch: str, cuda: str | None) -> str:
    """What the version of a wheel ends with, so that pip can tell wheels apart: ``pt213cpu``, ``pt211cu130``.

    Args:
        torch: ``torch.__version__``, or its beginning.
        cuda: ``torch.version.cuda``; none for kernels of the CPU alone.
    """
    minor = "".join(torch.split(".")[:2])
    return f"pt{minor}cu{''.join(cuda.split('.')[:2])}" if cuda else f"pt{minor}cpu"


def check_versions(built_for: str, running: str, built_for_cuda: str = "", cuda: str | None = None) -> None:
    """Raise unless the kernels fit the torch that is running.

    DispatchKey numbers move between torch releases: a library built for one registers at another key in
    the other without any error. So this is looked at before the library is opened, and the library itself
    looks once more before it registers anything. CUDA's libraries are compatible within a major version;
    kernels of the CPU alone fit a torch with CUDA, too.

    Args:
        built_for: ``major.minor``.
        running: ``torch.__version__``.
        built_for_cuda: ``torch.version.cuda`` where they were built; empty for kernels of the CPU alone.
        cuda: ``torch.version.cuda``.

    Raises:
        ImportError: they differ in major or minor version, or in the major version of CUDA.
    """
    fits = running.split(".")[:2] == built_for.split(".")
    fits_cuda = not built_for_cuda or built_for_cuda.split(".")[0] == (cuda or "").split(".")[0]
    if not fits or not fits_cuda:
        ours = "" if fits_cuda else f" with CUDA {built_for_cuda}"
        theirs = "" if fits_cuda else f" with CUDA {cuda}" if cuda else " without CUDA"
        raise ImportError(
            f"[aten_ext] built for torch {built_for}{ours}, running under torch {running}{theirs}; "
            f"rebuild it, in a checkout of aten_ext, with: {REBUILD} "
            f"(or install the wheel whose version ends with +{wheel_tag(running, cuda)})"
        )


def check_complete(path: Path) -> None:
    """Raise unless the file is as long as its own program headers say.

    The dynamic loader maps a file whose end is missing (a full disk, an interrupted copy) without complaint,
    and the process dies with SIGBUS when it touches what is not there. (Layout: the System V ABI's ELF-64,
    elf(5).)

    Raises:
        OSError: the file cannot be read, is no 64-bit ELF file or ends before its last segment.
    """
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:5] != b"\x7fELF\x02":
            raise OSError("it is not a 64-bit ELF file")
        (table,) = struct.unpack_from("<Q", header, 32)  # e_phoff
        size, count = struct.unpack_from("<HH", header, 54)  # e_phentsize, e_phnum
        file.seek(table)
        segments = file.read(size * count)
        if len(segments) < size * count:
            raise OSError("it is truncated")
        # p_offset + p_filesz of each
        ends = [sum(struct.unpack_from("<Q16xQ", segments, at + 8)) for at in range(0, size * count, size)]
    if path.stat().st_size < max(ends, default=0):
        raise OSError("it is truncated")


def load() -> None:
    """Open ``_kernels`` (which registers the overrides) and give ``_C`` the address of its registry.

    Raises:
        ImportError: one line that says what is wrong and what to do.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"[aten_ext] torch cannot be imported ({error}); install torch 2.11 or newer"
        ) from error
    try:
        # By name: "from aten_ext import _C" would call a missing module a circular import.
        _C = importlib.import_module("aten_ext._C")
    except ImportError as error:
        raise ImportError(
            f"[aten_ext] the extension module _C is missing or broken ({error}); "
            f"build it, in a checkout of aten_ext, with: {REBUILD}"
        ) from error
    check_versions(_C.built_for_torch, torch.__version__, _C.built_for_cuda, torch.version.cuda)
    path = kernels_path()
    try:
        check_complete(path)
        torch.ops.load_library(path)  # type: ignore[no-untyped-call, unused-ignore]
        library = ctypes.CDLL(str(path))
        library.aten_ext_registry.restype = ctypes.c_void_p
        library.aten_ext_load_error.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"[aten_ext] cannot load {path.name}: {error}; "
            f"build it, in a checkout of aten_ext, with: {REBUILD}"
        ) from error
    # It quotes the environment, which may hold any bytes: not UTF-8, or several lines.
    problem = library.aten_ext_load_error().decode(errors="backslashreplace")
    if problem:
        raise ImportError("\\n".join(problem.splitlines()))
    _C.attach(library.aten_ext_registry())


def load_or_exit() -> None:
    """:func:`load`; at the command line (``python -m aten_ext``) an error is one line and exit code 2.

    Python imports the package before it runs ``__main__``, so this is the only place for that. The command
    ``doctor`` is for just that case: it runs from here, without the rest of the package.
    """
    global failure
    try:
        load()
    except ImportError as error:
        failure = error
        # While ``python -m`` looks for what to run, this is what stands in sys.argv.
        if sys.argv[:1] != ["-m"] or "aten_ext" not in sys.orig_argv:
            raise
        arguments = sys.orig_argv[sys.orig_argv.index("aten_ext") + 1 :]
        if arguments[:1] == ["doctor"]:
            from aten_ext.__main__ import main

            sys.exit(main(arguments))
        print(f"{error} (python -m aten_ext doctor says more)", file=sys.stderr)
        sys.exit(2)
