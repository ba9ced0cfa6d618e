"""Run entries of the table, once a process, and find out which entries reach which override."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch

import aten_ext
from torch_databases import modules, operators, optimizers
from torch_databases.comparison import outcome_of
from torch_databases.table import Entry, is_exact, sums_of, undefined_samples
from torch_databases.tally import Tally, one_thread, tallied

DATABASES: dict[str, ModuleType] = {"op_db": operators, "module_db": modules, "optim_db": optimizers}


@cache
def run(entry: Entry, device: str) -> Tally:
    """Everything that the entry has, on one device, with overrides off and on."""
    key = device.upper()
    undefined = undefined_samples(entry, key)
    known = undefined.pattern if undefined else None
    with tallied(key, exact=is_exact(entry, key), known=known, sums=sums_of(entry, key)) as tally:
        if device == "cuda":
            _start_cublas()
        DATABASES[entry.database].run(entry.name, device, tally)
    return tally


@cache
def _start_cublas() -> None:
    """In the thread that runs backward formulas it warns when it starts: once a process."""
    x = torch.ones(2, 2, device="cuda", requires_grad=True)
    torch.autograd.grad((x @ x).sum(), x)


def reached(database: str, device: str) -> dict[str, list[str]]:
    """Which overrides each entry of a database reaches with its first sample (for an optimizer: with all).

    Returns:
        Name of the override -> names of entries. What an entry does to raise an error is its own affair.
    """
    found: dict[str, set[str]] = {}
    for info in DATABASES[database].database():
        with warnings.catch_warnings(), one_thread():
            warnings.simplefilter("ignore")
            prepared = outcome_of(lambda info=info: DATABASES[database].first_call(info, device))
            if prepared.error is not None:  # an entry without samples of that dtype, or for another device
                continue
            aten_ext.reset_counts()  # making the sample may have called overrides too
            outcome_of(prepared.value)
        for override, counts in aten_ext.counts(device.upper()).items():
            if counts.ran or counts.declined:
                found.setdefault(override, set()).add(info.name)
    return {override: sorted(names) for override, names in found.items()}
