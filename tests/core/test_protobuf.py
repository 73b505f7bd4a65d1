"""Protobuf messages: fields are read as they were written, and malformed messages are rejected."""

import pytest

from nmtkit.core.protobuf import Field, decode_fields, encode_field, last_values

# Examples of https://protobuf.dev/programming-guides/encoding.
VARINT = bytes.fromhex("08 96 01")
TEXT = bytes.fromhex("12 07 74 65 73 74 69 6e 67")


def test_values_of_all_wire_types_are_decoded() -> None:
    fixed_64 = bytes([3 << 3 | 1]) + b"12345678"
    fixed_32 = bytes([4 << 3 | 5]) + b"1234"
    assert list(decode_fields(VARINT + TEXT + fixed_64 + fixed_32)) == [
        Field(number=1, value=150, encoded=VARINT),
        Field(number=2, value=b"testing", encoded=TEXT),
        Field(number=3, value=b"12345678", encoded=fixed_64),
        Field(number=4, value=b"1234", encoded=fixed_32),
    ]


def test_encoding_gives_the_bytes_of_the_specification() -> None:
    assert encode_field(1, 150) == VARINT
    assert encode_field(2, b"testing") == TEXT


@pytest.mark.parametrize("value", [0, 127, 128, 2**32, 2**64 - 1, b"", b"x" * 300])
def test_an_encoded_value_is_decoded_again(value: int | bytes) -> None:
    encoded = encode_field(1000, value)
    assert list(decode_fields(encoded)) == [Field(number=1000, value=value, encoded=encoded)]


def test_the_last_value_of_a_field_counts() -> None:
    assert last_values(encode_field(1, 5) + encode_field(2, b"a") + encode_field(1, 6)) == {
        1: 6,
        2: b"a",
    }


@pytest.mark.parametrize(
    "message",
    [
        VARINT[:-1],
        TEXT[:-1],
        TEXT[:1],
        bytes([3 << 3 | 1]) + b"1234567",
        bytes([4 << 3 | 5]) + b"123",
        bytes([1 << 3 | 3]),  # the beginning of a group, which protobuf has deprecated
        b"\xff" * 11,
    ],
)
def test_a_malformed_message_is_rejected(message: bytes) -> None:
    with pytest.raises(ValueError, match="not a protobuf message"):
        list(decode_fields(TEXT + message))
