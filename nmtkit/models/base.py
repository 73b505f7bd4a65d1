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
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, cast

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
from nmtkit.layers.copying import mix, mix_wanted
from nmtkit.layers.inference import Precision
from nmtkit.layers.kv_cache import KVCache
from nmtkit.layers.transformer import DecoderLayer, EncoderLayer, LayerForm
from nmtkit.models.output import ShortlistedOutput, log_probabilities, log_probabilities_of, project_to_vocabulary

MODELS: Registry["type[Model]"] = Registry("model")


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
    def shows_one_head(self) -> bool:
        """Whether the attention that the model shows is that of one head among several of a layer."""
        return False

    @property
    def copies(self) -> bool:
        """Whether the model can write words of its source that the vocabulary lacks: its setting `copying`, if any."""
        return getattr(self, "copying", "none") not in (False, "none")

    @property
    def further_head(self) -> str:
        """The objective that trains a head beside the output layer, as `next_sentence`; empty without such a head."""
        return ""

    @property
    def reads_sentences(self) -> bool:
        """Whether it reads texts by their sentences, which `tokenizer.sentences` must tell."""
        return False

    @property
    def layer_form(self) -> LayerForm:
        """The form of its Transformer layers, if it has any."""
        return LayerForm()

    @property
    def bf16_allowed(self) -> bool:
        """Whether `training.precision: auto` may choose bfloat16; not where rounding adds up from step to step."""
        return False


if TYPE_CHECKING:
    AnyModelConfig = ModelConfig
