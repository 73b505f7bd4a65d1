"""The generator of the news corpus: its small language by hand, and what its files promise."""

import gzip
import json
import random
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import generate
import pytest
from news import corpus, draw, earnings, goals, writing

from nmtkit.data.tokenizers.tokenizer import WORD_START, TokenizerConfig, WordTokenizer
from nmtkit.data.tokenizers.vocabulary import SPECIALS, Vocabulary
from nmtkit.metrics import score_all, split_sentences

pytestmark = pytest.mark.slow  # as those of the grammar
DATA = Path(generate.__file__).parent
PARTS = ("train", "valid", "test")


@cache
def rows(part: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / "demo-news" / f"{part}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def some(part: str) -> list[dict[str, Any]]:
    """Enough rows to see every template many times."""
    return rows(part)[:1500]


def tokens(text: str) -> list[str]:
    """The tokens that a model with a word vocabulary sees, with the mark at the beginnings of words."""
    return WordTokenizer(TokenizerConfig(kind="word"), Vocabulary(SPECIALS)).tokens(text)


# The small language of the templates.


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("the board met .  it was a  egg", "The board met. It was an egg"),
        (
            "a 8-3 win, a 11-2 win, a 18-year plan, a 81-80 win",
            "An 8-3 win, an 11-2 win, an 18-year plan, an 81-80 win",
        ),
        ("a 110-88 win, a 180-day plan", "A 110-88 win, a 180-day plan"),
        ('"we won." he left', '"we won." He left'),
        ("the Ashbury Bears's trip and Otgate's", "The Ashbury Bears' trip and Otgate's"),
    ],
    ids=["spaces", "an before numbers", "a before numbers", "after a quotation", "possessive"],
)
def test_tidy(given: str, written: str) -> None:
    assert writing.tidy(given) == written


def test_a_name_is_full_at_its_first_mention_only() -> None:
    name = draw.Name("Vera Lindholm", "Lindholm", "she", "her")
    story = writing.Story({"coach": name}, draw.Draw(random.Random(1), 0))
    assert (
        story.tell("{coach} knew [what {coach.he} wanted].")
        == "Vera Lindholm knew what she wanted."
    )
    assert (
        story.tell("{coach} won, and {coach.full} said so.")
        == "Lindholm won, and Vera Lindholm said so."
    )


def test_every_alternative_is_told() -> None:
    story = writing.Story({}, draw.Draw(random.Random(1), 0))
    told = Counter(story.tell("x[a|b[c|d]|]y.") for _ in range(900))
    assert set(told) == {"Xay.", "Xbcy.", "Xbdy.", "Xy."}
    assert 230 < told["Xay."] < 370


def test_percentages_are_right() -> None:
    random_draw = draw.Draw(random.Random(2), 0)
    for rises in (True, False):
        for percent in ("1.1", "12.4", "39.8"):
            now, before = earnings.amounts(random_draw, 1010, 9890, percent, rises, 1)
            change = 100 * (float(now.replace(",", "")) / float(before.replace(",", "")) - 1)
            assert round(abs(change), 1) == pytest.approx(float(percent), abs=0.051)
            assert (change > 0) == rises


def test_goals_add_up() -> None:
    for seed in range(200):
        random_draw = draw.Draw(random.Random(seed), 0)
        played = goals.play(random_draw, 3, 2, women=True)
        assert Counter(goal.side for goal in played) == {"one": 3, "two": 2}
        assert played[-1].state == "3-2"
        found = goals.hero(played, drawn=False)
        if found:
            name, deed = found
            number = sum(goal.scorer == name for goal in played)
            assert number == {"scored twice": 2, "scored three goals": 3}.get(deed, 1)
            assert all(goal.side == "one" for goal in played if goal.scorer == name)


# The files.


def test_committed_files_equal_a_regeneration() -> None:
    first = 100
    parts = corpus.generate(generate.SEED, {**corpus.PARTS, "train": first})
    for part, examples in parts.items():
        made = [
            {"kind": one.kind, "article": one.article, "summary": one.summary} for one in examples
        ]
        committed = [
            {key: row[key] for key in ("kind", "article", "summary")} for row in rows(part)
        ]
        assert made == (committed[:first] if part == "train" else committed), part


