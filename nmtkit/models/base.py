"""The contracts between models, training and search.

Letters used in every shape comment:

    B   sentences in a batch
    K   beam size
    N   = B*K hypotheses in sentence-major order: those of sentence b are rows b*K to b*K+K-1
    S   source length            T   target length
    V   target vocabulary        X   = V + the most unknown words of any example in the batch
    H   hidden size              E   embedding size            L   layers            Q   queries per sentence

There are three contracts, each with what the one before it has:

    Model    reads a batch and predicts: `read`, `logits`. Training asks for no more.
    Decoder  writes a text word by word: `start`, `advance`. Search asks for it. `unroll` is all steps over given
             targets, `prefill` those over a prompt: walks of `advance`, unless a model has a parallel or cheaper form.
    Seq2Seq  writes a text from one that it reads: `encode`. Pictures of attention, alignment and copying ask for it.

Memory has one row per *sentence* and is fixed while decoding; state has one row per *hypothesis*. A model that attends
reads the K = N // B hypotheses of a sentence as K queries into that sentence's one row of memory: the encoder's states
are never copied per beam.

Decoding changes two things. The *state* is small and of one size: a search reorders its rows. The *cache*
(`nmtkit.layers.kv_cache`) grows by one entry in every step, and its entries are never moved. The position of a
hypothesis is a tensor, since the hypotheses of one step may stand at different positions.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, cast, final

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from nmtkit.core.device import send
from nmtkit.core.errors import RecipeError
from nmtkit.core.registry import Registry
from nmtkit.core.settings import Settings, TaggedUnion
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
    """How many ids each column has, or numbers a row of features.

    `shared`: whether two texts share one vocabulary (then their sizes are equal). Where `tgt` is all that there is, an
    encoder can read it too.
    """

    def __init__(self, columns: Mapping[str, int], shared: bool = False) -> None:
        alone = [*columns] == ["tgt"]
        super().__init__({"src": columns["tgt"], **columns} if alone else columns)
        self.shared = shared or alone

    def __missing__(self, column: str) -> int:
        raise RecipeError(f"the model asks for the size of column {column!r}, and an example has {', '.join(self)}")


PARTS = {
    "encoder": ("encoder", "src_"),
    "decoder": ("decoder", "tgt_", "output"),
    "src_embedding": ("src_embedding.",),
    "tgt_embedding": ("tgt_embedding.",),
}
"""The parts of models that others can begin with, and how the names of their weights begin."""

Tie = Literal["none", "embeddings", "decoder", "all"]
"""Weights that share one matrix: none; both embeddings; target embedding and output layer; or all three."""


def require_shared_vocabulary(tie: Tie, sizes: VocabularySizes) -> None:
    """Raises a RecipeError where both sides are to share one embedding, but not a vocabulary."""
    if tie in ("all", "embeddings") and not sizes.shared:
        raise RecipeError(
            f"model.tie: `{tie}` makes source and target share one embedding, which needs one vocabulary for both; "
            f"set tokenizer.joint to true, or model.tie to `{'decoder' if tie == 'all' else 'none'}`"
        )


class ModelConfig(Settings):
    """Base of every model's `Config`. A subclass declares `kind: Literal["its_name"] = "its_name"`."""

    shorthands: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Shorthand keys, each with the keys that it sets."""

    kind: str
    """Which model."""

    @property
    def copies(self) -> bool:
        """Whether the model can write words of its source that the vocabulary lacks: its setting `copying`, if any."""
        return getattr(self, "copying", "none") not in (False, "none")

    @property
    def bf16_allowed(self) -> bool:
        """Whether `training.precision: auto` may choose bfloat16; not where rounding adds up from step to step."""
        return False


if TYPE_CHECKING:
    AnyModelConfig = ModelConfig
else:  # the models are asked for when settings are checked, so that one that came later can be named too
    AnyModelConfig = Annotated[Any, TaggedUnion(MODELS)]


@dataclass(frozen=True)
class Memory(Rows):
    """All that is fixed while decoding; one row per sentence. Each model adds what it needs (keys, final state)."""

    mask: Tensor
    """`(B,S)`, True where a position that the model reads is real; `(B,0)` where it reads nothing."""
    copy: CopySource
    """What can be copied; absent where a model reads no text."""
    _: KW_ONLY
    shortlist: ShortlistedOutput | None = None
    """Shortlisted rows of the output layer; None means the whole vocabulary."""

    def columns_of(self, ids: Tensor) -> Tensor:
        """The columns of the distributions that stand for extended ids."""
        return ids if self.shortlist is None else self.shortlist.index.columns_of(ids)

    def ids_of(self, columns: Tensor) -> Tensor:
        """The extended ids that columns stand for."""
        return columns if self.shortlist is None else self.shortlist.index.ids_of(columns)


@dataclass(frozen=True)
class DecoderState(Rows):
    """All that changes while decoding; one row per hypothesis. Each model adds its own fields."""


@dataclass(frozen=True)
class ModelOutput(Rows):
    """What a model has found, before the output layer; of a decoder, in one or more steps."""

    features: Tensor
    """`(N,*)` from `advance`; `(B,T,*)` from `unroll`; `(M,*)` from `gather`: what `predict` reads. A model that labels
    examples has `(B,*)`, one that labels positions `(B,S,*)`."""
    attention: Tensor | None = None
    """Weights over the source, `(N,S)`, `(B,T,S)` or `(M,S)`; None where not asked for, or where the model has none."""
    copy_gate: Tensor | None = None
    """p_gen, `(N,1)`, `(B,T,1)` or `(M,1)`; None where the model does not copy."""
    sentence: Tensor | None = None
    """`(M,)` from `gather`: the sentence of each row."""
    centres: Tensor | None = None
    """The centre of a local window, `(N,)`, `(B,T)` or `(M,)`, in source tokens from 0; None where `attention` is, and
    where a model may look at all of the source."""
    path: Tensor | None = None
    """`log p(s_1 ... s_t | x)` of the places that a hard attention has drawn up to this word, `(B,T)` or `(M,)`."""

    def gather(self, keep: Tensor) -> "ModelOutput":
        """The positions where `keep` `(B,T)` or `(B,)` is True, as M rows; spares the output layer the padding."""
        # `keep` may still be on the CPU: finding its positions there spares an accelerator a wait.
        places = [send(index, self.features.device) for index in keep.nonzero(as_tuple=True)]
        return replace(self.mapped(lambda tensor: tensor[*places]), sentence=places[0])

    @staticmethod
    def stack(steps: Sequence["ModelOutput"]) -> "ModelOutput":
        """The outputs of T steps `(N,*)` as one `(N,T,*)`."""
        tensors = [iter(step.tensors()) for step in steps]
        return steps[0].mapped(lambda _: torch.stack([next(own) for own in tensors], 1))


M = TypeVar("M", bound=Memory, default=Any)
"""The memory of a model."""
S = TypeVar("S", bound=DecoderState, default=Any)
"""The decoder state of a model."""


class Model(nn.Module, ABC):
    """What can be trained; see the head of this file.

    A subclass has a nested `Config(ModelConfig)`, and is built as `Model(config, vocabulary_sizes)`.
    """

    Config: ClassVar[type[ModelConfig]]
    output_column: ClassVar[str] = ""
    """The column whose ids the model predicts."""
    output: Any
    """The output layer: a module from features `(...,*)` to `(...,V)`."""
    has_attention: bool = False
    """Whether the outputs can carry attention over what the model reads."""

    def __init__(self, config: ModelConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes

    @property
    @final
    def vocabulary_size(self) -> int:
        """V."""
        return self.sizes[self.output_column]

    @final
    def embedding(self, side: Side) -> nn.Embedding:
        """The word vectors of a text column, which are its `src_embedding` or `tgt_embedding`."""
        embedding: nn.Embedding = getattr(self, f"{side}_embedding")
        return embedding

    @abstractmethod
    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, Any]:
        """What `predict` needs: the output at all positions, and the memory, or None in a model without one."""

    def logits(self, output: ModelOutput, memory: Any) -> Tensor:
        """The output layer `(...,V)`, for the leading axes of `output.features`, before the softmax."""
        logits: Tensor = self.output(output.features)
        return logits

    def predict(self, output: ModelOutput, memory: Any) -> Tensor:
        """Log-probabilities `(...,X)`. Training calls it on parts of an output, one after the other."""
        return log_probabilities(self.logits(output, memory))

    @final  # type: ignore[misc]  # torch declares it as an attribute
    def forward(self, batch: Batch, keep: Tensor | None = None) -> Tensor:
        """The log-probabilities of teacher forcing, `(B,T,X)`; `(M,X)` of the positions in `keep`, if given."""
        output, memory = self.read(batch)
        return self.predict(output if keep is None else output.gather(keep), memory)


class Decoder(Model, Generic[M, S]):
    """A model that writes a text word by word.

    A subclass names its memory and state, `Decoder[Memory, MyState]`, and gives `advance` and, if it has a state,
    `start`. Where `logits` is more than `output`, it ends in `project_to_vocabulary`, which knows shortlists. By
    default a decoder reads nothing but what is written.
    """

    output_column = "tgt"
    tgt_embedding: nn.Embedding
    """The target's word vectors."""

    @final
    def tie_output(self) -> None:
        """Makes the word vectors the matrix of the output layer, where `tie` says so."""
        if getattr(self.config, "tie", "none") in ("decoder", "all"):
            self.output.weight = self.tgt_embedding.weight

    def encode(self, batch: Batch) -> M:
        """What is fixed while decoding, one row per sentence; by default nothing is read."""
        first = batch.tensors()[0]
        nothing = torch.zeros(len(first), 0, dtype=torch.bool, device=first.device)
        return cast(M, Memory(nothing, ABSENT))

    def start(self, memory: M) -> S:
        """The state before the first word, one row per sentence (N = B); by default nothing: all is in the cache."""
        return cast(S, DecoderState())

    @abstractmethod
    def advance(
        self, tokens: Tensor, state: S, memory: M, cache: KVCache, need_attention: bool = False
    ) -> tuple[ModelOutput, S]:
        """One decoding step, without the output layer. The caller moves the cache on: `KVCache.next_step`.

        Args:
            tokens: the words just chosen `(N,)`, BOS first; a model that copies takes extended ids as well.
            state: N rows.
            memory: B rows; N is a multiple of B, sentence-major.
            cache: of these hypotheses; the entries of this step are written into it.
            need_attention: whether `ModelOutput.attention` must be filled; where it costs nothing it may always be.
        """

    def logits(self, output: ModelOutput, memory: M) -> Tensor:
        """The output layer, `(...,V)`, or `(N,V')` with a shortlist."""
        return project_to_vocabulary(self.output, output.features, memory.shortlist)

    def predict(self, output: ModelOutput, memory: M) -> Tensor:
        """Returns log-probabilities `(...,V)`."""
        assert output.copy_gate is None, "a model that copies inherits from `nmtkit.models.abilities.Copying`"
        return self.vocabulary_log_probs(output, memory)

    @final
    def vocabulary_log_probs(self, output: ModelOutput, memory: M) -> Tensor:
        """Returns the logarithm of the softmax of `logits`, `(...,V)`."""
        logits = self.logits(output, memory)
        if memory.shortlist is not None:
            shortlisted = memory.shortlist.bias.shape[1]
            # The logits of an ensemble have the copied words already.
            copied = 0 if memory.copy is ABSENT else memory.copy.n_oov
            assert logits.shape[-1] in (shortlisted, shortlisted + copied), "see `logits`"
        return log_probabilities(logits)

    def prefill(
        self, prompt: Tensor, state: S, memory: M, cache: KVCache, lengths: Tensor | None = None
    ) -> tuple[ModelOutput, S]:
        """Reads a prompt `(B,P)`, BOS first, of one hypothesis per sentence: the output `(B,P,*)`, and the state.

        The cache is at its beginning, and made for one hypothesis; afterwards it stands behind the P tokens. Of
        prompts that are padded on the right, the state is that behind their `lengths` `(B,)`, which are on the CPU, and
        `KVCache.end_prompts` makes the cache forget the padding.
        """
        steps = []
        lengths = torch.full((len(prompt),), prompt.shape[1]) if lengths is None else lengths
        ends = send(lengths.argsort(), prompt.device)
        rows = torch.split(ends, lengths.bincount(minlength=1).tolist())
        last = state.mapped(torch.clone)
        for place, tokens in enumerate(prompt.unbind(1), start=1):
            output, state = self.advance(tokens, state, memory, cache)
            if place < len(rows) and len(rows[place]):
                last.put(rows[place], state.select(rows[place]))
            cache.next_step()
            steps.append(output)
        return ModelOutput.stack(steps), last

    def unroll(self, batch: Batch, memory: M, need_attention: bool = False) -> ModelOutput:
        """All steps over the given targets, `(B,T,*)`."""
        state, cache = self.start(memory), KVCache(len(memory.mask), 1, memory.mask.device)
        steps = []
        for tokens in batch.targets.shifted.unbind(1):
            output, state = self.advance(tokens, state, memory, cache, need_attention)
            cache.next_step()
            steps.append(output)
        return ModelOutput.stack(steps)

    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, M]:
        """The memory, and all steps over the given targets."""
        memory = self.encode(batch)
        return self.unroll(batch, memory, need_attention), memory


