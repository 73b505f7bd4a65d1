"""The tensors of a search, by sentence and by hypothesis; letters as in `nmtkit.decoding.beam`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.device import send
from nmtkit.data.batches.batch import Batch, CopySource, Rows
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD, UNK
from nmtkit.decoding.beam import BLOCK, NO_TOKEN, StepCandidates
from nmtkit.decoding.brackets import BracketTokens, TreeProgress
from nmtkit.decoding.constraints import ConstraintProgress, Constraints
from nmtkit.decoding.rules import INFINITY, SearchConfig, min_lengths
from nmtkit.layers.copying import number_by_position
from nmtkit.models.base import DecoderState, Memory


@dataclass(frozen=True)
class TokenClasses:
    """Classes of tokens, as masks over the target vocabulary on the model's device."""

    may_repeat: Tensor | None = None
    """Tokens exempt from `no_repeat_ngram`, `(V,)`, bool."""
    starts: Callable[[], Tensor] | None = None
    """Returns the tokens that begin a word or are no part of one, `(V,)`, bool; called only for constraints."""
    brackets: BracketTokens | None = None
    """What tokens are to a tree; None: no trees are written."""

    def without_repeatable(self, history: Tensor) -> Tensor:
        """A history `(N,t)` that is negative in the place of tokens that may repeat."""
        if self.may_repeat is None:
            return history
        return history.masked_fill(self.may_repeat[history.clamp(min=0, max=len(self.may_repeat) - 1)], NO_TOKEN)


NO_TOKEN_CLASSES = TokenClasses()


@dataclass(frozen=True)
class HypothesisState(Rows):
    """What a hypothesis inherits from its parent: one row for each of the N hypotheses."""

    state: DecoderState
    history: Tensor | None
    """All tokens so far `(N,*)`, negative behind them; None where no rule reads it."""
    coverage: Tensor | None
    """The sum of all attention so far `(N,S)`; None without a coverage penalty."""
    progress: ConstraintProgress | None
    """How many tokens of each constraint are generated; None without constraints."""
    tree: TreeProgress | None = None
    """None where no trees are written."""

    def children(self, rows: Tensor | None, tokens: Tensor) -> "HypothesisState":
        """The hypotheses of these rows `(N,)`, or all in their order, whose trees go on with `tokens` `(N,)`."""
        chosen = self if rows is None else self.select(rows)
        return chosen if chosen.tree is None else replace(chosen, tree=chosen.tree.after(tokens))


