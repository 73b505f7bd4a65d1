"""Decoding step by step, as a search does: what has been decoded, and where each hypothesis stands."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.decoding.engine import NumberedBatch
from nmtkit.layers.kv_cache import KVCache
from nmtkit.models.base import Memory, Model, ModelOutput, Seq2Seq


@dataclass
class Told:
    """What a model tells of given targets: log-probabilities `(B,T,X)`, and the rest, never flattened."""

    log_probs: Tensor
    attention: Tensor | None = None
    centres: Tensor | None = None
    copy_gate: Tensor | None = None


def told(
    model: Model, batch: Batch, keep: Tensor | None = None, need_attention: bool = True
) -> Told:
    """All that a model says in teacher forcing; log-probabilities `(M,X)` of the positions in `keep`, if given."""
    output, memory = model.read(batch, need_attention)
    kept = output if keep is None else output.gather(keep)
    return Told(model.predict(kept, memory), output.attention, output.centres, output.copy_gate)


class Walk:
    """A model between two steps.

    Args:
        model: any.
        memory: B sentences.
        beam: K hypotheses of each.
    """

    def __init__(self, model: Seq2Seq, memory: Memory, beam: int = 1) -> None:
        self.model, self.memory, self.beam = model, memory, beam
        self.cache = KVCache(len(memory.mask), beam, memory.mask.device)
        rows = torch.arange(len(memory.mask), device=memory.mask.device).repeat_interleave(beam)
        self.state: Any = model.start(memory).select(rows)
        self._begun = False

    def step(self, tokens: Tensor, parents: Tensor | None = None) -> tuple[Tensor, ModelOutput]:
        """Log-probabilities `(N,X)` after words `(N,)`, and the readout.

        Args:
            tokens: the words.
            parents: which hypothesis of its sentence each continues, `(B,K)`; None: itself. Not in the first step.
        """
        if self._begun:
            rows = None
            if parents is not None:
                firsts = torch.arange(0, parents.numel(), self.beam, device=parents.device)
                rows = (parents + firsts[:, None]).flatten()
                self.state = self.state.select(rows)
            self.cache.next_step(rows)
        self._begun = True
        readout, self.state = self.model.advance(tokens, self.state, self.memory, self.cache, True)
        return self.model.predict(readout, self.memory), readout

    def kept(self, sentences: Tensor | None = None) -> "Walk":
        """Another that goes on from here, with these sentences by number `(M,)`, or with all."""
        other = copy.copy(self)
        other.cache = copy.deepcopy(self.cache)
        if sentences is not None:
            other.cache.select(sentences)
            rows = sentences[:, None] * self.beam + torch.arange(self.beam, device=sentences.device)
            other.memory, other.state = (
                self.memory.select(sentences),
                self.state.select(rows.flatten()),
            )
        return other


class BatchInSlots:
    """A source of the sentences of a batch, in some order, for so many slots."""

    def __init__(self, whole: Batch, slots: int, order: Sequence[int] | None) -> None:
        self._whole = whole
        self._slots = slots
        self._waiting = list(range(whole.size) if order is None else order)

    def next_batch(self) -> NumberedBatch | None:
        return self._take(self._slots)

    def refill(self, slots: int, columns: int) -> NumberedBatch | None:
        return self._take(slots)

    def _take(self, count: int) -> NumberedBatch | None:
        taken = self._waiting[:count]
        del self._waiting[:count]
        return (taken, self._whole.select(torch.tensor(taken))) if taken else None


def source_of(whole: Batch, slots: int, order: Sequence[int] | None = None) -> BatchInSlots:
    """Gives an engine the sentences of a batch, in this order, for so many slots."""
    return BatchInSlots(whole, slots, order)
