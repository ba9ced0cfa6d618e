"""The page of benchmarks: the published one is up to date, and one can be made from nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aten_ext.__main__ import main
from aten_ext._cli import CommandError
from aten_ext.bench import index
from commands.bench.runs import BENCHMARKS, cost, made_up, write


def test_the_page_is_up_to_date() -> None:
    """As ``python -m aten_ext bench --index docs/benchmarks`` makes it."""
    assert (BENCHMARKS / "index.md").read_text() == index.render(BENCHMARKS)


def test_its_plots_are_up_to_date() -> None:
    wanted = set()
    for path, of in index._documents(BENCHMARKS):
        for file in index.plot_files(path, of):
            wanted.add(file)
            assert index.is_current(BENCHMARKS / file, of), f"{file}: make the page again"
    assert {f"plots/{path.name}" for path in (BENCHMARKS / "plots").iterdir()} == wanted


def test_a_page_from_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    write(tmp_path / "run.json", made_up({"1x10": 2.0}))
    write(tmp_path / "entry.json", cost(5.0))
    (tmp_path / "notes.md").write_text("# Notes\n\nOf all.\n\n## run.json\n\nOf the run.\n")
    assert main(["bench", "--index", str(tmp_path)]) == 0
    assert "index.md" in capsys.readouterr().out
    page = (tmp_path / "index.md").read_text()
    assert page.index("Of all.") < page.index("## entry") < page.index("## run") < page.index("Of the run.")
    assert "read-modify-write 50 GB/s" in page and "commit 0123456789ab with changes" in page
    assert "| adamw 1x10 float32 | fused | 0.00028 | 2,000 ± 0% | 1,000 ± 0% | 2.00 |" in page
    assert "| disabled | disabled | 1,000 ± 0% | 1,005 ± 0% | +5.0 | 20 |" in page
    for link in re.findall(r"\]\(([^)#]+)\)", page):
        assert (tmp_path / link).exists()
    # Again: nothing to do. With another number: the page and the pictures.
    assert main(["bench", "--index", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    write(tmp_path / "run.json", made_up({"1x10": 3.0}))
    assert main(["bench", "--index", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_a_note_about_nothing(tmp_path: Path) -> None:
    write(tmp_path / "run.json", made_up({"1x10": 2.0}))
    (tmp_path / "notes.md").write_text("## gone.json\n\nWords.\n")
    with pytest.raises(CommandError, match=r"a note about gone\.json, which is not there"):
        index.render(tmp_path)


def test_a_skipped_case_has_its_row(tmp_path: Path) -> None:
    of = made_up({"1x10": 2.0, "4000x64": 1.0})
    of["cases"][1] |= {"skipped": "needs 9 GB", "route": None}
    write(tmp_path / "run.json", of)
    assert "| adamw 4000x64 float32 | skipped: needs 9 GB |" in index.render(tmp_path)
