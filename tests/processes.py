"""Python processes for tests, most of them forked from one that has imported torch.

``python("-c", code)`` is ``subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)``
without the seconds that ``import torch`` takes. A server, a child of this process of pytest, has imported
torch and nothing of aten_ext. It forks; the child takes the environment, folder and arguments that were asked
for and runs the program as ``__main__``. It ends as an interpreter does, with traceback, exit status, threads
and ``atexit``; but neither the interpreter nor torch's libraries are taken apart.

Variables that the interpreter or torch may have read at its start get a server of their own
(:data:`READ_LATER` has those that it has not). Options other than ``-W`` and ``ATEN_EXT_AUTOLOAD`` get an
interpreter of their own, and so does everything where there is no server. A test that is about the start or
the end of an interpreter uses ``subprocess``.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

TESTS = Path(__file__).resolve().parent
READ_LATER = re.compile(
    r"ATEN_EXT\w*|HOME|XDG_\w+|PATH|PWD|VIRTUAL_ENV|PYTEST_\w+|TORCHINDUCTOR_\w+|DISABLE_ADDMM_CUDA_LT"
    r"|PYTHONPATH|PYTHONDONTWRITEBYTECODE|OMP_NUM_THREADS"
)
"""Variables that neither the interpreter nor torch reads at its start, or that the child sees to itself."""
_one_at_a_time = threading.Lock()


def python(
    *arguments: str | os.PathLike[str],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a process of its own and say what came of it.

    Args:
        *arguments: of the interpreter: ``-c CODE``, ``-m MODULE`` or a script, and the program's own.
        cwd: the folder to run in.
        env: all of the environment; this process's without it.
        timeout: seconds until the process is killed.

    Raises:
        subprocess.TimeoutExpired: it was killed.
    """
    words = [os.fspath(argument) for argument in arguments]
    environment = dict(os.environ if env is None else env)
    folder = os.fspath(cwd or Path.cwd())
    program = _split(words)
    server = _server_like(environment) if program else None
    if program is None or server is None:
        command = [sys.executable, *words]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )
    request = {"env": environment, "cwd": folder, "words": words, **program}
    with (
        tempfile.TemporaryFile("w+") as asked,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        json.dump(request, asked)
        asked.flush()
        with _one_at_a_time:
            status = server.run([asked.fileno(), out.fileno(), err.fileno()], timeout)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode().replace("\r\n", "\n"))
    if status is None:
        raise subprocess.TimeoutExpired([sys.executable, *words], timeout, *said)
    return subprocess.CompletedProcess([sys.executable, *words], status, *said)


def _split(words: list[str]) -> dict[str, Any] | None:
    """What the interpreter makes of its arguments; None if there is an option that the server cannot give."""
    warned = []
    rest = list(words)
    while len(rest) > 1 and rest[0] == "-W":
        warned.append(rest[1])
        del rest[:2]
    if len(rest) > 1 and rest[0] in ("-c", "-m"):
        return {"warn": warned, "kind": rest[0], "what": rest[1], "argv": [rest[0], *rest[2:]]}
    if rest and not rest[0].startswith("-"):
        return {"warn": warned, "kind": "script", "what": rest[0], "argv": rest}
    return None


