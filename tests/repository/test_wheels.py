"""scripts/wheels: what it would build, its names, what it keeps and its mistakes; scripts/kernel_sizes.

A real wheel is built, installed and tried by .ci/run.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paths import ROOT, SCRIPTS

SCRIPT = SCRIPTS / "wheels"


def load(path: Path) -> ModuleType:
    """A script as a module."""
    loader = importlib.machinery.SourceFileLoader(f"aten_ext_{path.name}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load(SCRIPT)


@pytest.fixture
def builder(script: ModuleType, tmp_path: Path) -> Any:
    return script.Builder(tmp_path, sys.executable, "9.0a", {})


def command(
    *arguments: str | Path, script: Path = SCRIPT, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    ("torch", "cuda", "tag"),
    [
        ("2.13.0+cpu", None, "pt213cpu"),
        ("2.11.0", "13.0", "pt211cu130"),
        ("2.14.1+cu126", "12.6", "pt214cu126"),
        ("2.13", "", "pt213cpu"),
        ("2.15.0a0+git1", "12.8", "pt215cu128"),
    ],
)
def test_tags(script: ModuleType, torch: str, cuda: str | None, tag: str) -> None:
    assert script.wheel_tag(torch, cuda) == tag


def test_setuptools_puts_the_tag_into_the_version(tmp_path: Path) -> None:
    """As compile() asks for it: the local version, by which pip tells the wheels apart."""
    pytest.importorskip("setuptools", minversion="77")
    (tmp_path / "tag.cfg").write_text("[egg_info]\ntag_build = +pt213cpu\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "some"\nversion = "0.1.0"\n')
    subprocess.run(
        [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "egg_info"],
        cwd=tmp_path,
        env=os.environ | {"DIST_EXTRA_CONFIG": str(tmp_path / "tag.cfg")},
        check=True,
        capture_output=True,
    )
    (info,) = tmp_path.glob("*.egg-info/PKG-INFO")
    assert "\nVersion: 0.1.0+pt213cpu\n" in info.read_text()


def pretend_pip(tmp_path: Path, versions: list[str]) -> str:
    """An interpreter whose pip finds only these releases of torch, the first that fits."""
    python = tmp_path / "python"
    python.write_text(
        f"""#!{sys.executable}
import json, subprocess, sys
from packaging.requirements import Requirement
if "pip" not in sys.argv:
    sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
wanted = Requirement(sys.argv[-1])
found = [v for v in {versions!r} if wanted.specifier.contains(v)]
if not found:
    sys.exit(f"WARNING: slow disk\\nERROR: No matching distribution found for {{wanted}}")
print("WARNING: some warning")
print(json.dumps({{"install": [{{"metadata": {{"version": found[0]}}}}]}}, indent=1))
print("more")
"""
    )
    python.chmod(0o755)
    return str(python)


def test_what_would_be_built(tmp_path: Path) -> None:
    """One wheel a minor version and kind; what pip does not find is named; no CPU release as one of CUDA."""
    pytest.importorskip("packaging")
    python = pretend_pip(tmp_path, ["2.14.1", "2.13.0+cpu", "2.13.0", "2.12.0+cpu", "2.11.0"])
    versions = ["2.11", "2.12", "2.13", "2.15", "newest"]
    done = command("--list", "--out", tmp_path / "out", "--python", python, "--versions", *versions)
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["pt211cpu", "torch", "2.11.0", "to", "build"],
        ["pt212cpu", "torch", "2.12.0+cpu", "to", "build"],
        ["pt213cpu", "torch", "2.13.0+cpu", "to", "build"],
        ["pt214cpu", "torch", "2.14.1", "to", "build"],
        ["pt211cuda", "torch", "2.11.0", "to", "build"],
        ["pt213cuda", "torch", "2.13.0", "to", "build"],
        ["pt214cuda", "torch", "2.14.1", "to", "build"],
    ]
    missing = "No matching distribution found for torch"
    skipped = done.stderr.splitlines()
    assert skipped[0] == f"wheels: torch 2.15, cpu: skipped: pip finds no torch==2.15.*: {missing}==2.15.*"
    assert skipped[1].startswith("wheels: torch 2.12, cuda: skipped: pip finds no torch==2.12.*,!=2.12.0+cpu")
    assert skipped[2].startswith("wheels: torch 2.15, cuda: skipped: ") and len(skipped) == 3


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (["pt213cpu"], ["pt213cpu"]),
        (["pt211*"], ["pt211cpu", "pt211cuda"]),
        (["pt211cu130"], ["pt211cuda"]),
        (["*cpu", "pt213cuda"], ["pt211cpu", "pt213cpu", "pt213cuda"]),
    ],
)
def test_only(tmp_path: Path, only: list[str], names: list[str]) -> None:
    pytest.importorskip("packaging")
    python = pretend_pip(tmp_path, ["2.13.0+cpu", "2.13.0", "2.11.0"])
    done = command(
        "--list", "--out", tmp_path / "out", "--python", python, "--versions", "2.11", "2.13", "--only", *only
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == names
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "complaint", "code"),
    [
        (["--versions", "2.9"], "expected torch 2.11 or newer, got 2.9", 2),
        (["--versions", "latest"], "expected versions like 2.13 or 2.13.0, or newest, got 'latest'", 2),
        (["--index", "rocm=x"], "--index: expected cpu=ADDRESS or cuda=ADDRESS, got 'rocm=x'", 2),
        (["--index", "cpu"], "--index: expected cpu=ADDRESS or cuda=ADDRESS, got 'cpu'", 2),
        (["--only", "pt299cpu"], "nothing to build: pip finds no torch for pt299cpu", 1),
        (["--python", "/no/python"], "--python: [Errno 2] No such file or directory: '/no/python'", 2),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], complaint: str, code: int) -> None:
    done = command("--list", *arguments)
    # Where pip has no index it finds no newest torch, which is said and no mistake.
    said = [line for line in done.stderr.splitlines() if not line.startswith("wheels: torch newest, ")]
    assert (said, done.stdout, done.returncode) == ([f"wheels: {complaint}"], "", code)


def test_a_finished_wheel_is_kept_and_a_stale_one_is_not(script: ModuleType, builder: Any) -> None:
    """Sources, torch, architectures, interpreter and the file itself have to be those of its record."""
    target = script.Target("2.11", "cuda", "2.11.0")
    assert builder.finished(target, "sources") is None
    wheel = builder.out / "aten_ext-0.1.0+pt211cu130-cp311-cp311-manylinux_2_28_x86_64.whl"
    wheel.write_bytes(b"wheel")
    record = {
        **builder.identity(target, "sources"),
        "wheel": wheel.name,
        "sha256": hashlib.sha256(b"wheel").hexdigest(),
    }
    builder.record(target).parent.mkdir()
    builder.record(target).write_text(json.dumps(record))
    assert builder.finished(target, "sources") == wheel.name
    assert builder.finished(target, "other sources") is None
    assert builder.finished(script.Target("2.11", "cuda", "2.11.1"), "sources") is None
    assert script.Builder(builder.out, sys.executable, "all", {}).finished(target, "sources") is None
    wheel.write_bytes(b"half of it")
    assert builder.finished(target, "sources") is None
    builder.record(target).write_text('{"wheel": ')  # interrupted
    assert builder.finished(target, "sources") is None


def test_a_half_done_wheel_starts_over(
    script: ModuleType, builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an interrupted run left is gone before the next one begins; a failure leaves its logs."""
    target = script.Target("2.13", "cpu", "2.13.0")
    left = builder.out / "work" / target.name / "raw" / "old.whl"
    left.parent.mkdir(parents=True)
    left.touch()

    def fail(target: Any, place: Path) -> str:
        assert place.is_dir() and not list(place.iterdir())
        (place / "env.log").write_text("no disk")
        raise script.Failure("no environment")

    monkeypatch.setattr(builder, "make_environment", fail)
    with pytest.raises(script.Failure, match="no environment"):
        builder.build(target, "sources", [])
    assert not left.exists() and (builder.out / "work" / target.name / "env.log").exists()
    assert not builder.record(target).exists()


