"""Splits texts into sentences by simple rules."""

import re

from nmtkit.core.errors import NmtkitError
from nmtkit.core.registry import suggest_names

SENTENCE_RULES = ("auto", "tags", "newline", "punctuation")
"""Names of the rules for `split_sentences`."""

_TAG = re.compile(r"</?[tsq]>")
_SENTENCE_END = re.compile(r"([.!?][\"'”’»)\]]*)\s+")


def split_sentences(text: str, rule: str = "auto") -> list[str]:
    """Splits a text into sentences, for ROUGE-Lsum and for models that read documents.

    * "tags": at the tags of CNN/DailyMail files (`<t>` and `</t>`, also with s or q instead of t), which are removed.
    * "newline": at newlines only, as in rouge-score; ROUGE-Lsum of a one-line text then equals its ROUGE-L.
    * "punctuation": at white space after ".", "!" or "?" and closing quotes and brackets; "Mr. Smith" is split, too.
    * "auto": the first of these rules that applies: "tags" if the text has tags, else "newline" if it has newlines,
      else "punctuation".
    """
    if rule not in SENTENCE_RULES:
        raise NmtkitError(f"unknown sentence rule {rule!r}: {suggest_names(rule, SENTENCE_RULES)}")
    if rule == "auto" and _TAG.search(text):
        rule = "tags"
    elif rule == "auto" and "\n" in text:
        rule = "newline"
    if rule == "tags":
        pieces = _TAG.split(text)
    elif rule == "newline":
        pieces = text.split("\n")
    else:
        pieces = _SENTENCE_END.sub(r"\1\n", text).split("\n")
    return [piece.strip() for piece in pieces if piece.strip()]
