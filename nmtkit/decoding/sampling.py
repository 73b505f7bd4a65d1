"""Sampling: which words are drawn, by random numbers that are a hash of (seed, line, sample, step, word).

So what is drawn for a line does not depend on its batch, slot or process. Such numbers are called counter-based (Salmon
et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"); the hash is that of SplitMix64 (Steele, Lea and Flood
2014).

A word is drawn by Gumbel's trick: the largest of log-probability + Gumbel noise is a draw from the distribution. It is
done first for blocks of words, by the probability of each block, then for the words of the block that was drawn: that
is exact as well, and needs noise for few of the words. Running sums would need less, but their rounding, which differs
from batch to batch, would decide between rare words.

Letters as in `nmtkit.decoding.beam_search`.
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

STEP = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST, SECOND = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
"""The constants of SplitMix64, as signed numbers."""
FIRST_WORD_COUNTER = 1 << 32
"""Where the counters of words begin; before are those of blocks."""
TOP_P_FIRST_WORDS = 512
"""Words that are sorted first: mostly enough to reach `top_p`, and faster than to sort them all."""


def sample_step(
    log_probs: Tensor, scores: Tensor, lines: Tensor, positions: Tensor, config: SamplingConfig, memory: Memory
) -> Candidates:
    """One step of sampling: one continuation of each live hypothesis; in the first step, all from a single one.

    Scores `(B,W)` are minus infinity for samples that have ended; `lines` and `positions` `(B,)` number the sentences
    and their steps.
    """
    n_sentences, width = scores.shape
    samples = torch.arange(config.samples, device=lines.device)  # (K,)
    line_keys = splitmix64(torch.full_like(lines, config.seed), lines)  # (B,)
    sample_keys = splitmix64(line_keys[:, None], samples)  # (B,K)
    keys = splitmix64(sample_keys, positions[:, None])  # (B,K)
    keys_of_rows = keys.view(len(log_probs), -1)  # (N,K/W): all K in the first step, then one

    truncated = keep_top_k(log_probs / config.temperature, config.top_k)  # (N,X)
    truncated = keep_top_p(truncated, config.top_p)
    truncated = keep_epsilon(truncated, config.epsilon)
    if memory.shortlist is None:
        drawn = draw(truncated, keys_of_rows)  # (N,K/W)
    else:
        index = memory.shortlist.index
        whole = expand_shortlist(truncated, index.words, len(index.columns))
        drawn = index.columns_of(draw(whole, keys_of_rows))

    columns = drawn.view(keys.shape)  # (B,K)
    parents = torch.arange(width, device=keys.device).repeat_interleave(config.samples // width)
    parents = parents.expand(n_sentences, -1)  # (B,K)
    scores = scores.gather(1, parents) + log_probs.gather(1, drawn).view(keys.shape)
    is_end = columns == EOS
    return Candidates(
        columns=columns,
        parents=parents,
        scores=scores,
        ended=is_end & (scores > -INFINITY),
        kept=samples.expand(n_sentences, -1),
        kept_scores=scores.masked_fill(is_end, -INFINITY),
    )


def splitmix64(keys: Tensor, counters: Tensor) -> Tensor:
    """Output number `counters` of SplitMix64 from the state `keys`; both int64, they broadcast."""
    mixed = keys + (counters + 1) * STEP
    mixed = (mixed ^ _shifted(mixed, 30)) * FIRST
    mixed = (mixed ^ _shifted(mixed, 27)) * SECOND
    return mixed ^ _shifted(mixed, 31)


def gumbel_noise(keys: Tensor, counters: Tensor) -> Tensor:
    """Standard Gumbel noise by `splitmix64`; float64 where the device has it."""
    dtype, bits = (torch.float32, 23) if keys.device.type == "mps" else (torch.float64, 52)
    uniform = (_shifted(splitmix64(keys, counters), 64 - bits).to(dtype) + 0.5) * 2.0**-bits  # neither 0 nor 1
    return uniform.log_().neg_().log_().neg_()


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: zeros come from the left."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def draw(log_probs: Tensor, keys: Tensor) -> Tensor:
    """Draws columns `(N,k)` of `log_probs` `(N,X)`, normalised or not, with one key for each draw `(N,k)`."""
    rows = pad(log_probs, (0, -log_probs.shape[1] % BLOCK), value=-INFINITY).view(len(log_probs), -1, BLOCK)
    numbers = torch.arange(rows.shape[1], device=keys.device)
    block = (rows.logsumexp(2)[:, None] + gumbel_noise(keys[:, :, None], numbers)).argmax(2)  # (N,k)
    inside = rows.gather(1, block[:, :, None].expand(-1, -1, BLOCK))  # (N,k,BLOCK)
    words = block[:, :, None] * BLOCK + torch.arange(BLOCK, device=keys.device)
    within = (inside + gumbel_noise(keys[:, :, None], words + FIRST_WORD_COUNTER)).argmax(2)
    return block * BLOCK + within


def expand_shortlist(log_probs: Tensor, words: Tensor, size: int) -> Tensor:
    """Gives shortlisted distributions `(N,X')` a column for every word `(N,X)`, so that draws do not depend on it.

    The first columns stand for `words` `(V',)`, the rest for words that only the source has; `size` is V.
    """
    whole = log_probs.new_full((len(log_probs), size + log_probs.shape[1] - len(words)), -INFINITY)
    whole[:, size:] = log_probs[:, len(words) :]
    return whole.index_copy_(1, words, log_probs[:, : len(words)])


def keep_top_k(log_probs: Tensor, top_k: int) -> Tensor:
    """Minus infinity for all but the `top_k` best of each row `(N,X)`; ties with the last of them stay; 0 keeps all."""
    if top_k == 0 or top_k >= log_probs.shape[1]:
        return log_probs
    least = log_probs.topk(top_k, 1)[0][:, -1:]
    return log_probs.masked_fill(log_probs < least, -INFINITY)


def keep_top_p(log_probs: Tensor, top_p: float) -> Tensor:
    """Minus infinity for all but the fewest best of each row `(N,X)` whose probabilities, together, reach `top_p`.

    Probabilities are those of the row after normalisation; the best token always stays, and ties with the last that
    does. 1 keeps all. Holtzman et al. 2020.
    """
    if top_p == 1.0:
        return log_probs
    # To ask an accelerator is to wait for it.
    if log_probs.device.type != "cpu" or log_probs.shape[1] <= TOP_P_FIRST_WORDS:
        least = _last_of_mass(log_probs.sort(1, descending=True)[0], log_probs, top_p)[0]
    else:
        least, reached = _last_of_mass(log_probs.topk(TOP_P_FIRST_WORDS, 1)[0], log_probs, top_p)
        rest = (~reached).nonzero()[:, 0]
        whole = log_probs[rest]
        least[rest] = _last_of_mass(whole.sort(1, descending=True)[0], whole, top_p)[0]
    return log_probs.masked_fill(log_probs < least, -INFINITY)


def _last_of_mass(best: Tensor, log_probs: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The last of the best of each row `(N,*)` that are needed to reach `top_p` `(N,1)`, and whether they do `(N,)`."""
    mass = (best - log_probs.logsumexp(1, keepdim=True)).exp().cumsum(1)
    enough = mass - mass.diff(dim=1, prepend=torch.zeros_like(mass[:, :1])) >= top_p  # the better ones alone reach it
    return best.masked_fill(enough, INFINITY).amin(1, keepdim=True), mass[:, -1] >= top_p


def keep_epsilon(log_probs: Tensor, epsilon: float) -> Tensor:
    """Minus infinity for words less probable than epsilon, after normalisation of each row `(N,X)`; 0 keeps all.

    The best word always stays. Hewitt, Manning and Liang 2022, "Truncation sampling as language model desmoothing".
    """
    if epsilon == 0.0:
        return log_probs
    least = log_probs.logsumexp(1, keepdim=True) + math.log(epsilon)
    return log_probs.masked_fill(log_probs < least.minimum(log_probs.amax(1, keepdim=True)), -INFINITY)
