"""Quotations are closed: no text ends within one."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.rules import RULES, LiveHypotheses, Rule


@RULES.register("closed-quotes")
@dataclass(frozen=True)
class ClosedQuotes(Rule):
    is_quote: Tensor  # (V,), bool

    reads_history = True

    @classmethod
    def from_tokenizers(cls, tokenizers: Tokenizers, device: torch.device) -> "ClosedQuotes":
        return cls(
            torch.tensor(
                ['"' in token for token in tokenizers.tgt.vocabulary.tokens], device=device
            )
        )

    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        assert live.history is not None
        copied = log_probs.shape[1] - len(self.is_quote)
        is_quote = pad(
            self.is_quote, (0, copied + 1)
        )  # (X+1,): the last entry is for what is no token
        is_open = is_quote[live.history].sum(1) % 2 == 1  # (N,)
        is_late = (
            live.tokens_left[:, None] < 3
        )  # (N,1): no room to open a quotation, to close it and to end
        is_forbidden = is_late & (is_quote[:-1] != is_open[:, None])  # (N,X)
        is_forbidden[:, EOS] |= is_open
        return log_probs.masked_fill(is_forbidden, -torch.inf)
