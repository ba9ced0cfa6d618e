"""aten_ext.report(): what it counts, that its estimate is right, and that it changes nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import aten_ext
import processes
from aten_ext import _C
from aten_ext._report import student_t
from ops.optimizer.adam_reference import call, make_state, upstream


@pytest.fixture(autouse=True)
def report_is_off_again() -> Iterator[None]:
    yield
    aten_ext.disable_report()


def row(name: str = "_fused_adamw_") -> aten_ext.ReportRow:
    return next(row for row in aten_ext.report().rows if row.override == name)


def test_off_it_says_so_and_nothing_is_watched() -> None:
    aten_ext.disable_report()
    call("_fused_adamw_", make_state([(2,)]))
    found = aten_ext.report()
    assert (found.rows, found.enabled) == ([], False) and "enable_report" in str(found)
    aten_ext.enable_report()
    assert aten_ext.report().rows == [] and str(aten_ext.report()) == "no fused kernel ran"
    call("_fused_adamw_", make_state([(2,)]))
    aten_ext.disable_report()
    call("_fused_adamw_", make_state([(2,)]))
    assert aten_ext.report().rows == []


def test_every_fused_call_is_counted_and_timed() -> None:
    state = make_state([(300,), (7, 5)])
    aten_ext.reset_counts()
    aten_ext.enable_report()
    begin = time.perf_counter()
    for _ in range(20):
        call("_fused_adamw_", state)
    wall_us = (time.perf_counter() - begin) * 1e6
    only = row()
    assert (only.key, only.calls, only.timed, only.sampled, only.saved) == ("CPU", 20, 20, 0, None)
    assert aten_ext.counts("CPU")["_fused_adamw_"].ran == 20
    assert 0 < only.ours_us <= wall_us
    text = str(aten_ext.report())
    assert "not sampled" in text and "upstream was not called" in text
    aten_ext.enable_report()  # begins at zero
    assert aten_ext.report().rows == []


def test_what_goes_upstream_is_no_fused_call() -> None:
    state = make_state([(2,)])
    aten_ext.enable_report(sample_every=1)
    with aten_ext.disabled():
        call("_fused_adamw_", state)
    assert aten_ext.report().rows == []


@pytest.mark.parametrize("changes", [{}, {"amsgrad": True}, {"maximize": True, "weight_decay": 0.0}])
def test_a_sampled_step_leaves_what_an_unsampled_one_leaves(changes: dict[str, Any]) -> None:
    """Upstream writes to copies: parameters, states and steps have the bits of one step, not of two."""
    options: dict[str, Any] = dict(amsgrad="amsgrad" in changes)
    state = make_state([(3, 4), (257,), ()], **options)
    theirs = upstream("_fused_adamw_", state, **changes)
    aten_ext.enable_report(sample_every=1)
    call("_fused_adamw_", state, **changes)
    assert (row().sampled, row().failed) == (1, 0)
    for ours, other in zip(state.lists().values(), theirs.lists().values(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, other, strict=True))


def test_training_and_generators_are_the_same_with_and_without() -> None:
    def train() -> tuple[list[float], torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.GRU(4, 8, num_layers=2, dropout=0.5))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(torch.randn(6, 3, 4))[0].square().mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                losses.append(loss.item() + model(torch.randn(6, 3, 4))[0].sum().item())
        return losses, torch.get_rng_state()

    expected, state = train()
    aten_ext.enable_report(sample_every=1)
    losses, after = train()
    assert losses == expected and torch.equal(after, state)
    rows = {row.override: row for row in aten_ext.report().rows}
    assert rows["_fused_adamw_"].sampled == 5
    gru = rows["gru.input"]
    # In training the layer brings its own gradient, and upstream none to compare with; in inference it ran.
    assert (gru.calls, gru.comparable, gru.sampled, gru.failed) == (10, 5, 5, 0)
    assert "upstream cannot be called beside them" in str(aten_ext.report())


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several would wait for one another where another process has a core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_saving_is_within_its_error_of_a_direct_measurement() -> None:
    """Upstream sampled beside a third of the calls, and timed directly in turns with ours."""
    state = make_state([(64, 64)] * 4)

    def interval() -> tuple[float, float]:
        saved = row().saved
        assert saved is not None and saved.error_us is not None
        return saved.us / row().comparable, saved.error_us / row().comparable

    found = []
    for _ in range(5):  # another process may take the CPU in one of them
        aten_ext.enable_report(sample_every=3)
        for _ in range(300):
            call("_fused_adamw_", state)
        sampled, error = interval()
        aten_ext.disable_report()  # or a third of our calls would bear upstream's time, too
        direct = []
        for _ in range(300):
            begin = time.perf_counter()
            call("_fused_adamw_", state)
            middle = time.perf_counter()
            with aten_ext.disabled():
                between = time.perf_counter()
                call("_fused_adamw_", state)
                end = time.perf_counter()
            direct.append((end - between - (middle - begin)) * 1e6)
        mean = sum(direct) / len(direct)
        scatter = (sum((d - mean) ** 2 for d in direct) / (len(direct) - 1) / len(direct)) ** 0.5
        found.append((sampled, error, mean, scatter))
        if abs(sampled - mean) <= 3 * (error + scatter) + 1.0:
            return
    pytest.fail(f"sampled, its error, direct, its error: {found}")


def rows_of(monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[float, float]], calls: int, us: float) -> Any:
    fields = dict(
        override="cat",
        key="CUDA",
        calls=calls,
        timed=calls,
        inside=0,
        captured=0,
        shadowed=0,
        ours_us=us,
        comparable=calls,
        comparable_us=us,
        sampled=len(pairs),
        failed=0,
        error="",
        sum_ours=sum(a for a, _ in pairs),
        sum_upstream=sum(b for _, b in pairs),
        sum_ours_ours=sum(a * a for a, _ in pairs),
        sum_upstream_upstream=sum(b * b for _, b in pairs),
        sum_ours_upstream=sum(a * b for a, b in pairs),
    )
    aten_ext.enable_report(sample_every=10)
    monkeypatch.setattr(_C, "timed_calls", lambda session: [dict(fields)])
    return aten_ext.report().rows[0]


def test_the_estimate_covers_the_truth_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 samples of a population of calls of very different sizes, on recorded GPU times."""
    generator = torch.Generator().manual_seed(3)
    ours = torch.rand(4000, generator=generator).mul(5).exp()
    upstream_us = ours * (2 + torch.randn(4000, generator=generator) * 0.3) + 3
    truth = float((upstream_us - ours).sum())
    covered = 0
    for _ in range(500):
        chosen = torch.rand(4000, generator=generator) < 0.02
        pairs = list(zip(ours[chosen].tolist(), upstream_us[chosen].tolist(), strict=True))
        saved = rows_of(monkeypatch, pairs, 4000, float(ours.sum())).saved
        covered += abs(saved.us - truth) <= saved.error_us
    assert 0.90 <= covered / 500 <= 0.98


