"""Replaces the normalization rules of serialized sentencepiece models.

A model is a protobuf message of type ModelProto (`sentencepiece_model.proto` in the sources of sentencepiece). Its
field `normalizer_spec`, a NormalizerSpec, contains the compiled rules (`precompiled_charsmap`) and their name (`name`),
which has no effect on the normalization of a text. The other settings of the normalizer, such as the treatment of
spaces, are kept.

A rule replaces a sequence of characters, often a single one, with another sequence, which may be empty.
"""

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

from nmtkit.core.errors import NmtkitError
from nmtkit.core.protobuf import decode_fields, encode_field, last_values
from nmtkit.data.text.normalization import BLANKED, OTHER_SPACES, REMOVED, nfkc_exceptions

# Field of ModelProto.
_NORMALIZER_SPEC = 3
# Fields of NormalizerSpec.
_NAME = 1
_PRECOMPILED_CHARSMAP = 2


def with_space_rules(model: bytes) -> bytes:
    """Returns the model with rules that turn each white-space character into a space and change nothing else.

    `model` must be a valid sentencepiece model.
    """
    return _with_rules(model, "spaces", _compiled_space_rules())


def with_number_rules(model: bytes) -> bytes:
    """Returns the model with the rules of nfkc_numbers, for programs that do not normalize the text themselves.

    `model` must be a valid sentencepiece model. Raises an NmtkitError if the installed sentencepiece cannot return its
    rules for NFKC.
    """
    return _with_rules(model, "nfkc_numbers", _compiled_number_rules())


def _with_rules(model: bytes, name: str, charsmap: bytes) -> bytes:
    """Returns the model with other normalization rules."""
    # The new values are appended and override the old ones, because the last value of a field takes precedence. The old
    # charsmap remains in the model as dead bytes (about 240 kB for the rules of NFKC).
    new_values = encode_field(_NAME, name.encode())
    new_values += encode_field(_PRECOMPILED_CHARSMAP, charsmap)
    changed = bytearray()
    has_spec = False
    for field in decode_fields(model):
        if field.number == _NORMALIZER_SPEC:
            has_spec = True
            changed += encode_field(_NORMALIZER_SPEC, field.value + new_values)
        else:
            changed += field.encoded
    if not has_spec:  # the field is optional, although trained models have it
        changed += encode_field(_NORMALIZER_SPEC, new_values)
    return bytes(changed)


@cache
def _compiled_space_rules() -> bytes:
    return _compile(dict.fromkeys(OTHER_SPACES, " "))


@cache
def _compiled_number_rules() -> bytes:
    return _compile(_number_rules())


def _number_rules() -> dict[str, str]:
    """Returns the rules of `normalize(text, "nfkc_numbers")`, derived from sentencepiece's nmt_nfkc.

    Nothing but `tests/data/test_normalization.py` ensures that these rules agree with `normalize`.
    """
    nmt_nfkc = _normalizer(rule_name="nmt_nfkc")
    if not hasattr(nmt_nfkc, "decompile"):  # new in sentencepiece 0.2.2
        raise NmtkitError(
            "the installed version of sentencepiece is too old to write this model's normalization rules; run "
            "pip install -U sentencepiece"
        )
    exceptions = nfkc_exceptions()
    rules = {}
    # The rules of nmt_nfkc are about 225,000 pairs of strings; most of the sequences have several characters. A rule is
    # left out if its sequence contains an exception: `normalize` splits the text at exceptions, so no rule of NFKC
    # applies across one.
    for source, replacement in nmt_nfkc.decompile():
        if not any(character in exceptions for character in source):
            rules[source] = replacement
    # The assignments below override rules of nmt_nfkc. Their order does not matter, because no character is in more
    # than one of the groups.
    for character, replacement in exceptions.items():
        if character != replacement:  # sentencepiece rejects rules that change nothing
            rules[character] = replacement
    for character in REMOVED:
        rules[character] = ""
    for character in OTHER_SPACES + BLANKED:
        rules[character] = " "
    # nmt_nfkc replaces the zero-width non-joiner with a space, but keeps the joiner; nfkc_numbers keeps both.
    rules.pop("\u200c", None)
    return rules


def _compile(rules: Mapping[str, str]) -> bytes:
    """Returns the rules in the form of `precompiled_charsmap`."""
    with tempfile.TemporaryDirectory() as folder:
        # Each line has the code points of a sequence, a tab, and the code points of its replacement.
        table = Path(folder, "rules.tsv")
        with open(table, "w", encoding="ascii") as file:
            for source, replacement in rules.items():
                file.write(f"{_code_points(source)}\t{_code_points(replacement)}\n")
        model = _normalizer(rule_tsv=str(table)).serialized_model_proto()
    normalizer_spec: bytes = last_values(model)[_NORMALIZER_SPEC]
    charsmap: bytes = last_values(normalizer_spec)[_PRECOMPILED_CHARSMAP]
    return charsmap


def _code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


def _normalizer(**options: Any) -> Any:
    # Without this, sentencepiece writes its progress to standard error. The log level is global and stays changed.
    sentencepiece.set_min_log_level(2)
    return sentencepiece.SentencePieceNormalizer(**options)
