"""What some models can do beyond the contracts of `nmtkit.models.base`.

An ability is a mix-in, and stands before the contract in the list of base classes: `class Mine(Copying, Seq2Seq)`. Next
to each mix-in is the function that asks a model for it; nothing outside of `nmtkit.models` uses `isinstance` on models.

Letters as in `nmtkit.models.base`.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import ABSENT, Batch, Rows
from nmtkit.layers.copying import mix, mix_wanted
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import DecoderLayer, EncoderLayer
from nmtkit.models.base import (
    MODELS,
    PARTS,
    Combined,
    Decoder,
    M,
    Memory,
    Model,
    ModelConfig,
    ModelOutput,
    S,
    Seq2Seq,
    members_of,
)
from nmtkit.models.output import ShortlistedOutput, log_probabilities_of


class Copying(Decoder[M, S]):
    """A decoder that can copy: words of its source, also unknown ones, or its own earlier words.

    It fills `ModelOutput.copy_gate`. One that copies from its source has a config whose `copies` is true.
    """

    def predict(self, output: ModelOutput, memory: M) -> Tensor:
        """Returns log-probabilities `(...,X)`, with the words that can be copied."""
        log_probs = self.vocabulary_log_probs(output, memory)  # (...,V)
        if output.copy_gate is None:
            return log_probs
        return self.copied(log_probs, output, memory)

    def copied(self, log_probs: Tensor, output: ModelOutput, memory: M, excess: Tensor | None = None) -> Tensor:
        """Turns `(...,V)` into `(...,X)`; see `nmtkit.layers.copying.mix`."""
        assert output.copy_gate is not None, "a model that copies has a gate"
        n_oov = 0 if memory.copy is ABSENT else memory.copy.n_oov
        weights, words = self.copyable(output, memory)
        return mix(log_probs, weights, output.copy_gate, words, n_oov, excess)

    def copyable(self, output: ModelOutput, memory: M) -> tuple[Tensor, Tensor]:
        """Returns the weights of the words that can be copied, and these: `attention` and `src_extended` of `mix`."""
        assert output.attention is not None, "a model that copies from its source shows its attention"
        source = memory.copy.extended
        if output.sentence is not None:
            source = source[output.sentence]
        return output.attention, memory.columns_of(source)


def as_copying(model: Model) -> Copying | None:
    """Returns the model, if it can copy."""
    return model if isinstance(model, Copying) else None


def predicts_by_softmax(model: Model) -> bool:
    """Returns whether `predict` is the softmax of `logits`, into which copies may be mixed.

    A search may then compute few of the probabilities. It is false for a model that overrides `predict`.
    """
    return type(model).predict in (Model.predict, Decoder.predict, Copying.predict)


def log_likelihood(
    model: Model, output: ModelOutput, memory: Any, wanted: Tensor, summed: bool
) -> tuple[Tensor, Tensor]:
    """Returns what `predict` says of the wanted id of each of M rows, which `ModelOutput.gather` gave: `(M,)`.

    If `summed`, and where the model does not copy, also returns the sum over the vocabulary, `(M,)`.
    """
    if not predicts_by_softmax(model):
        log_probs = model.predict(output, memory)  # (M,X)
        found = log_probs.gather(-1, wanted[:, None]).squeeze(-1)  # (M,)
        return found, log_probs[:, : model.vocabulary_size].sum(-1)
    logits = model.logits(output, memory)  # (M,V)
    if output.copy_gate is None:
        return log_probabilities_of(wanted, logits, summed)
    copying = as_copying(model)
    assert copying is not None, "a model with a gate can copy"
    weights, words = copying.copyable(output, memory)
    # The vocabulary gives words that it lacks no probability; any id of it stands in for them.
    size = logits.shape[-1]
    of_vocabulary, sums = log_probabilities_of(wanted.clamp(max=size - 1), logits)
    generated = of_vocabulary.masked_fill(wanted >= size, -torch.inf)  # (M,)
    return mix_wanted(wanted, generated, weights, output.copy_gate, words), sums


class MadeOutput(Decoder[M, S]):
    """A decoder whose output layer is made of other weights, and is not the module `output`."""

    @abstractmethod
    def output_layer(self, memory: M) -> tuple[Tensor, Tensor]:
        """Returns the matrix `(V,*)` and the bias `(V,)` that `logits` ends in; more rows than V are ignored."""


def output_layer_of(model: Decoder, memory: Any) -> tuple[Tensor, Tensor]:
    """Returns the matrix `(V,*)` and the bias `(V,)` that `logits` ends in; more rows than V are ignored.

    Raises a RecipeError if the model has no such matrix.
    """
    if isinstance(model, MadeOutput):
        return model.output_layer(memory)
    return matrix_and_bias(model)


def matrix_and_bias(model: Decoder) -> tuple[Tensor, Tensor]:
    """Returns the matrix `(V,*)` and the bias `(V,)` of the module `output`."""
    output = getattr(model, "output", None)
    weight = getattr(output, "weight", None)
    bias = getattr(output, "bias", None)
    # A matrix that is packed for one product has no rows to take.
    if not isinstance(weight, Tensor) or weight.layout != torch.strided:
        raise RecipeError(f"{model.config.kind} has no output layer that a shortlist could take rows of; go without")
    if bias is None:
        bias = weight.new_zeros(len(weight))
    return weight, bias


def with_shortlist(model: Decoder, memory: Memory, candidates: Tensor | None) -> Memory:
    """Returns the same memory, with `logits` for candidates only; for all words, if there are no candidates.

    `ShortlistedOutput.gathered` describes the candidates.
    """
    if isinstance(model, Combined):
        memories: Any = memory
        pairs = zip(model.members, memories.members, strict=True)
        members = tuple(with_shortlist(cast(Decoder, member), own, candidates) for member, own in pairs)
        joined: Memory = replace(memories, members=members, shortlist=members[0].shortlist)
        return joined
    if candidates is None:
        return replace(memory, shortlist=None)
    weight, bias = output_layer_of(model, memory)
    return replace(memory, shortlist=ShortlistedOutput.gathered(weight, bias, candidates))


class LimitedPositions(Decoder[M, S]):
    """A decoder that prepares for the positions of a text, or cannot write texts of any length."""

    @abstractmethod
    def reserve_positions(self, length: int) -> bool:
        """Prepares decoding of up to `length` steps; returns whether the model can decode so many."""


def reserve_positions(model: Decoder, length: int) -> bool:
    """Prepares decoding of up to `length` steps; returns whether the model can decode so many."""
    limited = [member for member in members_of(model) if isinstance(member, LimitedPositions)]
    prepared = [member.reserve_positions(length) for member in limited]  # also after one that cannot
    return all(prepared)


class ParallelPrefill(Decoder[M, S]):
    """A decoder whose `advance` reads a prompt in one pass.

    A step of it remembers only what it writes into the cache, and asks the cache for `KVCache.positions`.
    """

    def prefill(
        self, prompt: Tensor, state: S, memory: M, cache: KVCache, lengths: Tensor | None = None
    ) -> tuple[ModelOutput, S]:
        """Reads a prompt `(B,P)` as if its positions were hypotheses; see `Decoder.prefill`."""
        cache.begin_prompts(prompt.shape[1])
        output, state = self.advance(prompt.flatten(), state, memory, cache)
        cache.next_step()
        return output.mapped(lambda tensor: tensor.view(*prompt.shape, *tensor.shape[1:])), state


@dataclass(frozen=True)
class LayerAttentions(Rows):
    """Attention weights of every head: one tensor for each of the L layers of a side, first layer first.

    Rows are queries, columns are keys. A real row sums to one over the keys that it may read; rows and columns of
    padding are zero. Row t of `decoder` and `cross` is the position that *predicts* target token t (`Targets.ids`). The
    columns of `decoder` are the decoder's inputs (`Targets.shifted`), BOS first; row t reads columns 0 to t.
    """

    encoder: tuple[Tensor, ...]
    """Self-attention of the encoder, L x `(B,A,S,S)`."""
    decoder: tuple[Tensor, ...]
    """Self-attention of the decoder, L x `(B,A,T,T)`."""
    cross: tuple[Tensor, ...]
    """Attention of the decoder to the encoder's states, L x `(B,A,T,S)`."""


