"""What a function of the CUDA runtime or driver does in a call of an operator. Knows nothing of gdb."""

from __future__ import annotations

import re
from collections.abc import Callable

# Kinds of hops that are calls into CUDA: a kernel's launch; any other function of the runtime; one of the
# driver that no function of the (shared) runtime has called.
KINDS = frozenset({"launch", "runtime", "driver"})

# Launches: where the kernel's name is to be found. "caller": the function that launches is the kernel's own
# stub, written by nvcc under the kernel's name; a number: that argument is the stub's address, or a handle.
LAUNCHES: dict[str, str | int] = {
    "__cudaLaunchKernel": "caller",  # what <<<>>> is compiled to since CUDA 13
    "cudaLaunchKernel": 0,  # until CUDA 12
    "cudaLaunchKernelExC": 1,  # clusters, cooperative launches and other attributes
    "cudaLaunchCooperativeKernel": 0,
    "cuLaunchKernel": 0,
    "cuLaunchKernelEx": 1,
    "cuLaunchCooperativeKernel": 0,
}

# Functions of the driver to look at. cuBLAS and cuDNN have the runtime inside, without symbols: of their
# calls only these are seen.
DRIVER = (
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuGraphLaunch",
    "cuMemAlloc",
    "cuMemAllocAsync",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemcpyAsync",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync",
    "cuMemsetD8Async",
    "cuMemsetD32Async",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamIsCapturing",
    "cuStreamGetCaptureInfo",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuCtxSynchronize",
    "cuModuleLoadData",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuFuncSetAttribute",
    "cuKernelSetAttribute",
    "cuTensorMapEncodeTiled",
)

COPY_KINDS = ("host to host", "host to device", "device to host", "device to device", "any to any")

# Patterns of names after "cuda" or "cu", and what such functions are for; the first that fits.
_ROLES = (
    (r"(Stream|Event|Device|Ctx)Synchronize", "waits for the GPU"),
    (r"GraphLaunch", "launches a captured graph"),
    (r"StreamIsCapturing|StreamGetCaptureInfo|ThreadExchangeStreamCaptureMode", "is a graph being captured?"),
    (r"StreamWaitEvent", "orders one stream after another"),
    (r"EventQuery|StreamQuery", "has the GPU come that far?"),
    (r"Event", "event"),
    (r"(Malloc|MemAlloc|HostAlloc|MemCreate|MemMap)", "allocates"),
    (r"(Free|MemFree|MemUnmap|MemRelease)", "frees"),
    (r"Memcpy", "copies"),
    (r"Memset", "sets memory"),
    (r"GetLastError|PeekAtLastError", "was there an error?"),
    (r"PointerGetAttributes?", "whose memory is it?"),
    (r"\w*(GetAttribute|GetDeviceProperties|GetVersion|GetParam|GetName)", "attribute query"),
    (r"(GetDevice|SetDevice|CtxGetCurrent|CtxSetCurrent|CtxGetDevice)", "current device"),
    (r"(Func|Kernel)SetAttribute", "sets a limit of a kernel"),
    (r"Occupancy", "how many blocks fit?"),
    (r"(ModuleLoad|LibraryLoad|LibraryGetKernel|ModuleGet|ModuleUnload)", "loads a kernel's code"),
    (r"TensorMapEncode", "describes a tensor to the copy engine"),
    (r"GetDriverEntryPoint|GetProcAddress", "looks up a function of the driver"),
    (r"Stream", "stream"),
)


def is_runtime(name: str) -> bool:
    """Whether a function of libcudart is to be shown: its interface, and the launches of nvcc's stubs.

    What nvcc writes around a launch (``__cudaPushCallConfiguration`` and its kin) and the variants for
    per-thread default streams, of which PyTorch is not compiled to use any, are left out.
    """
    return name in LAUNCHES or (name.startswith("cuda") and not name.endswith("_ptsz"))


def describe(name: str, argument: Callable[[int], int]) -> str:
    """What a call that is no launch does, in a few words.

    Args:
        name: of the function.
        argument: the number of an integer argument (0 to 3) -> its value.
    """
    plain = re.sub(r"^cuda|^cu", "", name)
    if name == "cudaMalloc":
        return f"allocates {argument(1):,} bytes"
    if name in ("cudaMemcpyAsync", "cudaMemcpy"):
        kind = argument(3) & 0xFFFFFFFF
        way = COPY_KINDS[kind] if kind < len(COPY_KINDS) else f"kind {kind}"
        wait = ", waits for the GPU" if name == "cudaMemcpy" else ""
        return f"copies {argument(2):,} bytes, {way}{wait}"
    if name in ("cuMemcpyAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync"):
        return f"copies {argument(2):,} bytes"
    if name == "cudaMemsetAsync" or name.startswith("cuMemsetD8"):
        return f"sets {argument(2):,} bytes"
    return next((role for pattern, role in _ROLES if re.match(pattern, plain)), "")


def kernel_of_stub(mangled: str) -> str:
    """The kernel that a function on the host launches: nvcc's stub has its name, or one made of it.

    ``_ZL25__device_stub__Z3addPfS_iPfS_i`` -> ``_Z3addPfS_i``.
    """
    found = re.match(r"_ZL?(\d+)__device_stub_", mangled)
    if not found:
        return mangled.removesuffix(".cold")
    begin = found.end(1)
    return mangled[begin : begin + int(found.group(1))].removeprefix("__device_stub_")


def short_name(demangled: str) -> str:
    """A kernel's name without result, arguments, anonymous namespaces and long template arguments."""
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|<unnamed>::", "", demangled)
    end = depth = 0
    pieces: list[str] = []
    for i, character in enumerate(name):
        if character == "<":
            depth += 1
            if depth == 1:
                pieces.append(name[end:i])
                end = i
        elif character == ">" and depth:
            depth -= 1
            if depth == 0:
                inside = name[end : i + 1]
                pieces.append(inside if len(inside) <= 40 else "<…>")
                end = i + 1
        elif character == " " and depth == 0:  # what stands before it is the type of the result
            pieces.clear()
            end = i + 1
        elif character == "(" and depth == 0:
            pieces.append(name[end:i])
            break
    else:
        pieces.append(name[end:])
    return "".join(pieces)
