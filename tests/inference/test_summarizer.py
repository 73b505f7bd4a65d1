"""Copying from text to text: unknown words come through, and who says from where; long articles in windows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from nmtkit import ParagraphTranslator, Summarizer
from nmtkit.core.errors import DataError
from nmtkit.data.tokenizers.tokenizers import Tokenizers
from nmtkit.decoding.settings import BeamConfig, change_search
from nmtkit.inference.constraints.requests import Request
from nmtkit.inference.inputs import SourceLine
from nmtkit.inference.result import (
    CopiedSpan,
    Translation,
    copied_positions,
    copied_spans,
    moses_line,
)
from nmtkit.inference.streaming.job_queue import Job, JobQueue
from nmtkit.inference.translator import Translator
from tests.inference.untrained import imported, learned, marian
from tests.support.copy_model import CopyModel

KNOWN = ["the dog sees the old man .", "the man , who is old , sleeps ."]
NAMES = "Zyx sees the dog , Zyx Abc ."


WORDS = learned(KNOWN)


def copier(
    pair: Tokenizers = WORDS,
    search: dict[str, object] | None = None,
    limit: int | None = None,
    p_gen: float = 0.2,
) -> Translator:
    config = change_search(BeamConfig(), {"beam_size": 3, **(search or {})})
    model = CopyModel(len(pair.tgt.vocabulary), p_gen)
    return Translator(model, pair, config, batch_tokens=30, max_source_tokens=limit)


LINES = ["Zyx sleeps .", "", KNOWN[0], NAMES, "Def , Abc , Zyx sees Ghi .", "   ", "Abc"]


@pytest.mark.parametrize(
    "pair",
    [
        WORDS,
        learned(KNOWN, joint=False),
        learned(KNOWN, "char", vocab_size=60),
        learned(KNOWN, "bpe", vocab_size=40),
    ],
    ids=["word", "two-vocabularies", "char", "bpe"],
)
def test_unknown_words_come_through(pair: Tokenizers) -> None:
    """Characters that a subword vocabulary lacks are copied as words are."""
    lines = [*LINES, "Zyx sees 漢字 ."]
    assert copier(pair).translate(lines) == [line.strip() for line in lines]


def test_who_copied_what_by_hand() -> None:
    """The word whose turn it is has 0.9 of the attention, the other four words 0.025 each."""
    ((found,),) = copier().search(["Zyx sees the dog Zyx"], need_attention=True)
    assert found.text == "Zyx sees the dog Zyx"
    assert found.p_gen == pytest.approx([0.2] * 6)
    assert found.copied == [0, 1, 2, 3, 4]
    size = len(WORDS.tgt.vocabulary)
    expected = [0.8 * 0.925, *[0.8 * 0.9 + 0.2 / (size - 1)] * 3, 0.8 * 0.925, 0.8 * 0.9]
    assert found.token_log_probs == pytest.approx([math.log(one) for one in expected])
    assert found.attention is not None
    assert found.attention.shape == (6, 6)
    (alone,), (quiet,) = (
        copier().search(["Zyx sees"], need_copies=True),
        copier().search(["Zyx sees"]),
    )
    assert (alone[0].copied, alone[0].attention) == ([0, 1], None)
    assert (quiet[0].copied, quiet[0].p_gen, quiet[0].text) == (None, None, "Zyx sees")


def test_copied_is_what_copying_made_more_likely_than_generating() -> None:
    attention = np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.1, 0.8, 0.1], [0.1, 0.8, 0.1]])
    # Word 7 stands at 0 and 2, word 20 at 1. Copying gives 0.7 and 0.7 times 1 - p_gen, then 0.8 times it.
    ids, p_gen = [7, 7, 20, 9], [0.5, 0.5, 0.5, 0.0]
    for total, decided in ((0.69, True), (0.71, False)):
        log_probs = [math.log(total), math.log(total), math.log(0.4), math.log(0.1), 0.0]
        found = copied_positions(ids, log_probs, [*p_gen, 0.5], attention, [7, 20, 7])
        assert found == [0 if decided else None, 2 if decided else None, 1, None]
    assert copied_positions([], [], [], np.zeros((0, 3)), [7, 20, 7]) == []


def test_spans_are_in_a_row_on_both_sides() -> None:
    source = ["▁the", "▁old", "▁man", ",", "▁Zyx", "s", "▁sleeps", "."]
    target = ["▁Zyx", "s", "▁and", "▁the", "▁old", "▁sleeps", ".", "."]
    spans = copied_spans(WORDS.tgt, target, source, [4, 5, None, 0, 1, 6, 7, 7])
    assert spans == [
        CopiedSpan("Zyx s", (0, 2), (4, 6), (3, 4)),
        CopiedSpan("the old", (3, 5), (0, 2), (0, 2)),
        CopiedSpan("sleeps.", (5, 7), (6, 8), (4, 5)),
        CopiedSpan(".", (7, 8), (7, 8), (4, 5)),
    ]
    assert copied_spans(WORDS.tgt, [], source, []) == []


def test_a_word_that_neither_vocabulary_nor_source_has() -> None:
    ((found,),) = copier().search(["Zyx sees"])
    (text,) = copier().rescore(["Zyx sees"], ["Abc sees"])
    assert text.tokens == ["▁<unk>", "▁sees"]
    with pytest.raises(
        DataError,
        match=r"pair 4: the token '▁Zyx' is not in the model's vocabulary or in the source",
    ):
        copier().rescore(["Abc sees"], [found], first=4)


def test_forbidding_unknown_leaves_the_words_of_the_source() -> None:
    # A gate that always generates, evenly: all words are alike, and UNK comes first.
    assert (
        "<unk>"
        in copier(p_gen=1.0, search={"beam_size": 1, "min_length": 1}).translate(["Zyx sees"])[0]
    )
    assert copier(search={"forbid_unknown": True}).translate([NAMES]) == [NAMES]


def test_no_repeated_ngram_counts_unknown_words_apart() -> None:
    ruled = copier(search={"no_repeat_ngram": 2})
    assert ruled.translate(["Zyx Abc Zyx Def Zyx Ghi"]) == ["Zyx Abc Zyx Def Zyx Ghi"]
    (text,) = ruled.translate(["Zyx Abc Zyx Abc"])
    pairs = list(zip(text.split(), text.split()[1:], strict=False))
    assert len(set(pairs)) == len(pairs)


def test_a_long_article_is_cut_and_says_so() -> None:
    translator = copier(limit=4)
    found = [best[0] for best in translator.search([NAMES, "Zyx sees Abc", "", KNOWN[0]])]
    assert [one.text for one in found] == [
        "Zyx sees the dog",
        "Zyx sees Abc",
        "",
        "the dog sees the",
    ]
    assert [one.src_left_out for one in found] == [4, 0, 0, 3]
    assert found[0].src_tokens == ["▁Zyx", "▁sees", "▁the", "▁dog"]
    (again,) = translator.rescore([NAMES], [found[0]])
    assert again.log_prob == pytest.approx(found[0].log_prob)


def test_unknown_words_of_a_cut_article_are_replaced_by_what_was_read() -> None:
    translator = copier(
        limit=3, p_gen=1.0, search={"beam_size": 1, "max_length": 4}
    ).replacing_unknown()
    ((found,),) = translator.search(["Zyx sees Abc , Def Ghi Jkl"])
    # at last it looks at the end of what it read, and that is no word
    assert found.text == "Zyx sees Abc Zyx"
    assert [one.source_token for one in found.replaced] == [0, 1, 2, 0]


ARTICLE = "Zyx sees the dog. The dog sleeps. Abc is a man, who is old. Def sees Abc."


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (100, [ARTICLE]),
        (9, ["Zyx sees the dog. The dog sleeps.", "Abc is a man, who is old.", "Def sees Abc."]),
        (8, ["Zyx sees the dog.", "The dog sleeps.", "Abc is a man, who is", "old. Def sees Abc."]),
        (1, ARTICLE.split()),
    ],
)
def test_windows_are_whole_sentences(size: int, expected: list[str]) -> None:
    found = Summarizer(copier(), size).cut(ARTICLE)
    assert found == expected
    assert " ".join(found) == ARTICLE
    assert all(len(WORDS.src.encode(window)) <= max(size, 2) for window in found)


def test_summaries_of_windows_are_joined() -> None:
    translator = copier(limit=3)
    summarizer = Summarizer(translator, 9)
    first, empty, last = summarizer.search([ARTICLE, " ", "Zyx sees"], need_copies=True)
    assert first.text == ARTICLE
    assert [one.src_left_out for one in first.parts] == [0, 0, 0]
    assert (empty.text, empty.parts) == ("", [])
    assert [one.copied for one in last.parts] == [[0, 1]]
    assert summarizer.summarize([ARTICLE, "", "Zyx sees"]) == [ARTICLE, "", "Zyx sees"]
    assert translator.max_source_tokens == 3


@pytest.mark.parametrize(
    ("make", "tag"),
    [(marian, ">>en_XX<<"), (lambda: imported({"src": {"before": [], "after": []}}), "en_XX")],
)
def test_a_language_that_is_named_before_a_line_is_that_of_all_its_sentences(
    make: Callable[[], Tokenizers], tag: str
) -> None:
    translator = ParagraphTranslator(copier(make()))
    for line, expected in (
        (">>en_XX<< A dog. A man. No.", [tag] * 3),
        ("A dog. A man.", []),
        (">>en_XX<<", []),
    ):
        (found,) = translator.search([line])
        assert [
            token for part in found.parts for token in part.src_tokens if "en_XX" in token
        ] == expected


def test_a_model_that_does_not_copy_is_not_asked_what_it_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CopyModel.Config, "copies", False)  # the batch then has no extended ids
    ((found,),) = copier().search(["Zyx sees"], need_copies=True)
    assert found.src_tokens == ["▁<unk>", "▁sees"]
    assert found.copied is None


def jobs_of(sources: Sequence[SourceLine]) -> list[Job]:
    jobs = []
    for number, source in enumerate(sources):
        job = Job(number, source.request or Request(source.text))
        job.source = source
        jobs.append(job)
    return jobs


def test_long_articles_are_searched_by_many_at_a_time() -> None:
    lengths = [400, 19, 399, *[29] * 10, *[399] * 60, 2999]  # their end is one more
    sources = [SourceLine([4] * length, [], [4] * length) for length in lengths]

    def fed(
        translator: Translator, hypotheses: int = 5, max_sentences: int | None = None
    ) -> list[list[int]]:
        waiting = JobQueue(translator, torch.device("cpu"), 1, hypotheses, max_sentences)
        waiting.put(jobs_of(sources))
        waiting.close()
        return [[job.number for job in jobs] for jobs in iter(waiting.next_batch, [])]

    translator = Translator(copier().model, WORDS, BeamConfig())
    batches = fed(translator)
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    assert batches[0] == [73, 0, 2, 13, 14]  # 3,000 tokens take the room of 187
    assert batches[1] == list(range(15, 47))
    assert batches[2:] == [[*range(47, 73), *range(3, 9)], [*range(9, 13), 1]]
    # four times as many where there is no beam
    assert [len(batch) for batch in fed(translator, 1)] == [20, 54]
    assert [len(batch) for batch in fed(translator, 2)] == [10, 64]
    assert [len(batch) for batch in fed(translator, 33)][:2] == [2, 16]
    # With a maximum, the budget of 4,096 tokens is not exceeded to have more sentences.
    assert [len(batch) for batch in fed(translator, 5, max_sentences=20)] == [1, *[10] * 7, 3]
    asked = fed(replace(translator, batch_tokens=1024))
    assert max((lengths[batch[0]] + 1) * len(batch) for batch in asked[1:]) <= 1024


@pytest.mark.parametrize(
    ("lengths", "asking", "calls", "taken"),
    [
        # Sources of nearly one length fill free slots.
        ((19, 15, 14, 13, 5), None, [(1, 20), (10, 20), (10, 20), None], [[0], [1, 2], [], [3, 4]]),
        # A source with a request fills none.
        ((9, 9, 9, 9), 2, [(1, 10), (9, 10), (9, 10), None], [[0], [1], [], [2, 3]]),
    ],
    ids=["lengths", "request"],
)
def test_what_fills_free_slots(
    lengths: tuple[int, ...],
    asking: int | None,
    calls: list[tuple[int, int] | None],
    taken: list[list[int]],
) -> None:
    """A call is a refill, of so many slots and columns, or None for a new batch."""
    request = Request("four", must=("four",))
    sources = [SourceLine([4] * length, [], [4] * length) for length in lengths]
    if asking is not None:
        sources[asking] = replace(sources[asking], request=request)
    waiting = JobQueue(
        Translator(copier().model, WORDS, BeamConfig()), torch.device("cuda"), decoders=1
    )
    waiting.put(jobs_of(sources))
    waiting.close()
    found = [waiting.next_batch() if call is None else waiting.refill(*call) for call in calls]
    assert [[job.number for job in jobs] for jobs in found] == taken


def test_a_line_of_moses_has_four_fields_whatever_the_text_holds() -> None:
    found = Translation("a ||| b | c", -0.5, -2.25, ["a", "|||", "b", "|", "c"], [], [])
    assert (
        moses_line(7, found)
        == "7 ||| a &#124;&#124;&#124; b | c ||| LogProb= -2.250000 Length= 5 ||| -0.500000"
    )
