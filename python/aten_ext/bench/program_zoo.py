"""The programs that ``bench programs`` runs, from their own libraries' classes and configurations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aten_ext.bench.case import Call

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class Unavailable(Exception):
    """The program's library is missing or does not fit this torch; the text says so in one line."""


Forward = Callable[[], Any]
Made = tuple[Any, Forward, Callable[[Any], Any]]
"""A module, what calls it on a batch, and what makes a loss of the result."""


@dataclass(frozen=True)
class Program:
    """One program."""

    name: str
    build: Callable[[bool, str, Any], Made]
    """From whether the size is to be reduced, the device and the dtype."""
    kinds: tuple[str, ...] = ("training", "inference")
    dtypes: tuple[str, ...] = ("float32",)
    autocast: bool = False
    """Whether it runs under autocast to bfloat16, its weights in the case's dtype."""

    def make(self, what: str, small: bool, device: str, dtype: torch.dtype) -> Call:
        """A call that makes one training step, or one inference.

        Raises:
            Unavailable: its library is missing or broken.
        """
        import torch

        with torch.device(device):  # random weights of a GPU's own
            model, forward, loss_of = self.build(small, device, dtype)
        autocast = partial(torch.autocast, device, torch.bfloat16, enabled=self.autocast)
        if what == "inference":
            model.eval()

            def infer() -> None:
                with torch.inference_mode(), autocast():
                    forward()

            return infer
        model.train()
        # So small a rate that the weights stay where they are: with gradients near zero a CPU computes with
        # denormals, which takes many times as long. capturable: a graph refuses the step otherwise.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True, capturable=device == "cuda")

        def step() -> None:
            optimizer.zero_grad()
            with autocast():
                loss = loss_of(forward())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        return step


def _library(name: str, *names: str) -> list[Any]:
    """Attributes of a module, which is imported."""
    package = name.partition(".")[0]
    try:
        module = importlib.import_module(name)
        return [getattr(module, each) for each in names]
    except ModuleNotFoundError as error:
        if error.name == package:
            raise Unavailable(f"needs the package {package}: pip install {package}") from error
        raise Unavailable(f"the package {package} does not work here: {error}") from error
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise Unavailable(f"the package {package} does not work with this torch: {reason}") from error


def _mean(result: Any) -> Any:
    """A loss of whatever a model gives: its cost is that of any other."""
    return result.float().square().mean()


def _of_logits(result: Any) -> Any:
    return _mean(result.logits)


# ---- Hugging Face transformers ----------------------------------------------------------------------


def _tokens(rows: int, length: int, vocabulary: int, device: str) -> Tensor:
    import torch

    return torch.randint(5, vocabulary, (rows, length), device=device)


def _language_model(
    configuration: str, model: str, sizes: dict[str, Any], rows: int, length: int, small: bool, *at: Any
) -> Made:
    device, dtype = at
    configure, make = _library("transformers", configuration, model)
    made = make(configure(**sizes)).to(device=device, dtype=dtype)
    ids = _tokens(*((2, 32) if small else (rows, length)), min(sizes.get("vocab_size", 1000), 1000), device)
    return made, lambda: made(input_ids=ids, use_cache=False), _of_logits


