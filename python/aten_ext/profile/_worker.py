"""Runs a program as ``python SCRIPT`` would, records a window of it, and leaves the result in a file.

The argument is a JSON object: "script" or "module", "arguments", "skip", "steps", "seconds", "from_start",
"record" (make a record), "advise" (watch the program), and two files to write, "trace" and "result". The
exit status is the program's; a program that fails leaves no result.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aten_ext.profile import summary
from aten_ext.profile.window import Window

if TYPE_CHECKING:
    from aten_ext.advice.finding import Advice
    from aten_ext.advice.observe import Facts


def main() -> None:
    """Do it."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    module = request["module"]
    # As the interpreter does it: the script's folder, or the current one for a module, comes first.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd() if module else str(Path(request["script"]).resolve().parent)
    if module and not _exists(module):
        Path(request["result"]).write_text(json.dumps({"error": f"there is no module {module!r}"}))
        return
    observer = None
    if request["advise"]:
        from aten_ext.advice.observe import Observer

        observer = Observer()
    window = Window(request["skip"], request["steps"], request["seconds"], request["from_start"], observer)
    began = time.perf_counter()
    if request["record"]:
        window.start()
    elif observer is not None:
        observer.start()
    try:
        code = run_program(request)
    finally:
        window.finish()
        facts = observer.close() if observer is not None else None
    if code in (None, 0):
        result: dict[str, Any] = {}
        if request["record"]:
            result = _result(window, request["trace"])
        if facts is not None and "too_few_steps" not in result:
            seconds = time.perf_counter() - began
            result["advice"] = [each.as_json() for each in _advice(facts, result, seconds)]
        Path(request["result"]).write_text(json.dumps(result))
    sys.exit(code)


def _advice(facts: Facts, result: dict[str, Any], seconds: float) -> list[Advice]:
    """What the program leaves on the table; times are those of the record, if there is one."""
    from aten_ext.advice.judge import Context, advise

    steps = max((fact.steps for fact in facts.optimizers), default=0)
    window = result.get("window")
    if window is None:
        return advise(facts, Context(total_us=seconds * 1e6))
    device_us = {
        row["name"]: row["device_us"] / row["calls"]
        for row in result["operators"]
        if row["device_us"] and row["calls"]
    }
    if window["kind"] == "steps" and window["steps"]:
        return advise(facts, Context(steps, window["seconds"] / window["steps"] * 1e6, None, device_us))
    return advise(facts, Context(total_us=seconds * 1e6, device_us=device_us))


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def run_program(request: dict[str, Any]) -> str | int | None:
    """Run the program; what it ends with, as ``sys.exit`` takes it."""
    name = request["module"] or request["script"]
    sys.argv[:] = [name, *request["arguments"]]
    try:
        if request["module"]:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        return end.code
    except BaseException as error:
        trace = error.__traceback__
        # The program's own frames: ours and those of runpy are none of its business.
        own = (__file__, runpy.__file__, "<frozen runpy>")
        while trace is not None and trace.tb_frame.f_code.co_filename in own:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _result(window: Window, trace: str) -> dict[str, Any]:
    """What the record holds; writes the trace. If there is none, how many steps the program made."""
    if window.profile is None or (not window.from_start and window.recorded == 0):
        return {"too_few_steps": window.made}
    touched = summary.overridden()
    times = summary.operators(window.profile, touched)
    window.profile.export_chrome_trace(trace)
    return {
        "window": {
            "kind": "program" if window.from_start else "steps",
            "seconds": window.duration,
            "steps": window.recorded,
            "steps_made": window.made,
        },
        **times,
        "share_of_time": summary.share(times["touched_cpu_us"], window.duration * 1e6),
        "share_of_device_time": summary.share(times["touched_device_us"], times["device_us"]),
        "counts": window.counts,
        "trace": trace,
    }
