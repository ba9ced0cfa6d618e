"""The JSON document of a benchmark run: what it holds, and that those published stay readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from aten_ext.__main__ import main
from aten_ext._cli import CommandError
from aten_ext.bench import document, registry
from commands.bench.runs import BENCHMARKS, cost, made_up


def test_a_document_has_sizes_and_shares() -> None:
    (case,) = made_up({"14x1.25M": 2.0})["cases"]
    assert case["sizes"] == {"elements": 17_500_000, "tensors": 14}
    assert case["bytes"] == 490_000_000 and case["flops"] == 0
    assert case["upstream"]["of_ceiling"] == pytest.approx(4.9) and case["ours"][
        "of_ceiling"
    ] == pytest.approx(9.8)
    assert cost(5)["cases"][0]["ours"]["of_ceiling"] is None


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.json")), ids=lambda path: path.name)
def test_published_documents_stay_readable(path: Path) -> None:
    if path.name.startswith("demo"):
        with pytest.raises(CommandError, match="is not a document of"):
            document.read(path)
        return
    of = document.read(path)
    assert of["schema"] == document.SCHEMA
    for case in of["cases"]:
        assert case["op"] != "fused_adam" or case["sizes"]["elements"] >= case["sizes"]["tensors"] > 0
        assert "of_ceiling" in case["ours"]
    for_developers = any(op in registry.FOR_DEVELOPERS for op in of["settings"]["ops"])
    program = "scripts/bench" if for_developers else "python -m aten_ext bench"
    assert document.command(of).startswith(f"{program} ")


def test_the_command_is_told_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed again, it asks for the same settings."""
    of = made_up({"1x10": 1.0})
    of["settings"] |= {
        "dtype": ["float32"],
        "filter": "adamw 1",
        "full": True,
        "one_set": True,
        "never_slower": 0.9,
    }
    text = document.command(of)
    assert text == (
        'python -m aten_ext bench fused_adam --device cpu --dtype float32 --filter "adamw 1" --full --one-set'
        " --seconds 1.5 --never-slower 0.9"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read"),
        ("{", "is not JSON"),
        ("[]", "is not a document"),
        ('{"cases": [], "schema": 99}', "has schema 99; this version reads 1 and 2"),
    ],
)
def test_files_that_are_something_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "old.json"
    if content is not None:
        path.write_text(content)
    assert main(["bench", "--compare", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
