"""Proposes a recipe that fine-tunes a run on new text, and measures forgetting.

Published methods: Luong and Manning 2015, "Stanford Neural Machine Translation Systems for Spoken
Language Domains": training continues on the new text. Chu et al. 2017, "An Empirical Comparison of
Domain Adaptation Methods for Neural Machine Translation": mixing in equally many general pairs
prevents forgetting. Miceli Barone et al. 2017, "Regularization techniques for fine-tuning in Neural
Machine Translation": dropout and early stopping prevent overfitting to little text. The learning
rate and the number of passes are this file's own rules.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nmtkit import metrics
from nmtkit.config import Recipe
from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import DataError, RecipeError
from nmtkit.core.files import write_json
from nmtkit.data.text.config import SplitFiles, language_of_tag
from nmtkit.data.text.reading import read_pairs
from nmtkit.data.text.statistics import CorpusStatistics
from nmtkit.data.tokenizers.huggingface_tokenizer import missing_language_message
from nmtkit.data.tokenizers.languages import (
    chosen_languages,
    find_language,
    language_names,
    sides_without_language,
)
from nmtkit.experiment.presets.fitting import padded_tokens
from nmtkit.experiment.presets.proposal import ProposedRecipe
from nmtkit.inference.answering import answer_and_score
from nmtkit.inference.loading.opening import open_system
from nmtkit.inference.loading.options import DecodingOptions
from nmtkit.inference.translator import Translator
from nmtkit.runs.folder import Notify, RunFolder, ignore
from nmtkit.runs.origin import FineTuningOrigin, read_origin
from nmtkit.runs.run import Run
from nmtkit.training.config import TrainingConfig
from nmtkit.training.optimizers import OptimizerConfig
from nmtkit.training.schedules import Noam

_RATE = 5
"""Factor by which the fine-tuning rate is below the original peak rate ..."""
_HIGHEST = 3e-4
"""... and the maximum rate with Adam."""
_PASSES, _PASSES_FOR = 20, 60_000
"""Number of passes over a text of this many padded tokens. For other sizes, passes are inversely proportional to the
square root of the size."""
_BATCHES = ((100_000, 1_024), (1_000_000, 2_048))
"""If a side has fewer running words than the first number, batches have at most the second number of tokens."""
_PATIENCE = 5
_KEPT = (*OptimizerConfig.model_fields, "label_smoothing", "clip_norm", "loss_unit")
"""Training settings that are kept from the original run."""
_NOT_KEPT = (
    "guided_alignment",
    "doubly_stochastic",
    "reinforce",
    "masked_words",
    "span_corruption",
    "denoising",
)
"""Losses that need different data, or that belong to a final stage or to pretraining."""


class FineTuningRecipe(ProposedRecipe):
    """A recipe that fine-tunes a run on new text, mixed with `general` pairs of general text."""

    def __init__(
        self, source: Run, size: CorpusStatistics, general: int = 0, minutes: float | None = None
    ) -> None:
        super().__init__(size)
        self.source = source
        self.weight = 1.0
        """Number of times a general pair occurs in an epoch, chosen so that half of all pairs are general."""
        self._before: Recipe = source.newest_stage().recipe
        self._name = source.folder.path.resolve().name
        self.explain(
            "model, tokenizer, search",
            f"as in {self._name}",
            "the weights do not fit other settings; dropout is unchanged",
        )
        if general:
            self.weight = float(f"{min(self.size.pairs / general, 10_000):.3g}")
            self.explain(
                "data.train.weights",
                f"{self.weight:g} for general text",
                "an epoch then has as many general pairs as new pairs, and the model forgets "
                "less (Chu et al. 2017)",
            )
        else:
            files = "TEXT" if size.one_text else "SRC TGT"
            self.warnings.append(
                "without general text, the model may forget what it learned before; add some "
                f"with --general {files}"
            )
        self._training = self._fit(2 if general else 1, minutes)

    def _fit(self, times: int, minutes: float | None) -> dict[str, Any]:
        """Plans training; an epoch has `times` as many tokens as the new text."""
        words = max(self.size.src.words, self.size.tgt.words)
        padded = padded_tokens(
            self.size.pairs, words, max(self._before.data.truncation or (math.inf,))
        )
        known = self._before.batch.batch_tokens
        self.batch_tokens = min([known, *(tokens for limit, tokens in _BATCHES if words < limit)])
        because = f"{self._name} used {known:,}, and small batches work better with little text"
        self.explain("batch.batch_tokens", f"{self.batch_tokens:,}", because)
        passes = min(max(_PASSES * math.sqrt(_PASSES_FOR / padded), 2), _PASSES)
        most = self._before.batch.batch_size or self.size.pairs
        a_pass = max(
            math.ceil(times * padded / self.batch_tokens), math.ceil(times * self.size.pairs / most)
        )
        updates = max(50, round(passes * a_pass))
        before = self._before.training
        lr = _peak(before) / _RATE
        lr = float(f"{min(lr, _HIGHEST) if before.optimizer.startswith('adam') else lr:.2g}")
        because = (
            f"large steps cause more forgetting; the peak rate of {self._name} was "
            f"{_peak(before):.2g}"
        )
        self.explain("training.lr", f"{lr:g}", because)
        self.explain("training.schedule", "linear, to zero", "trained weights need no long warm-up")
        because = f"this amounts to at most {updates / a_pass:.3g} passes over the text"
        self.explain("training.max_updates", f"{updates:,}", because)
        if minutes:
            because = "you set it; the learning rate falls to zero within this time"
            self.explain("training.max_minutes", f"{minutes:g}", because)
        because = (
            f"a model soon overfits little text; training ends after {_PATIENCE} validations in a "
            "row without a lower loss"
        )
        self.explain("training.patience", f"{_PATIENCE}", because)
        kept = before.model_dump(mode="json", include={*_KEPT, "objectives"})
        kept["objectives"] = {
            name: kept["objectives"][name] for name in kept["objectives"] if name not in _NOT_KEPT
        }
        return {
            **kept,
            "lr": lr,
            "schedule": {"kind": "linear", "over": "budget", "warmup_share": 0.05},
            "max_updates": updates,
            **({"max_minutes": float(minutes)} if minutes else {}),
            "validate_every": max(20, updates // 20),
            "patience": _PATIENCE,
            "best_metric": "loss",
        }

    def text(
        self, name: str, data: Mapping[str, Any], test: Mapping[str, Any] | None = None
    ) -> str:
        """Returns the recipe in YAML with its reasons; `data` names the files, `test` the general test set."""
        size, before = self.size, self._before.model_dump(mode="json")
        head = [
            f"Fine-tunes {self._name} on {size.amount}. You can change all settings except model "
            "and tokenizer; `nmtkit recipe explain` describes them."
        ]
        about = {
            "name": name,
            "description": f"{self._name}, fine-tuned on other text",
            "task": before["task"],
        }
        limits = ("max_length", "max_tgt_length", "over_long", "max_ratio")
        groups = {
            "init_from": {
                "run": str(self.source.folder.path.resolve()),
                **({"test": dict(test)} if test else {}),
            },
            "data": {**data, **{key: before["data"][key] for key in limits}},
            **{key: before[key] for key in ("tokenizer", "model", "search")},
            "batch": {**before["batch"], "batch_tokens": self.batch_tokens},
            "training": self._training,
            "evaluation": {**before["evaluation"], "max_sentences": 200},
        }
        return self.yaml(head, about, groups)


def languages_of_text(run: Run, source: str | None, target: str | None) -> dict[str, str]:
    """Returns `src_lang` and `tgt_lang` of text for fine-tuning; empty for a model without languages.

    None selects the language with which the run was fine-tuned, if any. Raises RecipeError if a multilingual
    model needs a language, or does not know the given one.
    """
    config = run.newest_stage().recipe.tokenizer
    name = run.folder.path
    chosen = {} if config.kind != "huggingface" else chosen_languages(config)
    tags = [tag for tag in map(language_of_tag, config.specials) if tag]
    if not chosen and not tags:
        given = [
            option
            for option, language in (("--from", source), ("--to", target))
            if language is not None
        ]
        if given:
            raise RecipeError(
                f"{' and '.join(given)}: {name} is not a multilingual model; remove these options"
            )
        return {}
    if tags and not chosen:
        if target is None:
            raise RecipeError(
                f"{name} is multilingual; specify the target language, for example --to {tags[0]} "
                f"(available: {', '.join(tags)})"
            )
        target = find_language(target, tags)
        return {"src_lang": source, "tgt_lang": target} if source else {"tgt_lang": target}
    names = language_names(config.specials)
    languages: dict[str, str] = {}
    missing: list[str] = []
    for side, key, language in (("src", "src_lang", source), ("tgt", "tgt_lang", target)):
        if language is not None:
            languages[key] = find_language(language, names)
        elif side in sides_without_language(config):
            missing.append(missing_language_message(side, names))
        else:
            languages[key] = chosen[side] or ""
    if missing:
        raise RecipeError(f"{name} is multilingual: {'; '.join(missing)}")
    return {key: language for key, language in languages.items() if language}


def _peak(config: TrainingConfig) -> float:
    """Returns the peak learning rate of a training run."""
    schedule = config.schedule
    return (
        config.lr / math.sqrt(schedule.size * schedule.warmup)
        if isinstance(schedule, Noam)
        else config.lr
    )


OWN, GENERAL = "own text", "general text"


@dataclass(frozen=True)
class TestChange:
    """The score of a test set before and after fine-tuning."""

    text: str
    """Which test set: OWN or GENERAL."""
    metric: str
    """Name of the metric, as shown in tables."""
    before: float
    after: float

    @property
    def of_general_text(self) -> bool:
        """Whether the test set resembles the model's original training text."""
        return self.text == GENERAL


