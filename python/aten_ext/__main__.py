"""``python -m aten_ext``: the command line. Each subcommand lives in a module of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from aten_ext._cli import CommandError


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake with one line, without the usage in front of it."""

    def error(self, message: str) -> NoReturn:
        """Print ``message`` and exit with 2."""
        self.exit(2, f"{self.prog}: {message} (--help lists what there is)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand; each sets ``run``: parsed arguments -> exit code."""
    from aten_ext import _explain_command, _status_command
    from aten_ext.bench import command as bench_command
    from aten_ext.demo import command as demo_command
    from aten_ext.doctor import command as doctor_command
    from aten_ext.profile import command as profile_command
    from aten_ext.sweep import command as sweep_command
    from aten_ext.tune import command as tune_command

    parser = Parser(prog="python -m aten_ext", description="Fused kernels behind PyTorch's own operators.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands = (
        _status_command,
        _explain_command,
        demo_command,
        bench_command,
        sweep_command,
        tune_command,
        profile_command,
        doctor_command,
    )
    for command in commands:
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code: 0, 1 for a failed check, 2 for a mistake of the user's."""
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except CommandError as error:
        print(f"aten_ext {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"aten_ext {arguments.command}: interrupted", file=sys.stderr)
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
