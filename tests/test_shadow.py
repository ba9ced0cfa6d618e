"""Shadow mode: that it sees differences, and that it changes nothing."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

import aten_ext
from fused_adam_reference import State, call, make_state, upstream

HERE = Path(__file__).parent
SHAPES: list[tuple[int, ...]] = [(3, 4), (0,), (), (257,), (2, 3, 5)]


def same_bits(ours: State, theirs: State) -> bool:
    pairs = zip(ours.lists().values(), theirs.lists().values(), strict=True)
    return all(torch.equal(a, b) for mine, others in pairs for a, b in zip(mine, others, strict=True))


# ---- overrides that are wrong, made by the same generator -------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What shadow mode says about the kernels in wrong_kernels/, compiled here and run in another process."""
    pytest.importorskip("yaml")
    compiler = os.environ.get("CXX", "c++")
    folder = tmp_path_factory.mktemp("wrong")
    package = Path(aten_ext.__file__).parent
    sources = HERE.parent / "aten_ext"
    if not sources.is_dir():
        pytest.skip("needs the C++ sources")
    python = [sys.executable, str(HERE.parent / "scripts" / "codegen.py"), "--cpu-only"]
    table = str(HERE / "wrong_kernels" / "table.yaml")
    subprocess.run([*python, "--table", table, "--folder", str(folder)], check=True, timeout=60)
    # The operators behind aten_ext.explain would be defined twice.
    entries = folder / "entries.cpp"
    entries.write_text(entries.read_text().replace("FRAGMENT(aten_ext,", "FRAGMENT(aten_ext_wrong,"))
    torch_folder = Path(torch.__file__).parent
    include = torch_folder / "include"
    flags = ["-std=c++20", "-O0", "-fPIC", f"-I{folder}", f"-I{sources}", "-isystem", str(include)]
    flags += ["-isystem", str(include / "torch" / "csrc" / "api" / "include")]
    objects = []
    compilers = []
    for source in (entries, HERE / "wrong_kernels" / "kernels.cpp"):
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
    subprocess.run([compiler, "-shared", *objects, "-o", library, *link], check=True, timeout=60)
    run = subprocess.run(
        [sys.executable, str(HERE / "wrong_kernels" / "calls.py"), library],
        env={name: value for name, value in os.environ.items() if not name.startswith("ATEN_EXT")},
        capture_output=True,
        text=True,
        timeout=120,
    )
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


# ---- the comparison by itself -----------------------------------------------------------------------

FIELDS = ("elements", "different", "nan", "layouts", "absolute", "relative", "ulp", "worst", "layout")


def compare(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> dict[str, Any]:
    return dict(zip(FIELDS, torch.ops.aten_ext.compare_lists(ours, theirs), strict=True))


def reference(ours: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """The same one number at a time, with Python's integers."""
    width = ours.dtype.itemsize * 8
    bits = np.dtype(f"u{ours.dtype.itemsize}")

    def ordered(number: int) -> int:
        return number if number < 1 << (width - 1) else -(number - (1 << (width - 1))) - 1

    result = dict(different=0, nan=0, absolute=0.0, relative=0.0, ulp=0.0)
    pairs = zip(ours, theirs, ours.view(bits), theirs.view(bits), strict=True)
    for a, b, a_bits, b_bits in pairs:
        x, y = float(a), float(b)
        if math.isnan(x) or math.isnan(y):
            result["nan"] += math.isnan(x) != math.isnan(y)
            result["different"] += math.isnan(x) != math.isnan(y)
            continue
        ulp = abs(ordered(int(a_bits)) - ordered(int(b_bits)))
        distance = 0.0 if x == y else abs(x - y)
        relative = distance
        if 0 < distance < math.inf:
            relative = distance / abs(y) if y else math.inf
        result["different"] += ulp != 0
        for name, value in (("absolute", distance), ("relative", relative), ("ulp", float(ulp))):
            result[name] = max(result[name], value)
    return result


FLOAT = st.floats(width=64) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 5e-324])


@given(st.lists(st.tuples(FLOAT, FLOAT, st.booleans()), min_size=1, max_size=20), st.sampled_from("efd"))
def test_floating_point_distances(pairs: list[tuple[float, float, bool]], code: str) -> None:
    with np.errstate(over="ignore", under="ignore"):
        theirs = np.array([b for _, b, _ in pairs], dtype=np.dtype(code))
        ours = np.array([a for a, _, _ in pairs], dtype=np.dtype(code))
        # Neighbours, too: independent numbers are far apart.
        close = np.array([near for *_, near in pairs])
        ours = np.where(close, np.nextafter(theirs, np.array(np.inf, theirs.dtype)), ours)
    found = compare([torch.from_numpy(ours)], [torch.from_numpy(theirs)])
    expected = reference(ours, theirs)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert (found["elements"], found["layouts"]) == (len(pairs), 0)