class HeadedModel(Seq2Seq[M, S]):
    """A model with layers of multi-head attention, whose weights can be read."""

    @classmethod
    @abstractmethod
    def shows_one_head(cls, config: Any) -> bool:
        """Returns whether `unroll` shows the attention of one head among several of its layer."""

    @abstractmethod
    def unroll_with_heads(self, batch: Batch, memory: M) -> tuple[ModelOutput, Tensor]:
        """`unroll` with its attention, and the weights of all heads of the layer that it comes from, `(B,A,T,S)`."""

    @abstractmethod
    def attentions(self, batch: Batch) -> LayerAttentions:
        """The weights of every head of every layer while the given targets are read; without their dropout."""

    @abstractmethod
    def positions(self, most: int) -> tuple[str, Tensor]:
        """The kind of position vectors of the source, and the first of them `(P,H)`, at most so many."""

    @abstractmethod
    def show(self, layer: int | None = None, heads: Literal["mean"] | int = "mean") -> None:
        """Chooses the attention that `need_attention` returns: of a layer, from 1, and of all or one of its heads."""


def as_headed(model: Model) -> HeadedModel | None:
    """Returns the model, if it has layers of multi-head attention."""
    return model if isinstance(model, HeadedModel) else None


def shows_one_head(config: ModelConfig) -> bool:
    """Returns whether the attention that a registered model shows is that of one head among several of a layer."""
    kind = MODELS.get(config.kind)
    return issubclass(kind, HeadedModel) and kind.shows_one_head(config)


