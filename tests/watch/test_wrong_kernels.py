"""Shadow mode on overrides that are wrong, made by the same generator; the examples of docs/numerics.md."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import aten_ext
import processes
from paths import DOCS, ROOT, SCRIPTS

WRONG = Path(__file__).with_name("wrong_kernels")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What shadow mode says about the kernels in wrong_kernels/, compiled here and run in another process."""
    pytest.importorskip("yaml")
    compiler = os.environ.get("CXX", "c++")
    folder = tmp_path_factory.mktemp("wrong")
    package = Path(aten_ext.__file__).parent
    sources = ROOT / "aten_ext"
    if not sources.is_dir():
        pytest.skip("needs the C++ sources")
    python = [sys.executable, str(SCRIPTS / "codegen.py"), "--cpu-only"]
    table = str(WRONG / "table.yaml")
    subprocess.run([*python, "--table", table, "--folder", str(folder)], check=True, timeout=300)
    # The operators behind aten_ext.explain would be defined twice.
    entries = folder / "entries.cpp"
    entries.write_text(entries.read_text().replace("FRAGMENT(aten_ext,", "FRAGMENT(aten_ext_wrong,"))
    torch_folder = Path(torch.__file__).parent
    include = torch_folder / "include"
    flags = ["-std=c++20", "-O0", "-fPIC", f"-I{folder}", f"-I{WRONG}", f"-I{sources}"]
    flags += ["-isystem", str(include)]
    flags += ["-isystem", str(include / "torch" / "csrc" / "api" / "include")]
    objects = []
    compilers = []
    for source in (entries, WRONG / "kernels.cpp"):
        objects.append(str(folder / f"{source.stem}.o"))
        try:
            compilers.append(subprocess.Popen([compiler, "-c", *flags, str(source), "-o", objects[-1]]))
        except FileNotFoundError:
            pytest.skip(f"needs a C++ compiler, {compiler} was not found")
    assert [process.wait(timeout=300) for process in compilers] == [0, 0]
    library = str(folder / "wrong.so")
    kernels = str(package / "_kernels.abi3.so")
    link = ["-Wl,-Bsymbolic", "-Wl,--no-undefined", kernels, f"-L{torch_folder / 'lib'}"]
    link += ["-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run([compiler, "-shared", *objects, "-o", library, *link], check=True, timeout=300)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ATEN_EXT")}
    run = processes.python(WRONG / "calls.py", library, env=clean)
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def row(found: dict[str, Any], case: str) -> dict[str, Any]:
    (only,) = found[case]["rows"]
    assert found[case]["ran"] == {only["override"]: only["compared"] + only["captured"] + only["failed"]}
    return dict(only)


def test_a_result_that_is_off_by_some_ulp(found: dict[str, Any]) -> None:
    sigmoid = row(found, "sigmoid")
    assert (sigmoid["compared"], sigmoid["differing"], sigmoid["different"]) == (1, 1, 1)
    assert (sigmoid["max_ulp"], sigmoid["worst"], sigmoid["elements"]) == (3, "result", 12)
    value = found["sigmoid truth"][0][0][1]
    ulp = float(np.spacing(np.float32(value)))
    assert sigmoid["max_absolute"] == 3 * ulp
    assert sigmoid["max_relative"] == 3 * ulp / value
    assert sigmoid["signature"] == "self=float32[3, 4]"
    assert "sigmoid" in found["sigmoid"]["text"] and "self=float32[3, 4]" in found["sigmoid"]["text"]


def test_whose_result_the_caller_gets(found: dict[str, Any]) -> None:
    truth = found["sigmoid truth"]
    assert found["sigmoid"]["result"] != truth
    assert found["sigmoid upstream"]["result"] == truth
    assert row(found, "sigmoid upstream")["max_ulp"] == 3
    assert found["mul.out upstream"]["result"] == found["mul.out truth"]
    (least,), (most,) = ([value] for value in found["aminmax upstream"]["result"])
    assert (least, most) == (-0.5, pytest.approx(0.6))


def test_below_autograd(found: dict[str, Any]) -> None:
    """The derivative is upstream's formula of the result that the caller got."""
    assert row(found, "sigmoid backward")["max_ulp"] == 3
    y, gradient = (torch.tensor(value) for value in found["sigmoid backward"]["result"])
    assert torch.equal(gradient, y * (1 - y)) or torch.allclose(gradient, y * (1 - y), rtol=1e-6)


