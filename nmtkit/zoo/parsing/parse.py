"""`nmtkit parse` and `nmtkit linearize`."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import click

from nmtkit.cli.inference import model_options
from nmtkit.cli.pictures.figures import save_pictures
from nmtkit.cli.terminal.reporting import note
from nmtkit.cli.text_io import results
from nmtkit.cli.text_io.reading import text_windows, watched
from nmtkit.data.text.files.lines import read_lines
from nmtkit.data.tokenizers.tokenizer import Tokenizer
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.result import Translation
from nmtkit.plots.pages import picture_format
from nmtkit.zoo.parsing.pictures import save_trees, tree_lines
from nmtkit.zoo.parsing.task import PARSING
from nmtkit.zoo.parsing.trees import Tree, read_linear, read_penn


@results.into_output
@model_options.opens_model
def run_parse(
    how: DecodingOptions,
    files: tuple[Path, ...],
    form: str,
    scores: bool,
    as_json: bool,
    draw: bool,
    plot: Path | None,
) -> None:
    """Carries out `nmtkit parse`."""
    if draw and (how.n_best > 1 or scores or as_json or form != "text"):
        raise click.UsageError(
            "--draw shows only the best tree; remove --n-best, --scores, --json and --format"
        )
    if plot is not None:
        picture_format(plot)
    system = model_options.open_model(how, PARSING.name)
    printer = results.Printer(system.tokenizers.tgt, how.n_best, as_json, scores, form)
    waiting: deque[str] = deque()
    drawn: list[Tree] = []

    def write(found: Sequence[Translation]) -> None:
        line = waiting.popleft()
        place = f"line {printer.lines + 1}" if printer.folder is None else printer.folder.place()
        trees = [_tree(one, line, system.tokenizers.src, place) for one in found]
        both = zip(found, trees, strict=True)
        written = [one if tree is None else replace(one, text=tree.penn()) for one, tree in both]
        if draw and trees[0] is not None:
            written = [replace(written[0], text="\n".join([*tree_lines(trees[0]), ""]))]
        printer.write(written)
        drawn.extend(tree for tree in trees[:1] if plot is not None and tree is not None)

    windows = watched(text_windows(files, model_options.window_lines(system)), waiting.extend)
    stream = system.stream(windows, how.n_best, need_copies=as_json)
    results.write_stream(stream, write, "lines", "" if files else "type a sentence on each line")
    results.tell_cut(
        printer.cut, printer.lines, "sentences", system, ", so their trees cover only the beginning"
    )
    printer.report("trees", "--max-length")
    # after -o has saved the trees, because the figure may be too large
    if drawn and (path := plot) is not None:
        click.get_current_context().call_on_close(
            lambda: save_pictures([path], partial(save_trees, drawn))
        )


def _tree(one: Translation, line: str, tokenizer: Tokenizer, place: str) -> Tree | None:
    """Returns the tree over the line's words, or over the part that the model read; None for an empty line."""
    if not one.src_tokens:
        return None
    tree, words, read = (
        read_linear(one.text, place),
        line.split(),
        tokenizer.join(tokenizer.tokens(line)).split(" "),
    )
    # normalization splits a word that contains ´ into two
    words = words if len(words) == len(read) else read
    return tree.with_words(words[: sum(1 for _ in tree.leaves())] if one.src_left_out else words)


def run_linearize(files: tuple[Path, ...], source: Path, target: Path, tags: bool) -> None:
    """Carries out `nmtkit linearize`."""
    read = chain.from_iterable(read_penn("\n".join(read_lines(file)), str(file)) for file in files)
    count = 0
    if source.resolve() == target.resolve():
        raise click.UsageError(f"--source and --target are both {source}; use two different files")
    with results.output_file(source, files) as words, results.output_file(target, files) as trees:
        for tree in read:
            if (plain := tree.plain()) is not None:
                words.write(" ".join(plain.words()) + "\n")
                trees.write(plain.linear(tags) + "\n")
                count += 1
    note(f"wrote {count:,} trees to {source} (sentences) and {target} (linear trees)")
