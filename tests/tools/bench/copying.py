"""Whether a model copies texts longer than those it was trained on: `python -m tests.tools.bench.copying ntm --seed 1`.

The copy task of Graves, Wayne and Danihelka 2014, section 4.1, as running text: random symbols, a delimiter, the same
symbols, and the end. Only what stands behind the delimiter is trained and counted. A batch has texts of one length, of
1 to 10 symbols, in no order: where short texts came first, one machine of three kept them otherwise than in a row.
"""

import argparse
import time

import torch
from torch import Tensor

from nmtkit.core.settings import parse
from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.vocabulary import SPECIALS
from nmtkit.models.base import VocabularySizes
from nmtkit.models.language.rnn_lm import RnnLM, RnnLMConfig
from nmtkit.zoo.ntm import Ntm, NtmConfig

SYMBOLS = 8
FIRST, DELIMITER = len(SPECIALS), len(SPECIALS) + SYMBOLS
SETTINGS: dict[str, dict[str, object]] = {
    "ntm": {
        "embedding_size": 16,
        "controller": "feedforward",
        "hidden_size": 64,
        "memory_slots": 64,
        "memory_width": 8,
        "dropout": 0.0,
    },
    "rnn_lm": {"hidden_size": 26, "layers": 1, "dropout": 0.0},
}
"""Models of about 6,000 weights each."""
LONGEST = 10
"""Symbols of the longest text of training."""


def build(kind: str) -> Ntm | RnnLM:
    sizes = VocabularySizes({"tgt": DELIMITER + 1})
    if kind == "ntm":
        return Ntm(parse(NtmConfig, SETTINGS[kind], kind), sizes)
    return RnnLM(parse(RnnLMConfig, SETTINGS[kind], kind), sizes)


def copies(length: int, count: int, draw: torch.Generator) -> Batch:
    """Texts of so many symbols, and their copies."""
    symbols = torch.randint(FIRST, DELIMITER, (count, length), generator=draw)
    texts = torch.cat([symbols, torch.full((count, 1), DELIMITER), symbols], 1)
    return Batch(targets=Targets.of_texts(texts.tolist()))


def log_probs_of_copies(model: Ntm | RnnLM, batch: Batch, length: int) -> tuple[Tensor, Tensor]:
    """What the model says behind the delimiter, `(B,length+1,V)`, and what stands there, `(B,length+1)`."""
    return model(batch)[:, length + 1 :], batch.targets.ids[:, length + 1 :]


@torch.no_grad()
def right(model: Ntm | RnnLM, length: int, count: int = 200) -> tuple[float, float]:
    """Of copies never seen: the share of right symbols and ends, and of copies without a mistake."""
    batch = copies(length, count, torch.Generator().manual_seed(1_000_000 + length))
    log_probs, wanted = log_probs_of_copies(model, batch, length)
    hits = log_probs.argmax(-1) == wanted
    return float(hits.double().mean()), float(hits.all(1).double().mean())


def train(model: Ntm | RnnLM, updates: int, seed: int, every: int = 100) -> None:
    """Adam at 0.003, gradients clipped to a norm of 1, batches of 32 texts."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    draw = torch.Generator().manual_seed(seed)
    mean, began = 3.0, time.process_time()
    for update in range(1, updates + 1):
        length = int(torch.randint(1, LONGEST + 1, (), generator=draw))
        log_probs, wanted = log_probs_of_copies(model, copies(length, 32, draw), length)
        loss = -log_probs.gather(2, wanted[:, :, None]).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, update / 50, 5 - 5 * update / updates)
        optimizer.step()
        mean = 0.95 * mean + 0.05 * loss.item()
        if update % every == 0:
            seconds = time.process_time() - began
            print(f"{update} updates, {seconds:.0f} s: loss {mean:.3f}", flush=True)


def main() -> None:
    """Trains one model, and prints how it copies."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kind", choices=[*SETTINGS])
    options.add_argument("--updates", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    torch.manual_seed(given.seed)
    model = build(given.kind)
    print(f"{given.kind}: {sum(one.numel() for one in model.parameters()):,} weights")
    train(model, given.updates, given.seed)
    for length in (2, 5, 8, 10, 11, 12, 15, 18, 20):
        print(
            "{} symbols: {:.1%} of symbols, {:.1%} of copies".format(length, *right(model, length))
        )


if __name__ == "__main__":
    main()