def _gpt2(small: bool, *at: Any) -> Made:
    sizes = {"n_layer": 2 if small else 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    return _language_model("GPT2Config", "GPT2LMHeadModel", sizes, 8, 512, small, *at)


def _bert(small: bool, device: str, dtype: Any) -> Made:
    configure, make = _library("transformers", "BertConfig", "BertForMaskedLM")
    made = make(configure(num_hidden_layers=2 if small else 12)).to(device=device, dtype=dtype)
    ids = _tokens(2 if small else 16, 32 if small else 128, 1000, device)
    return made, lambda: made(input_ids=ids), _of_logits


def _llama(small: bool, *at: Any) -> Made:
    """Two layers of Llama 3 8B with a small vocabulary: all 32 do not fit into most GPUs with a training."""
    sizes = {
        "hidden_size": 512 if small else 4096,
        "intermediate_size": 1792 if small else 14336,
        "num_hidden_layers": 2,
        "num_attention_heads": 4 if small else 32,
        "num_key_value_heads": 1 if small else 8,
        "vocab_size": 1024,
    }
    return _language_model("LlamaConfig", "LlamaForCausalLM", sizes, 4, 512, small, *at)


def _qwen(rows: int, small: bool, device: str, dtype: Any) -> Made:
    """One step of decoding Qwen2.5 0.5B, after 128 tokens; its cache is static, as a graph needs it."""
    configure, make, static = _library("transformers", "Qwen2Config", "Qwen2ForCausalLM", "StaticCache")
    import torch

    config = configure(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=2 if small else 24,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=8192 if small else 151936,
    )
    made = make(config).to(device=device, dtype=dtype).eval()
    before = 16 if small else 128
    cache = static(config=config, max_cache_len=before + 8)
    with torch.inference_mode():
        made(input_ids=_tokens(rows, before, 1000, device), past_key_values=cache, use_cache=True)
    token = _tokens(rows, 1, 1000, device)
    place = torch.tensor([before], device=device)

    def decode() -> Any:
        # The same step again and again: newer caches count by themselves, and would come to their end.
        for layer in cache.layers:
            length = getattr(layer, "cumulative_length", None)
            if isinstance(length, torch.Tensor):
                length.fill_(before)
            elif length is not None:
                layer.cumulative_length = before
        return made(
            input_ids=token,
            past_key_values=cache,
            cache_position=place,
            position_ids=place[None],
            use_cache=True,
        )

    return made, decode, _of_logits


def _whisper(small: bool, device: str, dtype: Any) -> Made:
    """Decoding 16 tokens with Whisper tiny, over 30 seconds of sound that are encoded before."""
    configure, make = _library("transformers", "WhisperConfig", "WhisperForConditionalGeneration")
    import torch

    config = configure(
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
    )
    made = make(config).to(device=device, dtype=dtype).eval()
    sound = torch.randn(1, config.num_mel_bins, 3000, device=device, dtype=dtype)
    with torch.no_grad():
        encoded = made.model.encoder(sound)
    first = torch.full((1, 1), config.decoder_start_token_id, device=device)

    def decode() -> Any:
        token, past = first, None
        for _ in range(4 if small else 16):
            answer = made(
                encoder_outputs=encoded, decoder_input_ids=token, past_key_values=past, use_cache=True
            )
            past = answer.past_key_values
            token = answer.logits[:, -1:].argmax(-1)
        return answer

    return made, decode, _of_logits


# ---- torchvision, torchaudio, PyTorch Geometric ---------------------------------------------------------


def _vision(name: str, small: bool, device: str, dtype: Any) -> Made:
    (make,) = _library("torchvision.models", name)
    import torch

    made = make(weights=None).to(device=device, dtype=dtype)
    side = 64 if small else 224
    images = torch.randn(2 if small else 32, 3, side, side, device=device, dtype=dtype)
    return made, lambda: made(images), _mean


def _wavernn(small: bool, device: str, dtype: Any) -> Made:
    (make,) = _library("torchaudio.models", "WaveRNN")
    import torch

    made = make(upsample_scales=[5, 5, 8], n_classes=512, hop_length=200).to(device=device, dtype=dtype)
    rows, frames = (1, 6) if small else (8, 12)
    wave = torch.randn(rows, 1, (frames - 4) * 200, device=device, dtype=dtype)
    mel = torch.randn(rows, 1, 128, frames, device=device, dtype=dtype)
    return made, lambda: made(wave, mel), _mean


def _tacotron2(small: bool, device: str, dtype: Any) -> Made:
    (make,) = _library("torchaudio.models", "Tacotron2")
    import torch

    made = make().to(device=device, dtype=dtype)
    rows, letters, frames = (2, 20, 10) if small else (16, 100, 300)
    ids = torch.randint(0, 140, (rows, letters), device=device)
    lengths = torch.full((rows,), letters, device=device)
    mel = torch.randn(rows, 80, frames, device=device, dtype=dtype)
    mel_lengths = torch.full((rows,), frames, device=device)
    return made, lambda: made(ids, lengths, mel, mel_lengths)[0], _mean


def _graph(small: bool, device: str) -> tuple[int, Tensor]:
    import torch

    nodes = 200 if small else 20000
    return nodes, torch.randint(0, nodes, (2, 4 * nodes), device=device)


def _gated_graph(small: bool, device: str, dtype: Any) -> Made:
    (make,) = _library("torch_geometric.nn", "GatedGraphConv")
    import torch

    nodes, edges = _graph(small, device)
    made = make(128, num_layers=5).to(device=device, dtype=dtype)
    features = torch.randn(nodes, 128, device=device, dtype=dtype)
    return made, lambda: made(features, edges), _mean


def _attentive(small: bool, device: str, dtype: Any) -> Made:
    (make,) = _library("torch_geometric.nn", "AttentiveFP")
    import torch

    nodes, edges = _graph(small, device)
    made = make(39, 200, 1, edge_dim=10, num_layers=2, num_timesteps=2, dropout=0.2).to(
        device=device, dtype=dtype
    )
    features = torch.randn(nodes, 39, device=device, dtype=dtype)
    edge_features = torch.randn(edges.shape[1], 10, device=device, dtype=dtype)
    molecule = torch.arange(nodes, device=device) // 20
    return made, lambda: made(features, edges, edge_features, molecule), _mean


# ---- torch alone ----------------------------------------------------------------------------------------


def _own(name: str, small: bool, device: str, dtype: Any) -> Made:
    from aten_ext.bench import program_models

    made: nn.Module
    made, inputs = getattr(program_models, name)(small)
    made = made.to(device=device, dtype=dtype)
    given = [each.to(device=device, dtype=dtype if each.is_floating_point() else None) for each in inputs]
    return made, lambda: made(*given), _mean


def _with(function: Callable[..., Made], first: Any) -> Callable[[bool, str, Any], Made]:
    return lambda small, device, dtype: function(first, small, device, dtype)


BOTH = ("float32", "bfloat16")
PROGRAMS: tuple[Program, ...] = (
    Program("GPT-2 124M", _gpt2, dtypes=BOTH),
    Program("Llama 3 8B, 2 layers", _llama, dtypes=BOTH),
    Program("Qwen2.5 0.5B decode B=1", _with(_qwen, 1), ("inference",), BOTH),
    Program("Qwen2.5 0.5B decode B=8", _with(_qwen, 8), ("inference",), BOTH),
    Program("BERT base", _bert, dtypes=BOTH),
    Program("Whisper tiny decode", _whisper, ("inference",), BOTH),
    Program("WaveRNN", _wavernn),
    Program("Tacotron 2", _tacotron2),
    Program("GatedGraphConv", _gated_graph),
    Program("AttentiveFP", _attentive),
    Program("attention seq2seq", _with(_own, "seq2seq")),
    Program("DeepSpeech 2", _with(_own, "deep_speech")),
    Program("DeepSpeech 2 with autocast", _with(_own, "deep_speech"), autocast=True),
    Program("AWD-LSTM", _with(_own, "awd_lstm")),
    Program("PPO with a GRU", _with(_own, "ppo_gru")),
    Program("PPO with an LSTM, CleanRL's loop", _with(_own, "clean_rl_lstm")),
    Program("ResNet-50", _with(_vision, "resnet50")),
    Program("DenseNet-121", _with(_vision, "densenet121")),
)
