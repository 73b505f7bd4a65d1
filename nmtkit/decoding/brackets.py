"""The rule of parsing: a hypothesis is the beginning of a well-formed tree in linear form, see `nmtkit.core.trees`.

A bracket is closed by its own label and never empty. The tree has as many placeholders as the source has words, and the
hypothesis ends with it. A bracket opens only if the length limit leaves room for the words that are left and for all
closing ones, so that every hypothesis can be completed at any time; the limit is raised where a sentence is longer. No
other rule holds beside this one. Letters as in `nmtkit.decoding.beam`; D is `MAX_DEPTH`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.errors import RecipeError
from nmtkit.core.trees import is_closing, is_opening
from nmtkit.data.batches.batch import Batch, Rows
from nmtkit.data.tokenizers.tokenizer import WORD_START, Tokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import EOS, UNK
from nmtkit.decoding.rules import INFINITY, SearchConfig, allow_if_possible

MAX_DEPTH = 100
OTHER, OPENING, CLOSING, WORD, END = range(5)
OUTER_BRACKETS = 2
"""The fewest tokens of a tree beside its words: one pair of brackets."""


@dataclass(frozen=True)
class BracketTokens:
    """What the tokens of both vocabularies are to a tree, on the model's device."""

    kinds: Tensor
    """OPENING, CLOSING, WORD, END or OTHER `(V,)`, int64."""
    closings: Tensor
    """The id that closes what each token opens `(V,)`, int64."""
    counts: Tensor
    """Words of the source that each source token begins `(V_src,)`, int64: 0 or 1."""

    @classmethod
    def of(cls, tokenizers: Tokenizers, device: torch.device) -> "BracketTokens":
        """Of trained tokenizers; RecipeError if brackets are no tokens, or words cannot be counted."""
        tokens = [token.removeprefix(WORD_START) for token in tokenizers.tgt.vocabulary.tokens]
        own = range(tokenizers.tgt.vocabulary.n_specials, len(tokens))
        return cls.of_tokens(tokens, own, _starts(tokenizers.src)).to(device)

    @classmethod
    def of_tokens(cls, tokens: Sequence[str], own: range, counts: Sequence[int]) -> "BracketTokens":
        """Of target tokens, of which `own` are no special ones; on the CPU."""
        closing = {tokens[number][1:]: number for number in own if is_closing(tokens[number])}
        kinds, closings = [OTHER] * len(tokens), [0] * len(tokens)
        for number in own:
            token = tokens[number]
            if is_opening(token) and token[1:] in closing:
                kinds[number], closings[number] = OPENING, closing[token[1:]]
            elif is_closing(token):
                kinds[number] = CLOSING
            elif not is_opening(token):
                kinds[number] = WORD
        kinds[EOS] = END
        if not {OPENING, WORD} <= {*kinds}:
            raise RecipeError(
                "search.brackets: the target vocabulary has no brackets such as (NP and )NP, or no placeholder: set "
                "`tokenizer.columns.tgt.kind` to whitespace, and train on linearized trees (nmtkit linearize)"
            )
        return cls(torch.tensor(kinds), torch.tensor(closings), torch.tensor(counts))

    def to(self, device: torch.device) -> "BracketTokens":
        """The same on a device."""
        return BracketTokens(self.kinds.to(device), self.closings.to(device), self.counts.to(device))


def _starts(tokenizer: Tokenizer) -> list[int]:
    """For each source token whether it begins a word, or is one."""
    kind, vocabulary = tokenizer.config.kind, tokenizer.vocabulary
    if kind not in ("whitespace", "bpe", "unigram", "char"):
        raise RecipeError(
            f"search.brackets: a source tokenizer of kind {kind} does not tell where words begin; set `tokenizer.kind` "
            "to whitespace, bpe, unigram or char"
        )
    own = [int(kind == "whitespace" or token.startswith(WORD_START)) for token in vocabulary.tokens]
    own[: vocabulary.n_specials] = [0] * vocabulary.n_specials
    own[UNK] = int(kind == "whitespace")  # subwords begin with the mark, and an unknown letter comes behind it
    return own