@pytest.mark.parametrize(
    ("corpus", "folder", "count"),
    [
        ("news", "demo-news", 3),
        ("en-fr", "demo-en-fr", 12),
        ("trees", "demo-trees", 6),
        ("scenes", "demo-scenes", 9),
    ],
)
def test_two_runs_write_the_same_bytes(
    corpus: str, folder: str, count: int, tmp_path: Path
) -> None:
    for run in ("a", "b"):
        options = [
            "--corpus",
            corpus,
            "--seed",
            "3",
            "--train",
            "40",
            "--valid",
            "8",
            "--test",
            "10",
        ]
        generate.main([*options, "--out", str(tmp_path / run)])
    first, again = (
        {path.name: path.read_bytes() for path in (tmp_path / run).iterdir()} for run in ("a", "b")
    )
    assert first == again
    assert len(first) == count
    name = next(name for name in first if name.startswith("train") and name.endswith(".gz"))
    committed = gzip.decompress((DATA / folder / name).read_bytes())
    assert gzip.decompress(first[name]).splitlines()[0] != committed.splitlines()[0]


@pytest.mark.parametrize(
    "options", [["--out", "x"], ["--corpus", "news", "--words"], ["--words"]], ids=" ".join
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        generate.main(options)
    assert "--corpus" in capsys.readouterr().err


def test_no_article_and_no_summary_occurs_twice() -> None:
    for field in ("article", "summary"):
        seen = Counter(row[field] for part in PARTS for row in rows(part))
        assert max(seen.values()) == 1


def test_lengths() -> None:
    articles = [len(writing.words(row["article"])) for part in PARTS for row in rows(part)]
    assert (min(articles) >= 80, max(articles) <= 200) == (True, True)
    assert 110 < sum(articles) / len(articles) < 130
    for part in PARTS:
        assert all(5 <= len(split_sentences(row["article"])) <= 20 for row in rows(part))
        assert all(len(split_sentences(row["summary"])) == 2 for row in rows(part))


def test_unseen_is_just_what_the_training_set_has_not() -> None:
    seen = {
        word
        for row in rows("train")
        for text in (row["article"], row["summary"])
        for word in writing.words(text)
    }
    for part in ("valid", "test"):
        for row in rows(part):
            assert row["unseen"] == list(
                dict.fromkeys(w for w in writing.words(row["summary"]) if w not in seen)
            )
        assert sum(len(row["unseen"]) for row in rows(part)) > 3 * len(rows(part))
        assert sum(bool(row["unseen"]) for row in rows(part)) > 0.95 * len(rows(part))


def test_every_fact_of_a_summary_stands_in_the_article() -> None:
    """As the token that a model would copy: with the mark at the beginning of a word, or without it."""
    starts = {
        WORD_START + word for word in ("In", "It", "On", "The")
    }  # words of the summary itself, or of "the Museum"
    for part in PARTS:
        for row in some(part):
            facts = {
                token
                for token in tokens(row["summary"])
                if re.match(r"[A-Z\d]", token.lstrip(WORD_START))
            }
            assert facts - set(tokens(row["article"])) <= starts, row


# What no teacher of English would let pass, looked for in all the text.


@pytest.mark.parametrize(
    "fault",
    [
        r"[\[\]{}|]",
        r"\ban (?!hour)[^aeioAEIO\d$]",
        r"\ba [aeioAEIO]",
        r"\ba \$?8\d{0,2}\b(?!\d)",
        r"\ban (?!8|11\b|18\b)\d",
        r"  | [.,;:]|[.,;:]{2}|^ | $",
        r"[.!?]\"? [a-z]",
        r"s's\b",
        r"\b(\w+) \1\b",
        r"\bminus minus\b|\$\D|\d\$",
        r"\b1 (goals|points|people|homes|jobs)\b",
    ],
)
def test_text_has_no_such_fault(fault: str) -> None:
    pattern = re.compile(fault)
    texts = (row[field] for part in PARTS for row in some(part) for field in ("article", "summary"))
    assert [
        text[max(0, found.start() - 30) : found.end() + 30]
        for text in texts
        for found in pattern.finditer(text)
    ] == []


def test_sentences_begin_with_a_capital_or_a_number() -> None:
    for part in PARTS:
        for row in some(part):
            for sentence in [*split_sentences(row["article"]), *split_sentences(row["summary"])]:
                start = sentence.strip('"')[0]
                assert start.isupper() or start.isdigit(), sentence
                assert sentence.rstrip('"')[-1] == ".", sentence


def test_the_first_sentences_are_not_the_summary() -> None:
    leads = [" ".join(split_sentences(row["article"])[:2]) for row in rows("test")]
    score = score_all(leads, [[row["summary"] for row in rows("test")]], ["rougeL"])[0]
    assert 25 < score.value < 40
