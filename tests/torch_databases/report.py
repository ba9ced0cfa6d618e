"""docs/torch_databases.md: what the databases ran, one table a dispatch key."""

from __future__ import annotations

import datetime
import re

import torch

from torch_databases.entries import run
from torch_databases.table import entries_at, undefined_samples, why_declined, why_unreached

HEAD = """# PyTorch's own test databases

`torch.testing._internal` ships the samples that PyTorch tests itself with: `op_db` (operators), `module_db`
(modules) and `optim_db` (optimizers). `tests/torch_databases/` runs every entry that reaches an
override, with overrides off and on, and compares values, strides, dtypes, warnings, error type and text, the
arguments afterwards, gradients and gradients of gradients. [Testing](testing.md#pytorchs-own-test-databases)
says how.

*Samples* counts comparisons: a sample, a dtype, a way to call it. *Errors* are those in which upstream raises
and so do we. *Fused* and *declined* count calls with overrides on that reached an override: one sample may
make many. *Exact* asks for equal elements, otherwise the tolerances of `torch.testing.assert_close` hold, the
absolute one in proportion to the largest element. *Undefined* samples are not compared: upstream itself
answers differently from call to call. *Failures* are differences.

`scripts/torch_databases` writes this page; a test compares its lines with the table of entries.
"""

COLUMNS = "| entry | overrides | samples | errors | fused | declined | exact | undefined | failures |"
RULE = "|---|---|--:|--:|--:|--:|---|--:|--:|"


def section(device: str, *, full: bool) -> str:
    """Run every entry on a device and make the section of its dispatch key."""
    key = device.upper()
    machine = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    lines = [f"torch {torch.__version__}, {machine}, {datetime.date.today().isoformat()}.", "", COLUMNS, RULE]
    notes = []
    for entry, overrides in entries_at(key, full=full).items():
        tally = run(entry, device)
        cells = [
            str(entry),
            ", ".join(f"`{name}`" for name in overrides),
            tally.samples,
            tally.errors,
            sum(tally.ran.get(name, 0) for name in overrides),
            sum(tally.declined.get(name, 0) for name in overrides),
            "yes" if tally.exact else "no",
            tally.undefined,
            len(tally.failures),
        ]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
        declined, undefined = why_declined(entry, key), undefined_samples(entry, key)
        if declined:
            notes.append(f"{entry}, nothing fused: {declined}.")
        for override in overrides:
            unreached = why_unreached(override, key)
            if unreached:
                notes.append(f"{entry}, `{override}` not reached: {unreached}.")
        if undefined:
            notes.append(f"{entry}, undefined: {undefined.reason}.")
    return "\n".join([*lines, *(f"\n{note}" for note in notes)]) + "\n"


def _split(page: str) -> dict[str, str]:
    """Key -> the text of its section."""
    parts = re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip() + "\n" for part in parts[2::2]), strict=True))


def replace_section(page: str, key: str, text: str) -> str:
    """The page with another section for one key."""
    sections = _split(page) | {key: text}
    return HEAD + "".join(f"\n## {name}\n\n{sections[name]}" for name in sorted(sections))


def rows_of(page: str, key: str) -> dict[str, str]:
    """Entry -> line of the table of one key."""
    lines = [line for line in _split(page).get(key, "").splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines if line != COLUMNS}
