"""What a decoder keeps of the positions that it has written: entries that are never moved.

Position p of a sentence has K slots, p*K to p*K+K-1, one for each hypothesis of that step. A hypothesis sees one slot
of every position, that of its own ancestor. So following the parents reorders only what each hypothesis sees, a number
a slot; keys, values or states themselves are written once, and all K hypotheses of a sentence read them as K queries.

Letters as in `models/base.py`, and:

    W  hypotheses per sentence in this step: in the first of a search 1, K after it; now N = B*W
    P  positions that are read: those before and the present one
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

FIRST_ROOM = 16
"""Positions that there is room for at first; it doubles where they are not enough."""


class Past:
    """The entries of B sentences with K hypotheses each; a decoder's layers write theirs, and read all.

    Nothing is kept for a decoder that writes none, but where its sentences stand.

    Args:
        sentences: B.
        beam: K.
        device: where.
        width: W of the first step; default: K.
    """

    _bias: Tensor
    """Zero where a hypothesis sees a slot, minus infinity elsewhere: `(B,W,*)`, with room for more positions."""
    _slots: Tensor
    """The slot of each hypothesis at this position `(B,W)`."""
    _rows: Tensor
    """The same among the slots of all sentences `(N,)`."""

    def __init__(self, sentences: int, beam: int, device: torch.device, width: int | None = None) -> None:
        self.sentences, self.beam, self.width = sentences, beam, width or beam
        self.places = 1
        """P, of the sentence that has come farthest."""
        self.position = torch.zeros(sentences, dtype=torch.long, device=device)
        """Where each sentence stands, from 0: `(B,)`. One that is done stands no farther than others."""
        self._room = FIRST_ROOM
        self._together = True  # all sentences stand at one position
        self._is_open = False  # whether the slots of this position are
        self._is_fixed = False  # whether its size, and what is read, never change by itself
        self._entries: list[Tensor] = []
        self._written = self._first = 0  # layers, at this position: by all models, and by those before this one
        self._count()

    def begin_model(self) -> None:
        """The next layers are those of another model, from 0 again; models write in one order at every position."""
        self._first = self._written

    def append(self, layer: int, entries: Tensor) -> None:
        """Writes a layer's entries `(N,*)` of this position; layers come in their order."""
        if not self._is_open:
            self._open(entries.dtype)
        layer += self._first
        self._written = layer + 1
        if layer == len(self._entries):
            self._entries.append(entries.new_zeros(self.sentences, self._room * self.beam, *entries.shape[1:]))
        kept = self._entries[layer]
        rows = kept.flatten(0, 1)
        if torch.is_grad_enabled():
            self._entries[layer] = rows.index_copy(0, self._rows, entries).view_as(kept)
        else:
            rows.index_copy_(0, self._rows, entries)

    def read(self, layer: int) -> Tensor:
        """A layer's entries of all positions up to this one: `(B,P*K,*)`, a view."""
        return self._entries[self._first + layer][:, : self.places * self.beam]

    def bias(self) -> Tensor | None:
        """What is added to energies, so that a hypothesis sees its own ancestors and itself: `(B,1,W,P*K)`, a view.

        None where all is seen.
        """
        if self.beam == 1 and self._together:
            return None
        return self._bias[:, None, :, : self.places * self.beam]

    def seen_before(self) -> Tensor:
        """Which slots a hypothesis sees, without its own of this position: `(B,W,P*K)`, bool."""
        seen = self._bias[:, :, : self.places * self.beam] == 0
        return seen.scatter_(2, self._slots[:, :, None], False)

    def rows(self, parents: Tensor) -> Tensor:
        """The rows of parents `(B,*)`, of the W hypotheses of their sentences: `(B*,)`."""
        return (parents + self._first_rows).flatten()

    def follow(self, rows: Tensor | None = None, width: int | None = None) -> None:
        """Goes on to the next position.

        Args:
            rows: which of the N hypotheses each of the next ones continues `(B*width,)`; None: each itself.
            width: W of the next step; default: as it is.
        """
        width = width or self.width
        if not self._is_fixed:
            self.places += 1
            self.reserve(self.places)
        if rows is not None and self._entries:
            self._bias = self._bias.flatten(0, 1).index_select(0, rows).view(self.sentences, width, -1)
        if width != self.width:
            self.width = width
            self._count()
        self.position = (self.position + 1).clamp(max=self.places - 1)
        self._is_open = False
        self._written = self._first = 0

    def reserve(self, places: int) -> None:
        """Makes room for so many positions, or more."""
        if places <= self._room:
            return
        self._room = places if self._is_fixed else max(places, 2 * self._room)
        more = self._room * self.beam
        if self._entries:
            self._bias = pad(self._bias, (0, more - self._bias.shape[2]), value=-torch.inf)
            self._entries = [_longer(kept, more) for kept in self._entries]
        self._count()

    def shorten(self, places: int) -> None:
        """Reads no more than so many places: those sentences that had come farther are done."""
        if places < self.places:
            self.places = places
            self.position = self.position.clamp(max=places - 1)

    def select(self, sentences: Tensor) -> None:
        """Goes on with these sentences, by number, `(M,)`, between two steps."""
        self.sentences = len(sentences)
        self._change(lambda kept: kept.index_select(0, sentences))

    def close_up(self, holes: Tensor, movers: Tensor, count: int) -> None:
        """Goes on with the first sentences, so many, once some have moved to where others were `(M,)`."""
        self.sentences = count

        def moved(kept: Tensor) -> Tensor:
            return kept.index_copy_(0, holes, kept.index_select(0, movers))[:count]

        self._change(moved)

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        self.position = change(self.position)
        if self._entries:
            self._entries = [change(kept) for kept in self._entries]
            self._bias = change(self._bias)
        self._count()

    def put(self, sentences: Tensor, other: "Past") -> None:
        """Puts the sentences of another past, which has the same K and W, in place of these, by number, `(M,)`."""
        self._together = False
        self.position.index_copy_(0, sentences, other.position)
        if self._entries:
            seen, filled = self._bias.shape[2], other.places * self.beam
            others = pad(other._bias[:, :, :filled], (0, seen - filled), value=-torch.inf)
            self._bias.index_copy_(0, sentences, others)
        for kept, entries in zip(self._entries, other._entries, strict=True):
            kept[:, :filled].index_copy_(0, sentences, entries[:, :filled])

    def fix(self, places: int) -> None:
        """Makes room for so many positions once and for all. From now on `places` is what it is set to."""
        self.reserve(places)
        self._is_fixed, self._together = True, False

    def changing(self) -> list[Tensor]:
        """The tensors that a step puts others in place of."""
        return [self.position, self._bias] if self._entries else [self.position]

    def _count(self) -> None:
        """Numbers what a step needs the numbers of."""
        device, room = self.position.device, self._room * self.beam
        self._hypotheses = torch.arange(self.width, device=device)  # (W,)
        sentences = torch.arange(self.sentences, device=device)[:, None]
        self._first_slots, self._first_rows = sentences * room, sentences * self.width  # (B,1)

    def _open(self, dtype: torch.dtype) -> None:
        """Opens the slots of this position."""
        if not self._entries:
            shape = (self.sentences, self.width, self._room * self.beam)
            self._bias = torch.full(shape, -torch.inf, dtype=dtype, device=self.position.device)
        self._slots = torch.add(self._hypotheses, self.position[:, None], alpha=self.beam)
        self._rows = (self._slots + self._first_slots).flatten()
        if torch.is_grad_enabled():  # what earlier steps read is needed for their gradient
            self._bias = self._bias.scatter(2, self._slots[:, :, None], 0.0)
        else:
            self._bias.scatter_(2, self._slots[:, :, None], 0.0)
        self._is_open = True


def _longer(kept: Tensor, room: int) -> Tensor:
    return torch.cat([kept, kept.new_zeros(len(kept), room - kept.shape[1], *kept.shape[2:])], 1)
