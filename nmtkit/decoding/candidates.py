"""The candidates in a step of beam search: the best continuations, with ties broken consistently.

Notation as in `nmtkit.decoding.beam_search`. The flat index of a continuation is parent * X + column, where parent, a
number below W, is the index of a hypothesis within its sentence.
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
"""Number of columns in a block, a multiple of the processor's vector width and close to sqrt(X). The first pass of a
top-k reads only the maximum of each block."""
SORTED_DIRECTLY = 4096
"""Maximum number of values for which, on a CPU, sorting directly is faster than building integer keys."""


@dataclass(frozen=True)
class Candidates(Rows):
    """The candidates of one step for each of B sentences.

    They are sorted best first, with three exceptions: samples are in the order in which they were drawn, the groups of
    diverse beam search come one after another, and constrained search puts survivors before finished hypotheses.
    """

    columns: Tensor
    """Column of each candidate's token in the scores of the step `(B,C)`, int64."""
    parents: Tensor
    """Index of the hypothesis that each candidate continues, below W, `(B,C)`."""
    scores: Tensor
    """Cumulative log-probability of each candidate `(B,C)`; minus infinity in empty places.

    A place is empty if

    - there are fewer continuations than places,
    - its sample, its group of diverse beam search or its sentence is not continued, or
    - this is the last step with `at_limit: end`, in which each hypothesis has at most one candidate.

    Constrained search fills the places of missing survivors and finished hypotheses with other continuations, some of
    which repeat a candidate, so such a place is empty only if its continuation is impossible.
    """
    ended: Tensor
    """Whether each candidate becomes a finished hypothesis, `(B,C)`, bool."""
    survivors: Tensor
    """Indices of the candidates that make up the next beam, below C, `(B,K)`."""
    survivor_scores: Tensor
    """Log-probabilities of the survivors `(B,K)`; minus infinity where fewer than K candidates survive."""


def best_candidates(
    log_probs: Tensor, scores: Tensor, beam_size: int, block_maxima: Tensor | None = None
) -> Candidates:
    """Returns the 2K best continuations. Among the K best, those that end are finished.

    The K best continuations that do not end survive.
    The arguments are as in `top_continuations`.
    """
    candidate_scores, flat_indices = top_continuations(
        log_probs, scores, 2 * beam_size, block_maxima=block_maxima
    )  # (B,C)
    n_columns = log_probs.shape[1]
    parents = flat_indices // n_columns  # (B,C)
    columns = flat_indices % n_columns  # (B,C)
    is_end = columns == EOS  # (B,C)
    ended = is_end & (candidate_scores > -INFINITY)  # (B,C)
    ended[:, beam_size:] = False
    # A stable sort by the flags moves the candidates that do not end to the front, and keeps both kinds sorted best
    # first.
    _, order = is_end.sort(dim=1, stable=True)  # (B,C)
    survivors = order[:, :beam_size]  # (B,K)
    return Candidates(
        columns=columns,
        parents=parents,
        scores=candidate_scores,
        ended=ended,
        survivors=survivors,
        survivor_scores=candidate_scores.gather(1, survivors),
    )


