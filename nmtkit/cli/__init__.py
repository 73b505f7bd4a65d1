"""The command line. Each file in `commands` has the commands of one subject, and is imported only when one is used."""

import difflib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from nmtkit.cli.text_io import streams
from nmtkit.core.errors import NmtkitError, shorten
from nmtkit.core.user_module import OPTION, load_copy, load_user_module
from nmtkit.core.version import __version__

SECTIONS = {
    "Data": {
        "fetch": "Download a public corpus by name: filtered, split and ready for training.",
        "check": "Find problems in a corpus before training; --fix cleans it.",
        "linearize": "Convert Penn Treebank trees to sentences and linear trees, to train a parser.",
        "preprocess": "Read and check a recipe's text, train its tokenizer, and write arrays for training.",
    },
    "Training": {
        "train": "Train a model from a recipe or on two text files; --resume continues a run.",
        "tune": "Measure which settings train a recipe fastest on this machine.",
        "average": "Average checkpoints of a run into one.",
        "watch": "Show the training curves of a run live in the terminal.",
        "runs": "List, rename and remove runs.",
    },
    "Using a model": {
        "translate": "Translate files or standard input, one output line per input line.",
        "summarize": "Summarize files or standard input, one article per line.",
        "parse": "Parse sentences into constituency trees, and draw them.",
        "backtranslate": "Create parallel training text by translating monolingual text.",
        "rerank": "Translate, and rerank the N best outputs with a reverse model and a language model.",
        "rescore": "Print a model's log-probabilities for existing translations.",
        "align": "Align the words of existing translations using a model's attention.",
        "tokenize": "Split text into tokens with a run's tokenizer.",
        "detokenize": "Join tokens into text with a run's tokenizer.",
    },
    "Evaluation": {
        "evaluate": "Translate, summarize or classify a test set with a run, and score the output.",
        "score": "Score translations as sacrebleu does: BLEU, chrF, TER.",
        "score-summaries": "Score summaries: ROUGE, novel and copied words, repetitions, length.",
        "score-alignments": "Score word alignments: alignment error rate, precision, recall.",
        "perplexity": "Measure how well a language model predicts text, per token and per word.",
        "compare": "Train several recipes and compare BLEU, alignments, speed and size.",
        "bench": "Measure the speed of decoding and training.",
    },
    "Looking inside": {
        "explain": "Show the beam search of a sentence as a tree of hypotheses.",
        "plot-attention": "Draw a model's attention as PNG, SVG, PDF, HTML or text (also: visualize-alignment).",
        "plot-training": "Draw the loss, perplexity, validation score and learning rate of runs.",
    },
    "Exchange with other toolkits": {
        "import": "Convert a model from another toolkit into a run.",
        "export": "Convert a run for Hugging Face or CTranslate2, or to safetensors, with a model card.",
    },
    "Help": {
        "recipe": "List, show, check and explain recipes.",
        "guide": "Read the guide: first steps, how-tos, all options and recipe keys.",
        "doctor": "Show versions and devices, and explain which device is used.",
    },
}
"""Commands by purpose, with their lines in `nmtkit --help`."""
MODULES = {
    "corpora.check": ["check"],
    "corpora.fetch": ["fetch"],
    "guide": ["guide"],
    "inference.backtranslate": ["backtranslate"],
    "inference.explain": ["explain"],
    "inference.pairs": ["align", "rescore"],
    "inference.perplexity": ["perplexity"],
    "inference.rerank": ["rerank"],
    "inference.tokens": ["tokenize", "detokenize"],
    "inference.translate": ["translate", "summarize"],
    "pictures.plots": ["plot-attention", "plot-training"],
    "scoring.evaluate": ["evaluate"],
    "scoring.score": ["score", "score-alignments"],
    "scoring.score_summaries": ["score-summaries"],
    "training.bench": ["bench", "tune", "doctor"],
    "training.compare": ["compare"],
    "training.recipe": ["recipe", "preprocess"],
    "training.runs": ["runs"],
    "training.train": ["train"],
    "training.watch": ["watch"],
    "training.weights": ["average", "import", "export"],
}
"""Modules in `nmtkit.cli.commands` and their commands; `score-alignments` is defined as `score_alignments_command`."""
ZOO_MODULES = {"nmtkit.zoo.parsing.commands": ["parse", "linearize"]}
"""The same for modules in `nmtkit.zoo`, which are listed by their full names."""
COMMANDS = [name for section in SECTIONS.values() for name in section]
TASKS_OF_COMMANDS = ("translation", "summarization", "parsing")
"""Tasks whose commands are listed in `COMMANDS`."""
ALIASES = {"visualize-alignment": "plot-attention"}
"""Alternative names of commands."""
ALLOCATIONS_PER_COLLECTION = 50_000
"""Number of new objects that triggers a garbage collection. With Python's default, 700, collections take a fifth of the
startup time."""


