"""Tensors whose memory ends, or begins, at a page that may not be touched.

Reading or writing one byte too many then ends the process: run in one of its own.
"""

from __future__ import annotations

import ctypes
import mmap

import torch

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 2, *[ctypes.c_int] * 2, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(like: torch.Tensor, at_end: bool) -> torch.Tensor:
    """A copy of ``like``, a flat tensor on the CPU, directly before (``at_end``) or after such a page.

    The memory is never given back.
    """
    size = like.numel() * like.element_size()
    pages = -(-size // _PAGE) + 2
    prot, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = _libc.mmap(None, pages * _PAGE, prot, flags, -1, 0)
    assert start and start != ctypes.c_void_p(-1).value, "no memory"
    for page in (start, start + (pages - 1) * _PAGE):
        assert _libc.mprotect(page, _PAGE, 0) == 0
    address = start + (pages - 1) * _PAGE - size if at_end else start + _PAGE
    buffer = (ctypes.c_char * size).from_address(address)
    result = torch.frombuffer(buffer, dtype=like.dtype) if size else like.clone()
    return result.copy_(like)
