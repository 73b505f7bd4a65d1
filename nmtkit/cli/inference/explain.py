"""`nmtkit explain`, and the prompt of `nmtkit translate --interactive`, which also explains searches."""

import difflib
import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from nmtkit.cli import terminal
from nmtkit.cli.inference import model_options
from nmtkit.cli.terminal.heatmaps import show_attention
from nmtkit.cli.terminal.reporting import note, tell
from nmtkit.cli.terminal.tables import plain_console, wrapped
from nmtkit.cli.terminal.trees import show_search
from nmtkit.cli.text_io.reading import stdin_sentences
from nmtkit.cli.text_io.results import Printer, write_json_line
from nmtkit.core.errors import DataError, NmtkitError
from nmtkit.decoding.settings import SEARCH_FIELDS, change_search
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.result import Translation
from nmtkit.inference.search_trees import search_tree
from nmtkit.inference.translator import Translator
from nmtkit.plots.pages import require_html
from nmtkit.plots.trees import SearchTree, save_search


@model_options.opens_model
def run_explain(
    how: DecodingOptions,
    sentence: str | None,
    output: Path | None,
    as_json: bool,
    steps: int | None,
) -> None:
    """Carries out `nmtkit explain`."""
    if output is not None:
        if as_json:
            raise click.UsageError(
                "--json conflicts with -o, which writes an HTML page; use only one of them"
            )
        require_html(output)
    if steps and (as_json or output is not None):
        raise click.UsageError(
            "--steps applies only to output in the terminal, because --json and -o show all steps; remove --steps"
        )
    lines = [sentence] if sentence is not None else stdin_sentences("explain")
    translator = model_options.open_scorer(how)
    results = []
    for number, line in enumerate(lines, start=1):
        tree, translations = search_tree(
            translator, line, place=f"line {number}", number=number - 1
        )
        left_out = translations[0].src_left_out
        if left_out:
            tell(
                f"line {number}: the source is too long, so its last {left_out:,} tokens were not read"
            )
        results.append((tree, translations))
    if output is not None:
        save_search([tree for tree, _ in results], output)
        note(f"wrote {output}")
    elif as_json:
        printer = Printer(translator.tokenizers.tgt, 1, True)
        for number, (tree, translations) in enumerate(results, start=1):
            write_json_line(_record(printer, number, tree, translations))
    else:
        for tree, _ in results:
            show_search(tree, steps)


def _record(
    printer: Printer, number: int, tree: SearchTree, translations: Sequence[Translation]
) -> dict[str, Any]:
    """Returns a tree as a JSON object; `best` and `others` are the same as in `translate --json`."""
    steps = []
    for nodes in tree.steps:
        steps.append([asdict(node) for node in nodes])
    return {
        "line": number,
        "source_tokens": translations[0].src_tokens,
        "settings": tree.settings,
        "beam_size": tree.beam_size,
        "steps": steps,
        "stopped": tree.stopped,
        "best": printer.record(translations[0]),
        "others": [printer.record(translation) for translation in translations[1:]],
    }


COMMANDS = ("set", "attention", "explain", "help", "quit")
ALTERNATIVES = 3
"""Default number of results that are shown for each line."""
HELP = """\
  :set KEY=VALUE ...  change the search settings; `nmtkit recipe explain search` lists the keys
  :attention          show the attention of the last translation
  :explain            show, step by step, how the last line was translated
  :help               show this
  :quit               quit; Ctrl-D and Ctrl-C do the same
Any other line is translated; to translate a line that begins with a colon, put a space before it."""


