"""`nmtkit translate --interactive`: a line, its translation, alignment and alternatives, at a terminal."""

import importlib
import sys
from contextlib import suppress
from dataclasses import replace

import click

from nmtkit import console
from nmtkit.cli.explain import show_trees
from nmtkit.cli.inference import parse_search
from nmtkit.cli.reporting import note, tell
from nmtkit.console.tables import plain_console, wrapped
from nmtkit.core.errors import NmtkitError
from nmtkit.translation.search_trees import search_tree
from nmtkit.translation.translator import Translator

ALTERNATIVES = 3
"""Results of each line, where nothing else is said."""
HELP = """\
  :set KEY=VALUE ...  change the search; the keys are those of --search
  :explain            show the search of the last line, step by step
  :help               show this
  :quit               end; Ctrl-D and Ctrl-C do the same
Any other line is translated; put a blank before one that begins with a colon."""


def converse(translator: Translator, n_best: int) -> None:
    """Translates lines that are typed, and shows `n_best` results of each, or a few; commands begin with a colon."""
    with suppress(ImportError):  # not every Python has it; lines are then typed without editing and history
        importlib.import_module("readline")
    note(":help shows the commands, Ctrl-D ends.")
    if not translator.model.has_attention:
        tell(f"{translator.name} ({translator.model.config.kind}) has no attention: alignments are not shown")
    last = ""
    while True:
        try:
            line = input("> ")
            match line.split():
                case [":set", *assignments]:
                    settings, _ = parse_search(assignments)
                    config = translator.config.changed(settings)
                    config.reject_unused(settings)
                    translator = replace(translator, config=config)
                case [":explain"]:
                    show_trees([search_tree(translator, last)[0]])
                case [":quit"]:
                    return
                case _ if line.startswith(":"):
                    console.say(HELP)
                case [_, *_]:
                    last = line.strip()
                    _show(translator, last, n_best if n_best > 1 else ALTERNATIVES)
        except (NmtkitError, UnicodeDecodeError) as fault:
            tell(str(fault))
        except (EOFError, KeyboardInterrupt):
            click.echo()  # ends the line on which nothing more was typed
            return


def _show(translator: Translator, line: str, n_best: int) -> None:
    """Translates a line; shows the best result with its alignment, and `n_best`, if there are several."""
    results = translator.search([line], min(n_best, translator.config.hypotheses))[0]
    texts = [one.text if one.finished else f"{one.text}  (cut at the length limit)" for one in results]
    console.say(texts[0])
    if translator.model.has_attention and results[0].text:
        console.say(wrapped(f"  {_aligned(translator, line, results[0].text)}", plain_console(sys.stdout).width))
    for rank, (one, text) in enumerate(zip(results, texts, strict=True) if len(results) > 1 else [], start=1):
        console.say(f"  {rank}  {one.score:.6f}  {text}")


def _aligned(translator: Translator, line: str, text: str) -> str:
    """Each target word, with the source words that it is aligned to in brackets."""
    (aligned,) = translator.align([line], [text])
    sources: list[list[str]] = [[] for _ in aligned.tgt_words]
    for source, target in sorted(aligned.links()):
        sources[target].append(aligned.src_words[source])
    pairs = zip(aligned.tgt_words, sources, strict=True)
    return " ".join(f"{word}[{' '.join(of)}]" if of else word for word, of in pairs)
