"""What commands that use a trained run share: options, opening it, and printing what it found."""

import json
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import click

from nmtkit.cli import options
from nmtkit.cli.options import Decorator, Number, grouped, together
from nmtkit.cli.reporting import note, tell
from nmtkit.cli.results import Prompt, progress
from nmtkit.core.errors import DataError
from nmtkit.core.settings import MOST_THREADS, parse_json
from nmtkit.corpus.blocks import Example
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.reading import read_pairs
from nmtkit.data.tokenizer import Tokenizer
from nmtkit.experiment.opening import Opening, open_run
from nmtkit.search.rules import SearchConfig
from nmtkit.translation.paragraphs import Paragraph
from nmtkit.translation.result import Translation, copied_spans, moses_line
from nmtkit.translation.summarizer import Summary
from nmtkit.translation.translator import Translator

PAIRS_AT_ONCE = 2048
Written = TypeVar("Written")

# -------------------------------------------------------------------------------------------------------------- options

SEARCH: dict[str, str | None] = {
    "beam_size": None,
    "length_penalty": "KIND[:ALPHA]",
    "min_length": "TOKENS",
    "max_length": "TOKENS",
    "min_length_ratio": "R",
    "max_length_ratio": "R",
    "no_repeat_ngram": "N",
    "no_repeat_except": "WORDS",
    "repetition_penalty": "THETA",
    "coverage_penalty": "BETA",
    "coverage_kind": None,
    "word_reward": "R",
    "stop": None,
    "patience": "P",
    "prefix_bias": "BETA",
    "diversity_groups": "G",
    "diversity_strength": "LAMBDA",
    "samples": "N",
    "temperature": "T",
    "top_k": "K",
    "top_p": "P",
    "epsilon": "E",
    "seed": "N",
    "mbr": None,
}
"""The keys of the recipe's `search` group that have options, and what stands for their values if not their type."""


class _Penalty(click.ParamType):  # type: ignore[type-arg]  # newer versions of click have one
    """A length penalty with its strength: the values of two keys."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, object]:
        """The keys that it sets."""
        kind, _, alpha = value.partition(":")
        try:
            return {"length_penalty": kind, **({"alpha": float(alpha)} if alpha else {})}
        except ValueError:
            self.fail(f"{alpha!r} is not a number", param, ctx)


class _Workers(Number):
    """A number of processes, or `auto`, which is None."""

    def __init__(self) -> None:
        super().__init__(1, MOST_THREADS)
        self.name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number that was given."""
        return None if value == "auto" else super().convert(value, param, ctx)  # type: ignore[return-value]


def search_type(key: str) -> click.ParamType:  # type: ignore[type-arg]  # newer versions of click have one
    """What an option takes for a key of the search: one of its values, or a number within its bounds."""
    if key == "length_penalty":
        return _Penalty()
    setting = SearchConfig.model_fields[key]
    if values := get_args(setting.annotation):
        return click.Choice(values)
    if setting.annotation is str:
        return click.STRING
    bounds = {end: getattr(one, end) for one in setting.metadata for end in ("ge", "le") if hasattr(one, end)}
    remedy = "; the likeliest word in every step is --beam-size 1 without --samples" if key == "temperature" else ""
    return Number(bounds["ge"], bounds.get("le"), whole=setting.annotation is int, remedy=remedy)


