"""Commands that a page shows, run within the process of a test."""

import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.commands import Command, Finished

PROGRAMS = ("cp", "echo", "printf", "head", "tail", "cat", "paste", "zcat")
"""Other programs that commands of a page may use."""


def words_of(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&<>")
    lexer.whitespace_split = True
    lexer.commenters = ""  # FILE#FIELD is one word; pages are read without their comments
    return list(lexer)


def parts(words: list[str], sign: str) -> Iterator[list[str]]:
    while sign in words:
        at = words.index(sign)
        yield words[:at]
        words = words[at + 1 :]
    yield words


def run_in_process(
    line: str, console: Command, change: Callable[[list[str]], list[str]]
) -> Finished:
    """Runs a line as a shell would, one command of a pipe after the other; `change` may change commands of nmtkit."""
    done = Finished(0, "", "")
    for chain in parts(words_of(line), "&&"):
        given = ""
        for words in parts(chain, "|"):
            *_, target = parts(words, ">")
            source = words[words.index("<") + 1] if "<" in words else ""
            plain = words[
                : min((words.index(sign) for sign in "<>" if sign in words), default=len(words))
            ]
            given = Path(source).read_text(encoding="utf-8") if source else given
            if plain[0] == "nmtkit":
                done = console(*change(plain[1:]), stdin=given)
            else:
                assert plain[0] in PROGRAMS, f"{plain[0]} in: {line}"
                other = subprocess.run(
                    plain, input=given, capture_output=True, text=True, check=False
                )
                done = Finished(other.returncode, other.stdout, other.stderr)
            if done.code:
                return done
            given = done.out
            if ">" in words:
                Path(target[0]).write_text(given, encoding="utf-8")
    return done
