"""`nmtkit explain`, and the prompt of `nmtkit translate --interactive`, which shows searches too."""

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
    """Runs `nmtkit explain`."""
    if output is not None:
        if as_json:
            raise click.UsageError(
                "--json conflicts with -o, which writes a page: leave one of them out"
            )
        require_html(output)
    if steps and (as_json or output is not None):
        raise click.UsageError(
            "--steps applies only to the terminal; --json and -o show every step: leave --steps out"
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
            tell(f"line {number}: the last {left_out:,} source tokens were not read")
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
"""Results of each line by default."""
HELP = """\
  :set KEY=VALUE ...  change the search; the keys are those of `nmtkit recipe explain search`
  :attention          show the attention of the last translation
  :explain            show the search of the last line, step by step
  :help               show this
  :quit               end; Ctrl-D and Ctrl-C do the same
Any other line is translated; put a space before a line that begins with a colon."""


def converse(translator: Translator, n_best: int) -> None:
    """Translates lines that the user types, and shows `n_best` results of each; commands begin with a colon."""
    # some builds of Python lack it; then lines cannot be edited, and there is no history
    with suppress(ImportError):
        importlib.import_module("readline")
    note(":help shows the commands, Ctrl-D ends.")
    if not translator.outline.has_attention:
        tell(
            f"{translator.name} ({translator.outline.config.kind}) has no attention: alignments are not shown"
        )
    last_line = ""
    # translated the last line; `:set` may have changed the search since
    last_translator = translator
    while True:
        try:
            line = input("> ")
            words = line.split() if line.startswith(":") else []
            match words:
                case [":set", *assignments]:
                    settings, ensemble_settings = model_options.parse_search(assignments)
                    # Settings of an ensemble apply only when a run is opened; `change_search` refuses them by name.
                    all_settings = settings | ensemble_settings.model_dump(exclude_unset=True)
                    config = change_search(translator.config, all_settings)
                    config.reject_unused(settings)
                    translator = replace(translator, config=config)
                case [":explain" | ":attention"] if not last_line:
                    tell(f"{words[0]} shows how a line was translated: type a line first")
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
    """Returns the message for an unknown command, with what the user may have meant."""
    name = words[0].removeprefix(":")
    values = [word for word in words[1:] if word != "="]
    key, sign, value = name.partition("=")
    if sign:
        values = [value, *values]
    commands = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.6)
    keys = difflib.get_close_matches(key.replace("-", "_"), SEARCH_FIELDS, n=1, cutoff=0.6)
    if keys and values:
        return f"no command :{name}: did you mean `:set {keys[0]}={values[0]}`?"
    if commands:
        return f"no command :{name}: did you mean `:{commands[0]}`?"
    if keys:
        return f"no command :{name}: did you mean `:set {keys[0]}=VALUE`?"
    return f"no command :{name}: :help shows the commands; put a space before a line that begins with a colon"


def _show(translator: Translator, line: str, n_best: int) -> None:
    """Translates a line; shows the best result, its alignment, and the `n_best` results if there are several."""
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
    """Returns the target words, each followed by the source words that are aligned to it, in brackets."""
    try:
        (alignment,) = translator.align([line], [text])
    except DataError as fault:  # an imported tokenizer may not cut the text into words
        return str(fault)
    aligned_words: list[list[str]] = [[] for _ in alignment.tgt_words]
    for source, target in sorted(alignment.links()):
        aligned_words[target].append(alignment.src_words[source])
    words = []
    for word, src_words in zip(alignment.tgt_words, aligned_words, strict=True):
        words.append(f"{word}[{' '.join(src_words)}]" if src_words else word)
    return " ".join(words)
