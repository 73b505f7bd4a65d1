"""Words, alignment links and the way from a list of words to written text and back.

A phrase is a tuple of `Word`s. Every word carries the numbers of the ideas it expresses (its *links*). An English and a
French word are aligned when they share a link. Words that melt together (`de` + `le` -> `du`) keep the links of both,
so that the gold alignment is right by construction.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_numbers = itertools.count()

_WORD = re.compile(
    r"aujourd'hui|o'clock"
    r"|'s(?!\w)"  # the English possessive: Paul's -> Paul 's
    r"|(?:[cdjlmnst]|qu)'(?=\w)"  # a French elided word: l'homme -> l' homme
    r"|\d+(?:er)?(?::\d+)?"  # 37, 1er, 8:30
    r"|[^\W\d_]+(?:-[^\W\d_]+)*"  # grand-mère is one word
    r"|[^\w\s]",  # one punctuation mark
    re.IGNORECASE,
)
_TAGS = {",": ",", ";": ":", ".": ".", "?": "."}
_PREPOSITIONS = frozenset(
    ["in", "at", "on", "with", "for", "since", "to", "under", "near", "from", "by", "behind"]
)
_VOWELS = "aàâeéèêëiîïoôuùûœ"
# No elision before these, although they begin with a vowel or h (which is "aspirated"); stems of all their forms.
_NO_ELISION = ("haricot", "haut", "huit", "onze")
_ELIDING = frozenset({"le", "la", "de", "ne", "je", "me", "se", "que"})
_BEFORE_VOWEL = {"ma": "mon", "sa": "son", "ce": "cet"}
_CONTRACTIONS = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}
_CONSONANT_SOUND = ("university", "useful", "euro")
_VOWEL_SOUND = ("honest", "hour")


class Word(NamedTuple):
    """One word of one language.

    Attributes:
        text: as written, not yet elided, contracted or capitalised.
        links: numbers of the ideas it expresses; equal numbers on both sides make an alignment link.
        article: True for a French definite article, which contracts (`de le livre` -> `du livre`), unlike the pronoun
            of the same form (`de le lire`).
        facts: names of held-out constructions that this word takes part in, as `family/lemma`.
        opens: labels of the English constituents that begin with it, the outermost first.
        closes: how many constituents end with it.
    """

    text: str
    links: frozenset[int] = frozenset()
    article: bool = False
    facts: tuple[str, ...] = ()
    opens: tuple[str, ...] = ()
    closes: int = 0


Words = tuple[Word, ...]


class Pair(NamedTuple):
    """An English phrase and its French translation."""

    en: Words
    fr: Words


EMPTY = Pair((), ())


def new_link() -> int:
    """A link number that no other word has."""
    return next(_numbers)


def spell(text: str, *links: int, facts: tuple[str, ...] = ()) -> Words:
    """Words of `text` (separated by spaces or underscores), all with the same links; the first one has the facts."""
    parts = text.replace("_", " ").split()
    return tuple(
        Word(part, frozenset(links), facts=facts if i == 0 else ()) for i, part in enumerate(parts)
    )


def article(text: str, *links: int) -> Words:
    """A French definite article."""
    return (Word(text, frozenset(links), article=True),)


def phrase(en: str, fr: str) -> Pair:
    """A fixed expression; words with the same mark after a colon are aligned.

    `phrase("last:2 week:1", "la:1 semaine:1 dernière:2")`. Words without a mark are all aligned with each other.
    """
    groups: dict[str, int] = {}

    def side(text: str) -> Words:
        out: list[Word] = []
        for piece in text.split():
            word, _, group = piece.partition(":") if not piece[0].isdigit() else (piece, "", "")
            out.extend(spell(word, groups.setdefault(group, new_link())))
        return tuple(out)

    return Pair(side(en), side(fr))


def join(*pairs: Pair) -> Pair:
    """Both sides one after the other, in the same order."""
    return Pair(
        tuple(itertools.chain(*(p.en for p in pairs))),
        tuple(itertools.chain(*(p.fr for p in pairs))),
    )


def bracket(label: str, phrase_words: Words) -> Words:
    """The English words as one constituent; no words are none."""
    if not phrase_words:
        return ()
    first = phrase_words[0]._replace(opens=(label, *phrase_words[0].opens))
    middle = (first, *phrase_words[1:])
    return (*middle[:-1], middle[-1]._replace(closes=middle[-1].closes + 1))


def constituent(label: str, *pairs: Pair) -> Pair:
    """`join`, with the English side as one constituent."""
    pair = join(*pairs)
    return Pair(bracket(label, pair.en), pair.fr)


def adjunct(pair: Pair) -> Pair:
    """An expression of time, place or manner as a constituent: PP behind a preposition, else ADVP."""
    if not pair.en or pair.en[0].opens:
        return pair
    return constituent("PP" if pair.en[0].text in _PREPOSITIONS else "ADVP", pair)


def linear_tree(phrase_words: Sequence[Word]) -> str:
    """The tree of a sentence in linear form: XX for each word, and the mark itself for punctuation."""
    out: list[str] = []
    open_labels: list[str] = []
    for word in phrase_words:
        open_labels += word.opens
        out += [f"({label}" for label in word.opens]
        out.append(_TAGS.get(word.text, "XX"))
        out += [f"){open_labels.pop()}" for _ in range(word.closes)]
    if open_labels:
        raise ValueError(f"a constituent does not end: {' '.join(out)}")
    return " ".join(out)


def mark(symbol: str) -> Pair:
    """A punctuation mark that is the same in both languages."""
    link = new_link()
    return Pair(spell(symbol, link), spell(symbol, link))


def starts_with_vowel(word: str) -> bool:
    """Whether a French word makes the word before it elide (`l'homme`, but `le haricot`)."""
    word = word.lower()
    if word.startswith(_NO_ELISION):
        return False
    return word[0] in _VOWELS or word[0] == "h" or word == "y"


def melt_french(phrase_words: Sequence[Word]) -> list[Word]:
    """Contractions (du, au, des, aux), elision (l', d', qu', s'il) and forms before a vowel (cet homme, mon amie)."""
    out: list[Word] = []
    following = [*phrase_words[1:], Word(".")]
    skip = False
    for i, word in enumerate(phrase_words):
        if skip:
            skip = False
            continue
        after = following[i]
        vowel = starts_with_vowel(after.text)
        if after.article and (word.text, after.text) in _CONTRACTIONS:
            elided = after.text == "le" and starts_with_vowel(following[i + 1].text)
            if not elided:
                links, facts = word.links | after.links, word.facts + after.facts
                out.append(Word(_CONTRACTIONS[word.text, after.text], links, facts=facts))
                skip = True
                continue
        if vowel and word.text in _ELIDING:
            word = word._replace(text=word.text[:-1] + "'")
        elif vowel and word.text in _BEFORE_VOWEL:
            word = word._replace(text=_BEFORE_VOWEL[word.text])
        elif word.text == "si" and after.text in ("il", "ils"):
            word = word._replace(text="s'")
        out.append(word)
    return out


def melt_english(phrase_words: Sequence[Word]) -> list[Word]:
    """The indefinite article before a vowel sound (an apple, an honest man, a university), and cannot."""
    out: list[Word] = []
    for word, after in zip(phrase_words, [*phrase_words[1:], Word(".")], strict=True):
        if word.text == "a":
            vowel = after.text[0] in "aeiouAEIOU" and not after.text.startswith(_CONSONANT_SOUND)
            if vowel or after.text.startswith(_VOWEL_SOUND):
                word = word._replace(text="an")
        if word.text == "not" and out and out[-1].text == "can":
            can = out.pop()
            word = Word(
                "cannot",
                can.links | word.links,
                opens=can.opens + word.opens,
                closes=can.closes + word.closes,
            )
        out.append(word)
    return out


def words(text: str) -> list[str]:
    """The words of a line of either language: the units that the alignment files count, from 0.

    White space separates words. Punctuation marks are words. A French elided word is split after its apostrophe
    (`l'homme` -> `l'`, `homme`), the English possessive before it (`Paul's` -> `Paul`, `'s`). Hyphens do not split.
    """
    return _WORD.findall(text)


def write(tokens: Iterable[str], language: str) -> str:
    """Written text of a list of words: the inverse of `words`, with a capital letter at the beginning.

    English sets no space before punctuation; French sets a plain space before `?`, `!`, `;` and `:`.
    """
    glued = (".", ",") if language == "fr" else (".", ",", "?", "!", ";", ":", "'s", "'")
    text = ""
    for token in tokens:
        if text and token not in glued and not (language == "fr" and text.endswith("'")):
            text += " "
        text += token
    return text[0].upper() + text[1:]


def alignment(en: Sequence[Word], fr: Sequence[Word]) -> list[tuple[int, int]]:
    """All pairs (English position, French position) of words that share a link, in order."""
    return [
        (i, j)
        for i, source in enumerate(en)
        for j, target in enumerate(fr)
        if source.links & target.links
    ]
