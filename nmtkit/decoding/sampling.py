"""Samples words with random numbers that are hashes of (seed, line, sample, step, word).

The words drawn for a line therefore do not depend on its batch, slot or process. Such random numbers are called
counter-based: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". The hash function is SplitMix64:
Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".

A word is drawn with the Gumbel trick: the word with the largest sum of log-probability and Gumbel noise is a sample
from the distribution. The trick is applied twice: first to blocks of words and their total probabilities, then to the
words of the block that was drawn. The result is still exact, but only a few words need noise. Inverting the cumulative
distribution would need even less noise, but then rounding errors, which differ between batches, could change which rare
word is drawn.

Notation as in `nmtkit.decoding.beam_search`.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from nmtkit.data.tokenizers.vocabulary import EOS
from nmtkit.decoding.candidates import BLOCK, Candidates
from nmtkit.decoding.rules import INFINITY
from nmtkit.decoding.settings import SamplingConfig
from nmtkit.models.base import Memory

INCREMENT = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9 - (1 << 64)
SECOND_MULTIPLIER = 0x94D049BB133111EB - (1 << 64)
"""Constants of SplitMix64, as signed 64-bit integers."""
FIRST_WORD_COUNTER = 1 << 32
"""Counter of word 0. Smaller counters belong to blocks, so that no counter occurs twice in a draw."""
TOP_P_FIRST_WORDS = 512
"""Number of most likely words that are sorted first. Their total probability usually reaches `top_p`, so that the other
words need not be sorted."""


def sample_step(
    log_probs: Tensor,
    scores: Tensor,
    lines: Tensor,
    positions: Tensor,
    config: SamplingConfig,
    memory: Memory,
) -> Candidates:
    """Draws one continuation of each hypothesis or, in the first step, K continuations of the single hypothesis.

    Args:
        log_probs: log-probabilities of all continuations after applying the rules `(N,X)`.
        scores: log-probabilities of the hypotheses `(B,W)`; minus infinity for samples that have ended.
        lines: the number of each sentence within the whole search `(B,)`.
        positions: the position of each sentence `(B,)`.
        config: the search settings.
        memory: the encoded sources.
    """
    n_sentences, width = scores.shape
    device = lines.device

    # One key for each sample and step.
    samples = torch.arange(config.samples, device=device)  # (K,)
    seeds = torch.full_like(lines, config.seed)  # (B,)
    line_keys = splitmix64(seeds, lines)  # (B,)
    sample_keys = splitmix64(line_keys[:, None], samples)  # (B,K)
    keys = splitmix64(sample_keys, positions[:, None])  # (B,K)
    keys = keys.view(len(log_probs), -1)  # (N,K/W): K per hypothesis in the first step, then one

    truncated = keep_top_k(log_probs / config.temperature, config.top_k)  # (N,X)
    truncated = keep_top_p(truncated, config.top_p)  # (N,X)
    truncated = keep_epsilon(truncated, config.epsilon)  # (N,X)

    if memory.shortlist is None:
        drawn = draw(truncated, keys)  # (N,K/W)
    else:
        index = memory.shortlist.index
        full = expand_shortlist(truncated, index.words, len(index.columns))  # (N,X)
        drawn = index.columns_of(draw(full, keys))  # (N,K/W)

    columns = drawn.view(n_sentences, -1)  # (B,K)
    parents = torch.arange(width, device=device).repeat_interleave(config.samples // width)  # (K,)
    parents = parents.expand(n_sentences, -1)  # (B,K)
    token_log_probs = log_probs.gather(1, drawn).view(columns.shape)  # (B,K)
    sample_scores = scores.gather(1, parents) + token_log_probs  # (B,K)
    is_end = columns == EOS  # (B,K)
    return Candidates(
        columns=columns,
        parents=parents,
        scores=sample_scores,
        ended=is_end & (sample_scores > -INFINITY),
        survivors=samples.expand(n_sentences, -1),
        survivor_scores=sample_scores.masked_fill(is_end, -INFINITY),
    )


def splitmix64(keys: Tensor, counters: Tensor) -> Tensor:
    """Returns outputs `(...)` of SplitMix64 with initial states `keys` at indices `counters`; both are int64."""
    mixed = keys + (counters + 1) * INCREMENT  # (...)
    mixed = mixed ^ _shift_right(mixed, 30)  # (...)
    mixed = mixed * FIRST_MULTIPLIER  # (...)
    mixed = mixed ^ _shift_right(mixed, 27)  # (...)
    mixed = mixed * SECOND_MULTIPLIER  # (...)
    return mixed ^ _shift_right(mixed, 31)


def gumbel_noise(keys: Tensor, counters: Tensor) -> Tensor:
    """Returns standard Gumbel noise `(...)` computed with `splitmix64`, in float64 if the device supports it."""
    dtype = torch.float64
    bits = 52
    if keys.device.type == "mps":
        dtype = torch.float32
        bits = 23
    high_bits = _shift_right(splitmix64(keys, counters), 64 - bits)  # (...)
    uniform = (high_bits.to(dtype) + 0.5) * 2.0**-bits  # (...): strictly between 0 and 1
    return uniform.log_().neg_().log_().neg_()  # -log(-log(uniform))


def _shift_right(numbers: Tensor, bits: int) -> Tensor:
    """Shifts right logically: fills with zeros from the left, whereas torch repeats the sign bit."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def draw(log_probs: Tensor, keys: Tensor) -> Tensor:
    """Draws k columns `(N,k)` from each row of `log_probs` `(N,X)`, which need not be normalized.

    `keys` `(N,k)` are the seeds of the draws.
    """
    n_rows, n_columns = log_probs.shape
    device = keys.device
    keys = keys[:, :, None]  # (N,k,1)
    # The last block is padded with columns that cannot be drawn.
    padding = -n_columns % BLOCK
    blocks = pad(log_probs, (0, padding), value=-INFINITY).view(
        n_rows, -1, BLOCK
    )  # (N,blocks,BLOCK)

    # 1. Draw a block according to the total probability of its columns.
    block_log_probs = blocks.logsumexp(2)  # (N,blocks)
    block_counters = torch.arange(blocks.shape[1], device=device)  # (blocks,)
    block_noise = gumbel_noise(keys, block_counters)  # (N,k,blocks)
    noisy_blocks = block_log_probs[:, None] + block_noise  # (N,k,blocks)
    block = noisy_blocks.argmax(2)  # (N,k)

    # 2. Draw a column of this block.
    first_column = block * BLOCK  # (N,k)
    offsets = torch.arange(BLOCK, device=device)  # (BLOCK,)
    columns = first_column[:, :, None] + offsets  # (N,k,BLOCK)
    index = block[:, :, None].expand(-1, -1, BLOCK)  # (N,k,BLOCK)
    column_log_probs = blocks.gather(1, index)  # (N,k,BLOCK)
    column_noise = gumbel_noise(keys, columns + FIRST_WORD_COUNTER)  # (N,k,BLOCK)
    noisy_columns = column_log_probs + column_noise  # (N,k,BLOCK)
    return first_column + noisy_columns.argmax(2)


