"""``bench --index FOLDER``: one page made of all JSON documents in a folder, with their plots.

Numbers come from the documents alone. What a reader has to know besides stands in ``notes.md``: what is
before its first heading of a document goes to the top of the page, what follows "## NAME.json" to that one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aten_ext._cli import CommandError, prepare_folder, write_atomically
from aten_ext.bench import document, plot
from aten_ext.bench.document import Document

NOTES, INDEX, PLOTS = "notes.md", "index.md", "plots"
CLOCK_TITLES = {"gpu": "GPU", "eager": "eager", "wall": "wall"}


def write(folder: str | Path) -> list[Path]:
    """Write the page, and those of its plots that are missing or out of date; the files that changed.

    Raises:
        CommandError: the folder has no documents, or one that cannot be read, or matplotlib is missing.
    """
    root = Path(folder)
    pages = render(root)
    changed = []
    prepare_folder(root / PLOTS)
    for path, of in _documents(root):
        wanted = plot_files(path, of)
        if all(is_current(root / file, of) for file in wanted):
            continue
        for file, data in zip(wanted, plot.draw(of).values(), strict=True):
            write_atomically(root / file, data)
            changed.append(root / file)
    target = root / INDEX
    if not target.exists() or target.read_text() != pages:
        write_atomically(target, pages.encode())
        changed.append(target)
    return changed


def is_current(picture: Path, of: Document) -> bool:
    """Whether a plot is there and shows this very document."""
    return picture.exists() and plot.digest_of_png(picture.read_bytes()) == plot.digest(of)


def plot_files(path: Path, of: Document) -> list[str]:
    """The plots of the document at ``path``, relative to its folder."""
    return [f"{PLOTS}/{path.stem}--{name}" for name in plot.names(of)]


def render(folder: Path) -> str:
    """The page as text.

    Raises:
        CommandError: the folder has no documents, one cannot be read, or a note is about none of them.
    """
    benches, demos = _documents(folder), _demos(folder)
    if not benches and not demos:
        raise CommandError(f"there is no JSON document in {str(folder)!r}")
    general, notes = _notes(folder / NOTES)
    known = {path.name for path, _ in [*benches, *demos]}
    if unknown := sorted(set(notes) - known):
        raise CommandError(f"{NOTES} has a note about {', '.join(unknown)}, which is not there")
    parts = [
        "<!-- Made by: python -m aten_ext bench --index docs/benchmarks. Do not edit: edit notes.md. -->",
        "# Benchmarks",
        general,
        f"Numbers and plots are made from the documents, the words between them from [{NOTES}]({NOTES})."
        if general or notes
        else "",
        _overview(benches, demos),
    ]
    for path, of in benches:
        parts += [f"## {path.stem}", _origin(path, of), f"Command: `{document.command(of)}`"]
        parts += [_ceilings(of["ceilings"])] if of["ceilings"] else []
        parts += [notes.get(path.name, ""), *_tables(of)]
        parts += [f"![{_words(file)}]({file})" for file in plot_files(path, of)]
    for path, of in demos:
        parts += [f"## {path.stem}", _origin(path, of), _demo(of), notes.get(path.name, "")]
        picture = path.with_suffix(".png")
        parts += [f"![the demo's losses and times]({picture.name})"] if picture.exists() else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _documents(folder: Path) -> list[tuple[Path, Document]]:
    return [(path, document.read(path)) for path in _json_files(folder) if not _is_demo(path)]


def _demos(folder: Path) -> list[tuple[Path, Document]]:
    return [(path, json.loads(path.read_text())) for path in _json_files(folder) if _is_demo(path)]


def _json_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise CommandError(f"there is no folder {str(folder)!r}")
    return sorted(folder.glob("*.json"))


def _is_demo(path: Path) -> bool:
    """Whether ``python -m aten_ext demo`` wrote it: that has twins instead of cases."""
    try:
        content = json.loads(path.read_text())
    except ValueError:
        return False  # document.read() says what is wrong
    return isinstance(content, dict) and "twins" in content


def _notes(path: Path) -> tuple[str, dict[str, str]]:
    """What goes to the top, and what goes to each document."""
    if not path.exists():
        return "", {}
    pieces = re.split(r"^## (\S+\.json)$", path.read_text(), flags=re.MULTILINE)
    texts = [piece.strip() for piece in pieces]
    general = re.sub(r"\A# .*\n", "", texts[0]).strip()
    return general, dict(zip(texts[1::2], texts[2::2], strict=True))


def _overview(benches: Sequence[tuple[Path, Document]], demos: Sequence[tuple[Path, Document]]) -> str:
    rows = [
        [f"[{path.stem}](#{path.stem.lower()})", f"`{document.command(of)}`", _processor(of), _least(of)]
        for path, of in benches
    ]
    rows += [
        [
            f"[{path.stem}](#{path.stem.lower()})",
            "`python -m aten_ext demo`",
            _processor(of),
            f"{of['ratios']['step']:.2f}",
        ]
        for path, of in demos
    ]
    return _table(["document", "command", "measured on", "ratios"], rows, "lllr")


def _least(of: Document) -> str:
    """The range of the ratios, or of the costs."""
    cases = [case for case in of["cases"] if case["skipped"] is None and document.headline(case)]
    if costs := [case["difference_ns"] for case in cases if case["limit_ns"] is not None]:
        return f"{min(costs):+.1f} to {max(costs):+.1f} ns"
    ratios = [case["ratio"] for case in cases]
    return f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""


def _processor(of: Document) -> str:
    machine = of["machine"]
    cuda = str(of["settings"]["device"]).startswith("cuda")
    return str(machine["gpu"]) if cuda else f"{machine['cpu']}, {machine['cores']} cores"


def _origin(path: Path, of: Document) -> str:
    """Where, when and with what."""
    machine, versions = of["machine"], of["versions"]
    parts = [machine["gpu"], f"{machine['cpu']} ({machine['cores']} cores)", f"torch {versions['torch']}"]
    parts += [f"driver {versions['driver']}" if versions["driver"] else None]
    parts += [
        f"Python {versions['python']}",
        f"load {machine['load']:g}",
        of["date"],
        document.commit(of),
    ]
    return f"[{path.name}]({path.name}): " + ", ".join(str(part) for part in parts if part) + "."


def _ceilings(ceilings: Mapping[str, Any]) -> str:
    streams = [
        f"{name.replace('_', '-')} {rate['tb_per_s'] * 1e3:.4g} GB/s"
        for name, rate in ceilings["streams"].items()
    ]
    gemm = [f"{dtype} {rate['tflop_per_s']:.3g} TFLOP/s" for dtype, rate in ceilings["gemm"].items()]
    return (
        f"Ceilings of the same run: {', '.join(streams)} (buffers of {ceilings['buffer_bytes'] >> 20} MiB); "
        f"matrix product of {ceilings['gemm_size']} {', '.join(gemm)}."
    )


def _tables(of: Document) -> list[str]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for case in of["cases"]:
        groups.setdefault(case["op"], []).append(case)
    return [_costs(cases) if cases[0]["limit_ns"] is not None else _times(cases) for cases in groups.values()]


def _times(cases: Sequence[Mapping[str, Any]]) -> str:
    clocks = [clock for clock in CLOCK_TITLES if any(case["ratios"][clock] for case in cases)]
    compute = all(case["flops"] for case in cases)
    key, unit, scale = ("tflop_per_s", "TFLOP/s", 1.0) if compute else ("tb_per_s", "GB/s", 1e3)
    shares = any(case["ours"]["of_ceiling"] is not None for case in cases)
    titles = ["case", "route", "MB"] + (["GFLOP"] if compute else [])
    for clock in clocks:
        titles += [f"upstream {CLOCK_TITLES[clock]} µs", "aten_ext", "ratio"]
    titles += (
        [f"upstream {unit}", "aten_ext"] + (["upstream of ceiling", "aten_ext"] if shares else []) + ["sets"]
    )
    rows = []
    for case in cases:
        if case["skipped"]:
            rows.append([document.label(case), f"skipped: {case['skipped']}"] + [""] * (len(titles) - 2))
            continue
        row = [document.label(case), str(case["route"]), f"{case['bytes'] / 1e6:.4g}"]
        row += [f"{case['flops'] / 1e9:.4g}"] if compute else []
        for clock in clocks:
            for side in ("upstream", "ours"):
                row.append(_with_spread(case[side][f"{clock}_us"], case[side][f"{clock}_spread"]))
            row.append("" if case["ratios"][clock] is None else f"{case['ratios'][clock]:.2f}")
        row += [f"{case[side][key] * scale:.4g}" if case[side][key] else "" for side in ("upstream", "ours")]
        if shares:
            row += [_percent(case[side]["of_ceiling"]) for side in ("upstream", "ours")]
        rows.append([*row, f"{case['copies']}{'' if case['cache'] == 'exceeded' else ' *'}"])
    return _table(titles, rows, "ll" + "r" * (len(titles) - 2))


def _costs(cases: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for case in cases:
        if case["skipped"]:
            rows.append([case["name"], f"skipped: {case['skipped']}", "", "", "", ""])
            continue
        sides = [
            _with_spread(case[side]["wall_us"] * 1e3, case[side]["wall_spread"])
            for side in ("upstream", "ours")
        ]
        rows.append(
            [case["name"], case["route"], *sides, f"{case['difference_ns']:+.1f}", f"{case['limit_ns']:g}"]
        )
    return _table(["call", "route", "upstream ns", "aten_ext ns", "cost ns", "limit ns"], rows, "llrrrr")


def _demo(of: Document) -> str:
    twins, ratios = of["twins"], of["ratios"]
    rows = [
        [title, f"{twins['upstream'][key]:.4g}", f"{twins['aten_ext'][key]:.4g}", f"{ratios[ratio]:.2f}"]
        for title, key, ratio in (
            ("training step, ms", "step_ms", "step"),
            ("its optimizer step, ms", "optimizer_ms", "optimizer"),
            ("decoding a batch, ms", "decode_ms", "decode"),
        )
    ]
    rows.append(
        [
            "phoneme error rate",
            *(f"{twins[twin]['phoneme_error_rate']:.2%}" for twin in ("upstream", "aten_ext")),
            "",
        ]
    )
    rows.append(
        [
            "last training loss",
            *(f"{twins[twin]['train_losses'][-1]:.6g}" for twin in ("upstream", "aten_ext")),
            "",
        ]
    )
    settings = of["settings"]
    asked = ", ".join(
        f"{name} {settings[name]}" for name in ("words", "epochs", "batch_size", "hidden", "threads")
    )
    share = f"The optimizer is {of['optimizer_share']:.1%} of a step. Settings: {asked}."
    return _table(["", "upstream", "aten_ext", "ratio"], rows, "lrrr") + "\n\n" + share


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    rule = ["--:" if side == "r" else "---" for side in align]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, rule, *escaped])


def _with_spread(value: float | None, width: float | None) -> str:
    return (
        ""
        if value is None
        else f"{value:,.4g} ± {width or 0:.0%}"
        if value < 1e4
        else f"{value:,.0f} ± {width or 0:.0%}"
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _words(file: str) -> str:
    return Path(file).stem.replace("--", ", ").replace("-", " ")
