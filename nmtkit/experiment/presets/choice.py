"""Which settings suit a corpus, and why: the rules between the points that `plans.py` knows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nmtkit.errors import RecipeError
from nmtkit.experiment.presets.plans import (
    FEW_PAIRS,
    MANY_PAIRS,
    NAMES,
    POINTERS,
    TASKS,
    TRANSFORMERS,
    VOCABULARIES,
    Name,
    Plan,
    Task,
)
from nmtkit.experiment.presets.size import CorpusSize, Text
from nmtkit.registry import near_names

_SPECIALS = 4  # tokens of every vocabulary that are no text
_TOKENS_PER_WORD = 1.3  # subwords that a word is cut into, roughly
_SHORT = 8  # passes: with fewer, more and smaller updates learn more
_PADDING = 1.1  # padded tokens for each real one, in batches of alike length, roughly


@dataclass(frozen=True)
class Reason:
    """Why a setting has its value."""

    setting: str
    """The dotted key, or its group."""
    value: str
    """The value, as a person reads it."""
    because: str
    """What stands after "because" in a sentence, without its full stop."""


@dataclass(frozen=True)
class Preset:
    """Settings for one corpus, and why these."""

    name: Name
    """Which preset."""
    task: Task
    """What the model is for."""
    size: CorpusSize
    """The corpus that they are for."""
    data: Mapping[str, Any]
    """Limits of length, for the recipe's group `data`."""
    groups: Mapping[str, Any]
    """The recipe's other groups in their order: tokenizer, model, batch, training, evaluation, search, stages."""
    reasons: Sequence[Reason]
    """Why; the first is of the preset itself."""
    warnings: Sequence[str]
    """What to expect that one would rather not, each a sentence without its full stop."""
    minutes: float | None
    """How long training takes here, by the speed that was measured; None where it was not measured."""
    passes: float | None
    """How often the text is read, by that speed and within the time given; None where it was not measured."""

    @property
    def is_useful(self) -> bool:
        """Whether the time given is enough for a model of this size, as far as anybody knows."""
        plan = _PLANS[self.task][self.name]
        return self.passes is None or self.passes >= plan.fewest_useful


def smaller(name: Name) -> Name | None:
    """The next smaller preset."""
    return NAMES[NAMES.index(name) - 1] if NAMES.index(name) else None


def choose(
    task: str,
    size: CorpusSize,
    preset: str | None = None,
    gpu: bool = False,
    minutes: float | None = None,
    tokens_a_minute: Mapping[Name, float] | None = None,
) -> Preset:
    """Settings for a corpus.

    Args:
        task: one of `TASKS`.
        size: of the training text, as `Counts` gives it.
        preset: one of `NAMES`; None chooses by the corpus and the device.
        gpu: whether training will be on a GPU.
        minutes: stop training after so many.
        tokens_a_minute: padded tokens of a batch that the machine trains on in a minute with a preset, where somebody
            has measured it. If there are too few minutes for the preset that fits the corpus, a smaller one is taken,
            if its speed is known.

    Raises:
        RecipeError: there is no such task or preset.
    """
    kind = next((one for one in TASKS if one == task), None)
    if kind is None:
        raise RecipeError(f"no task {task!r}: {near_names(task, TASKS)}")
    name = next((one for one in NAMES if one == preset), None)
    if name is None and preset is not None:
        raise RecipeError(f"no preset {preset!r}: {near_names(preset, NAMES)}")
    fitting, because = _fitting(size, gpu)
    if name is not None:
        return _chosen(kind, size, name, "it was asked for", gpu, minutes, tokens_a_minute or {})
    found = _chosen(kind, size, fitting, because, gpu, minutes, tokens_a_minute or {})
    while minutes and not found.is_useful and (less := smaller(found.name)) in (tokens_a_minute or {}):
        assert less is not None
        times = f"{found.passes:.2g}"
        because = f"in {minutes:g} min the preset {found.name} would read the text only {times} times on this machine"
        found = _chosen(kind, size, less, because, gpu, minutes, tokens_a_minute or {})
    return found


