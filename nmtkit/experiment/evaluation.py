"""Evaluation of a run: validation while it trains, the test set after training, comparison with other runs."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import torch

from nmtkit import metrics
from nmtkit.core import device as devices
from nmtkit.core.errors import RecipeError
from nmtkit.core.files import atomic_write_text, write_json
from nmtkit.corpus.alignments import parse_alignments
from nmtkit.corpus.blocks import Example
from nmtkit.corpus.config import SplitFiles
from nmtkit.corpus.reading import read_pairs
from nmtkit.corpus.text import read_lines
from nmtkit.data.batch import sorted_batches
from nmtkit.data.store import Store
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.experiment.loading import DecodingOptions, open_autotuned, open_translator
from nmtkit.models.base import Seq2Seq
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.runs.metrics_log import MetricsLog
from nmtkit.runs.saved import SavedRun, source_token_limit
from nmtkit.training.events import Step
from nmtkit.training.objectives.likelihood import likelihood
from nmtkit.translation.result import Translation
from nmtkit.translation.translator import Translator

WARM_UP = 64
"""Sentences translated before the clock starts: the first ones of a process are slow."""


class Validation:
    """Validation in training: loss over the validation set, and the metrics of a real search."""

    def __init__(self, folder: RunFolder, recipe: Recipe, tokenizers: TokenizerPair, device: torch.device) -> None:
        self.recipe = recipe
        self.tokenizers = tokenizers
        self.device = device
        pairs = islice(read_pairs(require_validation_files(recipe)), recipe.evaluation.max_sentences)
        self.store = Store.open(folder.data, "valid")
        self.pairs = [(pair.src, pair.tgt or "") for pair in pairs]

    def __call__(self, model: Seq2Seq) -> dict[str, float]:
        """The metrics of `Recipe.validation_metrics`, loss and perplexity, and the seconds that they took."""
        begun = time.monotonic()
        recipe, settings = self.recipe, self.recipe.evaluation
        nll, tokens = torch.zeros((), dtype=torch.float64), 0
        for batch in sorted_batches(self.store, settings.batch_tokens, recipe.data.truncation):
            output = model(batch.to(self.device), keep=batch.tgt_mask)
            nll += likelihood(output.log_probs, batch, model.sizes.tgt)[1].cpu()
            tokens += batch.n_tokens
        one_beam = {"beam_size": settings.beam_size, "diversity_groups": 1, "samples": 0, "mbr": "none"}
        config, limit = recipe.search.changed(one_beam), source_token_limit(recipe)
        translator = Translator(model, self.tokenizers, config, name=recipe.name, max_source_tokens=limit)
        sources, references = zip(*self.pairs, strict=True) if self.pairs else ((), ())
        names, texts = recipe.validation_metrics, translator.translate(sources)
        scores = metrics.score_all(texts, [references], names, settings.options, sources)
        return {
            **{name: score.value for name, score in zip(names, scores, strict=True)},
            "loss": float(nll) / max(tokens, 1),
            "perplexity": metrics.perplexity(-float(nll), tokens).value,
            "seconds": time.monotonic() - begun,
        }


def require_validation_files(recipe: Recipe) -> SplitFiles:
    """The validation set; raises RecipeError if the recipe names none."""
    files = recipe.data.splits().get("valid")
    if files is None:
        raise RecipeError(f"recipe {recipe.name}: `data.valid` is missing: training judges the model by it")
    return files


@dataclass(frozen=True)
class TestResult:
    """The translated test set of a recipe."""

    sources: list[str]
    references: list[str]
    """Empty if it has no targets."""
    translations: list[Translation]
    scores: list[metrics.Score]
    """Scores of `Recipe.test_metrics`, then AER if the test set names gold alignments; empty without references."""
    seconds: float
    """Time of the translation, without opening the model."""
    cut: int
    """The number of source lines that were truncated, as in training."""


def translate_test_set(
    run: SavedRun, device: torch.device, notify: Notify = ignore, threads: int | None = None
) -> TestResult | None:
    """Translates the test set of a run's recipe and scores it; None if the recipe names none.

    Translations and scores are written into the run's folder. The search is tuned first unless the cache knows it.
    """
    files = run.recipe.data.splits().get("test")
    if files is None:
        return None
    pairs = list(read_pairs(files))
    sources = [pair.src for pair in pairs]
    # Not as many as the training had: fewer may have been faster there.
    threads = threads or devices.cpu_threads()
    options = DecodingOptions(device=str(device), threads=threads)
    spent = sum(stage.checkpoints.read_metadata()["seconds"] for stage in run.stages())
    translator, _ = open_autotuned(run, options, sources, spent, notify)
    begun = time.monotonic()
    translations = [best[0] for best in translator.search(sources)]
    seconds = time.monotonic() - begun
    cut = sum(translation.src_left_out > 0 for translation in translations)
    texts = [translation.text for translation in translations]
    atomic_write_text(run.folder.test_output, "".join(text + "\n" for text in texts))
    references = [pair.tgt for pair in pairs if pair.tgt is not None]
    scores: list[metrics.Score] = []
    if len(references) == len(texts):
        test_metrics, settings = run.recipe.test_metrics, run.recipe.evaluation
        scores = metrics.score_all(texts, [references], test_metrics, settings.options, sources)
        if files.alignment and translator.model.has_attention:
            scores.append(_alignment_error_rate(translator, files, pairs, notify))
        summary = [asdict(score) for score in scores]
        write_json(run.folder.test_scores, {"scores": summary, "seconds": seconds, "sources_cut": cut})
    return TestResult(sources, references, translations, scores, seconds, cut)


def _alignment_error_rate(
    translator: Translator, files: SplitFiles, pairs: Sequence[Example], notify: Notify
) -> metrics.Score:
    base = files.alignment_base
    gold = []
    for path in files.alignment:
        read = parse_alignments(read_lines(path), path, base or 0)
        gold += read.pairs
        if base is None and (doubt := read.base_warning):
            notify(
                f"note: {path} was read as counting words from 0, but {doubt}; if it counts from 1, the AER is wrong: "
                "set data.test.alignment_base: 1 (and measure this run with `nmtkit align` and `score-alignments`)"
            )

    alignments = translator.align(
        [pair.src for pair in pairs],
        [str(pair.tgt) for pair in pairs],
        [str(pair.src_words) for pair in pairs] if files.src_words else None,
        [str(pair.tgt_words) for pair in pairs] if files.tgt_words else None,
    )
    return metrics.aer([one.links() for one in alignments], gold)[0]


@dataclass(frozen=True)
class ComparedRun:
    """One run on its test set."""

    name: str
    kind: str
    """The model's."""
    parameters: int
    """Shared ones counted once."""
    bleu: metrics.Score
    long_bleu: metrics.Score | None
    n_long: int
    aer: metrics.Score | None
    """None without gold alignments, or if the model has no attention."""
    training_speed: float
    """Target tokens a second: the median of the log's."""
    training_minutes: float
    search_speed: float
    """Target tokens a second in beam search, EOS included."""
    by_length: list[metrics.LengthBucket]


