"""Span corruption and denoising of texts: the papers' examples, rates, and what is never lost."""

import random
import re

import numpy as np
import pytest
import torch
from torch import Tensor

from nmtkit.cli import guide
from nmtkit.core.errors import DataError
from nmtkit.data.batches.batch import Batch, Targets
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.data.tokenizers.vocabulary import BOS, EOS, PAD
from nmtkit.training.config import TrainingConfig
from nmtkit.training.losses.corruption import hide_spans, infill, permute_sentences, random_spans
from nmtkit.training.losses.objective import Objective, build_objectives
from tests.support.seeds import moved

WORDS = [f"w{number}" for number in range(40)]
CONFIG = TokenizerConfig(
    kind="whitespace", vocab_size=200, specials=["<mask>"], sentinels=100, normalization="none"
)
TOKENIZERS = Tokenizers(CONFIG, {"tgt": WordTokenizer.learn(CONFIG, [" ".join([*WORDS, "."])])})
VOCABULARY = TOKENIZERS.tgt.vocabulary


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(moved(seed))


def some_texts(rows: int, longest: int, seed: int = 1) -> list[list[int]]:
    draw = random.Random(moved(seed))
    first, end = VOCABULARY.n_specials, len(VOCABULARY)
    return [
        [draw.randrange(first, end) for _ in range(draw.randint(0, longest))] for _ in range(rows)
    ]


def objective(name: str, **settings: object) -> Objective:
    (built,) = build_objectives(
        TrainingConfig.model_validate({"max_updates": 1, "objectives": {name: settings}})
    )
    return built


def corrupted(name: str, texts: list[list[int]], seed: int = 1, **settings: object) -> Batch:
    return objective(name, **settings).corrupt(
        Batch(targets=Targets.of_texts(texts)), generator(seed), TOKENIZERS
    )


def rows_of(ids: Tensor) -> list[list[int]]:
    """The rows without what is negative, PAD and EOS."""
    return [[one for one in row if one > 0 and one != EOS] for row in ids.tolist()]


def sound(ids: Tensor, mask: Tensor) -> None:
    """A row is its tokens, EOS, and padding."""
    for row, length in zip(ids.tolist(), mask.sum(1).tolist(), strict=True):
        assert row[length - 1] == EOS
        assert set(row[length:]) <= {PAD}
        assert PAD not in row[:length]


def test_the_spans_of_figure_2_of_t5() -> None:
    text = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]
    hidden = torch.tensor([[word in ("for", "inviting", "last") for word in text]])
    ids, sentinels = torch.arange(10, 20)[None], torch.tensor([90, 91, 92])
    names = dict(zip(range(10, 20), text, strict=True)) | {90: "<X>", 91: "<Y>", 92: "<Z>"}
    read, written = hide_spans(ids, torch.tensor([10]), hidden, sentinels)
    told = [" ".join(names[one] for one in rows_of(part)[0]) for part in (read, written)]
    assert told == ["Thank you <X> me to your party <Y> week", "<X> for inviting <Y> last <Z>"]
    with pytest.raises(
        DataError,
        match="hiding 2 spans in a text of 10 tokens requires 3 sentinels, but the tokenizer has 2",
    ):
        hide_spans(ids, torch.tensor([10]), hidden, sentinels[:2])


def test_the_sentinels_of_t5_are_enough_for_as_many_tokens_as_the_guide_says() -> None:
    (said,) = re.findall(r"100 sentinels are enough for ([\d,]+) tokens", guide.page("pretraining"))
    lengths = torch.tensor([int(said.replace(",", "")), 2_000])
    hidden = random_spans(lengths, 0.15, 3.0, generator(1))
    spans = (hidden & ~torch.nn.functional.pad(hidden[:, :-1], (1, 0))).sum(1)
    assert (spans < 100).tolist() == [True, False]


def test_spans_are_hidden_at_the_rate_with_the_mean_length_and_anywhere() -> None:
    lengths = torch.randint(200, 300, (4096,), generator=generator())
    hidden = random_spans(lengths, 0.15, 3.0, generator(2))
    total, begins = int(lengths.sum()), hidden & ~torch.nn.functional.pad(hidden[:, :-1], (1, 0))
    assert total > 1_000_000
    assert not (hidden & (torch.arange(hidden.shape[1]) >= lengths[:, None])).any()
    assert int(hidden.sum()) / total == pytest.approx(0.15, abs=0.001)
    assert int(hidden.sum()) / int(begins.sum()) == pytest.approx(3.0, abs=0.02)
    assert torch.equal(hidden.sum(1), (lengths * 0.15).round().long()), "as many in every text"
    # The first is never hidden, the last always, and between them no place is preferred.
    shares = hidden[:, 20:180].double().mean(0)
    assert float(shares.std()) < 2 * (0.15 * 0.85 / len(lengths)) ** 0.5
    # The pieces are uniform: of 3 hidden tokens in 2 spans as many are 1 + 2 as 2 + 1.
    hidden = random_spans(torch.full((20_000,), 20), 0.15, 1.5, generator(3))
    assert {int(row.sum()) for row in hidden} == {3}
    assert float(hidden[:, 18].double().mean()) == pytest.approx(0.5, abs=0.02)


