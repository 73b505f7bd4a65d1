"""The state of a search between two steps, for all sentences that are decoded together, and how it begins.

Each sentence has a slot with W hypotheses. Sentences may be at different positions.

If the batch has a `prompt`, hypotheses continue the prompt of their sentence. Prompts are read in one pass if the model
supports that. A prompt is not scored and does not count towards lengths and limits, but its n-grams may not be
repeated, and repeating its tokens incurs the repetition penalty.

Notation as in `nmtkit.decoding.beam_search`; P is the number of tokens in the longest prompt or prefix.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.device import send
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import Batch, CopySource, Rows
from nmtkit.data.tokenizers.vocabulary import BOS, PAD, UNK
from nmtkit.decoding.candidates import BLOCK
from nmtkit.decoding.constraints import Constraints
from nmtkit.decoding.limits import applicable_limits, length_limits, max_lengths
from nmtkit.decoding.rules import (
    INFINITY,
    NO_TOKEN,
    RULES,
    DemandingRule,
    Rule,
    begin_rules,
    rule_names,
    tokens_required,
)
from nmtkit.decoding.shortlist import Shortlist
from nmtkit.layers.copying import renumber_by_position
from nmtkit.layers.kv_cache import INITIAL_LENGTH, KVCache
from nmtkit.models.abilities import with_shortlist
from nmtkit.models.base import DecoderState, Memory

if TYPE_CHECKING:
    from nmtkit.decoding.beam_search import BeamSearch


@dataclass(frozen=True)
class SentenceState(Rows):
    """The sentences of a batch; all tensors have one row for each of the B sentences."""

    number: Tensor
    """Each sentence's number within the whole search, `(B,)`."""
    memory: Memory
    """The encoded sources."""
    rules: tuple[Rule, ...]
    """The rules of the search, in the order in which they are applied."""
    tokens: Tensor
    """Last token of each hypothesis `(B,W)`. A copied word outside the vocabulary has the id V plus its first source
    position."""
    scores: Tensor
    """Log-probabilities of the hypotheses `(B,W)`; minus infinity for hypotheses that are not continued."""
    last_position: Tensor
    """Last position that the length limit allows, `(B,)`."""
    done: Tensor
    """Whether the search of the sentence has ended, `(B,)`, bool."""
    n_finished: Tensor
    """Number of finished hypotheses in each group `(B,G)`."""
    best_finished: Tensor | None = None
    """Ranking scores of the best finished hypotheses, best first: `(B,n_best)` if the setting `stop` is `exact`,
    `(B,K)` if it is `huggingface`, and None if it is `first_k`, which only counts finished hypotheses."""
    prompt_lengths: Tensor | None = None
    """Number of tokens in each prompt, `(B,)`; None without prompts. Positions also count these tokens."""
    prefix: Tensor | None = None
    """Forced ids, preceded by the prompts, `(B,P)`, padded with PAD; None without prefixes."""
    shortlist_mask: Tensor | None = None
    """Mask of each sentence's shortlisted words `(B,V)`, bool; None if the whole vocabulary is allowed."""
    repetition_penalties: Tensor | None = None
    """Repetition penalty of each hypothesis, summed over its tokens, `(B,W)`; None without a repetition penalty."""
    diversity_penalties: Tensor | None = None
    """Diversity penalty of each hypothesis, summed over its tokens, `(B,W)`; None if there is only one group."""

    def tokens_after_prompt(self, position: Tensor, maximum: int) -> Tensor:
        """Returns the number of tokens `(B,)` between the end of each prompt and a position `(B,)`.

        Sentences that are done may be beyond their limits, so with prompts, the result is clamped to `maximum`.
        """
        if self.prompt_lengths is None:
            return position
        return (position - self.prompt_lengths).clamp(min=0, max=maximum)

    def forced_token(self, position: Tensor) -> Tensor | None:
        """Returns the prefix token `(B,)` at each position `(B,)`: PAD after the prefix, None without prefixes."""
        if self.prefix is None:
            return None
        prefix_length = self.prefix.shape[1]
        column = position.clamp(max=prefix_length - 1)  # (B,)
        token = self.prefix.gather(1, column[:, None]).squeeze(1)  # (B,)
        is_after_prefix = position >= prefix_length  # (B,)
        return token.masked_fill(is_after_prefix, PAD)


