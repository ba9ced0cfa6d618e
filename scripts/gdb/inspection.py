"""What interactive gdb commands ask about: tables of the process's own torch, tensors, backtraces of hops."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import gdb
import process
from dispatch_keys import KeyTable
from hops import Hop, classify

_TABLES = Path(__file__).resolve().parent / "torch_tables.py"


@cache
def tables(operators: tuple[str, ...] = ()) -> dict[str, Any]:
    """The tables of torch_tables.py, made by the very Python that is being debugged."""
    folder = Path(f"/proc/{gdb.selected_inferior().pid}")
    if not gdb.selected_inferior().pid:
        raise process.NoProcess("there is no process: `run` the program or `attach` to it first")
    python = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
    path = shutil.which(python, path=_environment(folder).get("PATH")) or str((folder / "exe").resolve())
    command = [path, str(_TABLES), *operators]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise gdb.GdbError(
            f"{path} cannot say what its torch is like: {done.stderr.strip().splitlines()[-1]}"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _environment(folder: Path) -> dict[str, str]:
    pairs = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def key_table() -> KeyTable:
    """Names of the dispatch keys of the process's torch."""
    keys = tables()["keys"]
    return KeyTable(keys["bits"], keys["backend_mask"])


def address_of(expression: str) -> int:
    """What an expression points to, or the address of the object that it is."""
    value = gdb.parse_and_eval(expression)
    code = value.type.strip_typedefs().code
    if code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_REF):
        value = value.address if code == gdb.TYPE_CODE_STRUCT else value.referenced_value().address
    return int(value.cast(gdb.lookup_type("unsigned long")))


def _word(address: int, kind: str = "long") -> int:
    return int(gdb.parse_and_eval(f"*({kind}*){address:#x}"))


def describe_tensor(tensor: int) -> str:
    """Sizes, strides, dtype and device of the at::Tensor at an address, asked of torch's C interface."""
    try:
        implementation = _word(tensor, "unsigned long")
        if process.library_of(_word(implementation, "unsigned long")) is None:
            raise gdb.MemoryError
    except gdb.MemoryError:
        raise gdb.GdbError(f"there is no at::Tensor at {tensor:#x}: give the address of one") from None
    scratch = process.register("sp") - (1 << 16)  # far below what the calls use of the stack

    def ask(name: str, kind: str = "long") -> int:
        function = process.function_address("libtorch_cpu", f"aoti_torch_get_{name}")
        gdb.execute(f"set var *(long*){scratch:#x} = 0")
        if int(gdb.parse_and_eval(f"((int (*)(long, long)){function:#x})({tensor}, {scratch})")):
            raise gdb.GdbError("the tensor is undefined")
        return _word(scratch, kind)

    dim = ask("dim")
    sizes, strides = ([_word(start + 8 * i) for i in range(dim)] for start in (ask("sizes"), ask("strides")))
    dtype, device, index = (str(ask(name, "int")) for name in ("dtype", "device_type", "device_index"))
    known = tables()
    where = known["devices"].get(device, f"device type {device}") + ("" if index == "-1" else f":{index}")
    return f"sizes {sizes}  strides {strides}  {known['dtypes'].get(dtype, f'dtype {dtype}')}  {where}"


def hops_of_stack() -> list[tuple[int, Hop]]:
    """Number and hop of the frames of the selected thread that are hops, the innermost first."""
    for library in ("libtorch_cpu", "libtorch_python", "libtorch_cuda", "_kernels"):
        gdb.execute(f"sharedlibrary {library}", to_string=True)  # to unwind; at once where it has been read
    found: list[tuple[int, Hop]] = []
    frame, number = gdb.newest_frame(), 0
    while frame is not None and frame.is_valid():
        # A return address may belong to the next function: the call is in front of it.
        name = process.function_at(frame.pc() - (1 if number else 0))
        hop = classify(name) if name else None
        if hop is not None and (not found or found[-1][1].label != hop.label):
            found.append((number, hop))
        frame, number = frame.older(), number + 1
    return found
