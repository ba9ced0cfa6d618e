#!/usr/bin/env python3
"""Train a small Transformer, GRU or LSTM with DDP or FSDP2 twice, with the overrides off and on, in turns.

Run it under torchrun, one process a GPU, or on the CPU with gloo:

    torchrun --standalone --nproc-per-node 2 scripts/train_distributed.py fsdp2

With ``--gloo`` processes of DDP may share a GPU, which NCCL refuses.

Rank 0 prints the median step time of both twins, whether their losses and weights are the same to the last
bit, and what the overrides' calls did on every rank; ``--json FILE`` writes all of it to a file. Exit code 1
if the weights differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

import aten_ext
from aten_ext.bench import machine

ENGINES = ("ddp", "fsdp2")
MODELS = ("transformer", "gru", "lstm")
WARM_UP = 3


class Transformer(nn.Module):
    """A language model; B sequences of T tokens, width W, V token ids (an odd number: shards are uneven)."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        """Random weights."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 16, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)
        # One element: with two ranks, one of them holds an empty shard of it.
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [B, T] int64 -> logits [B, T, V]."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(hidden) * self.scale
        return logits


class Recurrent(nn.Module):
    """A language model of recurrent layers; sizes as the Transformer's."""

    def __init__(self, kind: str, vocabulary: int, width: int, layers: int) -> None:
        """Random weights; ``kind``: "gru" or "lstm"."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.GRU if kind == "gru" else nn.LSTM
        self.layers = nn.ModuleList([layer(width, width, layers, batch_first=True)])
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [B, T] int64 -> logits [B, T, V]."""
        hidden, _ = self.layers[0](self.embedding(tokens))
        logits: Tensor = self.head(hidden)
        return logits


@dataclasses.dataclass
class Twin:
    """One copy of the model and what was seen of it. Times are in seconds."""

    enabled: bool
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float] = dataclasses.field(default_factory=list)
    times: list[float] = dataclasses.field(default_factory=list)

    def overrides(self) -> AbstractContextManager[None]:
        """Where its steps are taken."""
        return nullcontext() if self.enabled else aten_ext.disabled()


def shard(model: Transformer | Recurrent) -> nn.Module:
    """FSDP2, layer by layer; the first layer's matrices by columns, which FSDP2 puts together with cat."""

    def by_columns(parameter: nn.Parameter) -> Shard | None:
        even = parameter.ndim == 2 and parameter.shape[1] % dist.get_world_size() == 0
        return Shard(1) if even else None

    for index, layer in enumerate(model.layers):
        fully_shard(layer, shard_placement_fn=by_columns if index == 0 else None)
    fully_shard(model)
    return model


def make_twin(arguments: argparse.Namespace, device: torch.device, enabled: bool) -> Twin:
    """The same weights on every rank and for both twins."""
    torch.manual_seed(0)
    sizes = (arguments.vocabulary, arguments.width, arguments.layers)
    model = Transformer(*sizes) if arguments.model == "transformer" else Recurrent(arguments.model, *sizes)
    model.to(device)
    wrapped = shard(model) if arguments.engine == "fsdp2" else DistributedDataParallel(model)
    return Twin(enabled, wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-3, fused=True))


def step(twin: Twin, tokens: Tensor) -> float:
    """One optimizer step on this rank's tokens [B, T + 1]; the mean loss of all ranks."""
    twin.optimizer.zero_grad()
    logits = twin.model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    twin.optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def train(arguments: argparse.Namespace, device: torch.device) -> tuple[Twin, Twin]:
    """Both twins, step by step in turns, on the same batches."""
    twins = [make_twin(arguments, device, enabled) for enabled in (False, True)]
    aten_ext.reset_counts()
    for index in range(arguments.steps):
        tokens = batch(arguments, device, index)
        for twin in twins if index % 2 else twins[::-1]:
            dist.barrier()
            synchronize(device)
            start = time.perf_counter()
            with twin.overrides():
                twin.losses.append(step(twin, tokens))
            synchronize(device)
            if index >= WARM_UP:
                twin.times.append(time.perf_counter() - start)
    return twins[0], twins[1]


def batch(arguments: argparse.Namespace, device: torch.device, index: int) -> Tensor:
    """This rank's part of batch ``index``: [B, T + 1]."""
    generator = torch.Generator().manual_seed(1000 * index + dist.get_rank())
    shape = (arguments.batch, arguments.length + 1)
    return torch.randint(arguments.vocabulary, shape, generator=generator).to(device)


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if that is what works."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def whole(model: nn.Module) -> list[Tensor]:
    """Every parameter, put together from its shards."""
    return [p.full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]


def counted(key: str) -> dict[str, dict[str, Any]]:
    """This rank's counts at ``key``, by override."""
    return {
        name: {"ran": c.ran, "disabled": c.disabled, "declined": dict(c.declined)}
        for name, c in aten_ext.counts(key).items()
    }


