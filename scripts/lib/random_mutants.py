"""Mutants that nobody chose: drawn by universalmutator's rules, from a seed.

The rules exchange operators and constants, turn conditions round or fix them, leave statements out and swap
arguments. A mutant counts if it compiles and is other machine code; another is drawn in place of one that
does not.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutant_runs import WITHOUT_WARNINGS, compiled, noticed, run_tests
from scratch import ROOT, BuildError, Scratch

# The sources of a family, and the tests that have to notice.
FAMILIES = {
    "cat": (("aten_ext/ops/cat",), ("tests/ops/cat",)),
    "linear": (("aten_ext/ops/linear",), ("tests/ops/linear",)),
    "optimizer": (("aten_ext/ops/optimizer",), ("tests/ops/optimizer",)),
    "rnn": (("aten_ext/ops/rnn",), ("tests/ops/rnn",)),
    "core": (("aten_ext/core", "aten_ext/watch"), ("tests/core", "tests/watch")),
    "python": (("python",), ("tests/core", "tests/watch", "tests/commands")),
}
# Of the sources that no test without a GPU compiles: they ask the driver, or hold PTX, whose twins for the
# CPU stand in tests/device_on_host.
_NEEDS_GPU = ("query_gpu.cu", "fast_math.cuh", "flagged.cuh")
_RULES = {".py": ["universal.rules", "python.rules"]}
_RULES_OF_CPP = ["universal.rules", "c_like.rules", "cpp.rules"]
_SUFFIXES = {".py", ".h", ".cuh", ".cpp", ".cu"}
# Lines that say nothing a test could see: comments, includes, and what the compiler checks by itself.
_DUMB = re.compile(r"^\s*(//|#|\*|\"\"\"|import |from |using |namespace |static_assert|}|$)")
# A jump put behind a line, which is hardly ever in a loop and then does not compile.
_JUMP = re.compile(r"^\s*(break|continue);\s*$")
# Of the runs of a family's tests; those of a mutant that loops for ever end here.
_SECONDS = 900


class Unavailable(Exception):
    """universalmutator is not installed; the text says what to do."""


@dataclass(frozen=True)
class RandomMutant:
    """One line, otherwise."""

    family: str
    file: str
    """Relative to the root."""
    line: int
    """From 1."""
    text: str
    """What the line becomes."""

    def applied(self, source: str) -> str:
        """The text of the file with it."""
        lines = source.splitlines(keepends=True)
        lines[self.line - 1] = self.text
        return "".join(lines)

    def diff(self) -> str:
        """Of the file, without its context."""
        before = (ROOT / self.file).read_text()
        lines = difflib.unified_diff(
            before.splitlines(), self.applied(before).splitlines(), self.file, self.file, "", "", 0, ""
        )
        return "\n".join(lines)


def sources(family: str) -> list[str]:
    """The family's files that are compiled or run without a GPU, relative to the root, sorted."""
    return sorted(
        str(path.relative_to(ROOT))
        for folder in FAMILIES[family][0]
        for path in (ROOT / folder).rglob("*")
        if path.suffix in _SUFFIXES and path.name not in _NEEDS_GPU
    )


def mutants_of(family: str, file: str) -> dict[int, list[str]]:
    """Per line, what the rules make of it.

    Raises:
        Unavailable: universalmutator is not installed.
    """
    try:
        from universalmutator import mutator
    except ImportError as error:
        raise Unavailable("random mutants need universalmutator: pip install 'aten_ext[mutants]'") from error
    lines = (ROOT / file).read_text().splitlines(keepends=True)
    rules = _RULES.get(Path(file).suffix, _RULES_OF_CPP)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its rules
        made = mutator.mutants_regexp(lines, ruleFiles=rules, ignorePatterns=[], ignoreStringOnly=True)
    found: dict[int, list[str]] = {}
    in_text = _lines_of_texts(lines) if file.endswith(".py") else set()
    for line, text, *_ in made:
        before = lines[line - 1]
        pointless = _DUMB.match(before) or line in in_text or _only_spaces(before, text)
        if not pointless and not _JUMP.search(text.removeprefix(before)):
            found.setdefault(line, []).append(text)
    return found


