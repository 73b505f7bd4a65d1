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
from nmtkit.layers.kernels import masked_softmax
from nmtkit.models.rnn.recurrent import AttentionMemory

Look = Callable[..., tuple[Tensor, Tensor]]
Update = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
Layers = tuple[Look, Update]


class SharedMatrix:
    """`x W + b` at every step, of W `(I,O)` and rows `(B,I)`; or, without b, W `(B,I,O)` and rows `(B,1,I)`."""

    def __init__(self, matrix: Tensor, bias: Tensor | None = None) -> None:
        narrow = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else matrix.dtype
        self._notes: list[tuple[Tensor, Tensor]] = []
        self._shared: Any = _Shared.apply(self._notes, matrix.to(narrow), bias)  # type: ignore[no-untyped-call]

    def __call__(self, rows: Tensor) -> Tensor:
        """`(B,O)` or `(B,1,O)`."""
        rows = rows.to(self._shared[0].dtype)
        return _Product.apply(self._notes, rows, *self._shared)  # type: ignore[no-any-return, no-untyped-call]


class _Shared(torch.autograd.Function):
    """W and b before the first step, which is where their gradients are made."""

    @staticmethod
    def forward(ctx: Any, notes: list[tuple[Tensor, Tensor]], *shared: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.set_materialize_grads(False)  # no step gives a gradient: all is in the notes
        ctx.notes, ctx.shared = notes, shared
        return tuple(one if one is None else one.view_as(one) for one in shared)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: None) -> tuple[Tensor | None, ...]:
        rows, gradients = (torch.cat(part, -2) for part in zip(*ctx.notes, strict=True))
        ctx.notes.clear()
        return None, rows.mT @ gradients.to(rows.dtype), gradients.sum(0) if ctx.needs_input_grad[2] else None


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, notes: list[Any], rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        ctx.notes = notes
        ctx.save_for_backward(rows, matrix)
        return rows @ matrix if bias is None else rows @ matrix + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None]:
        rows, matrix = ctx.saved_tensors
        ctx.notes.append((rows, gradient))
        return None, gradient.to(matrix.dtype) @ matrix.mT, None, None


class _Source(_Shared):
    """What an additive attention reads: keys, whose gradient adds up in one place, values and v."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: None) -> tuple[Tensor | None, ...]:
        weights, contexts, energies, of_keys = zip(*ctx.notes, strict=True)
        ctx.notes.clear()
        of_values = torch.cat(weights, 1).mT @ torch.cat(contexts, 1)
        return None, of_keys[0] * (ctx.shared[2] / 2), of_values, torch.cat(energies).sum(0)


class _Look(torch.autograd.Function):
    """Context and weights of queries `(B,A)`, whose energies are `v^T tanh(W s + U h)`; keys are `2 U h`, as always."""

    @staticmethod
    def forward(ctx: Any, notes: list[Any], queries: Tensor, mask: Tensor, *source: Tensor) -> tuple[Tensor, Tensor]:
        keys, values, energy = source
        tanh = torch.add(queries[:, None], keys, alpha=0.5).tanh_()  # (B,S,A), by far the largest tensor
        weights = masked_softmax((tanh @ energy)[:, None], mask)  # (B,1,S)
        ctx.notes, ctx.tanh = notes, [tanh]
        ctx.save_for_backward(weights, values, energy)
        return weights.to(values.dtype) @ values, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_context: Tensor, of_weights: Tensor) -> tuple[Tensor | None, ...]:
        (weights, values, energy), tanh = ctx.saved_tensors, ctx.tanh.pop()
        arrived = weights * (of_weights + of_context @ values.mT)
        energies = (arrived - weights * arrived.sum(-1, keepdim=True)).to(tanh.dtype)  # their gradient (B,1,S)
        of_energy = energies.view(1, -1) @ tanh.flatten(0, 1)
        slope = torch.addcmul(tanh.new_ones(()), tanh, tanh, value=-1, out=tanh)
        of_keys = ctx.notes[0][3].addcmul_(energies.mT, slope) if ctx.notes else energies.mT * slope
        ctx.notes.append((weights.to(values.dtype), of_context, of_energy, of_keys))
        return None, (energies @ slope)[:, 0] * energy, None, None, None, None


class _GruStep(torch.autograd.Function):
    """The new state `(...,H)` of a GRU from what its maps make of the input and the state, each `(...,3H)`."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, more: Tensor, before: Tensor) -> Tensor:
        size = before.shape[-1]
        both = (gates[..., : 2 * size] + more[..., : 2 * size]).sigmoid_()
        (reset, update), own = both.chunk(2, -1), more[..., 2 * size :]
        new = torch.addcmul(gates[..., 2 * size :], reset, own).tanh_()
        ctx.save_for_backward(both, new, own, before)
        return torch.lerp(new, before.to(new.dtype), update)  # the first state may be of another type

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        both, new, own, before = ctx.saved_tensors
        reset, update = both.chunk(2, -1)
        of_before = gradient * update
        of_new = (gradient - of_before) * (1 - new * new)
        of_both = torch.cat([of_new * own, gradient * (before - new)], -1) * both * (1 - both)
        return torch.cat([of_both, of_new], -1), torch.cat([of_both, of_new * reset], -1), of_before


