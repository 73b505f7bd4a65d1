"""The contracts between models, training and search.

Notation in shape comments:

    B   sentences in a batch
    K   beam size
    N   = B*K hypotheses in sentence-major order: sentence b has rows b*K to b*K+K-1
    M   target positions selected from all B*T, one row each
    S   source length            T   target length             P   prompt length
    V   target vocabulary        X   = V + the largest number of unknown words in any example of the batch
    H   hidden size              E   embedding size            L   layers            Q   queries per sentence

There are three contracts. Each extends the one before it:

    Model    reads a batch and predicts: `read`, `logits`. This is all that training needs.
    Decoder  generates text token by token: `start`, `advance`. This is all that search needs. `unroll` runs all steps
             over the targets, and `prefill` over a prompt. By default both call `advance` in a loop; models that can
             compute many positions at once override them.
    Seq2Seq  generates text from a source: `encode`. Plots of attention, word alignment and copying need it.

The *memory* has one row per sentence and is fixed during decoding. Attention treats the K = N // B hypotheses of a
sentence as K queries into the sentence's single row, so the encoder states are never copied for a beam.

Two things change during decoding. The *state* has one row per hypothesis. It is small and has a fixed size; search
reorders its rows. The *cache* (`nmtkit.layers.kv_cache`) grows by one entry per step, and its entries are not moved.
Positions are a tensor, because the sentences of a batch may be at different positions in the same step.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, cast, final

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar, override

from nmtkit.core.device import send
from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings, TaggedUnion, model_validator
from nmtkit.data.batches.batch import ABSENT, Batch, CopySource, Rows
from nmtkit.data.embeddings import Side
from nmtkit.data.tokenizers.vocabulary import UNK
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.output import ShortlistedOutput, log_probabilities, project_to_vocabulary

MODELS: Registry["type[Model]"] = Registry(
    "model",
    {
        "attention_classifier": "nmtkit.models.hierarchical_attention",
        "bert": "nmtkit.models.language.bert",
        "convs2s": "nmtkit.models.convs2s",
        "electra": "nmtkit.zoo.electra",
        "elmo": "nmtkit.zoo.elmo",
        "gnmt": "nmtkit.models.rnn.gnmt",
        "hierarchical_attention": "nmtkit.models.hierarchical_attention",
        "intra_attention": "nmtkit.models.rnn.intra_attention",
        "lstmn": "nmtkit.zoo.lstmn.language_model",
        "lstmn_seq2seq": "nmtkit.zoo.lstmn.seq2seq",
        "luong": "nmtkit.models.rnn.luong",
        "ntm": "nmtkit.zoo.ntm",
        "pointer_generator": "nmtkit.models.rnn.pointer_generator",
        "pointer_sentinel": "nmtkit.zoo.pointer_sentinel",
        "rnn_encdec": "nmtkit.models.rnn.rnn_encdec",
        "rnn_lm": "nmtkit.models.language.rnn_lm",
        "rnnsearch": "nmtkit.models.rnn.rnnsearch",
        "show_and_tell": "nmtkit.zoo.captioning.show_and_tell",
        "show_attend_tell": "nmtkit.zoo.captioning.show_attend_tell",
        "snail": "nmtkit.zoo.snail",
        "t5": "nmtkit.models.t5",
        "transformer": "nmtkit.models.transformer",
        "transformer_lm": "nmtkit.models.language.transformer_lm",
        "word_mean": "nmtkit.models.word_mean",
        "xlnet": "nmtkit.zoo.xlnet",
    },
)


class VocabularySizes(dict[str, int]):
    """The vocabulary size of each column; for a column of features, the number of features per row.

    `shared` is true if source and target use the same vocabulary. If `tgt` is the only column, encoders read it as
    well, so `src` gets the same size.
    """

    def __init__(self, columns: Mapping[str, int], shared: bool = False) -> None:
        only_target = list(columns) == ["tgt"]
        if only_target:
            size = columns["tgt"]
            columns = {"src": size, "tgt": size}
            shared = True
        super().__init__(columns)
        self.shared = shared

    def __missing__(self, column: str) -> int:
        columns = ", ".join(self)
        raise RecipeError(
            f"the model needs the column {column!r}, but the examples have only these columns: {columns}"
        )


PARTS = {
    "encoder": ("encoder", "src_"),
    "decoder": ("decoder", "tgt_", "output"),
    "src_embedding": ("src_embedding.",),
    "tgt_embedding": ("tgt_embedding.",),
}
"""Parts of a model whose weights can initialize another model, each with the prefixes of its weight names."""

Tie = Literal["none", "embeddings", "decoder", "all"]
"""Layers that share a weight matrix. none: no layers. embeddings: both embeddings. decoder: the target embedding and
the output layer. all: all three."""


def require_shared_vocabulary(tie: Tie, sizes: VocabularySizes) -> None:
    """Raises a RecipeError if `tie` shares one embedding between sides with different vocabularies."""
    if tie in ("all", "embeddings") and not sizes.shared:
        alternative = "decoder" if tie == "all" else "none"
        raise RecipeError(
            f"`model.tie: {tie}` makes source and target share one embedding, which requires a joint vocabulary; set "
            f"tokenizer.joint to true, or model.tie to {alternative}"
        )


class ModelConfig(Settings):
    """Base class of the models' `Config` classes. A subclass declares `kind: Literal["its_name"] = "its_name"`."""

    shorthands: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Shorthand keys, each mapped to the keys that it sets."""

    kind: str
    """Name of the model; see `nmtkit recipe explain model.kind`."""

    @model_validator(mode="before")
    @classmethod
    def _expand_shorthands(cls, settings: Any) -> Any:
        if not isinstance(settings, Mapping):
            return settings
        expanded = dict(settings)
        for shorthand, keys in cls.shorthands.items():
            if expanded.get(shorthand) is None:
                continue
            conflicts = [key for key in keys if key in settings]
            if conflicts:
                raise ValueError(
                    f"`{shorthand}` sets {' and '.join(keys)}; remove {conflicts[0]} or `{shorthand}`"
                )
            value = expanded.pop(shorthand)
            expanded.update(dict.fromkeys(keys, value))
        return expanded

    @property
    def copies(self) -> bool:
        """Whether the model can copy source words that are not in its vocabulary; see the `copying` setting, if any."""
        return getattr(self, "copying", "none") not in (False, "none")

    @property
    def bf16_allowed(self) -> bool:
        """Whether `training.precision: auto` may choose bfloat16. False if rounding errors add up over the steps."""
        return False


if TYPE_CHECKING:
    AnyModelConfig = ModelConfig
else:
    # `MODELS` is looked up when settings are validated, so that recipes can use models that are registered later.
    AnyModelConfig = Annotated[Any, TaggedUnion(MODELS)]


@dataclass(frozen=True)
class Memory(Rows):
    """Data that is fixed during decoding, with one row per sentence. Models add fields, such as keys."""

    mask: Tensor
    """Boolean mask `(B, S)`: True at real source positions, False at padding. `(B, 0)` if the model reads no source."""
    copy: CopySource
    """Source words that can be copied; absent if the model reads no text."""
    _: KW_ONLY
    shortlist: ShortlistedOutput | None = None
    """Shortlisted rows of the output layer; None means the whole vocabulary."""

    def columns_of(self, ids: Tensor) -> Tensor:
        """Converts extended ids to columns of the distributions. Without a shortlist, ids and columns are the same."""
        return ids if self.shortlist is None else self.shortlist.index.columns_of(ids)

    def ids_of(self, columns: Tensor) -> Tensor:
        """Converts columns of the distributions to extended ids."""
        return columns if self.shortlist is None else self.shortlist.index.ids_of(columns)


@dataclass(frozen=True)
class DecoderState(Rows):
    """Data that changes during decoding, with one row per hypothesis. Models add fields."""


@dataclass(frozen=True)
class ModelOutput(Rows):
    """The features that the output layer reads, with attention and copy gate."""

    features: Tensor
    """Input of the output layer: `(N, *)` from `advance`, `(B, T, *)` from `unroll`, `(M, *)` from `gather`. Models
    that classify whole examples return `(B, *)`, and models that label each position `(B, S, *)`."""
    attention: Tensor | None = None
    """Weights over the source, `(N, S)`, `(B, T, S)` or `(M, S)`; None if not requested or if the model has none."""
    copy_gate: Tensor | None = None
    """Probability p_gen of generating instead of copying, `(N, 1)`, `(B, T, 1)` or `(M, 1)`; None if the model does not
    copy."""
    sentence: Tensor | None = None
    """Sentence index of each row, `(M,)`; set by `gather`."""
    centres: Tensor | None = None
    """Centres of local windows as source positions, counted from 0: `(N,)`, `(B, T)` or `(M,)`; None if `attention` is
    None or the model attends to the whole source."""
    path: Tensor | None = None
    """`log p(s_1 ... s_t | x)` of the positions sampled by hard attention up to each word, `(B, T)` or `(M,)`."""

    def gather(self, keep: Tensor) -> "ModelOutput":
        """Selects the M positions where `keep` `(B, T)` or `(B,)` is True, so that the output layer skips padding."""
        # `keep` may still be on the CPU, where `nonzero` does not have to wait for an accelerator. `indices` has one or
        # two tensors of shape (M,).
        indices = [send(index, self.features.device) for index in keep.nonzero(as_tuple=True)]
        rows = self.mapped(lambda tensor: tensor[*indices])
        return replace(rows, sentence=indices[0])

    @staticmethod
    def stack(steps: Sequence["ModelOutput"]) -> "ModelOutput":
        """Joins the outputs of T steps, `(N, *)`, into one output, `(N, T, *)`."""
        # `tensors` and `mapped` visit the fields in the same order, so each stacked tensor ends up in the right field.
        tensors_by_field = zip(*(step.tensors() for step in steps), strict=True)
        stacked = iter([torch.stack(tensors, 1) for tensors in tensors_by_field])  # (N, T, *) each
        return steps[0].mapped(lambda _: next(stacked))


M = TypeVar("M", bound=Memory, default=Any)
"""A model's memory type."""
S = TypeVar("S", bound=DecoderState, default=Any)
"""A model's decoder state type."""


