"""aten_ext.explain: the answer of the entry without the call."""

from __future__ import annotations

import pytest
import torch

import aten_ext
from aten_ext import Explanation
from ops.optimizer.adam_reference import State, call, make_state, options


def ask(op: object, state: State, key: str | None = None, **changes: object) -> Explanation:
    lists = (state.params, state.grads, state.exp_avgs, state.exp_avg_sqs, state.max_exp_avg_sqs, state.steps)
    return aten_ext.explain(op, *lists, key=key, **options(**changes))


OPS = {
    "function": torch._fused_adamw_,
    "name": "_fused_adamw_",
    "qualified name": "aten::_fused_adamw_",
    "packet": torch.ops.aten._fused_adamw_,
    "overload": torch.ops.aten._fused_adamw_.default,
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_fused(op: object) -> None:
    state = make_state([(4,)])
    before = state.clone()
    assert ask(op, state) == Explanation("_fused_adamw_", "CPU", "fused", "")
    assert torch.equal(state.params[0], before.params[0]), "nothing is run"
    assert aten_ext.counts()["_fused_adamw_"].ran == 0, "nothing is counted"


def test_arguments_choose_the_overload() -> None:
    lr = torch.tensor(1e-3)
    assert ask(torch._fused_adam_, make_state([(4,)]), lr=lr).override == "_fused_adam_.tensor_lr"
    assert ask("_fused_adam_.tensor_lr", make_state([(4,)]), lr=lr).route == "fused"


def test_same_reason_as_the_call() -> None:
    state = make_state([(4,)])
    state.steps = [step.double() for step in state.steps]
    explanation = ask(torch._fused_adamw_, state)
    call("_fused_adamw_", state)
    assert explanation.route == "upstream"
    assert dict(aten_ext.counts()["_fused_adamw_"].declined) == {explanation.reason: 1}


def test_disabled() -> None:
    with aten_ext.disabled("_fused_adamw_"):
        assert ask(torch._fused_adamw_, make_state([(4,)])) == Explanation(
            "_fused_adamw_", "CPU", "upstream", "disabled"
        )


@pytest.mark.parametrize("key", ["CUDA", "CPU"])
def test_meta_tensors(key: str) -> None:
    """A machine without a GPU can ask about one."""
    assert ask(torch._fused_adamw_, make_state([(4,)], device="meta"), key=key).route == "fused"
    mixed = make_state([(4,)], device="meta")
    mixed.grads[0] = mixed.grads[0].double()
    explanation = ask(torch._fused_adamw_, mixed, key=key)
    assert explanation == Explanation("_fused_adamw_", key, "upstream", "more than one dtype")


def test_meta_lr_on_cpu() -> None:
    state = make_state([(4,)], device="meta")
    assert ask(torch._fused_adamw_, state, key="CUDA", lr=torch.tensor(1e-3)).route == "fused"
    with_meta = ask(torch._fused_adamw_, state, key="CUDA", lr=torch.tensor(1e-3, device="meta"))
    assert with_meta.route == "fused"


def test_no_override() -> None:
    assert aten_ext.explain(torch.sin, torch.ones(2)) == Explanation(
        None, "CPU", "upstream", "no override of sin at CPU"
    )


def test_bad_questions() -> None:
    with pytest.raises(
        ValueError, match=r"\[explain\] expected tensors on a CPU or CUDA device, .*got tensors on: meta"
    ):
        ask(torch._fused_adamw_, make_state([(4,)], device="meta"))
    with pytest.raises(ValueError, match=r"expected key 'CPU' or 'CUDA', got 'XPU'"):
        ask(torch._fused_adamw_, make_state([(4,)]), key="XPU")
    with pytest.raises(TypeError, match=r"expected an operator's name or its Python function, got 3"):
        ask(3, make_state([(4,)]))
    with pytest.raises(RuntimeError, match="lr"):
        state = make_state([(4,)])
        aten_ext.explain(torch._fused_adamw_, state.params, state.grads)


def test_the_key_is_that_of_all_tensors_also_of_those_given_by_name() -> None:
    x = torch.ones(2)
    assert aten_ext.explain(torch.cat, tensors=[x, x]).key == "CPU"
    assert aten_ext.explain("cat.out", [x.to("meta")], 0, out=x).key == "CPU"
    with pytest.raises(ValueError, match=r"got tensors on: meta"):
        aten_ext.explain(torch.cat, tensors=[x.to("meta")])


@pytest.mark.gpu
def test_gpu_tensors() -> None:
    assert ask(torch._fused_adamw_, make_state([(4,)], device="cuda")).key == "CUDA"
