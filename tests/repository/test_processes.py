"""tests/processes.py: what is forked from its server is what an interpreter of its own would be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paths import TESTS
from processes import python

PROGRAMS = {
    "nothing": "",
    "an exit status": "import sys; print('said'); sys.exit(3)",
    "an exit with a text": "raise SystemExit('a text')",
    "an error": "def f():\n    raise ValueError('so')\nprint('before')\nf()",
    "no Python": "a b",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "atexit": "import atexit; atexit.register(print, 'last'); print('first')",
    "a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start(); print('main')",
    "a warning": "import warnings; warnings.warn('so')",
    "the environment": "import os; print(dict(os.environ), os.getcwd())",
    "C's environment": "import ctypes; getenv = ctypes.CDLL(None).getenv; getenv.restype = ctypes.c_char_p\n"
    "print(getenv(b'ATEN_EXT_ONLY'), getenv(b'OPENBLAS_NUM_THREADS'))",
    "sys": "import sys; print(sys.argv, sys.orig_argv, sys.path, sys.executable, sys.warnoptions)",
    "names": "print(sorted(set(globals()) - {'runpy', '__cached__'}), __name__, globals().get('__file__'))",
    "stdin": "import sys; print(sys.stdin.read() == '', sys.stdout.isatty(), sys.stdout.encoding)",
}
TORCH = """
import sys, torch
print(torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())
print([name for name in sys.modules if "aten_ext" in name], "torch._dynamo" in sys.modules)
import aten_ext
print(aten_ext.status())
"""


def both(*arguments: str, cwd: Path) -> tuple[subprocess.CompletedProcess[str], ...]:
    """From the server, and by an interpreter of its own."""
    paths = [str(TESTS), "somewhere", os.environ.get("PYTHONPATH")]
    own = {"ATEN_EXT_ONLY": "cat", "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60}
    alone = subprocess.run(command, cwd=cwd, env=os.environ | own, **options)  # type: ignore[call-overload]
    return python(*arguments, cwd=cwd, env=os.environ | own), alone


@pytest.mark.parametrize("kind", ["-c", "-m", "script"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_comes_of_it(name: str, kind: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    (tmp_path / "some_program.py").write_text(program)
    what = {"-c": ["-c", program], "-m": ["-m", "some_program"], "script": ["some_program.py"]}[kind]
    forked, alone = both("-W", "ignore:this", *what, "one", "-W", "two", cwd=tmp_path)
    assert (forked.returncode, forked.stdout) == (alone.returncode, alone.stdout)
    if kind == "-m":  # The frames of runpy itself are those of a file there, and frozen here.
        assert forked.stderr.splitlines()[-1:] == alone.stderr.splitlines()[-1:]
    else:
        assert forked.stderr == alone.stderr


def test_torch_is_what_it_is_after_its_import(tmp_path: Path) -> None:
    forked, alone = both("-c", TORCH, cwd=tmp_path)
    assert (forked.returncode, forked.stdout, forked.stderr) == (0, alone.stdout, alone.stderr)


def test_torch_is_there_already() -> None:
    """And with it what makes a child cheap; aten_ext is not, and one child knows nothing of another."""
    code = "import sys; print('torch' in sys.modules, 'aten_ext' in sys.modules)\nimport torch, aten_ext"
    assert [python("-c", code).stdout for _ in range(2)] == ["True False\n"] * 2


@pytest.mark.parametrize(("arguments", "variables"), [(["-I"], {}), ([], {"ATEN_EXT_AUTOLOAD": "0"})])
def test_another_start_is_an_interpreter_of_its_own(arguments: list[str], variables: dict[str, str]) -> None:
    code = "import sys; print('torch' in sys.modules)"
    assert python(*arguments, "-c", code, env=os.environ | variables).stdout == "False\n"


def test_what_torch_reads_at_its_import_is_there() -> None:
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    assert python("-c", code, env=os.environ | {"ATEN_CPU_CAPABILITY": "default"}).stdout == "DEFAULT\n"


def test_a_process_that_takes_too_long_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        python("-c", "import time; print('begun', flush=True); time.sleep(60)", timeout=0.5)
    assert raised.value.stdout == "begun\n"
    assert python("-c", "print('goes on')").stdout == "goes on\n"
