"""``python -m aten_ext explain``: which kernels an expression would run."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from aten_ext._cli import CommandError

EXAMPLES = """examples:
  python -m aten_ext explain 'torch._fused_adamw_(*[[torch.empty(10)]] * 4, [], [torch.empty(())],
      lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)'
  python -m aten_ext explain --key CUDA 'torch.cat([torch.empty(4, 8), torch.empty(4, 9)], 1)'

Tensors of the expression are made on the meta device: they have no memory and nothing is computed.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand ``explain``."""
    parser = subparsers.add_parser(
        "explain",
        help="say which kernel each operator of an expression would run, and why, without running it",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("expression", help="Python; torch, nn and F are there")
    parser.add_argument(
        "--key", choices=("CPU", "CUDA"), help="the device asked about (default: CUDA where there is a GPU)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one row for each operator that has an override."""
    import torch

    key = arguments.key or ("CUDA" if torch.cuda.is_available() else "CPU")
    rows, others = explain_expression(arguments.expression, key)
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        reason = f": {row['reason']}" if row["reason"] else ""
        print(f"{row['operator']} at {row['key']}: {row['route']}{reason}")
    if others:
        print(f"no override: {', '.join(others)}")
    return 0


def explain_expression(expression: str, key: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Evaluate ``expression`` on the meta device and explain each operator that the dispatcher sees.

    Args:
        expression: Python that may use ``torch``, ``nn`` and ``F``.
        key: the dispatch key to ask about, ``"CPU"`` or ``"CUDA"``.

    Returns:
        One dictionary for each call of an operator with an override (the fields of
        :class:`aten_ext.Explanation` and ``operator``), and the names of the other operators, each once;
        those that only make tensors are left out.

    Raises:
        CommandError: the expression does not evaluate.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    import aten_ext

    names = {override.name for override in aten_ext.overrides()}
    rows: list[dict[str, Any]] = []
    others: dict[str, None] = {}

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            schema = func._schema
            name = schema.name.rpartition("::")[2] + (
                f".{schema.overload_name}" if schema.overload_name else ""
            )
            if name in names:
                explanation = aten_ext.explain(func, *args, key=key, **kwargs)
                rows.append({"operator": name, **dataclasses.asdict(explanation)})
            elif any("Tensor" in str(argument.type) for argument in schema.arguments):
                others[name] = None
            return func(*args, **kwargs)

    try:
        code = compile(expression, "<expression>", "eval")
        with torch.no_grad(), torch.device("meta"), Watch():  # type: ignore[no-untyped-call, unused-ignore]
            eval(code, {"torch": torch, "nn": torch.nn, "F": torch.nn.functional})
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise CommandError(f"cannot evaluate {expression!r}: {type(error).__name__}: {text}") from error
    return rows, list(others)