def test_span_corruption_loses_nothing_of_a_text() -> None:
    texts = [[], [140], *some_texts(60, 90)]
    batch = corrupted("span_corruption", texts)
    sound(batch.inputs.ids, batch.inputs.mask)
    sound(batch.targets.ids, batch.targets.mask)
    assert batch.targets.shifted[:, 0].tolist() == [BOS] * len(texts)
    assert torch.equal(
        batch.targets.shifted[:, 1:][batch.targets.mask[:, 1:]],
        batch.targets.ids[:, :-1][batch.targets.mask[:, 1:]],
    )
    sentinels = VOCABULARY.ids(CONFIG.special_tokens[1:])
    for text, read, written in zip(
        texts, rows_of(batch.inputs.ids), rows_of(batch.targets.ids), strict=True
    ):
        spans: dict[int, list[int]] = {}
        for one in written:
            if one in sentinels:
                spans[one] = []
            else:
                spans[[*spans][-1]].append(one)
        assert [*spans] == sentinels[: len(spans)], "each once, in order"
        assert [one for one in read if one in sentinels] == [*spans][:-1]
        assert spans.pop([*spans][-1]) == [], "nothing is hidden after the end"
        assert [one for mark in read for one in spans.get(mark, [mark])] == text


def test_denoising_hides_spans_of_poisson_lengths_and_loses_no_kept_word() -> None:
    lengths = torch.randint(0, 120, (20_000,), generator=generator())
    ids = torch.arange(10, 130).expand(len(lengths), -1)
    hidden = (lengths * 0.3).round().long()
    read = infill(ids, lengths, hidden, 3.0, 5, generator(2))
    masks = (read == 5).sum(1)
    kept = (read >= 10).sum(1)
    assert torch.equal(kept, lengths - hidden)
    steps = read.masked_fill(read < 10, 0).cummax(1).values
    assert bool(((steps[:, 1:] > steps[:, :-1]) | (read[:, 1:] < 10)).all()), "in their order"
    # Spans are drawn until their sum is reached: so many steps of a Poisson walk to 30 and more.
    long = hidden >= 30
    walks = np.random.default_rng(moved(1)).poisson(3.0, (2000, 60)).cumsum(1)
    expected = np.mean([(walks < int(goal)).sum(1).mean() + 1 for goal in hidden[long][:200]])
    assert float(masks[long][:200].double().mean()) == pytest.approx(float(expected), rel=0.03)
    # Of 3 hidden of 10 words, where no span but one of all three is, it begins at any of 8 places.
    one = infill(
        ids[:, :10], torch.full((len(ids),), 10), torch.full((len(ids),), 3), 30.0, 5, generator(3)
    )
    assert one.shape[1] == 8
    places = np.bincount((one == 5).long().argmax(1).numpy(), minlength=8)
    # chi-square, 7 degrees, p = 0.001
    assert float(((places - len(ids) / 8) ** 2 / (len(ids) / 8)).sum()) < 24.3


def test_sentences_are_permuted_whole() -> None:
    ids = torch.tensor([[11, 12, 9, 21, 9, 31, 32, 33, PAD], [11, 9, 21, 22, 23, 9, 31, 9, 41]])
    lengths = torch.tensor([8, 9])
    sentences = [["11 12 9", "21 9", "31 32 33"], ["11 9", "21 22 23 9", "31 9", "41"]]
    seen: list[set[str]] = [set(), set()]
    for seed in range(300):
        for row, text in enumerate(permute_sentences(ids, lengths, [9], generator(seed)).tolist()):
            seen[row].add(" ".join(map(str, text[: lengths[row]])))
    for row, orders in enumerate(seen):
        assert len(orders) == (6, 24)[row], "all orders"
        for order in orders:
            rest = order
            for sentence in sentences[row]:
                assert sentence in rest
                rest = rest.replace(sentence, "", 1)
            assert not rest.strip()


def test_denoising_writes_the_text_as_it_was() -> None:
    texts = [[], [140], *some_texts(60, 90)]
    batch = corrupted("denoising", texts)
    sound(batch.inputs.ids, batch.inputs.mask)
    assert torch.equal(batch.targets.ids, Targets.of_texts(texts).ids)
    assert torch.equal(batch.targets.shifted, Targets.of_texts(texts).shifted)
    (mask,) = VOCABULARY.ids(["<mask>"])
    unordered = corrupted("denoising", texts, rate=0)
    assert [sorted(row) for row in rows_of(unordered.inputs.ids)] == [sorted(row) for row in texts]
    assert rows_of(unordered.inputs.ids) != texts
    hidden = sum(
        len(text) - len([one for one in row if one != mask])
        for text, row in zip(texts, rows_of(batch.inputs.ids), strict=True)
    )
    assert hidden == sum(round(0.3 * len(text)) for text in texts)
