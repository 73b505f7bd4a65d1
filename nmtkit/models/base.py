"""The contract between models, training and search.

Letters used in every shape comment:

    B   sentences in a batch
    K   beam size
    N   = B*K hypotheses in sentence-major order: those of sentence b are rows b*K to b*K+K-1
    S   source length            T   target length
    V   target vocabulary        X   = V + the most unknown words of any example in the batch
    H   hidden size              E   embedding size            L   layers            Q   queries per sentence

A model is four methods: `encode`, `start`, `advance`, `predict`. Training calls `forward`, search calls `step`; both
are given here in terms of the four. Memory has one row per *sentence* and is fixed while decoding; state has one row
per *hypothesis*. A model that attends reads the K = N // B hypotheses of a sentence as K queries into that sentence's
one row of memory: the encoder's states are never copied per beam.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from nmtkit.data.batch import Batch, Rows
from nmtkit.errors import RecipeError
from nmtkit.registry import Registry
from nmtkit.settings import Settings

MODELS: Registry["type[Seq2Seq]"] = Registry("model")


@dataclass(frozen=True)
class VocabularySizes:
    """How many ids each side has, and whether both sides share one vocabulary (then the sizes are equal)."""

    src: int
    tgt: int
    shared: bool


Tie = Literal["none", "decoder", "all"]
"""What shares one matrix: nothing; target embedding and output layer; or the source embedding as well."""


def refuse_tie_of_two_vocabularies(tie: Tie, sizes: VocabularySizes) -> None:
    """Checks that both sides have one vocabulary if they are to share one embedding.

    Raises:
        RecipeError: they have not.
    """
    if tie == "all" and not sizes.shared:
        raise RecipeError(
            "model.tie: `all` makes source and target share one embedding, which needs one vocabulary for both; "
            "set tokenizer.joint to true, or model.tie to `decoder`"
        )


class ModelConfig(Settings):
    """Base of every model's `Config`. A subclass declares `kind: Literal["its_name"] = "its_name"`."""

    kind: str
    """Which model."""


@dataclass(frozen=True)
class Memory(Rows):
    """All that is fixed while decoding; one row per sentence. Each model adds what it needs (keys, final state)."""

    mask: Tensor
    """`(B,S)`, True where a source token is real."""
    src_extended: Tensor
    """`(B,S)`, source ids in the extended target vocabulary."""
    n_oov: int
    """X - V."""


@dataclass(frozen=True)
class DecoderState(Rows):
    """All that changes while decoding; one row per hypothesis. Each model adds its own fields."""