def expand_shortlist(log_probs: Tensor, words: Tensor, vocabulary_size: int) -> Tensor:
    """Expands shortlisted distributions `(N,X')` to all words `(N,X)`, so that draws do not depend on the shortlist.

    The first V' columns belong to the shortlisted `words` `(V',)`, and the others to words that can be copied.
    """
    n_rows, n_columns = log_probs.shape
    n_words = len(words)
    listed = log_probs[:, :n_words]  # (N,V')
    copied = log_probs[:, n_words:]  # (N,X'-V')
    n_copied = n_columns - n_words
    full = log_probs.new_full((n_rows, vocabulary_size + n_copied), -INFINITY)  # (N,X)
    full[:, vocabulary_size:] = copied
    full.index_copy_(1, words, listed)
    return full


def keep_top_k(log_probs: Tensor, top_k: int) -> Tensor:
    """Sets all but the `top_k` largest values of each row `(N,X)` to minus infinity.

    Values that tie with the smallest of these are also kept. If `top_k` is 0, all values are kept.
    """
    if top_k == 0 or top_k >= log_probs.shape[1]:
        return log_probs
    best, _ = log_probs.topk(top_k, 1)  # (N,k)
    threshold = best[:, -1:]  # (N,1)
    return log_probs.masked_fill(log_probs < threshold, -INFINITY)


