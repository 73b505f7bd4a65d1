"""Reads and writes serialized protobuf messages without the protobuf package and without a schema.

A message is a sequence of fields. Each begins with a key, a varint (an integer of variable length) that combines the
number of the field with its wire type, the format of the value that follows. See
https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

# Wire types. Text, bytes and nested messages are length-delimited: a varint with their size precedes them.
_VARINT = 0
_FIXED_64 = 1
_LENGTH_DELIMITED = 2
_FIXED_32 = 5

_FIXED_SIZES = {_FIXED_64: 8, _FIXED_32: 4}
"""Number of bytes of a value, for the wire types whose values do not store their size."""
_MAX_VARINT_SIZE = 10
"""Maximum number of bytes of a varint, which is enough for 64 bits."""


class Field(NamedTuple):
    """One field of a message."""

    number: int
    value: Any
    """An int if the value is a varint, otherwise the bytes of the value."""
    encoded: bytes
    """The whole field as it is in the message."""


def decode_fields(message: bytes) -> Iterator[Field]:
    """Yields the fields of a message in order; raises a ValueError at the first one that is malformed."""
    begin = 0
    while begin < len(message):
        key, position = _decode_varint(message, begin)
        wire_type = key & 7
        if wire_type == _VARINT:
            value: int | bytes
            value, end = _decode_varint(message, position)
        else:
            size = _FIXED_SIZES.get(wire_type)
            if wire_type == _LENGTH_DELIMITED:
                size, position = _decode_varint(message, position)
            if size is None or position + size > len(message):
                raise ValueError("not a protobuf message: a field is truncated or of unknown type")
            end = position + size
            value = message[position:end]
        yield Field(number=key >> 3, value=value, encoded=message[begin:end])
        begin = end


def last_values(message: bytes) -> dict[int, Any]:
    """Returns the value of each field by its number: the last one if a field occurs more than once.

    This is how protobuf reads a field that is neither repeated nor a message. Raises a ValueError if the message is
    malformed.
    """
    return {field.number: field.value for field in decode_fields(message)}


def encode_field(number: int, value: int | bytes) -> bytes:
    """Encodes a field. An int, which must not be negative, becomes a varint; bytes become a length-delimited value."""
    if isinstance(value, int):
        return _encode_key(number, _VARINT) + _encode_varint(value)
    return _encode_key(number, _LENGTH_DELIMITED) + _encode_varint(len(value)) + value


def _encode_key(number: int, wire_type: int) -> bytes:
    return _encode_varint((number << 3) | wire_type)


def _decode_varint(message: bytes, begin: int) -> tuple[int, int]:
    """Returns the varint that starts at index `begin`, and the index after it.

    A byte holds 7 bits of the integer, the lowest ones first. Its highest bit is 1 if another byte follows.
    """
    value = 0
    for index, byte in enumerate(message[begin : begin + _MAX_VARINT_SIZE]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, begin + index + 1
    raise ValueError("not a protobuf message: an integer is truncated or too long")


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append((value & 0x7F) | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
