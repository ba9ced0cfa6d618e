"""The program that runs under gdb: makes the tables, stops, runs the example or the script, stops again.

Run by scripts/trace_dispatch with the folder of one trace as its argument. What goes wrong before the first
stop is written into the tables as one line.
"""

from __future__ import annotations

import difflib
import json
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)


class Refused(Exception):
    """Why there is nothing to trace, in one line."""


def _prepare(request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    if request["op"]:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler asks which operators the example calls
    try:
        import torch
    except ImportError as error:
        raise Refused(
            f"{sys.executable} cannot import torch ({error}): choose another one with --python"
        ) from None
    if os.environ.get("ATEN_EXT") != "0":
        try:
            import aten_ext  # noqa: F401
        except ImportError as error:
            print(f"trace_dispatch: without aten_ext ({error})", file=sys.stderr)
    import cuda_driver
    import op_examples
    import torch_tables

    if request["device"] == "cuda":
        if not torch.cuda.is_available():
            raise Refused(f"torch {torch.__version__} finds no CUDA device")
        torch.cuda.init()
    known = torch_tables.all_operators()
    wanted = request["ops"]
    for operator in [*wanted, *([request["op"]] if request["op"] else [])]:
        if operator not in known:
            close = difflib.get_close_matches(operator, known, 3)
            hint = f"did you mean {', '.join(close)}?" if close else "give a name of torch.ops.aten"
            raise Refused(f"torch {torch.__version__} has no operator {operator!r}: {hint}")
    example = None
    if request["op"]:
        try:
            example = op_examples.find(request["op"], request["device"])
        except RuntimeError as error:
            raise Refused(f"the example of {request['op']} fails: {str(error).splitlines()[0]}") from None
        if example is None:
            raise Refused(
                f"there is no example of {request['op']!r}: trace a script that calls it, with --script"
            )
        called = op_examples.operators_of(example)
        wanted = wanted or [request["op"], *(name for name in called if name in known)]
    elif not wanted:
        wanted = _overridden()
    tables = {"keys": torch_tables.dispatch_keys(), **torch_tables.operator_symbols(sorted(set(wanted)))}
    if request["cuda"]:
        tables["driver"] = cuda_driver.tables()
    return tables, example


def _overridden() -> list[str]:
    """The operators that aten_ext overrides: what a script is traced for when no operator is named."""
    try:
        import aten_ext

        found = sorted({override.name.partition(".")[0] for override in aten_ext.overrides()})
    except ImportError:
        found = []
    if not found:
        raise Refused("say which operators of the script to trace: --ops cat,mm")
    return found


def main() -> int:
    """Stop for gdb with the tables written, run, stop again; returns the exit status of the program."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text())
    os.dup2(int(os.environ.pop("TRACE_DISPATCH_STDERR")), 1)
    os.dup2(1, 2)
    tables, example = {}, None
    try:
        tables, example = _prepare(request)
    except Refused as error:
        tables = {"error": str(error)}
    except Exception as error:  # gdb waits for an answer, whatever happens
        tables = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    (folder / "tables.json").write_text(json.dumps(tables))
    if sys.path and sys.path[0] == HERE:
        del sys.path[0]
    signal.raise_signal(signal.SIGTRAP)
    try:
        if example is not None:
            example()
        else:
            sys.argv = [request["script"], *request["arguments"]]
            sys.path.insert(0, str(Path(request["script"]).resolve().parent))
            runpy.run_path(request["script"], run_name="__main__")
    finally:
        sys.stdout.flush()
        signal.raise_signal(signal.SIGTRAP)
    return 0


if __name__ == "__main__":
    sys.exit(main())
