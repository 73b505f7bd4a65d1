"""The sentences of a text."""

import re

from nmtkit.core.errors import NmtkitError
from nmtkit.core.registry import suggest_names

SENTENCE_RULES = ("auto", "tags", "newline", "punctuation")

_TAG = re.compile(r"</?[tsq]>")
_END = re.compile(r"([.!?][\"'”’»)\]]*)\s+")


def split_sentences(text: str, rule: str = "auto") -> list[str]:
    """Cuts a text into its sentences, as ROUGE-Lsum and models of documents need them.

    * "tags": at the tags of CNN/DailyMail files (`<t>`, `</t>`; also `<s>`, `</s>` and `<q>`), which are removed.
    * "newline": at newlines only, as rouge-score does; ROUGE-Lsum of a one-line text is then its ROUGE-L.
    * "punctuation": at white space after ".", "!" or "?" and closing quotes and brackets, so "Mr. Smith" is cut too.
    * "auto": by tags if the text has any, else by newlines if it has any, else by punctuation.
    """
    if rule not in SENTENCE_RULES:
        raise NmtkitError(f"unknown sentence rule {rule!r}: {suggest_names(rule, SENTENCE_RULES)}")
    if rule == "auto":
        rule = "tags" if _TAG.search(text) else "newline" if "\n" in text else "punctuation"
    if rule == "tags":
        pieces = _TAG.split(text)
    elif rule == "newline":
        pieces = text.split("\n")
    else:
        pieces = _END.sub(r"\1\n", text).split("\n")
    return [piece.strip() for piece in pieces if piece.strip()]
