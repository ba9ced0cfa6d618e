"""What runs in other processes: importable there by name."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import Dataset

import aten_ext
from programs.cases import by_name
from torch_databases.table import operator


class StepsOfAWorker(Dataset[Any]):
    """Item i: what a case's call gives in the process that loads it, and how often its overrides ran."""

    def __init__(self, name: str, length: int = 6) -> None:
        """``length`` items of the case ``name``."""
        self.name, self.length = name, length

    def __len__(self) -> int:
        """The number of items."""
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Call the case."""
        return call_case(self.name)


def call_case(name: str) -> dict[str, Any]:
    """Call a case on CPU: its tensors, what its overrides counted, and the process."""
    case = by_name[name]
    aten_ext.reset_counts()
    arguments = case.make("cpu")
    result = case.call(*arguments)
    counted = {n: c for n, c in aten_ext.counts("CPU").items() if operator(n) in case.operators}
    return {
        "tensors": [t for t in torch.utils._pytree.tree_leaves((result, arguments)) if t is not None],
        "ran": sum(c.ran for c in counted.values()),
        "declined": sum(sum(c.declined.values()) for c in counted.values()),
        "pid": os.getpid(),
    }


def call_into_queue(name: str, queue: Any) -> None:
    """The same in a process of its own, single-threaded as a DataLoader's worker is; numbers, not tensors."""
    torch.set_num_threads(1)
    found = call_case(name)
    queue.put({**found, "tensors": [t.tolist() for t in found["tensors"]]})
