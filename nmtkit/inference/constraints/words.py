"""Splits text into words and punctuation marks, and determines which tokens begin a word or a mark."""

import re
from functools import cache

import torch
from torch import Tensor

from nmtkit.data.text.scripts import mark_class, unspaced_class
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.vocabulary import SPECIALS


@cache
def _word_pattern() -> re.Pattern[str]:
    combining_marks = mark_class()
    unspaced = unspaced_class()
    alternatives = (
        # a single letter of a script without spaces
        rf"[{unspaced}]",
        # a word in any other script: a run of letters, digits and marks, which ends before a letter as above
        rf"(?:(?![{unspaced}])[\w{combining_marks}])+",
        # a punctuation mark or symbol
        r"[^\s\w]",
    )
    return re.compile("|".join(alternatives))


def words_of(text: str) -> list[str]:
    """Splits a text into words and punctuation marks. In scripts without spaces, each letter is a word."""
    return _word_pattern().findall(text)


def starts_word(token: str) -> bool:
    """Returns whether a token begins a word or a punctuation mark, so that the preceding word is complete.

    A token with the word-start mark "▁" always does. Any other token does if it cannot continue a word.
    """
    if token.startswith(WORD_START):
        return True
    # After a letter, "ing" continues the word: "xing" is one word. But "," does not: "x," is split into "x" and ",".
    return words_of("x" + token)[0] == "x"


def word_starts(tokenizer: Tokenizer, device: torch.device) -> Tensor:
    """Returns a mask of the tokens of the vocabulary that begin a word or a punctuation mark, `(V,)`, bool.

    PAD, UNK, BOS and EOS are False. The search itself treats EOS as a token that completes the preceding word.
    """
    specials = [False] * len(SPECIALS)
    tokens = [starts_word(token) for token in tokenizer.vocabulary.tokens[len(SPECIALS) :]]
    return torch.tensor(specials + tokens, device=device)
