"""Key/value cache of a decoder. Entries are written once and never moved.

Position p of a sentence has K slots, p*K to p*K+K-1, one for each hypothesis of that step. A hypothesis sees one slot
of every position, that of its own ancestor. So following the parents reorders only what each hypothesis sees, one
number a slot; all K hypotheses of a sentence read the entries as K queries.

Sentences may begin with prompts, which have one slot a position. Where prompts differ in length nobody sees the slots
behind a shorter one: its sentence goes on in the slots behind the longest, at a position of its own.

Most slots are soon seen by no hypothesis, since those of a beam have most of their ancestors in common. A search on a
CPU drops them from time to time (`compact`): then the slots in use stand first, and new ones behind them.

Letters as in `models/base.py`, and:

    W  hypotheses per sentence in this step: in the first of a search 1, K after it; now N = B*W
    P  positions that are read: those before and the present one
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.device import send

INITIAL_LENGTH = 16
"""The least room for positions at first; it doubles where it is not enough."""
COMPACT_EVERY = 6
"""Positions between two searches for unseen slots."""
COMPACT_BELOW = 0.66
"""Unseen slots are dropped only where no more than this part of the slots is in use, for the price of a copy."""


class KVCache:
    """The entries of B sentences with K hypotheses each; each layer of a decoder writes its own, and reads all of them.

    A decoder that writes no entries finds only the positions of its sentences in it. `width` is W of the first step, by
    default K; there is `room` for so many positions at first.
    """

    compacts: bool = False
    """Whether `compact` drops slots: where all sentences begin together, and nothing is trained."""

    _bias: Tensor
    """Zero where a hypothesis sees a slot, minus infinity elsewhere: `(B,W,*)`, with room for more positions."""
    _slots: Tensor
    """The slot of each hypothesis at this position `(B,W)`."""
    _rows: Tensor
    """The same among the slots of all sentences `(N,)`."""

    def __init__(
        self, sentences: int, beam: int, device: torch.device, width: int | None = None, room: int = INITIAL_LENGTH
    ) -> None:
        self.sentences, self.beam, self.width = sentences, beam, width or beam
        self.length = 1
        """P, of the sentence that has come farthest."""
        self.position = torch.zeros(sentences, dtype=torch.long, device=device)
        """The position of each sentence, from 0: `(B,)`. A finished sentence stands no farther than others."""
        self._room = _rounded(room * self.beam)  # columns of the entries and the bias
        self._dropped = 0  # columns dropped by `compact`
        self._looked = 1  # P, when `compact` looked last
        self._together = True  # all sentences stand at one position
        self._is_open = False  # whether this position has slots
        self._is_fixed = False  # whether its size, and what is read, never change by itself
        self._in_prompt = False  # whether the W hypotheses of this step are the positions of a prompt
        self._behind: Tensor | None = None  # on the CPU: by how much each prompt is shorter than the longest `(B,)`
        self._entries: list[Tensor] = []
        self._written = self._first = 0  # layers, at this position: by all models, and by those before this one
        self._number_rows()

    def begin_model(self) -> None:
        """The next layers are those of another model, from 0 again; models write in one order at every position."""
        self._first = self._written

    def append(self, layer: int, entries: Tensor) -> None:
        """Writes a layer's entries `(N,*)` of this position; layers come in their order."""
        if not self._is_open:
            self._open_position(entries.dtype)
        layer += self._first
        self._written = layer + 1
        if layer == len(self._entries):
            self._entries.append(self._new(entries, entries.shape[1:]))
        kept = self._entries[layer]
        if self.compacts and self.width < self.beam:  # unseen slots must hold numbers, too
            kept[:, self._read_columns() - self.beam + self.width : self._read_columns()] = 0
        if torch.is_grad_enabled() and not self._in_prompt:
            self._entries[layer] = kept.flatten(0, 1).index_copy(0, self._rows, entries).view_as(kept)
        elif self._together:  # a CPU copies a part faster than it finds as many rows
            first = self._read_columns() - max(self.beam, self.width)
            kept[:, first : first + self.width] = entries.view(-1, self.width, *entries.shape[1:])
        else:
            kept.flatten(0, 1).index_copy_(0, self._rows, entries)

    def read(self, layer: int) -> Tensor:
        """A layer's entries of all positions up to this one: `(B,P*K,*)`, or without dropped slots; a view."""
        return self._entries[self._first + layer][:, : self._read_columns()]

    def bias(self) -> Tensor | None:
        """The mask to add to energies, so that a hypothesis sees its own ancestors and itself: `(B,1,W,P*K)`, a view.

        It has the columns of `read`. None where everything is seen.
        """
        if self.beam == 1 and self._together and not (self._in_prompt or self._behind is not None):
            return None
        return self._bias[:, None, :, : self._read_columns()]

    def visible_before(self) -> Tensor:
        """The slots that a hypothesis sees, without its own of this position: `(B,W,P*K)`, bool."""
        visible = self._bias[:, :, : self._read_columns()] == 0
        return visible.scatter_(2, self._slots[:, :, None], False)

    def positions(self) -> Tensor:
        """The position of each sentence `(B,1)`; while a prompt is read, those of its tokens `(1,W)`."""
        return self._hypotheses[None] if self._in_prompt else self.position[:, None]

    @property
    def reach(self) -> int:
        """How many positions the sentence that has come farthest has; unlike `length` without a longer prompt."""
        return self.length if self._behind is None else self.length - int(self._behind.min())

    def begin_prompts(self, length: int) -> None:
        """Makes the first step one over so many positions; `next_step` then stands behind them.

        Hypothesis i of a sentence is its position i, and sees those before it.
        """
        self.reserve(length)
        self.length, self.width, self._in_prompt = length, length, True
        self.position += length - 1
        self._number_rows()

    def end_prompts(self, lengths: Tensor, beam: int) -> None:
        """From here on sentences have `beam` hypotheses, and have read so many tokens each, `(B,)`, on the CPU.

        So far they had one, and read as many as the longest has; what stands behind the end of a shorter prompt is not
        seen from now on.
        """
        self.beam, self._dropped, self._looked = beam, (self.length - 1) * (beam - 1), self.length
        self._behind = self.length - 1 - lengths
        self.position = send(lengths.clone(), self.position.device)
        if self._entries:
            behind = torch.arange(self._room, device=self.position.device) >= self.position[:, None]  # (B,P)
            self._bias.masked_fill_(behind[:, None], -torch.inf)
        self.reserve(self.length)

    def parent_rows(self, parents: Tensor) -> Tensor:
        """The rows of parents `(B,*)`, of the W hypotheses of their sentences: `(B*,)`."""
        return (parents + self._first_rows).flatten()

    def next_step(self, rows: Tensor | None = None, width: int | None = None) -> None:
        """Moves on to the next position, by default with the same W.

        `rows` `(B*width,)` says which of the N hypotheses each of the next ones continues; None: each itself.
        """
        width = width or self.width
        if self._in_prompt:  # the last position has seen all
            rows, width, self._in_prompt = torch.full_like(self.position, self.width - 1), 1, False
        if not self._is_fixed:
            self.length += 1
            self.reserve(self.length)
        if rows is not None and self._entries:
            self._bias = self._bias.flatten(0, 1).index_select(0, rows).view(self.sentences, width, -1)
        if width != self.width:
            self.width = width
            self._number_rows()
        self.position = (self.position + 1).clamp(max=self.length - 1)
        self._is_open = False
        self._written = self._first = 0

    def reserve(self, length: int) -> None:
        """Makes room for so many positions, or more."""
        needed = length * self.beam - self._dropped
        if needed <= self._room:
            return
        before, self._room = self._room, _rounded(needed if self._is_fixed else max(needed, 2 * self._room))
        if self._entries:
            self._bias = pad(self._bias, (0, self._room - before), value=-torch.inf)
            entries, self._entries = self._entries, []
            for kept in entries:
                longer = self._new(kept, kept.shape[2:])
                longer[:, :before] = kept
                self._entries.append(longer)
        self._number_rows()

    def truncate(self, length: int) -> None:
        """Reads no more than so many positions: the sentences that had come farther are finished."""
        if length < self.length:
            if self._behind is not None:
                self._behind = (self._behind - (self.length - length)).clamp(min=0)
            self.length = length
            self.position = self.position.clamp(max=length - 1)

    def select(self, sentences: Tensor) -> None:
        """Goes on with these sentences, by number, `(M,)`, between two steps."""
        self.sentences = len(sentences)
        self.position = self.position.index_select(0, sentences)
        self._behind = None if self._behind is None else self._behind[sentences.cpu()]
        if self._entries:
            self._entries = [kept.index_select(0, sentences) for kept in self._entries]
            self._bias = self._bias.index_select(0, sentences)
        self._number_rows()

    def compact_batch(self, holes: Tensor, movers: Tensor, count: int) -> None:
        """Moves some sentences to the places of others `(M,)`, on the CPU, and goes on with the first `count`."""
        self.sentences, filled = count, self._read_columns()
        if self._behind is not None:
            self._behind = self._behind.index_copy(0, holes, self._behind[movers])[:count]
        holes, movers = (send(rows, self.position.device) for rows in (holes, movers))

        def moved(kept: Tensor) -> Tensor:
            return kept.index_copy_(0, holes, kept.index_select(0, movers))

        self.position = moved(self.position)[:count]
        if self._entries:
            self._bias = moved(self._bias)[:count]
            for kept in self._entries:
                moved(kept[:, :filled])
            self._entries = [kept[:count] for kept in self._entries]
        self._number_rows()

    def insert(self, sentences: Tensor, other: "KVCache") -> None:
        """Puts the sentences of another cache, which has the same K and W, in place of these, by number, `(M,)`."""
        assert self._behind is None, "sentences with prompts need a batch of their own"
        self._together = False
        self.position.index_copy_(0, sentences, other.position)
        if self._entries:
            room, filled = self._bias.shape[2], other.length * self.beam
            others = pad(other._bias[:, :, :filled], (0, room - filled), value=-torch.inf)
            self._bias.index_copy_(0, sentences, others)
        for kept, entries in zip(self._entries, other._entries, strict=True):
            kept[:, :filled].index_copy_(0, sentences, entries[:, :filled])

    def compact(self) -> None:
        """Drops slots that no hypothesis sees, if they are many; between two steps."""
        if not self.compacts or self.length < self._looked + COMPACT_EVERY or self.beam == 1 or not self._entries:
            return
        self._looked = self.length
        written = self._read_columns() - self.beam
        visible = (self._bias[:, :, :written] == 0).any(1)  # (B,P*K)
        kept = int(visible.sum(1).max())
        if kept > COMPACT_BELOW * written:
            return
        columns = torch.argsort(visible.byte(), dim=1, descending=True, stable=True)[:, :kept]  # visible ones, in order
        rows = (columns + self._first_slots).flatten()
        for entries in self._entries:
            used = entries.flatten(0, 1).index_select(0, rows)
            entries[:, :kept] = used.view(self.sentences, kept, *entries.shape[2:])
        bias = self._bias.gather(2, columns[:, None].expand(-1, self.width, -1))
        self._bias[:, :, kept:written] = -torch.inf
        self._bias[:, :, :kept] = bias
        self._dropped += written - kept

    def fix_length(self, length: int) -> None:
        """Makes room for so many positions once and for all. From now on `length` is changed by its owner only."""
        self.reserve(length)
        self._is_fixed, self._together = True, False

    def changing(self) -> list[Tensor]:
        """The tensors that a step replaces."""
        return [self.position, self._bias] if self._entries else [self.position]

    def _number_rows(self) -> None:
        device, room = self.position.device, self._room
        self._hypotheses = torch.arange(self.width, device=device)  # (W,)
        sentences = torch.arange(self.sentences, device=device)[:, None]
        self._first_slots, self._first_rows = sentences * room, sentences * self.width  # (B,1)

    def _open_position(self, dtype: torch.dtype) -> None:
        dtype = dtype if dtype.is_floating_point else torch.float32  # entries may be whole numbers
        if self._in_prompt:
            causal = torch.full((1, self.width, self._room), -torch.inf, dtype=dtype, device=self.position.device)
            self._bias, self._is_open = causal.triu(1), True
            return
        if not self._entries:
            shape = (self.sentences, self.width, self._room)
            self._bias = torch.full(shape, -torch.inf, dtype=dtype, device=self.position.device)
        position = self.position if self._behind is None else torch.full_like(self.position, self.length - 1)
        self._slots = torch.add(self._hypotheses, position[:, None], alpha=self.beam)
        if self._dropped:
            self._slots -= self._dropped
        self._rows = (self._slots + self._first_slots).flatten()
        if torch.is_grad_enabled():  # what earlier steps read is needed for their gradient
            self._bias = self._bias.scatter(2, self._slots[:, :, None], 0.0)
        else:
            self._bias.scatter_(2, self._slots[:, :, None], 0.0)
        self._is_open = True

    def _read_columns(self) -> int:
        return self.length * self.beam - self._dropped

    def _new(self, like: Tensor, shape: torch.Size) -> Tensor:
        # Where slots are dropped, all that is read has been written: zeros would touch memory for nothing.
        return (like.new_empty if self.compacts else like.new_zeros)(self.sentences, self._room, *shape)


def _rounded(columns: int) -> int:
    """At least so many: a bias whose rows are no multiple of 8 apart is copied by CUDA's attention in every layer."""
    return -(-columns // 8) * 8
