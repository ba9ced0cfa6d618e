"""PyTorch's own test databases with overrides on and off: every sample, every error, every dtype, gradients.

``pytest --full`` also runs the entries that reach an override by the way (``more_…`` in the table).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
import torch

import aten_ext
import processes
from paths import ROOT
from torch_databases import report
from torch_databases.comparison import Outcome, differences, outcome_of
from torch_databases.entries import DATABASES, reached, run
from torch_databases.table import (
    TABLE,
    Entry,
    entries_at,
    entries_of,
    operator,
    overrides_at,
    undefined_samples,
    why_declined,
    why_unreached,
)
from torch_databases.tally import tallied


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each entry of the table, or each override, and each device."""
    devices = {"cpu": (), "cuda": (pytest.mark.gpu,)}
    full = bool(metafunc.config.getoption("--full"))
    if "entry" in metafunc.fixturenames:
        cases = [(entry, device, f"{entry}") for device in devices for entry in _entries(device, full)]
        names = "entry, device"
    elif "override" in metafunc.fixturenames:
        cases = [(name, device, name) for device in devices for name in _overrides(device)]
        names = "override, device"
    else:
        return
    metafunc.parametrize(
        names,
        [
            pytest.param(case, device, marks=devices[device], id=f"{name}-{device}")
            for case, device, name in cases
        ],
    )


def _overrides(device: str) -> list[str]:
    """What to ask for: in a CPU build, CUDA's tests are named after the overrides at CPU, and skip."""
    return overrides_at(device.upper()) or overrides_at("CPU")


def _entries(device: str, full: bool) -> Iterator[Entry]:
    yield from entries_at(device.upper(), full=full) or entries_at("CPU", full=full)


def test_every_override_names_its_databases() -> None:
    """An override that no database exercises is not done."""
    for override in aten_ext.overrides():
        assert operator(override.name) in TABLE, (
            f"{override.name}: add a row to tests/torch_databases/table.py"
        )
        assert entries_of(override.name, full=False), f"{override.name}: its row names no entry"


def test_entries_exist() -> None:
    """The table names entries of this torch's databases, also in rows whose override is yet to come."""
    known = {name: {info.name for info in module.database()} for name, module in DATABASES.items()}
    for base in TABLE:
        for entry in entries_of(base, full=True):
            assert entry.name in known[entry.database], f"{base}: {entry}"


@pytest.mark.long
def test_entry(entry: Entry, device: str) -> None:
    """Overrides change nothing that can be seen; the fused kernel ran."""
    tally = run(entry, device)
    assert not tally.failures, "\n".join([f"{len(tally.failures)} differences", *tally.failures[:50]])
    assert tally.samples > tally.errors, "every sample raised an error"
    key = device.upper()
    reaching = entries_at(key, full=True)[entry]
    asked = sum(tally.ran.get(name, 0) + tally.declined.get(name, 0) for name in reaching)
    assert asked > 0, f"reached none of {reaching}"
    # What an override that the entry is not of does by the way, in a backward, is no matter.
    if needed := entries_at(key, full=False).get(entry):
        ran = sum(tally.ran.get(name, 0) for name in needed)
        declined = why_declined(entry, key)
        assert ran > 0 or declined, f"all {asked} calls were declined: why belongs into its row, as declined"
        assert ran == 0 or not declined, f"{ran} calls ran fused, but its row says: {declined}"


def test_undefined_samples_exist(entry: Entry, device: str) -> None:
    """A row that calls samples undefined still finds such samples."""
    declared = undefined_samples(entry, device.upper())
    assert (run(entry, device).undefined > 0) == (declared is not None)


def test_override_ran_fused(override: str, device: str) -> None:
    """Among the samples of all its entries there are some that its fused kernel takes."""
    reaching = [e for e, names in entries_at(device.upper(), full=False).items() if override in names]
    tallies = [run(entry, device) for entry in reaching]
    unreached = why_unreached(override, device.upper())
    asked = sum(tally.ran.get(override, 0) + tally.declined.get(override, 0) for tally in tallies)
    assert (asked == 0) == (unreached is not None), f"{asked} calls; its row says: {unreached}"
    assert unreached or sum(tally.ran.get(override, 0) for tally in tallies) > 0