def converse(translator: Translator, n_best: int) -> None:
    """Translates lines that the user types, and shows `n_best` results for each; commands begin with a colon."""
    # Some builds of Python lack readline. Without it, lines cannot be edited, and there is no history.
    with suppress(ImportError):
        importlib.import_module("readline")
    note(":help shows the commands; Ctrl-D quits.")
    if not translator.outline.has_attention:
        tell(
            f"{translator.name} ({translator.outline.config.kind}) has no attention, so alignments are not shown"
        )
    last_line = ""
    # the translator used for the last line, because `:set` may have changed the search since
    last_translator = translator
    while True:
        try:
            line = input("> ")
            words = line.split() if line.startswith(":") else []
            match words:
                case [":set", *assignments]:
                    settings, ensemble_settings = model_options.parse_search(assignments)
                    # Ensemble settings apply only when a run is opened; `change_search` rejects them with an error.
                    all_settings = settings | ensemble_settings.model_dump(exclude_unset=True)
                    config = change_search(translator.config, all_settings)
                    config.reject_unused(settings)
                    translator = replace(translator, config=config)
                case [":explain" | ":attention"] if not last_line:
                    tell(f"{words[0]} shows how a line was translated; type a line first")
                case [":explain"]:
                    tree, _ = search_tree(translator, last_line)
                    show_search(tree, see_all="`nmtkit explain --steps 0` shows all")
                case [":attention"]:
                    for picture in last_translator.pictures([last_line]):
                        show_attention(picture)
                case [":quit"]:
                    return
                case [":help"]:
                    terminal.say(HELP)
                case [_, *_]:
                    tell(_advice(words))
                case _ if line.strip():
                    last_line = line.strip()
                    last_translator = translator
                    _show(translator, last_line, n_best if n_best > 1 else ALTERNATIVES)
        except (NmtkitError, UnicodeDecodeError) as fault:
            tell(str(fault))
        except (EOFError, KeyboardInterrupt):
            click.echo()  # ends the line of the prompt
            return


def _advice(words: Sequence[str]) -> str:
    """Returns the message for an unknown command, with a guess at the intended command."""
    name = words[0].removeprefix(":")
    values = [word for word in words[1:] if word != "="]
    key, sign, value = name.partition("=")
    if sign:
        values = [value, *values]
    commands = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.6)
    keys = difflib.get_close_matches(key.replace("-", "_"), SEARCH_FIELDS, n=1, cutoff=0.6)
    if keys and values:
        return f"unknown command :{name}; did you mean `:set {keys[0]}={values[0]}`?"
    if commands:
        return f"unknown command :{name}; did you mean `:{commands[0]}`?"
    if keys:
        return f"unknown command :{name}; did you mean `:set {keys[0]}=VALUE`?"
    return (
        f"unknown command :{name}; :help shows the commands. To translate a line that begins with a "
        "colon, put a space before it."
    )


def _show(translator: Translator, line: str, n_best: int) -> None:
    """Translates a line; shows the best result, its alignment, and, if `n_best` is above 1, the `n_best` results."""
    (results,) = translator.search([line], min(n_best, translator.config.n_hypotheses))
    texts = []
    for result in results:
        texts.append(
            result.text if result.finished else f"{result.text}  (cut at the length limit)"
        )
    terminal.say(texts[0])
    if translator.outline.has_attention and results[0].text:
        alignment = _describe_alignment(translator, line, results[0].text)
        terminal.say(wrapped(f"  {alignment}", plain_console(sys.stdout).width))
    if len(results) > 1:
        for rank, (result, text) in enumerate(zip(results, texts, strict=True), start=1):
            terminal.say(f"  {rank}  {result.score:.6f}  {text}")


def _describe_alignment(translator: Translator, line: str, text: str) -> str:
    """Returns the target words, each followed by the source words aligned to it, in square brackets."""
    try:
        (alignment,) = translator.align([line], [text])
    except DataError as fault:  # the tokens of some imported tokenizers cannot be assigned to words
        return str(fault)
    aligned_words: list[list[str]] = [[] for _ in alignment.tgt_words]
    for source, target in sorted(alignment.links()):
        aligned_words[target].append(alignment.src_words[source])
    words = []
    for word, src_words in zip(alignment.tgt_words, aligned_words, strict=True):
        words.append(f"{word}[{' '.join(src_words)}]" if src_words else word)
    return " ".join(words)
