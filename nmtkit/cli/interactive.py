"""`nmtkit translate --interactive`: a line, its translation, alignment and alternatives, at a terminal."""

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import click

from nmtkit import console
from nmtkit.cli.explain import show_trees
from nmtkit.cli.reporting import note, tell
from nmtkit.console.tables import plain_console, wrapped
from nmtkit.core.errors import NmtkitError
from nmtkit.translation.result import Translation
from nmtkit.translation.search_trees import search_tree
from nmtkit.translation.translator import Translator

ALTERNATIVES = 3
"""Results of each line, where nothing else is said."""
HELP = """\
  :n N       show N results of each line
  :beam N    search with a beam of N
  :explain   show the search of the last line, step by step
  :help      show this
  :quit      end; Ctrl-D and Ctrl-C do the same
Any other line is translated; put a blank before one that begins with a colon."""


def converse(translator: Translator, results: int | None) -> None:
    """Translates lines that are typed, and shows `results` of each; None: a few, if the beam is as wide."""
    with suppress(ImportError):  # not every Python has it; lines are then typed without editing and history
        importlib.import_module("readline")
    note(":help shows the commands, Ctrl-D ends.")
    if not translator.model.has_attention:
        tell(f"{translator.name} ({translator.model.config.kind}) has no attention: alignments are not shown")
    talk = _Conversation(translator, results or min(ALTERNATIVES, translator.config.hypotheses))
    try:
        while talk.goes_on:
            try:
                line = input("> ")
            except UnicodeDecodeError:
                tell("that line is not UTF-8; set the terminal to UTF-8")
            else:
                talk.answer(line)
    except (EOFError, KeyboardInterrupt):
        click.echo()  # ends the line on which nothing more was typed


class _Conversation:
    def __init__(self, translator: Translator, results: int) -> None:
        self.goes_on = True
        self._translator, self._results, self._last = translator, results, ""

    def answer(self, line: str) -> None:
        """Runs a command or translates a line; an error is shown, and the conversation goes on."""
        try:
            if line.startswith(":"):
                self._obey(line[1:].split())
            elif line.strip():
                self._last = line.strip()
                self._show(self._translator.search([self._last], self._results)[0])
        except NmtkitError as fault:
            tell(str(fault))

    def _obey(self, words: Sequence[str]) -> None:
        match words:
            case ["n", count]:
                self._set(results=_number(count))
            case ["beam", width]:
                self._set(beam=_number(width))
            case ["explain"] if self._last:
                show_trees([search_tree(self._translator, self._last)[0]])
            case ["explain"]:
                tell("nothing was translated yet")
            case ["quit"]:
                self.goes_on = False
            case ["help"]:
                console.say(HELP)
            case _:
                raise NmtkitError(f":{' '.join(words)} is no command; :help shows them")

    def _set(self, results: int | None = None, beam: int | None = None) -> None:
        """Changes the settings; at most as many results are shown as there are hypotheses or samples."""
        config = self._translator.config
        if beam and config.samples:
            raise NmtkitError("samples are drawn without a beam; :n N draws N of them at least")
        widest = max(results or 1, config.hypotheses)
        width = beam or -(-widest // config.diversity_groups) * config.diversity_groups
        config = config.changed({"samples" if config.samples else "beam_size": width})
        self._translator, self._results = replace(self._translator, config=config), min(results or self._results, width)
        unit = "samples" if config.samples else "beam size"
        tell(f"{unit} {width}, {self._results} {'result' if self._results == 1 else 'results'}")

    def _show(self, translations: Sequence[Translation]) -> None:
        best = translations[0]
        console.say(f"{best.text}{_cut(best)}")
        if self._translator.model.has_attention and best.text:
            console.say(wrapped(f"  {self._aligned(best.text)}", plain_console(sys.stdout).width))
        for rank, one in enumerate(translations if self._results > 1 else [], start=1):
            console.say(f"  {rank}  {one.score:.6f}  {one.text}{_cut(one)}")

    def _aligned(self, text: str) -> str:
        """Each target word, with the source words that it is aligned to in brackets."""
        (aligned,) = self._translator.align([self._last], [text])
        sources: list[list[str]] = [[] for _ in aligned.tgt_words]
        for source, target in sorted(aligned.links()):
            sources[target].append(aligned.src_words[source])
        pairs = zip(aligned.tgt_words, sources, strict=True)
        return " ".join(f"{word}[{' '.join(of)}]" if of else word for word, of in pairs)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9])):
        raise NmtkitError(f"{text}: give a number from 1")
    return int(text[:9])


def _cut(one: Translation) -> str:
    return "" if one.finished else "  (cut at the length limit)"
