"""Mutants that nobody chose: drawn by universalmutator's rules, from a seed.

The rules exchange operators and constants, turn conditions round or fix them, leave statements out and swap
arguments. A mutant counts if it compiles and is other machine code; another is drawn in place of one that
does not.
"""

from __future__ import annotations

import collections
import contextlib
import difflib
import functools
import io
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutant_runs import WITHOUT_WARNINGS, compiled, run_tests
from mutant_table import MUTANTS
from scratch import ROOT, BuildError, Scratch

# The sources of a family, and the tests that have to notice.
FAMILIES = {
    "cat": (("aten_ext/ops/cat",), ("tests/ops/cat",)),
    "linear": (("aten_ext/ops/linear",), ("tests/ops/linear",)),
    "optimizer": (("aten_ext/ops/optimizer",), ("tests/ops/optimizer",)),
    "rnn": (("aten_ext/ops/rnn",), ("tests/ops/rnn",)),
    "core": (("aten_ext/core", "aten_ext/watch"), ("tests/core", "tests/watch")),
    "python": (
        ("python",),
        (
            "tests/core",
            "tests/watch",
            "tests/commands",
            "tests/advice",
            "tests/ops/linear/test_inductor.py",
            "tests/ops/linear/test_inductor_pass.py",
        ),
    ),
}
# Of the sources that no test without a GPU compiles: they ask the driver, or hold PTX, whose twins for the
# CPU stand in tests/device_on_host.
_NEEDS_GPU = ("query_gpu.cu", "fast_math.cuh", "flagged.cuh")
_RULES = {".py": ["universal.rules", "python.rules"]}
_RULES_OF_CPP = ["universal.rules", "c_like.rules", "cpp.rules"]
_SUFFIXES = {".py", ".h", ".cuh", ".cpp", ".cu"}
# Lines that say nothing a test could see: comments, includes, and what the compiler checks by itself.
_DUMB = re.compile(r"^\s*(//|template <|#|\*|\"\"\"|import |from |using |namespace |static_assert|}|$)")
# A jump put behind a line, which is hardly ever in a loop and then does not compile.
_JUMP = re.compile(r"^\s*(break|continue);\s*$")
# What never compiles: operators that are none, and a declaration left out whose name is used.
_NO_CODE = re.compile(
    r"[-+*/%][*/]\w|/[-+]\w|\*[-+*/]\w|><=|>=<|<<=|>>=|[-(,=:?+*/%]\s*[%|^]|\)\.?\d|\)\s+\d|[<>!]==|==>|"
    r"^\s*/\*\s*(const|constexpr|inline|static|auto|template|struct|class|enum)\b"
)
# What no rule may break: arguments of templates, references and pointers.
_TYPES = re.compile(r"\w<[\w:,\s*.()]*>(?!=)|\b(?:const [\w:<>, ]+|auto|void|float|char|[A-Z]\w*)[&*]+ ?\w")
_WORD = re.compile(r"[A-Za-z_]\w*|\d\w*[A-Za-z_]\w*")
# A function's parameters, of which two exchanged are no longer those that it is called with.
_PARAMETERS = re.compile(r"[(,]\s*(const [\w:]+|auto|bool|float|size_t|u?int\d*(_t)?)\b[&*\s]+\w")
# Words that the rules bring in.
_NEW_WORDS = {"break", "continue", "pass", "true", "false", "True", "False", "None", "and", "or", "not", "in"}
# Of the runs of a family's tests, at least; those of a mutant that loops for ever end here.
_SECONDS = 900
# What pytest returns where it finds none.
_NO_TESTS = 5
# What pytest prints of a test with --durations.
_DURATION = re.compile(r"^([\d.]+)s (?:setup|call|teardown) +([^:\s]+)::", re.MULTILINE)


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


@functools.cache
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
    words = set(_WORD.findall("".join(lines))) | _NEW_WORDS
    in_text = _lines_of_texts(lines) if file.endswith(".py") else set()
    for line, text, *_ in made:
        before = lines[line - 1]
        pointless = _DUMB.match(before) or line in in_text or _only_spaces(before, text)
        pointless = pointless or _hopeless(before, text, words)
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