_PLANS: dict[Task, dict[Name, Plan]] = {"translation": TRANSFORMERS, "summarization": POINTERS}


def _chosen(
    kind: Task,
    size: CorpusSize,
    name: Name,
    because: str,
    gpu: bool,
    minutes: float | None,
    tokens_a_minute: Mapping[Name, float],
) -> Preset:
    choice = _Choice(size, name, _PLANS[kind][name], minutes, tokens_a_minute.get(name))
    choice.say("preset", name, because)
    data, groups = choice.translation() if kind == "translation" else choice.summarization()
    warnings = _warnings(size, name, gpu)
    return Preset(name, kind, size, data, groups, choice.reasons, warnings, choice.expected, choice.passes)


def _fitting(size: CorpusSize, gpu: bool) -> tuple[Name, str]:
    """The preset for those who name none, and why."""
    if size.pairs < FEW_PAIRS:
        return "tiny", f"{size.pairs:,} pairs are too few for anything larger"
    if not gpu:
        return "small", f"training is on a CPU, and {size.pairs:,} pairs are enough for it"
    if size.pairs < MANY_PAIRS:
        return "small", f"{size.pairs:,} pairs are fewer than a large model needs"
    return "base", f"{size.pairs:,} pairs are enough for a large model, and there is a GPU to train it"


def _warnings(size: CorpusSize, name: Name, gpu: bool) -> list[str]:
    found = []
    if size.pairs < FEW_PAIRS:
        found.append(
            f"{size.pairs:,} pairs are few: the model will hardly learn more than the sentences that it sees; useful "
            f"results begin above {FEW_PAIRS:,}"
        )
    if name == "base" and not gpu:
        found.append("preset base takes days on a CPU; --preset small is made for it")
    return found


