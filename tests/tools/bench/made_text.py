"""Parallel text out of invented words, of any length and quickly: what benchmarks read in place of a corpus.

It is like real text in what costs time: a word's frequency falls with its rank as in any language (Zipf), words are
built of syllables so that subwords have something to find, lengths vary about `WORDS` words a sentence, sentences begin
with a capital and end with a mark, a few have a comma or a number. A target says its source word by word in another
invented language, neighbours exchanged now and then, a word more or less at the end. Nothing in it means anything.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmtkit.config import load
from nmtkit.core.formats import dump_yaml
from nmtkit.experiment.preprocessing import preprocess
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run

WORDS = 20
"""Words of a source on average."""
CAPTION = 12
"""Words of an image caption on average."""
VOCABULARY = 50_000
BLOCK = 20_000
"""Sentences that are made at a time; memory does not grow with their number."""
CAPTIONS = {"train": 29_000, "valid": 100, "test": 1_000}
"""Pairs of each split, as many as Multi30k has."""
FAR = 1 << 40
"""The number of the first sentence of a held-out split: no training set is so long."""


def _language(draw: np.random.Generator, consonants: str, vowels: Sequence[str]) -> list[str]:
    """Invented words, all different, frequent ones shorter."""
    syllables = [consonant + vowel for consonant in consonants for vowel in vowels]
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        count = 1 if len(words) < 60 else 2 if len(words) < 3000 else 2 + int(draw.binomial(2, 0.5))
        words[
            "".join(syllables[number] for number in draw.integers(0, len(syllables), size=count))
        ] = None
    return list(words)


def make_captions(
    folder: Path,
    model: Mapping[str, object],
    vocabulary: int = 8000,
    pairs: Mapping[str, int] = CAPTIONS,
) -> RunFolder:
    """Writes text as short as image captions and preprocesses it for a model, with one vocabulary of that size."""
    data = {}
    for number, (split, count) in enumerate(pairs.items()):
        data[split] = {"src": f"{split}.src", "tgt": f"{split}.tgt"}
        write_pairs(folder / f"{split}.src", folder / f"{split}.tgt", count, number * FAR, CAPTION)
    recipe = {
        "name": "captions",
        "data": data,
        "tokenizer": {"kind": "word", "vocab_size": vocabulary, "joint": True},
        "model": dict(model),
        "training": {"max_updates": 1},
    }
    (folder / "captions.yaml").write_text(dump_yaml(recipe), encoding="utf-8")
    run = Run.create(load(folder / "captions.yaml"), str(folder / "run"))
    for _ in preprocess(run):
        continue
    return run.folder


def write_pairs(src: Path, tgt: Path, count: int, first: int = 0, words: int = WORDS) -> None:
    """Writes so many line-aligned sentences, the same on every machine, with so many words in a source on average.

    Those from another `first` number on are other sentences of the same languages.
    """
    draw = np.random.default_rng(1)
    languages = [
        _language(draw, "bdfgklmnprstvz", ("a", "e", "i", "o", "u", "an", "er", "is", "on")),
        _language(draw, "bdfghklmnprstw", ("ä", "e", "i", "o", "ü", "en", "ich", "au", "ar")),
    ]
    frequency = 1.0 / (np.arange(VOCABULARY) + 8.0)
    until = np.cumsum(frequency / frequency.sum())
    with (
        open(src, "w", encoding="utf-8", newline="\n") as src_file,
        open(tgt, "w", encoding="utf-8", newline="\n") as tgt_file,
    ):
        for begin in range(0, count, BLOCK):
            draw = np.random.default_rng((1, first + begin))
            size = min(BLOCK, count - begin)
            lengths = np.clip(np.rint(draw.gamma(6.0, words / 6.0, size)), 2, 100).astype(np.int64)
            ranks = np.minimum(
                np.searchsorted(until, draw.random(int(lengths.sum()))), VOCABULARY - 1
            )
            commas, numbers = draw.random(size) < 0.3, draw.integers(0, 30_000, size)
            src_file.write(_sentences(languages[0], ranks, lengths, commas, numbers))
            places = np.flatnonzero(draw.random(len(ranks) // 2) < 0.2) * 2
            ranks[places], ranks[places + 1] = ranks[places + 1], ranks[places].copy()
            # Of two sentences one gives the other a word: all words stay within a pair of pairs.
            given = draw.integers(-1, 2, size // 2)
            lengths[: 2 * len(given) : 2] += given
            lengths[1 : 2 * len(given) : 2] -= given
            tgt_file.write(_sentences(languages[1], ranks, lengths, commas, numbers))


def _sentences(
    words: Sequence[str],
    ranks: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    commas: npt.NDArray[np.bool_],
    numbers: npt.NDArray[np.int64],
) -> str:
    """Lines of text: line n has `lengths[n]` words; a comma where asked for, a number where that is below 3,000."""
    flat = list(map(words.__getitem__, ranks.tolist()))
    lines = []
    end = 0
    for length, comma, number in zip(
        lengths.tolist(), commas.tolist(), numbers.tolist(), strict=True
    ):
        begin, end = end, end + length
        line = flat[begin:end]
        if comma and length > 6:
            line[3] += ","
        if number < 3000:
            line.append(str(number))
        lines.append(" ".join(line).capitalize())
    return ".\n".join(lines) + ".\n"
