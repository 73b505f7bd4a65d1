"""Constituency trees: in Penn form, and in the linear form that a sequence model writes.

Penn form is that of the Penn Treebank (Marcus et al. 1993): `(S (NP (DT the) (NN cat)) (VP (VBZ sleeps)) (. .))`.
Linear form is that of Vinyals et al. 2015, "Grammar as a Foreign Language": brackets are tokens, a closing one has its
label, and a placeholder stands for each word: `(S (NP XX XX )NP (VP XX )VP . )S`. The paper has XX for every part of
speech. Here punctuation keeps its own, since brackets are scored without it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NoReturn

from nmtkit.core.errors import DataError, shorten

PLACEHOLDER = "XX"
PUNCTUATION = frozenset([",", ":", "``", "''", ".", "?", "!"])
"""The parts of speech that EVALB deletes."""
ROOTS = frozenset(["", "TOP", "S1"])
"""Labels of a root that only holds a sentence."""
TRACE = "-NONE-"
MAX_DEPTH = 200
_TOKEN = re.compile(r"[()]|[^\s()]+")
_ESCAPES = {"(": "-LRB-", ")": "-RRB-"}


@dataclass(frozen=True)
class Tree:
    """A constituent, or a word with its part of speech as the label."""

    label: str
    children: tuple["Tree", ...] = ()
    word: str | None = None
    """None: a constituent, which has children."""

    @property
    def has_tag(self) -> bool:
        """Whether a word's label says more than the placeholder, or the word itself, does."""
        return self.label not in (PLACEHOLDER, self.word)

    def leaves(self) -> Iterator["Tree"]:
        """The words, from left to right."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.leaves()

    def words(self) -> list[str]:
        """The text of the words."""
        return [leaf.word or "" for leaf in self.leaves()]

    def penn(self) -> str:
        """Penn form, on one line; a bracket within a word is written -LRB- or -RRB-."""
        if self.word is None:
            return f"({self.label} {' '.join(child.penn() for child in self.children)})"
        return f"({self.label} {re.sub('[()]', lambda found: _ESCAPES[found[0]], self.word)})"

    def linear(self, keep_tags: bool = False) -> str:
        """Linear form, with the parts of speech as they are, or a placeholder for all but those of punctuation."""
        if self.word is not None:
            return self.label if keep_tags or self.label in PUNCTUATION else PLACEHOLDER
        return f"({self.label} {' '.join(child.linear(keep_tags) for child in self.children)} ){self.label}"

    def with_words(self, words: Sequence[str]) -> "Tree":
        """The same tree over other words; DataError unless there are as many."""
        if len(words) != (count := sum(1 for _ in self.leaves())):
            sentence = shorten(" ".join(words))
            raise DataError(
                f"a tree of {count} words does not fit a sentence of {len(words)}: {sentence}"
            )
        return self._filled(iter(words))

    def _filled(self, words: Iterator[str]) -> "Tree":
        if self.word is not None:
            return replace(self, word=next(words))
        return replace(self, children=tuple(child._filled(words) for child in self.children))

    def plain(self) -> "Tree | None":
        """Without traces and what they leave empty, functions of labels (NP-SBJ) and an outer root; None: no word."""
        if self.word is not None:
            return None if self.label == TRACE else self
        children = tuple(
            child for child in (one.plain() for one in self.children) if child is not None
        )
        if self.label in ROOTS and len(children) == 1 and children[0].word is None:
            return children[0]
        # The first character may be a sign, as of -LRB-.
        label = self.label[:1] + re.split("[-=]", self.label[1:])[0]
        return Tree(label or "TOP", children) if children else None


def read_penn(text: str, place: str) -> Iterator[Tree]:
    """The trees of a text in Penn form, one after the other, with line breaks anywhere; DataError names the place."""
    tokens, at = _TOKEN.findall(text), 0
    while at < len(tokens):
        tree, at = _read_bracket(tokens, at, 0, place)
        if tree.word is not None:
            _refuse(place, f"the word {tree.word!r} outside of any constituent")
        yield tree


def _read_bracket(tokens: Sequence[str], at: int, depth: int, place: str) -> tuple[Tree, int]:
    """The tree whose opening bracket is token `at`, and where it ends."""

    def next_is(*wanted: str) -> bool:
        return at < len(tokens) and tokens[at] in wanted

    if not next_is("("):
        _refuse(place, f"{tokens[at]!r} outside of any bracket")
    if depth >= MAX_DEPTH:
        _refuse(place, f"more than {MAX_DEPTH} brackets deep")
    names = list(takewhile(lambda token: token not in "()", tokens[at + 1 : at + 4]))
    at += 1 + len(names)
    children: list[Tree] = []
    while len(names) < 2 and next_is("("):
        child, at = _read_bracket(tokens, at, depth + 1, place)
        children.append(child)
    if not next_is(")"):
        _refuse(
            place,
            f"{tokens[at]!r} in place of a bracket"
            if at < len(tokens)
            else "brackets that nothing closes",
        )
    if not children and len(names) != 2:
        _refuse(
            place, "a bracket that holds neither constituents nor a part of speech and one word"
        )
    return (
        Tree("".join(names), tuple(children)) if children else Tree(names[0], word=names[1])
    ), at + 1


def read_linear(line: str, place: str) -> Tree:
    """The tree of a line in linear form, with empty words; DataError names the place and says why there is none."""
    stack: list[tuple[str, list[Tree]]] = []
    done: Tree | None = None
    for token in line.split():
        if done is not None:
            _refuse(place, f"{token!r} behind the end of the tree")
        if is_opening(token):
            if len(stack) >= MAX_DEPTH:
                _refuse(place, f"more than {MAX_DEPTH} brackets deep")
            stack.append((token[1:], []))
        elif not stack:
            _refuse(place, f"{token!r} outside of any bracket")
        elif is_closing(token):
            label, children = stack.pop()
            if label != token[1:] or not children:
                _refuse(
                    place, f"{token!r} closes {f'({label}' if children else 'an empty bracket'}"
                )
            tree = Tree(label, tuple(children))
            if stack:
                stack[-1][1].append(tree)
            else:
                done = tree
        else:
            stack[-1][1].append(Tree(token, word=""))
    if done is None:
        _refuse(place, f"{len(stack)} brackets that nothing closes" if stack else "no tree")
    return done


def read_tree(line: str, place: str) -> Tree:
    """The tree of a line in either form."""
    if not line.rstrip().endswith(")"):
        return read_linear(line, place)
    trees = list(read_penn(line, place))
    if len(trees) != 1:
        _refuse(place, f"{len(trees)} trees on one line")
    return trees[0]


def is_opening(token: str) -> bool:
    """Whether a token of linear form opens a constituent: `(NP`."""
    return token.startswith("(") and len(token) > 1


def is_closing(token: str) -> bool:
    """Whether a token of linear form closes one: `)NP`."""
    return token.startswith(")") and len(token) > 1


def _refuse(place: str, fault: str) -> NoReturn:
    raise DataError(
        f"{place}: {fault}; trees are like (S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))"
    )
