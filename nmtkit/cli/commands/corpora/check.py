"""`nmtkit check`."""

from typing import Any

import click
import cloup

from nmtkit.cli import completing
from nmtkit.cli import options as shared
from nmtkit.config.tasks.task import TASKS

SPLIT_OPTIONS = ("--valid", "--test")


class _CheckCommand(cloup.Command):
    """A command whose --valid and --test take one file or two; click supports only a fixed number of values."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, shared.spread_files(args, SPLIT_OPTIONS))


@cloup.command(cls=_CheckCommand)
@click.argument(
    "names", metavar="RECIPE|FILES...", nargs=-1, required=True, shell_complete=completing.recipes
)
@cloup.option_group(
    "Common",
    click.option(
        "--fix",
        "fix_path",
        metavar="DIR",
        help="Write cleaned files to DIR, with a log of all changed and dropped lines.",
    ),
    click.option(
        "--html", "html_path", metavar="FILE", help="Write the report to FILE as an HTML page."
    ),
    click.option(
        "--json",
        "json_path",
        metavar="FILE",
        help="Write all results to FILE as JSON; - is standard output.",
    ),
    click.option("--strict", is_flag=True, help="Treat warnings as errors in the exit code."),
)
@cloup.option_group(
    "Files",
    click.option(
        "--valid",
        multiple=True,
        metavar="SRC [TGT]",
        help="Validation set; give it after the training files.",
    ),
    click.option(
        "--test", multiple=True, metavar="SRC [TGT]", help="Test set; the target is optional."
    ),
    click.option(
        "--task",
        type=click.Choice(TASKS.names()),
        help="Task of the corpus. Default: summarization for .story files or a field named `summary`, else "
        "translation.",
    ),
    shared.encoding,
)
@cloup.option_group(
    "Recipes",
    click.option(
        "--tokens/--no-tokens",
        "with_tokens",
        default=True,
        help="Tokenize the text to find unknown tokens and pairs that training will leave out. Default: on.",
    ),
    shared.run_folder,
    shared.overrides,
)
def check_command(**values: Any) -> int:
    """Find problems in a corpus before training: a recipe's corpus, two text files, or JSON lines.

    FILE#COLUMN is a column of a table (pairs.tsv#1, pairs.csv#English), a language of a TMX file (memory.tmx#en), or a
    field of JSON lines (news.jsonl#article). A .jsonl file alone must have the fields src and tgt.

    The command finds different line counts and misaligned lines, with the line where the misalignment begins; bytes
    that are not UTF-8, NUL bytes, and line separators inside lines; empty, identical and near-empty sides; duplicates,
    and overlap between training, validation and test sets; unusual lengths and ratios; swapped sides, and lines in
    another script or language (py3langid recognizes 139 languages; a million lines of 100 characters take about two
    minutes). For a recipe, it also finds unknown and copyable words, vocabulary entries and characters that do not
    occur in the training text, and pairs that the recipe's settings will truncate or leave out. It uses the run's
    tokenizer, or trains one.

    --fix repairs lines where possible, drops the other faulty lines, and logs both in dropped.jsonl. It writes UTF-8,
    and converts files whose encoding it recognizes with certainty. For a recipe, it also writes a recipe that uses the
    new files. It overwrites nothing, and does not repair files with different numbers of lines, because it cannot know
    which line is missing.

    \b
    Exit code, for scripts:
      0  no errors (with --strict: no warnings either)
      1  errors; with --fix: errors that it could not repair
      2  nothing checked: the recipe or an option is invalid

    \b
    Examples:
      nmtkit check demo
      nmtkit check train.en train.de --valid valid.en valid.de --test test.en test.de
      nmtkit check memory.tmx#en memory.tmx#fr
      nmtkit check news.jsonl#article news.jsonl#summary
      nmtkit check mine.yaml --fix clean && nmtkit train clean/mine.yaml
      nmtkit check mine.yaml --strict --json - | jq .verdict
    """
    from nmtkit.cli.corpora.check import run_check

    return run_check(**values)
