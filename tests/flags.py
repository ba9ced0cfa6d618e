"""Every switch of PyTorch's that steers its numerics or its choice of a kernel, for ``with`` blocks.

Set by ``torch._C``: ``torch.testing._internal`` locks ``torch.backends`` for a whole process. Each switch
leaves its default, and gets it back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import hypothesis.strategies as st
import torch

Switch = Callable[[], contextlib.AbstractContextManager[Any]]
_core: Any = torch._C


def _calling(set_flag: Callable[[], object], take_back: Callable[[], object]) -> Switch:
    @contextlib.contextmanager
    def block() -> Iterator[None]:
        set_flag()
        try:
            yield
        finally:
            take_back()

    return block


def _set(setter: Callable[..., object], value: object, default: object) -> Switch:
    return _calling(lambda: setter(value), lambda: setter(default))


def _precision(backend: str, op: str, value: str) -> Switch:
    """Its default is none of its own: what the getter says may be that of the whole backend, or of all."""
    setter = _core._set_fp32_precision_setter
    return _calling(lambda: setter(backend, op, value), lambda: setter(backend, op, "none"))


def _threads(count: int) -> Switch:
    @contextlib.contextmanager
    def block() -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return block


@contextlib.contextmanager
def _flush_denormal() -> Iterator[None]:
    """For the calling thread; what a library started meanwhile, and would flush for good, is started anew."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        threads = torch.get_num_threads()
        for count in (2, threads) if threads > 2 else ():
            torch.set_num_threads(count)
            torch.ones(1_000_000).add_(1)


@contextlib.contextmanager
def _workspace() -> Iterator[None]:
    name = "CUBLAS_WORKSPACE_CONFIG"
    before = os.environ.get(name)
    os.environ[name] = ":4096:8"
    try:
        with _set(torch.use_deterministic_algorithms, True, False)():
            yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _reduced(setter: Callable[..., object], *value: bool) -> Switch:
    return _calling(lambda: setter(*value), lambda: setter(True, True))


def _blas(name: str) -> Switch:
    setter, kinds = _core._set_blas_preferred_backend, _core._BlasBackend
    return _calling(lambda: setter(getattr(kinds, name)), lambda: setter(kinds.Default))


_precision_of_products = torch.set_float32_matmul_precision
_fp16, _bf16 = (
    getattr(_core, f"_set_cublas_allow_{dtype}_reduced_precision_reduction") for dtype in ("fp16", "bf16")
)

