"""``python -m aten_ext profile``: a script under torch.profiler, overrides off and on."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aten_ext._cli import CommandError, prepare_folder, write_atomically

EXAMPLES = """examples:
  python -m aten_ext profile train.py --epochs 1
  python -m aten_ext profile --steps 50 --output traces -m package.train --epochs 1

Everything after SCRIPT, or after -m MODULE, belongs to the program, which runs twice, each time in a
process of its own; what it prints goes to stderr. A step ends where the first torch.optim optimizer has
stepped. A program that makes no more than --skip of them runs once more and is recorded from its start, for
--seconds; --from-start does that at once.
"""
SIDES = ("off", "on")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``profile``."""
    parser = subparsers.add_parser(
        "profile",
        help="run a script under torch.profiler with the overrides off and on, and compare",
        usage="%(prog)s [OPTION ...] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps to record (default: 20)")
    parser.add_argument(
        "--skip", type=int, default=5, metavar="N", help="steps to leave out first, at least 1 (default: 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="S", help="record no longer than this (default: 5)"
    )
    parser.add_argument(
        "--from-start", action="store_true", help="record from the program's start, whatever steps it makes"
    )
    parser.add_argument("--top", type=int, default=15, metavar="N", help="operators to show (default: 15)")
    parser.add_argument(
        "--output",
        default="aten_ext_profile",
        metavar="FOLDER",
        help="for off.trace.json.gz, on.trace.json.gz (chrome://tracing, Perfetto) and profile.json "
        "(default: ./aten_ext_profile)",
    )
    parser.add_argument(
        "--no-advice", action="store_true", help="do not watch the program for what it could do otherwise"
    )
    parser.add_argument("--json", action="store_true", help="print profile.json instead of tables")
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="a module instead of a script"
    )
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="a Python program and its arguments"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the program twice and compare; its own exit status if it fails."""
    program = _program(arguments)
    _require_rich()
    import aten_ext

    if not aten_ext.is_active():
        raise CommandError("nothing is registered with ATEN_EXT=0, so there is nothing to compare")
    folder = prepare_folder(arguments.output)
    from_start = arguments.from_start
    sides: dict[str, Any] = {}
    for side in SIDES:
        while True:
            code, found = _run_side(side, program, arguments, folder, from_start)
            if code:
                print(f"aten_ext profile: the program ended with {code}, overrides {side}", file=sys.stderr)
                return code
            if found is None:
                raise CommandError(
                    f"the program ended without leaving a record, overrides {side} (os._exit?)"
                )
            if "error" in found:
                raise CommandError(found["error"])
            if "too_few_steps" not in found:
                break
            made = found["too_few_steps"]
            if sides:
                raise CommandError(
                    f"the program made {made} optimizer steps with the overrides {side}, and more off"
                )
            from_start = True
            why = (
                f"{made} optimizer steps, too few for --skip {arguments.skip}"
                if made
                else "no optimizer step"
            )
            print(f"aten_ext profile: {why}: once more, recorded from its start", file=sys.stderr)
        sides[side] = found
    text = json.dumps({"program": program["words"], **sides}, indent=1) + "\n"
    write_atomically(folder / "profile.json", text.encode())
    if arguments.json:
        print(text, end="")
    else:
        _show(sides, arguments.top, folder)
    return 0


def _show(sides: dict[str, Any], top: int, folder: Path) -> None:
    from rich.console import Console

    from aten_ext.advice import table
    from aten_ext.advice.finding import Advice
    from aten_ext.profile import report

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    report.show(console, sides["off"], sides["on"], top)
    if "advice" in sides["on"]:
        table.show(console, [Advice.of_json(fields) for fields in sides["on"]["advice"]])
    traces = " and ".join(sides[side]["trace"] for side in SIDES)
    console.print(f"wrote {traces} and {folder / 'profile.json'}", markup=False, soft_wrap=True)


def _program(arguments: argparse.Namespace) -> dict[str, Any]:
    """What to run; :class:`CommandError` also where an option is out of range."""
    for option, least in (("steps", 1), ("skip", 1), ("top", 1)):
        if getattr(arguments, option) < least:
            raise CommandError(f"--{option} must be at least {least}, not {getattr(arguments, option)}")
    if not (arguments.seconds > 0 and math.isfinite(arguments.seconds)):
        raise CommandError(f"--seconds must be a positive number, not {arguments.seconds:g}")
    return program_of(arguments)


def program_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The script or module of a command line.

    Raises:
        CommandError: there is nothing to run, or it is not there.
    """
    if arguments.module is not None:
        if not arguments.module:
            raise CommandError("-m needs the name of a module")
        module, *rest = arguments.module
        return {"script": None, "module": module, "arguments": rest, "words": ["-m", module, *rest]}
    if not arguments.script:
        raise CommandError("name a script, or a module with -m")
    script, *rest = arguments.script
    if not Path(script).exists():
        raise CommandError(f"there is no script {script!r}")
    return {"script": script, "module": None, "arguments": rest, "words": [script, *rest]}


def _run_side(
    side: str, program: dict[str, Any], arguments: argparse.Namespace, folder: Path, from_start: bool
) -> tuple[int, dict[str, Any] | None]:
    """One run in a process of its own: its exit status as a shell has it, and its record if it left one."""
    print(f"aten_ext profile: overrides {side}: {' '.join(program['words'])}", file=sys.stderr, flush=True)
    environment = {name: value for name, value in os.environ.items() if name != "ATEN_EXT"}
    if side == "off":
        environment["ATEN_EXT"] = "0"
    with tempfile.TemporaryDirectory() as temporary:
        result = Path(temporary) / "result.json"
        request = {
            **program,
            "skip": arguments.skip,
            "steps": arguments.steps,
            "seconds": arguments.seconds,
            "from_start": from_start,
            "record": True,
            "advise": side == "on" and not arguments.no_advice,
            "trace": str(folder / f"{side}.trace.json.gz"),
            "result": str(result),
        }
        return start_worker(request, environment)


def start_worker(
    request: dict[str, Any], environment: Mapping[str, str]
) -> tuple[int, dict[str, Any] | None]:
    """Run a program in a process of its own: its exit status as a shell has it, and what it left, if so."""
    # sys.path is handed on: an editable install is found through paths that only this process may know.
    start = "import sys; sys.path[1:] = sys.path[1:] + [p for p in PATHS if p not in sys.path]\n"
    start = start.replace("PATHS", repr(_absolute(sys.path)))
    start += "from aten_ext.profile._worker import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, json.dumps(request)],
        env=environment,
        stdout=2,  # stdout is for the result
        check=False,
    )
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    result = Path(request["result"])
    return code, json.loads(result.read_text()) if result.exists() else None


def _absolute(paths: Sequence[str]) -> list[str]:
    """Without the current folder, which is there because this command was started with ``-m``."""
    return [path for path in map(os.path.abspath, paths) if path != os.getcwd()]


def _require_rich() -> None:
    try:
        import rich  # noqa: F401
    except ImportError as error:
        raise CommandError("the tables need the package rich: pip install rich") from error
