"""Losses: pure functions of what a model said (`Output`) and what it should have said (`Batch`)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batch import Batch
from nmtkit.layers.precision import wide
from nmtkit.models.base import Memory, Output, Readout, Seq2Seq, headed
from nmtkit.settings import Field, Settings

Teacher = Literal["file", "model"]
AlignmentLoss = Literal["cross_entropy", "squared_error"]


class GuidedAlignment(Settings):
    """Teaches the attention that the model shows as its alignment where to look, while it learns to translate.

    Chen et al. 2016, "Guided Alignment Training for Topic-Aware Neural Machine Translation"; Garg et al. 2019, "Jointly
    Learning to Align and Translate with Transformer Models", for one head of a Transformer, which is chosen by
    `model.alignment_layer` and `model.alignment_heads`.
    """

    source: Teacher = "file"
    """Who knows the links. file: data.train.alignment. model: for each word the source token at which the layer's heads
    look most on average; it teaches the one head that model.alignment_heads names."""
    weight: float = Field(default=0.05, gt=0)
    """Weight of the alignment's loss, a mean over linked target tokens, beside the mean loss per target token."""
    loss: AlignmentLoss = "cross_entropy"
    """How far the attention is from the links: cross_entropy, or squared_error, which is milder where it is far off."""


@dataclass(frozen=True)
class Loss:
    """Sums over the M target tokens of a batch, in nats; divide by a token count to get a mean."""

    total: Tensor
    """What training minimises, a scalar."""
    nll: Tensor
    """Negative log-likelihood without smoothing, a scalar outside the graph."""
    tokens: int
    """M."""


def likelihood(
    output: Output,
    batch: Batch,
    vocabulary_size: int,
    smoothing: float = 0.0,
    part: slice = slice(None),
    weights: Tensor | None = None,
) -> Loss:
    """Negative log-likelihood of the targets with label smoothing (Szegedy et al. 2016, section 7).

    Each target word y becomes the distribution q(x) = (1 - smoothing) [x = y] + smoothing / V over the V words of the
    vocabulary, y included; the loss is the cross-entropy -sum_x q(x) log p(x). It equals
    `torch.nn.functional.cross_entropy(..., label_smoothing=smoothing, reduction="sum")`. Copied words beyond the
    vocabulary (X > V) can be targets but get no share of the smoothing: most of them are impossible in most sentences
    of a batch, and their log-probability is minus infinity there.

    Args:
        output: log-probabilities `(M,X)` of the positions in `batch.tgt_mask`, in row-major order.
        batch: the targets; may stay on the CPU while `output` is on another device, which spares the device a wait.
        vocabulary_size: V. If X is larger, the targets are the extended ids.
        smoothing: share of the probability that is spread evenly, in [0, 1).
        part: which of those positions `output` holds; all unless said otherwise.
        weights: what the loss of each of these positions is multiplied with, `(M,)`; the nll is not. None: nothing.
    """
    log_probs = output.log_probs
    copies = log_probs.shape[-1] > vocabulary_size
    ids = batch.tgt_extended if copies else batch.tgt_out
    assert ids is not None, "the batch has no targets"
    assert batch.tgt_mask is not None, "the batch has no targets"
    targets = ids[batch.tgt_mask][part].to(log_probs.device, non_blocking=True)  # (M,)
    assert log_probs.shape[:-1] == targets.shape, f"{log_probs.shape[:-1]} predictions for {targets.shape} targets"
    each = -log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)  # (M,)
    nll = each.sum(dtype=wide(log_probs))
    total = nll if weights is None else (each * weights).sum(dtype=wide(log_probs))
    if smoothing:
        assert weights is None, "smoothing has no weights"
        words = log_probs[:, :vocabulary_size] if copies else log_probs
        total = (1 - smoothing) * nll - (smoothing / vocabulary_size) * words.sum(dtype=wide(log_probs))
    return Loss(total, nll.detach(), targets.numel())


_LEAST = 1e-30
"""Smaller weights count as this, so that the logarithm of one that a window or rounding made zero is finite."""


def linked_positions(batch: Batch, teacher: Teacher) -> Tensor:
    """The target positions `(B,T)` whose attention is taught.

    With links from a file those that have one; where the model itself is the teacher all words: what is neither padding
    nor EOS, which stands for no word.
    """
    if teacher == "file":
        assert batch.alignment is not None, "the batch has no alignments"
        return batch.alignment.any(-1)
    assert batch.tgt_mask is not None
    words = torch.zeros_like(batch.tgt_mask)
    words[:, :-1] = batch.tgt_mask[:, 1:]  # the last real position of a row is EOS
    return words