class LooksBack(Decoder[M, S]):
    """A decoder that attends to the words that it has read before."""

    @abstractmethod
    def history_weights(self, batch: Batch) -> Tensor:
        """Returns the weights of all layers `(B,L,T,T)`: row t is where input t looks back, BOS first."""


def as_looking_back(model: Model) -> LooksBack | None:
    """Returns the model, if it looks back at the words before."""
    return model if isinstance(model, LooksBack) else None


class LocalWindow(Seq2Seq[M, S]):
    """A model that may look only at the source tokens around a centre, which `ModelOutput.centres` has."""

    window_half_width: int | None
    """The number of source tokens on either side of a centre; None if it may look at all of them."""


def window_half_width(model: Model) -> int | None:
    """Returns how many source tokens the model may look at on either side of a centre; None if at all."""
    return model.window_half_width if isinstance(model, LocalWindow) else None


class OwnMemoryLengths(Model):
    """A model whose memory has other positions than what it reads, as regions of a picture."""

    @abstractmethod
    def memory_lengths(self, batch: Batch) -> Tensor:
        """Returns how many positions of the memory are real, `(B,)` on the CPU."""


def memory_lengths(model: Model, batch: Batch) -> Tensor:
    """Returns how many positions of the memory are real, `(B,)` on the CPU; of an ensemble, the first member's."""
    first = members_of(model)[0]
    return first.memory_lengths(batch) if isinstance(first, OwnMemoryLengths) else batch.lengths


class OptionalSourceEnd(Seq2Seq[M, S]):
    """A model that can leave the EOS of its source out of the memory."""

    source_end: bool
    """Whether the memory has the EOS."""


def has_source_end(model: Model) -> bool:
    """Returns whether the memory of a text ends with its EOS; rows of numbers have none."""
    first = members_of(model)[0]
    return first.source_end if isinstance(first, OptionalSourceEnd) else "src" in first.sizes


class AuxiliaryHead(Model):
    """A model with a head beside the output layer, which an objective of its own trains."""

    @classmethod
    @abstractmethod
    def auxiliary_objective(cls, config: Any) -> str:
        """Returns the name of the objective; empty if this config has no such head."""

    @abstractmethod
    def auxiliary_logits(self, batch: Batch, output: ModelOutput) -> Tensor:
        """Returns the output of the head, from a batch and what `read` found in it."""


def auxiliary_objective(config: ModelConfig) -> str:
    """Returns the name of the objective that trains the auxiliary head of a registered model; empty without a head."""
    kind = MODELS.get(config.kind)
    return kind.auxiliary_objective(config) if issubclass(kind, AuxiliaryHead) else ""


def auxiliary_logits(model: Model, batch: Batch, output: ModelOutput) -> Tensor:
    """Returns the output of the model's auxiliary head, from a batch and what `read` found in it."""
    assert isinstance(model, AuxiliaryHead), f"{model.config.kind} has no auxiliary head"
    return model.auxiliary_logits(batch, output)


class AdaptedParts(Model):
    """A model whose weights mean something else in another model that begins with them."""

    @abstractmethod
    def adapt_part(self, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the weights of one of `PARTS`, which the model has, as another model reads them."""


def part_of(model: Model, name: str) -> dict[str, Tensor]:
    """Returns the weights of one of `PARTS` by name, as another model can begin with them; empty without that part."""
    parameters = model.state_dict(keep_vars=True)
    weights = {full: weight for full, weight in parameters.items() if full.startswith(PARTS[name])}
    if not any(full.startswith(name) for full in weights):
        return {}
    return model.adapt_part(name, weights) if isinstance(model, AdaptedParts) else weights


class Pretrained(Model):
    """A model that learns from texts alone by a pretraining objective, and only so."""

    pretrained_by: ClassVar[Sequence[str]]
    """The objectives that can train it."""


def pretraining_objectives(kind: type[Model]) -> Sequence[str]:
    """Returns the objectives that hide a part of a text and can train such a model on texts alone."""
    if issubclass(kind, Pretrained):
        return kind.pretrained_by
    return ("span_corruption", "denoising") if issubclass(kind, Seq2Seq) else ()


class ReadsSentences(Model):
    """A model that reads texts by their sentences, which `tokenizer.sentences` finds."""


def reads_sentences(config: ModelConfig) -> bool:
    """Returns whether a registered model reads texts by their sentences."""
    return issubclass(MODELS.get(config.kind), ReadsSentences)


def transformer_layers(model: Model) -> list[nn.Module]:
    """Returns the Transformer layers of encoder and decoder."""
    return [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