def test_another_cuda_than_the_one_asked_for(
    script: ModuleType, builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = script.Target("2.11", "cuda", "2.11.0")
    monkeypatch.setattr(builder, "make_environment", lambda *_: "pt211cu128")
    with pytest.raises(
        script.Failure, match=r"expected pt211cu130, but pip's torch 2\.11\.0 makes pt211cu128"
    ):
        builder.build(target, "sources", ["pt211cu130"])


def test_fingerprint_is_of_what_a_wheel_is_made_from(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["setup.py", "aten_ext/a.cpp", "docs/a.md", "tests/a.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "listed_sources", lambda: names)
    before = script.fingerprint()
    for name in names:
        (tmp_path / name).write_text("2")
        assert (script.fingerprint() == before) == name.startswith(("docs/", "tests/"))
        (tmp_path / name).write_text("1")


def test_libraries_of_torch_and_cuda_stay_outside(script: ModuleType) -> None:
    """Each library that setup.py links, and the pool of threads, is excluded from the wheel."""
    import fnmatch

    excluded = (*script.TORCHS_LIBRARIES, *script.CUDAS_LIBRARIES)
    for name in ("libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so"):
        assert any(fnmatch.fnmatch(name, pattern) for pattern in excluded)
    for name in ("libgomp.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.12"):
        assert any(fnmatch.fnmatch(name, pattern) for pattern in excluded)
    assert not any(fnmatch.fnmatch("libstdc++.so.6", pattern) for pattern in excluded)


# ---- scripts/kernel_sizes ---------------------------------------------------------------------------


def test_kernel_sizes_names_what_is_missing(tmp_path: Path) -> None:
    missing = tmp_path / "none.so"
    done = command(missing, script=SCRIPTS / "kernel_sizes")
    assert (done.returncode, done.stderr) == (
        2,
        f"kernel_sizes: expected a built library, found no {missing}\n",
    )


@pytest.mark.parametrize(
    ("demangled", "name"),
    [
        (
            "void aten_ext::cuda::(anonymous namespace)::cat_runs_kernel<4, Runs<int> >(Runs<int>)",
            "cat_runs_kernel",
        ),
        ("void aten_ext::cuda::rnn_fma_kernel<aten_ext::cuda::GruCell, float>(A)", "rnn_fma_kernel"),
        ("aten_ext::cuda::_GLOBAL__N__1_2::probe_kernel(int*)", "probe_kernel"),
    ],
)
def test_kernel_sizes_groups_by_template(demangled: str, name: str) -> None:
    assert load(SCRIPTS / "kernel_sizes").template(demangled) == name


def test_the_page_of_sizes_adds_up() -> None:
    """Its rows are all kernels of the build: their code and number make the last line."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "kernels" / "sizes.md").read_text().splitlines()
        if line.startswith(("| sm_", "| all"))
    ]
    *kernels, total = rows
    assert len(kernels) > 30
    assert sum(int(row[2]) for row in kernels) == int(total[2])
    assert abs(sum(int(row[3]) for row in kernels) - int(total[3])) <= len(kernels)
