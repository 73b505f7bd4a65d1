"""`nmtkit translate`, `nmtkit rerank` and `nmtkit summarize`."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import click
import cloup

from nmtkit.cli import completing, inference, options, results
from nmtkit.cli.options import FILE, Decorator, Number
from nmtkit.cli.reading import field_lines, text_windows, windows
from nmtkit.cli.reporting import is_quiet, note, tell
from nmtkit.cli.scoring import read_texts
from nmtkit.core.formats import dump_yaml, load_yaml
from nmtkit.core.settings import parse
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.json_records import EXTRACT_HINT
from nmtkit.corpus.reading import read_pairs
from nmtkit.corpus.text import read_lines
from nmtkit.experiment.loading import DecodingOptions
from nmtkit.metrics import metric_names
from nmtkit.tasks.language_modelling import LANGUAGE_MODELLING
from nmtkit.tasks.summarization import SUMMARIZATION
from nmtkit.tasks.translation import TRANSLATION
from nmtkit.translation.inputs import require_pairs
from nmtkit.translation.long_texts import ParagraphTranslator, Summarizer, looks_like_paragraph
from nmtkit.translation.requests import Request, Terminology, parse_dictionary
from nmtkit.translation.reranking import Candidate, ChannelWeights, rerank, score_candidates, tune_weights
from nmtkit.translation.translator import Translator

scores_option: Decorator = click.option("--scores", is_flag=True, help="Print score and log-probability in front.")


def decoding_options(common: Sequence[Decorator], *groups: Decorator, output: Sequence[Decorator] = ()) -> Decorator:
    """The options of commands that search; `common` and `output` are more of the groups Common and Output."""
    return options.together(
        options.files,
        cloup.option_group(
            "Common",
            options.models,
            inference.checkpoint,
            results.output,
            inference.search_flags("beam_size"),
            inference.n_best,
            *common,
            options.devices,
        ),
        *groups,
        inference.search_groups(inference.workers),
        cloup.option_group("Output", inference.format_option, *output),
        options.quiet,
        results.into_output,
        inference.opens_model,
    )


@cloup.command("translate")
@decoding_options(
    [
        inference.language,
        scores_option,
        options.as_json("Print a JSON object for each line."),
        click.option("--split-sentences", is_flag=True, help="Translate each sentence of a line by itself."),
        click.option("--interactive", is_flag=True, help="Read lines from a prompt; shows alignment and alternatives."),
    ],
    cloup.option_group(
        "Constraints",
        click.option("--terms", type=FILE, metavar="FILE", help="Glossary, SOURCE TAB TARGET on each line."),
        click.option("--prefix", is_flag=True, help="Lines are SOURCE TAB PREFIX of the output."),
        click.option(
            "--jsonl", is_flag=True, help='Lines are JSON: "source", "prefix", "must", "must_not", "in_order".'
        ),
    ),
    output=[
        click.option("--replace-unknown", is_flag=True, help="Replace <unk> by the source word attended to most."),
        click.option("--dictionary", type=FILE, metavar="FILE", help="For --replace-unknown: SOURCE TAB TARGET lines."),
    ],
)
def translate_command(
    how: DecodingOptions,
    files: tuple[Path, ...],
    form: str,
    scores: bool,
    as_json: bool,
    split_sentences: bool,
    interactive: bool,
    prefix: bool,
    jsonl: bool,
    terms: Path | None,
    replace_unknown: bool,
    dictionary: Path | None,
) -> None:
    """Translate FILEs, or standard input: one line out for each line in, in order.

    FILEs are plain or .gz and are translated as one text. An empty line gives an empty line. --n-best K prints
    "NUMBER TAB SCORE TAB LOG-PROBABILITY TAB TRANSLATION", with lines counted from 1. The score is the log-probability
    (natural log) after the length penalty. `nmtkit guide decoding` explains constraints, sampling and ensembles.

    \b
    Examples:
      nmtkit translate input.txt -o output.txt
      cat input.txt | nmtkit translate --n-best 3
      nmtkit translate --beam-size 10 --length-penalty gnmt:0.6 input.txt
      nmtkit translate --json input.txt | jq .best.score
      nmtkit translate -m runs/seed1 -m runs/seed2 input.txt
      nmtkit translate --samples 5 --top-p 0.9 --temperature 0.8 --seed 7 input.txt
      nmtkit translate --beam-size 12 --search diversity_groups=4 --n-best 4 input.txt
    """
    if prefix and jsonl:
        raise click.UsageError('--jsonl gives prefixes as "prefix": leave --prefix out')
    constrained = prefix or jsonl or terms is not None
    if interactive:
        from nmtkit.cli.explain import converse

        if files or constrained or as_json or scores or split_sentences or form != "text":
            raise click.UsageError(
                "--interactive asks for lines and shows results in its own way: leave FILE and the options --format, "
                "--scores, --json, --split-sentences, --prefix, --jsonl and --terms out"
            )
        if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
            raise click.UsageError("--interactive needs a terminal; files and pipes are translated without it")
        converse(_open(how, terms, replace_unknown, dictionary), how.n_best)
        return
    if split_sentences and (how.n_best > 1 or scores or constrained):
        raise click.UsageError(
            "--split-sentences joins translations of parts of lines: leave --n-best, --scores, --prefix, --jsonl and "
            "--terms out"
        )
    translator = _open(how, terms, replace_unknown, dictionary)
    printer = results.Printer(translator.tokenizers.tgt, how.n_best, as_json, scores, form, replace_unknown)
    invitation = "" if files else "type a sentence on each line; it is translated"
    text = text_windows(files, "" if jsonl else EXTRACT_HINT, inference.window_lines(translator))
    if split_sentences:
        paragraphs = ParagraphTranslator(translator).stream(text, as_json)
        results.write_stream(paragraphs, printer.write_joined, "lines", invitation)
    else:
        read = Request.of_json if jsonl else Request.of_fields if prefix else Request.of
        lines = _requests(text, read) if constrained else _noting_paragraphs(text)
        stream = translator.stream(lines, how.n_best, need_copies=as_json)
        results.write_stream(stream, printer.write, "lines", invitation)
    printer.report("translations", "--max-length or --search max_length_ratio=R")


def _open(how: DecodingOptions, terms: Path | None, replace_unknown: bool, dictionary: Path | None) -> Translator:
    if dictionary is not None and not replace_unknown:
        raise click.UsageError("--dictionary is for --replace-unknown; give both")
    entries = None if dictionary is None else parse_dictionary(read_lines(dictionary), str(dictionary))
    translator = inference.open_model(how, TRANSLATION.name)
    if replace_unknown:
        if translator.config.forbid_unknown:
            note("the recipe's search.forbid_unknown is off, for --replace-unknown")
        translator = translator.replacing_unknown(entries)
    if terms is not None:
        translator.config.reject_constraints()
        translator = replace(translator, terminology=Terminology(parse_dictionary(read_lines(terms), str(terms))))
    return translator


def _requests(text: Iterable[list[str]], read: Callable[[str, str], Request]) -> Iterator[list[Request]]:
    """The windows of lines as requests, each of which is read from a line and its name."""
    count = 0
    for window in text:
        yield [read(line, f"line {number}") for number, line in enumerate(window, start=count + 1)]
        count += len(window)


def _noting_paragraphs(text: Iterable[list[str]]) -> Iterator[list[str]]:
    """The windows as they are; warns of the first line that looks like a paragraph."""
    count, warned = 0, is_quiet()
    for window in text:
        for number, line in enumerate(window, start=count + 1):
            if not warned and looks_like_paragraph(line):
                tell(f"line {number} looks like a paragraph: --split-sentences translates it sentence by sentence")
                warned = True
        count += len(window)
        yield window


@cloup.command("rerank")
@options.files
@cloup.option_group(
    "Common",
    options.models,
    click.option("--channel", metavar="RUN", required=True, shell_complete=completing.runs, help="Target to source."),
    click.option(
        "--lm", "speaker", metavar="RUN", shell_complete=completing.runs, help="Language model of the target."
    ),
    click.option("--n-best", type=Number(1), default=10, show_default=True, help="Candidates for each line."),
    click.option(
        "--weights", "tuned", type=FILE, metavar="FILE", help="YAML that --tune wrote. Default: channel 1, lm 1."
    ),
    click.option("--tune", type=FILE, metavar="REF", help="Print the best weights by these references of FILEs."),
    click.option("--metric", default="bleu", show_default=True, help="What --tune goes by."),
    results.output,
    options.as_json("Print a JSON object for each line: candidates with nats a token of each model."),
    options.device,
)
@cloup.option_group(
    "Search and speed",
    inference.search_flags("beam_size"),
    inference.search,
    inference.precision("auto"),
    options.threads,
)
@options.quiet
@results.into_output
@inference.opens_model
def rerank_command(
    how: DecodingOptions,
    files: tuple[Path, ...],
    channel: str,
    speaker: str | None,
    tuned: Path | None,
    tune: Path | None,
    metric: str,
    as_json: bool,
) -> None:
    """Translate FILEs, or standard input; of the N best a channel and a language model choose (Yee et al. 2019).

    The channel model translates from the target to the source. All three may have other vocabularies.

    \b
    Examples:
      nmtkit rerank -m runs/mine --channel runs/back --lm runs/lm valid.en --tune valid.de -o weights.yaml
      nmtkit rerank -m runs/mine --channel runs/back --lm runs/lm --weights weights.yaml test.en -o new.de
    """
    if tune is not None and (tuned is not None or as_json):
        raise click.UsageError("--tune prints weights: leave --weights and --json out")
    chosen = parse(ChannelWeights, {} if tuned is None else load_yaml(tuned)[0], str(tuned))
    translator = inference.open_model(how, TRANSLATION.name)
    other = replace(how, n_best=1, search_settings=None, ensemble_weights=None)
    back = inference.open_model(replace(other, model=channel), TRANSLATION.name)
    lm = inference.open_model(replace(other, model=speaker), LANGUAGE_MODELLING.name) if speaker else None
    text = text_windows(files, EXTRACT_HINT, inference.window_lines(translator))
    scored = (score_candidates(lines, translator.search(lines, how.n_best), back, lm) for lines in text)
    if tune is not None:
        candidates, references = [several for window in scored for several in window], read_texts(tune, "--tune")
        require_pairs(candidates, references, "reference")
        best, value, alone = tune_weights(candidates, references, *metric_names([metric]))
        tell(f"{metric} {value:.2f}, and {alone:.2f} with the model alone")
        sys.stdout.write(dump_yaml(best.model_dump()))
        return
    written = count(1)

    def write(candidates: Sequence[Candidate]) -> None:
        ranked = rerank(candidates, chosen)
        if as_json:
            best, *others = [asdict(one) | {"score": one.score(chosen)} for one in ranked]
            results.write_json_line({"line": next(written), "best": best, "others": others})
        else:
            results.write_line(ranked[0].text)

    results.write_stream(scored, write, "lines", "" if files else "type a sentence on each line; it is translated")


@cloup.command("summarize")
@decoding_options(
    [options.as_json("Print a JSON object for each article: scores, tokens, copied spans.")],
    cloup.option_group(
        "Input",
        click.option("--article-field", metavar="KEY", help="Read JSON lines with the article under KEY."),
        click.option("--stories", type=FILE, metavar="DIR", help="Summarize the articles of .story files in DIR."),
        click.option(
            "--max-source-tokens", type=Number(1), metavar="N", help="Read at most N tokens. Default: as in training."
        ),
        click.option("--window", type=Number(1), metavar="N", help="Read whole articles, at most N tokens at a time."),
        click.option("--lead", type=Number(1), metavar="N", help="Print the first N sentences; needs no model."),
    ),
)
def summarize_command(
    how: DecodingOptions,
    files: tuple[Path, ...],
    article_field: str | None,
    stories: Path | None,
    form: str,
    as_json: bool,
    window: int | None,
    lead: int | None,
) -> None:
    """Summarize FILEs, or standard input: one line out for each article in, in order.

    FILEs are plain or .gz and are read as one text; every line is an article. An empty line gives an empty line.
    --n-best K prints "NUMBER TAB SCORE TAB LOG-PROBABILITY TAB SUMMARY", with articles counted from 1. A model that
    was trained on the beginnings of articles (data.over_long: truncate) reads as many tokens here; --window reads all.
    `nmtkit guide decoding` explains windows, copied spans, sampling and ensembles.

    \b
    Examples:
      nmtkit summarize articles.txt -o summaries.txt
      nmtkit summarize -m runs/mine --article-field article test.jsonl.gz -o summaries.txt
      cat articles.txt | nmtkit summarize --min-length 35 --max-length 100 --no-repeat-ngram 3
      nmtkit summarize --window 400 reports.txt | nmtkit summarize -o short.txt
      nmtkit summarize --json articles.txt | jq '.best.copied_spans[].text'
    """
    if stories is not None and (files or article_field is not None):
        raise click.UsageError("--stories reads a folder, FILE and --article-field do not: leave one of them out")
    if lead is not None:
        if any((how.model, how.search_settings, how.max_source_tokens, how.n_best > 1, as_json, window, how.shortlist)):
            raise click.UsageError("--lead copies sentences without a model: leave the options of a model out")
        from nmtkit.metrics import lead as lead_of

        for part in _articles(files, article_field, stories):
            sys.stdout.write("".join(lead_of(article, lead) + "\n" for article in part))
            sys.stdout.flush()
        return
    if window is not None and (how.max_source_tokens is not None or how.n_best > 1):
        raise click.UsageError("--window reads whole articles, for one summary each: leave the other option out")
    translator = inference.open_model(how, SUMMARIZATION.name)
    printer = results.Printer(translator.tokenizers.tgt, how.n_best, as_json, form=form)
    invitation = "" if files or stories else "type an article on each line; it is summarized"
    articles = _articles(files, article_field, stories, inference.window_lines(translator))
    if window is None:
        stream = translator.stream(articles, how.n_best, need_copies=as_json)
        results.write_stream(stream, printer.write, "articles", invitation)
    else:
        summaries = Summarizer(translator, window).stream(articles, as_json)
        results.write_stream(summaries, printer.write_joined, "articles", invitation)
    results.tell_cut(printer.cut, printer.lines, "articles", translator, "; --window reads them whole")
    printer.report("summaries", "--max-length")


def _articles(
    files: tuple[Path, ...], article_field: str | None, stories: Path | None, most: int = 256
) -> Iterator[list[str]]:
    if stories is not None:
        return windows((story.src for story in read_pairs(SplitFiles(stories=[str(stories)]))), most)
    if article_field is not None:
        return windows(field_lines(files, article_field), most)
    return text_windows(files, "name the key of the articles with --article-field KEY", most)
