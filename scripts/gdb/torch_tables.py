"""Tables for gdb about the torch that runs this file: dispatch keys, dtypes, devices, operators.

Run as a program, it prints them as JSON; its arguments are operators.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch


def dispatch_keys() -> dict[str, Any]:
    """The bits of every dispatch key, and which bits of the word are backends."""
    bits = {}
    for name, key in torch._C.DispatchKey.__members__.items():
        value = torch._C.DispatchKeySet(key).raw_repr()
        if value:
            bits[name] = value
    dense = bits["Dense"]  # the lowest functionality: below it are the backends
    return {"bits": bits, "backend_mask": dense - 1}


def tensor_codes() -> dict[str, dict[str, str]]:
    """Names of dtypes and devices by the numbers that torch's C interface answers with."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    dtypes = {}
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        try:
            tensor = torch.empty(0, dtype=dtype)
        except (RuntimeError, TypeError):
            continue  # a dtype that has no tensors of its own
        code, handle = ctypes.c_int32(), ctypes.c_void_p(tensor._cdata)
        if library.aoti_torch_get_dtype(ctypes.byref(handle), ctypes.byref(code)) == 0:
            dtypes[str(code.value)] = str(dtype).removeprefix("torch.")
    devices = {}
    for device in ("cpu", "cuda", "meta", "xpu", "mps", "privateuse1"):
        number = getattr(library, f"aoti_torch_device_type_{device}", None)
        if number is not None:
            devices[str(number())] = device
    return {"dtypes": dtypes, "devices": devices}


def all_operators() -> list[str]:
    """The names of all operators of aten, without overloads."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return sorted({name.removeprefix("aten::").partition(".")[0] for name in names})


def operator_symbols(operators: list[str]) -> dict[str, Any]:
    """What the functions of `operators` are called in C++, and where each finds its key set."""
    registered = _kernel_names()
    names: set[str] = set()
    kernels: set[str] = set()
    by_value: dict[str, bool | None] = {}
    for operator in operators:
        names.add(operator)
        for overload in torch._C._jit_get_operation(f"aten::{operator}")[1] or [""]:
            schema = torch._C._get_schema(f"aten::{operator}", overload)
            full = f"{operator}.{overload}" if overload else operator
            cpp = operator + ("_out" if any(argument.is_out for argument in schema.arguments) else "")
            unambiguous = full.replace(".", "_")
            names |= {cpp, unambiguous, f"{cpp}_{overload}" if overload else cpp}
            own = {operator, cpp, *registered.get(full, [])}
            kernels |= own | {f"structured_{name}" for name in own} | {f"{overload}_{name}" for name in own}
            kernels |= {f"structured_ufunc_{operator.rstrip('_')}_{key}" for key in ("CPU", "CUDA")}
            by_value[unambiguous] = _returns_by_value(schema)
    return {"names": sorted(names), "kernels": sorted(kernels), "by_value": by_value}


def _returns_by_value(schema: Any) -> bool | None:
    """Whether the caller passes the place for the result, before the key set; None: unclear."""
    returns = schema.returns
    if not returns:
        return False
    if len(returns) > 1:
        return None if all(r.alias_info is not None and r.alias_info.is_write for r in returns) else True
    kind = returns[0].type.kind()
    if kind == "TensorType":
        return not (returns[0].alias_info is not None and returns[0].alias_info.is_write)
    return False if kind in ("BoolType", "IntType", "FloatType") else None


def _kernel_names() -> dict[str, list[str]]:
    """The functions of at::native behind each operator, from torch's own table of operators."""
    try:
        import torchgen

        table = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
        text = table.read_text()
    except (ImportError, OSError):
        return {}
    found: dict[str, list[str]] = {}
    delegates: dict[str, str] = {}
    for block in re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]:
        name = block.partition("(")[0]
        found[name] = re.findall(r"^    [A-Za-z, ]+: (\w+)", block, flags=re.MULTILINE)
        delegate = re.search(r"^  structured_delegate: (\S+)", block, flags=re.MULTILINE)
        if delegate:
            delegates[name] = delegate.group(1)
    for name, delegate in delegates.items():
        found[name] = found[name] + found.get(delegate, [])
    return found


if __name__ == "__main__":
    unknown = sorted(set(sys.argv[1:]) - set(all_operators()))
    symbols = {"unknown": unknown} if unknown else operator_symbols(sys.argv[1:])
    print(json.dumps({"keys": dispatch_keys(), **tensor_codes(), **symbols}))
