"""Constituency trees: in Penn form, and in the linear form that a sequence model generates.

Penn form is the notation of the Penn Treebank (Marcus et al. 1993): `(S (NP (DT the) (NN cat)) (VP
(VBZ sleeps)) (. .))`. Linear form is the notation of Vinyals et al. 2015, "Grammar as a Foreign
Language": brackets are tokens, closing brackets have labels, and a placeholder replaces each word:
`(S (NP XX XX )NP (VP XX )VP . )S`. The paper uses XX for every part of speech. Here punctuation
keeps its tag, because scoring ignores punctuation.
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
"""Labels of a root that only wraps a sentence."""
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
    """The word; None for a constituent, which has children."""

    @property
    def has_tag(self) -> bool:
        """Returns whether a word's label is neither the placeholder nor the word itself."""
        return self.label not in (PLACEHOLDER, self.word)

    def leaves(self) -> Iterator["Tree"]:
        """Returns the words from left to right."""
        if self.word is not None:
            yield self
        for child in self.children:
            yield from child.leaves()

    def words(self) -> list[str]:
        """Returns the text of the words."""
        return [leaf.word or "" for leaf in self.leaves()]

    def penn(self) -> str:
        """Returns the Penn form on one line; brackets within words become -LRB- and -RRB-."""
        if self.word is None:
            return f"({self.label} {' '.join(child.penn() for child in self.children)})"
        return f"({self.label} {re.sub('[()]', lambda found: _ESCAPES[found[0]], self.word)})"

    def linear(self, keep_tags: bool = False) -> str:
        """Returns the linear form, with all parts of speech or only those of punctuation."""
        if self.word is not None:
            return self.label if keep_tags or self.label in PUNCTUATION else PLACEHOLDER
        return f"({self.label} {' '.join(child.linear(keep_tags) for child in self.children)} ){self.label}"

    def with_words(self, words: Sequence[str]) -> "Tree":
        """Returns the same tree over other words; DataError if the number of words does not match."""
        if len(words) != (count := sum(1 for _ in self.leaves())):
            sentence = shorten(" ".join(words))
            raise DataError(
                f"a tree with {count} words does not match a sentence with {len(words)} words: "
                f"{sentence}"
            )
        return self._filled(iter(words))

    def _filled(self, words: Iterator[str]) -> "Tree":
        if self.word is not None:
            return replace(self, word=next(words))
        return replace(self, children=tuple(child._filled(words) for child in self.children))

    def plain(self) -> "Tree | None":
        """Removes traces, empty constituents, function tags (NP-SBJ) and an outer root; None if no words remain."""
        if self.word is not None:
            return None if self.label == TRACE else self
        children = tuple(
            child for child in (one.plain() for one in self.children) if child is not None
        )
        if self.label in ROOTS and len(children) == 1 and children[0].word is None:
            return children[0]
        # The first character may be a hyphen, as in -LRB-.
        label = self.label[:1] + re.split("[-=]", self.label[1:])[0]
        return Tree(label or "TOP", children) if children else None


def read_penn(text: str, place: str) -> Iterator[Tree]:
    """Yields the trees of a text in Penn form with arbitrary line breaks; DataError names the place."""
    tokens, at = _TOKEN.findall(text), 0
    while at < len(tokens):
        tree, at = _read_bracket(tokens, at, 0, place)
        if tree.word is not None:
            _refuse(place, f"the word {tree.word!r} is outside any constituent")
        yield tree


def _read_bracket(tokens: Sequence[str], at: int, depth: int, place: str) -> tuple[Tree, int]:
    """Parses the tree whose opening bracket is token `at`; returns the tree and its end."""

    def next_is(*wanted: str) -> bool:
        return at < len(tokens) and tokens[at] in wanted

    if not next_is("("):
        _refuse(place, f"{tokens[at]!r} is outside any bracket")
    if depth >= MAX_DEPTH:
        _refuse(place, f"brackets are nested more than {MAX_DEPTH} deep")
    names = list(takewhile(lambda token: token not in "()", tokens[at + 1 : at + 4]))
    at += 1 + len(names)
    children: list[Tree] = []
    while len(names) < 2 and next_is("("):
        child, at = _read_bracket(tokens, at, depth + 1, place)
        children.append(child)
    if not next_is(")"):
        _refuse(
            place,
            f"found {tokens[at]!r} instead of a bracket"
            if at < len(tokens)
            else "some brackets are not closed",
        )
    if not children and len(names) != 2:
        _refuse(place, "a bracket contains neither constituents nor a part of speech with one word")
    return (
        Tree("".join(names), tuple(children)) if children else Tree(names[0], word=names[1])
    ), at + 1


def read_linear(line: str, place: str) -> Tree:
    """Parses a line in linear form into a tree with empty words; DataError names place and reason."""
    stack: list[tuple[str, list[Tree]]] = []
    done: Tree | None = None
    for token in line.split():
        if done is not None:
            _refuse(place, f"found {token!r} after the end of the tree")
        if is_opening(token):
            if len(stack) >= MAX_DEPTH:
                _refuse(place, f"brackets are nested more than {MAX_DEPTH} levels deep")
            stack.append((token[1:], []))
        elif not stack:
            _refuse(place, f"{token!r} is outside any bracket")
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
        _refuse(
            place, f"number of unclosed brackets: {len(stack)}" if stack else "there is no tree"
        )
    return done


def read_tree(line: str, place: str) -> Tree:
    """Parses a line in either form."""
    if not line.rstrip().endswith(")"):
        return read_linear(line, place)
    trees = list(read_penn(line, place))
    if len(trees) != 1:
        _refuse(place, f"there are {len(trees)} trees on one line")
    return trees[0]


def is_opening(token: str) -> bool:
    """Returns whether a linear-form token opens a constituent: `(NP`."""
    return token.startswith("(") and len(token) > 1


def is_closing(token: str) -> bool:
    """Returns whether a linear-form token closes a constituent: `)NP`."""
    return token.startswith(")") and len(token) > 1


def _refuse(place: str, fault: str) -> NoReturn:
    raise DataError(
        f"{place}: {fault}; write trees like (S (NP (DT the) (NN cat)) (VP (VBZ sleeps)))"
    )