def compare_run(
    run: SavedRun, device: torch.device, longer_than: int, edges: Sequence[int], threads: int | None = None
) -> ComparedRun:
    """Tests a trained run.

    A sentence is long if its source has more words than `longer_than`. `edges` are the longest lengths, in words, of
    the ranges of `by_length` but the last. Without a number of threads there is one a core.
    """
    files = run.recipe.data.splits().get("test")
    if files is None:
        raise RecipeError(f"{run.recipe.name}: the recipe names no test set to compare on; add data.test")
    threads = threads or devices.cpu_threads()  # whatever an earlier training has set
    translator = open_translator(run, DecodingOptions(device=str(device), threads=threads))
    translator.translate(pair.src for pair in islice(read_pairs(files), WARM_UP))
    result = translate_test_set(run, device, threads=threads)
    if result is None or not result.scores:
        raise RecipeError(f"{run.recipe.name}: the test set has no targets, so there is nothing to compare with")
    texts = [translation.text for translation in result.translations]
    how = run.recipe.evaluation
    long = [number for number, line in enumerate(result.sources) if len(line.split()) > longer_than]
    long_bleu = None
    if long:
        references = [[result.references[number] for number in long]]
        long_bleu = metrics.score_all([texts[number] for number in long], references, ["bleu"], how.options)[0]
    written = sum(len(translation.token_log_probs) for translation in result.translations)
    scores = {score.name: score for score in result.scores}
    steps = [logged.event for logged in MetricsLog(run.folder).read() if isinstance(logged.event, Step)]
    return ComparedRun(
        name=run.recipe.name,
        kind=run.recipe.model.kind,
        parameters=translator.parameters,
        bleu=scores["BLEU"],
        long_bleu=long_bleu,
        n_long=len(long),
        aer=scores.get("AER"),
        training_speed=statistics.median(step.tokens_per_second for step in steps) if steps else 0.0,
        training_minutes=steps[-1].seconds / 60 if steps else 0.0,
        search_speed=written / max(result.seconds, 1e-9),
        by_length=metrics.by_length(texts, [result.references], result.sources, edges, how.options),
    )
