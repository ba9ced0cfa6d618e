"""Advice: a program with the flaw gets it, with its line; the mended program does not."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

import aten_ext
from aten_ext import _measured
from aten_ext.__main__ import main
from aten_ext.advice import judge, table, trials
from aten_ext.advice.finding import Advice, Estimate
from aten_ext.advice.judge import Context, advise
from aten_ext.advice.observe import Facts, Observer, RecurrentFact, are_flat
from aten_ext.advice.sequences import padded_lengths
from paths import ROOT

Look = Callable[[str], list[Advice]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trials of a few pairs, and no variables of the developer's."""
    monkeypatch.setattr(trials, "compare", lambda a, b: Estimate(*_once(a, b), trials.HOW))
    monkeypatch.setattr(judge, "_environment", lambda: iter(()))
    yield


def _once(now: Callable[[], object], instead: Callable[[], object]) -> tuple[float, float, float, float]:
    now()
    instead()
    return 5.0, 4.0, 6.0, 10.0


@pytest.fixture
def look(tmp_path: Path) -> Look:
    def run(source: str) -> list[Advice]:
        path = tmp_path / "program.py"
        path.write_text(source)
        observer = Observer()
        observer.start()
        try:
            runpy.run_path(str(path), run_name="__main__")
        finally:
            facts = observer.close()
        return advise(facts, Context(total_us=1e6))

    return run


def line(source: str, text: str) -> str:
    return str(next(number for number, words in enumerate(source.splitlines(), 1) if text in words))


def test_the_observer_leaves_nothing_behind() -> None:
    before = (torch.optim.Optimizer.__init__, torch.autograd.backward, torch.autograd.grad)
    observer = Observer()
    observer.start()
    observer.start()
    assert torch.optim.Optimizer.__init__ is not before[0]
    observer.close()
    assert (torch.optim.Optimizer.__init__, torch.autograd.backward, torch.autograd.grad) == before
    from torch.nn.modules import module
    from torch.optim import optimizer

    assert not module._global_forward_pre_hooks and not optimizer._global_optimizer_pre_hooks


OPTIMIZER = """
import torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.KIND(model.parameters(), lr=0.01OPTIONS)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD", "Adagrad"])
def test_an_optimizer_that_is_not_fused(look: Look, kind: str) -> None:
    flawed = OPTIMIZER.replace("KIND", kind).replace("OPTIONS", "")
    (only,) = look(flawed)
    assert only.kind == "optimizer" and only.site.endswith(f"program.py:{line(flawed, 'optim.')}")
    assert only.text == f"{kind} without fused=True over 2 parameters" and only.calls == 4
    assert only.estimate is not None and only.share == pytest.approx(5.0 * 4 / 1e6)
    assert look(OPTIMIZER.replace("KIND", kind).replace("OPTIONS", ", fused=True")) == []


def test_an_optimizer_that_cannot_be_fused(look: Look) -> None:
    assert look(OPTIMIZER.replace("KIND", "RMSprop").replace("OPTIONS", "")) == []
    sparse = OPTIMIZER.replace("KIND", "SGD").replace("OPTIONS", "")
    sparse = sparse.replace("Linear(3, 2)", "Embedding(3, 2, sparse=True)").replace(
        "torch.randn(5, 3)", "torch.tensor([1])"
    )
    assert look(sparse) == []


RECURRENT = """
import torch
layer = torch.nn.GRU(4, 8, batch_first=True)
inputs = torch.randn(4, 10, 4)
LENGTHS
for _ in range(3):
    layer(inputs)[0].sum().backward()
