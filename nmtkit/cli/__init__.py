"""The command line: commands of one subject in one file, loaded only when one of them runs."""

import difflib
import gc
import importlib
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import click
from typing_extensions import override

from nmtkit.cli import streams
from nmtkit.core.errors import NmtkitError, shorten
from nmtkit.core.version import __version__

SECTIONS = {
    "Data": {
        "fetch": "Download a public corpus by name, filtered, split and ready to train on.",
        "check": "Find faults of a corpus before training; --fix cleans it.",
        "linearize": "Turn trees in Penn form into sentences and linear trees to train a parser on.",
        "preprocess": "Read and check a recipe's text, learn its tokenizer, and write arrays for training.",
    },
    "Training": {
        "train": "Train the model of a recipe, or on two text files; --resume continues a run.",
        "tune": "Measure which settings train a recipe fastest on this machine.",
        "average": "Average checkpoints of a run into one.",
        "watch": "Show the curves of a training in the terminal while it runs.",
        "runs": "List, rename and remove runs.",
    },
    "Using a model": {
        "translate": "Translate files or standard input, one line out for each line in.",
        "summarize": "Summarize files or standard input, one article a line.",
        "parse": "Parse sentences into constituency trees, and draw them.",
        "backtranslate": "Make parallel text to train on from text of one language, by a model.",
        "rerank": "Translate, and choose among N best by a noisy channel: reverse and language model.",
        "rescore": "Print the log-probabilities of given translations under a model.",
        "align": "Align the words of given translations by a model's attention.",
        "tokenize": "Split text into tokens with a run's tokenizer.",
        "detokenize": "Join tokens to text with a run's tokenizer.",
    },
    "Evaluation": {
        "evaluate": "Translate, summarize or classify a test set with a run, and score it.",
        "score": "Score translations as sacrebleu does: BLEU, chrF, TER.",
        "score-summaries": "Score summaries: ROUGE, novel and copied words, repetitions, length.",
        "score-alignments": "Score word alignments: alignment error rate, precision, recall.",
        "perplexity": "Measure how well a language model predicts a text, by token, word and frequency.",
        "compare": "Train several recipes and compare BLEU, alignments, speed, size.",
        "bench": "Measure the speed of decoding and training.",
    },
    "Looking inside": {
        "explain": "Show the beam search of a sentence as a tree: kept, ended, pruned, blocked.",
        "plot-attention": "Draw a model's attention as PNG, SVG, PDF, HTML or text (also: visualize-alignment).",
        "plot-training": "Draw loss, perplexity, validation score and learning rate of runs.",
    },
    "Exchange with other toolkits": {
        "import": "Convert a model of another toolkit to a run.",
        "export": "Convert a run for Hugging Face or CTranslate2, or to safetensors, with a model card.",
    },
    "Help": {
        "recipe": "List, show, check and explain recipes.",
        "guide": "Read the guide: first steps, how-tos, all options and recipe keys.",
        "doctor": "Show versions, devices, and which device is used and why.",
    },
}
"""Commands by purpose, with the line of `nmtkit --help`; each is `command` in the module of its name, or stands in:"""
SHARED_MODULES = {
    **dict.fromkeys(("align", "rescore"), "pairs"),
    **dict.fromkeys(("average", "import", "export"), "weights"),
    **dict.fromkeys(("plot-attention", "plot-training"), "plots"),
    **dict.fromkeys(("parse", "linearize"), "parsing"),
    "preprocess": "recipe",
    **dict.fromkeys(("score", "score-alignments"), "score"),
    **dict.fromkeys(("tokenize", "detokenize"), "tokens"),
    **dict.fromkeys(("translate", "summarize"), "translate"),
    **dict.fromkeys(("tune", "doctor"), "bench"),
}
"""Modules of several commands, which are called after the command there: `tokenize_command`."""
COMMANDS = [name for section in SECTIONS.values() for name in section]
ALIASES = {"visualize-alignment": "plot-attention"}
"""Other names of commands."""
ALLOCATIONS_PER_COLLECTION = 50_000
"""New objects after which Python collects garbage; its default of 700 takes a fifth of the time of a start."""


