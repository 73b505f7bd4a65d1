"""Bytes that are not UTF-8: what they are, and what the line may have been."""

AROUND = 24
"""Characters of a line that are shown before a fault."""
SHOWN = 100
"""Characters of a line that are shown in all."""


def excerpt(text: str, place: int = 0, width: int = SHOWN) -> str:
    """The part of a text around a place, at most `width` characters, with "…" where it was cut."""
    start = max(0, min(place - AROUND, len(text) - width))
    if start < 3:
        start = 0
    cut = text[start : start + width]
    return ("…" if start else "") + cut + ("…" if start + width < len(text) else "")


def explain(line: bytes, start: int) -> str:
    """What is wrong with a line that is not UTF-8, and how it reads in another encoding if it makes sense there.

    Args:
        line: its bytes.
        start: the first byte that is wrong, from 0.
    """
    what = _what(line, start)
    before = len(line[:start].decode("utf-8"))  # up to the first fault it is sound
    if what == "a stray byte":
        for encoding, name in (("cp1252", "Windows-1252"), ("latin-1", "Latin-1")):
            try:
                read = line.decode(encoding)
            except UnicodeDecodeError:
                continue
            return f"{what}; as {name}: {excerpt(read, start)}"
    return f"{what}: {excerpt(line.decode('utf-8', errors='surrogateescape'), before)}"


def _what(line: bytes, start: int) -> str:
    """The fault at a byte in a few words."""
    lead, after = line[start], line[start + 1 : start + 4]
    follows = 0
    while follows < len(after) and 0x80 <= after[follows] < 0xC0:
        follows += 1
    if lead in (0xC0, 0xC1) and follows:
        return "an overlong sequence"
    if (lead == 0xE0 and follows >= 2) or (lead == 0xF0 and follows >= 3):
        return "an overlong sequence"
    if lead == 0xED and follows >= 2:
        return "a lone surrogate"
    needed = 1 if 0xC2 <= lead < 0xE0 else 2 if 0xE0 <= lead < 0xF0 else 3 if 0xF0 <= lead < 0xF5 else 0
    # A letter behind the lead byte speaks for another encoding; the end of the line, or a part of what is needed, for
    # a character that was cut.
    if needed and follows < needed and (follows or start + 1 == len(line)):
        return "a cut-off character"
    return "a stray byte"