class _Choice:
    """The settings of one plan for one corpus; `reasons`, `expected`, `passes` are filled as they are chosen."""

    def __init__(
        self, size: CorpusSize, name: Name, plan: Plan, minutes: float | None, tokens_a_minute: float | None
    ) -> None:
        self.size = size
        self.name = name
        self.plan = plan
        self.minutes = minutes
        self.speed = tokens_a_minute
        self.words = max(size.src.words, size.tgt.words)
        self.reasons: list[Reason] = []
        self.expected: float | None = None
        self.passes: float | None = None

    def say(self, setting: str, value: str, because: str) -> None:
        """Notes a reason."""
        self.reasons.append(Reason(setting, value, because))

    def translation(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings in `data`, and the other groups."""
        tokenizer = self._subwords()
        self.say("model", self.plan.told, self.plan.because)
        batch_tokens = self.plan.batch_tokens
        if self.name == "small" and self.words < 200_000:
            batch_tokens = 2_048
            self.say(
                "batch.batch_tokens", "2,048", "little text is learned better in small batches (Sennrich and Zhang)"
            )
        padded = round(_PADDING * (self.size.pairs + _TOKENS_PER_WORD * self.words))  # of the longer side, with EOS
        if self.minutes and self.name != "tiny":
            # Nobody knows yet how far the minutes reach: it is measured with the batches of a short time.
            reach = self.minutes * self.speed / padded if self.speed else 0.0
            if reach < _SHORT:
                batch_tokens = min(batch_tokens, self.plan.batch_tokens // 2)
                told = f"{reach:.2g} passes over the text" if self.speed else "a time that is given"
                self.say(
                    "batch.batch_tokens", f"{batch_tokens:,}", f"in {told} more updates teach more than larger ones"
                )
        updates = self._updates(padded, batch_tokens, self.minutes)
        model = {
            **self.plan.model,
            "dropout": self._dropout(
                self._expected_updates(updates, batch_tokens, self.minutes) * batch_tokens / padded
            ),
            "tie": "all" if tokenizer["joint"] else "decoder",
        }
        training = self._training(updates, batch_tokens, self.minutes, [0.9, 0.98])
        # Where the time is given, validations must not use it up: a search costs as much as several updates.
        evaluation: dict[str, Any] = {"max_sentences": 200 if self.minutes else 500}
        if not self.size.tgt.spaced:
            evaluation["tokenize"] = "char"
            self.say("evaluation.tokenize", "char", "the target has no spaces between words, so BLEU counts characters")
        return {}, {
            "tokenizer": tokenizer,
            "model": model,
            "batch": {"batch_tokens": batch_tokens},
            "training": {**training, "label_smoothing": 0.1, "clip_norm": 1.0},
            "evaluation": evaluation,
            "search": {"beam_size": 5, "length_penalty": "average", "alpha": 1.0},
        }

    def summarization(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings in `data`, and the other groups."""
        src, tgt = self.size.src, self.size.tgt
        longest = min(400, max(10, round(1.2 * src.length))), min(120, max(10, round(1.2 * tgt.length)))
        self.say(
            "data.max_length",
            f"{longest[0]}, and {longest[1]} of a summary",
            f"95 % of the sources have no more than {src.length:,} words and of the summaries {tgt.length:,}, and 400 "
            "tokens of an article are enough (See et al. 2017, section 5)",
        )
        data = {"max_length": longest[0], "max_tgt_length": longest[1], "over_long": "truncate"}
        tokenizer = self._whole_words() if self.size.both.spaced else self._subwords()
        self.say("model", self.plan.told, self.plan.because)
        model = {**self.plan.model, "dropout": 0.0 if self.name == "base" else 0.2}
        if not tokenizer["joint"]:
            model["tie"] = "decoder"
        share = (0.8 * self.minutes, 0.2 * self.minutes) if self.minutes else (None, None)
        read = min(self.size.pairs * longest[0], round(1.2 * src.words))
        updates = self._updates(round(_PADDING * (self.size.pairs + read)), self.plan.batch_tokens, share[0])
        covering = max(20, updates // 5)
        if self.expected is not None:
            self.expected *= 1 + covering / updates
        self.say(
            "stages", f"{updates:,} updates, then {covering:,} with coverage", "summaries then repeat themselves less"
        )
        batch = self.plan.batch_tokens
        training = self._training(updates, batch, share[0], [0.9, 0.999])
        second = self._training(covering, batch, share[1], [0.9, 0.999])
        whole = {"max_minutes": float(self.minutes)} if self.minutes else {}
        return data, {
            "tokenizer": tokenizer,
            "model": model,
            "batch": {"batch_tokens": self.plan.batch_tokens},
            "training": {**training, **whole, "clip_norm": 2.0, "best_metric": "rougeL"},
            "evaluation": {"max_sentences": 200},
            "search": {"beam_size": 4, "length_penalty": "average", "max_length": longest[1] + 20},
            "stages": [
                {"name": "pointer"},
                {
                    "name": "coverage",
                    "model": {"coverage": True},
                    "training": {**second, "lr": self.plan.lr / 4, "coverage_weight": 1.0},
                },
            ],
        }

    def _dropout(self, passes: float) -> float:
        """More where the text is read more often; between the points of 12, 22 and 90 passes that were measured."""
        dropout = 0.1 if passes < 15 or self.words >= 20_000_000 else 0.2 if passes < 40 else 0.3
        self.say(
            "model.dropout",
            f"{dropout}",
            "text that is read more often is sooner learned by heart",
        )
        return dropout

    def _whole_words(self) -> dict[str, Any]:
        """The tokenizer of a model that copies what its vocabulary lacks."""
        words = self.size.both.words
        wanted = 8_000 if words < 5_000_000 else 20_000 if words < 50_000_000 else 50_000
        vocabulary = min(wanted, self.plan.most_vocabulary)
        self.say("tokenizer", f"the {vocabulary:,} most frequent words", "the model copies other words from the source")
        return {"kind": "word", "vocab_size": vocabulary, "joint": True}

    def _subwords(self) -> dict[str, Any]:
        """The tokenizer of subwords: one for both sides where they share their letters."""
        joint = self.size.one_script
        texts = [self.size.both] if joint else [self.size.src, self.size.tgt]
        suited = next(tokens for limit, tokens in VOCABULARIES if self.words < limit)
        wanted = min(suited, self.plan.most_vocabulary)
        rare = any(2 * text.characters > wanted for text in texts)
        sizes = [_room(text, wanted, rare) for text in texts]
        because = f"no more subwords are learned well from {self.words:,} words a side (Sennrich and Zhang 2019)"
        if suited > wanted:
            because = f"more would make the preset {self.name} slow"
        if min(sizes) < wanted:
            because = "the text has no more words and characters"
        self.say("tokenizer", "bpe of " + " and ".join(f"{one:,}" for one in sizes), because)
        letters = "the same letters" if joint else "different letters"
        self.say("tokenizer.joint", f"{joint}".lower(), f"both sides are written in {letters}")
        tokenizer: dict[str, Any] = {"kind": "bpe", "vocab_size": sizes[0], "joint": joint}
        if not joint:
            tokenizer["tgt_vocab_size"] = sizes[1]
        if rare:
            tokenizer["character_coverage"] = 0.9995
            most = max(text.characters for text in texts)
            self.say(
                "tokenizer.character_coverage", "0.9995", f"the rarest of {most:,} characters would take others' room"
            )
        return tokenizer

    def _updates(self, padded: int, batch_tokens: int, minutes: float | None) -> int:
        """How long to train: the passes fall with the square root of the text, from the one point that is known.

        Args:
            padded: padded tokens of the text.
            batch_tokens: of a batch.
            minutes: at most.

        Returns:
            Updates at most; `_expected_updates` says how many the time allows.
        """
        plan = self.plan
        passes = min(max(plan.passes * math.sqrt(plan.passes_at / padded), plan.fewest_passes), plan.most_passes)
        a_pass = max(1, math.ceil(padded / batch_tokens))
        updates = min(max(round(passes * a_pass), 100), plan.most_updates)
        rule = (
            "the less text, the more often it is read" if updates < plan.most_updates else "this preset makes no more"
        )
        self.say("training.max_updates", f"{updates:,}", f"the text is then read {updates / a_pass:.3g} times; {rule}")
        expected = self._expected_updates(updates, batch_tokens, minutes)
        if minutes:
            because = "it was asked for; the learning rate comes down within it, however fast the machine is"
            if self.speed:
                times = f"{expected / a_pass:.2g}"
                because += (
                    f"; this one makes about {expected:,} updates in {minutes:g} min, which read the text {times} times"
                )
            self.say("training.max_minutes", f"{self.minutes:g}", because)
        if self.speed:
            self.expected = expected * batch_tokens / self.speed
            self.passes = expected / a_pass
        return updates

    def _expected_updates(self, updates: int, batch_tokens: int, minutes: float | None) -> int:
        """How many of the updates this machine makes in the time given; all, where nobody has measured it."""
        if not minutes or not self.speed:
            return updates
        return max(1, min(updates, round(minutes * self.speed / batch_tokens)))

    def _training(self, updates: int, batch_tokens: int, minutes: float | None, betas: list[float]) -> dict[str, Any]:
        schedule: dict[str, Any] = {"kind": "cosine", "over": "budget", "warmup_share": 0.1}
        if self.name == "base" and not minutes:
            schedule = {"kind": "inverse_sqrt", "warmup": min(4_000, max(1, updates // 5))}
        return {
            "optimizer": "adam",
            "lr": self.plan.lr,
            "betas": betas,
            "schedule": schedule,
            "max_updates": updates,
            **({"max_minutes": float(minutes)} if minutes else {}),
            "validate_every": max(50, self._expected_updates(updates, batch_tokens, minutes) // (5 if minutes else 10)),
        }


def _room(text: Text, wanted: int, rare: bool) -> int:
    """How many tokens of the wanted ones a text has use for, and sentencepiece will give.

    Each character needs a token, and each word of several characters can become one. Where rare characters get none,
    the frequent ones leave at least half of the room to words.
    """
    characters = text.frequent_characters if rare else text.characters
    possible = _SPECIALS + 2 + characters + text.distinct_words // 2
    return min(max(wanted, 2 * characters), possible)