def top_continuations(
    log_probs: Tensor, scores: Tensor, count: int, block_maxima: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the C best continuations of each sentence's hypotheses: an exact top-k of `scores + log_probs`.

    A first top-k selects blocks of columns by their maxima. The selected blocks contain all of the best continuations,
    so a second top-k reads only these blocks, which is faster than a single top-k over all columns. Both passes break
    ties by flat index, lowest first.

    Args:
        log_probs: log-probabilities of all continuations `(N,X)`, or logits if the logsumexp of each row has been
            subtracted from the score of its hypothesis.
        scores: log-probabilities of the hypotheses `(B,W)`.
        count: C.
        block_maxima: the maximum of each block in each row of `log_probs` `(N,blocks)`, if it has been computed.

    Returns:
        The scores of the continuations `(B,C)`, best first, and their flat indices `(B,C)`. If there are fewer than C
        continuations, the remaining scores are minus infinity.
    """
    n_sentences, width = scores.shape
    n_columns = log_probs.shape[1]
    block_size = min(BLOCK, n_columns)

    # 1. The best blocks of each sentence.
    if block_maxima is None:
        block_maxima = block_tops(log_probs, BLOCK)  # (N,blocks)
    n_blocks = block_maxima.shape[1]
    block_scores = (
        block_maxima.view(n_sentences, width, n_blocks) + scores[:, :, None]
    )  # (B,W,blocks)
    block_scores = block_scores.view(n_sentences, -1)  # (B,W*blocks)
    n_chosen = min(count, width * n_blocks)
    _, chosen_blocks = stable_topk(block_scores, n_chosen)  # (B,chosen)
    # Sorted by flat index, because the second pass puts tied values in the order in which it reads them.
    chosen_blocks, _ = chosen_blocks.sort(1)  # (B,chosen)

    # 2. The values of these blocks.
    parents = chosen_blocks // n_blocks  # (B,chosen)
    first_columns = torch.sub(chosen_blocks, parents, alpha=n_blocks) * BLOCK  # (B,chosen)
    # The last block of a row may be shorter. It is read together with some columns of the block before it, which are
    # masked below.
    read_columns = first_columns.clamp(max=n_columns - block_size)  # (B,chosen)
    block_starts = torch.add(read_columns, parents, alpha=n_columns)  # (B,chosen): flat indices
    sentence_starts = torch.arange(
        0, log_probs.numel(), width * n_columns, device=scores.device
    )  # (B,)
    starts = (sentence_starts[:, None] + block_starts).flatten()  # (B*chosen,)
    values = _windows(log_probs, starts, block_size)  # (B*chosen,block)
    values = values.view(*block_starts.shape, block_size)  # (B,chosen,block)
    parent_scores = scores.gather(1, parents)  # (B,chosen)
    values = values + parent_scores[:, :, None]  # (B,chosen,block)
    last_block_size = n_columns % block_size
    if last_block_size:
        is_last_block = first_columns > n_columns - block_size  # (B,chosen)
        foreign_columns = values[:, :, : block_size - last_block_size]  # (B,chosen,*): a view
        foreign_columns.masked_fill_(is_last_block[:, :, None], -INFINITY)

    # 3. The best of these values.
    values = values.view(n_sentences, -1)  # (B,chosen*block)
    n_missing = max(0, count - values.shape[1])
    best_scores, value_indices = stable_topk(values, count - n_missing)  # (B,C)
    best_block_starts = block_starts.gather(1, value_indices // block_size)  # (B,C)
    flat_indices = best_block_starts + value_indices % block_size  # (B,C)
    if n_missing:
        best_scores = pad(best_scores, (0, n_missing), value=-INFINITY)  # (B,C)
        flat_indices = pad(flat_indices, (0, n_missing))  # (B,C)
    return best_scores, flat_indices


def _windows(log_probs: Tensor, starts: Tensor, size: int) -> Tensor:
    """Returns `size` consecutive values of the flattened `log_probs`, starting at each of M flat indices: `(M,size)`.

    All possible windows are overlapping views of one tensor, so only the selected windows are copied.
    """
    flat = log_probs.reshape(-1)  # (N*X,)
    n_windows = len(flat) - size + 1
    windows = flat.as_strided((n_windows, size), (1, 1), flat.storage_offset())  # (windows,size)
    return windows.index_select(0, starts)


def stable_topk(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the largest values of each row `(B,M)`, in descending order, and their columns, each `(B,count)`.

    Ties are broken by column, lowest index first; with `torch.topk`, the order of ties depends on the row length. NaN
    counts as the largest value.
    """
    is_on_cpu = values.device.type == "cpu"
    has_keys = values.dtype == torch.float32  # the integer keys below are built from 32 bits
    if not is_on_cpu or not has_keys or values.numel() <= SORTED_DIRECTLY:
        sorted_values, columns = values.sort(dim=1, descending=True, stable=True)  # (B,M)
        return sorted_values[:, :count], columns[:, :count]

    if count:
        best, columns = values.topk(count, 1)  # (B,count)
        # The choice is unique if the chosen values strictly decrease and only one value in each row equals the last
        # chosen one. Comparisons with NaN are False, so a choice that contains NaN never counts as unique.
        strictly_decreases = (best[:, :-1] > best[:, 1:]).all()  # ()
        last_chosen = best[:, -1:]  # (B,1)
        n_equal_to_last = torch.count_nonzero(values == last_chosen)  # ()
        is_unique = strictly_decreases & (n_equal_to_last <= len(values))  # ()
        if bool(is_unique):
            return best, columns

    # If there are ties, choose by 64-bit keys, which are all distinct. The upper half of a key contains the bits of the
    # float. Interpreted as integers, the bits of positive floats are in ascending order and those of negative floats in
    # descending order, so all bits of negative floats except the sign are flipped. The lower half is larger for earlier
    # columns.
    last_column = values.shape[1] - 1
    numbers = values.nan_to_num(nan=INFINITY, posinf=INFINITY, neginf=-INFINITY)  # (B,M)
    bits = numbers.view(torch.int32)  # (B,M)
    sign = bits >> 31  # (B,M): all ones for negative floats, else zero
    ordered_bits = bits ^ (sign & 0x7FFFFFFF)  # (B,M)
    keys = ordered_bits.long() << 32  # (B,M)
    keys += torch.arange(last_column, -1, -1, device=values.device)
    best_keys, _ = keys.topk(count, 1)  # (B,count)
    columns = last_column - (best_keys & 0xFFFFFFFF)  # (B,count)
    return values.gather(1, columns), columns