class LazyGroup(click.Group):
    """A command group that imports a command only when it is used, so that `--help` stays fast."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = _load_user_modules(ctx, args)
        return super().parse_args(ctx, rest)

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *_further_tasks()]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            task = _further_tasks().get(name)
            if task is None:
                return None
            tasks = importlib.import_module("nmtkit.cli.commands.inference.tasks")
            command = tasks.task_command(task)
        else:
            modules = {
                f"nmtkit.cli.commands.{path}": names for path, names in MODULES.items()
            } | ZOO_MODULES
            (path,) = [path for path, names in modules.items() if name in names]
            module = importlib.import_module(path)
            command = getattr(module, f"{name.replace('-', '_')}_command")
        assert isinstance(command, click.Command)
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            _load_copy_of_run(args[1:])  # may register the task of this command
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            names = [*ALIASES, *self.list_commands(ctx)]
            near = difflib.get_close_matches(args[0], names, n=1, cutoff=0.7)
            hint = f"; if it belongs to a task in a file of your own, add `{OPTION} FILE.py`"
            if near:
                hint = f": did you mean {near[0]!r}?"
            raise click.UsageError(f"no such command {shorten(repr(args[0]))}{hint}", ctx)
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        further = {"Using a model": {name: task.about for name, task in _further_tasks().items()}}
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                listed = commands | further.get(title, {})
                formatter.write_dl(
                    [(name.ljust(width), meaning) for name, meaning in listed.items()]
                )


def _load_user_modules(ctx: click.Context, args: Sequence[str]) -> list[str]:
    """Executes the user's files named before or after the command; returns the other arguments."""
    paths: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == OPTION:
            path = next(words, None)
            if path is None:  # click reports the missing value
                return [OPTION]
            paths.append(path)
        elif word.startswith(f"{OPTION}="):
            paths.append(word.partition("=")[2])
        else:
            rest.append(word)
    if not ctx.resilient_parsing:  # completion must not execute user code
        for path in paths:
            load_user_module(path)
    return rest


def _load_copy_of_run(args: Sequence[str]) -> None:
    """Executes the run's copy of the user's file, if the arguments or $NMTKIT_MODEL name a run that has a copy."""
    names = [word.partition("=")[2] for word in args if word.startswith("--model=")]
    names += [value for word, value in pairwise(args) if word in ("-m", "--model")]
    for name in names or [os.environ.get("NMTKIT_MODEL", "")]:
        for folder in (Path(name), Path("runs", name)):
            if name:
                load_copy(folder)


def _further_tasks() -> dict[str, Any]:
    """Returns the tasks whose commands `nmtkit.cli.commands.inference.tasks` creates, by command name."""
    from nmtkit.config.tasks.task import TASKS

    tasks = [TASKS.get(name) for name in TASKS if name not in TASKS_OF_COMMANDS]
    further = {task.command: task for task in tasks if task.command}
    for command in further.keys() & {*COMMANDS, *ALIASES}:
        raise NmtkitError(
            f"task {further[command].name}: the command `nmtkit {command}` already exists; give the task's command a "
            "different name"
        )
    return further


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="nmtkit")
@click.option(
    OPTION,
    metavar="FILE",
    expose_value=False,
    help="Your Python file that registers custom models, losses, tasks, etc. (see `nmtkit guide extending`). The "
    "option may also follow the command. A run trained with the file keeps a copy of it.",
)
def cli() -> None:
    """Neural machine translation and summarization in PyTorch.

    \b
    Getting started:
      nmtkit train demo
      echo "The old woman does not see the red car." | nmtkit translate

    \b
    With your own parallel text, in two files whose lines are translations of each other:
      nmtkit check train.en train.de
      nmtkit train --source train.en --target train.de

    \b
    Without text of your own:
      nmtkit fetch --list

    \b
    Shell completion for commands, options, recipes, runs, corpora and keys, in bash (zsh: zsh_source) or fish:
      eval "$(_NMTKIT_COMPLETE=bash_source nmtkit)"
      _NMTKIT_COMPLETE=fish_source nmtkit | source
    """