class Seq2Seq(Decoder[M, S]):
    """A decoder that writes a text from one that it reads."""

    src_embedding: nn.Embedding
    """The source's word vectors; the same module as the target's where one matrix serves both sides."""
    has_attention = True

    @abstractmethod
    def encode(self, batch: Batch) -> M:
        """Runs the encoder and projects the keys once."""


class Combined(Decoder[M, S]):
    """Several decoders that decode together as one."""

    members: nn.ModuleList
    """The decoders, which may be combined themselves."""


def members_of(model: Model) -> list[Model]:
    """Returns the models that a model combines, or the model itself."""
    if not isinstance(model, Combined):
        return [model]
    found = []
    for member in model.members:
        found += members_of(cast(Model, member))
    return found


def as_decoder(model: Model) -> Decoder | None:
    """The model, if it writes texts."""
    return model if isinstance(model, Decoder) else None


def as_seq2seq(model: Model) -> Seq2Seq | None:
    """The model, if it writes texts from texts; of several together the first decides."""
    return model if isinstance(model, Seq2Seq) and isinstance(members_of(model)[0], Seq2Seq) else None


def rows_per_sentence(state_rows: int, memory: Memory) -> int:
    """K = N // B: how many hypotheses each sentence has in this step."""
    sentences = memory.mask.shape[0]
    assert state_rows % sentences == 0, f"{state_rows} hypotheses do not divide among {sentences} sentences"
    return state_rows // sentences


def extended_to_unk(ids: Tensor, sizes: VocabularySizes) -> Tensor:
    """Extended ids as a decoder reads them: words that only the source has become UNK."""
    return ids.masked_fill(ids >= sizes["tgt"], UNK)
