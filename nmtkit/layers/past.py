"""What a decoder keeps of the positions that it has written: entries that are never moved.

Position p of a sentence has K slots, p*K to p*K+K-1, one for each hypothesis of that step. A hypothesis sees one slot
of every position, that of its own ancestor. So following the parents reorders only what each hypothesis sees, a byte a
slot; keys, values or states themselves are written once, and all K hypotheses of a sentence read them as K queries.

Letters as in `models/base.py`, and:

    W  hypotheses per sentence in this step: in the first of a search 1, K after it; now N = B*W
    P  positions that are read: those before and the present one
"""

import torch
from torch import Tensor


class Past:
    """The entries of B sentences with K hypotheses each; a decoder's layers write theirs, and read all.

    Nothing is kept for a decoder that writes none.

    Args:
        sentences: B.
        beam: K.
        width: W of the first step; default: K.
    """

    _visible: Tensor
    _position: Tensor

    def __init__(self, sentences: int, beam: int, width: int | None = None) -> None:
        self.sentences, self.beam, self.width = sentences, beam, width or beam
        self.places = 1
        """P, of the sentence that has come farthest."""
        self._together = True  # all sentences stand at one position
        self._entries: list[Tensor] = []
        self._bias: Tensor | None = None

    def append(self, layer: int, entries: Tensor) -> None:
        """Writes a layer's entries `(N,*)` of this position; layers come in their order."""
        if layer == len(self._entries):
            if layer == 0:
                self._begin(entries.device)
            self._entries.append(entries.new_zeros(self.sentences, self._visible.shape[2], *entries.shape[1:]))
        kept = self._entries[layer]
        rows = kept.flatten(0, 1)
        if torch.is_grad_enabled():
            self._entries[layer] = rows.index_copy(0, self._rows, entries).view_as(kept)
        else:
            rows.index_copy_(0, self._rows, entries)

    def read(self, layer: int) -> Tensor:
        """A layer's entries of all positions up to this one: `(B,P*K,*)`, a view."""
        return self._entries[layer][:, : self.places * self.beam]

    def seen(self) -> Tensor:
        """Which of them a hypothesis sees, its own of this position among them: `(B,W,P*K)`, bool."""
        return self._visible[:, :, : self.places * self.beam]

    def seen_before(self) -> Tensor:
        """The same without its own of this position."""
        return self.seen().scatter(2, self._slots, False)

    def bias(self) -> Tensor | None:
        """`seen` as what is added to energies: zero or minus infinity, `(B,1,W,P*K)`; None where all is seen."""
        if self.beam == 1 and self._together:
            return None
        if self._bias is None:
            unseen = ~self.seen().unsqueeze(1)
            zeros = torch.zeros(unseen.shape, dtype=self._entries[0].dtype, device=unseen.device)
            self._bias = zeros.masked_fill_(unseen, -torch.inf)
        return self._bias

    def follow(self, parents: Tensor | None = None) -> None:
        """Goes on to the next position.

        Args:
            parents: which of the W hypotheses of its sentence each continues, `(B,K)`; None: each itself.
        """
        self.places += 1
        if not self._entries:
            self.width = self.width if parents is None else parents.shape[1]
            return
        room = self._visible.shape[2]
        if self.places * self.beam > room:
            self._entries = [_doubled(kept, 1) for kept in self._entries]
            self._visible = _doubled(self._visible, 2)
            room *= 2
        if parents is not None:
            firsts = torch.arange(0, self.sentences * self.width, self.width, device=parents.device)
            rows = (parents + firsts[:, None]).flatten()
            self.width = parents.shape[1]
            self._visible = self._visible.flatten(0, 1).index_select(0, rows).view(self.sentences, self.width, room)
        self._position = self._position + 1
        self._enter()

    def select(self, sentences: Tensor) -> None:
        """Goes on with these sentences, by number, `(M,)`."""
        self.sentences = len(sentences)
        if self._entries:
            self._entries = [kept.index_select(0, sentences) for kept in self._entries]
            self._visible = self._visible.index_select(0, sentences)
            self._position = self._position.index_select(0, sentences)
            self._enter()

    def shorten(self, places: int) -> None:
        """Reads no more than so many places: those sentences that had come farther are done."""
        if places < self.places:
            self.places = places
            if self._entries:
                self._position = self._position.clamp(max=places - 1)
                self._enter()

    def put(self, sentences: Tensor, other: "Past") -> None:
        """Puts the sentences of another past, which has the same K and W, in place of these, by number, `(M,)`."""
        self._together = False
        for kept, entries in zip(self._entries, other._entries, strict=True):
            filled = other.places * self.beam
            kept[sentences, :filled] = entries[:, :filled]
        if self._entries:
            self._visible[sentences] = False
            self._visible[sentences, :, :filled] = other._visible[:, :, :filled]
            self._position[sentences] = other._position
            self._enter()

    def _begin(self, device: torch.device) -> None:
        room = 16 * self.beam
        self._position = torch.zeros(self.sentences, dtype=torch.long, device=device)
        self._visible = torch.zeros(self.sentences, self.width, room, dtype=torch.bool, device=device)
        self._enter()

    def _enter(self) -> None:
        """Opens the slots of this position."""
        hypotheses = torch.arange(self.width, device=self._position.device)
        slots = self._position[:, None] * self.beam + hypotheses  # (B,W)
        room = self._visible.shape[2]
        firsts = torch.arange(0, self.sentences * room, room, device=slots.device)
        self._slots = slots.unsqueeze(2)  # (B,W,1)
        self._rows = (slots + firsts[:, None]).flatten()  # (N,)
        self._visible.scatter_(2, self._slots, True)
        self._bias = None


def _doubled(kept: Tensor, axis: int) -> Tensor:
    return torch.cat([kept, torch.zeros_like(kept)], axis)