"""
PADDED = "for row, length in enumerate([10, 6, 5, 2]): inputs[row, length:] = 0"


def test_padded_sequences(look: Look) -> None:
    flawed = RECURRENT.replace("LENGTHS", PADDED)
    (only,) = look(flawed)
    assert only.kind == "padding" and only.site.endswith(f":{line(flawed, 'layer(inputs)')}")
    assert only.text.startswith("42% of the steps given to this GRU look like padding (3 of 3 batches")
    assert only.estimate is not None and only.calls == 3
    assert look(RECURRENT.replace("LENGTHS", "")) == []
    mended = flawed.replace(
        "layer(inputs)[0]",
        "layer(torch.nn.utils.rnn.pack_padded_sequence(inputs, [10, 6, 5, 2], batch_first=True))[0].data",
    )
    assert look(mended) == []


def batch(lengths: list[int], pad: float = 0.0, steps: int = 8) -> torch.Tensor:
    made = torch.randn(len(lengths), steps, 3)
    for row, length in enumerate(lengths):
        made[row, length:] = pad
    return made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (batch([8, 5, 7]), [8, 5, 7]),  # one step of padding, too, once another row says what padding is
        (batch([8, 3], pad=0.0), [8, 3]),
        (batch([8, 3, 2], pad=0.7), [8, 3, 2]),  # the embedding of the padding token
        (batch([8, 3], pad=0.7), None),  # one row that ends in equal numbers proves nothing
        (batch([8, 8]), None),
        (batch([5, 3]), None),  # nobody pads beyond the longest
        (batch([8, 0, 3]), None),  # a row of nothing cannot be packed
        (torch.zeros(3, 8, 2), None),  # a decoder that is fed zeros
        (torch.randn(1, 8, 2), None),
        (torch.randn(3, 1, 2), None),
        (torch.zeros(3, 0, 2), None),
    ],
)
def test_which_batches_are_padded(given: torch.Tensor, expected: list[int] | None) -> None:
    assert padded_lengths(given) == expected


def test_rows_that_end_in_different_constants_are_no_padding() -> None:
    given = batch([8, 4, 4])
    given[1, 4:], given[2, 4:] = 1.0, 2.0
    assert padded_lengths(given) is None


TRAIN_MODE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3))
    def forward(self, x):
        return self.layer(x)
model = Net()
TRAINED
MODE
GRAD
    for _ in range(5):
        model(torch.randn(2, 4))  # here
"""
NO_GRAD = "with torch.no_grad():"


def test_training_mode_while_it_infers(look: Look) -> None:
    flawed = TRAIN_MODE.replace("GRAD", NO_GRAD).replace("MODE", "")
    flawed = flawed.replace("TRAINED", "model(torch.randn(2, 4)).sum().backward()")
    (only,) = look(flawed)
    assert only.kind == "train mode" and only.site.endswith(f":{line(flawed, '# here')}")
    assert only.text == "Net is called in training mode, without recording gradients: Dropout(p=0.3)"
    assert "random" in only.advice and only.calls == 5 and only.estimate is not None
    assert look(flawed.replace(NO_GRAD, "model.eval()\n" + NO_GRAD)) == []
    assert look(flawed.replace(NO_GRAD, "if True:")) == [], "a training loop"


def test_training_mode_of_a_program_that_never_asks_for_gradients(look: Look) -> None:
    flawed = TRAIN_MODE.replace("GRAD", "if True:").replace("MODE", "").replace("TRAINED", "")
    (only,) = look(flawed)
    assert "no gradient was ever asked for" in only.text and "inference_mode" in only.advice
    assert look(flawed.replace("if True:", "model.eval()\nif True:")) == []


def test_checkpointing_is_no_inference(look: Look) -> None:
    """Its first forward runs without gradients, in training mode, on purpose."""
    assert (
        look("""
import torch
from torch.utils.checkpoint import checkpoint
layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3))
x = torch.randn(2, 4, requires_grad=True)
for _ in range(3):
    checkpoint(layer, x, use_reentrant=True).sum().backward()
""")
        == []
    )


DECLINED = """
import torch
layer = torch.nn.GRU(4, 8).DTYPE().eval()
with torch.inference_mode():
    for _ in range(6):
        layer(torch.randn(5, 2, 4).DTYPE())
"""


def cases(override: str, ratios: list[float], machine: str | None) -> tuple[_measured.Measured, ...]:
    assert machine is not None
    return tuple(
        _measured.Measured(override, f"{r}", "float32", machine, "2.11", "wall", 1000, r * 10.0, 10.0, "x")
        for r in ratios
    )