def test_bfloat16() -> None:
    ours, theirs = torch.tensor([1.0, 2.0, -3.0]).bfloat16(), torch.tensor([1.0, 2.0, -3.0]).bfloat16()
    ours.view(torch.int16)[2] += 5
    found = compare([ours], [theirs])
    assert (found["ulp"], found["different"], found["absolute"]) == (5, 1, 5 * 2**-6)


def test_integers_booleans_and_complex() -> None:
    big = 2**62
    found = compare([torch.tensor([big + 1, 5])], [torch.tensor([big, 5])])
    assert (found["different"], found["absolute"], found["ulp"]) == (1, 1, 1)
    found = compare([torch.tensor([True, False])], [torch.tensor([True, True])])
    assert (found["different"], found["ulp"]) == (1, 1)
    found = compare([torch.tensor([1 + 2j])], [torch.tensor([1 + 4j])])
    assert (found["elements"], found["different"], found["absolute"], found["relative"]) == (2, 1, 2, 0.5)


@pytest.mark.parametrize(
    ("ours", "theirs", "layout"),
    [
        (torch.ones(2), torch.ones(3), "shape [2] instead of [3]"),
        (torch.ones(2), torch.ones(2).double(), "dtype Float instead of Double"),
        (torch.ones(2, 2), torch.ones(2, 2).t(), "strides [2, 1] instead of [1, 2]"),
    ],
)
def test_layouts_that_differ(ours: torch.Tensor, theirs: torch.Tensor, layout: str) -> None:
    found = compare([torch.ones(1), ours], [torch.ones(1), theirs])
    assert (found["layouts"], found["layout"], found["different"]) == (1, f"tensor[1]: {layout}", 0)


def test_strides_that_no_element_uses_are_alike() -> None:
    found = compare([torch.ones(1, 3).as_strided((1, 3), (9, 1))], [torch.ones(1, 3)])
    assert (found["layouts"], found["different"]) == (0, 0)


def test_transposed_and_overlapping_memory() -> None:
    ours = torch.arange(6.0).reshape(2, 3).t()
    theirs = ours.clone()
    theirs[2, 1] += 1
    found = compare([ours], [theirs.contiguous()])
    assert (found["different"], found["absolute"], found["layouts"]) == (1, 1, 1)
    assert compare([torch.ones(1).expand(5)], [torch.ones(5)])["different"] == 0


def test_the_worst_of_many_across_chunks() -> None:
    """Small results are compared together and large ones in parts; the name is right in both."""
    ours = [torch.zeros(3) for _ in range(100)] + [torch.zeros((1 << 20) + 7)] + [torch.zeros(2)]
    theirs = [t.clone() for t in ours]
    for index, element, value in ((41, 2, 1e-45), (100, 1 << 20, 1e-43), (101, 1, 1e-44)):
        theirs[index][element] = value
    found = compare(ours, theirs)
    assert (found["different"], found["worst"]) == (3, "tensor[100]")
    assert found["elements"] == 300 + (1 << 20) + 9


# ---- the overrides of this build --------------------------------------------------------------------

VARIANTS = [
    {},
    {"amsgrad": True},
    {"maximize": True, "weight_decay": 0.0},
    {"grad_scale": 8.0},
    {"found_inf": 1.0},
    {"lr": torch.tensor(1e-2)},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_the_fused_step_is_exact(device: str, changes: dict[str, Any], dtype: torch.dtype) -> None:
    """Same bits as without shadow mode, counted once, and equal to upstream's."""
    moved = {
        name: torch.tensor(value, device=device) if name in ("grad_scale", "found_inf") else value
        for name, value in changes.items()
    }
    options: dict[str, Any] = dict(dtype=dtype, device=device, amsgrad="amsgrad" in changes, offset=1)
    state = make_state(SHAPES, permutation=(1, 0), **options)
    theirs = upstream("_fused_adamw_", state, **moved)
    aten_ext.reset_counts()
    with aten_ext.shadow() as report:
        call("_fused_adamw_", state, **moved)
    name = "_fused_adamw_.tensor_lr" if "lr" in changes else "_fused_adamw_"
    (only,) = report.rows
    assert (only.override, only.key, only.compared, only.error) == (name, device.upper(), 1, "")
    assert report.exact and only.exact and (only.layouts, only.max_ulp) == (0, 0)
    lists = 5 if "amsgrad" in changes else 4
    assert only.elements == lists * sum(t.numel() for t in state.params)
    assert aten_ext.counts(device.upper())[name].ran == 1
    assert not aten_ext.counts(device.upper())[name].declined
    assert same_bits(state, theirs)


def test_a_parameter_twice_in_the_list() -> None:
    """Twins share memory where the originals do: two steps, one after the other, on both sides."""
    state = make_state([(5,)])
    doubled = State(*(getattr(state, name) * 2 for name in State.__dataclass_fields__))
    with aten_ext.shadow() as report:
        call("_fused_adamw_", doubled)
    assert report.exact and aten_ext.counts("CPU")["_fused_adamw_"].ran == 1


def test_training_is_the_same_with_and_without(device: str) -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Dropout(), torch.nn.Linear(9, 1)).to(
            device
        )
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        losses = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 7, device=device)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    expected = train()
    aten_ext.reset_counts()
    with aten_ext.shadow(rate=0.5) as some, aten_ext.shadow(rate=1.0) as report:
        assert train() == expected
    with aten_ext.shadow(keep="upstream"):
        assert train() == expected
    assert aten_ext.counts(device.upper())["_fused_adamw_"].ran == 12
    for session in (report, some):  # the youngest session sets the rate for all
        steps = [row for row in session.rows if row.override == "_fused_adamw_"]
        assert session.exact and sum(row.compared for row in steps) == 6


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.autocast("cpu"), torch.no_grad])
def test_in_modes(mode: Any) -> None:
    with mode(), aten_ext.shadow(keep="upstream") as report:
        state = make_state([(4, 5), (3,)])
        theirs = upstream("_fused_adam_", state)
        call("_fused_adam_", state)
    assert report.exact and report.rows[0].compared == 1
    assert same_bits(state, theirs)