def gains(tensor: Tensor) -> bool:
    """Whether a loop gains by all this where the tensor is."""
    return torch.is_grad_enabled() and tensor.device.type == "cpu"


def looped_attention(attention: Attention, memory: AttentionMemory) -> Look:
    """The attention over this memory, of one query a sentence at every step; see `Attention.forward`."""
    score, keys, values = attention.score, memory.keys, memory.values
    if type(score) not in (Additive, General) or attention.hard or attention.window is not None:
        return attention
    if isinstance(score, Additive):
        notes, query = list[Any](), SharedMatrix(score.query.weight.mT)
        narrow = values.to(keys.dtype), score.energy.to(keys.dtype)
        source: Any = _Source.apply(notes, keys, *narrow)  # type: ignore[no-untyped-call]

        def look_additively(queries: Tensor, _keys: Tensor, _values: Tensor, mask: Tensor, *_: None) -> Any:
            return _Look.apply(notes, query(queries[:, 0]), mask.unsqueeze(1), *source)  # type: ignore[no-untyped-call]

        return look_additively
    of_keys, of_values = SharedMatrix(keys.mT), SharedMatrix(values)

    def look(queries: Tensor, _keys: Tensor, _values: Tensor, mask: Tensor, *_: None) -> tuple[Tensor, Tensor]:
        weights = masked_softmax(of_keys(queries), mask.unsqueeze(1))
        return of_values(weights), weights

    return look


def looped_cells(layers: Iterable[Iterable[Tensor]], dropout: Callable[[Tensor], Tensor]) -> Update:
    """A step as of `StackedCells`, from the weights of GRU or LSTM cells in torch's order."""
    maps = [(SharedMatrix(read.mT, one), SharedMatrix(own.mT, other)) for read, own, one, other in layers]

    def step(inputs: Tensor, hidden: Tensor, cell: Tensor | None) -> tuple[Tensor, Tensor | None]:
        states, cells = list[Tensor](), list[Tensor]()
        for number, (of_inputs, of_hidden) in enumerate(maps):
            before = hidden[:, number]
            gates, more = of_inputs(dropout(states[-1]) if states else inputs), of_hidden(before)  # (B,3H) or (B,4H)
            if cell is None:
                states.append(_GruStep.apply(gates, more, before))  # type: ignore[no-untyped-call]
            else:
                enter, forget, new, leave = (gates + more).chunk(4, 1)
                cells.append(forget.sigmoid() * cell[:, number] + enter.sigmoid() * new.tanh())
                states.append(leave.sigmoid() * cells[-1].tanh())
        return torch.stack(states, 1), torch.stack(cells, 1) if cells else None

    return step
