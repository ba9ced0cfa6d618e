"""GPUs as values: the facts that rules and the emulator take for a device.

``with pretended(GPUS["sm_86"]):`` makes the rules answer for that GPU; ``with pretended(gpu,
torch.ops.aten_ext_on_host_cat.set_gpu):`` makes the emulator one, for rules and launches both.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

KIB = 1024


@dataclasses.dataclass(frozen=True)
class Gpu:
    """The facts of ``aten_ext.pretend_gpu``, in its order."""

    capability: int  # compute capability times 10
    code: int  # of the code that runs there; less than the capability if it is older PTX
    multiprocessors: int
    shared_bytes: int  # a block may ask for
    multiprocessor_shared_bytes: int
    clusters: tuple[int, int, int, int, int]  # of 1, 2, 4, 8 and 16 blocks, resident at once
    argument_bytes: int = 32764
    l2_bytes: int = 50 << 20

    @property
    def facts(self) -> list[int]:
        return [
            self.capability,
            self.code,
            self.multiprocessors,
            self.shared_bytes,
            self.multiprocessor_shared_bytes,
            *self.clusters,
            self.argument_bytes,
            self.l2_bytes,
        ]


def _gpu(capability: int, multiprocessors: int, shared_kib: int, clusters: Sequence[int] = ()) -> Gpu:
    """A GPU that runs code compiled for it. ``clusters``: of 2, 4, 8 and 16 blocks; none before sm_90."""
    # The system takes 1 KB of a block's shared memory, except on sm_75.
    of_multiprocessor = shared_kib + (1 if capability >= 80 else 0)
    two, four, eight, sixteen = clusters or (0, 0, 0, 0)
    return Gpu(
        capability,
        capability,
        multiprocessors,
        shared_kib * KIB,
        of_multiprocessor * KIB,
        (multiprocessors, two, four, eight, sixteen),
    )


# One GPU of each architecture.
ARCHITECTURES = {
    "sm_75": _gpu(75, 40, 64),  # T4
    "sm_80": _gpu(80, 108, 163),  # A100
    "sm_86": _gpu(86, 84, 99),  # A40
    "sm_89": _gpu(89, 58, 99),  # L4
    "sm_90": _gpu(90, 132, 227, (66, 30, 15, 7)),  # H100, H200
    "sm_100": _gpu(100, 148, 227, (74, 36, 16, 8)),  # B200
    "sm_103": _gpu(103, 148, 227, (74, 36, 16, 8)),  # B300
    "sm_110": _gpu(110, 20, 227, (10, 5, 2, 1)),  # Thor
    "sm_120": _gpu(120, 170, 99, (85, 40, 20, 0)),  # RTX 5090: no clusters of 16
}


def _older_ptx(name: str, code: int) -> Gpu:
    """The GPU, running PTX for `code`, compiled when it was loaded. Before sm_90 that has no clusters."""
    gpu = ARCHITECTURES[name]
    clusters = gpu.clusters if code >= 90 else (gpu.multiprocessors, 0, 0, 0, 0)
    return dataclasses.replace(gpu, code=code, clusters=clusters)


def _slice(name: str, multiprocessors: int) -> Gpu:
    """A part of the GPU, as MIG makes them."""
    gpu = ARCHITECTURES[name]
    clusters = [min(n, multiprocessors >> i) for i, n in enumerate(gpu.clusters)]
    return dataclasses.replace(
        gpu,
        multiprocessors=multiprocessors,
        clusters=(clusters[0], clusters[1], clusters[2], clusters[3], clusters[4]),
    )


OLDER_PTX = {
    "sm_90 with PTX of sm_75": _older_ptx("sm_90", 75),
    "sm_90 with PTX of sm_80": _older_ptx("sm_90", 80),
    "sm_120 with PTX of sm_90": _older_ptx("sm_120", 90),
}
SLICES = {f"sm_90 with {n} multiprocessors": _slice("sm_90", n) for n in (8, 12, 16)} | {
    f"sm_80 with {n} multiprocessors": _slice("sm_80", n) for n in (14,)
}
OTHERS = {
    "sm_90 with a driver before CUDA 12.1": dataclasses.replace(ARCHITECTURES["sm_90"], argument_bytes=4096),
}

GPUS = ARCHITECTURES | OLDER_PTX | SLICES | OTHERS


def lacks(gpu: Gpu, needs: Sequence[int]) -> str | None:
    """What the GPU lacks of a plan's needs, as ``plan_needs`` lists them; None: nothing.

    Written apart from ``aten_ext::lacks``, to hold it to account.
    """
    code, shared_bytes, cluster, resident_blocks, blocks_of_multiprocessor = needs
    if gpu.code < code:
        return f"code for sm_{code}"
    if shared_bytes > gpu.shared_bytes:
        return f"{shared_bytes} bytes of shared memory"
    sizes = (1, 2, 4, 8, 16)
    if cluster not in sizes or (cluster > 1 and gpu.clusters[sizes.index(cluster)] == 0):
        return f"clusters of {cluster} blocks"
    in_clusters = cluster * gpu.clusters[sizes.index(cluster)] * blocks_of_multiprocessor
    if cluster > 1 and resident_blocks > in_clusters:
        return f"{resident_blocks} blocks at once in clusters of {cluster}"
    if resident_blocks > gpu.multiprocessors * blocks_of_multiprocessor:
        return f"{resident_blocks} blocks at once"
    return None


def plan_needs(overload: str, *args: Any, **kwargs: Any) -> list[int] | None:
    """What the plan for a call at CUDA needs, or None where it is declined.

    Args:
        overload: ``"cat"``, ``"cat.out"``.
        *args: the call's positional arguments.
        **kwargs: its keyword arguments.
    """
    name, _, of_several = overload.partition(".")
    ask = getattr(getattr(torch.ops.aten_ext, f"explain_CUDA_{name}"), of_several or "default")
    _, reason, _, needs = ask(*args, **kwargs)
    return None if reason else list(needs)


@contextlib.contextmanager
def pretended_capture(capturing: bool) -> Iterator[None]:
    """Whether calls on a device that is no GPU are taken for captured ones."""
    torch.ops.aten_ext.pretend_capture(capturing)
    try:
        yield
    finally:
        torch.ops.aten_ext.pretend_capture(False)


@contextlib.contextmanager
def pretended(gpu: Gpu, set_gpu: Callable[[list[int]], None] | None = None) -> Iterator[Gpu]:
    """Devices that are no GPU are taken for this one.

    Args:
        gpu: the facts.
        set_gpu: the operator that takes them; None: the one of the rules, ``pretend_gpu``.
    """
    take = set_gpu if set_gpu is not None else torch.ops.aten_ext.pretend_gpu
    take(gpu.facts)
    try:
        yield gpu
    finally:
        take([])
