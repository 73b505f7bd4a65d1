"""Constituency trees in both forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.core.errors import DataError
from nmtkit.zoo.parsing.trees import MAX_DEPTH, Tree, read_linear, read_penn, read_tree

CAT = "(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)) (. .))"
TREEBANK = """
( (S
    (NP-SBJ-1 (DT the) (NN cat) )
    (VP (VBZ seems)
      (S (NP-SBJ (-NONE- *-1) )
        (VP (TO to) (VP (VB sleep)))))
    (. .) ))
(TOP (FRAG=2 (-LRB- -LRB-) (NN cat) (-RRB- -RRB-)))
"""


def test_both_forms_of_a_tree() -> None:
    tree = read_tree(CAT, "here")
    assert tree.linear() == "(S (NP XX XX )NP (VP XX )VP . )S"
    assert tree.linear(keep_tags=True) == "(S (NP DT NN )NP (VP VBZ )VP . )S"
    assert tree.words() == ["the", "cat", "sleeps", "."]
    again = read_linear(tree.linear(keep_tags=True), "here")
    assert again.with_words(tree.words()) == tree
    assert again.with_words(["a", "(dog)", "barks", "!"]).penn() == (
        "(S (NP (DT a) (NN -LRB-dog-RRB-)) (VP (VBZ barks)) (. !))"
    )


def test_a_treebank_loses_traces_functions_and_outer_roots() -> None:
    plain = [tree.plain() for tree in read_penn(TREEBANK, "wsj.mrg")]
    assert [one.penn() for one in plain if one] == [
        "(S (NP (DT the) (NN cat)) (VP (VBZ seems) (S (VP (TO to) (VP (VB sleep))))) (. .))",
        "(FRAG (-LRB- -LRB-) (NN cat) (-RRB- -RRB-))",
    ]
    assert read_tree("(S (NP (-NONE- *)))", "here").plain() is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("(S (NP the cat))", "neither constituents nor a part of speech with one word"),
        ("(S (NP (DT the)) cat)", "'cat' instead of a bracket"),
        ("(S (NP (DT the))", "some brackets are not closed"),
        ("(S)", "neither constituents"),
        ("()", "neither constituents"),
        ("(DT the)", "the word 'the' is outside any constituent"),
        ("the cat", "'the' is outside any bracket"),
        (f"{CAT} {CAT})", "')' is outside any bracket"),
        ("(S " * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} deep"),
    ],
)
def test_what_is_no_penn_form_is_refused(text: str, fault: str) -> None:
    with pytest.raises(DataError, match=r"some\.mrg: ") as caught:
        list(read_penn(text, "some.mrg"))
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "no tree"),
        ("XX", "'XX' is outside any bracket"),
        ("(S XX )NP", "')NP' closes (S"),
        ("(S (NP )NP XX )S", "')NP' closes an empty bracket"),
        ("(S XX )S XX", "'XX' after the end of the tree"),
        ("(S (NP XX", "number of unclosed brackets: 2"),
        ("(S " * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} levels deep"),
    ],
)
def test_what_is_no_linear_form_is_refused(line: str, fault: str) -> None:
    with pytest.raises(DataError, match="line 3: ") as caught:
        read_linear(line, "line 3")
    assert fault in str(caught.value)


def test_a_line_has_one_tree_and_a_sentence_all_its_words() -> None:
    with pytest.raises(DataError, match="2 trees on one line"):
        read_tree(f"{CAT} {CAT}", "here")
    with pytest.raises(
        DataError, match="a tree with 4 words does not match a sentence with 2 words: the cat"
    ):
        read_tree(CAT, "here").with_words(["the", "cat"])


LEAVES = st.builds(
    lambda tag, word: Tree(tag, word=word),
    st.sampled_from(["XX", ".", "NN"]),
    st.sampled_from("abc"),
)
TREES = st.recursive(
    LEAVES,
    lambda below: st.builds(
        Tree,
        st.sampled_from(["S", "NP", "VP-X"]),
        st.lists(below, min_size=1, max_size=4).map(tuple),
    ),
    max_leaves=20,
).filter(lambda tree: tree.word is None)


@given(TREES)
def test_any_tree_comes_back(tree: Tree) -> None:
    assert list(read_penn(tree.penn(), "here")) == [tree]
    assert read_tree(tree.linear(keep_tags=True), "here").with_words(tree.words()) == tree