def alignment_loss(attention: Tensor, links: Tensor, kind: AlignmentLoss = "cross_entropy") -> Tensor:
    """How far attention is from an alignment, summed over the target tokens that have a link.

    The k links of a target token make a distribution G of 1/k each. cross_entropy is -sum_s G log A (Chen et al. 2016,
    Garg et al. 2019), squared_error is sum_s (G - A)^2 (Chen et al. 2016). Target tokens without a link, and padding,
    have no share in it. A window that hides a linked source token costs a constant: it cannot be learned away.

    Args:
        attention: A, weights `(B,T,S)`.
        links: `(B,T,S)`, bool.
        kind: which loss.

    Returns:
        A scalar; nats for cross_entropy.
    """
    weights = attention.to(wide(attention))
    counts = links.sum(-1, keepdim=True)  # (B,T,1)
    gold = links / counts.clamp(min=1).to(weights.dtype)  # (B,T,S)
    if kind == "cross_entropy":
        return -(gold * weights.clamp(min=_LEAST).log()).sum()
    return ((gold - weights).square() * (counts > 0)).sum()


def coverage_loss(attention: Tensor, mask: Tensor) -> Tensor:
    """How much a summary looks again at what it has looked at before, summed over the target tokens.

    See et al. 2017, equations 12 and 13, without the weight lambda: sum_s min(a, c), where the coverage c of a step is
    the sum of the attention of all steps before it (eq. 10), so that the first step costs nothing and every step at
    most 1.

    Args:
        attention: a, weights `(B,T,S)`.
        mask: `(B,T)`, True where a target token is real.

    Returns:
        A scalar.
    """
    weights = attention.to(wide(attention))
    before = pad(weights[:, :-1].cumsum(1), (0, 0, 1, 0))  # (B,T,S)
    return (torch.minimum(weights, before).sum(-1) * mask).sum()


def _own_links(heads: Tensor, positions: Tensor) -> Tensor:
    """One link for each position `(B,T)`: where the heads `(B,A,T,S)` look most on average; `(B,T,S)`, a constant."""
    best = heads.detach().mean(1).argmax(-1, keepdim=True)  # (B,T,1)
    return torch.zeros_like(heads[:, 0], dtype=torch.bool).scatter_(-1, best, positions[..., None])


@dataclass(frozen=True)
class Guide:
    """How `add_gradients` teaches the attention."""

    settings: GuidedAlignment
    """Who teaches it, and by which loss."""
    scale: float
    """What the summed loss is multiplied with: its weight over the number of linked target tokens."""