@dataclass(frozen=True)
class HypothesisState(Rows):
    """State that a hypothesis inherits from its parent; all tensors have one row for each of the N hypotheses."""

    model: DecoderState
    """Decoder state of the model."""
    history: Tensor | None = None
    """All tokens so far `(N,*)`, padded with NO_TOKEN; None if they are not needed."""
    coverage: Tensor | None = None
    """Sum of all attention so far `(N,S)`; None before the first step or without a coverage penalty."""


@dataclass
class SearchState:
    """The complete state of a search. A step replaces the tensors; only the cache is written in place."""

    sentences: SentenceState
    hypotheses: HypothesisState
    cache: KVCache
    divisors: Tensor
    """Length penalty for each length from 1 to the longest limit, `(longest,)`."""
    limits: list[int]
    """Length limits of the sentences that the state was created for, on the host."""
    rule_names: tuple[str, ...]
    """Name of each of `sentences.rules` in the output of `nmtkit explain`: see `Rule.name`."""

    @property
    def history(self) -> Tensor | None:
        """The tokens of each hypothesis `(N,t)`, with t the length of the longest one; None if they are not needed."""
        history = self.hypotheses.history
        if history is None:
            return None
        return history[:, : self.cache.length - 1]

    def shallow_copy(self) -> "SearchState":
        """Returns another state with the same tensors."""
        return replace(self, cache=copy(self.cache))

    def mutable_tensors(self) -> list[Tensor]:
        """Returns, in a fixed order, the tensors that a step replaces: all except `divisors` and the cache entries."""
        return [
            *self.sentences.tensors(),
            *self.hypotheses.tensors(),
            *self.cache.mutable_tensors(),
        ]

    def hypothesis_rows(self, sentences: Tensor) -> Tensor:
        """Converts the rows of sentences `(M,)` to the rows of their hypotheses `(M*W,)`."""
        width = self.sentences.scores.shape[1]
        offsets = torch.arange(width, device=sentences.device)  # (W,)
        return (sentences[:, None] * width + offsets).flatten()


def pad_history(history: Tensor, length: int) -> Tensor:
    """Pads histories `(N,*)` to a length: `(N,length)`."""
    return pad(history, (0, length - history.shape[1]), value=NO_TOKEN)


# --------------------------------------------------------------------------------------------------- how it begins