@dataclass(frozen=True)
class Readout(Rows):
    """What one or more decoding steps computed, before the output layer."""

    features: Tensor
    """`(N,*)` from `advance`; `(B,T,*)` from `unroll`; `(M,*)` from `at`: what `predict` reads."""
    attention: Tensor | None = None
    """Weights over the source, `(N,S)`, `(B,T,S)` or `(M,S)`; None where not asked for, or where the model has none."""
    copy_gate: Tensor | None = None
    """p_gen, `(N,1)`, `(B,T,1)` or `(M,1)`; None where the model does not copy."""
    sentence: Tensor | None = None
    """`(M,)` from `at`: the sentence of each row."""

    def at(self, keep: Tensor) -> "Readout":
        """The positions where `keep` `(B,T)` is True, as M rows; spares the output layer the padding."""
        # `keep` may still be on the CPU: finding its positions there spares an accelerator a wait.
        rows, columns = (index.to(self.features.device, non_blocking=True) for index in keep.nonzero(as_tuple=True))

        def pick(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[rows, columns]

        return Readout(self.features[rows, columns], pick(self.attention), pick(self.copy_gate), rows)


@dataclass(frozen=True)
class Output(Rows):
    """What the model says of given targets."""

    log_probs: Tensor
    """Natural logs `(B,T,X)`, or `(M,X)` where only some positions were asked for."""
    attention: Tensor | None = None
    """`(B,T,S)` (never flattened), or None where not asked for, or where the model has none."""


class Seq2Seq(nn.Module, ABC):
    """An encoder-decoder model; see the head of this file.

    A subclass has a nested `Config(ModelConfig)` and is built as `Model(config, vocabulary_sizes)`.
    """

    Config: ClassVar[type[ModelConfig]]
    has_attention: bool = True
    """Whether the readouts can carry attention over the source."""

    def __init__(self, config: ModelConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        self.config = config
        self.sizes = sizes

    @abstractmethod
    def encode(self, batch: Batch) -> Memory:
        """Runs the encoder and projects the keys once."""

    @abstractmethod
    def start(self, memory: Memory) -> DecoderState:
        """The state before the first word; one row per sentence (N = B)."""

    @abstractmethod
    def advance(
        self, tokens: Tensor, state: DecoderState, memory: Memory, need_attention: bool = False
    ) -> tuple[Readout, DecoderState]:
        """One decoding step, no vocabulary yet.

        Args:
            tokens: the words just chosen `(N,)`, BOS first; a model that copies takes extended ids as well.
            state: N rows.
            memory: B rows; N is a multiple of B, sentence-major.
            need_attention: whether `Readout.attention` must be filled; where it costs nothing it may always be.
        """

    @abstractmethod
    def predict(self, readout: Readout, memory: Memory) -> Tensor:
        """The output layer: log-probabilities `(..., X)` for the leading axes of `readout.features`.

        Training calls it on parts of a readout, one after the other, so of the memory it may read only what has no
        gradient (`src_extended`, `n_oov`): all that is learned comes in through the readout.
        """

    def step(
        self, tokens: Tensor, state: DecoderState, memory: Memory, need_attention: bool = False
    ) -> tuple[Tensor, Readout, DecoderState]:
        """`advance`, then `predict`: log-probabilities `(N,X)`, the readout and the next state."""
        readout, state = self.advance(tokens, state, memory, need_attention)
        return self.predict(readout, memory), readout, state

    def unroll(self, batch: Batch, memory: Memory, need_attention: bool = False) -> Readout:
        """All steps over the given targets, `(B,T,*)`. A model with a parallel or cheaper form overrides it."""
        assert batch.tgt_in is not None
        state = self.start(memory)
        steps = []
        for tokens in batch.tgt_in.unbind(1):
            readout, state = self.advance(tokens, state, memory, need_attention)
            steps.append(readout)

        def stack(parts: list[Tensor | None]) -> Tensor | None:
            present = [part for part in parts if part is not None]
            return torch.stack(present, 1) if present else None

        features = torch.stack([step.features for step in steps], 1)  # (B,T,*)
        return Readout(features, stack([s.attention for s in steps]), stack([s.copy_gate for s in steps]))

    def forward(self, batch: Batch, keep: Tensor | None = None, need_attention: bool = False) -> Output:
        """Teacher forcing.

        Args:
            batch: with targets.
            keep: `(B,T)`, bool; if given, only these positions go through the output layer, in row-major order.
            need_attention: whether `Output.attention` must be filled.
        """
        memory = self.encode(batch)
        readout = self.unroll(batch, memory, need_attention)
        attention = readout.attention
        if keep is not None:
            readout = readout.at(keep)
        return Output(self.predict(readout, memory), attention)


def rows_per_sentence(state_rows: int, memory: Memory) -> int:
    """K = N // B: how many hypotheses each sentence has in this step."""
    sentences = memory.mask.shape[0]
    assert state_rows % sentences == 0, f"{state_rows} hypotheses do not divide among {sentences} sentences"
    return state_rows // sentences


def log_probabilities(logits: Tensor) -> Tensor:
    """The logarithm of the softmax over the last axis, in float32 or wider.

    Under autocast logits have 16 bits, and on a CPU a plain `log_softmax` would answer in 16: a log-probability near
    -8 would be rounded to steps of 0.03, and scores and the loss with it.
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return torch.log_softmax(logits, -1, dtype=wide)
