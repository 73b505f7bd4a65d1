"""Chooses the preset for a corpus, and interpolates its settings between measured points.

Published results: Sennrich and Zhang 2019, "Revisiting Low-Resource Neural Machine Translation":
with little text, a smaller subword vocabulary, smaller batches, more dropout, label smoothing and
tied embeddings help. van Biljon et al. 2020, "On Optimal Transformer Depth for Low-Resource
Language Translation": fewer layers are often better. Araabi and Monz 2020, "Optimizing Transformer
for Low-Resource Neural Machine Translation": settings fitted to the corpus size gain up to 7.3
BLEU. Vaswani et al. 2017: `base`. See et al. 2017: the pointer-generator.

Measured (recipes/results/settings.md), each on one corpus: `compare-transformer` is `tiny`, and
`multi30k-en-de-transformer` is `small`, which is too slow if there is time for only 1.8 passes (23 BLEU; `tiny` gets
31); `demo-news-pointer-generator` and `inshorts-pointer-generator` are the settings for summaries. All values between
and beyond these points follow the rules of this file, which are guesses; we have never trained `base`.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from nmtkit.config.tasks.task import TASKS
from nmtkit.core.errors import RecipeError
from nmtkit.core.files import bundled_path
from nmtkit.core.formats import load_yaml
from nmtkit.core.registry import suggest_names
from nmtkit.data.text.statistics import CorpusStatistics, SideStatistics
from nmtkit.experiment.presets.proposal import PLANS, ProposedRecipe, format_minutes
from nmtkit.experiment.presets.sizes import PRESETS, TASKS_WITH_PRESETS

FEW_PAIRS = 5_000
"""Studies of low-resource translation begin with this number of pairs; with fewer, results are poor."""
PUBLIC_MODEL_BELOW = 50_000
"""With fewer pairs, fine-tuning a public model beats training from scratch."""
MANY_PAIRS = 100_000
"""Minimum number of pairs for `base` on a GPU."""
FEW_WORDS, MANY_WORDS = 100_000, 50_000_000
"""The same limits in words of running text, which are guesses."""

VOCABULARIES = (
    (200_000, 2_000),
    (300_000, 4_000),
    (2_000_000, 8_000),
    (20_000_000, 16_000),
    (math.inf, 32_000),
)
"""A side with fewer running words than the first number gets the second number of subwords.
Sennrich and Zhang used 2,000 for 100,000 words; 30,000 or more are usual for WMT; we measured
8,000 with 345,000 words.
"""

_SPECIALS = 4  # number of special tokens in every vocabulary
_COVERAGE = 0.9995  # share of characters that get a token if many are rare
_TOKENS_PER_WORD = 1.3  # approximate number of subwords per word
_FEW_PASSES = 8  # number of passes below which more and smaller updates learn more
_PADDING = 1.1  # approximate number of padded tokens per real token in batches of similar length


def padded_tokens(pairs: int, words: int, most: float = math.inf) -> int:
    """Estimates the number of padded tokens in a text (longer side with EOS) from its pairs and words.

    At most `most` tokens of a pair are read.
    """
    return round(_PADDING * (pairs + min(_TOKENS_PER_WORD * words, pairs * most)))


class FittedPreset(ProposedRecipe):
    """A preset fitted to a text; the first reason explains the choice of the preset.

    `limit` is in minutes; `speed` is this machine's training speed in padded tokens per minute,
    None if not measured.
    """

    def __init__(
        self,
        task: str,
        size: CorpusStatistics,
        name: str,
        because: str,
        limit: float | None,
        speed: float | None,
    ) -> None:
        super().__init__(size)
        self.explain("preset", name, because)
        self.task, self.name, self.speed, self._limit = task, name, speed, limit
        self.extends = f"{TASKS.get(task).presets}{name}"
        """Name of the preset's recipe."""
        self.passes: float | None = None
        """Number of passes over the text within the limit; None if the speed was not measured."""
        self.total_minutes: float | None = None
        """Number of minutes for all planned updates, ignoring the limit; None if the speed was not measured."""
        # With a time limit, validation must not take too long: decoding costs as much as several updates. But with few
        # sentences, the choice of the best weights is a matter of chance: with only 200, it cost up to 1.4 BLEU.
        self._validated = min(500, max(30, round(40 * limit))) if limit else None
        self._plan = PLANS[self.extends]
        self._preset = load_yaml(bundled_path("recipes", f"{self.extends}.yaml"))[0]
        self._words = max(size.src.words, size.tgt.words)
        if "stages" in self._preset:
            self._fit_stages()
        else:
            self._fit_one_stage()
        self.changes = {
            group: self.changes[group] for group in self._preset if group in self.changes
        }

    @property
    def is_useful(self) -> bool:
        """Whether the limit is sufficient for a model of this size, or the speed is unknown."""
        return self.passes is None or self.passes >= self._plan.fewest_useful

    def text(self, name: str, data: Mapping[str, Any], description: str = "") -> str:
        """Returns the recipe in YAML, which extends the preset; `data` has train, valid and test as in a recipe."""
        size, description = self.size, description or f"{self.task}, preset {self.name}"
        head = [
            f"For {size.amount}: preset {self.name} ({PRESETS[self.name]}), because "
            f"{self.reasons[0].because}. Only settings that differ from the preset are listed; "
            "`nmtkit recipe show --resolved` prints all settings. You can change any of them; "
            "`nmtkit recipe explain` describes them."
        ]
        if self.minutes is not None:
            head.append(
                f"Training takes {format_minutes(self.minutes)} on the machine that wrote this "
                "recipe."
            )
        about = {"extends": self.extends, "name": name, "description": description}
        groups = {"data": {}} | self.changes | {"data": {**data, **self.changes.get("data", {})}}
        return self.yaml(head, about, groups)

    def _set(self, group: str, **values: Any) -> None:
        """Sets keys of a group; omits values equal to the preset's, unless the `kind` of the group differs from it."""
        known = self._preset.get(group, {})
        afresh = values.get("kind", known.get("kind")) != known.get("kind")
        differing = {
            key: value for key, value in values.items() if afresh or known.get(key) != value
        }
        if differing:
            self.changes.setdefault(group, {}).update(differing)

    def _fit_one_stage(self) -> None:
        joint = self._subwords()
        self._explain_model()
        preset_tokens = batch_tokens = self._preset["batch"]["batch_tokens"]
        writes = "tie" in self._preset["model"]
        if self.name == "small" and self._words < 200_000 and writes:
            batch_tokens = 2_048
            because = "small batches work better with little text (Sennrich and Zhang 2019)"
            self.explain("batch.batch_tokens", "2,048", because)
        padded = padded_tokens(self.size.pairs, self._words)
        if self._limit and self.name != "tiny":
            # The number of passes within the limit is not known yet, so it is estimated from the measured speed.
            reach = self._limit * self.speed / padded if self.speed else 0.0
            if reach < _FEW_PASSES:
                batch_tokens = min(batch_tokens, preset_tokens // 2)
                time = f"{reach:.2g} passes over the text" if self.speed else "the given minutes"
                because = f"in {time}, many small updates are better than a few large ones"
                self.explain("batch.batch_tokens", f"{batch_tokens:,}", because)
        self._set("batch", batch_tokens=batch_tokens)
        updates = self._updates(padded, batch_tokens, self._limit)
        passes = self._expected_updates(updates, batch_tokens, self._limit) * batch_tokens / padded
        # The thresholds lie between measurements at 12, 16, 22 and 90 passes; at 16, a dropout of 0.2 costs 1.5 BLEU.
        dropout = 0.1 if passes < 20 or self._words >= 20_000_000 else 0.2 if passes < 40 else 0.3
        because = f"it prevents overfitting if the text is read about {passes:.2g} times"
        self.explain("model.dropout", f"{dropout}", because)
        tie = {"tie": "all" if joint and not self.size.one_text else "decoder"} if writes else {}
        self._set("model", dropout=dropout, **tie)
        self._set("training", **self._training(updates, batch_tokens, self._limit))
        if self.size.one_text:  # validation of a single text needs no decoding
            return
        self._set("evaluation", max_sentences=self._validated or 500)
        if not self.size.tgt.spaced:
            self._set("evaluation", tokenize="char")
            because = (
                "the target language has no spaces between words, so BLEU counts characters; word "
                "BLEU would be 0 for nearly all lines"
            )
            self.explain("evaluation.tokenize", "char", because)

    def _fit_stages(self) -> None:
        src, tgt = self.size.src, self.size.tgt
        longest = (
            min(400, max(10, round(1.2 * src.length))),
            min(120, max(10, round(1.2 * tgt.length))),
        )
        self.explain(
            "data.max_length",
            f"{longest[0]}, and {longest[1]} for a summary",
            f"95% of the sources have at most {src.length:,} words and 95% of the summaries at "
            f"most {tgt.length:,}, and 400 tokens of an article are enough (See et al. 2017, "
            "section 5)",
        )
        self._set("data", max_length=longest[0], max_tgt_length=longest[1])
        if self.size.joint.spaced:
            self._whole_words()
        elif not self._subwords():
            self._set("model", tie="decoder")
        self._explain_model()
        minutes, second_minutes = (
            (0.8 * self._limit, 0.2 * self._limit) if self._limit else (None, None)
        )
        words = min(self.size.pairs * longest[0], round(1.2 * src.words))
        batch_tokens = self._preset["batch"]["batch_tokens"]
        updates = self._updates(round(_PADDING * (self.size.pairs + words)), batch_tokens, minutes)
        covering = max(20, updates // 5)
        if self.minutes is not None and self.total_minutes is not None:
            self.minutes = self._limit or self.minutes * (1 + covering / updates)
            self.total_minutes *= 1 + covering / updates
        parts = f"{updates:,} updates, then {covering:,}"
        parts = f"{minutes:g} minutes, then {second_minutes:g}" if minutes else parts
        self.explain("stages", f"{parts} with coverage", "coverage reduces repetition in summaries")
        training = self._training(updates, batch_tokens, minutes)
        self._set(
            "training", **training | ({"max_minutes": float(self._limit)} if self._limit else {})
        )
        self._set("search", max_length=longest[1] + 20)
        self._set(
            "evaluation",
            max_sentences=self._validated or self._preset["evaluation"]["max_sentences"],
        )
        *first, last = self._preset["stages"]
        second = {**last["training"], **self._training(covering, batch_tokens, second_minutes)}
        if second["schedule"] == training["schedule"]:
            del second["schedule"]
        self.changes["stages"] = [*first, {**last, "training": second}]

    def _explain_model(self) -> None:
        model = self._preset["model"]
        name = model["kind"].replace("_", "-") + " of size {hidden_size}"
        if model["kind"] == "transformer":
            name = "Transformer, {encoder_layers}+{decoder_layers} layers of size {hidden_size}"
        elif "layers" in model:
            name = "Transformer, {layers} layers of size {hidden_size}"
        self.explain("model", name.format_map(model), self._plan.because)

    def _whole_words(self) -> None:
        """Sets the shared tokenizer of a model that copies words missing from its vocabulary."""
        words = self.size.joint.words
        wanted = 8_000 if words < 5_000_000 else 20_000 if words < 50_000_000 else 50_000
        vocabulary = min(wanted, self._preset["tokenizer"]["vocab_size"])
        self.explain(
            "tokenizer",
            f"the {vocabulary:,} most frequent words",
            "the model can copy all other words from the source",
        )
        self._set("tokenizer", kind="word", vocab_size=vocabulary, joint=True)

    def _subwords(self) -> bool:
        """Sets the subword tokenizer, joint if both sides share their letters; returns whether it is joint."""
        joint = self.size.one_script
        texts = [self.size.joint] if joint else [self.size.src, self.size.tgt]
        suited = next(tokens for limit, tokens in VOCABULARIES if self._words < limit)
        wanted = min(suited, self._preset["tokenizer"]["vocab_size"])
        rare = any(2 * text.characters > wanted for text in texts)
        coverage = _COVERAGE if rare else 1.0
        sizes = [_vocabulary_size(text, wanted, coverage) for text in texts]
        because = (
            f"{self._words:,} words are too few to learn more subwords well (Sennrich and Zhang "
            "2019)"
        )
        if suited > wanted:
            because = f"a larger vocabulary would make preset {self.name} slow"
        if min(sizes) < wanted:
            because = "the text has too few words and characters for more"
        self.explain(
            "tokenizer",
            "bpe with " + " and ".join(f"{one:,}" for one in sizes) + " tokens",
            because,
        )
        if not self.size.one_text:
            letters = "the same letters" if joint else "different letters"
            self.explain("tokenizer.joint", f"{joint}".lower(), f"both sides use {letters}")
        self._set("tokenizer", kind="bpe", vocab_size=sizes[0], joint=joint)
        if not joint:
            self._set("tokenizer", tgt_vocab_size=sizes[1])
        if rare:
            self._set("tokenizer", character_coverage=coverage)
            most = max(text.characters for text in texts)
            because = f"the rarest of {most:,} characters would displace subwords"
            self.explain("tokenizer.character_coverage", f"{coverage}", because)
        return joint

    def _updates(self, padded: int, batch_tokens: int, minutes: float | None) -> int:
        """Plans the number of updates, so that passes are inversely proportional to the square root of the text size.

        The rule starts from one measured point. `padded` is the number of padded tokens in the text.
        With `minutes`, the result is not a limit: all minutes are used, and `_expected_updates`
        estimates the updates.
        """
        (right, tokens), (fewest, most) = self._plan.passes, self._plan.bounds
        passes = min(max(right * math.sqrt(tokens / padded), fewest), most)
        a_pass = max(1, math.ceil(padded / batch_tokens))
        most_updates = self._preset["training"]["max_updates"]
        updates = int(min(max(round(passes * a_pass), 100), most_updates))
        rule = (
            "smaller texts are read more often"
            if updates < most_updates
            else "this is the preset's maximum"
        )
        if not minutes:
            because = f"this amounts to {updates / a_pass:.3g} passes over the text, and {rule}"
            self.explain("training.max_updates", f"{updates:,}", because)
        expected = self._expected_updates(updates, batch_tokens, minutes)
        if minutes:
            because = "you set it"
            if self.speed:
                because += f". {self._describe_reach(expected / a_pass, updates / a_pass)}"
            self.explain("training.max_minutes", f"{self._limit:g}", because)
        if self.speed:
            self.minutes = expected * batch_tokens / self.speed
            self.passes = expected / a_pass
            self.total_minutes = updates * batch_tokens / self.speed
        return updates

    def _describe_reach(self, passes: float, usual: float) -> str:
        """Describes the passes over the text within the time limit, and the usual number."""
        assert self._limit is not None
        unit = "minute" if self._limit == 1 else "minutes"
        text = (
            f"In {self._limit:g} {unit} this machine can make about {_rounded(passes)} passes over "
            "your text; "
        )
        text += f"{_rounded(usual)} would be usual"
        if passes >= usual:
            return text
        wanted = math.ceil(self._limit * usual / passes)
        return f"{text}, so allow {wanted:,} {'minute' if wanted == 1 else 'minutes'} if you can"

    def _expected_updates(self, updates: int, batch_tokens: int, minutes: float | None) -> int:
        """Returns the number of updates that fit into the given time, or the planned number if the speed is unknown."""
        if not minutes or not self.speed:
            return updates
        return max(1, round(minutes * self.speed / batch_tokens))

    def _training(self, updates: int, batch_tokens: int, minutes: float | None) -> dict[str, Any]:
        schedule = self._preset["training"]["schedule"]
        if minutes:
            schedule = {"kind": "cosine", "over": "budget", "warmup_share": 0.1}
        elif "warmup" in schedule:
            schedule = {**schedule, "warmup": min(schedule["warmup"], max(1, updates // 5))}
        # Frequent enough for several checkpoints to average, even if the number of updates is unknown.
        every = max(
            50, self._expected_updates(updates, batch_tokens, minutes) // (5 if minutes else 10)
        )
        if minutes and not self.speed:
            every = max(25, updates // 20)
        limits = (
            {"max_updates": None, "max_minutes": float(minutes)}
            if minutes
            else {"max_updates": updates}
        )
        return {"schedule": schedule, **limits, "validate_every": every}


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _vocabulary_size(text: SideStatistics, wanted: int, coverage: float) -> int:
    """Returns the number of subwords that a text needs and supports: at most `wanted`, or twice its characters.

    Each character needs a token, and each longer word can become one. Characters that get a token
    leave at least half of the vocabulary to words. For a small text, the
    subwords are counted by training a tokenizer.
    """
    characters = text.frequent_characters if coverage < 1 else text.characters
    size = max(wanted, 2 * characters)
    possible = _SPECIALS + 2 + characters + text.distinct_words // 2
    if possible >= size:
        return size
    return _learned_size(text.sample, possible, coverage) if text.sample else possible


@lru_cache(maxsize=8)  # called with the same text for each preset that is considered
def _learned_size(lines: tuple[str, ...], size: int, coverage: float) -> int:
    """Returns the number of tokens learned from some lines, at most `size`."""
    from nmtkit.data.tokenizers.tokenizer import (  # imported late: it loads slowly, and not every plan needs it
        SentencePieceTokenizer,
        TokenizerConfig,
    )

    config = TokenizerConfig(kind="bpe", vocab_size=size, character_coverage=coverage)
    return len(SentencePieceTokenizer.learn(config, lines).vocabulary)


def choose_preset(
    task: str,
    size: CorpusStatistics,
    preset: str | None = None,
    gpu: bool = False,
    minutes: float | None = None,
    measure: Callable[[FittedPreset], float | None] = lambda _: None,
) -> FittedPreset:
    """Chooses settings for a corpus by the size of its training text.

    Without `preset`, the choice depends on the corpus and on whether training uses a `gpu`; a
    smaller preset is used if there are too few `minutes`. `measure` returns the machine's training
    speed with a preset in padded tokens per minute.

    Raises:
        RecipeError: there is no such preset, or the task has none.
    """
    if task not in TASKS_WITH_PRESETS:
        raise RecipeError(
            f"there are no presets for task {task!r}: {suggest_names(task, TASKS_WITH_PRESETS)}"
        )
    if preset is not None and preset not in PRESETS:
        raise RecipeError(f"there is no preset {preset!r}: {suggest_names(preset, PRESETS)}")

    def fitted(name: str, because: str) -> FittedPreset:
        speed = measure(FittedPreset(task, size, name, because, minutes, None))
        return FittedPreset(task, size, name, because, minutes, speed)

    chosen = fitted(*(_preset_by_size(size, gpu) if preset is None else (preset, "you set it")))
    names = list(PRESETS)
    while preset is None and minutes and not chosen.is_useful and names.index(chosen.name):
        times = f"{chosen.passes:.2g}"
        because = (
            f"in {minutes:g} min, preset {chosen.name} would make only {times} passes over the "
            "text on this machine"
        )
        smaller = fitted(names[names.index(chosen.name) - 1], because)
        if smaller.speed is None:
            break
        chosen = smaller
    chosen.warnings += _warnings(chosen, gpu, minutes)
    chosen.advice += _advice(chosen)
    return chosen


def _preset_by_size(size: CorpusStatistics, gpu: bool) -> tuple[str, str]:
    count, few, many, unit = size.pairs, FEW_PAIRS, MANY_PAIRS, "pairs"
    if size.one_text:
        count, few, many, unit = size.tgt.words, FEW_WORDS, MANY_WORDS, "words"
    if count < few:
        return "tiny", f"{count:,} {unit} are too few for anything larger"
    if not gpu:
        return "small", f"training runs on a CPU, and {count:,} {unit} are enough for this preset"
    if count < many:
        return "small", f"{count:,} {unit} are fewer than a large model needs"
    return "base", f"{count:,} {unit} are enough for a large model, and there is a GPU"


_PUBLIC_MODELS = {"translation": "OPUS-MT or NLLB", "summarization": "BART or Pegasus"}


def _public_model_advice(preset: FittedPreset) -> str:
    models = _PUBLIC_MODELS[preset.task]
    return (
        f"Fine-tuning a public model ({models}) on these pairs works better; see `nmtkit guide "
        "public-models`"
    )


def _advice(preset: FittedPreset) -> list[str]:
    """Returns advice that helps more than a different setting would."""
    is_between = FEW_PAIRS <= preset.size.pairs < PUBLIC_MODEL_BELOW
    return [_public_model_advice(preset)] if preset.task in _PUBLIC_MODELS and is_between else []


def _warnings(preset: FittedPreset, gpu: bool, limit: float | None) -> list[str]:
    warnings, pairs = [], preset.size.pairs
    if (
        limit
        and preset.minutes
        and preset.total_minutes
        and preset.passes
        and 2 * limit < preset.total_minutes
    ):
        a_pass, useless = (
            preset.minutes / preset.passes,
            ", which does not produce a usable model" if preset.passes < 1 else "",
        )
        warnings.append(
            f"in {limit:g} min there is time for only {preset.passes:.2g} passes over the "
            f"text{useless}; one pass takes {format_minutes(a_pass)} on this machine, and preset "
            f"{preset.name} usually makes {preset.total_minutes / a_pass:.3g} passes (--minutes "
            f"{math.ceil(preset.total_minutes)})"
        )
    if pairs < FEW_PAIRS and not preset.size.one_text:
        held_out = preset.size.held_out
        counted = f"{pairs:,}"
        if held_out:
            counted += f": {pairs + held_out:,} minus {held_out:,} held out for validation and test"
        advice = f". {_public_model_advice(preset)}" if preset.task in _PUBLIC_MODELS else ""
        warnings.append(
            f"there are few pairs ({counted}), so expect good results only for text very similar "
            f"to yours{advice}"
        )
    if preset.name == "base" and not gpu:
        warnings.append("preset base takes days on a CPU; use --preset small")
    return warnings
