"""Bracket scores against figures worked out by hand, as EVALB counts them."""

import pytest

from nmtkit.core.errors import DataError
from nmtkit.metrics import Options, score_all
from nmtkit.zoo.parsing.scores import brackets, count_brackets
from nmtkit.zoo.parsing.trees import read_tree

NAMES = ["bracket-precision", "bracket-recall", "bracket-f1", "bracket-exact"]
GOLD = "(S (NP (DT the) (NN man)) (VP (VBD saw) (NP (DT a) (NN dog)) (PP (IN with) (NP (PRP him)))) (. .))"
ATTACHED = "(S (NP (DT the) (NN man)) (VP (VBD saw) (NP (NP (DT a) (NN dog)) (PP (IN with) (NP (PRP him))))) (. .))"


def scores(outputs: list[str], references: list[str]) -> list[float]:
    return [one.value for one in score_all(outputs, [references], NAMES, Options())]


def test_the_brackets_of_a_tree_by_hand() -> None:
    # words from 0: the man saw a dog with him; the full stop is deleted, so that S ends at 7
    assert brackets(read_tree(GOLD, ""), frozenset([7])) == {
        ("S", 0, 7): 1,
        ("NP", 0, 2): 1,
        ("VP", 2, 7): 1,
        ("NP", 3, 5): 1,
        ("PP", 5, 7): 1,
        ("NP", 6, 7): 1,
    }


def test_an_attachment_costs_one_bracket_of_precision() -> None:
    # the output has one bracket more, NP from 3 to 7: 6 of 7 are right, and all 6 of the reference are found
    assert count_brackets(ATTACHED, GOLD, "") == (6, 7, 6, False)
    assert scores([ATTACHED], [GOLD]) == pytest.approx([100 * 6 / 7, 100.0, 100 * 12 / 13, 0.0])


def test_sums_are_over_all_sentences() -> None:
    # 6 of 7 and 6 in the first, 2 of 2 and 2 in the second: 8 of 9 in all, and 8 of 8
    short = "(S (NP (NN dogs)))"
    assert scores([ATTACHED, short], [GOLD, short]) == pytest.approx(
        [100 * 8 / 9, 100.0, 100 * 16 / 17, 50.0]
    )


@pytest.mark.parametrize(
    ("output", "reference", "counts"),
    [
        pytest.param("(TOP (S (NP (NN a))))", "(S1 (S (NP (NN a))))", (2, 2, 2), id="roots"),
        pytest.param(
            "( (S (NP (NN a))) )", "(S (NP (NN a)))", (2, 2, 2), id="a root without a label"
        ),
        pytest.param("(S (NP-SBJ=2 (NN a)))", "(S (NP (NN a)))", (2, 2, 2), id="functions"),
        pytest.param(
            "(S (PRT (NN a)) (NN b))", "(S (ADVP (NN a)) (NN b))", (2, 2, 2), id="PRT and ADVP"
        ),
        pytest.param("(S (NN a) (NP (-NONE- *)))", "(S (NN a))", (1, 1, 1), id="traces"),
        pytest.param(
            "(S (NP (NN a) (, ,)) (NN b))",
            "(S (NP (NN a)) (, ,) (NN b))",
            (2, 2, 2),
            id="a comma's place",
        ),
        pytest.param(
            "(S (NN a) (X (XX ,)))", "(S (NN a) (, ,))", (1, 1, 1), id="tags are the reference's"
        ),
        pytest.param(
            "(S (S (S (NN a))))", "(S (S (NN a)))", (2, 3, 2), id="equal brackets match one each"
        ),
        pytest.param(
            "(S (NP (NN a) (NN b)))", "(S (NP (NN a)) (NN b))", (1, 2, 2), id="another end"
        ),
        pytest.param(
            "(S (VP (NN a)) (NN b))", "(S (NP (NN a)) (NN b))", (1, 2, 2), id="another label"
        ),
        pytest.param("(S (NN a))", "(S (NP (NN a)) (NN b))", (0, 0, 2), id="other words"),
        pytest.param(
            "(S (NP (NN b)) (NN a))", "(S (NP (NN a)) (NN b))", (0, 0, 2), id="as many other words"
        ),
        pytest.param(
            "(S (NP (NN A)) (NN B))", "(S (NP (NN a)) (NN b))", (2, 2, 2), id="another case"
        ),
        pytest.param("(S XX", "(S (NP (NN a)) (NN b))", (0, 0, 2), id="no tree"),
        pytest.param("(S (NP XX )NP XX )S", "(S (NP (NN a)) (NN b))", (2, 2, 2), id="linear form"),
    ],
)
def test_what_counts(output: str, reference: str, counts: tuple[int, int, int]) -> None:
    assert count_brackets(output, reference, "line 1")[:3] == counts


@pytest.mark.parametrize(
    ("output", "exact"), [("(TOP (NN yes))", 100.0), ("(TOP (NN yes) (NN yes))", 0.0), ("yes", 0.0)]
)
def test_where_there_are_no_brackets_only_a_tree_over_the_words_is_exact(
    output: str, exact: float
) -> None:
    assert scores([output], ["(TOP (NN yes))"])[3] == exact


def test_of_several_references_the_nearest_counts() -> None:
    assert [one.value for one in score_all([ATTACHED], [[GOLD], [ATTACHED]], NAMES, Options())] == [
        100.0
    ] * 4


def test_a_reference_that_is_no_tree_is_refused() -> None:
    with pytest.raises(DataError, match="line 1 of the references: there is no tree"):
        scores(["(S XX )S"], [""])
