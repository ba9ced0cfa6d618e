"""``python -m aten_ext status``: which overrides are loaded, and whether they are on."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``status``."""
    parser = subparsers.add_parser(
        "status",
        help="list the overrides, whether they are on, and what they were built for",
        epilog="example: ATEN_EXT_DISABLE='_fused_adam_*' python -m aten_ext status",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    del arguments
    import aten_ext

    print(aten_ext.status())
    return 0
