"""Loops over the words of a target, whose gradients are a few large products: training of recurrent decoders on a CPU.

Every step multiplies with the same matrices. Automatic differentiation makes their gradient by T small products and T
sums. Here each step notes what it read and the gradient that arrived; one product of all notes follows the first step:
`dL/dW = [x_1; ...; x_T]^T [g_1; ...; g_T]`. The other functions stand for layers in such a loop.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nmtkit.layers.attention import Additive, Attention, General
from nmtkit.layers.kernels import additive_energies, masked_softmax
from nmtkit.recurrent_models.recurrent import AttentionMemory

Look = Callable[..., tuple[Tensor, Tensor]]
Update = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
Layers = tuple[Look, Update]


class SharedMatrix:
    """`x W` at every step: of W `(I,O)` and rows `(B,I)`, or of one W for each sentence, `(B,I,O)`, and `(B,1,I)`."""

    def __init__(self, matrix: Tensor) -> None:
        narrow = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else matrix.dtype
        self._notes: list[tuple[Tensor, Tensor]] = []
        self._matrix = _Shared.apply(self._notes, matrix.to(narrow))  # type: ignore[no-untyped-call]  # as torch does

    def __call__(self, rows: Tensor) -> Tensor:
        """`(B,O)` or `(B,1,O)`."""
        rows = rows.to(self._matrix.dtype)
        return _Product.apply(self._notes, rows, self._matrix)  # type: ignore[no-any-return, no-untyped-call]  # as above


class _Shared(torch.autograd.Function):
    """W before the first step, which is where its gradient is made."""

    @staticmethod
    def forward(ctx: Any, notes: list[tuple[Tensor, Tensor]], matrix: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)  # no step gives a gradient: all is in the notes
        ctx.notes = notes
        return matrix.view_as(matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: None) -> tuple[None, Tensor]:
        rows, gradients = (torch.cat(part, -2) for part in zip(*ctx.notes, strict=True))
        ctx.notes.clear()
        return None, rows.mT @ gradients


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, notes: list[tuple[Tensor, Tensor]], rows: Tensor, matrix: Tensor) -> Tensor:
        ctx.notes = notes
        ctx.save_for_backward(rows, matrix)
        return torch.matmul(rows, matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        rows, matrix = ctx.saved_tensors
        ctx.notes.append((rows, gradient))
        return None, gradient @ matrix.mT, None


def gains(tensor: Tensor) -> bool:
    """Whether a loop gains by all this where the tensor is."""
    return torch.is_grad_enabled() and tensor.device.type == "cpu"


def looped_attention(attention: Attention, memory: AttentionMemory) -> Look:
    """The attention over this memory, of one query a sentence at every step; see `Attention.forward`."""
    score, keys = attention.score, memory.keys
    if type(score) not in (Additive, General) or attention.hard or attention.window is not None:
        return attention
    values = SharedMatrix(memory.values)
    shared = SharedMatrix(score.query.weight.mT if isinstance(score, Additive) else keys.mT)

    def look(queries: Tensor, _keys: Tensor, _values: Tensor, mask: Tensor, *_: None) -> tuple[Tensor, Tensor]:
        found = shared(queries.flatten(0, 1) if isinstance(score, Additive) else queries)
        energies = additive_energies(found[:, None], keys, score.energy) if isinstance(score, Additive) else found
        weights = masked_softmax(energies, mask.unsqueeze(1))
        return values(weights), weights

    return look


def looped_cells(layers: Iterable[Iterable[Tensor]], dropout: Callable[[Tensor], Tensor]) -> Update:
    """A step as of `StackedCells`, from the weights of GRU or LSTM cells in torch's order."""
    maps = [(SharedMatrix(read.mT), SharedMatrix(own.mT), one, other) for read, own, one, other in layers]

    def step(inputs: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
        states, cells, size = list[Tensor](), list[Tensor](), hidden.shape[2]
        for number, (of_inputs, of_hidden, bias, other) in enumerate(maps):
            before = hidden[:, number]
            gates = of_inputs(dropout(states[-1]) if states else inputs) + bias  # (B,3H) or (B,4H)
            more = of_hidden(before) + other
            if cell is None:
                (gates, new), (more, own) = (torch.split(one, [2 * size, size], 1) for one in (gates, more))
                reset, update = (gates + more).sigmoid().chunk(2, 1)
                new = (new + reset * own).tanh()
                states.append(torch.lerp(new, before.to(new.dtype), update))  # the first state may be of another type
            else:
                enter, forget, new, leave = (gates + more).chunk(4, 1)
                cells.append(forget.sigmoid() * cell[:, number] + enter.sigmoid() * new.tanh())
                states.append(leave.sigmoid() * cells[-1].tanh())
        return torch.stack(states, 1), torch.stack(cells, 1) if cells else None

    return step
