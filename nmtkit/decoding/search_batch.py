"""Searches with a single batch: the simplest way to search from Python."""

from dataclasses import replace

from torch import Tensor

from nmtkit.data.batches.batch import Batch
from nmtkit.decoding.beam_search import BeamSearch
from nmtkit.decoding.engine import Engine, OneBatch
from nmtkit.decoding.hypotheses import Hypothesis
from nmtkit.decoding.rules import NO_TARGET_TOKENS, TargetTokens
from nmtkit.decoding.settings import SearchConfig
from nmtkit.models.base import Decoder


def search_batch(
    model: Decoder,
    batch: Batch,
    config: SearchConfig,
    n_best: int = 1,
    need_attention: bool = False,
    prefix: Tensor | None = None,
    tokens: TargetTokens = NO_TARGET_TOKENS,
) -> list[list[Hypothesis]]:
    """Returns the best hypotheses of each sentence in a batch, without refilling slots or capturing graphs.

    Args:
        model: any model, in eval mode.
        batch: the sentences, on any device; its targets are ignored.
        config: the search settings.
        n_best: number of hypotheses to return for each sentence.
        need_attention: whether to return attention and p_gen.
        prefix: the ids that each translation must begin with `(B,P)`, padded on the right with PAD; replaces
            `batch.prefix`. The log-probabilities of these ids count towards the score. A prefix that ends with EOS is
            a complete translation, which is only scored.
        tokens: see `BeamSearch`.

    Returns:
        The hypotheses of each sentence, best first: at least one, and fewer than `n_best` only if no more exist.
    """
    if prefix is not None:
        batch = replace(batch, prefix=prefix)
    search = BeamSearch(model, config, n_best=n_best, need_attention=need_attention, tokens=tokens)
    engine = Engine(search, steps="eager")
    hypotheses = dict(engine.run(OneBatch(batch), refill=False))
    return [hypotheses[number] for number in range(batch.size)]
