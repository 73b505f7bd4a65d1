"""Error messages for files that are not text, or that contain bytes that are invalid in their encoding.

In decoded lines, a lone surrogate represents each invalid byte; see `encodings.BAD_BYTE`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nmtkit.data.text.faults import BINARY, UTF16, FaultKind, excerpt
from nmtkit.data.text.files.encodings import (
    BAD_BYTE,
    EncodingGuess,
    encoding_title,
    guess_encoding,
    guess_wide_encoding,
)
from nmtkit.data.text.files.formats import binary_format
from nmtkit.data.text.files.names import STDIN

_SAMPLE_LINES = 500
"""Maximum number of undecodable lines used to guess a file's encoding for a message."""


def first_bad_byte(line: str) -> int:
    """Returns the byte position, counted from 0, of the first undecodable byte of a line that has one."""
    match = BAD_BYTE.search(line)
    assert match is not None, "the line has no undecodable byte"
    return len(line[: match.start()].encode("utf-8"))


def bad_byte_excerpt(line: str, guess: EncodingGuess) -> str:
    """Returns an excerpt of a line that is not UTF-8, decoded with the guessed encoding of its file."""
    # If the encoding is uncertain, Windows-1252 shows nearly every byte as some character.
    name = guess.names[0] if guess.certain else "cp1252"
    data = line.encode("utf-8", "surrogateescape")
    text = data.decode(name, "replace")
    # In a single-byte encoding the byte position equals the character position; in others it is approximate.
    position = min(first_bad_byte(line), len(text) - 1)
    return f"as {encoding_title(name)}: {excerpt(text, position)}"


def guess_from_lines(lines: Sequence[str], faulty_rows: Sequence[int]) -> EncodingGuess:
    """Guesses the encoding of a file from its lines that are not UTF-8."""
    sample = "\n".join(lines[row] for row in faulty_rows[:_SAMPLE_LINES])
    return guess_encoding(sample.encode("utf-8", "surrogateescape"))


def bad_byte_message(
    name: str, line_number: int, byte: int, encoding: str, guess: EncodingGuess, remedy: str = ""
) -> str:
    """Returns the error message for a line that is not valid in its file's encoding.

    Args:
        name: name of the file; `STDIN` for standard input.
        line_number: line number, counted from 1.
        byte: position of the first undecodable byte in the line, counted from 1. If `encoding` is set, the text was
            recoded, so the position is not shown.
        encoding: the encoding that the user specified for the file; "" for UTF-8.
        guess: the guessed encoding of the file.
        remedy: advice for files whose encoding cannot be set with an option; replaces the default advice.
    """
    place = f"{name}, line {line_number}"
    if not encoding:
        return (
            f"{place}: not valid UTF-8 (byte {byte} of the line); {remedy or _advice(guess, name)}"
        )
    title = encoding_title(encoding)
    if name == STDIN:
        return f"{place}: not valid {title}, the specified encoding. Specify a different one with --encoding"
    return (
        f"{place}: not valid {title}, the specified encoding of the file. Specify a different one with --encoding (in "
        "a recipe: `encoding`), or drop invalid lines with `nmtkit check --fix`"
    )


def _advice(guess: EncodingGuess, name: str) -> str:
    if not guess.names:
        return "convert the file to UTF-8, or specify its encoding with --encoding"
    if len(guess.names) > 1:
        choices = " or ".join(guess.names)
        return f"it may be {guess.title}. Pass the right encoding: --encoding {choices}"
    return f"it looks like {guess.title}. {_how_to_specify(guess.names[0], name)}"


def _how_to_specify(encoding: str, name: str) -> str:
    advice = f"Pass --encoding {encoding}"
    if name != STDIN:
        advice += ", or convert the file with `nmtkit check --fix`"
    return advice


class NotText(NamedTuple):
    """The reason why a file cannot be read as text."""

    kind: FaultKind
    title: str
    """The format or encoding of the file."""
    message: str
    """Error message with the name of the file and a remedy."""
    guess: EncodingGuess | None = None
    """UTF-16 or UTF-32 if the file is text in one of these encodings."""


def why_not_text(data: bytes, name: str, encoding: str) -> NotText | None:
    """Returns why a file cannot be read as text; None if it can.

    Recognizes binary formats and, if no encoding was specified, UTF-16 and UTF-32.

    Args:
        data: the beginning of the file.
        name: name of the file in the message; `STDIN` for standard input.
        encoding: the encoding that the user specified for the file; "" for UTF-8.
    """
    binary = binary_format(data)
    if binary is not None:
        message = f"{name}: this is {binary.title}, not text. {binary.advice.rstrip('.')}"
        return NotText(kind=BINARY, title=binary.title, message=message)
    guess = None if encoding else guess_wide_encoding(data)
    if guess is None:
        return None
    message = f"{name}: this is {guess.title}, not UTF-8. {_how_to_specify(guess.names[0], name)}"
    return NotText(kind=UTF16, title=guess.title, message=message, guess=guess)
