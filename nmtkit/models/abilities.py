"""Optional abilities of models, beyond the contracts of `nmtkit.models.base`.

Each ability is a mix-in class that comes before the contract in the list of base classes: `class MyModel(Copying,
Seq2Seq)`. The functions below each mix-in check whether a model has the ability, or use the ability if it does. Code
outside `nmtkit.models` calls these functions instead of `isinstance`.

Notation: as in `models/base.py`; A is the number of attention heads, V' the size of a shortlist.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.batch import ABSENT, Batch, Rows
from nmtkit.layers.copying import mix, mix_targets
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
    """A decoder that can copy source words, including unknown ones, or its own earlier words.

    Such a decoder sets `ModelOutput.copy_gate`. If it copies from the source, `copies` is true in its config.
    """

    def predict(self, output: ModelOutput, memory: M) -> Tensor:
        """Returns log-probabilities `(..., X)` of generated and copied words."""
        log_probs = self.vocabulary_log_probs(output, memory)  # (..., V)
        if output.copy_gate is None:
            return log_probs
        return self.copied(log_probs, output, memory)

    def copied(
        self,
        log_probs: Tensor,
        output: ModelOutput,
        memory: M,
        log_normalizer: Tensor | None = None,
    ) -> Tensor:
        """Mixes copy probabilities into log-probabilities `(..., V)`, using `nmtkit.layers.copying.mix`: `(..., X)`."""
        p_gen = output.copy_gate
        assert p_gen is not None, "a model that copies must set `copy_gate`"
        n_oov = 0 if memory.copy is ABSENT else memory.copy.n_oov
        weights, words = self.copyable(output, memory)  # (..., S), (B, S) or (M, S)
        return mix(
            log_probs,
            weights,
            p_gen,
            src_extended=words,
            n_oov=n_oov,
            log_normalizer=log_normalizer,
        )

    def copyable(self, output: ModelOutput, memory: M) -> tuple[Tensor, Tensor]:
        """Returns the arguments `attention` and `src_extended` of `mix`: the copyable words' weights and columns."""
        weights = output.attention
        assert weights is not None, "a model that copies from its source must set `attention`"
        source = memory.copy.extended  # (B, S)
        if output.sentence is not None:
            source = source[output.sentence]  # (M, S)
        columns = memory.columns_of(source)  # (B, S) or (M, S)
        return weights, columns


def as_copying(model: Model) -> Copying | None:
    """Returns the model if it can copy, else None."""
    return model if isinstance(model, Copying) else None


def predicts_by_softmax(model: Model) -> bool:
    """Returns whether `predict` is the softmax of `logits`, possibly combined with copy probabilities.

    If so, callers can compute only the probabilities that they need. The result is false for models that override
    `predict`.
    """
    return type(model).predict in (Model.predict, Decoder.predict, Copying.predict)


def log_likelihood(
    model: Model, output: ModelOutput, memory: Any, wanted: Tensor, summed: bool
) -> tuple[Tensor, Tensor]:
    """Returns the log-probabilities `(M,)` of the wanted ids under `predict`.

    Where possible, the rest of the distribution is not computed.

    `wanted` are extended ids `(M,)`; `output` has M rows, from `ModelOutput.gather`. The second result is each row's
    sum of log-probabilities over the vocabulary, `(M,)`; it is valid only if `summed` is set and the model does not
    copy.
    """
    if not predicts_by_softmax(model):
        log_probs = model.predict(output, memory)  # (M, X)
        wanted_log_probs = log_probs.gather(-1, wanted[:, None])  # (M, 1)
        vocabulary_log_probs = log_probs[:, : model.vocabulary_size]  # (M, V)
        return wanted_log_probs.squeeze(-1), vocabulary_log_probs.sum(-1)
    logits = model.logits(output, memory)  # (M, V)
    if output.copy_gate is None:
        return log_probabilities_of(wanted, logits, summed)
    copying = as_copying(model)
    assert copying is not None, "a model that sets `copy_gate` must inherit from `Copying`"
    weights, words = copying.copyable(output, memory)  # (M, S) each
    # Wanted words outside the vocabulary cannot be generated. Their ids are clamped to make them valid indices, and the
    # resulting log-probabilities are overwritten.
    size = logits.shape[-1]
    valid_ids = wanted.clamp(max=size - 1)  # (M,)
    log_probs, sums = log_probabilities_of(valid_ids, logits)  # (M,), (M,)
    is_unknown = wanted >= size  # (M,)
    vocab_log_probs = log_probs.masked_fill(is_unknown, -torch.inf)  # (M,)
    mixed = mix_targets(
        wanted, vocab_log_probs, attention=weights, p_gen=output.copy_gate, src_extended=words
    )  # (M,)
    return mixed, sums


