"""``python -m aten_ext doctor``: every check, one line each."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator

from aten_ext.doctor import debugger, hardware, installation, program
from aten_ext.doctor.finding import PASSING, Finding, problem

CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    installation.torch,
    installation.build,
    hardware.driver,
    hardware.gpus,
    hardware.toolkit,
    hardware.compiler,
    installation.overrides,
    installation.environment,
    installation.packages,
    debugger.gdb,
)
EXAMPLES = """examples:
  python -m aten_ext doctor --json
  python -m aten_ext doctor train.py --epochs 1

With a program it also runs that, once, and says what it leaves on the table: notes, which are no fault of the
installation. What the program prints goes to stderr. python -m aten_ext profile says more of its times.

ok, note       all is well: exit code 0 if there is nothing else
warning        the kernels run, but a tool or a part is missing, or all overrides are turned off
problem        fused kernels that could run here do not
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="check the installation, and say what to do where something is wrong",
        usage="%(prog)s [--json] [SCRIPT [ARGUMENT ...] | -m MODULE [ARGUMENT ...]]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="look at this program, too"
    )
    parser.add_argument(
        "script", nargs=argparse.REMAINDER, metavar="SCRIPT", help="look at this program, too"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what the checks find; 0 if all is well, else 1."""
    findings = list(examine())
    if arguments.script or arguments.module is not None:
        code, advice = program.look(arguments)
        if code:
            print(f"aten_ext doctor: the program ended with {code}", file=sys.stderr)
            return code
        findings += advice
    well = all(finding.level in PASSING for finding in findings)
    if arguments.json:
        document = {"well": well, "findings": [finding.as_json() for finding in findings]}
        print(json.dumps(document, indent=1))
        return int(not well)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print(f"{finding.level:8} {finding.check:{width}}  {finding.text}")
        if finding.advice:
            print(f"{'':8} {'':{width}}  -> {finding.advice}")
    print(_verdict(findings))
    return int(not well)


def examine() -> Iterator[Finding]:
    """Every finding of every check; a check that breaks is a finding, too."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:
            what = f"the check itself failed: {type(error).__name__}: {error}"
            yield problem(check.__name__, what, "please report this line")


def _verdict(findings: list[Finding]) -> str:
    counts = [(level, sum(f.level == level for f in findings)) for level in ("problem", "warning")]
    parts = [f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts if count]
    return ", ".join(parts) or "all is well"