def start_search(search: "BeamSearch", batch: Batch) -> SearchState:
    """Returns the state before the first step: see `BeamSearch.begin`."""
    model = search.model
    device = search.device
    config = applicable_limits(search.config, batch)
    host_prompt_lengths = None  # (B,)
    if batch.prompt is not None:
        host_prompt_lengths = (batch.prompt != PAD).sum(1).cpu()  # (B,)
    if model.config.copies:
        batch = number_copied_words(batch, model.sizes["tgt"])

    # 1. The rules and the length limits.
    rules_by_name = begin_rules(batch, config, search.tokens)
    limits = length_limits(
        model,
        config,
        batch.lengths,
        required=tokens_required(rules_by_name.values()),
        prompt_lengths=host_prompt_lengths,
    )  # (B,)
    longest = int(limits.max())
    rules = tuple(_on_device(rule, device) for rule in rules_by_name.values())

    # 2. The encoded sources. The batch is cloned, because sentences that are inserted later are written into it.
    batch = batch.to(device).mapped(torch.clone)
    memory = model.encode(batch)
    shortlist_mask = None  # (B,V)
    if search.shortlist is not None:
        shortlist_mask = _shortlist_mask(search, batch, search.shortlist)  # (B,V)
        memory = with_shortlist(model, memory, shortlist_mask)

    # 3. The state of the model after it has read the prompts.
    prompt = batch.prompt  # (B,P)
    if prompt is None:
        prompt = torch.zeros(batch.size, 0, dtype=torch.long, device=device)  # (B,0)
    prompt_lengths = (prompt != PAD).sum(1) if prompt.shape[1] else None  # (B,)
    cache = _empty_cache(search, batch, memory, longest)
    model_state = model.start(memory)
    if host_prompt_lengths is not None and prompt.shape[1]:
        # The last token of each prompt is read by the first step.
        shifted_prompt = pad(prompt, (1, -1), value=BOS)  # (B,P)
        _, model_state = model.prefill(
            shifted_prompt, model_state, memory, cache=cache, lengths=host_prompt_lengths
        )
        cache.end_prompts(host_prompt_lengths, config.n_hypotheses)

    # 4. The sentences and their hypotheses. Log-probabilities are summed in float32 or wider.
    model_dtype = next(model.parameters(), torch.empty(0)).dtype
    dtype = torch.promote_types(model_dtype, torch.float32)
    scores = torch.zeros(batch.size, 1, dtype=dtype, device=device)  # (B,1)
    zeros = torch.zeros_like(scores)  # (B,1)
    last_position = send(limits - 1, device)  # (B,)
    if prompt_lengths is not None:
        last_position = last_position + prompt_lengths  # (B,)
    sentences = SentenceState(
        number=torch.arange(batch.size, device=device),
        memory=memory,
        rules=rules,
        tokens=_first_tokens(prompt, prompt_lengths),
        scores=scores,
        last_position=last_position,
        done=torch.zeros(batch.size, dtype=torch.bool, device=device),
        n_finished=torch.zeros(batch.size, config.n_groups, dtype=torch.long, device=device),
        best_finished=_no_finished(search, scores),
        prompt_lengths=prompt_lengths,
        prefix=_prefix_after_prompt(batch.prefix, prompt, prompt_lengths),
        shortlist_mask=shortlist_mask,
        repetition_penalties=zeros if config.repetition_penalty > 1 else None,
        diversity_penalties=zeros.clone() if config.n_groups > 1 else None,
    )
    reads_history = config.repetition_penalty > 1 or any(rule.reads_history for rule in rules)
    history = prompt.masked_fill(prompt == PAD, NO_TOKEN) if reads_history else None  # (B,P)
    divisors = search.length_penalty.divisors(torch.arange(1, longest + 1))  # (longest,)
    return SearchState(
        sentences=sentences,
        hypotheses=HypothesisState(model=model_state, history=history),
        cache=cache,
        divisors=send(divisors.to(dtype), device),  # (longest,)
        limits=limits.tolist(),
        rule_names=tuple(rules_by_name),
    )


def max_tokens(search: "BeamSearch", batch: Batch, columns: int) -> int:
    """Returns an upper bound on the length limit, including EOS, of sentences with `columns` source columns.

    The sentences have no prefixes and terms. `batch` only determines whether they have source texts.
    """
    required = 0
    for name in rule_names(search.config):
        rule = RULES.get(name)
        if issubclass(rule, DemandingRule):
            required += rule.min_tokens_bound(columns)
    config = applicable_limits(search.config, batch)
    limits = max_lengths(config, torch.tensor([columns]), torch.tensor([required]))  # (1,)
    return int(limits)


def can_share_slots(batch: Batch) -> bool:
    """Returns whether other sentences can take the slots of a batch: it has no prompts, prefixes and terms."""
    has_prompt = batch.prompt is not None and bool(batch.prompt.shape[1])
    return not has_prompt and batch.prefix is None and batch.terms is None