class _Server:
    """The process that forks, seen from here."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._channel, theirs = socket.socketpair()
        serve = f"import processes; processes.serve({theirs.fileno()})"
        start = f"import sys; sys.path.insert(0, {str(TESTS)!r}); {serve}"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start],
                # numpy's threads would be there after the fork, and nobody would have started them.
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        self.ready = self._receive(60) == 1
        atexit.register(self._end)

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()

    def run(self, files: list[int], timeout: float) -> int | None:
        """Fork a child with the files of its request, stdout and stderr. Its status; None: it was killed."""
        socket.send_fds(self._channel, [b"f"], files)
        child = self._receive(60)
        assert child is not None, "the server of processes has died"
        status = self._receive(timeout)
        if status is None:
            os.kill(child, signal.SIGKILL)
            self._receive(60)
        return status

    def _receive(self, timeout: float) -> int | None:
        self._channel.settimeout(timeout)
        try:
            said = self._channel.recv(4, socket.MSG_WAITALL)
        except TimeoutError:
            return None
        return struct.unpack("i", said)[0] if len(said) == 4 else None


def _server_like(environment: Mapping[str, str]) -> _Server | None:
    """One that started as an interpreter with these variables would; None if there cannot be one."""
    if "ATEN_EXT_AUTOLOAD" in environment or not hasattr(socket, "send_fds"):
        return None
    return _server(frozenset(pair for pair in environment.items() if not READ_LATER.fullmatch(pair[0])))


@functools.cache
def _server(variables: frozenset[tuple[str, str]]) -> _Server | None:
    server = _Server({**{k: v for k, v in os.environ.items() if k == "PYTHONPATH"}, **dict(variables)})
    return server if server.ready else None


# In the server


def serve(descriptor: int) -> None:
    """Fork a child for each request that comes, until the other end is closed."""
    path = [p for p in sys.path if p not in ("", str(TESTS), *_folders(os.environ.get("PYTHONPATH", "")))]
    import torch  # noqa: F401

    del os.environ["OPENBLAS_NUM_THREADS"]
    channel = socket.socket(fileno=descriptor)
    no_threads = len(os.listdir("/proc/self/task")) == 1
    channel.send(struct.pack("i", no_threads))
    gc.freeze()
    while True:
        message, files, _, _ = socket.recv_fds(channel, 1, 3)
        if not message:
            return
        child = os.fork()
        if child == 0:
            channel.close()
            _run(*_program(path, *files))
        for file in files:
            os.close(file)
        channel.send(struct.pack("i", child))
        channel.send(struct.pack("i", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


def _folders(path: str) -> list[str]:
    """The entries of PYTHONPATH as they stand in sys.path."""
    return [os.path.abspath(folder) for folder in path.split(os.pathsep)] if path else []


def _program(path: list[str], asked: int, out: int, err: int) -> tuple[str | bytes, str, dict[str, Any]]:
    """Make this process, a fork of the server, what was asked for. The source, its name, and ``__main__``."""
    with os.fdopen(asked) as file:
        file.seek(0)
        request = json.load(file)
    for opened, number in ((out, 1), (err, 2)):
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if request["warn"]:
        sys.warnoptions += request["warn"]
        warnings._processoptions(request["warn"])  # type: ignore[attr-defined]
    torch = sys.modules["torch"]
    torch.default_generator.seed()
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    main = sys.modules["__main__"].__dict__
    del sys.modules["processes"], main["processes"], main["sys"]
    kind, what = request["kind"], request["what"]
    sys.argv, sys.orig_argv = request["argv"], [sys.executable, *request["words"]]
    source: str | bytes = what
    if kind == "-c":
        first, name = "", "<string>"
    elif kind == "-m":
        # What the interpreter itself does for -m.
        first, name = os.getcwd(), "<frozen runpy>"
        source = f"import runpy; runpy._run_module_as_main({what!r})"
    else:
        first, name, source = (
            os.path.dirname(os.path.realpath(what)),
            os.path.abspath(what),
            Path(what).read_bytes(),
        )
        main["__file__"] = name
    sys.path[:] = [first, *_folders(os.environ.get("PYTHONPATH", "")), *path]
    importlib.invalidate_caches()
    return source, name, main


def _run(source: str | bytes, name: str, main: dict[str, Any]) -> NoReturn:
    """Run a program, and end as the interpreter ends."""
    status: object = 0
    try:
        exec(compile(source, name, "exec", dont_inherit=True), main)
    except SystemExit as end:
        status = end.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException as error:
        # Without the line above.
        inner = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(inner), inner)
        status = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)