def _hopeless(before: str, after: str, words: set[str]) -> bool:
    """Whether it is plain without a compiler that it does not compile, which would take minutes to hear."""
    brackets = [re.sub(r"/\*.*?\*/|//.*", "", text).count for text in (before, after)]
    balance = [[count(one) - count(other) for one, other in ("()", "[]", "{}")] for count in brackets]
    old, new = _WORD.findall(before), _WORD.findall(after)
    return (
        balance[0] != balance[1]
        or (not _NO_CODE.search(before) and _NO_CODE.search(after) is not None)
        or len(_TYPES.findall(after)) < len(_TYPES.findall(before))
        or (_PARAMETERS.search(before) is not None and old != new and sorted(old) == sorted(new))
        or any(word not in words for word in new)
    )


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


def _tests_at(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def nearest_first(family: str, file: str, seconds: dict[str, float]) -> tuple[str, ...]:
    """The family's files of tests: by what they share with ``file``, then the short."""
    of_table = {test.partition("::")[0] for mutant in MUTANTS if mutant.file == file for test in mutant.tests}
    stem = Path(file).stem.strip("_")
    words = _words(file) | ({"on", "host"} if file.endswith((".cu", ".cuh")) else set())
    tests = {
        str(path.relative_to(ROOT)): path for place in FAMILIES[family][1] for path in _tests_at(ROOT / place)
    }

    def distance(test: str) -> tuple[int, float]:
        common = len(words & _words(test)) + 2 * (test in of_table) + (stem in tests[test].read_text())
        return -common, seconds.get(test, 0)

    return tuple(sorted(tests, key=distance))


def _words(path: str) -> set[str]:
    return set(re.findall("[a-z]+", path))


def verdict(
    scratch: Scratch, mutant: RandomMutant, before: dict[str, bytes], seconds: dict[str, float], workers: int
) -> str:
    """What became of ``mutant``: "killed", "SURVIVED", or why it does not count.

    ``before``: the libraries without any. Those of other families may still be of an earlier mutant.
    ``seconds``: of each file of tests without any mutant.
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
        tests = nearest_first(mutant.family, mutant.file, seconds)
        limit = max(_SECONDS, 3 * int(sum(seconds.get(test, 0) for test in tests)))
        code, output = run_tests(scratch, tests, *_workers(workers), seconds=limit)
        if not compiled(output):
            return "does not compile"
        if code == _NO_TESTS:
            return "WRONG: no tests"
        if code != 0:  # also where the tests cannot even be imported
            return "killed"
        same = all(
            code in (before.get(name), earlier.get(name)) for name, code in _libraries(scratch).items()
        )
        return "the same machine code" if compiles and same else "SURVIVED"
    except (BuildError, SyntaxError, ValueError):
        return "does not compile"
    finally:
        path.write_text(source)


def _workers(number: int) -> list[str]:
    return ["-n", str(number)] if number > 1 else []


def judge(families: list[str], count: int, seed: int, folder: Path, workers: int) -> list[RandomMutant]:
    """Try ``count`` mutants that count; print a line each. Returns the survivors.

    Raises:
        Unavailable: see ``mutants_of``.
        SystemExit: the tests fail without any mutant.
    """
    drawn = draw(families, seed)
    first = next(drawn)
    scratch = Scratch(folder)
    scratch.build(**WITHOUT_WARNINGS)
    seconds: dict[str, float] = collections.defaultdict(float)
    for family in families:
        durations = ("--durations=0", "--durations-min=0.05")
        code, output = run_tests(scratch, FAMILIES[family][1], *_workers(workers), *durations, seconds=7200)
        for took, test in _DURATION.findall(output):
            seconds[test] += float(took)
        if code != 0:
            raise SystemExit(f"mutants: the tests of {family} fail without any mutant\n{output[-2000:]}")
    before = _libraries(scratch)
    survivors: list[RandomMutant] = []
    tried = 0
    mutant = first
    while tried < count:
        start = time.monotonic()
        result = verdict(scratch, mutant, before, seconds, workers)
        tried += result in ("killed", "SURVIVED")
        if result == "SURVIVED":
            survivors.append(mutant)
        took = time.monotonic() - start
        print(f"{tried:3}/{count}  {result:9} {mutant.file}:{mutant.line} ({took:.0f} s)", flush=True)
        mutant = next(drawn)
    for survivor in survivors:
        print(f"\n{survivor.diff()}")
    print(f"{count - len(survivors)} of {count} mutants killed")
    return survivors