def number_copied_words(batch: Batch, vocabulary_size: int) -> Batch:
    """Numbers the unknown words of a batch by source position, for a model that copies.

    The id of an unknown word becomes V plus its first source position.
    """
    source = batch.inputs.copy.extended  # (B,S)
    terms = batch.terms
    assert terms is None or isinstance(terms, Constraints)

    def number_ids(ids: Tensor) -> Tensor:
        return renumber_by_position(ids, source, vocab_size=vocabulary_size, absent_id=UNK)

    source_length = source.shape[1]
    padding = -(vocabulary_size + source_length) % BLOCK  # complete blocks are faster to search
    return replace(
        batch,
        inputs=replace(batch.inputs, copy=CopySource(number_ids(source), source_length + padding)),
        prefix=None if batch.prefix is None else number_ids(batch.prefix),
        prompt=None if batch.prompt is None else number_ids(batch.prompt),
        terms=None if terms is None else terms.map_ids(number_ids),
    )


def _on_device(rule: Rule, device: torch.device) -> Rule:
    """Sends the rows of a rule to a device; cloned, because sentences that are inserted later overwrite them."""
    if not isinstance(rule, Rows):
        return rule
    return cast(Rule, rule.to(device).mapped(torch.clone))


def _empty_cache(search: "BeamSearch", batch: Batch, memory: Memory, longest: int) -> KVCache:
    """Returns a cache without entries; `longest` is the largest length limit of the batch."""
    # Few translations exceed the length of their source by more than a quarter. For them, the cache grows.
    n_source_positions = memory.mask.shape[1]
    expected_length = max(INITIAL_LENGTH, n_source_positions * 5 // 4)
    capacity = min(longest + 1, expected_length)
    beam_size = search.config.n_hypotheses
    if batch.prompt is not None and batch.prompt.shape[1]:
        beam_size = 1  # until the prompts have been read
    return KVCache(
        sentences=batch.size, beam=beam_size, device=search.device, width=1, capacity=capacity
    )


def _shortlist_mask(search: "BeamSearch", batch: Batch, shortlist: Shortlist) -> Tensor:
    """Returns a mask of the shortlisted words of each sentence `(B,V)`, bool."""
    if not batch.reads_text:
        raise RecipeError(
            "a shortlist requires a source text, but this model does not read one: remove the shortlist"
        )
    required_ids = []
    if batch.prefix is not None:
        required_ids.append(batch.prefix)  # (B,P)
    if isinstance(batch.terms, Constraints):
        required_ids.append(batch.terms.positive.flatten(1))  # (B,U*L)
    prefix = torch.cat(required_ids, 1) if required_ids else None  # (B,P+U*L)
    return shortlist.candidates(batch, search.model.config.copies, prefix)


def _no_finished(search: "BeamSearch", scores: Tensor) -> Tensor | None:
    """Returns the initial `SentenceState.best_finished`: minus infinity, or None if `stop` is `first_k`."""
    compared = {"exact": search.n_best, "huggingface": search.config.n_hypotheses}
    n_compared = compared.get(search.config.effective_stop)
    if n_compared is None:
        return None
    return scores.new_full((len(scores), n_compared), -INFINITY)  # (B,n_best) or (B,K)


def _first_tokens(prompt: Tensor, prompt_lengths: Tensor | None) -> Tensor:
    """Returns the tokens that the first step reads `(B,1)`: the last token of each prompt, or BOS without a prompt."""
    if prompt_lengths is None:
        n_sentences = len(prompt)
        return torch.full((n_sentences, 1), BOS, device=prompt.device)
    prompt_with_bos = pad(prompt, (1, 0), value=BOS)  # (B,1+P)
    last = prompt_lengths[:, None]  # (B,1)
    return prompt_with_bos.gather(1, last)


def _prefix_after_prompt(
    prefix: Tensor | None, prompt: Tensor, prompt_lengths: Tensor | None
) -> Tensor | None:
    """Appends each prefix `(B,*)` to its prompt `(B,P)`, so that the column of a token is its position: `(B,P+*)`."""
    if prefix is None or prompt_lengths is None:
        return prefix
    prefix_length = prefix.shape[1]
    offsets = torch.arange(prefix_length, device=prefix.device)  # (*,)
    columns = prompt_lengths[:, None] + offsets  # (B,*)
    padded_prompt = pad(prompt, (0, prefix_length), value=PAD)  # (B,P+*)
    return padded_prompt.scatter(1, columns, prefix)
