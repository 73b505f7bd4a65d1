"""Pretraining speed: nmtkit's loop, corruption included, beside the same networks in bare torch on its batches."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmtkit import console
from nmtkit.checkpoints.manager import CheckpointManager
from nmtkit.core import device as devices
from nmtkit.core.errors import NmtkitError
from nmtkit.data.batch import Batch, collate
from nmtkit.data.tokenizer import TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers import Tokenizers
from nmtkit.data.vocabulary import SPECIALS, Vocabulary
from nmtkit.language_models.bert import Bert, BertConfig, EncoderConfig
from nmtkit.language_models.electra import Electra, ElectraConfig
from nmtkit.models.base import VocabularySizes
from nmtkit.training.config import TrainingConfig
from nmtkit.training.events import Step
from nmtkit.training.loop import train
from nmtkit.training.objectives.objective import build_objectives

from .timing import time_in_turns

WORDS, TEXTS, LENGTH = 8000, 32, 64
"""V; texts in a batch, and words in a text."""
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "masked words": {"masked_words": {}},
    "masked words, next sentence": {"masked_words": {}, "next_sentence": 1.0},
    "masked words, replaced tokens": {"masked_words": {"mask": 1}, "replaced_tokens": 50.0},
}
SHAPES: dict[str, dict[str, int]] = {
    "toy": {"hidden_size": 16, "feed_forward_size": 16, "heads": 4, "layers": 1},
    "small": {},
    "base": {"hidden_size": 768, "feed_forward_size": 3072, "heads": 12, "layers": 12},
}


class TextStream:
    """Random texts, corrupted as a training does: the same ones from every new stream."""

    epoch = 0

    def __init__(self, training: TrainingConfig) -> None:
        config = TokenizerConfig(kind="whitespace", specials=["<mask>"])
        tokens = [*SPECIALS, "<mask>", *map(str, range(WORDS - len(SPECIALS) - 1))]
        self.tokenizers = Tokenizers(config, {"tgt": WordTokenizer(config, Vocabulary(tokens, ["<mask>"]))})
        self.objectives, self.numbers = build_objectives(training), count()

    def __next__(self) -> Batch:
        generator = torch.Generator().manual_seed(next(self.numbers))
        batch = collate(None, torch.randint(5, WORDS, (TEXTS, LENGTH), generator=generator).tolist())
        for objective in self.objectives:
            batch = objective.corrupt(batch, generator, self.tokenizers)
        return batch

    def state(self) -> dict[str, Any]:
        return {"epoch": 0}

    def restore(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError


class BareEncoder(nn.Module):
    """torch's own layers over embeddings, which another encoder may share, and the head that tells masked words."""

    def __init__(self, config: EncoderConfig, embeddings: nn.ModuleDict | None = None) -> None:
        super().__init__()
        width, size, rate = config.hidden_size, config.embedding_size or config.hidden_size, config.dropout
        vectors = {"words": nn.Embedding(WORDS, size), "places": nn.Embedding(config.max_positions, size)}
        vectors |= {"segments": nn.Embedding(2, size)}
        self.embeddings = embeddings or nn.ModuleDict({**vectors, "norm": nn.LayerNorm(size, config.norm_epsilon)})
        for one in vectors.values():
            nn.init.normal_(one.weight, std=0.02)
        self.dropout, self.widen = nn.Dropout(rate), nn.Linear(size, width) if size != width else nn.Identity()
        layer = nn.TransformerEncoderLayer(
            width, config.heads, config.feed_forward_size, rate, "gelu", config.norm_epsilon, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.told = nn.Sequential(nn.Linear(width, size), nn.GELU(), nn.LayerNorm(size, config.norm_epsilon))
        self.bias = nn.Parameter(torch.zeros(WORDS))

    def forward(self, ids: Tensor, segments: Tensor, padding: Tensor) -> Tensor:
        of = self.embeddings
        entering = of["words"](ids) + of["places"].weight[: ids.shape[1]] + of["segments"](segments)
        states: Tensor = self.layers(self.widen(self.dropout(of["norm"](entering))), src_key_padding_mask=padding)
        return states

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(self.told(states), self.embeddings["words"].weight, self.bias)


class BarePretraining(nn.Module):
    """BERT with or without its second head, or ELECTRA."""

    def __init__(self, config: BertConfig | ElectraConfig) -> None:
        super().__init__()
        self.encoder = BareEncoder(config)
        self.generator = BareEncoder(config.generator, self.encoder.embeddings) if "generator" in dir(config) else None
        width = config.hidden_size
        self.dense, self.two, self.one = nn.Linear(width, width), nn.Linear(width, 2), nn.Linear(width, 1)

    def loss(self, batch: Batch) -> Tensor:
        read, chosen = batch.inputs, (batch.labels >= 0).nonzero(as_tuple=True)
        segments, padding = torch.zeros_like(read.ids) if read.segments is None else read.segments, ~read.mask
        states = (self.generator or self.encoder)(read.ids, segments, padding)
        logits = (self.generator or self.encoder).logits(states[chosen])
        loss = F.cross_entropy(logits, batch.labels[chosen])
        if batch.next_sentence is not None:
            loss = loss + F.cross_entropy(self.two(torch.tanh(self.dense(states[:, 0]))), batch.next_sentence)
        if self.generator is None:
            return loss
        drawn = torch.multinomial(logits.detach().softmax(-1), 1).squeeze(1)
        ids = read.ids.index_put(chosen, drawn)
        was = read.ids.index_put(chosen, batch.labels[chosen])
        replaced = self.one(F.gelu(self.dense(self.encoder(ids, segments, padding)))).squeeze(-1)
        return loss + 50 * F.binary_cross_entropy_with_logits(replaced[read.mask], (ids != was)[read.mask].float())


def bare_blocks(config: BertConfig | ElectraConfig, training: TrainingConfig, updates: int) -> Iterator[float]:
    """Forward, backward, a step of fused Adam; batches are made before the clock starts. Gives the last loss."""
    network = BarePretraining(config).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=training.lr, fused=True)
    stream = TextStream(training)
    batches = [next(stream) for _ in range(20)]
    for number in count(1):
        optimizer.zero_grad(set_to_none=True)
        loss = network.loss(batches[number % len(batches)])
        torch.autograd.backward(loss)
        optimizer.step()
        if number % updates == 0:
            yield float(loss.detach())


