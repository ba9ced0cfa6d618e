"""addmm, mm and _addmm_activation on a GPU: parity at every tile height, errors, and in programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import aten_ext
from aten_ext.tune import linear
from made_up_tables import all_of
from ops.linear.cases import FAST, HALF, NAMES, Linear


@pytest.mark.gpu
@pytest.mark.parametrize("transposed", [True, False], ids=["weight", "row-major"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("m", [1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 63, 64])
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (3072, 768), (4096, 4096), (1000, 1280), (50264, 256), (8, 16384),
        (1001, 1283), (770, 3074), (1, 17), (50257, 250),  # rows that are no whole vectors
    ],
)  # fmt: skip
def test_parity(n: int, k: int, m: int, dtype: torch.dtype, transposed: bool) -> None:
    """Every tile height, one either side, with shapes that do and do not fill whole tiles and clusters."""
    case = Linear(m, n, k, dtype, transposed=transposed)
    for name in FAST:
        case.compare(name)


@pytest.mark.gpu
def test_same_errors_as_upstream() -> None:
    """What upstream rejects it still does, with its own type and text."""
    a, w = torch.zeros(8, 32, device="cuda"), torch.zeros(16, 32, device="cuda").t()
    calls: list[Callable[[], object]] = [
        lambda: torch.mm(a, w[1:]),
        lambda: torch.mm(a, w.half()),
        lambda: torch.mm(a[0], w),
        lambda: torch.addmm(torch.zeros(15, device="cuda"), a, w),
        lambda: torch.addmm(torch.zeros(16), a, w),
        lambda: torch.addmm(torch.zeros(16, device="cuda"), a, w, alpha=1j),
        lambda: torch.mm(a, w, out=torch.zeros(8, 16, device="cuda", dtype=torch.half)),
    ]
    for call in calls:
        errors = []
        for name in ("on", "off"):
            (aten_ext.enable if name == "on" else aten_ext.disable)(*NAMES)
            with pytest.raises(Exception) as error:
                call()
            errors.append((type(error.value), str(error.value)))
        aten_ext.enable(*NAMES)
        assert errors[0] == errors[1]


@pytest.mark.gpu
def test_beta_zero_ignores_a_bias_of_nan() -> None:
    case = Linear(4, 512, 512, torch.float32)
    bias = torch.full((512,), torch.nan, device="cuda")
    aten_ext.reset_counts()
    result = torch.addmm(bias, case.mat1, case.mat2, beta=0)
    assert aten_ext.counts("CUDA")["addmm"].ran == 1
    assert torch.equal(result, torch.mm(case.mat1, case.mat2))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mm.out", "addmm.out", "_addmm_activation.out"])
def test_out(name: str) -> None:
    """Into a slice: nothing beside it is written."""
    case = Linear(8, 500, 512, torch.float32)
    memory = torch.full((10, 512), 7.0, device="cuda")
    out = memory[1:9, 3:503]
    aten_ext.reset_counts()
    assert case.call(name, out=out).data_ptr() == out.data_ptr()
    assert aten_ext.counts("CUDA")[name].ran == 1
    assert torch.equal(out, case.call(name.removesuffix(".out")))
    out.fill_(7.0)
    assert (memory == 7.0).all()


# ---- in programs -------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAST)
def test_graph_capture(name: str) -> None:
    case = Linear(8, 1000, 2048, torch.bfloat16)
    expected = case.call(name)
    graph = torch.cuda.CUDAGraph()
    aten_ext.reset_counts()
    with torch.cuda.graph(graph):
        captured = case.call(name)
    assert aten_ext.counts("CUDA")[name].ran == 1
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, expected)


@pytest.mark.gpu
def test_another_stream() -> None:
    case = Linear(16, 4096, 4096, torch.float32)
    expected = case.call("mm")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = case.call("mm")
    stream.synchronize()
    assert torch.equal(result, expected)


@pytest.mark.gpu
def test_autocast_and_training() -> None:
    """nn.Linear under autocast, forward and backward: fp32 weights, bf16 products."""
    layer = torch.nn.Linear(512, 1024, device="cuda")
    x = torch.randn(8, 512, device="cuda", requires_grad=True)

    def step() -> list[torch.Tensor]:
        layer.zero_grad()
        x.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x).relu()
        y.float().square().mean().backward()
        assert x.grad is not None and layer.weight.grad is not None
        return [y, x.grad, layer.weight.grad]

    aten_ext.reset_counts()
    ours = step()
    counts = aten_ext.counts("CUDA")
    assert counts["addmm"].ran == 1 and counts["mm"].ran >= 1
    with aten_ext.disabled():
        theirs = step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_encoder_fast_path(dtype: torch.dtype, activation: str) -> None:
    """In inference its feed-forward part calls _addmm_activation, in C++; each layer once."""
    layer = torch.nn.TransformerEncoderLayer(
        256, 4, 1024, activation=activation, batch_first=True, device="cuda", dtype=dtype
    )
    encoder = torch.nn.TransformerEncoder(layer, 3).eval()
    x = torch.randn(2, 8, 256, device="cuda", dtype=dtype)
    with torch.inference_mode():
        aten_ext.reset_counts()
        ours = encoder(x)
        counts = aten_ext.counts("CUDA")
        assert (counts["_addmm_activation"].ran, dict(counts["_addmm_activation"].declined)) == (3, {})
        with aten_ext.disabled():
            theirs = encoder(x)
    tolerance = {torch.float32: 1e-5, torch.half: 5e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.gpu
def test_mlp() -> None:
    """A gated MLP as language models have it, one token: three products without a bias."""
    gate, up, down = (
        torch.nn.Linear(i, o, bias=False, device="cuda", dtype=torch.bfloat16)
        for i, o in ((1024, 2816), (1024, 2816), (2816, 1024))
    )
    x = torch.randn(1, 1, 1024, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        aten_ext.reset_counts()
        ours = down(torch.nn.functional.silu(gate(x)) * up(x))
        assert aten_ext.counts("CUDA")["mm"].ran == 3
        with aten_ext.disabled():
            theirs = down(torch.nn.functional.silu(gate(x)) * up(x))
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.gpu
def test_what_was_declined_is_known_until_a_table_changes() -> None:
    """A rule is not asked twice about a call, but about one that differs, and by a new table."""
    device = torch.device("cuda", torch.cuda.current_device())
    name, capability, multiprocessors = torch.ops.aten_ext.table_gpu(device)
    mat1, weight = torch.randn(8, 256, device="cuda"), torch.randn(512, 256, device="cuda")
    reason = "shape that upstream multiplies faster"
    for percent in (50, 255, 50):  # the fixture takes its table away again
        for family in linear.TABLES:
            torch.ops.aten_ext.add_table(family, name, capability, multiprocessors, True, all_of(percent))
        aten_ext.reset_counts()
        for _ in range(3):
            torch.mm(mat1, weight.t())
        counts = aten_ext.counts("CUDA")["mm"]
        expected = (0, {reason: 3}) if percent == 50 else (3, {})
        assert (counts.ran, dict(counts.declined)) == expected
    with pytest.raises(RuntimeError):
        torch.mm(mat1, weight)
    aten_ext.reset_counts()
    torch.mm(mat1.t(), torch.randn(8, 16, device="cuda"))
    assert dict(aten_ext.counts("CUDA")["mm"].declined) == {"more than 64 rows": 1}