@dataclass(frozen=True)
class TreeProgress(Rows):
    """The unfinished trees of N hypotheses."""

    tokens: BracketTokens
    stack: Tensor
    """The tokens that close the open brackets, the outermost first, `(N,D)`, int64; any behind the depth."""
    depth: Tensor
    """Open brackets `(N,)`."""
    left: Tensor
    """Words without a placeholder `(N,)`."""
    is_empty: Tensor
    """Whether the innermost bracket has just been opened `(N,)`, bool."""
    has_begun: Tensor
    """Whether the outermost one has been opened `(N,)`, bool."""

    @classmethod
    def begin(cls, tokens: BracketTokens, words: Tensor) -> "TreeProgress":
        """One empty hypothesis for each sentence, with so many words `(B,)`."""
        nothing = torch.zeros_like(words)
        stack = nothing[:, None].repeat(1, MAX_DEPTH)
        return cls(tokens, stack, nothing, words, nothing.bool(), nothing.bool())

    @property
    def least(self) -> Tensor:
        """The fewest tokens of the trees that have not begun, without EOS `(N,)`, on the CPU."""
        return self.left.cpu() + OUTER_BRACKETS

    def forbid(self, log_probs: Tensor, room: Tensor) -> Tensor:
        """Sets the log-probabilities `(N,X)` of all other continuations to minus infinity, and returns them.

        `room` are the tokens that each hypothesis may still write, EOS included, `(N,)`. Tokens that are copied are
        always forbidden.
        """
        is_open, has_words = self.depth > 0, self.left > 0
        may_open = has_words & (is_open | ~self.has_begun) & (self.depth < MAX_DEPTH)
        may_open = may_open & (room > self.left + self.depth + 2)
        may_close = is_open & ~self.is_empty & ((self.depth > 1) | ~has_words)
        may_end = ~is_open & (self.has_begun | ~has_words)
        never = torch.zeros_like(is_open)
        flags = torch.stack([never, may_open, never, is_open & has_words, may_end], 1)  # by OTHER, OPENING, ...
        allowed = flags.index_select(1, self.tokens.kinds)  # (N,V)
        innermost = self.stack.gather(1, (self.depth - 1).clamp(min=0)[:, None])
        allowed = allowed.scatter(1, innermost, (allowed.gather(1, innermost) | may_close[:, None]))
        allowed = pad(allowed, (0, log_probs.shape[1] - allowed.shape[1]))
        return allow_if_possible(log_probs).masked_fill(~allowed, -INFINITY)

    def after(self, tokens: Tensor) -> "TreeProgress":
        """After one more token each `(N,)`; of hypotheses that are given up any tokens."""
        tokens = tokens.clamp(max=len(self.tokens.kinds) - 1)
        kind = self.tokens.kinds[tokens]
        opens = kind == OPENING
        place = self.depth.clamp(max=MAX_DEPTH - 1)[:, None]
        top = torch.where(opens[:, None], self.tokens.closings[tokens][:, None], self.stack.gather(1, place))
        return TreeProgress(
            tokens=self.tokens,
            stack=self.stack.scatter(1, place, top),
            depth=(self.depth + opens.long() - (kind == CLOSING).long()).clamp(min=0, max=MAX_DEPTH),
            left=(self.left - (kind == WORD).long()).clamp(min=0),
            is_empty=opens,
            has_begun=self.has_begun | opens,
        )


def begin_trees(
    config: SearchConfig, tokens: BracketTokens | None, batch: Batch, has_shortlist: bool
) -> TreeProgress | None:
    """An empty tree for each sentence of a batch; None where no trees are written.

    RecipeError unless the search is of a text, without shortlist, prefix and terms.
    """
    if not config.brackets:
        return None
    assert tokens is not None, "a search for trees must know which tokens are brackets"
    if has_shortlist or batch.prefix is not None or batch.terms is not None or not batch.reads_text:
        raise RecipeError("search.brackets: trees are of a text, without shortlist, prefix and terms")
    return TreeProgress.begin(tokens, (tokens.counts[batch.inputs.ids] * batch.inputs.mask).sum(1))
