"""What setup.py decides: with or without CUDA, for which architectures, and in which words it says so."""

from __future__ import annotations

import os
import runpy
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import aten_headers
from paths import ROOT

pytest.importorskip("yaml")
pytest.importorskip("pybind11")


@pytest.fixture
def setup_module(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions of setup.py, without building anything."""
    monkeypatch.setattr("setuptools.setup", lambda **kwargs: None)
    for name in ("ATEN_EXT_BUILD_CUDA", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ATEN_EXT_BUILD_CUDA", "0")
    module = runpy.run_path(str(ROOT / "setup.py"))
    monkeypatch.delenv("ATEN_EXT_BUILD_CUDA")
    return module


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toolkit whose nvcc answers questions, and is reached through a wrapper elsewhere."""
    home = tmp_path / "cuda-12.4"
    script(
        home / "bin" / "nvcc",
        f"""case $1 in
        --version) echo 'Cuda compilation tools, release 12.4, V12.4.99' ;;
        --list-gpu-arch) printf 'compute_%s\\n' 52 70 75 80 86 87 89 90 100 103 120 ;;
        --dryrun) echo '#$ TOP={home}/bin/..' >&2 ;;
        esac""",
    )
    script(tmp_path / "bin" / "nvcc", f'exec {home}/bin/nvcc "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return home


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_toolkit_behind_a_wrapper(setup_module: dict[str, Any], toolkit: Path) -> None:
    assert setup_module["find_toolkit"]() == toolkit


def test_all_architectures(
    setup_module: dict[str, Any], toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sm_75 and newer, one of each major version and 8.6 and 8.9, 9.0a, and PTX of the newest."""
    # One list where no GPU is seen, and where a wheel is made beside one.
    for wanted in ("", "all"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda wanted=wanted: wanted == "all")
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wanted)
        assert_all_architectures(setup_module["arch_flags"](toolkit))


def assert_all_architectures(flags: list[str]) -> None:
    assert [flag.rpartition("code=")[2] for flag in flags] == [
        "sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120", "compute_120",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ([(9, 0)], ["sm_90a"]),
        ([(8, 9), (8, 0), (8, 9)], ["sm_80", "sm_89"]),
        ([(8, 7)], ["sm_87"]),
        # The toolkit does not know it: PTX of the newest is what will run there.
        ([(9, 0), (13, 0)], None),
    ],
)
def test_architectures_of_the_gpus_here(
    setup_module: dict[str, Any],
    toolkit: Path,
    monkeypatch: pytest.MonkeyPatch,
    here: list[tuple[int, int]],
    expected: list[str] | None,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(here))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: here[device])
    flags = setup_module["arch_flags"](toolkit)
    if expected is None:
        assert_all_architectures(flags)
    else:
        assert [flag.rpartition("code=")[2] for flag in flags] == expected


def test_architectures_of_the_environment(
    setup_module: dict[str, Any], toolkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's BuildExtension reads the variable itself when no -gencode flag is given."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0")
    assert setup_module["arch_flags"](toolkit) == []


def decide(setup_module: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    result = setup_module["decide_cuda"]()
    return result, capsys.readouterr().err


def test_other_major_version(
    setup_module: dict[str, Any],
    toolkit: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    result, printed = decide(setup_module, capsys)
    assert result is None
    assert printed.startswith("aten_ext: building the CPU kernels only: nvcc in ")
    assert "is of CUDA 12, torch" in printed and printed.count("\n") == 1
    monkeypatch.setenv("ATEN_EXT_BUILD_CUDA", "1")
    with pytest.raises(
        SystemExit, match=r"ATEN_EXT_BUILD_CUDA=1, but nvcc in .* is of CUDA 12, .* of CUDA 13\.0"
    ):
        decide(setup_module, capsys)


def test_same_major_version(
    setup_module: dict[str, Any],
    toolkit: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert decide(setup_module, capsys) == (toolkit, "")


def test_no_nvcc(
    setup_module: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")
    result, printed = decide(setup_module, capsys)
    assert result is None and "no nvcc found" in printed and printed.count("\n") == 1


@pytest.mark.skipif(torch.version.cuda is not None, reason="about a torch without CUDA")
@pytest.mark.parametrize(
    ("value", "code", "expected"),
    [
        ("1", 1, "ATEN_EXT_BUILD_CUDA=1, but torch {torch} is a build without CUDA"),
        ("maybe", 1, "ATEN_EXT_BUILD_CUDA: expected 0 or 1, got 'maybe'"),
        ("", 0, "building the CPU kernels only: torch {torch} is a build without CUDA"),
    ],
)
def test_one_line_from_the_command(value: str, code: int, expected: str) -> None:
    run = subprocess.run(
        [sys.executable, "setup.py", "--version"],
        cwd=ROOT,
        env=os.environ | {"ATEN_EXT_BUILD_CUDA": value},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in run.stderr.splitlines() if line.startswith("aten_ext: ")]
    assert (run.returncode, lines) == (code, [f"aten_ext: {expected.format(torch=torch.__version__)}"])
    assert "Traceback" not in run.stderr


def test_machine_code_is_compressed(setup_module: dict[str, Any], toolkit: Path, tmp_path: Path) -> None:
    """As far as every driver of that CUDA can read it; nvcc by itself leaves it as it is."""
    script(tmp_path / "cuda-13" / "bin" / "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    assert setup_module["compression"](tmp_path / "cuda-13") == ["--compress-mode=size"]
    assert setup_module["compression"](toolkit) == ["-Xfatbin", "-compress-all"]


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("CXXFLAGS", "", ["-g0"]),
        ("CXXFLAGS", "-O1 -fsanitize=address", ["-g0"]),
        ("CXXFLAGS", "-O1 -g1", []),
        ("CFLAGS", "-ggdb", []),
    ],
)
def test_debug_information_where_it_is_asked_for(
    setup_module: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    expected: list[str],
) -> None:
    for name in ("CFLAGS", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    assert setup_module["debug_info"]() == expected


WRITES_NUMBERS = """#include <sstream>
#include <string>
extern "C" int written() {
  std::ostringstream text;
  text << "a" << 7L << " " << 0.25;
  return text.str() == "a7 0.25";
}
"""


def test_a_compiler_that_links_its_library_statically(setup_module: dict[str, Any], tmp_path: Path) -> None:
    """Numbers are written all the same. Some images of GPU machines build this way."""
    source, library = tmp_path / "writes.cpp", tmp_path / "writes.so"
    source.write_text(WRITES_NUMBERS)
    static = ["-static-libstdc++", "-Wl,-Bsymbolic", setup_module["OWN_LIBSTDCXX"]]
    compiler = os.environ.get("CXX", "c++").split()
    made = subprocess.run(
        [*compiler, "-shared", "-fPIC", "-O2", str(source), *static, "-o", str(library)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"this compiler has no static libstdc++: {made.stderr.strip().splitlines()[-1]}")
    ask = f"import ctypes, torch; print(ctypes.CDLL({str(library)!r}).written())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def test_no_library_shows_a_libstdcxx_of_its_own(setup_module: dict[str, Any]) -> None:
    assert [setup_module["OWN_LIBSTDCXX"]] == aten_headers.LINK
    for extension in setup_module["extensions"]():
        assert setup_module["OWN_LIBSTDCXX"] in extension.extra_link_args, extension.name
