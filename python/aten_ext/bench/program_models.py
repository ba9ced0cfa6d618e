"""Recurrent programs that no library defines: networks in plain ``torch.nn``, as their papers have them.

Each function gives a module and its inputs, in full size or reduced. Sizes in the comments: T steps, B rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

Made = tuple[nn.Module, list[Tensor]]


class Seq2Seq(nn.Module):
    """Bahdanau et al. 2015 as PyTorch's tutorial has it: the decoder is a GRU that is called for one step."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        """H = ``hidden``."""
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, hidden), nn.Embedding(vocabulary, hidden)
        self.encoder = nn.GRU(hidden, hidden)
        self.decoder = nn.GRU(2 * hidden, hidden)
        self.query, self.key = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1)
        self.out = nn.Linear(hidden, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """[T, B] and [U, B] to logits [U, B, vocabulary]."""
        memory, state = self.encoder(self.source(source))  # [T, B, H], [1, B, H]
        keys = self.key(memory)
        answers = []
        for word in self.target(target):
            weights = self.score(torch.tanh(keys + self.query(state))).softmax(dim=0)
            context = (weights * memory).sum(dim=0)
            answer, state = self.decoder(torch.cat([word, context], dim=1)[None], state)
            answers.append(answer)
        logits: Tensor = self.out(torch.cat(answers))
        return logits


def seq2seq(small: bool) -> Made:
    """A translation model of 10,000 words; 25 of them decoded one by one."""
    vocabulary, hidden, rows, steps = (1000, 64, 4, 8) if small else (10000, 512, 64, 25)
    ids = [torch.randint(0, vocabulary, (steps, rows)) for _ in range(2)]
    return Seq2Seq(vocabulary, hidden), ids


class DeepSpeech(nn.Module):
    """Amodei et al. 2016: convolutions over a spectrogram, then bidirectional recurrent layers."""

    def __init__(self, bands: int, hidden: int, layers: int) -> None:
        """GRUs of H = ``hidden``, normalised between layers."""
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), stride=(2, 2), padding=(20, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), stride=(2, 1), padding=(10, 5)),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        width = 32 * ((bands + 3) // 4)
        self.recurrent = nn.ModuleList(
            nn.GRU(width if layer == 0 else hidden, hidden, bidirectional=True) for layer in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.out = nn.Linear(hidden, 29)

    def forward(self, sound: Tensor) -> Tensor:
        """[B, 1, bands, frames] to logits [T, B, 29]."""
        x = self.convolutions(sound).flatten(1, 2).permute(2, 0, 1)
        for layer, norm in zip(self.recurrent, self.norms, strict=True):
            both, _ = layer(x)
            x = norm(both.unflatten(2, (2, -1)).sum(dim=2))
        logits: Tensor = self.out(x)
        return logits


def deep_speech(small: bool) -> Made:
    """Five layers of 800, six seconds of sound."""
    bands, hidden, layers, rows, frames = (40, 32, 2, 2, 20) if small else (160, 800, 5, 16, 600)
    return DeepSpeech(bands, hidden, layers), [torch.randn(rows, 1, bands, frames)]


class WeightDropLSTM(nn.Module):
    """Merity et al. 2018: an LSTM language model with DropConnect on the recurrent weights and tied words."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        """Three layers: embedding, hidden, hidden, embedding."""
        super().__init__()
        self.words = nn.Embedding(vocabulary, embedding)
        sizes = [embedding, hidden, hidden, embedding]
        self.layers = nn.ModuleList(nn.LSTM(sizes[i], sizes[i + 1]) for i in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        """[T, B] to logits [T, B, vocabulary]."""
        x = functional.dropout(self.words(ids), 0.4, self.training)
        for layer in self.layers:
            weights: dict[str, Tensor] = dict(layer.named_parameters())
            weights["weight_hh_l0"] = functional.dropout(weights["weight_hh_l0"], 0.5, self.training)
            x, _ = torch.func.functional_call(layer, weights, (x,))
            x = functional.dropout(x, 0.25, self.training)
        return functional.linear(x, self.words.weight)


def awd_lstm(small: bool) -> Made:
    """The sizes for Penn Treebank: 400, 1150, 70 steps of 40 rows."""
    vocabulary, embedding, hidden, steps, rows = (500, 40, 96, 8, 4) if small else (10000, 400, 1150, 70, 40)
    return WeightDropLSTM(vocabulary, embedding, hidden), [torch.randint(0, vocabulary, (steps, rows))]


class Agent(nn.Module):
    """A policy and a value over a recurrent layer."""

    def __init__(self, body: nn.Module, features: int, recurrent: type[nn.RNNBase], hidden: int) -> None:
        """``body`` gives ``features`` for each observation."""
        super().__init__()
        self.body = body
        self.recurrent = recurrent(features, hidden)  # type: ignore[call-arg,arg-type]
        self.heads = nn.ModuleList((nn.Linear(hidden, 4), nn.Linear(hidden, 1)))

    def features_of(self, seen: Tensor) -> Tensor:
        """Of observations [T, B, …]: [T, B, features]."""
        features: Tensor = self.body(seen.flatten(0, 1)).unflatten(0, seen.shape[:2])
        return features

    def answers(self, hidden: Tensor) -> Tensor:
        """[T, B, H] to [T, B, 5]."""
        return torch.cat([head(hidden) for head in self.heads], dim=2)


class PaddedAgent(Agent):
    """As rsl_rl trains: each row is a piece of one episode, and all steps are one call."""

    def forward(self, seen: Tensor) -> Tensor:
        """Observations [T, B, …] to [T, B, 5]."""
        hidden, _ = self.recurrent(self.features_of(seen))
        return self.answers(hidden)


class SteppingAgent(Agent):
    """As CleanRL trains an LSTM: step by step, the state cleared where an episode has ended."""

    def forward(self, seen: Tensor, done: Tensor) -> Tensor:
        """Observations [T, B, …] and the ends of episodes [T, B] to [T, B, 5]."""
        features = self.features_of(seen)
        zeros = features.new_zeros(1, seen.shape[1], self.recurrent.hidden_size)
        state = (zeros, zeros)
        outputs = []
        for step, ended in zip(features, done, strict=True):
            kept = (1.0 - ended).view(1, -1, 1)
            output, state = self.recurrent(step[None], (kept * state[0], kept * state[1]))
            outputs.append(output)
        return self.answers(torch.cat(outputs))


def ppo_gru(small: bool) -> Made:
    """A minibatch of an update: 32 steps of 256 rows with 48 numbers each, a GRU of 128."""
    steps, rows, hidden = (4, 4, 32) if small else (32, 256, 128)
    body = nn.Sequential(nn.Linear(48, 128), nn.ELU(), nn.Linear(128, 128), nn.ELU())
    return PaddedAgent(body, 128, nn.GRU, hidden), [torch.randn(steps, rows, 48)]


def clean_rl_lstm(small: bool) -> Made:
    """A minibatch of CleanRL's ppo_atari_lstm: its convolutions, an LSTM of 128, 128 steps of 2 rows."""
    steps, rows = (4, 2) if small else (128, 2)
    body = nn.Sequential(
        nn.Conv2d(1, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
    )
    inputs = [torch.rand(steps, rows, 1, 84, 84), (torch.rand(steps, rows) < 0.01).float()]
    return SteppingAgent(body, 512, nn.LSTM, 128), inputs
