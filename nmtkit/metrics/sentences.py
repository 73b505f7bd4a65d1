"""Where the sentences of a summary or an article end."""

import re

from nmtkit.errors import NmtkitError
from nmtkit.registry import near_names

SENTENCE_RULES = ("auto", "tags", "newline", "punctuation")

_TAG = re.compile(r"</?[tsq]>")
_END = re.compile(r"([.!?][\"'”’»)\]]*)\s+")


def split_sentences(text: str, rule: str = "auto") -> list[str]:
    """Cuts a text into its sentences, as ROUGE-Lsum needs them.

    * "tags": at the tags of CNN/DailyMail files (`<t>`, `</t>`; also `<s>`, `</s>` and `<q>`), which are removed.
    * "newline": at newlines and nowhere else. This is what rouge-score does; ROUGE-Lsum of a one-line text is then its
      ROUGE-L.
    * "punctuation": at white space after ".", "!" or "?" and the quotes and brackets that close there. Abbreviations
      are not known, so "Mr. Smith" is cut too.
    * "auto": by tags if the text has any, else by newlines if it has any, else by punctuation.

    Raises:
        NmtkitError: an unknown rule.
    """
    if rule not in SENTENCE_RULES:
        raise NmtkitError(f"unknown sentence rule {rule!r}: {near_names(rule, SENTENCE_RULES)}")
    if rule == "auto":
        rule = "tags" if _TAG.search(text) else "newline" if "\n" in text else "punctuation"
    if rule == "tags":
        pieces = _TAG.split(text)
    elif rule == "newline":
        pieces = text.split("\n")
    else:
        pieces = _END.sub(r"\1\n", text).split("\n")
    return [piece.strip() for piece in pieces if piece.strip()]


def lead(article: str, n: int) -> str:
    """The first `n` sentences of an article on one line: the summary that every other has to beat.

    Sentences are those of `split_sentences`; an article with fewer is its own lead.

    Raises:
        NmtkitError: `n` is below 1.
    """
    if n < 1:
        raise NmtkitError(f"a lead has at least 1 sentence, not {n}")
    return " ".join(split_sentences(article)[:n])
