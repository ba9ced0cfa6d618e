"""What the wheel holds: the package, and nothing that only its developers run."""

from __future__ import annotations

from pathlib import Path

import pytest

from paths import ROOT, SCRIPTS


@pytest.fixture(scope="module")
def modules() -> set[str]:
    """The Python modules of the wheel, as setuptools finds them with pyproject.toml."""
    setuptools = pytest.importorskip("setuptools", minversion="77")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        distribution = setuptools.Distribution({"script_name": "setup.py"})
        distribution.parse_config_files(["pyproject.toml"])
        distribution.set_defaults()
        build = distribution.get_command_obj("build_py")
        build.ensure_finalized()
        return {f"{package}.{module}".lstrip(".") for package, module, _ in build.find_all_modules()}


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.rglob("*.py") if path.stem != "__init__"}


def test_it_holds_the_package(modules: set[str]) -> None:
    found = {
        str(path.relative_to(ROOT / "python").with_suffix("")).replace("/", ".")
        for path in (ROOT / "python").rglob("*.py")
    }
    assert modules == found and "aten_ext.bench.registry" in modules


def test_it_holds_nothing_for_developers(modules: set[str]) -> None:
    apart = names(SCRIPTS / "lib" / "developer_bench")
    assert {"optimizer_peers", "linear_peers", "models", "zoo", "tacotron"} <= apart
    assert {name.rpartition(".")[2] for name in modules} & apart == set()
    assert {name.partition(".")[0] for name in modules} == {"aten_ext", "aten_ext_autoload"}