class ComputedOutput(Decoder[M, S]):
    """A decoder whose output layer may be computed from other weights instead of being the module `output`."""

    @abstractmethod
    def output_layer(self, memory: M) -> tuple[Tensor, Tensor]:
        """Returns the matrix `(V, *)` and bias `(V,)` of the output layer; additional rows are ignored."""


def output_layer_of(model: Decoder, memory: Any) -> tuple[Tensor, Tensor]:
    """Returns the matrix `(V, *)` and bias `(V,)` of the output layer; they may have additional rows.

    Raises a RecipeError if the output layer has no matrix.
    """
    if isinstance(model, ComputedOutput):
        return model.output_layer(memory)
    return matrix_and_bias(model)


def matrix_and_bias(model: Decoder) -> tuple[Tensor, Tensor]:
    """Returns the matrix `(V, *)` and bias `(V,)` of the module `output`; they may have additional rows.

    Raises a RecipeError if the module has no matrix.
    """
    output = getattr(model, "output", None)
    weight = getattr(output, "weight", None)
    bias = getattr(output, "bias", None)
    # Rows cannot be selected from a matrix that is packed for matrix multiplication.
    if not isinstance(weight, Tensor) or weight.layout != torch.strided:
        raise RecipeError(
            f"{model.config.kind} has no output matrix from which a shortlist could select rows; remove the shortlist"
        )
    if bias is None:
        bias = weight.new_zeros(len(weight))  # (V,)
    return weight, bias


def with_shortlist(model: Decoder, memory: Memory, candidates: Tensor | None) -> Memory:
    """Returns the memory with the output layer restricted to `candidates`; None means the whole output layer.

    For the format of `candidates` see `ShortlistedOutput.gather`.
    """
    if isinstance(model, Combined):
        joint_memory: Any = memory
        member_memories = []
        for member, member_memory in zip(model.members, joint_memory.members, strict=True):
            member_memory = with_shortlist(cast(Decoder, member), member_memory, candidates)
            member_memories.append(member_memory)
        combined: Memory = replace(
            joint_memory, members=tuple(member_memories), shortlist=member_memories[0].shortlist
        )
        return combined
    if candidates is None:
        return replace(memory, shortlist=None)
    weight, bias = output_layer_of(model, memory)  # (V, *), (V,)
    shortlist = ShortlistedOutput.gather(weight, bias, candidates)
    return replace(memory, shortlist=shortlist)


class LimitedPositions(Decoder[M, S]):
    """A decoder that has a maximum text length, or a table of positions that must be large enough."""

    @abstractmethod
    def reserve_positions(self, length: int) -> bool:
        """Prepares for decoding up to `length` steps; returns False if the model cannot decode that many."""


def reserve_positions(model: Decoder, length: int) -> bool:
    """Prepares for decoding up to `length` steps; returns False if the model cannot decode that many."""
    limited = [member for member in members_of(model) if isinstance(member, LimitedPositions)]
    # A list, not a generator, so that all members prepare, even if one of them returns False.
    prepared = [member.reserve_positions(length) for member in limited]
    return all(prepared)


