"""python -m aten_ext doctor: what it says of a good installation, and of every way to spoil one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import aten_ext
import processes
from aten_ext import _load
from aten_ext.__main__ import main
from aten_ext._registry import Override
from aten_ext.doctor import command, debugger, hardware, installation
from aten_ext.doctor.finding import LEVELS, Finding
from paths import ROOT


def only(findings: Any) -> Finding:
    (finding,) = findings
    assert isinstance(finding, Finding) and finding.level in LEVELS
    assert finding.advice or finding.level in ("ok", "note"), "what to do is said"
    return finding


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_driver_version", lambda: None)


@pytest.fixture
def a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_driver_version", lambda: "580.1")


# The command


def test_a_line_for_each_finding_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for found, code, verdict in (
        ([Finding("a", "ok", "fine"), Finding("b", "note", "so", "look")], 0, "all is well"),
        ([Finding("a", "ok", "fine"), Finding("b", "warning", "gone", "get it")], 1, "1 warning"),
        ([Finding("a", "problem", "x", "y"), Finding("b", "problem", "x", "y")], 1, "2 problems"),
    ):
        monkeypatch.setattr(command, "CHECKS", (lambda found=found: iter(found),))
        assert main(["doctor"]) == code
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1] == verdict
        assert [line.split()[0] for line in lines[:-1] if not line.startswith(" ")] == [
            f.level for f in found
        ]
        advice = [line.strip() for line in lines if line.startswith(" ")]
        assert advice == [f"-> {f.advice}" for f in found if f.advice]
        assert main(["doctor", "--json"]) == code
        document = json.loads(capsys.readouterr().out)
        assert document["well"] == (code == 0)
        assert [Finding(**finding) for finding in document["findings"]] == found


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise KeyError("oh")
        yield

    monkeypatch.setattr(command, "CHECKS", (broken,))
    finding = only(command.examine())
    assert (finding.check, finding.level) == ("broken", "problem") and "KeyError: 'oh'" in finding.text


def test_all_checks_run_here(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever this machine has: every override has its line, nothing breaks, the code fits the levels."""
    code = main(["doctor", "--json"])
    findings = [Finding(**finding) for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert code == int(any(finding.level in ("warning", "problem") for finding in findings))
    levels = {finding.check: finding.level for finding in findings}
    for override in aten_ext.overrides():
        assert levels[override.name] == ("ok" if override.keys else "note")
    assert {"torch", "build", "kernels", "GPU", "CUDA toolkit", "compiler", "gdb"} <= set(levels)
    assert (levels["torch"], levels["build"], levels["kernels"]) == ("ok", "ok", "ok")
    assert not any("the check itself failed" in finding.text for finding in findings)


# An installation that does not load


@pytest.fixture
def package_copy(tmp_path: Path) -> Path:
    """The package on its own, so that its files can be spoilt."""
    package = tmp_path / "site" / "aten_ext"
    shutil.copytree(Path(_load.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def doctor(
    package: Path, *arguments: str, hide: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command from a copy of the package; ``hide`` is a module that cannot be imported."""
    site = package.parent
    if hide:
        (site / f"{hide}.py").write_text(f"raise ImportError('no {hide} here')\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATEN_EXT")}
    environment |= {"PYTHONPATH": str(site)} | variables
    if hide == "torch":  # the server of processes has it
        command = [sys.executable, "-m", "aten_ext", *arguments]
        return subprocess.run(command, env=environment, cwd=site, capture_output=True, text=True, timeout=120)
    return processes.python("-m", "aten_ext", *arguments, env=environment, cwd=site)


@pytest.mark.parametrize("spoil", ["no kernels", "no bindings", "corrupt kernels", "no torch", "variable"])
def test_it_works_when_the_kernels_do_not_load(package_copy: Path, spoil: str) -> None:
    hide, variables, expected = "", {}, ""
    if spoil == "variable":
        variables, expected = {"ATEN_EXT": "yes"}, "ATEN_EXT: expected 0 or 1, got 'yes'"
    elif spoil == "no torch":
        hide, expected = "torch", "torch cannot be imported (no torch here)"
    else:
        path = next(package_copy.glob("_C.*so" if spoil == "no bindings" else "_kernels.*so"))
        path.unlink()
        expected = "_C is missing" if spoil == "no bindings" else f"cannot load {path.name}"
        if spoil == "corrupt kernels":
            path.write_bytes(b"not a library")
    done = doctor(package_copy, "doctor", "--json", hide=hide, **variables)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["kernels"]["level"] == "problem" and expected in findings["kernels"]["text"]
    assert findings["kernels"]["advice"]
    assert findings["overrides"]["level"] == "problem"
    assert findings["torch"]["level"] == ("problem" if hide else "ok")


def test_other_commands_end_with_one_line_that_names_the_doctor(package_copy: Path) -> None:
    next(package_copy.glob("_kernels.*so")).unlink()
    done = doctor(package_copy, "status")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "cannot load _kernels" in line and "python -m aten_ext doctor" in line


def test_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError) as caught:
        _load.check_versions("2.11", "2.12.0")
    monkeypatch.setattr(_load, "failure", caught.value)
    *_, finding = installation.build()
    assert finding.level == "problem" and finding.text == "built for torch 2.11, running under torch 2.12.0"
    assert "pip install" in finding.advice


# Overrides and variables


def test_an_override_that_is_off_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    aten_ext.disable("_fused_adam_")

    def text() -> str:
        return next(finding.text for finding in installation.overrides() if finding.check == "_fused_adam_")

    assert "off at CPU" in text() and "turned off by the program" in text()
    monkeypatch.setenv("ATEN_EXT_DISABLE", "x, _fused_adam_*")
    assert "ATEN_EXT_DISABLE" in text()
    monkeypatch.delenv("ATEN_EXT_DISABLE")
    monkeypatch.setenv("ATEN_EXT_ONLY", "_fused_adamw_")
    assert "not in ATEN_EXT_ONLY" in text()


def test_an_override_that_waits_for_its_measurement_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """At one key of two: the other one is on."""
    waiting = Override("cat", ("CPU", "CUDA"), ("CPU",), ("CUDA",), "joins")
    monkeypatch.setattr("aten_ext._registry.overrides", lambda: [waiting])
    monkeypatch.setattr("aten_ext._C.rows", lambda: [("cat", key, "joins", True) for key in waiting.keys])
    monkeypatch.setattr(installation, "_is_ours", lambda name, key: True)
    first, *_ = installation.overrides()
    assert first.level == "note"
    assert first.text == "on at CPU; off at CUDA: not measured yet; ATEN_EXT_ENABLE=cat turns it on"


def test_nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aten_ext._registry.is_active", lambda: False)
    finding = only(installation.overrides())
    assert finding.level == "warning" and "ATEN_EXT=0" in finding.text


def test_a_kernel_that_somebody_else_has_replaced() -> None:
    """In a process of its own: torch never forgets a replaced kernel's warning."""
    code = """
import torch, aten_ext
from aten_ext.doctor import installation
library = torch.library.Library("aten", "IMPL")
library.impl("_fused_adam_", lambda *args, **kwargs: None, "CPU")
print([f"{f.check} {f.level}" for f in installation.overrides()])
"""
    done = processes.python("-c", code)
    assert "'_fused_adam_ problem'" in done.stdout and "'_fused_adamw_ ok'" in done.stdout


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ATEN_EXT")]:
        monkeypatch.delenv(name)
    assert list(installation.environment()) == []
    monkeypatch.setenv("ATEN_EXT_AUTOLOAD", "1")
    assert only(installation.environment()).level == "ok"
    monkeypatch.delenv("ATEN_EXT_AUTOLOAD")
    monkeypatch.setenv("ATEN_EXT_DISABEL", "x")
    finding = only(installation.environment())
    assert finding.level == "warning" and finding.advice == "did you mean ATEN_EXT_DISABLE?"


def test_every_variable_that_is_read_is_known() -> None:
    pattern = re.compile(r"(?:getenv\(|environ(?:\.get\(|\[)|environ, )\s*\"(ATEN_EXT\w*)\"")
    files = [ROOT / "setup.py", *(ROOT / "python").rglob("*.py"), *(ROOT / "aten_ext").rglob("*.cpp")]
    read = {name for file in files for name in pattern.findall(file.read_text())}
    assert {"ATEN_EXT_BUILD_CUDA", "ATEN_EXT_AUTOLOAD"} <= read <= set(installation.VARIABLES)


# GPUs, toolkit, compiler


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ((8, 6), "sm_80", True),
        ((8, 0), "sm_86", False),
        ((9, 0), "sm_80", False),
        ((9, 0), "sm_80 compute_80", True),
        ((9, 0), "sm_90a", True),
        ((9, 1), "sm_90a", False),
        ((10, 3), "sm_100f", True),
        ((12, 0), "sm_75 sm_90a sm_120 compute_120", True),
        ((12, 1), "sm_75 sm_90a sm_120 compute_120", True),
        ((7, 0), "sm_75 compute_120", False),
        ((9, 0), "compute_90a", True),
        ((10, 0), "compute_90a", False),
        ((9, 0), "default", None),
    ],
)
def test_what_runs_where(capability: tuple[int, int], architectures: str, expected: bool | None) -> None:
    assert hardware.runs_on(capability, architectures) is expected


def gpu_machine(monkeypatch: pytest.MonkeyPatch, cuda: str | None, available: bool, **built: str) -> None:
    def init() -> None:
        raise RuntimeError("the driver is too old\nand more")

    device = SimpleNamespace(
        is_available=lambda: available,
        device_count=lambda: 1,
        get_device_capability=lambda index: (9, 0),
        get_device_name=lambda index: "GPU X",
        init=init,
    )
    double = SimpleNamespace(version=SimpleNamespace(cuda=cuda), cuda=device)
    monkeypatch.setattr(hardware, "torch_or_none", lambda: double)
    monkeypatch.setattr(hardware, "kernels_or_none", lambda: SimpleNamespace(**built))


@pytest.mark.parametrize(
    ("cuda", "available", "driver", "built", "level", "text"),
    [
        (None, False, None, {}, "note", "none"),
        (None, False, "580", {}, "warning", "torch is built for the CPU"),
        ("13.0", False, None, {}, "note", "none, though"),
        ("13.0", False, "580", {}, "problem", "the driver is too old"),
        ("13.0", True, "580", {"built_for_cuda": ""}, "problem", "without its CUDA kernels"),
        ("13.0", True, "580", {"built_for_cuda": "13.0", "cuda_arch_list": "sm_90a"}, "ok", "GPU X"),
        ("13.0", True, "580", {"built_for_cuda": "13.0", "cuda_arch_list": "sm_80"}, "problem", "sm_80"),
        (
            "13.0",
            True,
            "580",
            {"built_for_cuda": "13.0", "cuda_arch_list": "?"},
            "note",
            "cannot be compared",
        ),
    ],
)
def test_gpus(
    monkeypatch: pytest.MonkeyPatch,
    cuda: str | None,
    available: bool,
    driver: str | None,
    built: dict[str, str],
    level: str,
    text: str,
) -> None:
    gpu_machine(monkeypatch, cuda, available, **built)
    monkeypatch.setattr(hardware, "_driver_version", lambda: driver)
    finding = only(hardware.gpus())
    assert finding.level == level and text in finding.text


@pytest.mark.parametrize(
    ("nvcc", "cuda", "level"),
    [
        ("release 13.0", "13.0", "ok"),
        ("release 13.2", "13.0", "ok"),
        ("release 12.8", "13.0", "warning"),
        ("release 12.8", None, "ok"),
        (None, "13.0", "warning"),
        (None, None, "note"),
    ],
)
def test_toolkit(
    monkeypatch: pytest.MonkeyPatch, a_driver: None, nvcc: str | None, cuda: str | None, level: str
) -> None:
    gpu_machine(monkeypatch, cuda, available=True)
    monkeypatch.setattr(hardware, "_nvcc", lambda: "nvcc" if nvcc else None)
    monkeypatch.setattr(hardware, "output", lambda *command: nvcc)
    assert only(hardware.toolkit()).level == level


def test_no_toolkit_and_no_gpu(monkeypatch: pytest.MonkeyPatch, no_driver: None) -> None:
    gpu_machine(monkeypatch, "13.0", available=False)
    monkeypatch.setattr(hardware, "_nvcc", lambda: None)
    assert only(hardware.toolkit()).level == "note"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler --fast")
    finding = only(hardware.compiler())
    assert finding.level == "warning" and "no-such-compiler" in finding.text


# gdb and ptrace


@pytest.mark.parametrize(
    ("says", "scope", "expected"),
    [
        ("gdb 13.1\n[Inferior 1 exited normally]\n", "", ["gdb ok", "ptrace ok"]),
        ("gdb 13.1\n[Inferior 1 exited normally]\n", "1", ["gdb ok", "ptrace note"]),
        ("gdb 12.1\n[Inferior 1 exited normally]\n", "0", ["gdb warning", "ptrace ok"]),
        ("gdb 14\nwarning: ptrace: Operation not permitted\n", "2", ["gdb ok", "ptrace warning"]),
        ("Python scripting is not supported\n[Inferior 1 exited normally]", "", ["gdb warning", "ptrace ok"]),
        ("", "", ["gdb warning", "ptrace warning"]),
    ],
)
def test_gdb(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str, scope: str, expected: list[str]
) -> None:
    """A program in its place that says what gdb would."""
    fake = tmp_path / "gdb"
    fake.write_text(f"#!/bin/sh\ncat <<'END'\n{says}END\n")
    fake.chmod(0o755)
    yama = tmp_path / "scope"
    if scope:
        yama.write_text(f"{scope}\n")
    monkeypatch.setattr(debugger, "YAMA", yama)
    monkeypatch.setattr(debugger.shutil, "which", lambda name: str(fake) if name == "gdb" else "/bin/true")
    findings = list(debugger.gdb())
    assert [f"{finding.check} {finding.level}" for finding in findings] == expected
    assert all(finding.advice for finding in findings if finding.level == "warning")


def test_no_gdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debugger.shutil, "which", lambda name: None)
    finding = only(debugger.gdb())
    assert finding.level == "warning" and "apt install gdb" in finding.advice


def test_torch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(installation.torch()).level == "ok"
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    assert "older than 2.11" in only(installation.torch()).text
    monkeypatch.setitem(sys.modules, "torch", None)
    assert only(installation.torch()).level == "problem"
