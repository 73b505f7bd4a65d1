"""A decoding rule that closes quotations before the text ends."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batches.batch import Batch
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.rules import RULES, LiveHypotheses, Rule, TargetTokens
from nmtkit.decoding.settings import SearchConfig


def find_quotes(tokenizers: Tokenizers, device: torch.device) -> Tensor:
    is_quote = ['"' in token for token in tokenizers.tgt.vocabulary.tokens]
    return torch.tensor(is_quote, device=device)  # (V,)


@RULES.register("closed-quotes")
@dataclass(frozen=True)
class ClosedQuotes(Rule):
    is_quote: Tensor  # (V,), bool

    reads_history = True

    @classmethod
    def begin(cls, batch: Batch, config: SearchConfig, tokens: TargetTokens) -> "ClosedQuotes":
        return cls(tokens.table(find_quotes))

    def apply(self, log_probs: Tensor, live: LiveHypotheses) -> Tensor:
        assert live.history is not None
        n_copied = log_probs.shape[1] - len(self.is_quote)
        # The last entry is for -1, which fills a history after its last token.
        is_quote = pad(self.is_quote, (0, n_copied + 1))  # (X+1,)
        is_open = is_quote[live.history].sum(1) % 2 == 1  # (N,)
        # Too late to open a quotation, close it and end the text.
        is_late = live.tokens_left[:, None] < 3  # (N,1)
        is_forbidden = is_late & (is_quote[:-1] != is_open[:, None])  # (N,X)
        is_forbidden[:, EOS] |= is_open
        return log_probs.masked_fill(is_forbidden, -torch.inf)
