"""One kind of ``scripts/sanitize``: its folder of output, its steps, and tests dealt out to processes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from scratch import ROOT

# Files and folders below tests/ that no sanitizer runs: those that compile, time or start processes by the
# dozen. They exercise no more of the kernels.
LEFT_OUT = {
    "commands/bench/test_cases.py",
    "commands/bench/test_command.py",
    "commands/bench/test_entry.py",
    "commands/bench/test_harness.py",
    "core/test_build.py",
    "core/test_codegen.py",
    "commands/test_demo.py",
    "repository/test_docs.py",
    "repository/test_mutants.py",
    "debugging",
    "distributed",
    "models",
}
# A process starts in seconds, and under a sanitizer in more: few, but so many that none is much the longest.
TESTS_OF_A_PROCESS = 40
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


class Unavailable(Exception):
    """This kind cannot run here; the text says why in one line."""


def test_files(root: Path, left_out: Collection[str]) -> list[str]:
    """The test files below ``root``/tests, as pytest takes them, but for files and folders ``left_out``."""
    files = [path.relative_to(root / "tests") for path in sorted((root / "tests").rglob("test_*.py"))]
    return [f"tests/{file}" for file in files if not {str(file), *map(str, file.parents)} & set(left_out)]


@dataclass
class Step:
    """One command and what became of it."""

    name: str
    passed: bool
    note: str = ""


@dataclass
class Slice:
    """Some tests of one file, which one process runs."""

    name: str
    tests: list[str]


def slices(tests: Sequence[str]) -> Iterator[Slice]:
    """The tests, in their order, file by file."""
    for file, of_file in groupby(tests, lambda test: test.partition("::")[0]):
        ids = list(of_file)
        for first in range(0, len(ids), TESTS_OF_A_PROCESS):
            name = f"{'.'.join(Path(file).with_suffix('').parts[1:])} {first + 1}"
            yield Slice(name, ids[first : first + TESTS_OF_A_PROCESS])


def outcomes(output: str) -> dict[str, int]:
    """What pytest's last line counts (``passed``, ``failed``, ``error``...); empty if it has none."""
    summaries = re.findall(r"^(?:=+ )?(\d+ [a-z]+.*) in [\d.]+s", output, re.MULTILINE)
    counts = re.findall(r"(\d+) ([a-z]+)", summaries[-1]) if summaries else []
    return {"error" if what == "errors" else what: int(number) for number, what in counts}


class Kind:
    """One sanitizer's run."""

    def __init__(self, name: str, folder: Path) -> None:
        """Start with an empty folder."""
        self.name = name
        self.folder = folder / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.steps: list[Step] = []

    def log(self, name: str) -> Path:
        """Where the output of the command called ``name`` is kept."""
        return self.folder / f"{name.replace(' ', '_')}.log"

    def run(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: dict[str, str] | None = None,
        cwd: Path = ROOT,
        timeout: int = 7200,
    ) -> int:
        """Run one command; its output is kept in a file of its own. Returns the exit code."""
        print(f"{self.name}: {name} ...", file=sys.stderr, flush=True)
        with self.log(name).open("wb") as log:
            return subprocess.run(
                command, cwd=cwd, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=timeout
            ).returncode

    def reports(self) -> set[str]:
        """Where a sanitizer reports a fault: a file of its own or, as UBSan beside ASan does, the output.

        What else it says there is no fault: that it does not know the stacks of tests/device_on_host.
        """
        faults = (b"ERROR: AddressSanitizer: ", b"WARNING: ThreadSanitizer: ", b": runtime error: ")
        written = [*self.folder.glob("report.*"), *self.folder.glob("*.log")]
        return {path.name for path in written if any(fault in path.read_bytes() for fault in faults)}

    def check(self, name: str, command: Sequence[str | Path], **arguments: object) -> None:
        """A step that passes if the command does and nothing is reported."""
        before = self.reports()
        code = self.run(name, command, **arguments)  # type: ignore[arg-type]
        note = ", ".join(
            filter(None, [f"exit code {code}" if code else "", *sorted(self.reports() - before)])
        )
        self.steps.append(Step(name, not note, note))

    def check_tests(
        self,
        arguments: Sequence[str],
        *,
        command: Callable[[Slice], Sequence[str | Path]],
        problem: Callable[[Slice, int], str],
        environment: dict[str, str],
        cwd: Path,
        jobs: int,
    ) -> None:
        """Deal tests out to processes, ``jobs`` at a time: a step for each that failed, and one for all.

        Args:
            arguments: of pytest: which tests.
            command: what runs a slice's tests.
            problem: what is wrong with a slice that ended with this exit code; empty if nothing is.
            environment: of every process.
            cwd: of every process.
            jobs: processes at a time.
        """
        collect = [*PYTEST, "--collect-only", *arguments]
        code = self.run("collect", collect, environment=environment, cwd=cwd)
        if code != 0:  # a file that cannot be read would be left out without a word
            self.steps.append(Step("collect", False, f"exit code {code}, see {self.log('collect').name}"))
        tests = [line for line in self.log("collect").read_text().splitlines() if "::" in line]
        counts: dict[str, int] = {}

        def run(part: Slice) -> str:
            code = self.run(part.name, command(part), environment=environment, cwd=cwd)
            found = outcomes(self.log(part.name).read_text(errors="replace"))
            if not found:
                return f"did not come to its end, exit code {code}"
            for outcome, number in found.items():
                counts[outcome] = counts.get(outcome, 0) + number
            failed = found.get("failed", 0) + found.get("error", 0)
            return ", ".join(filter(None, [f"{failed} failed" if failed else "", problem(part, code)]))

        parts = list(slices(tests))
        with ThreadPoolExecutor(jobs) as pool:
            notes = list(pool.map(run, parts))
        self.steps += [Step(part.name, False, note) for part, note in zip(parts, notes, strict=True) if note]
        summary = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        # A run that tested nothing is no success.
        self.steps.append(
            Step(f"{len(tests)} tests in {len(parts)} processes", bool(counts.get("passed")), summary)
        )