def search_options(*keys: str) -> Decorator:
    """Options of the search, those named or all but the one of prefixes; a command takes them as `search_settings`."""
    names = keys or tuple(key for key in SEARCH if key != "prefix_bias")

    def option(key: str) -> Decorator:
        strength = " ALPHA is its strength, e.g. gnmt:0.6." if key == "length_penalty" else ""
        meaning = f"{SearchConfig.meaning(key)}{strength} Default: the recipe's."
        return click.option(f"--{key.replace('_', '-')}", key, type=search_type(key), metavar=SEARCH[key], help=meaning)

    def gather(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_settings(**given: Any) -> Any:
            settings: dict[str, object] = {}
            for key in names:
                value = given.pop(key)
                settings |= value if isinstance(value, dict) else {} if value is None else {key: value}
            if "n_best" in given and given["n_best"] is None:  # all samples, if no risk chooses among them
                given["n_best"] = 1 if settings.get("mbr", "none") != "none" else settings.get("samples") or 1
            return command(search_settings=settings, **given)

        return with_settings

    return together(*map(option, names), gather)


checkpoint: Decorator = click.option(
    "--checkpoint",
    "weights",
    default="auto",
    metavar="WHICH",
    help="best, last, average, a stage of the recipe (its best), or a file. Default: the average if one was made, "
    "else the best.",
)
which_run: Decorator = together(options.model, checkpoint, options.device)
which_runs: Decorator = together(options.models, checkpoint, options.device)
"""The same for commands that take several runs as one model."""
which_runs_where: Decorator = together(options.models, checkpoint, options.devices)
"""The same for commands that also share lines out to several devices."""


def precision(default: str) -> Decorator:
    """The option of how exactly the model computes."""
    meanings = (
        "Precision of the matrix products. auto: on a CPU fp32, or what `nmtkit tune` found to give the same texts in "
        "less time; on CUDA fp16. bf16 and int8 may change a few words."
    )
    choice = click.Choice(get_args(get_type_hints(Opening)["precision"]))
    return click.option("--precision", type=choice, default=default, show_default=True, help=meanings)


engine: Decorator = click.option(
    "--engine",
    type=click.Choice(get_args(get_type_hints(Opening)["engine"])),
    default="auto",
    show_default=True,
    help="Record steps: on CUDA once that pays, and of single lines on a CPU; never (eager); on CUDA at once (graph).",
)

_OTHER_FORMS = ("as_json", "scores", "window", "split_sentences", "lead")
"""Options that say how results are written or joined."""


def _one_format(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that refuses another form of results beside the one of `--format moses`."""

    @wraps(command)
    def with_form(form: str, **given: Any) -> Any:
        other = [name for name in _OTHER_FORMS if given.get(name)]
        if form == "moses" and other:
            option = "json" if other[0] == "as_json" else other[0].replace("_", "-")
            raise click.UsageError(f"--format moses writes n-best lists: leave --{option} out")
        return command(form=form, **given)

    return with_form


n_best: Decorator = together(
    click.option(
        "--n-best",
        type=search_type("beam_size"),
        help="Print the N best results of each line, best first. Default: 1; of --samples all.",
    ),
    click.option(
        "--format",
        "form",
        type=click.Choice(("text", "moses")),
        default="text",
        show_default=True,
        help="moses: n-best lines for Moses, Marian and OpenNMT tools, NUMBER ||| TEXT ||| FEATURES ||| SCORE, lines "
        "counted from 0.",
    ),
    _one_format,
)
layer: Decorator = click.option(
    "--layer",
    type=Number(1),
    metavar="N",
    help="Transformer: the attention of decoder layer N, from 1. Default: the recipe's, else the last but one.",
)
head: Decorator = click.option(
    "--head",
    type=Number(1),
    metavar="N",
    help="Transformer: the attention of head N of the layer, from 1. Default: the recipe's, else the mean of all.",
)
shortlist: Decorator = click.option(
    "--shortlist",
    type=options.FILE,
    help="Search only among the words that this file has for those of the source, as `nmtkit align --shortlist` wrote "
    "it; quicker where the vocabulary is large. Log-probabilities are then of these words, and the products with them "
    "are fp32 on a CPU.",
)
source_file: Decorator = click.option("--source", required=True, type=options.FILE, help="Source lines, plain or .gz.")
workers: Decorator = click.option(
    "--workers",
    type=_Workers(),
    default="auto",
    help="CPU: processes that search, each with one core. auto: as many as threads where there are many lines, if one "
    "search a core was found quickest. 1: this process alone.",
)
opening: Decorator = grouped(Opening, "how")
"""Hands a command the options of opening a run as one `Opening`."""
batches: Decorator = together(
    click.option(
        "--batch-tokens", type=Number(1), help="Padded source tokens in a batch. Default: what suits the device."
    ),
    options.threads,
    opening,
)
"""The same, with the options of how much is computed at once."""


def open_asked(how: Opening, task: str | None = None) -> Translator:
    """Opens the run that was asked for, and says on stderr which run, which weights and which device it is."""
    return open_run(how, task, note)


def pair_windows(source: Path, target: Path, json_target: bool = False) -> Iterator[list[Example]]:
    """The pairs of two files, some at a time; `json_target` says whether each target is a JSON text."""
    pairs = read_pairs(SplitFiles(src=[str(source)], tgt=[str(target)]), json_target)
    return iter(lambda: list(islice(pairs, PAIRS_AT_ONCE)), [])


def read_translation(line: str, where: str) -> Translation:
    """The best translation of a line that `nmtkit translate --json` printed.

    Raises:
        DataError: the line is nothing of the kind; `where` is what the message calls it.
    """
    plain = "for translations in plain text take another suffix, such as .txt"
    try:
        record = parse_json(line, where)
    except DataError as fault:
        raise DataError(f"{fault}, so it is not what `nmtkit translate --json` prints; {plain}") from fault
    if isinstance(record, dict) and (pieces := {"windows", "sentences"} & record.keys()):
        what, option = ("summary", "--window") if "windows" in pieces else ("translation", "--split-sentences")
        raise DataError(
            f"{where}: a {what} of several {pieces.pop()}, each read by itself, cannot be rescored as one; "
            f"leave {option} out, or write plain text"
        )
    try:
        best = record["best"]
        return Translation(
            text=str(best["text"]),
            score=float(best["score"]),
            log_prob=float(best["log_prob"]),
            tokens=[str(token) for token in best["tokens"]],
            token_log_probs=[],
            src_tokens=[],
            finished=bool(best["finished"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError) as fault:
        raise DataError(f"{where}: not what `nmtkit translate --json` prints ({fault!r}); {plain}") from fault


@dataclass
class Printer:
    """Writes results to standard output, line by line, and counts what a user should be told at the end."""

    tokenizer: Tokenizer
    """Of the target."""
    n_best: int
    """How many results of each line were asked for."""
    as_json: bool
    """Whether to write objects."""
    scores: bool = False
    """Whether score and log-probability stand before each."""
    form: str = "text"
    """What `--format` says."""
    replaced: bool = False
    """Whether unknown words were to be replaced, so that objects say which."""
    lines: int = 0
    """Lines of input that were written."""
    unfinished: int = 0
    """Results that reached the length limit before their end."""
    cut: int = 0
    """Lines of input that were not read to their end."""
    fewer: int = 0
    """Lines of input with fewer results than were asked for, since equal texts are one."""

    def write(self, found: Sequence[Translation]) -> None:
        """Writes the results of one line of input, best first."""
        self._count(found[:1])
        best = found[0]
        self.fewer += len(found) < self.n_best and bool(best.src_tokens)
        if self.as_json:
            left_out = {"source_tokens_left_out": best.src_left_out} if best.src_left_out else {}
            record = {"line": self.lines, "source_tokens": best.src_tokens, **left_out}
            write_json_line(record | {"best": self.record(best), "others": [self.record(one) for one in found[1:]]})
        elif self.form == "moses":
            for one in found:
                _write(moses_line(self.lines - 1, one))
        elif self.n_best > 1:
            for one in found:
                _write(f"{self.lines}\t{one.score:.6f}\t{one.log_prob:.6f}\t{one.text}")
        elif self.scores:
            _write(f"{best.score:.6f}\t{best.log_prob:.6f}\t{best.text}")
        else:
            _write(best.text)

    def write_windows(self, summary: Summary) -> None:
        """Writes the summary of one article that was read in windows."""
        self._write_pieces(summary.text, "windows", summary.windows)

    def write_sentences(self, paragraph: Paragraph) -> None:
        """Writes the translation of one line that was cut into sentences."""
        self._write_pieces(paragraph.text, "sentences", paragraph.sentences)

    def _write_pieces(self, text: str, name: str, pieces: Sequence[Translation]) -> None:
        self._count(pieces)
        if self.as_json:
            records = [{"source_tokens": one.src_tokens, "best": self.record(one)} for one in pieces]
            write_json_line({"line": self.lines, "text": text, name: records})
        else:
            _write(text)

    def say_at_end(self, results: str, remedy: str) -> None:
        """Says on stderr how many results reached the length limit, by which options it is raised, and what is less."""
        if self.fewer:
            tell(f"{self.fewer} of {self.lines} lines have fewer than {self.n_best} {results}: equal texts are one")
        if self.unfinished:
            tell(
                f"{self.unfinished} of the {results} reached the length limit before their end; "
                f"raise it with {remedy} if they look cut"
            )

    def _count(self, found: Sequence[Translation]) -> None:
        self.lines += 1
        for what in {what for one in found for what in one.amiss}:
            tell(f"line {self.lines}: the translation {what}")
        self.unfinished += any(not one.finished for one in found)
        self.cut += any(one.src_left_out > 0 for one in found)

    def record(self, one: Translation) -> dict[str, Any]:
        """A result as an object."""
        names = ("text", "score", "log_prob", "tokens", "token_log_probs", "finished")
        fields = {name: getattr(one, name) for name in names}
        if self.replaced:
            fields["replaced"] = [asdict(replacement) for replacement in one.replaced]
        if one.copied is not None:
            spans = copied_spans(self.tokenizer, one.tokens, one.src_tokens, one.copied)
            fields |= {"p_gen": one.p_gen, "copied": one.copied, "copied_spans": [asdict(span) for span in spans]}
        return fields


def write_found(
    found: Generator[Sequence[Written], None, None],
    write: Callable[[Written], None],
    what: str,
    prompt: Prompt | None = None,
) -> None:
    """Writes what is found, as soon as it is, with a line on stderr that says how many of `what` are done."""
    if prompt:
        prompt.ask()
    with progress(what) as shown, closing(found):
        for some in found:
            for one in some:
                write(one)
            sys.stdout.flush()
            shown.advance(len(some))
            if prompt:
                prompt.ask()
    if prompt:
        prompt.end()


def write_json_line(record: dict[str, Any]) -> None:
    """Writes an object as a line of standard output."""
    _write(json.dumps(record, ensure_ascii=False))


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