_NO_ARGUMENTS_ERROR: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""Exception that newer versions of click raise if no command is given; older versions print the help themselves."""


def main() -> None:
    """Runs the command line. A user error produces a single message on stderr and exit code 2."""
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)
    try:  # covers every line, because Ctrl-C may arrive at any time
        streams.prepare_streams()
        _refuse_broken_arguments()
        if "_NMTKIT_COMPLETE" in os.environ:
            importlib.import_module("nmtkit.cli.completing")
        with suppress(ValueError):  # raised outside of the main thread
            # like Ctrl-C, so that partial results are cleaned up
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            sys.unraisablehook = _repeat_interrupt
        code = cli.main(prog_name="nmtkit", standalone_mode=False)
        sys.stdout.flush()
    except _NO_ARGUMENTS_ERROR as fault:  # not an error; the message lists the commands
        click.echo(fault.format_message())
        code = 0
    except NmtkitError as fault:
        click.echo(f"nmtkit: error: {fault}", err=True)
        code = fault.exit_code
    except click.ClickException as fault:  # printed in the same form as other errors
        context = fault.ctx if isinstance(fault, click.UsageError) else None
        remedy = f" (see `{context.command_path} --help`)" if context else ""
        lacks_option = (
            isinstance(fault, click.MissingParameter) or "extra argument" in fault.message
        )
        if context and lacks_option and context.info_name in _TEXT_FILES:
            remedy = f"; pass files as {_TEXT_FILES[context.info_name]}{remedy}"
        click.echo(f"nmtkit: error: {fault.format_message().removesuffix('.')}{remedy}", err=True)
        code = fault.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = _report_interrupt()
    except BrokenPipeError:  # the program that reads our output has exited
        code = 1
    except OSError as fault:  # usually because the disk is full
        where = "a file" if fault.filename is None else os.fsdecode(fault.filename)
        click.echo(
            f"nmtkit: error: {where}: cannot be read or written: {fault.strerror or fault}",
            err=True,
        )
        code = 2
    except Exception as fault:
        code = _report_error(fault)
    streams.flush_results()
    gc.freeze()  # skips the garbage collection at exit, which would visit every live object
    sys.exit(code if isinstance(code, int) else 0)


_TEXT_FILES = {
    **dict.fromkeys(("align", "rescore", "train"), "--source FILE --target FILE"),
    "evaluate": "--source FILE --ref FILE",
    **dict.fromkeys(("score", "score-summaries", "score-alignments"), "FILE --ref FILE"),
}
"""How to pass files to the commands that need two."""


def _repeat_interrupt(fault: Any) -> None:
    """Repeats a Ctrl-C that arrived while Python was freeing an object, because Python ignores exceptions there."""
    if issubclass(fault.exc_type, KeyboardInterrupt):
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(fault)


def _report_interrupt() -> int:
    click.echo("nmtkit: stopped", err=True)
    return 130


def _follows_interrupt(fault: BaseException) -> bool:
    """Returns whether an error was raised while a KeyboardInterrupt was being handled."""
    earlier = fault.__cause__ or fault.__context__
    while earlier is not None and not isinstance(earlier, KeyboardInterrupt):
        earlier = earlier.__cause__ or earlier.__context__
    return earlier is not None


def _report_error(fault: Exception) -> int:
    """Reports Ctrl-C and exhausted memory, and returns the exit code; re-raises any other error."""
    text = str(fault)
    # A library may have wrapped the KeyboardInterrupt in another error, or have failed to clean up after it.
    if KeyboardInterrupt.__name__ in text or _follows_interrupt(fault):
        return _report_interrupt()
    # torch has no exception class for exhausted CPU memory, only a message.
    in_torch = isinstance(fault, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )
    if not in_torch and not isinstance(fault, MemoryError):
        raise fault
    first = text.splitlines()[0] if text else "MemoryError"
    click.echo(
        f"nmtkit: error: out of memory: {first}\nUse smaller batches (batch.batch_tokens in a recipe, with "
        "training.accumulate to keep updates the same size; --batch-tokens in other commands), a smaller model, or a "
        "different device. An interrupted run can be resumed with different batches: `--resume --set "
        "batch.batch_tokens=N --set training.accumulate=M`.",
        err=True,
    )
    return 2


def _refuse_broken_arguments() -> None:
    for number, argument in enumerate(sys.argv[1:], start=1):
        # Python represents bytes that are not UTF-8 as surrogates.
        if any("\udc80" <= letter <= "\udcff" for letter in argument):
            raise NmtkitError(
                f"argument {number} is not UTF-8: {argument!r}; convert it to UTF-8, or rename the file"
            )
