"""``bench programs``: every program that needs torch alone runs, and says what overrides did in it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import aten_ext
from aten_ext.__main__ import main
from aten_ext.bench import program_zoo, registry
from aten_ext.bench.case import Settings
from aten_ext.bench.ops import programs
from ops.rnn.cases import LSTM, ask_layer

OWN = (
    "attention seq2seq",
    "DeepSpeech 2",
    "DeepSpeech 2 with autocast",
    "AWD-LSTM",
    "PPO with a GRU",
    "PPO with an LSTM, CleanRL's loop",
)


def test_names_kinds_and_sizes() -> None:
    names = [case.label for case in programs.cases("cuda", False)]
    assert len(set(names)) == len(names) and "Qwen2.5 0.5B decode B=8 inference bfloat16" in names
    assert "GPT-2 124M training float32" in names and "Whisper tiny decode training float32" not in names
    assert all(" reduced " in case.label for case in programs.cases("cpu", False))
    assert [case.label for case in programs.cases("cpu", True)] == names
    assert "programs" in registry.OPS and "programs" not in registry.chosen([], full=False)


@pytest.mark.parametrize("name", OWN)
def test_a_step_changes_with_the_overrides_in_nothing_but_kernels(name: str) -> None:
    program = next(program for program in program_zoo.PROGRAMS if program.name == name)
    answers = []
    aten_ext.reset_counts()
    for enabled in (False, True):
        torch.manual_seed(0)
        model, forward, loss_of = program.build(True, "cpu", torch.float32)
        with aten_ext.disabled() if not enabled else torch.enable_grad():
            model.eval()
            loss = loss_of(forward())
            loss.backward()
            answers.append((loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    assert answers[0][0] == pytest.approx(answers[1][0], rel=1e-4)
    for theirs, ours in zip(answers[0][1], answers[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_route_share_and_json(tmp_path: Path) -> None:
    file = tmp_path / "programs.json"
    command = ["bench", "programs", "--device", "cpu", "--seconds", "0.01", "--json", str(file)]
    assert main([*command, "--filter", "PPO with a GRU reduced"]) == 0
    training, inference = json.loads(file.read_text())["cases"]
    assert training["details"]["ran"]["_fused_adamw_"] == 1 and training["route"].startswith("fused: ")
    assert "_fused_adamw_" not in inference["details"]["ran"]
    assert 0 < training["details"]["share_touched"] <= 1 and "% of the time" in training["route"]
    assert training["ratio"] > 0 and training["checked"] == ["wall"]


def test_a_missing_or_broken_library_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    case = programs.cases("cpu", False)[0]

    def missing(*_: object) -> program_zoo.Made:
        program_zoo._library("no_such_package.models", "X")
        raise AssertionError

    def broken(*_: object) -> program_zoo.Made:
        raise TypeError("no such option\nand more")

    def broken_when_called(*_: object) -> program_zoo.Made:
        return torch.nn.Linear(2, 2), partial(torch.mm, torch.ones(2, 3), torch.ones(2, 3)), torch.sum

    for build, said in (
        (missing, "needs the package no_such_package: pip install no_such_package"),
        (broken, "TypeError: no such option"),
        (broken_when_called, "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"),
    ):
        program = replace(program_zoo.PROGRAMS[0], build=build)
        result = programs._measure(program, "training", True, case, Settings("cpu", 0.01))
        assert result.skipped == said and result.clocks == {}


def test_autocast_is_around_forward_and_loss() -> None:
    seen: list[bool] = []

    def build(*_: object) -> program_zoo.Made:
        model = torch.nn.Linear(2, 2)

        def forward() -> torch.Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            return model(torch.ones(1, 2))  # type: ignore[no-any-return]

        return model, forward, torch.sum

    for autocast in (False, True):
        program = replace(program_zoo.PROGRAMS[0], build=build, autocast=autocast)
        for what in ("training", "inference"):
            program.make(what, True, "cpu", torch.float32)()
    assert seen == [False, False, True, True] and not torch.is_autocast_enabled("cpu")


def rule_of_lstms(name: str, *, captured: bool) -> list[str]:
    """What the rule answers for each LSTM that a training step of the reduced program calls; "": fused."""
    program = next(program for program in program_zoo.PROGRAMS if program.name == name)
    model, forward, _ = program.build(True, "cpu", torch.float32)
    answers = []

    def ask(layer: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(layer, torch.nn.LSTM)
        steps, batch, inputs = given[0].shape
        sizes = {"steps": steps, "batch": batch, "inputs": inputs, "hidden": layer.hidden_size}
        x = torch.empty(given[0].shape, device="meta", requires_grad=True)
        answers.append(ask_layer(**sizes, mode=LSTM, train=True, captured=captured, input=x))

    for layer in model.modules():
        if isinstance(layer, torch.nn.RNNBase):
            layer.register_forward_pre_hook(ask)
    forward()
    return answers


def test_short_lstms_are_ours_but_for_a_graph() -> None:
    """What ``test_steps_are_captured`` counts: from Python launches decide, in a graph the GPU's time."""
    assert rule_of_lstms("AWD-LSTM", captured=False) == [""] * 3
    assert all(rule_of_lstms("AWD-LSTM", captured=True)), "their reasons"


@pytest.mark.gpu
@pytest.mark.parametrize("name", OWN)
def test_steps_are_captured(name: str) -> None:
    """On a GPU both clocks run, the optimizer's step in a graph too; recurrent layers train fused."""
    program = next(program for program in program_zoo.PROGRAMS if program.name == name)
    case = next(case for case in programs.cases("cuda", True) if case.name == f"{name} training")
    result = programs._measure(program, "training", True, case, Settings("cuda", 0.01))
    assert (result.skipped, result.missing) == (None, {})
    assert set(result.clocks) == {"gpu", "eager"}
    ran = result.details["ran"]
    assert isinstance(ran, dict)
    assert ran["_cudnn_rnn_backward"] == ran["_cudnn_rnn"] > 0
    if name == "AWD-LSTM":
        assert ran["_cudnn_rnn"] == rule_of_lstms(name, captured=False).count("")