@pytest.mark.parametrize("database", DATABASES)
def test_no_entry_is_missing(device: str, database: str) -> None:
    """Every entry of a database that reaches an override is in the table."""
    missing = {}
    for override, names in reached(database, device).items():
        listed = {entry.name for entry in entries_of(override, full=True) if entry.database == database}
        if set(names) - listed:
            missing[override] = sorted(set(names) - listed)
    assert not missing, f"add to the rows of tests/torch_databases/table.py: {missing}"


# ---- the page in docs -------------------------------------------------------------------------------


def test_page_is_not_stale() -> None:
    """docs/torch_databases.md has a line for each entry that reaches an override, and reports no failure."""
    text = (ROOT / "docs" / "torch_databases.md").read_text()
    for key in ("CPU", "CUDA"):
        lines = report.rows_of(text, key)
        if not lines:
            assert key == "CUDA", "the page has no table for CPU"
            continue
        if overrides_at(key):
            least, most = ({str(e) for e in entries_at(key, full=full)} for full in (False, True))
            assert least <= set(lines) <= most, "run scripts/torch_databases"
        assert all(re.search(r"\| 0 \|$", line) for line in lines.values())


def test_page_keeps_the_other_table() -> None:
    page = report.replace_section("", "CPU", "| table 1 |\n")
    page = report.replace_section(page, "CUDA", "| table 2 |\n")
    assert report.replace_section(page, "CPU", "| table 3 |\n") == page.replace("table 1", "table 3")


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.python(ROOT / "scripts" / "torch_databases", *arguments, timeout=300)


def test_script_without_a_device() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = script("--device", "cuda")
    complaint = "torch_databases: --device cuda, but torch finds no CUDA device"
    assert (done.stderr.splitlines()[-1], done.returncode) == (complaint, 2)


def test_script_discovers() -> None:
    done = script("--discover")
    assert done.returncode == 0, done.stderr
    assert "_fused_adamw_: optim_db: AdamW" in done.stdout.splitlines()


# ---- the comparison itself: it can fail --------------------------------------------------------------


def is_on() -> bool:
    return aten_ext.overrides()[0].enabled


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t + 1e-3, "not close"),
        (lambda t: t.double(), "dtype torch.float64 instead of torch.float32"),
        (lambda t: t.t().contiguous().t(), "strides"),
        (lambda t: t[:1], "shape"),
        (lambda t: [t, t], "structure"),
        (lambda t: None, "NoneType instead of Tensor"),
        (lambda t: t.clone().requires_grad_(), "requires_grad"),
        (lambda t: t.no_such_thing, "error: "),
    ],
)
def test_comparison_notices(change: object, complaint: str) -> None:
    """A call that does something else with overrides on is a failure."""
    torch.manual_seed(0)
    value = torch.rand(3, 4)

    def call(t: torch.Tensor) -> object:
        return change(t) if is_on() else t.clone()  # type: ignore[operator]

    with tallied("CPU", exact=False) as tally:
        tally.compare_each(lambda: [value.clone()], call, lambda i, _: f"sample {i}")
    assert len(tally.failures) == 1 and complaint in tally.failures[0], tally.failures


def test_comparison_notices_written_arguments() -> None:
    with tallied("CPU", exact=True) as tally:
        tally.compare_each(lambda: [torch.zeros(3)], lambda t: t.add_(is_on()).shape, lambda i, _: f"{i}")
    assert "arguments afterwards" in tally.failures[0]


def test_exact_comparison_notices_the_last_bit() -> None:
    one = torch.ones(2)
    next_up = torch.nextafter(one, 2 * one)
    assert [*differences(one, next_up, exact=True)] and not [*differences(one, next_up, exact=False)]
    nan = torch.tensor([torch.nan])
    assert not [*differences(nan, nan.clone(), exact=True)]


def test_comparison_notices_a_call_that_went_elsewhere() -> None:
    """With overrides on as many calls must reach an entry as with overrides off."""

    def call(ones: list[torch.Tensor]) -> None:
        if not is_on():
            torch._fused_adamw_(
                *[ones] * 4,
                *([], ones),
                **dict(
                    lr=1.0, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
                ),
            )

    with tallied("CPU", exact=True) as tally:
        tally.compare_each(lambda: [[torch.ones(1)]], call, lambda i, _: f"sample {i}")
    assert "0 fused and 0 declined calls with overrides on, 1 calls with overrides off" in tally.failures[0]


def test_outcome_keeps_errors_and_warnings() -> None:
    assert outcome_of(lambda: torch.ones(2) @ torch.ones(3)).error is not None
    assert outcome_of(lambda: [].pop()) == Outcome(None, ("IndexError", "pop from empty list"))