class Model(nn.Module, ABC):
    """A trainable model; see the module docstring.

    A subclass has a nested class `Config(ModelConfig)` and is built as `MyModel(config, vocabulary_sizes)`.
    """

    Config: ClassVar[type[ModelConfig]]
    output_column: ClassVar[str] = ""
    """Name of the column whose ids the model predicts."""
    output: Any
    """Output layer: a module that maps features `(..., *)` to `(..., V)`."""
    has_attention: bool = False
    """Whether outputs can contain attention over the source."""

    def __init__(self, config: ModelConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes

    @property
    @final
    def vocabulary_size(self) -> int:
        """V, the number of ids that the output layer scores."""
        return self.sizes[self.output_column]

    @final
    def embedding(self, side: Side) -> nn.Embedding:
        """Returns `src_embedding` or `tgt_embedding`."""
        embedding: nn.Embedding = getattr(self, f"{side}_embedding")
        return embedding

    @abstractmethod
    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, Any]:
        """Runs the model with teacher forcing; returns the output for all positions, and the memory or None."""

    def logits(self, output: ModelOutput, memory: Any) -> Tensor:
        """Applies the output layer; returns logits `(..., V)` with the leading axes of `output.features`."""
        logits: Tensor = self.output(output.features)  # (..., V)
        return logits

    def predict(self, output: ModelOutput, memory: Any) -> Tensor:
        """Returns log-probabilities `(..., X)`. Training calls this for one part of the output at a time."""
        return log_probabilities(self.logits(output, memory))

    @final  # type: ignore[misc]  # torch declares `forward` as an attribute
    def forward(self, batch: Batch, keep: Tensor | None = None) -> Tensor:
        """Returns log-probabilities with teacher forcing: `(B, T, X)`, or `(M, X)` for the positions in `keep`."""
        output, memory = self.read(batch)
        if keep is not None:
            output = output.gather(keep)
        return self.predict(output, memory)