def test_few_samples_have_no_error_and_none_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    few = rows_of(monkeypatch, [(1.0, 3.0)] * 4, 100, 100.0)
    assert few.saved.us == pytest.approx(200) and few.saved.error_us is None
    assert "too few samples" in str(aten_ext.report()) and "GPU" in str(aten_ext.report())
    assert rows_of(monkeypatch, [], 100, 100.0).saved is None
    assert "not sampled" in str(aten_ext.report())
    slower = rows_of(monkeypatch, [(2.0, 1.0)] * 9, 10, 20.0).saved
    assert slower.us == pytest.approx(-10) and slower.ratio == pytest.approx(0.5)


def test_students_t() -> None:
    for freedom, value in ((4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)):
        assert student_t(freedom) == pytest.approx(value, rel=0.011)


def test_the_rate_of_samples() -> None:
    state = make_state([(2,)])
    aten_ext.enable_report(sample_every=4)
    for _ in range(800):
        call("_fused_adamw_", state)
    assert row().timed == 800 and 120 < row().sampled < 280  # 6 standard deviations


def test_threads() -> None:
    aten_ext.enable_report(sample_every=2)
    states = [make_state([(5, 3)]) for _ in range(4)]
    expected = make_state([(5, 3)])
    for _ in range(50):
        call("_fused_adamw_", expected)

    def work(state: Any) -> None:
        for _ in range(50):
            call("_fused_adamw_", state)
            aten_ext.report()

    aten_ext.enable_report(sample_every=2)
    threads = [threading.Thread(target=work, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (row().calls, row().timed, row().failed) == (200, 200, 0) and 40 < row().sampled < 160
    for state in states:
        assert torch.equal(state.params[0], expected.params[0])


def test_shadow_mode_has_its_calls_to_itself() -> None:
    state = make_state([(2,)])
    aten_ext.enable_report(sample_every=1)
    with aten_ext.shadow(rate=1.0) as shadow:
        call("_fused_adamw_", state)
    assert shadow.rows[0].compared == 1
    assert (row().calls, row().timed, row().shadowed) == (1, 0, 1)
    assert "in shadow mode" in str(aten_ext.report())


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "10", True])
def test_a_wrong_rate(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^\[enable_report\] expected sample_every of at least 1 or None"):
        aten_ext.enable_report(sample_every=wrong)


PROGRAM = """
import torch, aten_ext
p = torch.nn.Parameter(torch.ones(8))
o = torch.optim.AdamW([p], fused=True)
for _ in range(30):
    p.grad = torch.ones(8)
    o.step()
"""


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        ("time", 0, "not sampled"),
        ("2", 0, "about one call in 2"),
        ("0", 0, ""),
        ("often", 1, "ATEN_EXT_REPORT: expected time, or N"),
    ],
)
def test_from_the_environment(value: str, code: int, said: str) -> None:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("ATEN_EXT")}
    done = processes.python("-c", PROGRAM, env=environment | {"ATEN_EXT_REPORT": value})
    assert done.returncode == code and said in done.stderr
    assert ("_fused_adamw_" in done.stderr) == (value in ("time", "2"))


def test_a_trace_with_sites_names_this_file() -> None:
    state = make_state([(2,)])
    with aten_ext.trace_calls(sites=True) as trace, aten_ext.trace_calls() as plain:
        for _ in range(3):
            call("_fused_adamw_", state)
    (only,) = trace.rows
    assert only.count == 3 and only.microseconds > 0
    assert only.site.rpartition(":")[0].endswith("adam_reference.py"), "the line that calls torch"
    assert (plain.rows[0].site, plain.rows[0].microseconds, plain.rows[0].count) == ("", 0.0, 3)
