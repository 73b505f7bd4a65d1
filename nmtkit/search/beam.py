"""Beam search over one batch; greedy search is beam 1.

Everything a step decides stays on the device, in tensors; nothing is read back but, now and then, which sentences are
done. Which hypothesis continues which is kept as back-pointers, followed once at the end.
"""

from torch import Tensor

from nmtkit.data.batch import Batch
from nmtkit.models.base import Seq2Seq
from nmtkit.search.choose import Choose, choose_best
from nmtkit.search.config import SearchConfig
from nmtkit.search.engine import Engine
from nmtkit.search.trace import Hypothesis


def beam_search(
    model: Seq2Seq,
    batch: Batch,
    config: SearchConfig,
    n_best: int = 1,
    need_attention: bool = False,
    prefix: Tensor | None = None,
    choose: Choose = choose_best,
) -> list[list[Hypothesis]]:
    """Translates every sentence of the batch.

    Each step looks at the 2K best continuations of a sentence's K hypotheses. Those among the first K that end in EOS
    are finished; the K best of the others go on. With `first_k` a sentence is done when K hypotheses are finished: to
    stop with the first one costs BLEU, because short hypotheses finish first. With `exact` it is done when `n_best`
    are finished and no unfinished one could still overtake the last of them, even if it cost nothing from here to the
    length limit. Hypotheses that reach the limit are returned as not finished, behind all finished ones.

    Of equal scores the better parent's comes first, then the smaller id's. So the sentences of a batch do not influence
    each other: not even by the number of their unknown words, which makes the distributions of all of them wider.

    Args:
        model: any model, in eval mode; it is not changed.
        batch: B sentences, on the model's device; targets are not read.
        config: how to search.
        n_best: hypotheses to return for each sentence, at most `beam_size`.
        need_attention: whether to return attention, and p_gen, as well.
        prefix: ids that the translations must begin with `(B,P)`, padded on the right with PAD; its own log-probability
            counts. It may end in EOS: then the translation is given, and only scored.
        choose: another way to choose the hypotheses to go on with.

    Returns:
        For each sentence its hypotheses, best first. At least one; fewer than `n_best` only where no more exist.

    Raises:
        RecipeError: `n_best` is more than `beam_size`, or a coverage penalty is asked of a model without attention.
        CheckpointError: the model gives log-probabilities that are not numbers.
    """
    waiting = [(range(batch.size), batch)]
    engine = Engine(model, config, n_best, need_attention, choose)
    found = dict(engine.run(lambda *_: waiting.pop() if waiting else None, prefix))
    return [found[number] for number in range(batch.size)]
