"""DDP and FSDP2 under torchrun: the same losses and weights with the overrides on and off, calls counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import aten_ext
from paths import SCRIPTS
from torch_databases.table import comparable
from training import EXACT

SCRIPT = SCRIPTS / "train_distributed.py"
STEPS = 8
APART = 1e-5
"""Mean distance of the twins' weights, of which each step moves most by 1e-3."""
ARGUMENTS = f"--steps {STEPS} --width 32 --layers 2 --vocabulary 61 --batch 2 --length 8".split()

ENGINES = pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
RECURRENT = pytest.mark.parametrize("model", ["gru", "lstm"])

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="a torch without torch.distributed")


def torchrun(engine: str, ranks: int, file: Path, *options: str, **environment: str) -> dict[str, Any]:
    """What the script wrote. Loopback only, a free port of torchrun's choice, one thread a process."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("ATEN_EXT")}
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
    run = subprocess.run(
        [*command, str(SCRIPT), engine, *ARGUMENTS, *options, "--json", str(file)],
        env=inherited | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    # 1: the weights differ. What that means depends on which overrides ran.
    assert run.returncode in (0, 1) and file.exists(), run.stderr[-4000:]
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def check(result: dict[str, Any], key: str, ranks: int) -> None:
    """Route: the optimizer's fused kernel, on each rank, at each step. Value: upstream's."""
    assert result["ranks"] == len(result["counts"]) == ranks
    for counts in result["counts"]:
        assert counts["_fused_adamw_"] == {"ran": STEPS, "disabled": STEPS, "declined": {}}
        for name, c in comparable(counts, {name: c["ran"] for name, c in counts.items()}).items():
            # Both twins make the same calls, and each call of either is counted once.
            assert c["disabled"] == c["ran"] + sum(c["declined"].values()), name
    ran = {name for counts in result["counts"] for name, c in counts.items() if c["ran"]}
    losses = result["losses"]
    if ran <= EXACT[key]:
        assert result["same_weights"]
        assert losses["aten_ext"] == losses["upstream"]
    else:
        assert losses["aten_ext"] == pytest.approx(losses["upstream"], rel=1e-4)
        assert result["weights_apart"] < APART
    assert len(set(losses["upstream"])) == STEPS, "it trains"


def check_recurrent(result: dict[str, Any], model: str) -> None:
    """Route: forward and backward of the recurrent layers ran here, on each rank, at each step."""
    assert result["model"] == model
    names = ("_cudnn_rnn", "_cudnn_rnn_backward") if result["device"] != "cpu" else (f"{model}.input",)
    for counts in result["counts"]:
        for name in names:
            assert counts[name] == {"ran": STEPS, "disabled": STEPS, "declined": {}}, name


def check_cat(result: dict[str, Any], key: str) -> None:
    """FSDP2 puts shards by columns together with cat: each of its calls is an entry's, if there is one."""
    overridden = any(o.name == "cat" and key in o.keys for o in aten_ext.overrides())
    for operators in result["operators"]:
        numbers = operators["aten::cat"]
        assert numbers["seen"] > 0, "the engine no longer calls cat: this test looks at the wrong thing"
        assert numbers["counted"] == (numbers["seen"] if overridden else 0)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="a torch without gloo")
def test_ddp_on_cpu(tmp_path: Path) -> None:
    result = torchrun("ddp", 2, tmp_path / "ddp.json", CUDA_VISIBLE_DEVICES="")
    assert (result["backend"], result["device"]) == ("gloo", "cpu")
    check(result, "CPU", 2)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="a torch without gloo")
def test_fsdp2_on_cpu(tmp_path: Path) -> None:
    result = torchrun("fsdp2", 2, tmp_path / "fsdp2.json", CUDA_VISIBLE_DEVICES="")
    assert (result["backend"], result["device"]) == ("gloo", "cpu")
    check(result, "CPU", 2)
    check_cat(result, "CPU")
    first, second = result["shards"]
    assert 0 in second and 0 not in first, "one rank has an empty shard"
    assert (first[1], second[1]) == (31 * 32, 30 * 32), "the embedding's rows are shared out unevenly"


@pytest.mark.skipif(not dist.is_gloo_available(), reason="a torch without gloo")
@pytest.mark.parametrize(("engine", "model"), [("ddp", "lstm"), ("fsdp2", "gru")])
def test_recurrent_layers_on_cpu(engine: str, model: str, tmp_path: Path) -> None:
    """On the CPU the backward belongs to the forward's node: upstream's would have counted more calls."""
    result = torchrun(engine, 2, tmp_path / "result.json", "--model", model, CUDA_VISIBLE_DEVICES="")
    check(result, "CPU", 2)
    check_recurrent(result, model)


@pytest.mark.multigpu
@ENGINES
def test_two_gpus(engine: str, tmp_path: Path) -> None:
    result = torchrun(engine, 2, tmp_path / "result.json")
    assert result["backend"] == "nccl"
    check(result, "CUDA", 2)
    if engine == "fsdp2":
        check_cat(result, "CUDA")


@pytest.mark.multigpu
@RECURRENT
@ENGINES
def test_recurrent_layers_on_two_gpus(engine: str, model: str, tmp_path: Path) -> None:
    result = torchrun(engine, 2, tmp_path / "result.json", "--model", model)
    assert result["backend"] == "nccl"
    check(result, "CUDA", 2)
    check_recurrent(result, model)


@pytest.mark.gpu
@ENGINES
def test_one_gpu(engine: str, tmp_path: Path) -> None:
    """The same program with one process: NCCL with nobody to talk to."""
    result = torchrun(engine, 1, tmp_path / "result.json", CUDA_VISIBLE_DEVICES="0")
    assert result["backend"] == "nccl"
    check(result, "CUDA", 1)


@pytest.mark.gpu
@RECURRENT
@ENGINES
def test_recurrent_layers_on_one_gpu(engine: str, model: str, tmp_path: Path) -> None:
    result = torchrun(engine, 1, tmp_path / "result.json", "--model", model, CUDA_VISIBLE_DEVICES="0")
    assert result["backend"] == "nccl"
    check(result, "CUDA", 1)
    check_recurrent(result, model)


@pytest.mark.gpu
@pytest.mark.skipif(not dist.is_gloo_available(), reason="a torch without gloo")
@RECURRENT
def test_recurrent_layers_of_two_processes_on_one_gpu(model: str, tmp_path: Path) -> None:
    options = ("--model", model, "--gloo")
    result = torchrun("ddp", 2, tmp_path / "result.json", *options, CUDA_VISIBLE_DEVICES="0")
    assert result["backend"] == "gloo" and result["device"] != "cpu"
    check(result, "CUDA", 2)
    check_recurrent(result, model)


def test_without_torchrun_it_says_so() -> None:
    inherited = {k: v for k, v in os.environ.items() if k != "LOCAL_RANK"}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "ddp"], env=inherited, capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (2, "", 1)
    assert "torchrun" in run.stderr
