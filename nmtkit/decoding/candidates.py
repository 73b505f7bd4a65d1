"""The candidates of a step of beam search: the best continuations, with ties broken in one way everywhere.

Letters as in `nmtkit.decoding.beam_search`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.batches.batch import Rows
from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.rules import INFINITY
from nmtkit.layers.kernels import block_tops

BLOCK = 64
"""A first pass looks at the maxima of blocks of so many columns; a multiple of the vector width, about sqrt(X)."""
SORTED_DIRECTLY = 4096
"""Values up to which a CPU sorts them faster than it makes integer keys of them."""


@dataclass(frozen=True)
class Candidates(Rows):
    """The candidates of one step for each of B sentences, best first."""

    columns: Tensor
    """The column of each candidate's token in the scores of the step `(B,C)`, int64."""
    parents: Tensor
    """The number of the hypothesis that it continues, below W, `(B,C)`."""
    scores: Tensor
    """Its log-probability from the start `(B,C)`."""
    ended: Tensor
    """Candidates that become finished hypotheses, `(B,C)`, bool."""
    kept: Tensor
    """Numbers of the candidates that go on `(B,K)`."""
    kept_scores: Tensor
    """Their log-probabilities `(B,K)`; minus infinity where fewer than K were left."""


def best_candidates(
    log_probs: Tensor, scores: Tensor, beam_size: int, block_maxima: Tensor | None = None
) -> Candidates:
    """Returns the 2K best continuations: those of the K best that end are finished, the K best others go on.

    Arguments as of `top_continuations`.
    """
    scores, places = top_continuations(log_probs, scores, 2 * beam_size, block_maxima)  # (B,C)
    parents = places // log_probs.shape[1]
    columns = places % log_probs.shape[1]
    is_end = columns == EOS
    ended = is_end & (scores > -INFINITY)
    ended[:, beam_size:] = False
    # A stable sort moves what ends behind the others and keeps the order of both.
    kept = is_end.sort(dim=1, stable=True)[1][:, :beam_size]  # (B,K)
    return Candidates(
        columns=columns, parents=parents, scores=scores, ended=ended, kept=kept, kept_scores=scores.gather(1, kept)
    )


def top_continuations(
    log_probs: Tensor, scores: Tensor, count: int, block_maxima: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the C best continuations of each sentence's hypotheses: an exact top-k of `scores + log_probs`.

    A first top-k is over the maxima of blocks of columns. The best continuations all lie in the blocks that win it, and
    a second top-k looks into those only, which takes less time than one over all columns. Of equal values the first
    wins, in both.

    Args:
        log_probs: `(N,X)`. Logits will do, if the scores are lowered by the log of the sum of their exponentials.
        scores: log-probabilities of the hypotheses `(B,W)`.
        count: C.
        block_maxima: the maxima of the blocks of each row of `log_probs` `(N,blocks)`, if known.

    Returns:
        Scores of the continuations `(B,C)`, best first, and their numbers `(B,C)`, parent * X + token. Where fewer than
        C exist, the rest has a score of minus infinity.
    """
    n_sentences, width = scores.shape
    n_tokens = log_probs.shape[1]
    block_size = min(BLOCK, n_tokens)
    if block_maxima is None:
        block_maxima = block_tops(log_probs, BLOCK)  # (N,blocks)
    n_blocks = block_maxima.shape[1]
    block_scores = block_maxima.view(n_sentences, width, n_blocks) + scores[:, :, None]  # (B,W,blocks)
    _, best_blocks = stable_topk(block_scores.view(n_sentences, -1), min(count, width * n_blocks))  # (B,c)
    best_blocks = best_blocks.sort(1)[0]  # so that the first of equal values stays the first

    parents = best_blocks // n_blocks  # (B,c)
    columns = torch.sub(best_blocks, parents, alpha=n_blocks) * BLOCK  # (B,c): the first column of each block
    # The last block of a row may be shorter. It is read with columns of the one before it, which are masked below.
    places = torch.add(columns.clamp(max=n_tokens - block_size), parents, alpha=n_tokens)  # (B,c), within a sentence
    first_places = torch.arange(0, log_probs.numel(), width * n_tokens, device=scores.device)  # (B,)
    values = _windows(log_probs, (first_places[:, None] + places).flatten(), block_size)  # (B*c,block)
    values = values.view(*places.shape, block_size) + scores.gather(1, parents)[:, :, None]  # (B,c,block)
    shorter = n_tokens % block_size
    if shorter:
        is_last = columns > n_tokens - block_size  # (B,c)
        values[:, :, : block_size - shorter].masked_fill_(is_last[:, :, None], -INFINITY)

    values = values.view(n_sentences, -1)  # (B,c*block)
    missing = max(0, count - values.shape[1])
    best_values, best_places = stable_topk(values, count - missing)  # (B,C)
    numbers = places.gather(1, best_places // block_size) + best_places % block_size  # (B,C)
    if missing:
        best_values = pad(best_values, (0, missing), value=-INFINITY)
        numbers = pad(numbers, (0, missing))
    return best_values, numbers


def _windows(log_probs: Tensor, places: Tensor, size: int) -> Tensor:
    """Returns `size` neighbouring numbers of `log_probs` `(N,X)`, from each of M places in the flat tensor: `(M,size)`.

    All windows are overlapping views of one tensor, so that only the chosen ones are copied.
    """
    flat = log_probs.reshape(-1)
    windows = flat.as_strided((len(flat) - size + 1, size), (1, 1), flat.storage_offset())
    return windows.index_select(0, places)


def stable_topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the best values of each row `(B,M)`, best first, and their columns: `(B,count)` both.

    Of equal values the first comes first; with `torch.topk` that depends on the length of the row. NaN counts as the
    best.
    """
    is_long = values.dtype == torch.float32 and values.device.type == "cpu" and values.numel() > SORTED_DIRECTLY
    if not is_long:
        ordered, places = values.sort(dim=1, descending=True, stable=True)
        return ordered[:, :count], places[:, :count]
    if count:
        best, places = values.topk(count, 1)
        is_strict = (best[:, :-1] > best[:, 1:]).all()  # False for NaN as well
        reaching = torch.count_nonzero(values == best[:, -1:])  # more than rows if a value that is left out is as good
        if bool(is_strict & (reaching <= len(values))):
            return best, places
    # With ties, sort whole numbers that are all different: the bits of a float above, its place below. Read as
    # integers, the bits of positive floats are in order, those of negative ones in reverse order.
    last = values.shape[1] - 1
    bits = values.nan_to_num(nan=INFINITY, posinf=INFINITY, neginf=-INFINITY).view(torch.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    keys += torch.arange(last, -1, -1, device=values.device)
    places = last - (keys.topk(count, 1)[0] & 0xFFFFFFFF)
    return values.gather(1, places), places
