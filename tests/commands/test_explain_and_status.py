"""``python -m aten_ext explain`` and ``status --json``."""

from __future__ import annotations

import json

import pytest

import aten_ext
from aten_ext.__main__ import main

STEP = (
    "torch._fused_adamw_(*[[torch.empty({size})]] * 4, [], [torch.empty(())], lr=1e-3, beta1=0.9, beta2=0.99,"
    " weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)"
)


@pytest.mark.parametrize("key", ["CPU", "CUDA"])
def test_a_call_is_explained(capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert main(["explain", "--key", key, STEP.format(size="10")]) == 0
    assert capsys.readouterr().out == f"_fused_adamw_ at {key}: fused\n"
    assert aten_ext.counts()["_fused_adamw_"].ran == 0, "it is not run"


def test_the_reason_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--key", "CPU", "--json", STEP.format(size="10, dtype=torch.cfloat")]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["operator"] == "_fused_adamw_" and row["route"] == "upstream" and row["reason"]


def test_operators_without_an_override_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--key", "CPU", "torch.empty(3).sin() + 1"]) == 0
    assert capsys.readouterr().out == "no override: sin, add.Tensor\n"


@pytest.mark.parametrize(
    "expression", ["torch.cat(", "torch.no_such_thing()", "torch.empty(2) @ torch.empty(3)"]
)
def test_an_expression_that_fails_is_one_line(capsys: pytest.CaptureFixture[str], expression: str) -> None:
    assert main(["explain", expression]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    assert output.err.startswith("aten_ext explain: cannot evaluate ")


def test_status_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == {override.name for override in aten_ext.overrides()}
    assert rows["_fused_adamw_"]["enabled"] and "CPU" in rows["_fused_adamw_"]["keys"]
