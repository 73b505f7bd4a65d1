"""Batches of sentences, and `Rows`: the one way to pick, repeat and reorder whatever has one row per sentence."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

R = TypeVar("R", bound="Rows")


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map(item, change) for item in value)
    return value


@dataclass(frozen=True)
class Rows:
    """Tensors whose axis 0 is the same rows: sentences of a batch, or hypotheses of a search.

    Expanding to beams, following the parents, dropping finished sentences and cutting micro-batches are all
    `select` with a different index. Fields may be tensors, tuples of tensors, other `Rows`, None or plain numbers;
    the last two are shared by all rows and pass through unchanged.
    """

    def select(self: R, index: Tensor) -> R:
        """Picks rows by number; a number may occur several times, or never.

        Args:
            index: row numbers `(M,)`, int64, on the device of the rows.

        Returns:
            The same type with M rows.
        """

        def pick(value: Any) -> Any:
            if isinstance(value, Rows):
                return value.select(index)
            return _map(value, lambda tensor: tensor.index_select(0, index))

        return self._changed(pick)

    def to(self: R, device: torch.device | str, non_blocking: bool = False) -> R:
        """The same rows on another device."""

        def move(value: Any) -> Any:
            if isinstance(value, Rows):
                return value.to(device, non_blocking)
            return _map(value, lambda tensor: tensor.to(device, non_blocking=non_blocking))

        return self._changed(move)

    def _changed(self: R, change: Any) -> R:
        assert is_dataclass(self)
        return replace(self, **{field.name: change(getattr(self, field.name)) for field in fields(self) if field.init})


@dataclass(frozen=True)
class Batch(Rows):
    """B sentences, padded with PAD on the right. Masks are True where a token is real.

    Sources end in EOS, so that an encoder sees where the sentence stops. `tgt_in` begins with BOS, `tgt_out` ends in
    EOS; both have T columns. A batch to be translated has no target: the four target fields are None.

    Extended ids give the unknown words of one example the ids V, V+1, ... so that a model can copy them; without
    unknown words they equal the plain ids.
    """

    src: Tensor
    """Source ids `(B,S)`, int64."""
    src_mask: Tensor
    """`(B,S)`, bool."""
    src_lengths: Tensor
    """`(B,)`, int64, on the CPU's side of any packing; counts EOS."""
    src_extended: Tensor
    """Source ids `(B,S)` in the extended target vocabulary."""
    tgt_in: Tensor | None = None
    """`(B,T)`: BOS, then the target."""
    tgt_out: Tensor | None = None
    """`(B,T)`: the target, then EOS."""
    tgt_extended: Tensor | None = None
    """`(B,T)`: `tgt_out` in the extended vocabulary."""
    tgt_mask: Tensor | None = None
    """`(B,T)`, bool."""
    n_oov: int = 0
    """The most unknown words of any example in the batch; X = V + n_oov."""

    @property
    def size(self) -> int:
        """B."""
        return self.src.shape[0]
