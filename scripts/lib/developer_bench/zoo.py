"""Whole models with random weights, as their own libraries define them: for ``scripts/bench`` and for tests.

Nothing is downloaded: every model is made from a configuration, and batches are random numbers.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    Batch = dict[str, Tensor]


class Unavailable(Exception):
    """The model's library is not installed, or does not fit this torch; the text says so in one line."""


@dataclass(frozen=True)
class Size:
    """How large a model and its batch are."""

    batch: int
    length: int
    """Tokens of a sequence, or pixels of an image's side."""
    width: int
    """Hidden size; a multiple of 8. ResNet-18 has its own."""
    layers: int
    vocabulary: int
    """Token ids, or classes."""


TINY = Size(batch=4, length=12, width=32, layers=2, vocabulary=61)
"""Fifty training steps in a few seconds on two CPU cores."""
SMALL = Size(batch=8, length=64, width=256, layers=4, vocabulary=4096)
"""For measurements on a CPU."""
BASE = Size(batch=16, length=256, width=768, layers=12, vocabulary=32000)
"""For measurements on a GPU."""


@dataclass(frozen=True)
class Workload:
    """One model, how to feed it, and what it minimises."""

    library: str | None
    """The package that defines the model, or None if it is torch's or our own."""
    build: Callable[[Size], nn.Module]
    """Random weights from torch's generator, on the CPU, in training mode."""
    batch: Callable[[Size], Batch]
    """Random inputs from torch's generator, on the CPU."""
    loss: Callable[[nn.Module, Batch], Tensor]
    """A scalar."""
    outputs: Callable[[nn.Module, Batch], Tensor]
    """What inference gives: logits, or what greedy decoding wrote."""


def library(name: str) -> Any:
    """Import the package ``name``.

    Raises:
        Unavailable: it is missing, or broken: torchvision for another torch raises RuntimeError.
    """
    if importlib.util.find_spec(name) is None:
        raise Unavailable(f"needs the package {name}: pip install {name}")
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise Unavailable(f"the package {name} does not work with this torch: {reason}") from error


def _transformers(*names: str) -> list[Any]:
    """Classes of the package transformers, which imports its parts when they are asked for."""
    package = library("transformers")
    try:
        return [getattr(package, name) for name in names]
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise Unavailable(f"the package transformers does not work here: {reason}") from error


def get(name: str) -> Workload:
    """The workload ``name``, its library imported.

    Raises:
        Unavailable: see :func:`library`.
    """
    workload = WORKLOADS[name]
    if workload.library is not None:
        library(workload.library)
    return workload


# ---- batches ----------------------------------------------------------------------------------------


def _tokens(size: Size) -> Batch:
    import torch

    shape = (size.batch, size.length)
    return {name: torch.randint(3, size.vocabulary, shape) for name in ("inputs", "targets")}


def _images(size: Size) -> Batch:
    import torch

    images = torch.randn(size.batch, 3, size.length, size.length)
    return {"inputs": images, "targets": torch.randint(0, 10, (size.batch,))}


def _speech(size: Size) -> Batch:
    import torch

    frames = torch.randn(size.batch, size.length, N_MELS)
    return {"inputs": torch.randint(3, size.vocabulary, (size.batch, size.length)), "targets": frames}


# ---- Hugging Face transformers ----------------------------------------------------------------------


def _heads(size: Size) -> int:
    """Of 64 channels each, as these models have them, or of 8 in the size for tests."""
    return size.width // (8 if size.width < 64 else 64)


def _gpt2(size: Size) -> nn.Module:
    configure, make = _transformers("GPT2Config", "GPT2LMHeadModel")
    config = configure(
        vocab_size=size.vocabulary,
        n_positions=2 * size.length,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=_heads(size),
        bos_token_id=1,
        eos_token_id=2,
    )
    model: nn.Module = make(config)
    return model.train()


def _bert(size: Size) -> nn.Module:
    configure, make = _transformers("BertConfig", "BertForMaskedLM")
    config = configure(
        vocab_size=size.vocabulary,
        max_position_embeddings=2 * size.length,
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=_heads(size),
    )
    model: nn.Module = make(config)
    return model.train()


