"""The generator: deterministic, and clear about what is wrong in the table."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paths import ROOT

pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def codegen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("aten_ext_codegen", ROOT / "scripts" / "codegen.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def table(folder: Path, *entries: str) -> Path:
    path = folder / "native_functions_ext.yaml"
    path.write_text("# a table\n" + "\n".join(entries) + "\n")
    return path


GOOD = "- func: cat\n  dispatch: CUDA\n  family: some\n  summary: one"


def entry(func: str = "mm", dispatch: str = "dispatch: CPU", summary: str = "summary: x") -> str:
    return f"- func: {func}\n  {dispatch}\n  {summary}\n  family: some"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (entry("catt"), r"6: 'catt' is not an operator .* one of: cat"),
        (entry("cat.outt"), r"6: 'cat\.outt' is not .* one of: cat, .*cat\.out"),
        (entry(dispatch="dispatch: CUDAA"), r"7: unknown dispatch key 'CUDAA'; valid keys: CPU, CUDA"),
        (entry(dispatch="dispatch: CPU, CPU"), r"7: dispatch key 'CPU' is given twice"),
        (
            entry(dispatch="dispach: CPU"),
            r"7: unknown field 'dispach'; valid .*: func, dispatch, family, summary, unmeasured",
        ),
        ("- func: mm\n  summary: x\n  family: some", r"6: field 'dispatch' is missing"),
        (entry(summary="summary:"), r"8: expected one line of text for 'summary'"),
        (entry("_cudnn_rnn"), r"7: '_cudnn_rnn' has no upstream kernel at CPU .*valid keys: CUDA"),
        (entry("subtract_.Tensor"), r"7: 'subtract_.Tensor' has no upstream kernel at CPU .*keys: none"),
        (GOOD, r"6: 'cat' stands in the table already, at native_functions_ext\.yaml:2"),
        (
            entry() + "\n  autograd: CPU",
            r"10: expected 'autograd' to name keys of 'dispatch' \(CPU\) of an operator that PyTorch",
        ),
        (entry("gru.input") + "\n  autograd: CUDA", r"10: expected 'autograd' to name .*, got 'CUDA'"),
        (
            entry() + "\n  unmeasured: CUDA",
            r"10: expected 'unmeasured' to name keys of 'dispatch' \(CPU\), got 'CUDA'",
        ),
        (
            entry() + "\n  opaque: 0, 1",
            r"10: expected 'opaque' to name positions of results \(0 to 0\), got '1'",
        ),
        (entry("_fused_sgd_") + "\n  opaque: 0", r"10: expected .* results \(none\), got '0'"),
        (
            entry() + "\n  writes: mat2, dim",
            r"10: expected 'writes' to name tensors among the arguments \(self, mat2\), got 'dim'",
        ),
        ("- just text", r"6: expected an entry with the fields func, dispatch, family, summary, unmeasured"),
        (
            entry() + "\n  pair: catt",
            r"10: expected 'pair' to name an override of this table \(cat, mm\), got 'catt'",
        ),
        ("- func: mm\n  dispatch: CPU\n  summary: x", r"6: field 'family' is missing"),
        (
            "- func: mm\n  dispatch: CPU\n  family: a b\n  summary: x",
            r"8: expected an identifier as the name of a family, got 'a b'",
        ),
        ("- func: [mm", r"\d+: not valid YAML"),
    ],
)
def test_errors_name_the_line(codegen: ModuleType, tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(codegen.TableError, match=rf"^native_functions_ext\.yaml:{expected}"):
        codegen.generate(table(tmp_path, GOOD, text), tmp_path / "out", with_cuda=True)
    assert not (tmp_path / "out").exists()


PASS = "- pass: {}\n  summary: {}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            PASS.format("fuse", "x") + "\n  dispatch: CPU",
            r"8: unknown field 'dispatch'; valid .*: pass, summary",
        ),
        (
            PASS.format("fuse", "x") + "\n  opaque: 0",
            r"8: unknown field 'opaque'; valid .*: pass, summary, unmeasured$",
        ),
        ("- pass: fuse", r"6: field 'summary' is missing; every entry has pass, summary"),
        (PASS.format("fuse-it", "x"), r"6: expected an identifier as the name of a pass, got 'fuse-it'"),
        (
            PASS.format("fuse", "x") + "\n  unmeasured: CUDA",
            r"8: expected 'unmeasured: Inductor', got 'CUDA'",
        ),
        (
            PASS.format("fuse", "x") + "\n" + PASS.format("fuse", "y"),
            r"8: 'fuse' stands in the table already",
        ),
    ],
)
def test_errors_of_graph_passes(codegen: ModuleType, tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(codegen.TableError, match=rf"^native_functions_ext\.yaml:{expected}"):
        codegen.generate(table(tmp_path, GOOD, text), tmp_path / "out", with_cuda=True)


def test_a_graph_pass_is_a_row_and_nothing_else(codegen: ModuleType, tmp_path: Path) -> None:
    passes = PASS.format("fuse", 'of "addmm"') + "\n  unmeasured: Inductor"
    (path,) = codegen.generate(table(tmp_path, passes, GOOD), tmp_path, with_cuda=True)
    text = path.read_text()
    assert '{"fuse", "Inductor", "of \\"addmm\\"", true, false, {false}, {}}' in text
    assert text.count("fuse") == 1 and "overrides[2]" in text
    assert text.index('"cat"') < text.index('"fuse"'), "entries find their rows by their place"
    assert "return overrides[0];" in text


def test_output_is_deterministic(codegen: ModuleType, tmp_path: Path) -> None:
    texts = []
    for folder in ("one", "two"):
        codegen.generate(ROOT / "native_functions_ext.yaml", tmp_path / folder, with_cuda=True)
        texts.append({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()})
    assert texts[0] == texts[1] and set(texts[0]) == {"args.h", "entries.cpp"}


def test_unchanged_files_are_left_alone(codegen: ModuleType, tmp_path: Path) -> None:
    files = codegen.generate(table(tmp_path, GOOD), tmp_path, with_cuda=True)
    before = files[0].stat().st_mtime_ns
    codegen.generate(table(tmp_path, GOOD), tmp_path, with_cuda=True)
    assert files[0].stat().st_mtime_ns == before


def test_entry_calls_upstream_directly(codegen: ModuleType, tmp_path: Path) -> None:
    """Out overloads in the order of the dispatcher, structured ones through their out overload."""
    entries = [
        GOOD,
        "- func: cat.out\n  dispatch: CUDA\n  family: some\n  summary: x",
        "- func: addmm\n  dispatch: CPU, CUDA\n  family: some\n  summary: x",
        "- func: _cudnn_rnn\n  dispatch: CUDA\n  family: some\n  summary: x",
    ]
    (path,) = codegen.generate(table(tmp_path, *entries), tmp_path, with_cuda=True)
    text = path.read_text()
    for call in (
        "return at::cuda::cat(tensors, dim);",
        "return at::cuda::cat_outf(tensors, dim, out);",
        "return at::cpu::addmm(self, mat1, mat2, beta, alpha);",
        "return at::cuda::_cudnn_rnn(input, weight, ",
    ):
        assert call in text
    assert (
        "at::Tensor & cat_out_cuda(const at::ITensorListRef & tensors, int64_t dim, at::Tensor & out)" in text
    )


def test_what_is_not_measured_starts_off(codegen: ModuleType, tmp_path: Path) -> None:
    text = "- func: mm\n  dispatch: CPU, CUDA\n  family: some\n  summary: x\n  unmeasured: CUDA"
    (path,) = codegen.generate(table(tmp_path, text), tmp_path, with_cuda=True)
    assert '{"mm", "CPU", "x", true, true, {true}, {}}' in path.read_text()
    assert '{"mm", "CUDA", "x", true, false, {false}, {}}' in path.read_text()


def test_composite_upstream_is_called_where_it_stands(codegen: ModuleType, tmp_path: Path) -> None:
    """CompositeExplicitAutograd serves a backend without a kernel of its own; nothing is registered at it."""
    text = "- func: _foreach_mul_.Scalar\n  dispatch: CPU, CUDA\n  family: some\n  summary: x"
    (path,) = codegen.generate(table(tmp_path, text), tmp_path, with_cuda=True)
    generated = path.read_text()
    assert "return at::compositeexplicitautograd::_foreach_mul_(self, scalar);" in generated
    assert "return at::cuda::_foreach_mul_(self, scalar);" in generated
    assert "#include <ATen/ops/_foreach_mul_compositeexplicitautograd_dispatch.h>" in generated
    assert re.findall(r"TORCH_LIBRARY_IMPL\(aten, (\w+)", generated) == ["CPU", "CUDA"]


def test_what_watches_an_entry_knows_it(codegen: ModuleType, tmp_path: Path) -> None:
    """Names, what is written to by schema or table, opaque results, randomness; one test on the way in."""
    entries = [
        "- func: mul.out\n  dispatch: CPU\n  family: some\n  summary: x",
        "- func: aminmax\n  dispatch: CPU\n  family: some\n  summary: x\n  opaque: 1",
        "- func: addmm\n  dispatch: CPU\n  family: some\n  summary: x\n  writes: mat2, self",
        "- func: uniform_\n  dispatch: CPU\n  family: some\n  summary: x",
    ]
    (path,) = codegen.generate(table(tmp_path, *entries), tmp_path, with_cuda=False)
    text = path.read_text()
    for line in (
        'kNames[] = {"self", "other", "out"};',
        "kWritten[] = {false, false, true};",
        "kOpaque[] = {false, true};",
        "kWritten[] = {true, false, false, false};",
        "kWritten[] = {true, false, true, false, false};",
        'kEvent = "aten_ext::uniform_";',
        'kEvent = "aten_ext::mul.out";',
    ):
        assert line in text
    assert text.count("kRandom = true;") == 1 and text.count("kRandom = false;") == 3
    entered = ["mul_out_cpu", "aminmax_cpu", "addmm_cpu", "uniform__cpu"]
    assert re.findall(r"return enter<site::(\w+)>", text) == entered


def test_a_struct_of_arguments_for_each_overload(codegen: ModuleType, tmp_path: Path) -> None:
    """By reference, in the order of the dispatcher, once whatever the keys; the family declares the rest."""
    codegen.generate(table(tmp_path, entry("addmm", "dispatch: CPU, CUDA")), tmp_path, with_cuda=True)
    assert (
        "struct addmm {\n  const at::Tensor & self;\n  const at::Tensor & mat1;\n  const at::Tensor & mat2;\n"
        "  const at::Scalar & beta;\n  const at::Scalar & alpha;\n};\n"
    ) in (tmp_path / "args.h").read_text()
    text = (tmp_path / "entries.cpp").read_text()
    assert '#include "ops/some/overrides.h"' in text
    assert "cpu::choose(a_)" in text and "cuda::run(a_, plan_)" in text


def test_a_backward_asks_who_ran_the_forward(codegen: ModuleType, tmp_path: Path) -> None:
    forward, backward = entry("native_dropout"), entry("native_dropout_backward") + "\n  pair: native_dropout"
    (path,) = codegen.generate(table(tmp_path, forward, backward), tmp_path, with_cuda=False)
    text = path.read_text()
    assert text.count("kPaired = true;") == 1 and text.count("kPaired = false;") == 1
    assert text.count("cpu::saved_by_ours(a_)") == 1


def test_some_families_alone(codegen: ModuleType, tmp_path: Path) -> None:
    entries = [GOOD, "- func: mm\n  dispatch: CPU\n  family: other\n  summary: x"]
    (path,) = codegen.generate(table(tmp_path, *entries), tmp_path, with_cuda=True, families=["other"])
    assert '"mm"' in path.read_text() and '"cat"' not in path.read_text()
    with pytest.raises(codegen.TableError, match="expected families of overrides, got none"):
        codegen.generate(table(tmp_path, *entries), tmp_path, with_cuda=True, families=["none"])


def test_cpu_build_leaves_cuda_entries_out(codegen: ModuleType, tmp_path: Path) -> None:
    entries = [GOOD, "- func: mm\n  dispatch: CPU, CUDA\n  family: some\n  summary: x"]
    (path,) = codegen.generate(table(tmp_path, *entries), tmp_path, with_cuda=False)
    text = path.read_text()
    assert "at::cuda::" not in text and "TORCH_LIBRARY_IMPL(aten, CUDA" not in text
    assert '{"cat", "CUDA", "one", false, true, {true}, {}}' in text, (
        "known by name, so that the toggles accept it"
    )
    assert 'm.def("explain_CUDA_cat(Tensor[] tensors, int dim=0) -> (str, str, str, int[])"' in text


def test_entries_at_cuda_ask_for_code_for_the_gpu(codegen: ModuleType, tmp_path: Path) -> None:
    """After the rule, which alone knows whether there is a tensor; explain asks the same."""
    text = entry("cat", "dispatch: CPU, CUDA")
    (path,) = codegen.generate(table(tmp_path, text), tmp_path, with_cuda=True)
    asked = "on_gpu([&a_] { return cuda::choose(a_); }, [&a_] { return at::device_of(a_.tensors); })"
    assert path.read_text().count(asked) == 2, "the entry, and explain"
    assert "on_gpu([&a_] { return cpu::choose" not in path.read_text()
    (path,) = codegen.generate(table(tmp_path, text), tmp_path, with_cuda=False)
    assert " on_gpu(" not in path.read_text()


def test_composite_operators_get_a_companion(codegen: ModuleType, tmp_path: Path) -> None:
    """Upstream is the decomposition, which autograd, functorch and the rest keep: test_composite.py."""
    entry = "- func: gru_cell\n  dispatch: CPU, CUDA\n  family: some\n  summary: x"
    (path,) = codegen.generate(table(tmp_path, entry), tmp_path, with_cuda=True)
    text = path.read_text()
    for expected in (
        "return at::compositeimplicitautograd::gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh);",
        "TORCH_LIBRARY_IMPL(aten, AutogradCPU, m)",
        "TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m)",
        "needs_decomposition(keys_, c10::DispatchKey::CUDA, input, hx, w_ih, w_hh, b_ih, b_hh)",
    ):
        assert expected in text
    assert text.count('m.impl("gru_cell", TORCH_FN(at::compositeimplicitautograd::gru_cell))') == 1


def test_overrides_with_a_node_of_their_own(codegen: ModuleType, tmp_path: Path) -> None:
    """Calls that are differentiated come to the entry, above autograd; whatever is not plain does not."""
    entry = "- func: gru.input\n  dispatch: CPU, CUDA\n  family: some\n  summary: x\n  autograd: CPU"
    (path,) = codegen.generate(table(tmp_path, entry), tmp_path, with_cuda=True)
    text = path.read_text()
    assert text.count("kOwnNode = true;") == 1 and text.count("kOwnNode = false;") == 1
    assert "if (!is_plain(keys_, c10::DispatchKey::CPU)) {" in text
    assert "return entry::gru_input_cpu(input, hx, params," in text
    assert "needs_decomposition(keys_, c10::DispatchKey::CUDA, input," in text
    # One of two overloads of that name.
    assert (
        text.count('m.impl("gru.input", TORCH_FN((static_cast<::std::tuple<at::Tensor,at::Tensor> (*)(') == 1
    )


@pytest.mark.parametrize("name", ["chunk", "subtract.out", "subtract_.Tensor"])
def test_composites_that_alias_or_write_are_refused(codegen: ModuleType, name: str) -> None:
    assert codegen.Upstream().keys(name) == {}


def test_others_have_no_companion(codegen: ModuleType, tmp_path: Path) -> None:
    (path,) = codegen.generate(table(tmp_path, GOOD), tmp_path, with_cuda=True)
    assert "Autograd" not in path.read_text() and "core/composite.h" not in path.read_text()