def _lines_of_texts(lines: list[str]) -> set[int]:
    """Those of Python's docstrings and other texts of several lines."""
    inside, found = False, set()
    for number, line in enumerate(lines, start=1):
        quotes = line.count('"""')
        if inside or quotes:
            found.add(number)
        inside ^= quotes % 2 == 1
    return found


def _only_spaces(before: str, after: str) -> bool:
    return "".join(before.split()) == "".join(after.split())


def draw(families: list[str], seed: int) -> Iterator[RandomMutant]:
    """Without end, none twice: a family, a line of it, a mutant of that line, each as likely as another."""
    generator = random.Random(seed)
    places: dict[str, list[tuple[str, int, list[str]]]] = {
        family: [
            (file, line, texts)
            for file in sources(family)
            for line, texts in sorted(mutants_of(family, file).items())
        ]
        for family in families
    }
    seen = set()
    while any(places.values()):
        family = generator.choice(families)
        file, line, texts = generator.choice(places[family])
        mutant = RandomMutant(family, file, line, generator.choice(texts))
        if mutant not in seen:
            seen.add(mutant)
            yield mutant


def _libraries(scratch: Scratch) -> dict[str, bytes]:
    """What was compiled: the package's libraries and those of the tests."""
    folders = (scratch.folder / "python", scratch.folder / "build")
    return {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*.so")}


def verdict(scratch: Scratch, mutant: RandomMutant, before: dict[str, bytes]) -> str:
    """What became of ``mutant``: "killed", "SURVIVED", or why it does not count.

    ``before``: the libraries without any. Those of other families may still be of an earlier mutant.
    """
    earlier = _libraries(scratch)
    path = scratch.folder / mutant.file
    source = path.read_text()
    path.write_text(mutant.applied(source))
    compiles = path.suffix != ".py"
    try:
        if compiles:
            scratch.build(**WITHOUT_WARNINGS)
        else:
            compile(path.read_text(), mutant.file, "exec")
        code, output = run_tests(scratch, FAMILIES[mutant.family][1], "-n", "2", seconds=_SECONDS)
        if not compiled(output):
            return "does not compile"
        if noticed(code):
            return "killed"
        if code != 0:
            return f"WRONG: pytest exited with {code}"
        same = all(
            code in (before.get(name), earlier.get(name)) for name, code in _libraries(scratch).items()
        )
        return "the same machine code" if compiles and same else "SURVIVED"
    except (BuildError, SyntaxError, ValueError):
        return "does not compile"
    finally:
        path.write_text(source)


def judge(families: list[str], count: int, seed: int, folder: Path) -> list[RandomMutant]:
    """Try ``count`` mutants that count; print a line each. Returns the survivors.

    Raises:
        Unavailable: see ``mutants_of``.
        SystemExit: the tests fail without any mutant.
    """
    drawn = draw(families, seed)
    first = next(drawn)
    scratch = Scratch(folder)
    scratch.build(**WITHOUT_WARNINGS)
    for family in families:
        code, output = run_tests(scratch, FAMILIES[family][1], "-n", "2")
        if code != 0:
            raise SystemExit(f"mutants: the tests of {family} fail without any mutant\n{output[-2000:]}")
    before = _libraries(scratch)
    survivors: list[RandomMutant] = []
    tried = 0
    mutant = first
    while tried < count:
        start = time.monotonic()
        result = verdict(scratch, mutant, before)
        tried += result in ("killed", "SURVIVED")
        if result == "SURVIVED":
            survivors.append(mutant)
        seconds = time.monotonic() - start
        print(f"{tried:3}/{count}  {result:9} {mutant.file}:{mutant.line} ({seconds:.0f} s)", flush=True)
        mutant = next(drawn)
    for survivor in survivors:
        print(f"\n{survivor.diff()}")
    print(f"{count - len(survivors)} of {count} mutants killed")
    return survivors