class LazyGroup(click.Group):
    """A group whose commands are imported on use, so that `--help` stays quick."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_further_tasks()]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            task = _further_tasks().get(name)
            return None if task is None else importlib.import_module("nmtkit.cli.commands.tasks").task_command(task)
        word = name.replace("-", "_")
        module = importlib.import_module(f"nmtkit.cli.commands.{SHARED_MODULES.get(name, word)}")
        command = getattr(module, f"{word}_command" if name in SHARED_MODULES else "command")
        assert isinstance(command, click.Command)
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = [*ALIASES, *self.list_commands(ctx)]
            near = difflib.get_close_matches(args[0], names, n=1, cutoff=0.7)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"no such command {shorten(repr(args[0]))}{hint}", ctx)
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        further = {"Using a model": {name: task.about for name, task in _further_tasks().items()}}
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                listed = commands | further.get(title, {})
                formatter.write_dl([(name.ljust(width), meaning) for name, meaning in listed.items()])


def _further_tasks() -> dict[str, Any]:
    """The tasks whose command is not listed above, by its name: `nmtkit.cli.tasks` makes it."""
    from nmtkit.tasks.builtin import PARSING, SUMMARIZATION, TRANSLATION
    from nmtkit.tasks.task import TASKS

    own = (TRANSLATION, SUMMARIZATION, PARSING)
    further = {task.command: task for task in map(TASKS.get, TASKS) if task.command and task not in own}
    for command in further.keys() & {*COMMANDS, *ALIASES}:
        raise NmtkitError(
            f"task {further[command].name}: `nmtkit {command}` is another command; give it one of its own"
        )
    return further


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="nmtkit")
def cli() -> None:
    """Neural machine translation and summarization in PyTorch.

    \b
    A first try:
      nmtkit train demo
      echo "The old woman does not see the red car." | nmtkit translate

    \b
    Your own two text files, line by line translations of each other:
      nmtkit check train.en train.de
      nmtkit train --source train.en --target train.de

    \b
    No text yet:
      nmtkit fetch --list

    \b
    Completion of commands, options, recipes, runs, corpora and keys, in bash (zsh: zsh_source) or fish:
      eval "$(_NMTKIT_COMPLETE=bash_source nmtkit)"
      _NMTKIT_COMPLETE=fish_source nmtkit | source
    """


_NO_ARGUMENTS_ERROR: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""What newer versions of click raise where no command is named; older ones show the help by themselves."""


def main() -> None:
    """Runs the command line. A user's mistake ends in one message on stderr and exit code 2."""
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)
    try:  # from the first line on: Ctrl-C may come at once
        streams.prepare_streams()
        _refuse_broken_arguments()
        if "_NMTKIT_COMPLETE" in os.environ:
            importlib.import_module("nmtkit.cli.completing")
        with suppress(ValueError):  # in another thread than the first
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was begun is cleared away, as after Ctrl-C
            sys.unraisablehook = _repeat_interrupt
        code = cli.main(prog_name="nmtkit", standalone_mode=False)
        sys.stdout.flush()
    except _NO_ARGUMENTS_ERROR as fault:  # no mistake: the commands are listed
        click.echo(fault.format_message())
        code = 0
    except NmtkitError as fault:
        click.echo(f"nmtkit: error: {fault}", err=True)
        code = fault.exit_code
    except click.ClickException as fault:  # in the same words as every other mistake
        context = fault.ctx if isinstance(fault, click.UsageError) else None
        remedy = f" (see `{context.command_path} --help`)" if context else ""
        lacks_option = isinstance(fault, click.MissingParameter) or "extra argument" in fault.message
        if context and lacks_option and context.info_name in _TEXT_FILES:
            remedy = f"; files are given as {_TEXT_FILES[context.info_name]}{remedy}"
        click.echo(f"nmtkit: error: {fault.format_message().removesuffix('.')}{remedy}", err=True)
        code = fault.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = _report_interrupt()
    except BrokenPipeError:  # whoever read our output has enough
        code = 1
    except OSError as fault:  # a full disk, mostly
        where = "a file" if fault.filename is None else os.fsdecode(fault.filename)
        click.echo(f"nmtkit: error: {where}: cannot read or write it: {fault.strerror or fault}", err=True)
        code = 2
    except Exception as fault:
        code = _report_error(fault)
    streams.flush_results()
    gc.freeze()  # else the interpreter's last collection goes through all that lives, to free what ends by itself
    sys.exit(code if isinstance(code, int) else 0)


_TEXT_FILES = {
    **dict.fromkeys(("align", "rescore", "train"), "--source FILE --target FILE"),
    "evaluate": "--source FILE --ref FILE",
    **dict.fromkeys(("score", "score-summaries", "score-alignments"), "FILE --ref FILE"),
}
"""How commands of two files name them."""


def _repeat_interrupt(fault: Any) -> None:
    """Python drops a Ctrl-C that comes while an object is freed: it comes again a moment later."""
    if issubclass(fault.exc_type, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(fault)


def _report_interrupt() -> int:
    click.echo("nmtkit: stopped", err=True)
    return 130


def _report_error(fault: Exception) -> int:
    """Reports Ctrl-C and exhausted memory; raises any other error again."""
    text = str(fault)
    if KeyboardInterrupt.__name__ in text:  # a library that it came in the middle of made this of it
        return _report_interrupt()
    # That the machine's memory was exhausted torch reports only in its message.
    in_torch = isinstance(fault, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
    if not in_torch and not isinstance(fault, MemoryError):
        raise fault
    first = text.splitlines()[0] if text else "MemoryError"
    click.echo(
        f"nmtkit: error: out of memory: {first}\nTake smaller batches (batch.batch_tokens in a recipe, with "
        "training.accumulate for updates of the same size; --batch-tokens elsewhere), a smaller model, or another "
        "device. A run that was training goes on with --resume, also with other batches: `--resume --set "
        "batch.batch_tokens=N --set training.accumulate=M`.",
        err=True,
    )
    return 2


def _refuse_broken_arguments() -> None:
    for number, argument in enumerate(sys.argv[1:], start=1):
        if any("\udc80" <= letter <= "\udcff" for letter in argument):  # how Python keeps bytes that are not UTF-8
            raise NmtkitError(f"argument {number} is not UTF-8: {argument!r}; convert it, or rename the file")
