"""Runs in the traced process: where the CUDA driver's functions are, and which of them names a kernel."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda_calls import DRIVER

# Versions of the interface under which a runtime may ask for a function, as cuGetProcAddress counts them:
# each may get a function of its own (cuMemAlloc_v2, cuLaunchKernelEx of 11.6).
VERSIONS = (10000, 11000, 11060, 12000, 12030, 12080, 13000)

# Where the driver puts the address of a name. It stays: gdb reads it.
_answer = ctypes.c_void_p()


def tables() -> dict[str, Any]:
    """``functions``: address -> name; ``names``: functions that name a kernel; ``answer``: where they put it.

    Empty where there is no driver.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
        ask = library.cuGetProcAddress_v2
    except (OSError, AttributeError):
        return {}
    functions: dict[str, str] = {}
    for name in DRIVER:
        for version in VERSIONS:
            for flags in (1, 2):  # legacy and per-thread default streams
                found, status = ctypes.c_void_p(), ctypes.c_int()
                arguments = (version, ctypes.c_uint64(flags), ctypes.byref(status))
                if ask(name.encode(), ctypes.byref(found), *arguments) == 0 and found.value:
                    functions.setdefault(str(found.value), name)
        exported = getattr(library, name, None)
        if exported is not None:
            functions.setdefault(str(_address(exported)), name)
    names = [_address(f) for n in ("cuFuncGetName", "cuKernelGetName") if (f := getattr(library, n, None))]
    return {"functions": functions, "names": names, "answer": ctypes.addressof(_answer)}


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
