"""Alignments of every model family are those of its own search; nothing here is trained."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from nmtkit.core.errors import DataError
from nmtkit.inference.inputs import make_batch
from nmtkit.models.base import MODELS, Seq2Seq
from tests.inference.untrained import COPYING, SMALL, learned, untrained
from tests.support.cases import daily

LINES = [
    "Otto opens the window, and Anna sees it.",
    "the dog",
    "Anna",
    "",
    "it sees Otto and the dog and Anna .",
]
BARE = ["Otto opens the window and Anna sees it", "the dog", "it sees Otto and the dog"]

WITH_ATTENTION = [name for name, (kind, _) in SMALL.items() if MODELS.get(kind).has_attention]
LIMITS = {"beam_size": 2, "forbid_unknown": True}  # an untrained model ends at random


def test_every_family_is_asked() -> None:
    families = {name for name in MODELS.names() if issubclass(MODELS.get(name), Seq2Seq)}
    assert {kind for kind, _ in SMALL.values()} == families - {
        "show_and_tell",
        "show_attend_tell",
    }, "but for captions"
    assert len(WITH_ATTENTION) >= 3
    able = {name for name in MODELS.names() if hasattr(MODELS.get(name).Config(), "copying")}
    assert able == {SMALL[name][0] for name in COPYING}


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_align_shows_the_attention_of_the_search(name: str) -> None:
    """Row t is the step that wrote word t. With bare words as tokens, every text is cut as the search built it."""
    translator = untrained(name, learned(BARE), **LIMITS)
    searched = [found[0] for found in translator.search(BARE, need_attention=True)]
    aligned = translator.align(BARE, [best.text for best in searched])
    for line, best, soft in zip(BARE, searched, aligned, strict=True):
        assert best.attention is not None
        assert len(best.tokens) >= 3
        assert soft.src_words == line.split()
        assert soft.tgt_words == best.text.split()
        assert soft.weights == pytest.approx(
            best.attention[: len(best.tokens), :-1].astype(np.float64), abs=1e-5
        )


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_tags_are_read_before_a_source_and_not_aligned(name: str) -> None:
    translator = replace(untrained(name, learned(BARE, specials=["<2de>"])), tags="<2de>")
    texts = [*reversed(BARE)]
    read = translator.rescore(BARE, texts, need_attention=True)
    for one, soft in zip(read, translator.align(BARE, texts), strict=True):
        assert one.attention is not None
        assert soft.weights == pytest.approx(one.attention[:-1, 1:-1].astype(np.float64), abs=1e-5)
    src = translator.encode_sources(BARE[:1])
    batch = make_batch(src, translator.encode_targets(texts[:1], src))
    centres = translator.model.read(batch, need_attention=True)[0].centres
    (drawn,) = translator.pictures(BARE[:1], texts[:1])
    assert [one.centre for one in drawn.windows] == pytest.approx(
        [] if centres is None else centres[0].tolist()
    )
    with pytest.raises(DataError, match="has not learned the tag <2fr>; its tags are: <2de>"):
        replace(translator, tags="<2fr>").align(BARE, texts)


@pytest.mark.parametrize("threads", daily([2, 1]))
@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_aligning_many_is_aligning_each(name: str, threads: int) -> None:
    """With several threads several batches are read at a time."""
    torch.set_num_threads(threads)
    translator = untrained(name, learned(LINES, "bpe", vocab_size=45), **LIMITS)
    targets = [LINES[2], LINES[0], LINES[1], "", LINES[0]]
    together = translator.align(LINES, targets)
    assert [one.weights.shape for one in together] == [(1, 8), (8, 2), (2, 1), (0, 0), (8, 9)]
    for line, target, one in zip(LINES, targets, together, strict=True):
        (alone,) = translator.align([line], [target])
        assert alone.weights == pytest.approx(one.weights, abs=1e-5)


def test_subwords_and_punctuation_stand_apart_on_request() -> None:
    translator = untrained("transformer", learned(["ba ce di fo.", "ba ce."] * 9))
    merged = translator.pictures(["ba ce."])[0]
    apart = translator.pictures(["ba ce."], subwords=True)[0]
    assert merged.src_words == ["ba", "ce.", "</s>"]
    assert len(apart.src_words) > len(merged.src_words)
    assert "".join(apart.src_words[:-1]).replace("\u2581", " ").strip() == "ba ce."
    assert apart.weights.shape == (len(apart.tgt_words), len(apart.src_words))
    assert apart.weights.sum(1) == pytest.approx(np.ones(len(apart.tgt_words)), abs=1e-5)
    assert merged.weights.shape[1] == len(merged.src_words)