def _llama(size: Size) -> nn.Module:
    configure, make = _transformers("LlamaConfig", "LlamaForCausalLM")
    heads = _heads(size)
    config = configure(
        vocab_size=size.vocabulary,
        max_position_embeddings=2 * size.length,
        hidden_size=size.width,
        intermediate_size=3 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
    )
    model: nn.Module = make(config)
    return model.train()


def _t5(size: Size) -> nn.Module:
    configure, make = _transformers("T5Config", "T5ForConditionalGeneration")
    heads = _heads(size)
    config = configure(
        vocab_size=size.vocabulary,
        d_model=size.width,
        d_kv=size.width // heads,
        d_ff=4 * size.width,
        num_layers=size.layers,
        num_heads=heads,
        decoder_start_token_id=0,
    )
    model: nn.Module = make(config)
    return model.train()


def _labelled_loss(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(input_ids=batch["inputs"], labels=batch["targets"]).loss
    return loss


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(input_ids=batch["inputs"]).logits
    return logits


def _generated(model: Any, batch: Batch) -> Tensor:
    """Token ids [B, at most 2 T] that greedy decoding wrote."""
    ids = batch["inputs"]
    written: Tensor = model.generate(
        ids, attention_mask=ids.new_ones(ids.shape), max_new_tokens=8, do_sample=False, pad_token_id=0
    )
    return written


# ---- torchvision ------------------------------------------------------------------------------------


def _resnet18(size: Size) -> nn.Module:
    model: nn.Module = importlib.import_module("torchvision.models").resnet18(num_classes=10)
    return model.train()


def _class_loss(model: nn.Module, batch: Batch) -> Tensor:
    from torch.nn import functional

    return functional.cross_entropy(model(batch["inputs"]), batch["targets"])


def _classes(model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(batch["inputs"])
    return logits


# ---- torch and our own ------------------------------------------------------------------------------

N_MELS = 16


def _tacotron(size: Size) -> nn.Module:
    from developer_bench.tacotron import Tacotron

    return Tacotron(size.vocabulary, size.width, N_MELS)


def _frame_loss(model: nn.Module, batch: Batch) -> Tensor:
    from torch.nn import functional

    return functional.l1_loss(model(batch["inputs"], batch["targets"]), batch["targets"])


def _frames(model: nn.Module, batch: Batch) -> Tensor:
    frames: Tensor = model(batch["inputs"], batch["targets"])
    return frames


def _encoder(size: Size) -> nn.Module:
    from torch import nn

    layer = nn.TransformerEncoderLayer(size.width, _heads(size), 4 * size.width, batch_first=True)
    return nn.Sequential(
        nn.Embedding(size.vocabulary, size.width),
        # Its fast path for inference is another program; without it both run the same operators.
        nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False),
        nn.Linear(size.width, size.vocabulary),
    )


def _token_loss(model: nn.Module, batch: Batch) -> Tensor:
    from torch.nn import functional

    return functional.cross_entropy(model(batch["inputs"]).flatten(0, 1), batch["targets"].flatten())


def _demo(size: Size) -> nn.Module:
    from aten_ext.demo.model import GraphemeToPhoneme

    return GraphemeToPhoneme(size.vocabulary, size.vocabulary, size.width)


def _spelling_loss(model: nn.Module, batch: Batch) -> Tensor:
    from aten_ext.demo.model import masked_loss

    return masked_loss(model(batch["inputs"], batch["targets"]), batch["targets"], pad=0)


def _spelled(model: Any, batch: Batch) -> Tensor:
    written: Tensor = model.greedy(batch["inputs"], start=1, end=2, longest=8)
    return written


WORKLOADS: dict[str, Workload] = {
    "gpt2": Workload("transformers", _gpt2, _tokens, _labelled_loss, _generated),
    "bert": Workload("transformers", _bert, _tokens, _labelled_loss, _logits),
    "llama": Workload("transformers", _llama, _tokens, _labelled_loss, _generated),
    "t5": Workload("transformers", _t5, _tokens, _labelled_loss, _generated),
    "resnet18": Workload("torchvision", _resnet18, _images, _class_loss, _classes),
    "tacotron": Workload(None, _tacotron, _speech, _frame_loss, _frames),
    "transformer_encoder": Workload(None, _encoder, _tokens, _token_loss, _classes),
    "demo": Workload(None, _demo, _tokens, _spelling_loss, _spelled),
}
"""Name -> workload; names as on the command line of ``scripts/bench models``."""
