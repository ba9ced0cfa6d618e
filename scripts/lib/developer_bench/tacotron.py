"""A text-to-speech model in the manner of Tacotron (Wang et al. 2017, arXiv:1703.10135), in ``torch.nn``.

It has that model's kinds of layers, not its sizes: a pre-net, a convolution bank whose outputs are
concatenated, a bidirectional GRU as encoder, an attention GRU cell, residual LSTM cells as decoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Tacotron(nn.Module):
    """Letters to mel spectrogram frames, with teacher forcing.

    Sizes in the comments: B sentences, T letters, U frames, H hidden, M mel bands.
    """

    def __init__(self, letters: int, hidden: int, mels: int, widths: tuple[int, ...] = (1, 3, 5)) -> None:
        """Build it for so many letter ids; H = ``hidden`` (even), M = ``mels``, a convolution a width."""
        super().__init__()
        half = hidden // 2
        self.embedding = nn.Embedding(letters, hidden)
        self.pre_net = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, half)
        )
        self.bank = nn.ModuleList(nn.Conv1d(half, half, width, padding="same") for width in widths)
        self.projection = nn.Conv1d(len(widths) * half, half, 3, padding=1)
        self.encoder = nn.GRU(half, half, batch_first=True, bidirectional=True)
        self.frame_net = nn.Sequential(nn.Linear(mels, half), nn.ReLU(), nn.Dropout(0.5))
        self.attention_cell = nn.GRUCell(half + hidden, hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.into_decoder = nn.Linear(2 * hidden, hidden)
        self.decoder = nn.ModuleList(nn.LSTMCell(hidden, hidden) for _ in range(2))
        self.to_frame = nn.Linear(hidden, mels)

    def forward(self, letters: Tensor, frames: Tensor) -> Tensor:
        """Frames [B, U, M], each from the right ones before it.

        Args:
            letters: [B, T] int64.
            frames: [B, U, M] in the parameters' dtype; frame u is fed in to predict frame u + 1.
        """
        memory = self._encode(letters)  # [B, T, H]
        hidden = memory.shape[2]
        state = memory.new_zeros(len(letters), hidden)
        context = memory.new_zeros(len(letters), hidden)
        cells = [(torch.zeros_like(state), torch.zeros_like(state)) for _ in self.decoder]
        shifted = torch.cat([torch.zeros_like(frames[:, :1]), frames[:, :-1]], dim=1)
        predicted = []
        for frame in self.frame_net(shifted).unbind(1):
            state = self.attention_cell(torch.cat([frame, context], dim=1), state)
            scores = torch.bmm(memory, self.query(state).unsqueeze(2)) * hidden**-0.5  # [B, T, 1]
            context = (scores.softmax(dim=1) * memory).sum(dim=1)
            carried = self.into_decoder(torch.cat([state, context], dim=1))
            for layer, cell in enumerate(self.decoder):
                cells[layer] = cell(carried, cells[layer])
                carried = carried + cells[layer][0]
            predicted.append(self.to_frame(carried))
        return torch.stack(predicted, dim=1)

    def _encode(self, letters: Tensor) -> Tensor:
        inputs = self.pre_net(self.embedding(letters)).transpose(1, 2)  # [B, H / 2, T]
        bank = torch.cat([convolution(inputs) for convolution in self.bank], dim=1)
        features = self.projection(functional.relu(bank)) + inputs
        memory: Tensor = self.encoder(features.transpose(1, 2))[0]
        return memory
