"""Made-up text with the shape of image captions, for machines where no corpus is at hand.

Lengths follow those of Multi30k English-German in joint 8k BPE: a source of exp(normal(2.608, 0.317)) tokens (14.3 on
average), a target of that times exp(normal(0.02, 0.18)). Words are drawn independently, number r of 7,996 with a
probability that falls as 1 / (r + 20). They mean nothing: only their number and variety matter to a clock.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nmtkit.experiment.run import Run
from nmtkit.recipe import load

VOCABULARY = 8000
SPECIAL = 4
"""PAD, UNK, BOS, EOS."""
PAIRS = {"train": 29_000, "valid": 100, "test": 1_000}
RECIPE = """\
name: captions
data:
  train: {src: train.src, tgt: train.tgt}
  valid: {src: valid.src, tgt: valid.tgt}
  test: {src: test.src, tgt: test.tgt}
tokenizer: {kind: word, vocab_size: %d, joint: true}
model: {kind: transformer}
training: {max_updates: 1}
"""


def make(folder: Path, vocabulary: int = VOCABULARY, pairs: Mapping[str, int] = PAIRS) -> Path:
    """Writes the text and preprocesses it as `nmtkit preprocess` does; gives the run's folder."""
    draw = np.random.default_rng(1)
    words = np.array([f"w{number}" for number in range(vocabulary - SPECIAL)])
    frequency = 1.0 / (np.arange(len(words)) + 20.0)
    frequency /= frequency.sum()

    def sentences(lengths: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
        whole = np.clip(np.rint(lengths), 3, 60).astype(np.int64)
        parts = np.split(draw.choice(words, size=int(whole.sum()), p=frequency), np.cumsum(whole)[:-1])
        return "".join(" ".join(part) + "\n" for part in parts)

    for name, count in pairs.items():
        src = np.exp(draw.normal(2.608, 0.317, count))
        texts = [sentences(src), sentences(src * np.exp(draw.normal(0.02, 0.18, count)))]
        if name == "train":  # whatever was not drawn comes in sentences of its own: the vocabulary has its full size
            missing = sorted(set(words.tolist()) - set(" ".join(texts).split()))
            rest = "".join(" ".join(missing[at : at + 15]) + "\n" for at in range(0, len(missing), 15))
            texts = [text + rest for text in texts]
        for side, text in zip(("src", "tgt"), texts, strict=True):
            (folder / f"{name}.{side}").write_text(text, encoding="utf-8")
    recipe = folder / "captions.yaml"
    recipe.write_text(RECIPE % vocabulary, encoding="utf-8")
    run = Run.create(load(recipe), str(folder / "run"))
    tokenizers = run.preprocess(lambda text: None, lambda report: None)
    assert len(tokenizers.tgt.vocabulary) == vocabulary, "every word occurs"
    return run.folder.path