def test_captured_calls_are_counted_and_left_alone(found: dict[str, Any]) -> None:
    captured = row(found, "sigmoid captured")
    assert (captured["captured"], captured["compared"]) == (1, 0)
    assert found["sigmoid captured"]["result"] == found["sigmoid"]["result"]
    assert "not compared, in a graph capture: 1" in found["sigmoid captured"]["text"]


def test_declined_calls_are_not_compared(found: dict[str, Any]) -> None:
    assert found["sigmoid declined"]["rows"] == []


@pytest.mark.parametrize("case", ["mul.out", "mul.out resized", "mul.out strided"])
def test_out_arguments_and_nan(found: dict[str, Any], case: str) -> None:
    mul = row(found, case)
    assert (mul["nan"], mul["different"], mul["max_ulp"], mul["worst"]) == (1, 1, 0, "out")
    assert (mul["layouts"], mul["elements"]) == (0, 12)
    (result,) = found[case]["result"]
    assert math.isnan(result[0][0])
    assert result[0][1:] == found["mul.out truth"][0][0][1:]


def test_results_of_a_tuple_but_for_opaque_ones(found: dict[str, Any]) -> None:
    aminmax = row(found, "aminmax")
    assert (aminmax["elements"], aminmax["different"], aminmax["worst"]) == (1, 1, "result1")
    assert aminmax["max_absolute"] == pytest.approx(1)


def test_layouts(found: dict[str, Any]) -> None:
    cat = row(found, "cat")
    assert (cat["layouts"], cat["layout"]) == (1, "result: strides [1, 6] instead of [4, 1]")
    assert (cat["differing"], cat["different"], cat["max_ulp"]) == (1, 0, 0)


@pytest.mark.parametrize("case", ["uniform_", "uniform_ generator"])
def test_random_numbers_are_drawn_once(found: dict[str, Any], case: str) -> None:
    uniform = row(found, case)
    assert (uniform["compared"], uniform["differing"]) == (3, 0)
    assert found[case]["result"] == found[f"{case} truth"]


def test_arguments_that_share_memory(found: dict[str, Any]) -> None:
    assert row(found, "addcmul_")["differing"] == 0
    assert found["addcmul_"]["result"] == found["addcmul_ truth"]


def test_lists_with_holes(found: dict[str, Any]) -> None:
    index = row(found, "index")
    assert (index["compared"], index["differing"]) == (1, 0)
    assert index["signature"] == "self=float32[3, 4], indices=[undefined, int64[2]]"


def test_an_error_of_upstream_is_counted_and_goes_no_further(found: dict[str, Any]) -> None:
    failed = row(found, "index failed")
    assert (failed["failed"], failed["compared"]) == (1, 0)
    assert failed["error"].startswith("index 7 is out of bounds")
    assert found["index failed"]["result"] == [[1.0]]
    assert "not compared, failed: 1 x index 7 is out of bounds" in found["index failed"]["text"]


def test_an_error_of_the_fused_kernel_is_the_callers(found: dict[str, Any]) -> None:
    assert found["relu_"]["error"] == "the fused kernel failed"
    assert found["relu_"]["rows"] == []


# ---- docs/numerics.md --------------------------------------------------------------------------------


def blocks() -> list[str]:
    text = (DOCS / "numerics.md").read_text()
    return re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_a_refused_launch_goes_upstream_and_is_counted_as_late(found: dict[str, Any]) -> None:
    refused = found["refused"]
    assert refused["counts"] == {"ran": 0, "disabled": 0, "declined": {}, "late": 3}
    assert refused["went upstream"] == {"declined late: the driver refused the launch": 3}
    assert refused["routes"] == [["declined late", "", 1]]
    assert refused["shadowed"] == 0, "there is nothing to compare"
    assert refused["results"] == [True, True, True]
    assert "3 x declined late: the driver refused the launch" in refused["status"]


def test_the_example_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    code, expected, *_ = blocks()
    exec(compile(code, "numerics.md", "exec"), {})
    # The signature, which is long, stands below the table.
    head = len(expected.rstrip("\n").splitlines())
    assert "\n".join(capsys.readouterr().out.splitlines()[:head]) == expected.rstrip("\n")


def test_the_example_of_a_difference_in_the_docs(found: dict[str, Any]) -> None:
    assert found["sigmoid"]["text"] == blocks()[2].rstrip("\n")
