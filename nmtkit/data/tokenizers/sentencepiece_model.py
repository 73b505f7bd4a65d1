"""Normalization rules inside the files of sentencepiece models.

A model file is a message in protobuf's encoding: its field 3 is the normalizer, whose field 1 is the name of the rules
and field 2 the compiled rules.
"""

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import sentencepiece

from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.normalization import BLANKED, OTHER_SPACES, REMOVED, nfkc_exceptions

_NORMALIZER, _NAME, _RULES = 3, 1, 2
"""Numbers of fields."""


def with_space_rules(model: bytes) -> bytes:
    """Returns a model without normalization that reads every white space as a space."""
    return _with_rules(model, "spaces", _compiled_space_rules())


def with_number_rules(model: bytes) -> bytes:
    """Returns the model with the rules of nfkc_numbers, so that it normalizes text by itself.

    NmtkitError if the installed sentencepiece cannot read the rules of NFKC.
    """
    return _with_rules(model, "nfkc_numbers", _compiled_number_rules())


def _number_rules() -> dict[str, str]:
    """The rules of sentencepiece's nmt_nfkc, changed to those of `normalize(text, "nfkc_numbers")`."""
    sentencepiece.set_min_log_level(2)
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    if not hasattr(normalizer, "decompile"):
        raise NmtkitError(
            "the installed sentencepiece is too old to write the normalization of this model; update it: "
            "pip install -U sentencepiece"
        )
    exceptions = nfkc_exceptions()
    rules = {}
    for text, normalized in normalizer.decompile():
        if not any(letter in exceptions for letter in text):
            rules[text] = normalized
    for letter, kept_form in exceptions.items():
        if letter != kept_form:
            rules[letter] = kept_form
    for letter in REMOVED:
        rules[letter] = ""
    for letter in OTHER_SPACES + BLANKED:
        rules[letter] = " "
    del rules["\u200c"]  # the zero-width non-joiner is a part of words, as the joiner is
    return rules


@cache
def _compiled_number_rules() -> bytes:
    return _compile(_number_rules())


@cache
def _compiled_space_rules() -> bytes:
    return _compile(dict.fromkeys(OTHER_SPACES, " "))


def _compile(rules: Mapping[str, str]) -> bytes:
    """The rules as sentencepiece keeps them in a model."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "rules.tsv")
        with open(table, "w", encoding="ascii") as file:
            for text, normalized in rules.items():
                file.write(f"{_code_points(text)}\t{_code_points(normalized)}\n")
        sentencepiece.set_min_log_level(2)  # it would report on standard error what it compiles
        normalizer = sentencepiece.SentencePieceNormalizer(rule_tsv=str(table))
        model = normalizer.serialized_model_proto()
    normalizer_fields = dict(message_fields(_bytes_field(model, _NORMALIZER)))
    compiled = normalizer_fields[_RULES]
    assert isinstance(compiled, bytes)
    return compiled


def _code_points(text: str) -> str:
    return " ".join(f"{ord(letter):X}" for letter in text)


def _with_rules(model: bytes, name: str, compiled: bytes) -> bytes:
    """The model with other normalization rules; all fields of a model are messages."""
    changed = bytearray()
    for number, content in message_fields(model):
        assert isinstance(content, bytes)
        if number == _NORMALIZER:
            # A field that comes twice has its last value.
            content += bytes_field(_NAME, name.encode()) + bytes_field(_RULES, compiled)
        changed += bytes_field(number, content)
    return bytes(changed)


def _bytes_field(message: bytes, wanted: int) -> bytes:
    content = dict(message_fields(message))[wanted]
    assert isinstance(content, bytes)
    return content


# ------------------------------------------------------------------------------------------------ protobuf's encoding


def message_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in protobuf's encoding, each its number and its value."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        if key & 7 == 0:
            value, at = _read_varint(message, at)
            yield key >> 3, value
        else:
            size, at = ({1: 8, 5: 4}[key & 7], at) if key & 7 != 2 else _read_varint(message, at)
            yield key >> 3, message[at : at + size]
            at += size


def bytes_field(number: int, content: bytes) -> bytes:
    """A field of text, bytes or a message in protobuf's encoding."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value = shift = 0
    for byte in message[at : at + 10]:
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