@dataclass(frozen=True)
class SentenceState(Rows):
    """One row for each sentence, with what every step makes anew for its W hypotheses."""

    number: Tensor
    """The number of the sentence within the whole search, `(B,)`."""
    memory: Memory
    tokens: Tensor
    """The tokens just chosen `(B,W)`; one that is copied and unknown is V plus its first source position."""
    scores: Tensor
    """Log-probabilities of the hypotheses `(B,W)`; minus infinity where a sentence is done."""
    prompt_lengths: Tensor | None
    """Tokens of the prompts, `(B,)`; None without any. Positions and the fields below count these tokens too."""
    last_position: Tensor
    """The position of the last token that the length limit allows, `(B,)`."""
    min_lengths: Tensor | None
    """Fewest tokens, EOS not counted, `(B,)`; None without a minimum."""
    prefix: Tensor | None
    """Tokens to begin with, forced or preferred, `(B,P)`."""
    constraints: Constraints | None
    candidates: Tensor | None
    """The shortlist of each sentence `(B,V)`, bool; None: the whole vocabulary."""
    done: Tensor
    """`(B,)`, bool."""
    n_finished: Tensor
    """Finished hypotheses of each group so far `(B,G)`."""
    best: Tensor | None
    """Scores of the best finished hypotheses, best first: `(B,n_best)`, for `huggingface` `(B,K)`; None where `stop`
    does not need them."""
    ended: Tensor | None
    """For `joeynmt`: hypotheses that have ended and keep their beam place `(B,W)`, bool."""
    filled: Tensor | None
    """For `joeynmt`: beam places that have held an ended hypothesis `(B,K)`, bool."""
    penalties: Tensor | None
    """Repetition penalty and prefix bias of each hypothesis, summed over its tokens, `(B,W)`; None without either."""
    diversity: Tensor | None
    """Diversity penalty of each hypothesis, summed over its tokens, `(B,W)`; None for a single group."""

    @classmethod
    def begin(
        cls, config: SearchConfig, memory: Memory, batch: Batch, limits: Tensor, dtype: torch.dtype, n_best: int
    ) -> "SentenceState":
        """Before the first step; `limits` are the most tokens `(B,)`, on the CPU, `dtype` is that of scores."""
        size, device, rule, constraints = batch.size, memory.mask.device, config.rule, batch.terms
        assert constraints is None or isinstance(constraints, Constraints)
        scores = torch.zeros(size, 1, dtype=dtype, device=device)
        best = {"exact": n_best, "huggingface": config.beam_size, "opennmt-py": n_best}.get(rule)
        places = torch.zeros(size, config.beam_size, dtype=torch.bool, device=device) if rule == "joeynmt" else None
        has_minimum = config.min_length or config.min_length_ratio
        is_weighted = config.repetition_penalty > 1 or (batch.prefix is not None and config.prefix_bias < 1)
        return cls(
            number=torch.arange(size, device=device),
            memory=memory,
            tokens=torch.full((size, 1), BOS, device=device),
            scores=scores,
            prompt_lengths=None,
            last_position=send(limits - 1, device),
            min_lengths=send(min_lengths(config, batch.lengths.cpu()), device) if has_minimum else None,
            prefix=batch.prefix,
            constraints=constraints,
            candidates=None,
            done=torch.zeros(size, dtype=torch.bool, device=device),
            n_finished=torch.zeros(size, config.diversity_groups, dtype=torch.long, device=device),
            best=None if best is None else scores.new_full((size, best), -INFINITY),
            ended=None if places is None else places[:, :1],
            filled=places,
            penalties=torch.zeros_like(scores) if is_weighted else None,
            diversity=torch.zeros_like(scores) if config.diversity_groups > 1 else None,
        )

    def behind(self, prompt: Tensor, lengths: Tensor) -> "SentenceState":
        """The sentences before their first step, with prompts `(B,P)`, padded with PAD, of so many tokens `(B,)`."""
        prefix, least = self.prefix, self.min_lengths
        if prefix is not None:
            places = lengths[:, None] + torch.arange(prefix.shape[1], device=lengths.device)
            prefix = pad(prompt, (0, prefix.shape[1]), value=PAD).scatter(1, places, prefix)
        return replace(
            self,
            tokens=pad(prompt, (1, 0), value=BOS).gather(1, lengths[:, None]),
            prompt_lengths=lengths,
            last_position=self.last_position + lengths,
            min_lengths=None if least is None else least + lengths,
            prefix=prefix,
        )

    def written(self, position: Tensor, most: int) -> Tensor:
        """How many tokens stand behind each prompt before a position `(B,)`; of finished sentences at most `most`."""
        return position if self.prompt_lengths is None else (position - self.prompt_lengths).clamp(min=0, max=most)

    def after_step(
        self,
        step: StepCandidates,
        final: Tensor,
        penalties: Tensor | None,
        config: SearchConfig,
        divisors: Tensor,
        position: Tensor,
    ) -> "SentenceState":
        """The sentences after a step at a position `(B,)`; those that are done get scores of minus infinity.

        Ranking scores `final` and `penalties` are those of the candidates of the step, `(B,C)`.
        """
        groups, ended, filled = config.diversity_groups, self.ended, self.filled
        penalties = None if penalties is None else penalties.gather(1, step.kept)
        n_finished, best = self.n_finished + step.ended.view(len(final), groups, -1).sum(2), self.best
        top = (step.kept_scores if penalties is None else step.kept_scores + penalties).amax(1)  # (B,)
        if best is not None:
            best = torch.cat([best, final.masked_fill(~step.ended, -INFINITY)], 1).topk(best.shape[1], 1)[0]
        if ended is not None and filled is not None:
            is_end = step.tokens == EOS
            ended = (ended.gather(1, step.parents) | is_end).gather(1, step.kept)
            filled = filled | is_end[:, : filled.shape[1]]
            satisfied = filled.all(1, keepdim=True)
        elif best is not None and config.rule == "opennmt-py":
            satisfied = step.ended[:, :1] & (best[:, -1:] > -INFINITY)
        elif best is not None:
            # `exact`: an upper bound, at no further cost, the largest divisor and the most word rewards.
            length = self.written(self.last_position if config.rule == "exact" else position, len(divisors) - 1)
            bound = top / divisors.index_select(0, length)
            if config.word_reward:
                bound = bound + config.word_reward * (length + 1).to(bound.dtype)
            satisfied = (best[:, -1] >= bound)[:, None]
        else:
            satisfied = n_finished >= math.ceil(config.patience * (config.beam_size // groups))  # (B,G)
        # Without a live hypothesis every continuation was forbidden, or has ended.
        done = self.done | satisfied.all(1) | (self.last_position <= position) | (top == -INFINITY)
        group_done = done[:, None] if groups == 1 else done[:, None] | satisfied  # (B,G)
        scores = step.kept_scores.view(*group_done.shape, -1).masked_fill(group_done[:, :, None], -INFINITY)
        return replace(
            self,
            tokens=step.tokens.gather(1, step.kept),
            scores=scores.flatten(1),
            done=done,
            n_finished=n_finished,
            best=best,
            ended=ended,
            filled=filled,
            penalties=penalties,
        )

    def next_of_prefix(self, position: Tensor) -> Tensor:
        """The prefix token at each position `(B,)`: `(B,)`, PAD after the prefix, which may end in NEW_WORD."""
        assert self.prefix is not None
        columns = self.prefix.shape[1]
        token = self.prefix.gather(1, position.clamp(max=columns - 1)[:, None]).squeeze(1)
        return token.masked_fill(position >= columns, PAD)

    def next_of_kept_prefix(self, position: Tensor, history: Tensor) -> Tensor:
        """`next_of_prefix` for hypotheses that have followed the prefix so far `(N,)`, PAD for the others.

        Their tokens `history` `(N,t)` are ignored from the position on.
        """
        token = self.next_of_prefix(position).clamp(min=PAD)  # NEW_WORD is no token
        assert self.prefix is not None
        count = min(history.shape[1], self.prefix.shape[1])
        written = history[:, :count].reshape(len(position), self.tokens.shape[1], count)  # (B,W,c)
        alike = written == self.prefix[:, None, :count]
        ahead = torch.arange(count, device=position.device) >= position[:, None]  # (B,c)
        kept = (alike | ahead[:, None]).all(2)  # (B,W)
        return token[:, None].expand_as(kept).masked_fill(~kept, PAD).flatten()


def numbered_by_position(batch: Batch, known: int) -> Batch:
    """For a model that copies: ids above the `known` ones are source positions, the first where a word stands."""
    source, terms = batch.inputs.copy.extended, batch.terms
    assert terms is None or isinstance(terms, Constraints)

    def numbered(ids: Tensor) -> Tensor:
        return number_by_position(ids, source, known, UNK)

    columns = source.shape[1]
    more = -(known + columns) % BLOCK + columns  # whole blocks are searched faster
    return replace(
        batch,
        inputs=replace(batch.inputs, copy=CopySource(numbered(source), more)),
        prefix=None if batch.prefix is None else numbered(batch.prefix),
        prompt=None if batch.prompt is None else numbered(batch.prompt),
        terms=None if terms is None else terms.changed(numbered),
    )