class Decoder(Model, Generic[M, S]):
    """A model that generates text token by token.

    A subclass specifies the types of its memory and its state, as in `Decoder[Memory, MyState]`, and implements
    `advance` and, if it has a state, `start`. If `logits` does more than call `output`, it must end in
    `project_to_vocabulary`, which handles shortlists. By default, a decoder has no source and reads only the tokens
    generated so far.
    """

    output_column = "tgt"
    tgt_embedding: nn.Embedding
    """Word vectors of the target."""

    @final
    def tie_output(self) -> None:
        """Uses the target embedding as the matrix of the output layer if the setting `tie` requires it."""
        if getattr(self.config, "tie", "none") in ("decoder", "all"):
            self.output.weight = self.tgt_embedding.weight

    def encode(self, batch: Batch) -> M:
        """Returns the memory, with one row per sentence. By default it is empty."""
        first_tensor = batch.tensors()[0]
        mask = torch.zeros(
            len(first_tensor), 0, dtype=torch.bool, device=first_tensor.device
        )  # (B, 0)
        return cast(M, Memory(mask, ABSENT))

    def start(self, memory: M) -> S:
        """Returns the state before the first word, with one row per sentence (N = B). By default it has no fields."""
        return cast(S, DecoderState())

    @abstractmethod
    def advance(
        self, tokens: Tensor, state: S, memory: M, cache: KVCache, need_attention: bool = False
    ) -> tuple[ModelOutput, S]:
        """Runs one decoding step, without the output layer. The caller then calls `KVCache.next_step`.

        Args:
            tokens: last tokens of the hypotheses, `(N,)`, BOS in the first step; extended ids if the model copies.
            state: decoder state with N rows.
            memory: memory with B rows. N is a multiple of B, and the hypotheses are in sentence-major order.
            cache: cache of these hypotheses, into which this step writes its entries.
            need_attention: whether `ModelOutput.attention` is required; a model may always set it if that costs
                nothing.
        """

    def logits(self, output: ModelOutput, memory: M) -> Tensor:
        """Applies the output layer; returns logits `(..., V)`, or `(N, V')` with a shortlist of V' words."""
        return project_to_vocabulary(self.output, output.features, memory.shortlist)

    def predict(self, output: ModelOutput, memory: M) -> Tensor:
        """Returns log-probabilities `(..., V)`; mix-ins such as `Copying` return `(..., X)`."""
        assert output.copy_gate is None, (
            "a model that copies must inherit from `nmtkit.models.abilities.Copying`"
        )
        return self.vocabulary_log_probs(output, memory)

    @final
    def vocabulary_log_probs(self, output: ModelOutput, memory: M) -> Tensor:
        """Returns the log-softmax of `logits`, `(..., V)`."""
        logits = self.logits(output, memory)  # (..., V or V')
        shortlist = memory.shortlist
        if shortlist is not None:
            width = logits.shape[-1]
            shortlisted = shortlist.bias.shape[1]
            # The logits of an ensemble already include the copied words.
            copied = 0 if memory.copy is ABSENT else memory.copy.n_oov
            widths = (shortlisted, shortlisted + copied)
            assert width in widths, "with a shortlist, `logits` must end in `project_to_vocabulary`"
        return log_probabilities(logits)

    def prefill(
        self, prompt: Tensor, state: S, memory: M, cache: KVCache, lengths: Tensor | None = None
    ) -> tuple[ModelOutput, S]:
        """Reads prompts `(B, P)`, BOS first, with one hypothesis per sentence.

        Returns the outputs `(B, P, *)` and the state after the prompts. The cache must be empty and have one hypothesis
        per sentence; afterwards it contains P entries. If prompts are padded on the right, `lengths` `(B,)`, on the
        CPU, has the number of tokens in each prompt. The state of each sentence is then the state after its last token,
        and the caller removes the padding from the cache with `KVCache.end_prompts`.
        """
        sentences, longest = prompt.shape
        if lengths is None:
            lengths = torch.full((sentences,), longest)  # (B,)
        # Group the sentences by length: `rows_by_length[n]` has the indices of the sentences with n tokens.
        order = send(lengths.argsort(), prompt.device)  # (B,)
        counts = lengths.bincount(minlength=longest + 1)  # (P+1,)
        rows_by_length = torch.split(order, counts.tolist())
        final_state = state.mapped(torch.clone)
        outputs = []
        for length, tokens in enumerate(prompt.unbind(1), start=1):  # tokens: (B,)
            output, state = self.advance(tokens, state, memory, cache=cache)  # (B, *)
            ended = rows_by_length[length]
            if len(ended):
                final_state.put(ended, state.select(ended))
            cache.next_step()
            outputs.append(output)
        return ModelOutput.stack(outputs), final_state

    def unroll(self, batch: Batch, memory: M, need_attention: bool = False) -> ModelOutput:
        """Runs all steps over the batch's targets, `(B, T, *)`."""
        mask = memory.mask
        sentences = len(mask)
        cache = KVCache(sentences, beam=1, device=mask.device)
        state = self.start(memory)
        outputs = []
        for tokens in batch.targets.shifted.unbind(1):  # (B,)
            output, state = self.advance(
                tokens, state, memory, cache=cache, need_attention=need_attention
            )  # (B, *)
            cache.next_step()
            outputs.append(output)
        return ModelOutput.stack(outputs)

    @override
    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, M]:
        memory = self.encode(batch)
        return self.unroll(batch, memory, need_attention), memory