class ParallelPrefill(Decoder[M, S]):
    """A decoder whose `advance` can read a prompt in one pass.

    Such a decoder keeps everything it remembers from earlier steps in the cache, and gets its positions from
    `KVCache.positions`.
    """

    def prefill(
        self, prompt: Tensor, state: S, memory: M, cache: KVCache, lengths: Tensor | None = None
    ) -> tuple[ModelOutput, S]:
        """Reads prompts `(B, P)` in one step, with their P positions as hypotheses; see `Decoder.prefill`."""
        sentences, length = prompt.shape
        cache.begin_prompts(length)
        output, state = self.advance(prompt.flatten(), state, memory, cache=cache)  # (B*P, *)
        cache.next_step()
        output = output.mapped(
            lambda tensor: tensor.view(sentences, length, *tensor.shape[1:])
        )  # (B, P, *)
        return output, state


@dataclass(frozen=True)
class LayerAttentions(Rows):
    """Attention weights of all heads: one tensor per layer of the encoder or decoder, lowest layer first.

    Rows are queries, columns are keys. The weights of a real query sum to one over the keys that it may read; rows and
    columns of padding are zero. Row t of `decoder` and `cross` belongs to the position that *predicts* target token t
    (`Targets.ids`). The columns of `decoder` are the inputs of the decoder (`Targets.shifted`), BOS first; row t reads
    columns 0 to t.
    """

    encoder: tuple[Tensor, ...]
    """Self-attention of the encoder, L x `(B, A, S, S)`."""
    decoder: tuple[Tensor, ...]
    """Self-attention of the decoder, L x `(B, A, T, T)`."""
    cross: tuple[Tensor, ...]
    """Cross-attention from the decoder to the encoder, L x `(B, A, T, S)`."""


class MultiHeadModel(Seq2Seq[M, S]):
    """A model with multi-head attention that can return the weights of all heads."""

    @classmethod
    @abstractmethod
    def shows_one_head(cls, config: Any) -> bool:
        """Returns whether `unroll` returns the attention of a single head instead of the mean of all heads."""

    @abstractmethod
    def unroll_with_heads(self, batch: Batch, memory: M) -> tuple[ModelOutput, Tensor]:
        """Runs `unroll` with attention; also returns the weights of all heads of the shown layer, `(B, A, T, S)`."""

    @abstractmethod
    def attentions(self, batch: Batch) -> LayerAttentions:
        """Returns the weights of all heads and layers with teacher forcing, without dropout on the weights."""

    @abstractmethod
    def positions(self, most: int) -> tuple[str, Tensor]:
        """Returns the kind of position encoding on the source side, and its first P <= `most` vectors, `(P, H)`."""

    @abstractmethod
    def show(self, layer: int | None = None, heads: Literal["mean"] | int = "mean") -> None:
        """Selects the attention that `need_attention` returns: a layer, and one head (counted from 1) or the mean."""


def as_multi_head(model: Model) -> MultiHeadModel | None:
    """Returns the model if it has multi-head attention layers, else None."""
    return model if isinstance(model, MultiHeadModel) else None


def shows_one_head(config: ModelConfig) -> bool:
    """Returns whether a model with this config returns the attention of a single head, not the mean of all heads."""
    kind = MODELS.get(config.kind)
    return issubclass(kind, MultiHeadModel) and kind.shows_one_head(config)


class LooksBack(Decoder[M, S]):
    """A decoder that attends to the words that it has already read."""

    @abstractmethod
    def history_weights(self, batch: Batch) -> Tensor:
        """Returns the attention weights of all layers, `(B, L, T, T)`; row t belongs to input t, and input 0 is BOS."""


def as_looking_back(model: Model) -> LooksBack | None:
    """Returns the model if it attends to the words that it has already read, else None."""
    return model if isinstance(model, LooksBack) else None


class LocalWindow(Seq2Seq[M, S]):
    """A model that can restrict attention to a window of source tokens centred at `ModelOutput.centres`."""

    window_half_width: int | None
    """Number of source tokens on each side of the centre; None if the model attends to the whole source."""


def window_half_width(model: Model) -> int | None:
    """Returns the number of source tokens on each side of a window's centre; None if there is no window."""
    return model.window_half_width if isinstance(model, LocalWindow) else None


