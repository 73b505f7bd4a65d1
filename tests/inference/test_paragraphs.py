"""Where the sentences of a paragraph end."""

import pytest

from nmtkit.inference.long_texts import join_sentences, looks_like_paragraph, segment_sentences


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("He came. She left! Why? It rained… They stayed.", 5),
        ('"Come in," she said. "Now!" He did. (He had to.) So what?', 5),
        (
            "Dr. Smith met Mrs. J. R. Jones at St. Mary's. They talked, e.g. about the U.S. Army. Then he left.",
            3,
        ),
        ("See Fig. 3 and No. 5 on page 700. No. That is all.", 3),
        ("Am 3. Mai kam er, z.B. mit Prof. Maier. Er blieb bis 1990. Dann ging er.", 3),
        ("Ça va ? « Oui. » Il dort. ¿Qué tal? ¡Bien!", 5),
        ("Wait... he said. and so on.", 1),
        ("3.5 is a number. 7.2 is another.", 2),
        ("今日は。元気ですか？「はい。」そうです。", 4),
        ("यह एक है। वह दो है।", 2),
        ("No end", 1),
        (" \t", 0),
        ("", 0),
    ],
)
def test_sentences(line: str, ends: int) -> None:
    found = segment_sentences(line)
    assert len(found) == ends, found
    assert join_sentences(found) == line.strip(), "nothing is lost"


def test_white_space_between_sentences_becomes_one_space() -> None:
    assert segment_sentences("  One.   Two.\t\tThree. ") == ["One.", "Two.", "Three."]
    assert join_sentences(["One.", "", "Two."]) == "One. Two."


def test_odd_lines_take_no_long_time() -> None:
    for line in ("." * 100_000, "a. " * 30_000, "A. B " * 30_000, " " * 100_000, "。」" * 30_000):
        assert join_sentences(segment_sentences(line)).split() == line.split() or "。" in line


def test_what_looks_like_a_paragraph() -> None:
    sentence = "The old woman does not see the red car in the garden."
    assert not looks_like_paragraph(" ".join([sentence] * 2))
    assert looks_like_paragraph(" ".join([sentence] * 3))
    assert not looks_like_paragraph("No. Yes. Go!")
    assert not looks_like_paragraph("word " * 1000)
