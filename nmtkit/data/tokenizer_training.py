"""Learning tokenizers from an even sample of the training pairs."""

import math
from collections.abc import Iterable, Sequence

from nmtkit.core.errors import RecipeError
from nmtkit.corpus.blocks import Block, Example
from nmtkit.corpus.checking import DataReport
from nmtkit.data.tokenizer import SentencePieceTokenizer, TokenizerConfig, TokenizerPair, WordTokenizer

MAX_SAMPLE_CHARACTERS = 1 << 27
"""Limits a sample of long documents."""


class TokenizerSample:
    """At most `most` pairs, spread evenly over a corpus that is read once.

    Every `stride`-th pair is taken; the stride doubles (1, 2, 4, 8, ...) whenever the sample becomes too large. With
    weights a pair counts as often as its file's weight relative to the smallest one, and may be taken several times.
    """

    def __init__(self, most: int, weights: Sequence[float] = ()) -> None:
        self._most = most
        self._lengths = [weight / min(weights) for weight in weights]
        self._end = 0.0
        self._stride = 1
        self._characters = 0
        self.kept: list[Example] = []
        self.total = 0
        """Pairs seen."""

    def add_block(self, block: Block) -> None:
        """Samples from the next pairs."""
        for pair in block.examples():
            self.add(pair)

    def add(self, pair: Example) -> None:
        """Takes or skips the next pair."""
        self.total += 1
        begin = self._end
        self._end += self._lengths[pair.file] if self._lengths else 1.0
        # Once for each multiple of the stride from its begin to before its end.
        for _ in range(math.ceil(self._end / self._stride) - math.ceil(begin / self._stride)):
            self.kept.append(pair)
            self._characters += _characters(pair)
        while len(self.kept) > self._most or (self._characters > MAX_SAMPLE_CHARACTERS and len(self.kept) > 1):
            self.kept = self.kept[::2]
            self._characters = sum(map(_characters, self.kept))
            self._stride *= 2


def _characters(pair: Example) -> int:
    return len(pair.src) + len(pair.tgt or "")


def learn_tokenizers(
    config: TokenizerConfig, pairs: Iterable[Example], report: DataReport | None = None, weights: Sequence[float] = ()
) -> TokenizerPair:
    """Learns tokenizers from a sample of training pairs, which are read once."""
    sample = TokenizerSample(config.train_lines, weights)
    for pair in pairs:
        sample.add(pair)
    return learn_from_sample(config, sample, report)


def learn_from_sample(
    config: TokenizerConfig, sample: TokenizerSample, report: DataReport | None = None
) -> TokenizerPair:
    """Learns tokenizers from a sample, and records their sizes in the report."""
    if config.kind == "marian":
        raise RecipeError("tokenizer.kind: marian comes with an imported model and cannot be learned; take bpe")
    src_lines = [pair.src for pair in sample.kept]
    tgt_lines = [pair.tgt for pair in sample.kept if pair.tgt is not None]
    teacher: type[SentencePieceTokenizer | WordTokenizer]
    teacher = WordTokenizer if config.cuts_words else SentencePieceTokenizer
    if config.joint:
        joint = teacher.learn(config, src_lines + tgt_lines)
        tokenizers = TokenizerPair(joint, joint)
    else:
        src = teacher.learn(config, src_lines, "source text")
        of_tgt = config.model_copy(update={"vocab_size": config.tgt_vocab_size or config.vocab_size})
        tokenizers = TokenizerPair(src, teacher.learn(of_tgt, tgt_lines, "target text"))
    if report is not None:
        sizes = {"src_size": len(tokenizers.src.vocabulary), "tgt_size": len(tokenizers.tgt.vocabulary)}
        report.tokenizer = {"kind": config.kind, **sizes, "pairs_used": len(sample.kept), "pairs": sample.total}
    return tokenizers