def our_blocks(
    config: BertConfig | ElectraConfig, training: TrainingConfig, updates: int, folder: Path
) -> Iterator[float]:
    """Updates of `nmtkit.training.loop.train`, whose batches are made as they come. Gives the mean loss."""
    sizes, stream = VocabularySizes({"src": WORDS, "tgt": WORDS}, shared=True), TextStream(training)
    model = Electra(config, sizes) if isinstance(config, ElectraConfig) else Bert(config, sizes)
    for event in train(model, stream, training, lambda model: {}, CheckpointManager(folder), torch.device("cpu")):
        if isinstance(event, Step) and event.update % updates == 0:
            yield event.loss


def measure(shape: str, updates: int, rounds: int, threads: int, folder: Path) -> list[dict[str, Any]]:
    """One row an objective: updates a second, and the ratio to bare torch in the same round."""
    rows = []
    for name, objectives in OBJECTIVES.items():
        training = TrainingConfig(
            **objectives, lr=1e-4, precision="fp32", matmul_precision="highest", max_updates=10**9, log_every=updates,
            validate_every=10**9, save_every=10**9,
        )  # fmt: skip
        kind = ElectraConfig if "replaced_tokens" in objectives else BertConfig
        further = {"next_sentence": True} if "next_sentence" in objectives else {}
        config = kind.model_validate({**DROPOUT, **SHAPES[shape], **further})
        devices.prepare(torch.device("cpu"), "highest", threads)
        ours = our_blocks(config, training, updates, folder / name)
        jobs = {"nmtkit": partial(next, ours), "bare torch": partial(next, bare_blocks(config, training, updates))}
        timings = time_in_turns(jobs, rounds, torch.device("cpu"))
        begun = [timings[engine].results[0] for engine in jobs]
        if not math.isclose(*begun, rel_tol=0.2):
            raise NmtkitError(f"{name}: the losses {begun} are not those of one network")
        ratios = [b / a for a, b in zip(timings["nmtkit"].seconds, timings["bare torch"].seconds, strict=True)]
        speeds = {engine: median(timings[engine].per_second(updates)) for engine in jobs}
        rows.append({"objective": name, **speeds, "ratios": ratios})
    return rows


def show(rows: list[dict[str, Any]], shape: str) -> None:
    cells = [
        [row["objective"], f"{row['nmtkit']:.2f}", f"{row['bare torch']:.2f}", f"{median(row['ratios']):.2f}",
         f"{min(row['ratios']):.2f}-{max(row['ratios']):.2f}"]
        for row in rows
    ]  # fmt: skip
    title = (
        f"Pretraining ({shape}), updates a second of {TEXTS} texts of {LENGTH} words, V {WORDS:,}, Adam, dropout 0.1"
    )
    console.table(title, ["objective", "nmtkit", "bare torch", "ratio", "min-max"], cells)
