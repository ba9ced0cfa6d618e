"""The model: a GRU encoder-decoder with attention, in plain ``torch.nn``."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class GraphemeToPhoneme(nn.Module):
    """Spelling to pronunciation.

    Sizes in the comments: B words, T letters, U phonemes and marks, H hidden, E = H / 2 embedding, P phoneme
    ids.
    """

    def __init__(self, letters: int, phonemes: int, hidden: int) -> None:
        """Build the model for so many letter ids and P phoneme ids, with H = ``hidden``, at least 1."""
        super().__init__()
        embedding = max(1, hidden // 2)
        self.letter_embedding = nn.Embedding(letters, embedding)
        self.encoder = nn.GRU(embedding, hidden, batch_first=True, bidirectional=True)
        self.to_keys = nn.Linear(2 * hidden, hidden)
        self.to_state = nn.Linear(2 * hidden, hidden)
        self.phoneme_embedding = nn.Embedding(phonemes, embedding)
        self.decoder = nn.GRU(2 * hidden + embedding, hidden, batch_first=True)
        self.readout = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, phonemes))

    def forward(self, letters: Tensor, inputs: Tensor) -> Tensor:
        """Logits of each next phoneme, given the right ones before it.

        Args:
            letters: [B, T] int64, words of T letters each.
            inputs: [B, U] int64, the mark that starts a word and then its phonemes.

        Returns:
            [B, U, P] in the parameters' dtype.
        """
        memory, keys, state = self._encode(letters)
        features = []
        for embedded in self.phoneme_embedding(inputs).unbind(1):
            feature, state = self._step(embedded, state, memory, keys)
            features.append(feature)
        logits: Tensor = self.readout(torch.stack(features, dim=1))
        return logits

    @torch.no_grad()
    def greedy(self, letters: Tensor, start: int, end: int, longest: int = 32) -> Tensor:
        """Take the likeliest phoneme at each step until every word has ended or ``longest`` ids are out.

        Args:
            letters: [B, T] int64.
            start: the id that stands before the first phoneme.
            end: the id that stands after the last one.
            longest: at most so many ids a word, ``end`` counted.

        Returns:
            [B, at most longest] int64; what follows a word's first ``end`` means nothing.
        """
        memory, keys, state = self._encode(letters)
        token = letters.new_full((len(letters),), start)  # [B]
        ended = torch.zeros_like(token, dtype=torch.bool)
        decoded = []
        for _ in range(longest):
            feature, state = self._step(self.phoneme_embedding(token), state, memory, keys)
            token = self.readout(feature).argmax(dim=1)
            decoded.append(token)
            ended |= token == end
            if ended.all():
                break
        return torch.stack(decoded, dim=1)

    def _encode(self, letters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the decoder attends to [B, T, 2H], the keys to it [B, T, H], and its first state [1, B, H]."""
        memory, last = self.encoder(self.letter_embedding(letters))  # [B, T, 2H], [2, B, H]
        state = torch.tanh(self.to_state(torch.cat([last[0], last[1]], dim=1)))
        return memory, self.to_keys(memory), state.unsqueeze(0)

    def _step(self, embedded: Tensor, state: Tensor, memory: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """One decoder step: embedded [B, E] and state [1, B, H] -> features [B, 3H] and the next state."""
        scores = torch.bmm(keys, state[0].unsqueeze(2)) * keys.shape[2] ** -0.5  # [B, T, 1]
        weights = scores.softmax(dim=1)
        context = torch.bmm(weights.transpose(1, 2), memory).squeeze(1)  # [B, 2H]
        output, state = self.decoder(torch.cat([context, embedded], dim=1).unsqueeze(1), state)
        return torch.cat([output.squeeze(1), context], dim=1), state


def masked_loss(logits: Tensor, targets: Tensor, pad: int) -> Tensor:
    """Mean cross-entropy in nats a phoneme, a scalar; targets equal to ``pad`` do not count.

    Args:
        logits: [B, U, P].
        targets: [B, U] int64, at least one of them not ``pad``.
        pad: the id that fills up the shorter words of a batch.
    """
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad)