def test_the_rate_and_torchs_generator() -> None:
    state = make_state([(2,)])
    before = torch.get_rng_state()
    with aten_ext.shadow(rate=0.25) as report:
        for _ in range(800):
            call("_fused_adamw_", state)
    assert 120 < report.rows[0].compared < 280  # 6 standard deviations
    assert torch.equal(torch.get_rng_state(), before)
    assert aten_ext.counts()["_fused_adamw_"].ran == 800
    with aten_ext.shadow(rate=0) as none:
        call("_fused_adamw_", state)
    assert none.rows == [] and not none.exact and "no fused call was compared" in str(none)


def test_a_report_ends_with_its_block() -> None:
    state = make_state([(2,)])
    with aten_ext.shadow() as outer:
        with aten_ext.shadow() as inner:
            call("_fused_adamw_", state)
            assert inner.rows[0].compared == 1, "readable inside"
        call("_fused_adamw_", state)
    call("_fused_adamw_", state)
    assert (inner.rows[0].compared, outer.rows[0].compared) == (1, 2)
    text = str(outer)
    assert text.splitlines()[0].split()[:4] == ["#", "override", "key", "compared"]
    assert "#1 self=[float32[2]]" in text


def test_calls_that_go_upstream_are_not_compared() -> None:
    state = make_state([(2,)])
    state.steps = [step.double() for step in state.steps]
    with aten_ext.shadow() as report:
        call("_fused_adamw_", state)
        with aten_ext.disabled():
            call("_fused_adamw_", make_state([(2,)]))
    counts = aten_ext.counts()["_fused_adamw_"]
    assert (counts.ran, counts.disabled, sum(counts.declined.values())) == (0, 1, 1)
    assert report.rows == []


def test_threads() -> None:
    def work() -> None:
        state = make_state([(4,), (3,)])
        for _ in range(50):
            call("_fused_adamw_", state)

    with aten_ext.shadow() as report:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (report.rows[0].compared, report.exact) == (200, True)
    assert aten_ext.counts()["_fused_adamw_"].ran == 200


def test_mistakes() -> None:
    for rate in (-0.1, 1.5, math.nan, "all"):
        with pytest.raises(ValueError, match=r"\[shadow\] expected a rate from 0 to 1, got"):
            aten_ext.shadow(rate).__enter__()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected keep='fused' or keep='upstream', got 'ours'"):
        aten_ext.shadow(keep="ours").__enter__()  # type: ignore[arg-type]
    call("_fused_adamw_", make_state([(2,)]))
    assert aten_ext.counts()["_fused_adamw_"].ran == 1


# ---- docs/numerics.md -------------------------------------------------------------------------------


def blocks() -> list[str]:
    text = (HERE.parent / "docs" / "numerics.md").read_text()
    return re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_example_in_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    code, expected, *_ = blocks()
    exec(compile(code, "numerics.md", "exec"), {})
    # The signature, which is long, stands below the table.
    head = len(expected.rstrip("\n").splitlines())
    assert "\n".join(capsys.readouterr().out.splitlines()[:head]) == expected.rstrip("\n")


def test_the_example_of_a_difference_in_the_docs(found: dict[str, Any]) -> None:
    assert found["sigmoid"]["text"] == blocks()[2].rstrip("\n")


# ---- CUDA alone -------------------------------------------------------------------------------------


@pytest.fixture
def captured_state() -> Iterator[State]:
    state = make_state([(100,), (7,)], device="cuda")
    call("_fused_adamw_", state)
    torch.cuda.synchronize()
    yield state


@pytest.mark.gpu
def test_graph_capture_is_left_alone(captured_state: State) -> None:
    graph = torch.cuda.CUDAGraph()
    with aten_ext.shadow() as report:
        with torch.cuda.graph(graph):
            call("_fused_adamw_", captured_state)
        call("_fused_adamw_", captured_state)
    graph.replay()
    torch.cuda.synchronize()
    (only,) = report.rows
    assert (only.captured, only.compared, only.failed) == (1, 1, 0)
    assert report.exact
