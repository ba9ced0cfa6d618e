"""What holds of every fused optimizer step: tests that ``_fused_sgd_`` and ``_fused_adagrad_`` inherit."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import aten_ext
from strategies import FLOATING

SHAPES: list[tuple[int, ...]] = [(1003,), (17,), (0,), (64, 64), (5,), (), (31,), (3, 1024), (2, 3, 5, 7)]


@dataclasses.dataclass
class Step:
    """One call: tensor lists in the operator's order, and its keyword arguments."""

    op: str
    """``_fused_sgd_``"""
    lists: dict[str, list[Tensor]]
    options: dict[str, Any]
    written: tuple[str, ...]
    """The lists that the formula changes. Gradients are changed by a ``grad_scale`` only."""

    @property
    def override(self) -> str:
        """The override that the call reaches."""
        return f"{self.op}.tensor_lr" if isinstance(self.options["lr"], Tensor) else self.op

    def call(self) -> None:
        """Through the dispatcher, as ``torch.optim`` does."""
        getattr(torch, self.op)(*self.lists.values(), **self.options)

    def clone(self) -> Step:
        """A copy with the same strides and the same offset from an aligned address."""
        lists = {name: [clone(t) for t in tensors] for name, tensors in self.lists.items()}
        return dataclasses.replace(self, lists=lists, options=dict(self.options))

    def upstream(self) -> Step:
        """What PyTorch's own kernel makes of a copy."""
        other = self.clone()
        with aten_ext.disabled():
            other.call()
        return other


