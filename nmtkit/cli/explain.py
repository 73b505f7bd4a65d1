"""`nmtkit explain`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import cloup

from nmtkit.cli import inference, options
from nmtkit.cli.options import NEW_FILE, Number
from nmtkit.cli.reading import stdin_sentences
from nmtkit.cli.reporting import note, tell
from nmtkit.cli.results import Printer, write_json_line
from nmtkit.console.trees import show_search
from nmtkit.experiment.loading import DecodingOptions
from nmtkit.pictures.search_trees import SearchTree, require_html, save_search
from nmtkit.translation import search_trees
from nmtkit.translation.result import Translation


@cloup.command()
@click.argument("sentence", required=False)
@cloup.option_group(
    "Common",
    options.models,
    inference.checkpoint,
    inference.search_flags("beam_size"),
    click.option(
        "--steps",
        type=Number(1, word="all", meaning=0),
        metavar="N",
        help="Show N steps, the first and the last; or all. Default: as many as fit the screen.",
    ),
    click.option("-o", "--output", type=NEW_FILE, metavar="FILE", help="Draw a page instead: FILE.html."),
    options.as_json("Print a JSON object for each sentence."),
    options.device,
)
@inference.search_groups()
@options.quiet
@inference.opens_model
def command(how: DecodingOptions, sentence: str | None, output: Path | None, as_json: bool, steps: int | None) -> None:
    """Explain a beam search: show, step by step, which hypotheses it kept, finished, pruned and blocked.

    Takes SENTENCE, or lines of standard input. The search is the same as that of `translate` with the same options.

    Each row is a step: the hypotheses that it kept, side by side, each with its last token and its log-probability
    (nats) from the start. The sign before a token points to the hypothesis above that it continues. Then follow:

    \b
      ■ ended     the hypothesis is finished; its score is what results are ranked by
      × pruned    it did not fit into the beam
      ⊘ blocked   a rule, which is named, forbade it

    Such a token is preceded by the number of the hypothesis it continues, and followed by the distance of its
    log-probability from that of the last hypothesis kept. A step with K hypotheses considers the 2K likeliest
    continuations; an end counts only among the first K.

    \b
    Examples:
      nmtkit explain --beam-size 2 "The old woman sleeps."
      nmtkit explain --no-repeat-ngram 3 --steps all "The old woman sleeps." -o search.html
      sed -n 7p test.en | nmtkit explain --length-penalty none --json
    """
    if output is not None:
        if as_json:
            raise click.UsageError("--json prints, and -o draws a page: leave one of them out")
        require_html(output)
    lines = [sentence] if sentence is not None else stdin_sentences("explain")
    translator = inference.open_model(how)
    results = []
    for number, line in enumerate(lines, start=1):
        tree, translations = search_trees.search_tree(translator, line, f"line {number}")
        if translations[0].src_left_out:
            tell(f"line {number}: the last {translations[0].src_left_out:,} source tokens were not read")
        results.append((tree, translations))
    trees = [tree for tree, _ in results]
    if output is not None:
        save_search(trees, output)
        note(f"wrote {output}")
    elif as_json:
        printer = Printer(translator.tokenizers.tgt, 1, True)
        for number, (tree, translations) in enumerate(results, start=1):
            write_json_line(_record(printer, number, tree, translations))
    else:
        show_trees(trees, steps)


def show_trees(trees: Sequence[SearchTree], steps: int | None = None) -> None:
    """Prints the trees, and notes on stderr if steps were left out."""
    if sum(show_search(tree, steps) for tree in trees) and steps is None:
        note("--steps all shows every step; -o FILE.html draws them on a page")


def _record(printer: Printer, number: int, tree: SearchTree, translations: Sequence[Translation]) -> dict[str, Any]:
    """A tree as an object; `best` and `others` are those of `translate --json`."""
    return {
        "line": number,
        "source_tokens": translations[0].src_tokens,
        "settings": tree.settings,
        "beam_size": tree.beam_size,
        "steps": [[asdict(one) for one in step] for step in tree.steps],
        "stopped": tree.stopped,
        "best": printer.record(translations[0]),
        "others": [printer.record(one) for one in translations[1:]],
    }