def add_gradients(
    model: Seq2Seq,
    batch: Batch,
    scale: float,
    smoothing: float,
    device: torch.device,
    part_bytes: int,
    guide: Guide | None = None,
    coverage_weight: float = 0.0,
    weights: Tensor | None = None,
    memory: Memory | None = None,
) -> Tensor:
    """Adds the gradient of `scale` times the summed loss of a batch to the model's parameters.

    The output layer, whose log-probabilities are by far the largest tensors of a model with a real vocabulary, is gone
    through in parts: each part's loss is taken back to the decoder's features, and to the attention and the gate where
    the model copies, before the next part begins. The gradient is the same; the memory is that of one part, and every
    part takes the same place in the memory and in the caches. `predict` may read ids and masks in the model's `Memory`,
    but nothing there that needs a gradient: that graph is gone after the first part.

    Args:
        model: in training mode, on `device`.
        batch: with targets; stays on the CPU, so that finding the kept positions does not wait for the device.
        scale: what the loss is multiplied with, such as one over the number of tokens.
        smoothing: see `likelihood`.
        device: where to compute.
        part_bytes: how large a part's log-probabilities may be.
        guide: adds the gradient of the alignment's loss as well; None leaves the attention to itself.
        coverage_weight: adds so many times `scale` times the gradient of the coverage loss (See et al. 2017, lambda).
        weights: what the loss of each sentence is multiplied with, `(B,)`, on the device; needs a smoothing of 0.
        memory: what `encode` makes of the batch, if somebody has it already.

    Returns:
        Sums of loss, nll, the alignment's loss and the coverage loss, `(4,)`, of which the first holds neither of the
        last two, and those are zero where they were not asked for; on the device and outside the graph.
    """
    assert batch.tgt_mask is not None
    moved = batch.to(device, non_blocking=True)
    assert moved.tgt_mask is not None
    if memory is None:
        memory = model.encode(moved)
    readout, guided = _unrolled(model, moved, memory, guide, need_attention=coverage_weight > 0)
    # What is asked of the attention itself: its loss, and the factor before it. The attention is not cut into parts
    # for it: its gradient goes back together with what the parts leave at the attention and at the features.
    asked: dict[str, tuple[Tensor, float]] = {}
    if guide is not None and guided is not None:
        asked["alignment"] = (guided, guide.scale)
    if coverage_weight:
        assert readout.attention is not None, f"{model.config.kind} shows no attention"
        asked["coverage"] = (coverage_loss(readout.attention, moved.tgt_mask), coverage_weight * scale)

    whole = readout.at(batch.tgt_mask)
    rows = max(1, part_bytes // (4 * (model.sizes.tgt + batch.n_oov)))
    inputs = [whole.features, whole.attention, whole.copy_gate]
    # One leaf per tensor and part: backward stops there, and `cut` collects what arrived.
    cut = [None if tensor is None else [_leaf(piece) for piece in torch.split(tensor, rows)] for tensor in inputs]
    output_weight = None if whole.output_weight is None else _leaf(whole.output_weight)  # one for all parts
    sums = []
    for number in range(len(cut[0] or [])):
        features, attention, gate = (None if pieces is None else pieces[number] for pieces in cut)
        assert features is not None
        place = slice(number * rows, number * rows + features.shape[0])
        sentence = None if whole.sentence is None else whole.sentence[place]
        readout = Readout(features, attention, gate, sentence, output_weight=output_weight)
        log_probs = model.predict(readout, memory)
        factors = None if weights is None or sentence is None else weights.index_select(0, sentence)
        loss = likelihood(Output(log_probs), batch, model.sizes.tgt, smoothing, place, factors)
        _backward([loss.total * scale], [None])
        sums.append(torch.stack([loss.total.detach(), loss.nll]))
    reached: list[tuple[Tensor, Tensor | None]] = [
        (tensor, torch.cat([_gradient(piece) for piece in pieces]))
        for tensor, pieces in zip(inputs, cut, strict=True)
        if tensor is not None and pieces is not None and tensor.requires_grad
    ]
    if output_weight is not None and whole.output_weight is not None:
        reached.append((whole.output_weight, _gradient(output_weight)))
    reached += [(loss * factor, None) for loss, factor in asked.values()]
    total = torch.stack(sums).sum(0)
    nothing = total.new_zeros(())
    extra = [asked[name][0].detach().to(total) if name in asked else nothing for name in ("alignment", "coverage")]
    _backward([tensor for tensor, _ in reached], [gradient for _, gradient in reached])
    return torch.cat([total, torch.stack(extra)])


def _unrolled(
    model: Seq2Seq, batch: Batch, memory: Memory, guide: Guide | None, need_attention: bool
) -> tuple[Readout, Tensor | None]:
    """All steps of the model, and the summed loss of its alignment if there is a guide."""
    if guide is None:
        return model.unroll(batch, memory, need_attention), None
    if guide.settings.source == "model":
        teacher = headed(model)
        assert teacher is not None, f"{model.config.kind} has no heads"
        readout, heads = teacher.unroll_with_heads(batch, memory)
        links = _own_links(heads, linked_positions(batch, "model"))
    else:
        readout = model.unroll(batch, memory, need_attention=True)
        assert batch.alignment is not None, "the batch has no alignments"
        links = batch.alignment
    assert readout.attention is not None, f"{model.config.kind} shows no attention"
    return readout, alignment_loss(readout.attention, links, guide.settings.loss)


def _backward(tensors: list[Tensor], gradients: list[Tensor | None]) -> None:
    """Backward outside of autocast, where torch wants it: each operation has the types it had on the way forward."""
    with torch.autocast(tensors[0].device.type, enabled=False):
        torch.autograd.backward(tensors, gradients)


def _leaf(tensor: Tensor) -> Tensor:
    """The same numbers as the beginning of a graph of their own."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
