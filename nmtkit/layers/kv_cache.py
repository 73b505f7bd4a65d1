"""Key/value cache of a decoder. Entries are written once and are not moved when a beam is reordered.

The entries of a sentence are stored in a row of slots. Position p has K slots, p*K to p*K+K-1, one for each hypothesis
of that step. At each position, a hypothesis sees only the slot that its ancestor wrote. So when a beam is reordered,
only the table of visible slots, with one number per slot and hypothesis, must be reordered. Attention reads the slots
of a sentence once, with the K hypotheses as K queries and the table as a bias on the energies:

    position    0           1           2
    slot        0     1     2     3     4     5
    bias      -inf    0     0   -inf  -inf    0

This example shows the bias of one hypothesis with K = 2. The hypothesis writes slot 5; it continues the hypothesis that
wrote slot 2, which continued the one that wrote slot 1.

Sentences may begin with prompts, which have one slot per position. If prompts differ in length, the slots after the end
of shorter prompts are padding, which no hypothesis sees. All sentences continue in the slots after the longest prompt,
but each sentence counts its positions from the end of its own prompt.

Since the hypotheses of a beam have most of their ancestors in common, most slots soon become invisible to all of them.
On a CPU, such slots are dropped from time to time (`compact`) by moving the slots in use to the front.

Notation: as in `models/base.py`, and:

    W  hypotheses per sentence in this step: 1 in the first step of a search, then K; here N = B*W
    P  positions that are read: the earlier ones and the current one
    C  capacity of a row, in slots; at least the number of slots that are read
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.core.device import send

INITIAL_LENGTH = 16
"""Minimum capacity of a new cache, in positions; a cache that is full doubles its capacity."""
COMPACT_EVERY = 6
"""Number of positions between two attempts to drop slots."""
COMPACT_BELOW = 0.66
"""Share of visible slots above which no slots are dropped, since copying would cost more time than it saves."""


class KVCache:
    """Stores the entries of B sentences with K hypotheses each. Each decoder layer has its own entry in each slot.

    A decoder that writes no entries uses only the `position` of the cache.

    Args:
        sentences: B.
        beam: K.
        device: device of all tensors.
        width: W of the first step; None means K.
        capacity: initial capacity, in positions.
    """

    compacts: bool = False
    """Whether `compact` drops slots. This requires that all sentences begin at the same time and that no gradients are
    needed."""

    _bias: Tensor
    """Zero for the slots that a hypothesis sees, minus infinity for all others: `(B, W, C)`, or `(1, W, C)` while
    prompts are read. It exists only after the first entries have been written."""
    _slots: Tensor
    """Slot of each hypothesis at the current position, `(B, W)`."""
    _slot_rows: Tensor
    """Indices of `_slots` in the flattened slots of all sentences: `(N,)`."""

    def __init__(
        self,
        sentences: int,
        beam: int,
        device: torch.device,
        width: int | None = None,
        capacity: int = INITIAL_LENGTH,
    ) -> None:
        self.sentences = sentences
        self.beam = beam
        self.width = width or beam
        self.length = 1
        """P, the maximum number of positions of any sentence."""
        self.position = torch.zeros(sentences, dtype=torch.long, device=device)
        """Current position of each sentence, counted from 0: `(B,)`. For a finished sentence, it is capped at
        `length` - 1."""
        self._capacity = _rounded_up(capacity * beam)
        """C, the number of slots in a row."""
        self._dropped_slots = 0
        """Number of slots by which a row is shorter than P*K."""
        self._length_at_last_compaction = 1
        self._is_aligned = True
        """Whether all sentences write to the same slots of their rows."""
        self._is_open = False
        """Whether `_slots`, `_slot_rows` and `_bias` belong to the current position."""
        self._is_fixed = False
        """Whether `length` and the memory of the tensors are fixed; see `fix_length`."""
        self._in_prompt = False
        """Whether the W hypotheses of this step are the positions of a prompt."""
        self._prompt_padding: Tensor | None = None
        """Difference in length between each prompt and the longest one: `(B,)`, on the CPU."""
        self._entries: list[Tensor] = []
        """Entries of each layer of each model, `(B, C, *)`."""
        self._layers_written = 0
        """Number of layers that have written their entries for the current position."""
        self._first_layer = 0
        """Number of layers of the models before the current one."""
        self._number_rows()

    def begin_model(self) -> None:
        """Restarts layer numbering at 0 for the next model. Models must write in the same order at each position."""
        self._first_layer = self._layers_written

    def append(self, layer: int, entries: Tensor) -> None:
        """Writes a layer's entries `(N, *)` for the current position. Layers must write in ascending order."""
        if not self._is_open:
            self._open_position(entries.dtype)
        index = self._first_layer + layer
        self._layers_written = index + 1
        if index == len(self._entries):
            self._entries.append(self._new_entries(entries, entries.shape[1:]))
        stored = self._entries[index]  # (B, C, *)
        end = self._read_slots()
        if self.compacts and self.width < self.beam:
            # This step writes only W of the K slots of its position. No hypothesis sees the other slots, but their
            # memory is uninitialized, and a weight of zero times NaN is NaN.
            stored[:, end - self.beam + self.width : end] = 0
        if torch.is_grad_enabled() and not self._in_prompt:
            # Not in place, because the gradients of earlier steps need the old entries.
            copied = stored.flatten(0, 1).index_copy(0, self._slot_rows, entries)  # (B * C, *)
            self._entries[index] = copied.view_as(stored)  # (B, C, *)
        elif self._is_aligned:
            # All sentences write to the same slots. On a CPU, copying a block is faster than copying single rows.
            first = end - max(self.beam, self.width)
            by_sentence = entries.view(-1, self.width, *entries.shape[1:])  # (B, W, *)
            stored[:, first : first + self.width] = by_sentence
        else:
            # In place, since `flatten` returns a view.
            stored.flatten(0, 1).index_copy_(0, self._slot_rows, entries)

    def read(self, layer: int) -> Tensor:
        """Returns a view of a layer's entries up to the current position, without dropped slots: `(B, P*K, *)`."""
        return self._entries[self._first_layer + layer][:, : self._read_slots()]

    def bias(self) -> Tensor | None:
        """Returns the bias on energies that lets a hypothesis see only its ancestors and itself.

        The result is a view `(B, 1, W, P*K)` with the same slots as `read`, or None if every hypothesis sees all slots.
        """
        has_padding = self._prompt_padding is not None
        if self.beam == 1 and self._is_aligned and not self._in_prompt and not has_padding:
            return None
        return self._bias[:, None, :, : self._read_slots()]

    def visible_before(self) -> Tensor:
        """Returns a mask `(B, W, P*K)` of the slots that each hypothesis sees at earlier positions."""
        visible = self._bias[:, :, : self._read_slots()] == 0  # (B, W, P*K)
        return visible.scatter_(2, self._slots[:, :, None], False)

    def positions(self) -> Tensor:
        """Returns the current position of each sentence, `(B, 1)`; while prompts are read, all positions, `(1, W)`."""
        return self._hypotheses[None] if self._in_prompt else self.position[:, None]

    @property
    def reach(self) -> int:
        """Maximum number of positions of any sentence.

        It is less than `length` if the sentence with the longest prompt is no longer in the cache.
        """
        if self._prompt_padding is None:
            return self.length
        return self.length - int(self._prompt_padding.min())

    def begin_prompts(self, length: int) -> None:
        """Lets the first step read prompts of `length` positions at once; the next step is at the position after them.

        Hypothesis i of a sentence represents position i of its prompt, and sees positions 0 to i.
        """
        self.reserve(length)
        self.length = length
        self.width = length
        self._in_prompt = True
        self.position += length - 1
        self._number_rows()

    def end_prompts(self, lengths: Tensor, beam: int) -> None:
        """Ends the prompts, which have the given `lengths` `(B,)` (on the CPU), and sets K to `beam`.

        Until now, each sentence had one hypothesis and read as many tokens as the longest prompt has. From now on,
        entries after the end of a shorter prompt are hidden.
        """
        longest = self.length - 1
        self.beam = beam
        self._dropped_slots = longest * (beam - 1)  # a position in a prompt has a single slot
        self._length_at_last_compaction = self.length
        self._prompt_padding = longest - lengths  # (B,)
        self.position = send(lengths.clone(), self.position.device)  # (B,)
        if self._entries:
            is_padding = (
                torch.arange(self._capacity, device=self.position.device) >= self.position[:, None]
            )  # (B, C)
            self._bias.masked_fill_(is_padding[:, None], -torch.inf)
        self.reserve(self.length)

    def parent_rows(self, parents: Tensor) -> Tensor:
        """Converts the parents' indices within their sentence, `(B, *)`, to rows among all N hypotheses: `(B * *,)`."""
        return (parents + self._first_rows).flatten()

    def next_step(self, rows: Tensor | None = None, width: int | None = None) -> None:
        """Moves on to the next position.

        Args:
            rows: for each new hypothesis, the row of its parent among the N current ones, `(B * width,)`. None means
                that each hypothesis continues itself.
            width: the next W; None means that it does not change.
        """
        width = width or self.width
        if self._in_prompt:
            # Until now, the hypotheses were the positions of a prompt. Only the last hypothesis continues, since it has
            # seen the whole prompt.
            rows = torch.full_like(self.position, self.width - 1)  # (B,)
            width = 1
            self._in_prompt = False
        if not self._is_fixed:
            self.length += 1
            self.reserve(self.length)
        if rows is not None and self._entries:
            parent_bias = self._bias.flatten(0, 1).index_select(0, rows)  # (B * width, C)
            self._bias = parent_bias.view(self.sentences, width, -1)  # (B, width, C)
        if width != self.width:
            self.width = width
            self._number_rows()
        self.position = (self.position + 1).clamp(max=self.length - 1)  # (B,)
        self._is_open = False
        self._layers_written = 0
        self._first_layer = 0

    def reserve(self, length: int) -> None:
        """Allocates memory for at least `length` positions."""
        needed = length * self.beam - self._dropped_slots
        filled = self._capacity
        if needed <= filled:
            return
        if not self._is_fixed:
            needed = max(needed, 2 * filled)
        self._capacity = _rounded_up(needed)
        if self._entries:
            self._bias = pad(
                self._bias, (0, self._capacity - filled), value=-torch.inf
            )  # (B, W, C)
            shorter_entries = self._entries
            self._entries = []
            for shorter in shorter_entries:
                longer = self._new_entries(shorter, shorter.shape[2:])  # (B, C, *)
                longer[:, :filled] = shorter
                self._entries.append(longer)
        self._number_rows()

    def truncate(self, length: int) -> None:
        """Limits reading to `length` positions; sentences with more positions must be finished."""
        if length >= self.length:
            return
        if self._prompt_padding is not None:
            removed = self.length - length
            self._prompt_padding = (self._prompt_padding - removed).clamp(min=0)  # (B,)
        self.length = length
        self.position = self.position.clamp(max=length - 1)  # (B,)

    def select(self, sentences: Tensor) -> None:
        """Keeps only the sentences with these indices, `(M,)`; called between two steps."""
        self.sentences = len(sentences)
        self.position = self.position.index_select(0, sentences)  # (M,)
        if self._prompt_padding is not None:
            host_sentences = sentences.cpu()  # (M,)
            self._prompt_padding = self._prompt_padding[host_sentences]  # (M,)
        if self._entries:
            # (M, C, *) each
            self._entries = [stored.index_select(0, sentences) for stored in self._entries]
            self._bias = self._bias.index_select(0, sentences)  # (M, W, C)
        self._number_rows()

    def compact_batch(self, holes: Tensor, movers: Tensor, count: int) -> None:
        """Moves the sentences in rows `movers` to rows `holes`, and keeps the first `count` rows.

        `movers` and `holes` are `(M,)`, on the CPU.
        """
        filled = self._read_slots()
        self.sentences = count
        if self._prompt_padding is not None:
            _move_rows(self._prompt_padding, holes, movers)
            self._prompt_padding = self._prompt_padding[:count]  # (count,)
        device = self.position.device
        holes = send(holes, device)  # (M,)
        movers = send(movers, device)  # (M,)
        _move_rows(self.position, holes, movers)
        self.position = self.position[:count]  # (count,)
        if self._entries:
            _move_rows(self._bias, holes, movers)
            self._bias = self._bias[:count]  # (count, W, C)
            entries = self._entries
            self._entries = []
            for stored in entries:
                _move_rows(stored[:, :filled], holes, movers)
                self._entries.append(stored[:count])  # (count, C, *)
        self._number_rows()

    def insert(self, sentences: Tensor, other: "KVCache") -> None:
        """Overwrites the sentences at these indices `(M,)` with the sentences of a cache with the same K and W."""
        assert self._prompt_padding is None, "a batch with prompts cannot be refilled"
        self._is_aligned = False
        self.position.index_copy_(0, sentences, other.position)
        filled = other.length * self.beam
        if self._entries:
            missing = self._bias.shape[2] - filled
            filled_bias = other._bias[:, :, :filled]  # (M, W, P*K)
            other_bias = pad(filled_bias, (0, missing), value=-torch.inf)  # (M, W, C)
            self._bias.index_copy_(0, sentences, other_bias)
        for stored, other_stored in zip(self._entries, other._entries, strict=True):
            stored[:, :filled].index_copy_(0, sentences, other_stored[:, :filled])

    def compact(self) -> None:
        """Drops slots that no hypothesis sees, if there are enough such slots; called between two steps."""
        if not self.compacts or self.beam == 1 or not self._entries:
            return
        if self.length < self._length_at_last_compaction + COMPACT_EVERY:
            return
        self._length_at_last_compaction = self.length
        # The slots of the current position have not been written yet.
        written = self._read_slots() - self.beam
        is_visible = (self._bias[:, :, :written] == 0).any(1)  # (B, P*K)
        remaining = int(is_visible.sum(1).max())
        if remaining > COMPACT_BELOW * written:
            return
        # A stable sort by visibility puts the visible slots first and keeps their order. A sentence with fewer than
        # `remaining` visible slots keeps some invisible ones.
        order = torch.argsort(is_visible.byte(), dim=1, descending=True, stable=True)  # (B, P*K)
        slots = order[:, :remaining]  # (B, remaining)
        slot_rows = (slots + self._first_slots).flatten()  # (B * remaining,)
        for stored in self._entries:
            flat = stored.flatten(0, 1)  # (B * C, *)
            used = flat.index_select(0, slot_rows)  # (B * remaining, *)
            stored[:, :remaining] = used.view(self.sentences, remaining, *stored.shape[2:])
        bias_slots = slots[:, None].expand(-1, self.width, -1)  # (B, W, remaining)
        used_bias = self._bias.gather(2, bias_slots)  # (B, W, remaining)
        self._bias[:, :, remaining:written] = -torch.inf
        self._bias[:, :, :remaining] = used_bias
        self._dropped_slots += written - remaining

    def fix_length(self, length: int) -> None:
        """Allocates memory for `length` positions once and for all, as captured CUDA graphs require.

        From now on, steps no longer change `length`; the caller sets it.
        """
        self.reserve(length)
        self._is_fixed = True
        self._is_aligned = False

    def mutable_tensors(self) -> list[Tensor]:
        """Returns the tensors that a step replaces with new ones."""
        return [self.position, self._bias] if self._entries else [self.position]

    def _number_rows(self) -> None:
        """Computes the indices that depend only on B, W and C."""
        device = self.position.device
        self._hypotheses = torch.arange(self.width, device=device)  # (W,)
        sentences = torch.arange(self.sentences, device=device)[:, None]  # (B, 1)
        self._first_slots = sentences * self._capacity  # (B, 1)
        self._first_rows = sentences * self.width  # (B, 1)

    def _open_position(self, dtype: torch.dtype) -> None:
        """Assigns a slot to each hypothesis of this step, and makes the slot visible to that hypothesis."""
        device = self.position.device
        if not dtype.is_floating_point:  # a model may store integers in the cache
            dtype = torch.float32
        if self._in_prompt:
            shape = (1, self.width, self._capacity)  # the same for all sentences
            hidden = torch.full(shape, -torch.inf, dtype=dtype, device=device)  # (1, W, C)
            self._bias = hidden.triu(1)  # (1, W, C): zeros up to the diagonal
            self._is_open = True
            return
        if not self._entries:
            shape = (self.sentences, self.width, self._capacity)
            self._bias = torch.full(shape, -torch.inf, dtype=dtype, device=device)  # (B, W, C)
        position = self.position  # (B,)
        if self._prompt_padding is not None:
            # All sentences continue in the slots after the longest prompt.
            position = torch.full_like(position, self.length - 1)  # (B,)
        self._slots = torch.add(self._hypotheses, position[:, None], alpha=self.beam)  # (B, W)
        if self._dropped_slots:
            self._slots -= self._dropped_slots
        self._slot_rows = (self._slots + self._first_slots).flatten()  # (N,)
        visible = self._slots[:, :, None]  # (B, W, 1)
        # With gradients, do not update in place: the gradients of earlier steps need the old bias.
        if torch.is_grad_enabled():
            self._bias = self._bias.scatter(2, visible, 0.0)  # (B, W, C)
        else:
            self._bias.scatter_(2, visible, 0.0)
        self._is_open = True

    def _read_slots(self) -> int:
        """Returns the number of slots per row that are read in this step."""
        return self.length * self.beam - self._dropped_slots

    def _new_entries(self, like: Tensor, entry_shape: torch.Size) -> Tensor:
        """Allocates memory `(B, C, *)` for a layer's entries."""
        shape = (self.sentences, self._capacity, *entry_shape)
        if self.compacts:
            # All sentences begin at the same time, so every slot that is read has been written: no zeros are needed.
            return like.new_empty(shape)
        return like.new_zeros(shape)


def _move_rows(tensor: Tensor, targets: Tensor, sources: Tensor) -> None:
    """Overwrites the rows `targets` of a tensor with its rows `sources`, in place."""
    tensor.index_copy_(0, targets, tensor.index_select(0, sources))


def _rounded_up(slots: int) -> int:
    """Rounds up to a multiple of 8, since CUDA's attention would copy a bias of any other length in every layer."""
    return -(-slots // 8) * 8