def keep_top_p(log_probs: Tensor, top_p: float) -> Tensor:
    """Keeps the smallest set of most likely words in each row `(N,X)` whose total probability reaches `top_p`.

    The other words are set to minus infinity. Probabilities are normalized over the row. The best word is always kept,
    and so are words that tie with the least likely word of the set. If `top_p` is 1, all words are kept.
    Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration".
    """
    if top_p == 1.0:
        return log_probs
    log_total = log_probs.logsumexp(1, keepdim=True)  # (N,1)
    # If only some words are sorted, the host must check whether they suffice, which would make it wait for an
    # accelerator.
    sorts_all = log_probs.device.type != "cpu" or log_probs.shape[1] <= TOP_P_FIRST_WORDS
    if sorts_all:
        ordered, _ = log_probs.sort(1, descending=True)  # (N,X)
        threshold, _ = _top_p_threshold(ordered, log_total, top_p)  # (N,1)
    else:
        first_words, _ = log_probs.topk(TOP_P_FIRST_WORDS, 1)  # (N,first)
        threshold, is_reached = _top_p_threshold(first_words, log_total, top_p)  # (N,1), (N,)
        rows = (~is_reached).nonzero()[:, 0]  # (M,): rows that need more words
        ordered, _ = log_probs[rows].sort(1, descending=True)  # (M,X)
        threshold[rows], _ = _top_p_threshold(ordered, log_total[rows], top_p)
    return log_probs.masked_fill(log_probs < threshold, -INFINITY)


def _top_p_threshold(ordered: Tensor, log_total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Returns the smallest score needed to reach `top_p` `(N,1)`, and whether the scores in `ordered` suffice `(N,)`.

    `ordered` `(N,*)` contains the best scores of each row in descending order; `log_total` `(N,1)` is the logsumexp of
    the complete row.
    """
    probabilities = (ordered - log_total).exp()  # (N,*)
    mass = probabilities.cumsum(1)  # (N,*)
    no_mass = torch.zeros_like(mass[:, :1])  # (N,1)
    # Total probability of the better words.
    mass_before = mass - mass.diff(dim=1, prepend=no_mass)  # (N,*)
    is_superfluous = mass_before >= top_p  # (N,*)
    needed = ordered.masked_fill(is_superfluous, INFINITY)  # (N,*)
    threshold = needed.amin(1, keepdim=True)  # (N,1)
    is_reached = mass[:, -1] >= top_p  # (N,)
    return threshold, is_reached


def keep_epsilon(log_probs: Tensor, epsilon: float) -> Tensor:
    """Sets words with a normalized probability below `epsilon` to minus infinity in each row `(N,X)`.

    The best word is always kept. If `epsilon` is 0, all words are kept. Hewitt, Manning and Liang 2022, "Truncation
    Sampling as Language Model Desmoothing".
    """
    if epsilon == 0.0:
        return log_probs
    log_total = log_probs.logsumexp(1, keepdim=True)  # (N,1)
    best = log_probs.amax(1, keepdim=True)  # (N,1)
    threshold = (log_total + math.log(epsilon)).minimum(best)  # (N,1)
    return log_probs.masked_fill(log_probs < threshold, -INFINITY)