def clone(t: Tensor) -> Tensor:
    """A copy with the same strides and the same offset from an aligned address."""
    if t.numel() == 0:
        return t.clone()
    storage = torch.empty(t.untyped_storage().nbytes() // t.element_size(), dtype=t.dtype, device=t.device)
    return storage.as_strided(t.size(), t.stride(), t.storage_offset()).copy_(t)


class Maker:
    """Random tensors of the given shapes, list by list."""

    def __init__(
        self,
        shapes: list[tuple[int, ...]],
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        *,
        offset: int = 0,
        permutation: tuple[int, ...] | None = None,
        seed: int = 0,
    ) -> None:
        """``offset`` elements of misalignment; ``permutation`` of the dimensions in memory."""
        self.shapes, self.dtype, self.device, self.offset = shapes, dtype, device, offset
        self.permutation = permutation
        self.generator = torch.Generator().manual_seed(seed)

    def one(self, shape: tuple[int, ...]) -> Tensor:
        fits = self.permutation is not None and len(self.permutation) == len(shape)
        order = self.permutation if fits and self.permutation else tuple(range(len(shape)))
        numel = torch.Size(shape).numel()
        flat = torch.randn(numel + self.offset, generator=self.generator, dtype=torch.float64) * 0.1
        stored = flat.to(self.dtype).to(self.device)[self.offset :].view([shape[d] for d in order])
        return stored.permute([order.index(d) for d in range(len(shape))])

    def many(self, *, positive: bool = False) -> list[Tensor]:
        tensors = [self.one(shape) for shape in self.shapes]
        return [t.abs_() for t in tensors] if positive else tensors

    def steps(self, first: float = 3.0) -> list[Tensor]:
        return [torch.tensor(first + i % 2, device=self.device) for i in range(len(self.shapes))]


def assert_ran(override: str, device: str) -> None:
    """The fused kernel of this override ran once, and nothing went upstream."""
    counts = aten_ext.counts(device.upper())[override]
    assert (counts.ran, dict(counts.declined)) == (1, {})


def assert_declined(override: str, device: str, reason: str) -> None:
    counts = aten_ext.counts(device.upper())[override]
    assert (counts.ran, dict(counts.declined)) == (0, {reason: 1})


def assert_same_bits(ours: Step, theirs: Step) -> None:
    """Every element of every list is the same, NaN for NaN."""
    for (name, mine), other in zip(ours.lists.items(), theirs.lists.values(), strict=True):
        for i, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert a.stride() == b.stride()
            torch.testing.assert_close(
                a, b, rtol=0, atol=0, equal_nan=True, msg=lambda m, name=name, i=i: f"{name}[{i}]: {m}"
            )


def outcome(step: Step) -> tuple[str, str] | None:
    """The type and text of the error that the call raises, if it does; without the time in it."""
    try:
        step.call()
    except Exception as error:
        return type(error).__name__, re.sub(r"^\[F\d+ [\d:.]+ ", "[", str(error))
    return None


# ---- what upstream has to answer: each returns the reason ---------------------------------------------


def mixed_dtypes(step: Step) -> str:
    for name in ("params", "grads", *step.written):
        step.lists[name][1] = step.lists[name][1].double()
    return "more than one dtype"


def mixed_dtypes_between_lists(step: Step) -> str:
    step.lists["grads"][0] = step.lists["grads"][0].double()
    return "more than one dtype"


def integers(step: Step) -> str:
    for name in ("params", "grads", *step.written):
        step.lists[name] = [t.long() for t in step.lists[name]]
    return "dtype other than float32, float16, bfloat16, float64"


def not_dense(step: Step) -> str:
    # Upstream's CPU kernel takes the first numel() elements of the storage for the tensor; so be it.
    for name in ("params", "grads", *step.written):
        step.lists[name] = [t.repeat_interleave(2, dim=-1)[..., ::2] for t in step.lists[name]]
    return "tensor that is not dense"


def strides_differ(step: Step) -> str:
    step.lists["grads"][0] = torch.randn(8, 16, device=step.lists["params"][0].device).t()
    return "shapes or strides that differ between the lists"


def sizes_differ(step: Step) -> str:
    step.lists["grads"][0] = step.lists["grads"][0].reshape(-1)
    return "shapes or strides that differ between the lists"


def short_list(step: Step) -> str:
    step.lists["grads"].pop()
    return "lists of different lengths"


def short_states(step: Step) -> str:
    step.lists[step.written[-1]].pop()
    return "lists of different lengths"


def float64_scale(step: Step) -> str:
    step.options["grad_scale"] = torch.tensor(2.0, dtype=torch.float64)
    return "grad_scale or found_inf that is not one float32 on the parameters' device"


def two_rates(step: Step) -> str:
    step.options["lr"] = torch.tensor([1e-3, 1e-3])
    return "lr that is not one number on the parameters' device"


def no_tensors(step: Step) -> str:
    step.lists = {name: [] for name in step.lists}
    step.options["grad_scale"] = torch.tensor(1.0)  # or no tensor would say which device is meant
    return "no tensors"


SPOILED: list[Callable[[Step], str]] = [
    mixed_dtypes,
    mixed_dtypes_between_lists,
    integers,
    not_dense,
    strides_differ,
    sizes_differ,
    short_list,
    short_states,
    float64_scale,
    two_rates,
    no_tensors,
]


def check_decline(step: Step, reason: str, device: str = "cpu") -> None:
    """Same result or error as without aten_ext, counted under its own reason; an error touches nothing."""
    theirs, before = copy.deepcopy(step), copy.deepcopy(step)
    with aten_ext.disabled():
        expected = outcome(theirs)
    aten_ext.reset_counts()
    found = outcome(step)
    assert found == expected, f"{found} instead of {expected}"
    assert_declined(step.override, device, reason)
    assert_same_bits(step, theirs)
    if expected is not None and device == "cuda":
        assert_same_bits(step, before)


def every_flag(flags: dict[str, tuple[Any, ...]], device: str) -> Iterator[dict[str, Any]]:
    """Options of a step, for all values of ``flags`` together. A ``grad_scale`` of None is not passed."""
    for values in itertools.product(*flags.values()):
        options = dict(zip(flags, values, strict=True))
        if (scale := options.pop("grad_scale", None)) is not None:
            options["grad_scale"] = torch.tensor(scale, device=device)
            options["found_inf"] = torch.tensor(0.0, device=device)
        yield options


# Elements of a tensor, and how many it is out of step by. Upstream's kernel has code of its own for tensors
# that are multiples of four, on aligned addresses. So many elements that one rounding shows.
KINDS_OF_TENSORS = ((4096, 0), (4098, 0), (4096, 1))


class FusedStepTests:
    """The tests. A subclass says how to make a step, and what upstream's CUDA kernel rounds oddly."""

    def make(self, maker: Maker, **options: Any) -> Step:
        """A step over tensors of ``maker``, its options changed by ``options``."""
        raise NotImplementedError

    def reference(self, step: Step) -> dict[str, list[Tensor]]:
        """The written lists after the step, computed in float64 from the rounded inputs."""
        raise NotImplementedError

    def rounds_unlike_itself(self, step: Step) -> bool:
        """Whether upstream's CUDA kernel rounds one element of this step otherwise than the next."""
        return False

    def is_broken_upstream(self, device: str, dtype: torch.dtype) -> bool:
        """Whether upstream's answer is wrong, and so the fused kernel leaves the call to it."""
        return False

    # Whether the fused kernel on CUDA takes a ``grad_scale``.
    scales_on_cuda = True

    def takes_on_cuda(self, options: dict[str, Any]) -> bool:
        """Whether these options are not a reason to decline."""
        return "grad_scale" not in options or self.scales_on_cuda

    # What upstream's compiler may have made code of its own for: options, and values that lead there.
    flags: dict[str, tuple[Any, ...]]

    # How many tensors one launch takes, with small kernel arguments and with large ones, is tested one either
    # side of: (small, large).
    capacities: tuple[int, int]

    def check(self, step: Step, device: str) -> None:
        """Ours is upstream's, to the bit, and no further from float64."""
        theirs, exact, before = step.upstream(), self.reference(step), step.clone()
        aten_ext.reset_counts()
        step.call()
        assert_ran(step.override, device)
        fp64 = step.lists["params"][0].dtype == torch.float64
        if device == "cuda" and self.rounds_unlike_itself(step):
            tolerance = {"rtol": 1e-14, "atol": 1e-15} if fp64 else {"rtol": 1e-6, "atol": 1e-7}
            for mine, other in zip(step.lists.values(), theirs.lists.values(), strict=True):
                torch.testing.assert_close(mine, other, **tolerance)
            if fp64:
                return  # the reference rounds as often
        else:
            assert_same_bits(step, theirs)
        if "grad_scale" not in step.options:
            for a, b in zip(step.lists["grads"], before.lists["grads"], strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)  # read, never written
        for name in step.written:
            for a, b, t in zip(step.lists[name], theirs.lists[name], exact[name], strict=True):
                if a.numel() and t.isfinite().all():
                    assert (a.double() - t).norm() <= 1.01 * (b.double() - t).norm(), name

    @pytest.mark.parametrize("dtype", FLOATING)
    def test_every_flag(self, device: str, dtype: torch.dtype) -> None:
        """Upstream rounds in another order for some combinations."""
        if self.is_broken_upstream(device, dtype):
            pytest.skip("upstream's CPU kernel is broken in 16 bits")
        for options in every_flag(self.flags, device):
            if device == "cuda" and not self.takes_on_cuda(options):
                continue
            for size, offset in KINDS_OF_TENSORS:
                maker = Maker([(size,)], dtype, device, offset=offset)
                self.check(self.make(maker, **options), device)

    def test_long_lists(self, device: str) -> None:
        small, large = self.capacities
        for count in (small, small + 1, large, large + 1, 2000):
            self.check(self.make(Maker([(1 + 37 * i % 90,) for i in range(count)], device=device)), device)

    def test_one_large_among_many_small(self, device: str) -> None:
        shapes: list[tuple[int, ...]] = [(3,)] * 50 + [(300_001,)] + [(7,)] * 50
        self.check(self.make(Maker(shapes, device=device)), device)

    def test_found_inf_changes_nothing(self, device: str) -> None:
        scale = {"found_inf": torch.tensor(1.0, device=device)}
        if device == "cpu" or self.scales_on_cuda:
            scale["grad_scale"] = torch.tensor(2.0, device=device)
        step = self.make(Maker(SHAPES, device=device), **scale)
        before = step.clone()
        step.call()
        assert_ran(step.override, device)
        assert_same_bits(step, before)

    @pytest.mark.parametrize("count", [1, 3])
    def test_only_empty_tensors(self, device: str, count: int) -> None:
        """Nothing to update is not an error, and nothing outside the list is looked at."""
        step = self.make(Maker([(0,), (3, 0)][: max(1, count - 1)] * count, device=device))
        step.call()
        assert_ran(step.override, device)

    def test_non_finite_gradients(self, device: str) -> None:
        step = self.make(Maker([(40,)], device=device))
        step.lists["grads"][0][:6] = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e20, -1e30, 1e-40])
        self.check(step, device)

    def shared(self, name: str, kind: str, **options: Any) -> Step:
        """A step in which a tensor of the list ``name`` has memory in common with another tensor."""
        step = self.make(Maker([(40_000,)] * 4), **options)
        tensors = step.lists[name]
        if kind == "the same twice":
            tensors[3] = tensors[0]
        elif kind == "one element":
            memory = torch.cat([tensors[1], tensors[2]])
            tensors[1], tensors[2] = memory[:40_000], memory[39_999:79_999]
        elif kind == "a part of another's":
            memory = torch.cat([tensors[1], tensors[2]])
            tensors[1] = memory[64:40_064]
            step.lists["grads"][2] = memory[40_000:]
        else:  # a view of all of it
            step.lists["grads"][2] = tensors[1].view(-1)
        return step

    @pytest.mark.parametrize(
        "kind", ["the same twice", "one element", "a part of another's", "another list's"]
    )
    def test_memory_in_common(self, kind: str) -> None:
        """Upstream takes one tensor after the other; ours all at once, and so not these."""
        reason = "tensors that share memory"
        written = self.shared("params", "the same twice").written
        for name in written:
            check_decline(self.shared(name, kind), reason)
        if kind in ("the same twice", "one element"):
            check_decline(self.shared("grads", kind, grad_scale=torch.tensor(2.0)), reason)

    def test_parts_of_one_buffer(self) -> None:
        """Neighbours in memory do not overlap: in order, in reverse, a list in another's gaps."""
        for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
            step = self.make(Maker([(10_000,)] * 4))
            written = [step.lists[name] for name in step.written]
            buffer = torch.cat([t for tensors in zip(*written, strict=True) for t in tensors])
            pieces = buffer.split(10_000)
            for which, tensors in enumerate(written):
                tensors[:] = [pieces[i * len(written) + which] for i in order]
            step.lists["grads"] = list(torch.cat(step.lists["grads"]).split(10_000))
            step.lists["grads"][3] = step.lists["grads"][0]  # read only: anybody's
            theirs = step.upstream()
            aten_ext.reset_counts()
            step.call()
            assert_ran(step.override, "cpu")
            assert_same_bits(step, theirs)

    def test_gradients_in_common_that_are_read_only(self) -> None:
        """One gradient of two parameters is fine, as long as nobody unscales it."""
        step = self.make(Maker([(10_000,)] * 4))
        step.lists["grads"][3] = step.lists["grads"][0]
        self.check(step, "cpu")

    def test_empty_tensors_share_nothing(self) -> None:
        step = self.make(Maker([(100,), (0,), (0,)]))
        for name in step.written:
            step.lists[name][1] = step.lists[name][0][50:50]
            step.lists[name][2] = step.lists[name][1]
        self.check(step, "cpu")

    def test_single_thread(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            self.check(self.make(Maker([(30_000,)] * 5)), "cpu")
        finally:
            torch.set_num_threads(threads)

    def test_copy_on_write_tensors(self) -> None:
        """Gradients are read without a copy; what is written leaves the tensor it was cloned from alone."""
        source = self.make(Maker([(100,)]))
        before = source.clone()
        lists = {name: [torch._lazy_clone(t) for t in tensors] for name, tensors in source.lists.items()}
        step = dataclasses.replace(source, lists=lists)
        theirs = before.upstream()
        aten_ext.reset_counts()
        step.call()
        assert_ran(step.override, "cpu")
        assert torch._C._is_cow_tensor(lists["grads"][0]) and not torch._C._is_cow_tensor(lists["params"][0])
        assert_same_bits(step, theirs)
        assert_same_bits(source, before)

    def test_steps_of_every_thread(self) -> None:
        """Calls from several threads at once."""
        steps = [self.make(Maker([(500,)] * 40, seed=i)) for i in range(4)]
        expected = [step.upstream() for step in steps]
        aten_ext.reset_counts()
        threads = [threading.Thread(target=step.call) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert aten_ext.counts("CPU")[steps[0].override].ran == 4
        for step, theirs in zip(steps, expected, strict=True):
            assert_same_bits(step, theirs)

    @pytest.mark.parametrize("spoil", SPOILED)
    def test_decline_is_upstream(self, spoil: Callable[[Step], str]) -> None:
        step = self.make(Maker([(16, 8), (8, 4)]))
        check_decline(step, spoil(step))

    @pytest.mark.parametrize("spoil", [short_list, short_states])
    def test_short_lists_at_cuda(self, spoil: Callable[[Step], str]) -> None:
        """The rule alone, asked with meta tensors: such a call is not made.

        Upstream's CUDA kernels (2.11) compare the lists tensor by tensor as far as the first one goes, read
        behind the end of a shorter one, and crash.
        """
        step = self.make(Maker([(16, 8), (8, 4)], device="meta"))
        reason = spoil(step)
        operator = getattr(torch, step.op)
        answer = aten_ext.explain(operator, *step.lists.values(), key="CUDA", **step.options)
        assert (answer.override, answer.reason) == (step.op, reason)

    @pytest.mark.gpu
    @pytest.mark.parametrize("spoil", [not_dense, sizes_differ, strides_differ])
    def test_decline_is_upstream_on_gpu(self, spoil: Callable[[Step], str]) -> None:
        step = self.make(Maker([(16, 8), (8, 4)], device="cuda"))
        check_decline(step, spoil(step), "cuda")

    def test_disabled_is_counted(self, device: str) -> None:
        step = self.make(Maker([(4,)], device=device))
        with aten_ext.disabled(step.op):
            step.call()
        counts = aten_ext.counts(device.upper())[step.op]
        assert (counts.disabled, counts.ran) == (1, 0)

    @pytest.mark.gpu
    def test_graph_capture(self) -> None:
        """Captured, replayed with new gradients, and equal to the same steps without a graph."""
        shapes: list[tuple[int, ...]] = [(1000,), (7,)] * 50
        step = self.make(Maker(shapes, device="cuda"))
        expected = step.clone()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.make(Maker([(4,)], device="cuda")).call()  # load the kernel outside the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step.call()
        for seed in range(5):
            fresh = Maker(shapes, device="cuda", seed=seed).many()
            for target in (step, expected):
                for mine, new in zip(target.lists["grads"], fresh, strict=True):
                    mine.copy_(new)
            graph.replay()
            with aten_ext.disabled():
                expected.call()
        torch.cuda.synchronize()
        assert aten_ext.counts("CUDA")[step.op].ran == 2, "once to load the kernel, once captured"
        assert_same_bits(step, expected)

    @pytest.mark.gpu
    def test_no_synchronisation(self) -> None:
        one = torch.ones((), device="cuda")
        plain = self.make(Maker([(100,)] * 10, device="cuda"))
        scale = {"grad_scale": one} if self.scales_on_cuda else {}
        full = self.make(Maker([(100,)] * 10, device="cuda"), lr=one, found_inf=one * 0, **scale)
        plain.call()
        torch.cuda.set_sync_debug_mode("error")
        try:
            full.call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert_ran(plain.override, "cuda")
        assert_ran(full.override, "cuda")