else:  # the models are asked for when settings are checked, so that one that came later can be named too
    AnyModelConfig = Annotated[Any, TaggedUnion(lambda: [MODELS.get(name).Config for name in MODELS.names()])]


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
    pretrained_by: ClassVar[Sequence[str]] = ()
    """The objectives that hide a part of a text which can train it on texts alone; without one of them it cannot be."""
    has_attention: bool = False
    """Whether the outputs can carry attention over what the model reads."""

    def __init__(self, config: ModelConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes

    def models(self) -> "Sequence[Model]":
        """The model itself, or the members of an ensemble."""
        return [self]

    def layers(self) -> list[nn.Module]:
        """Its Transformer layers, of encoder and decoder."""
        return [one for one in self.modules() if isinstance(one, EncoderLayer | DecoderLayer)]

    def finalize(self, precision: Precision) -> None:
        """Computes what no input changes, once for all; the model is then converted, and can no longer be trained."""

    @property
    def vocabulary_size(self) -> int:
        """V."""
        return self.sizes[self.output_column]

    def embedding(self, side: Side) -> nn.Embedding:
        """The word vectors of a text column, which are its `src_embedding` or `tgt_embedding`."""
        embedding: nn.Embedding = getattr(self, f"{side}_embedding")
        return embedding

    @torch.no_grad()
    def init_embedding(self, side: Side, ids: Tensor, vectors: Tensor, rescale: bool) -> float:
        """Initialises words `ids` `(M,)` of one side with pretrained vectors `(M,E)`, which are not all zero.

        With `rescale` all of them are multiplied by one factor, so that the mean square of their elements becomes that
        of the embedding before. Returns the factor, 1 without rescaling.
        """
        weight = self.embedding(side).weight
        factor = float(weight.square().mean().sqrt() / vectors.square().mean().sqrt()) if rescale else 1.0
        weight[ids] = vectors.to(weight) * factor
        return factor

    @abstractmethod
    def read(self, batch: Batch, need_attention: bool = False) -> tuple[ModelOutput, Any]:
        """What `predict` needs: the output at all positions, and the memory, or None in a model without one."""

    def memory_lengths(self, batch: Batch) -> Tensor:
        """How many positions of the memory are real, `(B,)` on the CPU; of several models together the first's."""
        first = self.models()[0]
        return batch.lengths if first is self else first.memory_lengths(batch)

    def logits(self, output: ModelOutput, memory: Any) -> Tensor:
        """The output layer `(...,V)`, for the leading axes of `output.features`, before the softmax."""
        logits: Tensor = self.output(output.features)
        return logits

    def part(self, name: str) -> dict[str, Tensor]:
        """The weights of one of `PARTS` as another model can begin with them, by name; empty without that part."""
        weights = {full: one for full, one in self.state_dict(keep_vars=True).items() if full.startswith(PARTS[name])}
        return weights if any(full.startswith(name) for full in weights) else {}

    def further_logits(self, batch: Batch, output: ModelOutput) -> Tensor:
        """Of the head that `ModelConfig.further_head` names, for a batch and what `read` gave of it."""
        raise NotImplementedError(f"{self.config.kind} has no further head")

    def predict(self, output: ModelOutput, memory: Any) -> Tensor:
        """Log-probabilities `(...,X)`. Training calls it on parts of an output, one after the other."""
        return log_probabilities(self.logits(output, memory))

    def log_likelihood(self, output: ModelOutput, memory: Any, wanted: Tensor, summed: bool) -> tuple[Tensor, Tensor]:
        """What `predict` says of the wanted id of each of M rows, which `ModelOutput.gather` gave: `(M,)`.

        If `summed`, and where it does not copy, also of all words together, `(M,)`.
        """
        return log_probabilities_of(wanted, self.logits(output, memory), summed)

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
    prefills_at_once: ClassVar[bool] = False
    """Whether a step remembers nothing but what it writes into the cache, and asks it for `KVCache.positions`. Then
    `advance` can read all positions of a prompt in one pass."""
    looks_back: ClassVar[bool] = False
    """Whether its `attentions` say where it looks among the words before: `(B,L,T,T)` of a batch, BOS first."""
    source_end: bool = True
    """Whether a memory ends with the EOS of its source."""
    normalized: ClassVar[bool] = True
    """Whether the probabilities of `predict` sum to one. Then a search may compute few of them, from `logits`."""

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

    def reserve_positions(self, length: int) -> bool:
        """Prepares decoding of up to `length` steps; returns whether the model can decode so many."""
        return True

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

    def output_layer(self, memory: M) -> tuple[Tensor, Tensor]:
        """The matrix `(V,*)` and the bias `(V,)` that `logits` ends in; further rows mean nothing."""
        output = getattr(self, "output", None)
        weight, bias = getattr(output, "weight", None), getattr(output, "bias", None)
        if not isinstance(weight, Tensor) or weight.layout != torch.strided:  # packed for one product
            raise RecipeError(f"{self.config.kind} has no output layer that a shortlist could take rows of; go without")
        return weight, weight.new_zeros(len(weight)) if bias is None else bias

    def with_shortlist(self, memory: M, candidates: Tensor | None) -> M:
        """The same memory, with `logits` for candidates only, if given; see `ShortlistedOutput.gathered`."""
        if candidates is None:
            return replace(memory, shortlist=None)
        return replace(memory, shortlist=ShortlistedOutput.gathered(*self.output_layer(memory), candidates))

    def predict(self, output: ModelOutput, memory: M) -> Tensor:
        """Log-probabilities `(...,X)`; with the words of the source where the model copies."""
        logits = self.logits(output, memory)
        assert memory.shortlist is None or memory.shortlist.bias.shape[1] == logits.shape[-1], "see `logits`"
        log_probs = log_probabilities(logits)
        return log_probs if output.copy_gate is None else self.copied(log_probs, output, memory)

    def copied(self, log_probs: Tensor, output: ModelOutput, memory: M, excess: Tensor | None = None) -> Tensor:
        """The end of `predict` in a model that copies: `(...,X)` from `(...,V)`; see `nmtkit.layers.copying.mix`."""
        assert output.copy_gate is not None, "a model that copies has a gate"
        n_oov = 0 if memory.copy is ABSENT else memory.copy.n_oov
        weights, words = self.copyable(output, memory)
        return mix(log_probs, weights, output.copy_gate, words, n_oov, excess)

    def copyable(self, output: ModelOutput, memory: M) -> tuple[Tensor, Tensor]:
        """The weights of the words that can be copied, and these: `attention` and `src_extended` of `mix`."""
        assert output.attention is not None, "a model that copies shows where it looks"
        src = memory.copy.extended if output.sentence is None else memory.copy.extended[output.sentence]
        return output.attention, memory.columns_of(src)

    def log_likelihood(self, output: ModelOutput, memory: M, wanted: Tensor, summed: bool) -> tuple[Tensor, Tensor]:
        """As in any model; of a mixture only the wanted words are computed."""
        if output.copy_gate is None:
            return super().log_likelihood(output, memory, wanted, summed)
        (weights, words), logits = self.copyable(output, memory), self.logits(output, memory)
        of_vocabulary, sums = log_probabilities_of(wanted.clamp(max=logits.shape[-1] - 1), logits)
        generated = of_vocabulary.masked_fill(wanted >= logits.shape[-1], -torch.inf)
        return mix_wanted(wanted, generated, weights, output.copy_gate, words), sums

    def prefill(
        self, prompt: Tensor, state: S, memory: M, cache: KVCache, lengths: Tensor | None = None
    ) -> tuple[ModelOutput, S]:
        """Reads a prompt `(B,P)`, BOS first, of one hypothesis per sentence: the output `(B,P,*)`, and the state.

        The cache is at its beginning, and made for one hypothesis; afterwards it stands behind the P tokens. Of
        prompts that are padded on the right, the state is that behind their `lengths` `(B,)`, which are on the CPU, and
        `KVCache.end_prompts` makes the cache forget the padding.
        """
        if self.prefills_at_once:
            cache.begin_prompts(prompt.shape[1])
            output, state = self.advance(prompt.flatten(), state, memory, cache)
            cache.next_step()
            return output.mapped(lambda tensor: tensor.view(*prompt.shape, *tensor.shape[1:])), state
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
    pretrained_by = ("span_corruption", "denoising")
    has_attention = True
    window_half_width: int | None = None
    """How many source tokens the model may look at on either side of a centre; None where it may look at all."""

    @abstractmethod
    def encode(self, batch: Batch) -> M:
        """Runs the encoder and projects the keys once."""


class HeadedModel(Seq2Seq[M, S]):
    """A model with layers of multi-head attention, whose weights can be read."""

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
    """The model, if it has layers of multi-head attention."""
    return model if isinstance(model, HeadedModel) else None


def as_decoder(model: Model) -> Decoder | None:
    """The model, if it writes texts."""
    return model if isinstance(model, Decoder) else None


def as_seq2seq(model: Model) -> Seq2Seq | None:
    """The model, if it writes texts from texts; of several together the first decides."""
    return model if isinstance(model, Seq2Seq) and isinstance(model.models()[0], Seq2Seq) else None


def rows_per_sentence(state_rows: int, memory: Memory) -> int:
    """K = N // B: how many hypotheses each sentence has in this step."""
    sentences = memory.mask.shape[0]
    assert state_rows % sentences == 0, f"{state_rows} hypotheses do not divide among {sentences} sentences"
    return state_rows // sentences


def extended_to_unk(ids: Tensor, sizes: VocabularySizes) -> Tensor:
    """Extended ids as a decoder reads them: words that only the source has become UNK."""
    return ids.masked_fill(ids >= sizes["tgt"], UNK)
