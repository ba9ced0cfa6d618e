"""Shapes of the parameters of well-known models, and of lists that are hard for a multi-tensor kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Shapes = list[tuple[int, ...]]


def gru_seq2seq() -> Shapes:
    """17.50M parameters in 14 tensors: encoder and decoder, each of one embedding and one GRU; attention."""
    layer: Shapes = [(8000, 256), (1536, 256), (1536, 512), (1536,), (1536,)]
    return [*layer, *layer, (8000, 1280), (8000,), (512, 1536), (512,)]


def resnet50() -> Shapes:
    """25,557,032 parameters in 161 tensors (https://arxiv.org/abs/1512.03385, table 1)."""
    shapes: Shapes = []

    def convolution(outputs: int, inputs: int, kernel: int) -> None:
        """A convolution without bias, and the weight and bias of its batch normalisation."""
        shapes.extend([(outputs, inputs, kernel, kernel), (outputs,), (outputs,)])

    convolution(64, 3, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(width, inputs, 1)
            convolution(width, width, 3)
            convolution(4 * width, width, 1)
            if block == 0:
                convolution(4 * width, inputs, 1)
            inputs = 4 * width
    return [*shapes, (1000, inputs), (1000,)]


def gpt2() -> Shapes:
    """124,439,808 parameters in 148 tensors: vocabulary 50257, context 1024, width 768, 12 layers."""
    width = 768
    norm: Shapes = [(width,), (width,)]
    attention: Shapes = [(3 * width, width), (3 * width,), (width, width), (width,)]
    perceptron: Shapes = [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(50257, width), (1024, width), *(norm + attention + norm + perceptron) * 12, *norm]


def llama1b() -> Shapes:
    """1,235,814,400 parameters in 146 tensors: Llama 3.2 1B, its output layer tied to the embedding."""
    width, key_value, hidden = 2048, 512, 8192
    attention: Shapes = [(width, width), (key_value, width), (key_value, width), (width, width)]
    perceptron: Shapes = [(hidden, width), (hidden, width), (width, hidden)]
    norms: Shapes = [(width,), (width,)]
    return [(128256, width), *(attention + perceptron + norms) * 16, (width,)]


def odd_sizes() -> Shapes:
    """400 tensors of 1 to 99,991 elements, none a multiple of a vector or a block."""
    return [(1 + index * 7919 % 99991 // 2 * 2,) for index in range(400)]


PARAMETER_SETS: Mapping[str, Callable[[], Shapes]] = {
    "gru_seq2seq": gru_seq2seq,
    "resnet50": resnet50,
    "gpt2": gpt2,
    "llama1b": llama1b,
    "1000x1024": lambda: [(1024,)] * 1000,
    "4000x64": lambda: [(64,)] * 4000,
    "14x1.25M": lambda: [(1_250_000,)] * 14,
    "1x10": lambda: [(10,)],
    "1x750M": lambda: [(750_000_000,)],
    "skewed": lambda: [(50_000_000,), *[(8,)] * 2000],
    "odd": odd_sizes,
}
"""Functions, so that listing the cases of one set does not build the others."""
