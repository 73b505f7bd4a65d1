"""Standard input as lines of text, for the commands that read it."""

from collections.abc import Iterator

from nmtkit.errors import DataError


def stdin_lines() -> Iterator[str]:
    r"""The lines of standard input without their ends; only \n and \r\n end a line, a byte-order mark is left out.

    Raises:
        DataError: a line is not UTF-8.
    """
    # Not sys.stdin: a thread may still wait for a line when the program ends, and Python dies if it cannot close that.
    stream = open(0, "rb", closefd=False)  # noqa: SIM115  # closing it would wait for the same line
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise DataError(
                f"standard input, line {number}: not UTF-8 (byte {fault.start + 1} of the line); "
                "convert it, e.g. with iconv"
            ) from fault
        text = text.removesuffix("\n").removesuffix("\r")
        yield text.removeprefix("\ufeff") if number == 1 else text
