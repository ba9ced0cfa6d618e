"""``python -m aten_ext status``: which overrides are loaded, and whether they are on."""

from __future__ import annotations

import argparse
import dataclasses
import json


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``status``."""
    parser = subparsers.add_parser(
        "status",
        help="list the overrides, whether they are on, and what they were built for",
        epilog="example: ATEN_EXT_DISABLE='_fused_adam_*' python -m aten_ext status",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    import aten_ext

    if arguments.json:
        rows = [
            {**dataclasses.asdict(override), "enabled": override.enabled} for override in aten_ext.overrides()
        ]
        print(json.dumps(rows, indent=1))
    else:
        import torch

        if torch.cuda.is_available():
            # status() names the GPU of a process that uses one.
            torch.cuda.init()  # type: ignore[no-untyped-call, unused-ignore]
        print(aten_ext.status())
    return 0
