"""Whether a model looks up what it has just named: `python -m tests.tools.bench.recall look_generate_update --seed 1`.

Associative recall: the source is a row of pairs, each a key and its value, the target some of the keys, each with its
value behind it. Which keys are asked for stands in the target alone. So a look that does not know the last word cannot
choose the value, as in the order of Bahdanau et al. 2015, appendix A.1; in that of their program it can. Only values
are trained and counted. One who knows the values of the source, but not to which key each belongs, is right in 1 of
`PAIRS` cases, or a little more.
"""

import argparse
import time
from collections.abc import Iterator

import torch

from nmtkit.core.settings import parse
from nmtkit.data.batches.batch import Batch, collate
from nmtkit.data.tokenizers.vocabulary import SPECIALS
from nmtkit.models.base import VocabularySizes
from nmtkit.models.rnn.rnnsearch import RnnSearch, RnnSearchConfig

SYMBOLS, PAIRS, ASKED = 20, 6, 6
FIRST_KEY, FIRST_VALUE = len(SPECIALS), len(SPECIALS) + SYMBOLS
SIZES = VocabularySizes({"src": FIRST_VALUE + SYMBOLS, "tgt": FIRST_VALUE + SYMBOLS}, shared=True)
SETTINGS = {
    "embedding_size": 24,
    "hidden_size": 48,
    "attention_size": 48,
    "maxout_size": 24,
    "dropout": 0.0,
}


def questions(count: int, draw: torch.Generator) -> Batch:
    """Sources of pairs whose keys differ, and of each the keys that are asked for, with their values."""
    keys = torch.rand(count, SYMBOLS, generator=draw).argsort(1)[:, :PAIRS] + FIRST_KEY
    values = torch.randint(SYMBOLS, (count, PAIRS), generator=draw) + FIRST_VALUE
    asked = torch.randint(PAIRS, (count, ASKED), generator=draw)
    source, target = (
        torch.stack([keys, values], 2),
        torch.stack([keys.gather(1, asked), values.gather(1, asked)], 2),
    )
    return collate(source.flatten(1).tolist(), target.flatten(1).tolist())


def train(model: RnnSearch, updates: int, seed: int) -> Iterator[tuple[int, float]]:
    """Adam at 0.003, gradients clipped to a norm of 1, 64 questions a batch; every so often the mean loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    draw, mean = torch.Generator().manual_seed(seed), 3.0
    for update in range(1, updates + 1):
        batch = questions(64, draw)
        loss = -model(batch)[:, 1:-1:2].gather(2, batch.targets.ids[:, 1:-1:2, None]).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, 2 - 2 * update / updates)
        optimizer.step()
        mean = 0.98 * mean + 0.02 * loss.item()
        if update % 250 == 0:
            yield update, mean


@torch.no_grad()
def right(model: RnnSearch) -> tuple[float, float]:
    """Of questions never seen: the share of right values, and of looks that meet the pair that is asked for most."""
    batch = questions(500, torch.Generator().manual_seed(1_000_000))
    output, memory = model.read(batch, True)
    assert output.attention is not None
    values = model.predict(output, memory)[:, 1:-1:2].argmax(2) == batch.targets.ids[:, 1:-1:2]
    pairs = output.attention[:, 1:-1:2, :-1].argmax(2) // 2
    looks = batch.inputs.ids.gather(1, 2 * pairs) == batch.targets.ids[:, :-1:2]
    return float(values.double().mean()), float(looks.double().mean())


def main() -> None:
    """Trains one model, and prints how it answers."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("order", choices=["appendix", "look_generate_update"])
    options.add_argument("--readout-state", choices=["previous", "current"], default="previous")
    options.add_argument("--updates", type=int, default=2000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    torch.manual_seed(given.seed)
    chosen = SETTINGS | {"order": given.order, "readout_state": given.readout_state}
    model, began = (
        RnnSearch(parse(RnnSearchConfig, chosen, given.order), SIZES),
        time.process_time(),
    )
    for update, loss in train(model, given.updates, given.seed):
        print(f"{update} updates, {time.process_time() - began:.0f} s: loss {loss:.3f}", flush=True)
    print("{}: {:.1%} of values, {:.1%} of looks".format(given.order, *right(model)))


if __name__ == "__main__":
    main()