class OwnMemoryLengths(Model):
    """A model whose memory positions are not its input positions, but, for example, regions of an image."""

    @abstractmethod
    def memory_lengths(self, batch: Batch) -> Tensor:
        """Returns each example's number of real memory positions, `(B,)`, on the CPU."""


def memory_lengths(model: Model, batch: Batch) -> Tensor:
    """Returns each example's number of real memory positions, `(B,)`, on the CPU; for ensembles, the first member's."""
    first_member = members_of(model)[0]
    return (
        first_member.memory_lengths(batch)
        if isinstance(first_member, OwnMemoryLengths)
        else batch.lengths
    )


class OptionalSourceEnd(Seq2Seq[M, S]):
    """A model that can exclude the EOS of the source from the memory."""

    source_end: bool
    """Whether the memory includes EOS."""


def has_source_end(model: Model) -> bool:
    """Returns whether the last memory position of a text is EOS; false for models that read rows of features."""
    first_member = members_of(model)[0]
    return (
        first_member.source_end
        if isinstance(first_member, OptionalSourceEnd)
        else "src" in first_member.sizes
    )


class AuxiliaryHead(Model):
    """A model with a second head in addition to the output layer, trained with a separate objective."""

    @classmethod
    @abstractmethod
    def auxiliary_objective(cls, config: Any) -> str:
        """Returns the name of the objective, or an empty string if a model with this config has no such head."""

    @abstractmethod
    def auxiliary_logits(self, batch: Batch, output: ModelOutput) -> Tensor:
        """Applies the head to the output of `read` for the same batch."""


def auxiliary_objective(config: ModelConfig) -> str:
    """Returns the name of the auxiliary head's objective, or "" if a model with this config has no such head."""
    kind = MODELS.get(config.kind)
    return kind.auxiliary_objective(config) if issubclass(kind, AuxiliaryHead) else ""


def auxiliary_logits(model: Model, batch: Batch, output: ModelOutput) -> Tensor:
    """Applies the auxiliary head to the output of `read` for the same batch."""
    assert isinstance(model, AuxiliaryHead), f"{model.config.kind} has no auxiliary head"
    return model.auxiliary_logits(batch, output)


class AdaptedParts(Model):
    """A model whose weights must be converted before they can initialize another kind of model."""

    @abstractmethod
    def adapt_part(self, name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Converts the weights of one of `PARTS` to those that the other model expects."""


def part_of(model: Model, name: str) -> dict[str, Tensor]:
    """Returns the weights of one of `PARTS` for initializing another model; empty if the model has no such part."""
    weights = {}
    for weight_name, weight in model.state_dict(keep_vars=True).items():
        if weight_name.startswith(PARTS[name]):
            weights[weight_name] = weight
    # Source embeddings, whose names start with `src_`, count as weights of the encoder, but source embeddings alone are
    # not an encoder. The same is true of target embeddings and the decoder.
    if not any(weight_name.startswith(name) for weight_name in weights):
        return {}
    if isinstance(model, AdaptedParts):
        return model.adapt_part(name, weights)
    return weights


class Pretrained(Model):
    """A model that can be trained only with a pretraining objective, on plain text."""

    pretrained_by: ClassVar[Sequence[str]]
    """Names of the objectives that can train the model."""


def pretraining_objectives(kind: type[Model]) -> Sequence[str]:
    """Returns the names of the objectives that can train a class of models on plain text by corrupting it."""
    if issubclass(kind, Pretrained):
        return kind.pretrained_by
    return ("span_corruption", "denoising") if issubclass(kind, Seq2Seq) else ()


class ReadsSentences(Model):
    """A model that reads a text sentence by sentence; `tokenizer.sentences` determines where sentences end."""


def reads_sentences(config: ModelConfig) -> bool:
    """Returns whether a model with this config reads a text sentence by sentence."""
    return issubclass(MODELS.get(config.kind), ReadsSentences)


def transformer_layers(model: Model) -> list[nn.Module]:
    """Returns all Transformer layers of the model."""
    return [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