def score_before(
    run: Run, device: torch.device, threads: int | None = None, notify: Notify = ignore
) -> None:
    """Scores the origin of a run on both test sets, once, and records the scores with the origin.

    Does nothing for a run without an origin, for an origin with a different task, which cannot be
    scored on these texts, or if the origin has been deleted.
    """
    origin = read_origin(run.folder)
    if origin is None or origin.before or origin.parts or not Path(origin.weights).is_file():
        return
    source, tests = Run(RunFolder(Path(origin.run))), _tests(run.recipe, origin)
    if not tests or source.recipe.task != run.recipe.task:
        return
    notify(f"scoring {origin.run} on the test sets ({', '.join(tests)}) before fine-tuning")
    options = DecodingOptions(
        device=str(device), weights=origin.weights, threads=threads, workers=1
    )
    before = {
        text: _score(source, options, files, run.recipe).value for text, files in tests.items()
    }
    write_json(
        run.folder.origin, origin.model_copy(update={"before": before}).model_dump(mode="json")
    )


def score_after(
    run: Run, device: torch.device, own: metrics.Score | None, threads: int | None = None
) -> list[TestChange]:
    """Returns both scores of each test set scored before; `own` is the score on the run's test set, if known."""
    origin, changes = read_origin(run.folder), []
    if origin is None:
        return []
    options = DecodingOptions(device=str(device), threads=threads, workers=1)
    tests = _tests(run.recipe, origin)
    for text, before in origin.before.items():
        if text in tests:
            after = (
                own
                if text == OWN and own is not None
                else _score(run, options, tests[text], run.recipe)
            )
            changes.append(TestChange(text, after.name, before, after.value))
    return changes


def _tests(recipe: Recipe, origin: FineTuningOrigin) -> dict[str, SplitFiles]:
    """Returns the test sets with references; if both are the same set, it counts as own text."""
    own, general = recipe.data.splits().get("test"), origin.test
    if own is not None and general is not None and own.texts() == general.texts():
        general = None
    tests = {OWN: own, GENERAL: general}
    references = TASKS.get(recipe.task).references
    return {
        text: files
        for text, files in tests.items()
        if files is not None and references in files.columns
    }


def _score(run: Run, options: DecodingOptions, files: SplitFiles, like: Recipe) -> metrics.Score:
    """Returns the first test metric of a recipe for answers decoded with its search settings."""
    examples = list(read_pairs(files))
    if not examples:
        raise DataError(f"{' '.join(files.paths())}: these files are empty")
    if like.tokenizer.kind == "huggingface":
        chosen = chosen_languages(like.tokenizer)
        options = replace(options, source_language=chosen.get("src"), to=chosen.get("tgt"))
    system = open_system(run, options)
    if isinstance(system, Translator):
        system = replace(system, config=like.search)
    return answer_and_score(
        TASKS.get(like.task), system, examples, like.test_metrics[:1], like.evaluation.options
    ).scores[0]