def test_calls_that_decline_for_one_argument(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    flawed = DECLINED.replace("DTYPE", "double")
    monkeypatch.setattr(_measured, "cases", lambda: ())
    (only,) = look(flawed)
    assert only.kind == "declined" and only.site.endswith(f":{line(flawed, 'layer(torch')}")
    assert (
        only.text.startswith("gru.input goes upstream: dtype other than float32, bfloat16 (")
        and only.calls == 6
    )
    assert only.estimate is None and "benchmark cases of gru.input in float32" in only.why_none
    machine = _measured.machine_name(torch.device("cpu"))
    found = cases("gru.input", [1.0, 2.0, 2.0, 2.0, 4.0], machine)
    monkeypatch.setattr(_measured, "cases", lambda: found)
    (only,) = look(flawed)
    assert only.estimate is not None and only.estimate.us == pytest.approx(only.estimate.now_us / 2)
    assert only.estimate.low_us < only.estimate.us < only.estimate.high_us
    assert look(DECLINED.replace("DTYPE", "float")) == []


def traced(**changes: Any) -> aten_ext.TracedCall:
    fields = dict(
        override="addmm",
        key="CUDA",
        route="declined",
        reason="shape that upstream multiplies faster, and rows of no multiple of 16 bytes",
        signature="self=bfloat16[3]@cuda:0, mat1=bfloat16[8, 5]@cuda:0",
        count=10,
        site="model.py:7",
        microseconds=70.0,
    )
    return aten_ext.TracedCall(**{**fields, **changes})


def test_recorded_calls_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a call is the GPU's, from the profiler's record: the CPU's clock has that of issuing."""
    monkeypatch.setattr(_measured, "machine_name", lambda device: "GPU X")
    found = tuple(
        _measured.Measured("addmm", "c", "bfloat16", "GPU X", "2.11", "gpu", 10, ratio, 1.0, "x")
        for ratio in (1.5, 2.0, 2.0, 2.5)
    )
    monkeypatch.setattr(_measured, "cases", lambda: found)
    context = Context(5, 1000.0, None, {"aten::addmm": 40.0})
    (only,) = advise(Facts(calls=[traced()]), context)
    assert (only.site, only.calls) == ("model.py:7", 10) and "a multiple of 8 elements" in only.advice
    assert only.estimate is not None and only.estimate.us == pytest.approx(20.0)
    assert only.share == pytest.approx(20.0 * 2 / 1000.0)  # twice a step
    (blind,) = advise(Facts(calls=[traced()]), Context())
    assert blind.estimate is None and "profile" in blind.why_none
    as_it_should_be = [traced(reason="empty dimension"), traced(route="fused", reason="")]
    assert advise(Facts(calls=as_it_should_be), context) == []


def test_every_mendable_reason_is_one_that_the_overrides_have() -> None:
    page = (ROOT / "docs" / "overrides.md").read_text()
    for reason in judge.MENDABLE:
        assert f"| `{reason}` |" in page, reason


def test_weights_that_are_not_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU alone: the fact is what an observer would have kept there."""
    whole = torch.zeros(12)
    assert are_flat([whole[:4], whole[4:12]]) and are_flat([whole[4:].view(2, 4), whole[:4]])
    assert not are_flat([whole[:4], torch.zeros(8)]) and not are_flat([whole[:6], whole[4:]])
    monkeypatch.setattr(trials, "flattening", lambda fact: Estimate(5.0, 4.0, 6.0, 10.0, "how"))
    fact = RecurrentFact(
        torch.nn.LSTM, "a.py:3", {}, torch.float32, torch.device("cuda"), False, (5, 2, 4), calls=9
    )
    (only,) = advise(Facts(recurrent=[fact]), Context())
    assert (only.kind, only.site, only.calls) == ("flatten", "a.py:3", 9)
    assert "flatten_parameters()" in only.advice and only.estimate is not None
    fact.flat = True
    assert advise(Facts(recurrent=[fact]), Context()) == []
    fact.flat, fact.device = False, torch.device("cpu")
    assert advise(Facts(recurrent=[fact]), Context()) == [], "a CPU does not mind"


def test_an_override_that_a_variable_has_turned_off(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    source = OPTIMIZER.replace("KIND", "AdamW").replace("OPTIONS", ", fused=True")
    aten_ext.disable("_fused_adamw_")
    try:
        assert look(source) == [], "the program's own choice"
        monkeypatch.setenv("ATEN_EXT_DISABLE", "_fused_adamw_")
        (only,) = look(source)
    finally:
        aten_ext.enable()
    assert only.kind == "environment" and only.site.endswith(f":{line(source, '.step()')}")
    assert only.text.startswith("_fused_adamw_ is off by ATEN_EXT_DISABLE") and only.calls == 4
    assert only.advice == "unset ATEN_EXT_DISABLE"


def test_variables_that_cost_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("ATEN_EXT_SHADOW", "0.5")
    monkeypatch.setenv("ATEN_EXT_TRACE", "0")
    monkeypatch.delenv("ATEN_EXT_REPORT", raising=False)
    (only,) = advise(Facts(), Context())
    assert only.text.startswith("ATEN_EXT_SHADOW=0.5: ") and only.advice.startswith("unset ATEN_EXT_SHADOW")


def test_a_trial_that_fails_leaves_the_advice(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MOST_BYTES", 10)
    (only,) = look(OPTIMIZER.replace("KIND", "AdamW").replace("OPTIONS", ""))
    assert only.estimate is None and only.why_none == "a trial would need 0.0 GB"


def test_a_trial_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait of 3 ms against one of 1 ms."""
    import time

    monkeypatch.undo()
    found = trials.compare(lambda: time.sleep(0.003), lambda: time.sleep(0.001), seconds=0.1)
    assert found.low_us <= found.us <= found.high_us and 500 < found.us < 10_000 and found.now_us > 3000


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    estimate = Estimate(1500.0, 1000.0, 2000.0, 4000.0, "how")
    found = [
        Advice("optimizer", "/a/b.py:3", "what", "do it", 1, "step", estimate, share=0.25),
        Advice("padding", "", "so", "pack", 2, why_none="too large"),
        Advice("x", "", "so", "pack", 2, estimate=Estimate(1.0, -2.0, 3.0, 9.0, "how")),
    ]
    table.show(Console(width=200), found)
    text = capsys.readouterr().out
    assert "/a/b.py:3: what, 1 step seen" in text and "-> do it" in text
    assert "saves 1.5 ms of 4 ms a step (1 ms to 2 ms), 25.0% of the time; how" in text
    assert "no estimate: too large" in text and "nothing that can be measured" in text
    assert [Advice.of_json(json.loads(json.dumps(each.as_json()))) for each in found] == found
    table.show(Console(width=200), [])
    assert "nothing that could be seen" in capsys.readouterr().out


@pytest.mark.long
def test_doctor_and_profile_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = OPTIMIZER.replace("KIND", "AdamW").replace("OPTIONS", "").replace("range(4)", "range(9)")
    (tmp_path / "program.py").write_text(source)
    from aten_ext.doctor import command

    monkeypatch.setattr(command, "CHECKS", ())
    assert main(["doctor", "--json", "program.py"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["check"], found["level"]) == (f"program.py:{line(source, 'optim.')}", "note")
    assert "fused=True" in found["advice"] and "of the time" in found["text"]
    assert main(["profile", "--skip", "2", "--steps", "3", "program.py"]) == 0
    text = capsys.readouterr().out
    assert "program.py:4: AdamW without fused=True over 2 parameters" in text
    assert main(["profile", "--skip", "2", "--steps", "3", "--no-advice", "program.py"]) == 0
    assert "without fused" not in capsys.readouterr().out
    assert main(["doctor", "/nowhere.py"]) == 2


def test_a_site_is_a_line_of_the_program() -> None:
    from aten_ext import _site

    frame = SimpleNamespace
    library = frame(f_code=SimpleNamespace(co_filename=json.__file__, co_name="f"), f_lineno=1)
    own = frame(f_code=SimpleNamespace(co_filename="/x/train.py", co_name="f"), f_lineno=5)
    inner = frame(f_code=SimpleNamespace(co_filename=torch.__file__, co_name="f"), f_lineno=9)
    stack: list[Any] = [inner, library, own]
    assert _site.line_of(stack) == "/x/train.py:5"
    assert _site.line_of(stack[:2]) == f"{json.__file__}:1" and _site.line_of(stack[:1]) == ""