# Of matrix products on a GPU, and what comes with them; cuDNN has its own.
OF_PRODUCTS: dict[str, Switch] = {
    "set_float32_matmul_precision high": _set(_precision_of_products, "high", "highest"),
    "set_float32_matmul_precision medium": _set(_precision_of_products, "medium", "highest"),
    "matmul.allow_tf32": _set(_core._set_cublas_allow_tf32, True, False),
    "matmul.fp32_precision": _calling(
        lambda: _core._set_fp32_precision_setter("cuda", "matmul", "tf32"),
        lambda: _precision_of_products("highest"),
    ),
    "matmul.allow_fp16_accumulation": _set(_core._set_cublas_allow_fp16_accumulation, True, False),
    "matmul.allow_fp16_reduced_precision_reduction": _reduced(_fp16, False, True),
    "matmul.allow_fp16_reduced_precision_reduction, no split": _reduced(_fp16, False, False),
    "matmul.allow_bf16_reduced_precision_reduction, no split": _reduced(_bf16, False, False),
    "use_deterministic_algorithms": _set(torch.use_deterministic_algorithms, True, False),
    "cudnn.deterministic": _set(_core._set_cudnn_deterministic, True, False),
    "cudnn.benchmark": _set(_core._set_cudnn_benchmark, True, False),
}
# A CPU build of torch does not take these.
OF_A_GPU: dict[str, Switch] = {"preferred_blas_library cublaslt": _blas("Cublaslt")}
NOT_WITHOUT_CUDNN: dict[str, Switch] = {"cudnn.enabled": _set(_core._set_cudnn_enabled, False, True)}
CUDNN_IN_FP32: dict[str, Switch] = {"cudnn.allow_tf32": _set(_core._set_cudnn_allow_tf32, False, True)}
MORE_OF_A_GPU: dict[str, Switch] = {
    "use_deterministic_algorithms, with a workspace": _workspace,
    "autocast cuda bf16": lambda: torch.autocast("cuda", torch.bfloat16),
    "autocast cuda fp16": lambda: torch.autocast("cuda", torch.float16),
}
OF_THE_CPU: dict[str, Switch] = {
    "set_float32_matmul_precision high": OF_PRODUCTS["set_float32_matmul_precision high"],
    "set_float32_matmul_precision medium": OF_PRODUCTS["set_float32_matmul_precision medium"],
    "mkldnn matmul bf16": _precision("mkldnn", "matmul", "bf16"),
    "mkldnn matmul tf32": _precision("mkldnn", "matmul", "tf32"),
    "mkldnn matmul ieee": _precision("mkldnn", "matmul", "ieee"),
    "mkldnn rnn bf16": _precision("mkldnn", "rnn", "bf16"),
    "mkldnn all bf16": _precision("mkldnn", "all", "bf16"),
    "no mkldnn": _set(_core._set_mkldnn_enabled, False, True),
    "mkldnn deterministic": _set(_core._set_mkldnn_deterministic, True, False),
    "no cudnn": NOT_WITHOUT_CUDNN["cudnn.enabled"],
    "use_deterministic_algorithms": OF_PRODUCTS["use_deterministic_algorithms"],
    "flush denormal": _flush_denormal,
    "one thread": _threads(1),
    "three threads": _threads(3),
    "autocast bf16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast fp16": lambda: torch.autocast("cpu", torch.float16),
    "autocast disabled": lambda: torch.autocast("cpu", enabled=False),
}
# Of neither.
OF_ANY: dict[str, Switch] = {
    "default dtype float64": _set(torch.set_default_dtype, torch.double, torch.float),
    "anomaly mode": lambda: torch.autograd.detect_anomaly(check_nan=True),
    "no multithreading of backward": lambda: torch.autograd.set_multithreading_enabled(False),
    "deterministic algorithms, warnings": _calling(
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
}
EVERY = OF_PRODUCTS | OF_A_GPU | MORE_OF_A_GPU | NOT_WITHOUT_CUDNN | CUDNN_IN_FP32 | OF_THE_CPU | OF_ANY
NAMES = {
    # What a CPU build takes of the switches of a GPU: they mean nothing there, and so it shall be.
    "CPU": sorted(OF_THE_CPU | OF_PRODUCTS | CUDNN_IN_FP32 | OF_ANY),
    "CUDA": sorted(
        OF_PRODUCTS | OF_A_GPU | MORE_OF_A_GPU | NOT_WITHOUT_CUDNN | CUDNN_IN_FP32 | OF_ANY
        | {name: OF_THE_CPU[name] for name in ("no mkldnn", "autocast bf16", "mkldnn all bf16")}
    ),
}  # fmt: skip


@contextlib.contextmanager
def changed(names: Iterable[str]) -> Iterator[None]:
    """These switches differ from their defaults in a ``with`` block."""
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(EVERY[name]())
        yield


def several(key: str, *, least: int = 2, most: int = 3) -> st.SearchStrategy[tuple[str, ...]]:
    """Switches for a dispatch key: pairs and triples, in any order."""
    return st.lists(st.sampled_from(NAMES[key]), min_size=least, max_size=most, unique=True).map(tuple)


def state() -> tuple[Any, ...]:
    """What can be read of all of it."""

    def precision() -> str:
        try:
            return torch.get_float32_matmul_precision()
        except RuntimeError:  # PyTorch's, where the newer setting differs
            return "by the newer setting"

    devices = ("cpu", "cuda")
    return (
        precision(),
        *(
            _core._get_fp32_precision_getter(backend, op).replace("none", "ieee")
            for backend, op in (("cuda", "matmul"), *(("mkldnn", op) for op in ("matmul", "rnn", "all")))
        ),
        _core._get_cublas_allow_fp16_accumulation(),
        _core._get_cublas_allow_fp16_reduced_precision_reduction(),
        _core._get_cublas_allow_bf16_reduced_precision_reduction(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        _core._get_cudnn_deterministic(),
        _core._get_cudnn_benchmark(),
        _core._get_cudnn_enabled(),
        _core._get_cudnn_allow_tf32(),
        _core._get_mkldnn_enabled(),
        _core._get_mkldnn_deterministic(),
        (torch.full((), 1e-39, dtype=torch.float32) * 1).view(torch.int32).item()
        == 0,  # denormals are flushed
        torch.get_num_threads(),
        torch.get_default_dtype(),
        *((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in devices),
        torch.is_anomaly_enabled(),
        _core._is_multithreading_enabled(),
    )


def state_of_a_gpu() -> tuple[Any, ...]:
    """What can be read only where torch has CUDA."""
    return (_core._get_blas_preferred_backend(), _core._cuda_tunableop_is_enabled())
