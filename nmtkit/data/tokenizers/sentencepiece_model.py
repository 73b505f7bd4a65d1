"""Normalization rules in the files of sentencepiece models.

A model file is a message in protobuf's encoding. Its field 3 is the normalizer, whose field 1 is the name of the rules
and whose field 2 has the compiled rules.
"""

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import sentencepiece

from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.normalization import BLANKED, OTHER_SPACES, REMOVED, nfkc_exceptions

# Numbers of fields.
_NORMALIZER = 3
_NAME = 1
_RULES = 2


def with_space_rules(model: bytes) -> bytes:
    """Returns a model without normalization, with rules that turn every white space into a space."""
    return _with_rules(model, "spaces", _compiled_space_rules())


def with_number_rules(model: bytes) -> bytes:
    """Returns the model with the rules of nfkc_numbers, so that it needs no text that is already normalized.

    Raises an NmtkitError if the installed sentencepiece cannot read the rules of NFKC.
    """
    return _with_rules(model, "nfkc_numbers", _compiled_number_rules())


def _number_rules() -> dict[str, str]:
    """Returns the rules of `normalize(text, "nfkc_numbers")`, made from those of sentencepiece's nmt_nfkc."""
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
    for letter, normalized in exceptions.items():
        if letter != normalized:
            rules[letter] = normalized
    for letter in REMOVED:
        rules[letter] = ""
    for letter in OTHER_SPACES + BLANKED:
        rules[letter] = " "
    del rules["\u200c"]  # the zero-width non-joiner belongs to words, like the joiner
    return rules


@cache
def _compiled_number_rules() -> bytes:
    return _compile(_number_rules())


@cache
def _compiled_space_rules() -> bytes:
    return _compile(dict.fromkeys(OTHER_SPACES, " "))


def _compile(rules: Mapping[str, str]) -> bytes:
    """Returns the rules in the compiled form that sentencepiece stores in a model."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "rules.tsv")
        with open(table, "w", encoding="ascii") as file:
            for text, normalized in rules.items():
                file.write(f"{_code_points(text)}\t{_code_points(normalized)}\n")
        sentencepiece.set_min_log_level(2)  # otherwise it reports its progress on standard error
        normalizer = sentencepiece.SentencePieceNormalizer(rule_tsv=str(table))
        model = normalizer.serialized_model_proto()
    normalizer_fields = dict(message_fields(_bytes_field(model, _NORMALIZER)))
    compiled = normalizer_fields[_RULES]
    assert isinstance(compiled, bytes)
    return compiled


def _code_points(text: str) -> str:
    return " ".join(f"{ord(letter):X}" for letter in text)


def _with_rules(model: bytes, name: str, compiled: bytes) -> bytes:
    """Returns the model with other normalization rules."""
    changed = bytearray()
    for number, content in message_fields(model):
        assert isinstance(content, bytes)  # all fields of a model are messages
        if number == _NORMALIZER:
            # If a field occurs twice, protobuf uses the last value.
            content += bytes_field(_NAME, name.encode()) + bytes_field(_RULES, compiled)
        changed += bytes_field(number, content)
    return bytes(changed)


def _bytes_field(message: bytes, number: int) -> bytes:
    content = dict(message_fields(message))[number]
    assert isinstance(content, bytes)
    return content


# Protobuf's encoding: https://protobuf.dev/programming-guides/encoding


def message_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field of a message in protobuf's encoding."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number = key >> 3
        wire_type = key & 7
        if wire_type == 0:
            value, position = _read_varint(message, position)
            yield number, value
            continue
        if wire_type == 2:
            size, position = _read_varint(message, position)
        else:
            # fixed sizes; a KeyError for types that are not in use any more
            size = {1: 8, 5: 4}[wire_type]
        yield number, message[position : position + size]
        position += size


def bytes_field(number: int, content: bytes) -> bytes:
    """Returns a field of text, bytes or a message in protobuf's encoding."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _read_varint(message: bytes, begin: int) -> tuple[int, int]:
    """Returns the number that begins at a position, and the position after it.

    Each byte has 7 bits of the number, the lowest first; its highest bit is 0 in the last byte.
    """
    value = 0
    position = begin
    for byte in message[begin : begin + 10]:
        value |= (byte & 127) << 7 * (position - begin)
        position += 1
        if byte < 128:
            break
    return value, position


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
