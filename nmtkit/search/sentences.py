"""What a search knows of each sentence beside what belongs to the model: its limits, its prefix, and what has ended.

Letters as in `nmtkit.search.beam`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nmtkit.data.batch import Rows
from nmtkit.data.vocabulary import EOS, PAD
from nmtkit.search.beam import BeamStep
from nmtkit.search.rules import INFINITY, SearchConfig, min_lengths


@dataclass(frozen=True)
class TokenInfo:
    """What a search knows of the tokens of the vocabulary; on the model's device."""

    may_repeat: Tensor | None = None
    """Those that may repeat in spite of `no_repeat_ngram` `(V,)`, bool."""
    starts: Callable[[], Tensor] | None = None
    """Gives those that begin a word, or are none of its letters `(V,)`, bool; asked only where there are terms."""


NO_TOKEN_INFO = TokenInfo()
"""Where no rule asks."""


@dataclass(frozen=True)
class SentenceState(Rows):
    """What has one row per sentence, and does not belong to the model."""

    number: Tensor
    """Of the sentence, among all that are searched, `(B,)`."""
    last: Tensor
    """The position of the last token that it may have, EOS counted, `(B,)`."""
    least: Tensor | None
    """Fewest tokens `(B,)`, EOS not counted; None where no rule asks for any."""
    prefix: Tensor | None
    """Tokens to begin with `(B,P)`: forced, or preferred."""
    done: Tensor
    """`(B,)`, bool."""
    n_finished: Tensor
    """Finished hypotheses of each group so far `(B,G)`."""
    best: Tensor | None
    """Scores of the best finished hypotheses, best first: `(B,n_best)`, for `huggingface` `(B,K)`; None where `stop`
    asks for none."""
    spent: Tensor | None
    """For `joeynmt`: the hypotheses that have ended and kept their places `(B,W)`, bool."""
    filled: Tensor | None
    """For `joeynmt`: the places that have held an end `(B,K)`, bool."""
    candidates: Tensor | None
    """The words that each may be continued by `(B,V)`, bool; None: all."""
    penalties: Tensor | None
    """What the ranking of each hypothesis has beside its log-probability, summed over its words, `(B,W)`; None where no
    rule gives any."""
    lowered: Tensor | None
    """What diverse groups are chosen by beside that, summed over the words of each hypothesis, `(B,W)`."""

    @classmethod
    def begin(
        cls, config: SearchConfig, lengths: Tensor, limits: Tensor, prefix: Tensor | None, of_score: Tensor, n_best: int
    ) -> "SentenceState":
        """Before the first step.

        Args:
            config: how to search.
            lengths: source tokens, EOS counted, `(B,)`, on the CPU.
            limits: the most tokens `(B,)`, on the CPU.
            prefix: see `prefix`.
            of_score: a tensor on the device, and of the type, of scores.
            n_best: of the best hypotheses how many are asked for.
        """
        size, device, rule = len(lengths), of_score.device, config.rule
        best = {"exact": n_best, "huggingface": config.beam_size, "opennmt-py": n_best}.get(rule)
        places = torch.zeros(size, config.beam_size, dtype=torch.bool, device=device) if rule == "joeynmt" else None
        least = min_lengths(config, lengths).to(device) if config.min_length or config.min_length_ratio else None
        return cls(
            number=torch.arange(size, device=device),
            last=(limits - 1).to(device),
            least=least,
            prefix=prefix,
            done=torch.zeros(size, dtype=torch.bool, device=device),
            n_finished=torch.zeros(size, config.diversity_groups, dtype=torch.long, device=device),
            best=None if best is None else of_score.new_full((size, best), -INFINITY),
            spent=None if places is None else places[:, :1],
            filled=places,
            candidates=None,
            penalties=of_score.new_zeros(size, 1) if config.weighs(prefix) else None,
            lowered=of_score.new_zeros(size, 1) if config.diversity_groups > 1 else None,
        )

    def after_choice(
        self, choice: BeamStep, final: Tensor, config: SearchConfig, divisors: Tensor, position: Tensor
    ) -> tuple["SentenceState", Tensor]:
        """Counts the hypotheses that ended in a step; says of which sentences, or groups, none go on.

        Args:
            choice: of the step.
            final: what candidates are ranked by `(B,C)`.
            config: how to search.
            divisors: the length penalty of 1, 2, ... tokens.
            position: of the step `(B,)`.

        Returns:
            The sentences after it, and what is over `(B,G)`, so that nothing of what it still computes counts.
        """
        groups, rule, spent, filled = config.diversity_groups, config.rule, self.spent, self.filled
        n_finished, best = self.n_finished + choice.ended.view(len(final), groups, -1).sum(2), self.best
        top = (choice.kept_scores if self.penalties is None else choice.kept_scores + self.penalties).amax(1)  # (B,)
        if best is not None:
            ended = final.masked_fill(~choice.ended, -INFINITY)
            best = torch.cat([best, ended], 1).topk(best.shape[1], 1)[0]
        if spent is not None and filled is not None:
            is_end = choice.tokens == EOS
            spent = (spent.gather(1, choice.parents) | is_end).gather(1, choice.kept)
            filled = filled | is_end[:, : filled.shape[1]]
            satisfied = filled.all(1, keepdim=True)
        elif best is not None and rule == "opennmt-py":
            satisfied = choice.ended[:, :1] & (best[:, -1:] > -INFINITY)
        elif best is not None:
            # As if the rest cost nothing, at the largest divisor and with the reward of the most words; or as it is.
            length = self.last if rule == "exact" else position
            bound = top / divisors.index_select(0, length)
            if config.word_reward:
                bound = bound + config.word_reward * (length + 1).to(bound.dtype)
            satisfied = (best[:, -1] >= bound)[:, None]
        else:
            satisfied = n_finished >= config.patience * (config.beam_size // groups)  # (B,G)
        # Where no live hypothesis is left, all ways were forbidden or have ended.
        done = self.done | satisfied.all(1) | (self.last <= position) | (top == -INFINITY)
        over = done[:, None] if groups == 1 else done[:, None] | satisfied
        return replace(self, done=done, n_finished=n_finished, best=best, spent=spent, filled=filled), over

    def wanted(self, position: Tensor) -> Tensor | None:
        """The next token of each prefix at positions `(B,)`: `(B,)`, PAD behind it; None where there are none."""
        if self.prefix is None:
            return None
        columns = self.prefix.shape[1]
        token = self.prefix.gather(1, position.clamp(max=columns - 1)[:, None]).squeeze(1)
        return token.masked_fill(position >= columns, PAD)

    def wanted_so_far(self, position: Tensor, history: Tensor) -> Tensor:
        """The same for hypotheses that have kept to it `(N,)`, PAD for others.

        Args:
            position: `(B,)`.
            history: their tokens `(N,t)`, those of position t and later of no meaning.
        """
        token = self.wanted(position)
        assert self.prefix is not None
        assert token is not None
        width = len(history) // len(position)
        count = min(history.shape[1], self.prefix.shape[1])
        written = history[:, :count].reshape(len(position), width, count)  # (B,W,c)
        alike = written == self.prefix[:, None, :count]
        behind = torch.arange(count, device=position.device) >= position[:, None]  # (B,c)
        kept = (alike | behind[:, None]).all(2)  # (B,W)
        return token[:, None].expand_as(kept).masked_fill(~kept, PAD).flatten()