def profiled(twin: Twin, tokens: Tensor, key: str) -> dict[str, dict[str, int]]:
    """One more step of the twin without overrides: calls of each operator as torch's profiler saw them.

    The overrides of an operator (``cat`` and ``cat.out``) together must have counted as many. A fused
    optimizer over DTensors is called twice, once for those and once for the local tensors in them.
    """
    aten_ext.reset_counts()
    with twin.overrides(), profile(activities=[ProfilerActivity.CPU]) as trace:
        step(twin, tokens)
    seen: dict[str, dict[str, int]] = {}
    for event in trace.key_averages():
        seen[event.key] = {"seen": event.count, "counted": 0}
    for name, c in aten_ext.counts(key).items():
        seen.setdefault(f"aten::{name.partition('.')[0]}", {"seen": 0, "counted": 0})["counted"] += c.disabled
    ours = {f"aten::{override.name.partition('.')[0]}" for override in aten_ext.overrides()} | {"aten::cat"}
    return {name: numbers for name, numbers in seen.items() if name in ours}


@contextmanager
def process_group(gloo: bool) -> Iterator[torch.device]:
    """NCCL with a GPU for each process, otherwise gloo; the device of this process.

    Args:
        gloo: take it where there are GPUs too, of which several processes may then share one.
    """
    rank = int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gloo and gpus:
        device = torch.device("cuda", rank % gpus)
        torch.cuda.set_device(device)
        dist.init_process_group("gloo")
    elif gpus > rank:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def run(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Train, compare, and gather what every rank saw."""
    key = device.type.upper()
    # Whatever has a kernel here, also what no benchmark has measured yet.
    aten_ext.disable()
    torch.backends.cudnn.allow_tf32 = False  # of recurrent layers: twins then differ by little
    if arguments.only != ["none"]:
        aten_ext.enable(*(arguments.only or [override.name for override in aten_ext.overrides()]))
    upstream, ours = train(arguments, device)
    counts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(counts, counted(key))
    shards: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shards, [getattr(p, "_local_tensor", p).numel() for p in ours.model.parameters()])
    pairs = list(zip(whole(upstream.model), whole(ours.model), strict=True))
    same = all(torch.equal(a, b) for a, b in pairs)
    apart = sum((a - b).abs().sum(dtype=torch.double).item() for a, b in pairs)
    operators: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(operators, profiled(upstream, batch(arguments, device, 0), key))
    return {
        **machine.describe(),
        "engine": arguments.engine,
        "model": arguments.model,
        "backend": dist.get_backend(),
        "ranks": dist.get_world_size(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "losses": {"upstream": upstream.losses, "aten_ext": ours.losses},
        "same_weights": same,
        "weights_apart": apart / sum(a.numel() for a, _ in pairs),
        "step_ms": {
            name: round(1e3 * statistics.median(twin.times), 3) if twin.times else None
            for name, twin in (("upstream", upstream), ("aten_ext", ours))
        },
        "counts": counts,
        "shards": shards,
        "operators": operators,
    }


def show(result: dict[str, Any]) -> None:
    """What rank 0 prints."""
    times = result["step_ms"]
    what = ", ".join(result[key] for key in ("model", "engine", "backend"))
    print(f"{what}, {result['ranks']} x {result['device']}")
    if times["upstream"]:
        ratio = times["upstream"] / times["aten_ext"]
        print(f"step: upstream {times['upstream']} ms, aten_ext {times['aten_ext']} ms, ratio {ratio:.3f}")
    differ = f"DIFFERENT by {result['weights_apart']:.1e} in the mean"
    print(f"weights: {'the same to the last bit' if result['same_weights'] else differ}")
    print(f"last loss: {result['losses']['upstream'][-1]:.6f}, {result['losses']['aten_ext'][-1]:.6f}")
    for rank, counts in enumerate(result["counts"]):
        ran = ", ".join(f"{name} {c['ran']}" for name, c in counts.items() if c["ran"])
        print(f"rank {rank} ran: {ran or 'nothing'}")


def main() -> int:
    """Parse, train, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--model", choices=MODELS, default=MODELS[0], help="default: %(default)s")
    parser.add_argument("--gloo", action="store_true", help="gloo on GPUs too: processes may share one (ddp)")
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps of each twin (default: 50)")
    parser.add_argument("--width", type=int, default=512, help="a multiple of 16 (default: 512)")
    parser.add_argument("--layers", type=int, default=6, help="default: 6")
    parser.add_argument("--vocabulary", type=int, default=32001, help="token ids (default: 32001)")
    parser.add_argument("--batch", type=int, default=16, help="sequences a rank (default: 16)")
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence (default: 256)")
    parser.add_argument(
        "--only",
        metavar="NAME",
        nargs="+",
        help="overrides that are on in the second twin; 'none': both are upstream (default: all)",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the result to FILE")
    arguments = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        parser.exit(2, "train_distributed.py: start it with torchrun (--help shows how)\n")
    if arguments.gloo and arguments.engine == "fsdp2" and torch.cuda.is_available():
        # gloo gathers by reading what it is given on the CPU: the process dies.
        parser.exit(
            2,
            "train_distributed.py: expected ddp with --gloo on a GPU, got fsdp2\n",
        )
    with process_group(arguments.gloo) as device:
        result = run(arguments, device)
        if dist.get_rank() == 0:
            show(result)
            if arguments.json:
                arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(not result["same_weights"])


if __name__ == "__main__":
    sys.exit(main())