class Seq2Seq(Decoder[M, S]):
    """An encoder-decoder model, which generates text from a source."""

    src_embedding: nn.Embedding
    """Word vectors of the source; the same module as `tgt_embedding` if both sides share one matrix."""
    has_attention = True

    @abstractmethod
    def encode(self, batch: Batch) -> M:
        """Runs the encoder and projects the attention keys, once for all decoding steps."""


class Combined(Decoder[M, S]):
    """Several decoders that generate text jointly."""

    members: nn.ModuleList
    """The combined decoders, which may themselves be combined."""


def members_of(model: Model) -> list[Model]:
    """Returns the models that a model combines, or just the model itself."""
    if not isinstance(model, Combined):
        return [model]
    members = []
    for member in model.members:
        members += members_of(cast(Model, member))
    return members


def as_decoder(model: Model) -> Decoder | None:
    """Returns the model if it is a decoder, else None."""
    return model if isinstance(model, Decoder) else None


def as_seq2seq(model: Model) -> Seq2Seq | None:
    """Returns the model if it generates text from a source, else None; for an ensemble, its first member decides."""
    if isinstance(model, Seq2Seq) and isinstance(members_of(model)[0], Seq2Seq):
        return model
    return None


def rows_per_sentence(state_rows: int, memory: Memory) -> int:
    """Returns K = N // B, the number of hypotheses per sentence."""
    sentences = memory.mask.shape[0]
    assert state_rows % sentences == 0, (
        f"the number of hypotheses, {state_rows}, is not a multiple of the number of sentences, {sentences}"
    )
    return state_rows // sentences


def extended_to_unk(ids: Tensor, sizes: VocabularySizes) -> Tensor:
    """Replaces the ids of words outside the vocabulary, which have no embedding, with UNK."""
    return ids.masked_fill(ids >= sizes["tgt"], UNK)
