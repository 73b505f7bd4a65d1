"""Changes the normalization rules in the files of sentencepiece models.

A model file is a protobuf message. Its field 3 is the normalizer, which has the name of the rules in field 1 and the
compiled rules in field 2.
"""

import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import sentencepiece

from nmtkit.core.errors import NmtkitError
from nmtkit.data.text.normalization import BLANKED, OTHER_SPACES, REMOVED, nfkc_exceptions

# Field numbers.
_NORMALIZER = 3
_NAME = 1
_RULES = 2


def with_space_rules(model: bytes) -> bytes:
    """Returns the model with rules that turn each white-space character into a space and change nothing else."""
    return _with_rules(model, "spaces", _compiled_space_rules())


def with_number_rules(model: bytes) -> bytes:
    """Returns the model with the rules of nfkc_numbers, so that its input need not be normalized before.

    Raises an NmtkitError if the installed sentencepiece cannot return its rules for NFKC.
    """
    return _with_rules(model, "nfkc_numbers", _compiled_number_rules())


def _number_rules() -> dict[str, str]:
    """Returns the rules of `normalize(text, "nfkc_numbers")`, derived from sentencepiece's nmt_nfkc."""
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
    del rules["\u200c"]  # the zero-width non-joiner belongs to words, as the joiner does
    return rules


@cache
def _compiled_number_rules() -> bytes:
    return _compile(_number_rules())


@cache
def _compiled_space_rules() -> bytes:
    return _compile(dict.fromkeys(OTHER_SPACES, " "))


def _compile(rules: Mapping[str, str]) -> bytes:
    """Returns the rules in the compiled form in which sentencepiece models store them."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "rules.tsv")
        with open(table, "w", encoding="ascii") as file:
            for text, normalized in rules.items():
                file.write(f"{_code_points(text)}\t{_code_points(normalized)}\n")
        sentencepiece.set_min_log_level(2)  # otherwise it writes its progress to standard error
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
            # These fields are appended: if a field occurs twice, protobuf uses the last value.
            content += bytes_field(_NAME, name.encode()) + bytes_field(_RULES, compiled)
        changed += bytes_field(number, content)
    return bytes(changed)


def _bytes_field(message: bytes, number: int) -> bytes:
    content = dict(message_fields(message))[number]
    assert isinstance(content, bytes)
    return content


# For protobuf's encoding, see https://protobuf.dev/programming-guides/encoding.


def message_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field in a protobuf message."""
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
            # Types with a fixed size; KeyError for deprecated types.
            size = {1: 8, 5: 4}[wire_type]
        yield number, message[position : position + size]
        position += size


def bytes_field(number: int, content: bytes) -> bytes:
    """Encodes a field whose value is a text, bytes or a message in protobuf's format."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _read_varint(message: bytes, begin: int) -> tuple[int, int]:
    """Returns the number encoded from position `begin` on, and the position after it.

    Each byte has 7 bits of the number, the lowest first; the highest bit of a byte is 0 only in the last byte.
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
