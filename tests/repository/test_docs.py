"""The documentation: its code runs, its links lead somewhere, and no page of it is lost.

A block of code begins with a fence that names its language. ``python``: run, the blocks of one page one
after another in one process. ``console``: the commands after "$ " are run, and what stands below them has to
be what they print. Anything else is text. A comment in the line before the fence changes that:

* ``<!-- not run: REASON -->``: as it says.
* ``<!-- slow: REASON -->``: run with ATEN_EXT_TEST_SLOW=1.
* ``<!-- setup: CODE -->``: run before the block, for a fragment of a program.
* ``<!-- file: NAME -->``: not run but written to a file, for the commands of the same page.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch

import processes
from debugging.gdb_here import why_no_gdb
from paths import DOCS, ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
INDEX = DOCS / "index.md"
TRACED_TORCH = "2.13"
"""The torch whose functions stand in the traces; others may name them otherwise."""
LANGUAGES = {"python", "console", "cpp", "yaml", ""}
COMMENT = re.compile(r"<!-- (not run|slow|setup|file): (.*\S) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    """Of its first line of code."""
    language: str
    text: str
    mark: str
    """"not run", "slow", "setup", "file", or nothing."""
    argument: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, those of a list included."""
    found: list[Block] = []
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"(\s*)```(\S*)\s*$", lines[number])
        if fence is None:
            number += 1
            continue
        end = next(n for n in range(number + 1, len(lines)) if lines[n].strip() == "```")
        comment = COMMENT.fullmatch(lines[number - 1].strip()) if number else None
        mark, argument = comment.groups() if comment else ("", "")
        body = [line.removeprefix(fence.group(1)) for line in lines[number + 1 : end]]
        found.append(Block(page, number + 2, fence.group(2), "\n".join(body), mark, argument))
        number = end + 1
    return found


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


ALL = [block for page in PAGES for block in blocks(page)]


def is_run(block: Block) -> bool:
    return block.mark in ("", "setup") or (block.mark == "slow" and "ATEN_EXT_TEST_SLOW" in os.environ)


# Every block is run or says why not


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_are_marked(page: Path) -> None:
    for block in blocks(page):
        where = f"{name(page)}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: {block.language!r} is none of {sorted(LANGUAGES)}"
        if block.language == "":
            first = re.search(r"^(\$|>>>) ", block.text, re.MULTILINE)
            assert first is None, f"{where}: commands belong into a block of 'console' or 'python'"
        if block.language == "console" and block.mark == "":
            assert block.text.startswith("$ "), f"{where}: expected a command"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_comments_stand_before_a_block(page: Path) -> None:
    """A comment that has lost its block would be a reason for nothing."""
    used = sum(bool(block.mark) for block in blocks(page))
    assert len(COMMENT.findall(re.sub(r"`[^`\n]*`", "", page.read_text()))) == used


def test_there_is_something_to_run() -> None:
    run = [block for block in ALL if is_run(block)]
    assert {"python", "console"} <= {block.language for block in run}
    assert {"README.md", "docs/profiling.md", "docs/debugging.md"} <= {name(block.page) for block in run}


# Python


def program(page: Path) -> str:
    """The Python of a page, each line where it stands there, so that a traceback leads to it."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and is_run(block):
            lines += [""] * (block.line - 1 - len(lines))
            if block.mark == "setup":
                lines[-1] = block.argument
            lines += block.text.splitlines()
    return "\n".join(lines) + "\n"


WITH_PYTHON = [page for page in PAGES if program(page).strip()]


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ATEN_EXT")}
    return kept | {"OMP_NUM_THREADS": "1"}


@pytest.mark.long
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_python_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem}.py"
    script.write_text(program(page))
    warnings = ["-W", "error::DeprecationWarning:__main__"]
    done = processes.python(*warnings, script, cwd=tmp_path, env=environment(), timeout=300)
    assert done.returncode == 0, f"{name(page)} (lines are those of the page):\n{done.stderr}"


# Commands


@dataclass(frozen=True)
class Command:
    """One command of a page and what it is said to print."""

    page: Path
    line: int
    text: str
    output: str


def commands() -> list[Command]:
    found = []
    for block in ALL:
        if block.language != "console" or not is_run(block):
            continue
        starts = [index for index, line in enumerate(block.text.splitlines()) if line.startswith("$ ")]
        lines = block.text.splitlines()
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            output = "\n".join(lines[start + 1 : end]).rstrip()
            found.append(Command(block.page, block.line + start, lines[start][2:], output))
    return found


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A folder that looks like the root of the checkout, and whose ``python`` is this one."""
    for folder in ("scripts", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "bin").mkdir()
    for python in ("python", "python3"):
        wrapper = tmp_path / "bin" / python
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        wrapper.chmod(0o755)
    return tmp_path


def run_python(text: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
    """A command that does nothing but start Python, perhaps with variables; None: it is another."""
    if re.search(r"[|&;<>$`*?()]", text):
        return None
    words = shlex.split(text)
    own = dict(word.split("=", 1) for word in itertools.takewhile(lambda word: "=" in word, words))
    python, *arguments = words[len(own) :]
    if python not in ("python", "python3"):
        return None
    return processes.python(*arguments, cwd=folder, env=variables | own)


def run_shell(text: str, folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run(
        [bash, "-c", text],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("command", commands(), ids=lambda c: f"{name(c.page)}:{c.line}")
def test_command_runs(command: Command, sandbox: Path) -> None:
    traces = "scripts/trace_dispatch" in command.text
    if traces and (why := why_no_gdb()):
        pytest.skip(why)
    for block in blocks(command.page):
        if block.mark == "file":
            (sandbox / block.argument).write_text(block.text + "\n")
    path = os.pathsep.join([str(sandbox / "bin"), os.environ.get("PATH", os.defpath)])
    variables = environment() | {"PATH": path, "VIRTUAL_ENV": str(sandbox)}
    done = run_python(command.text, sandbox, variables) or run_shell(command.text, sandbox, variables)
    assert done.returncode == 0, f"{name(command.page)}:{command.line}: {done.stderr}"
    if command.output and (not traces or torch.__version__.startswith(f"{TRACED_TORCH}.")):
        printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()).rstrip()
        assert printed == command.output


# Links


def links(page: Path) -> list[str]:
    """Where the links and pictures of a page lead to, code left out."""
    text = re.sub(r"^\s*```.*?^\s*```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    return [unquote(target) for target in re.findall(r"\]\(([^)\s]+)\)", text)]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^\s*```.*?^\s*```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name(page)}: {link}"
        assert target.is_relative_to(ROOT), f"{name(page)}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: {link}: there is no such heading"


def test_every_page_is_reached_from_the_index() -> None:
    reached, waiting = set(), [INDEX]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        targets = [
            (page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link
        ]
        # Not by the README: a reader of the pages does not go back there to find another.
        waiting += [target for target in targets if target.suffix == ".md" and target.is_relative_to(DOCS)]
    assert {name(page) for page in DOCS.rglob("*.md")} - {name(page) for page in reached} == set()


def test_every_command_is_documented() -> None:
    """Those of ``python -m aten_ext``, where all documentation begins; and each has an example."""
    from aten_ext.__main__ import build_parser

    (choices,) = (action.choices for action in build_parser()._actions if action.choices)
    text = INDEX.read_text() + (ROOT / "README.md").read_text()
    for command, parser in dict(choices).items():
        assert f"python -m aten_ext {command}" in text or f"aten_ext.{command}" in text, command
        assert f"python -m aten_ext {command}" in (parser.epilog or ""), f"{command} --help has no example"
