"""The settings of a recipe, for every part of an experiment, and the validation of their combinations.

Rules that need only the text of a recipe, and hold for every recipe, are checked here or by the settings of each group.
`nmtkit.experiment.checks` has those that need files, a built model, this machine or another run, or that apply only to
some commands.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from nmtkit.config import groups
from nmtkit.config.tasks.builtin import TRANSLATION
from nmtkit.config.tasks.task import TASKS, with_settings_of_task
from nmtkit.core.columns import label_type
from nmtkit.core.errors import shorten
from nmtkit.core.formats import KeyPath, dump_yaml
from nmtkit.core.registry import suggest_names, suggest_registered
from nmtkit.core.settings import Field, Name, Settings, field_validator, model_validator, parse
from nmtkit.data.batches.batch_stream import BatchConfig
from nmtkit.data.embeddings import PretrainedEmbeddingsConfig, Side
from nmtkit.data.text.config import DataConfig, SplitFiles
from nmtkit.data.tokenizers.tokenizer import TokenizerConfig
from nmtkit.decoding.settings import AnySearch, BeamConfig, merge_search
from nmtkit.models.abilities import (
    auxiliary_objective,
    pretraining_objectives,
    reads_sentences,
    shows_one_head,
)
from nmtkit.models.base import MODELS, PARTS, AnyModelConfig, Decoder, VocabularySizes
from nmtkit.models.embeddings import EMBEDDINGS
from nmtkit.training.checkpoints.manager import NAMED_WEIGHTS
from nmtkit.training.config import TrainingConfig
from nmtkit.training.losses.objective import OBJECTIVES, chosen_objectives


class InitConfig(Settings):
    """The run that provides initial weights, tokenizer and vocabulary, or several runs that provide parts of them."""

    run: str | None = Field(default=None, min_length=1)
    """Folder of the run, or its name under `runs/`. `init_from: RUN` is short for this key alone."""
    encoder: str | None = Field(default=None, min_length=1)
    """Run to copy the encoder and source embeddings from, such as a bert run; cannot be combined with `run`."""
    decoder: str | None = Field(default=None, min_length=1)
    """Run to copy the decoder, target embeddings and output layer from. A bert run provides its encoder as the
    decoder."""
    src_embedding: str | None = Field(default=None, min_length=1)
    """Run to copy source embeddings from, for tokens that are in both vocabularies."""
    tgt_embedding: str | None = Field(default=None, min_length=1)
    """Run to copy target embeddings from, for tokens that are in both vocabularies. Aji et al. 2020 study the transfer
    of embeddings alone."""
    tokenizer: str | None = Field(default=None, min_length=1)
    """Run to copy the tokenizer from. Default, if the recipe has no `tokenizer`: the run of the first part that is set.
    If only this key is set, no weights are copied; a language model can thus be trained with the tokenizer of the
    translation model that it will be combined with."""
    checkpoint: str = Field(default="auto", min_length=1)
    """Checkpoint to use: `best`, `last`, `average`, a stage of that run, or a weights file, as in `load_model` of
    Joey NMT (Kreutzer et al. 2019). `auto` is the average if there is one, as in an imported run, else the best."""
    test: SplitFiles | None = None
    """Test set from the original training domain, scored before and after fine-tuning to measure forgetting. Default:
    the test set of that run."""

    @model_validator(mode="after")
    def _run_or_parts(self) -> "InitConfig":
        if bool(self.run) == bool(self.runs.keys() - {"run"}):
            raise ValueError(
                f"set either `run` (the whole model) or one or more of {', '.join(PARTS)} and tokenizer, but not both"
            )
        return self

    @property
    def runs(self) -> dict[str, str]:
        """All runs by key."""
        return {key: run for key in ("run", *PARTS, "tokenizer") if (run := getattr(self, key))}


class Recipe(Settings):
    """All settings of one experiment."""

    name: Name
    """Name of the recipe and of its run; it cannot be a path. Default: the file name without `.yaml`."""
    description: str = ""
    """Purpose of the recipe, in one sentence."""
    task: Annotated[str, TASKS] = Field(
        default=TRANSLATION.name,
        json_schema_extra=lambda schema: schema.update(enum=[*TASKS.names()]),
    )
    """What the model does. Translations are scored with BLEU, summaries with ROUGE."""
    seed: int = Field(default=1, ge=0)
    """Random seed for initial weights, data order and dropout."""
    data: DataConfig
    """The text for training, validation and testing."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text is split into tokens."""
    model: AnyModelConfig
    """The model: `kind` and the settings for that kind."""
    pretrained_embeddings: PretrainedEmbeddingsConfig | None = None
    """Pretrained word vectors for the embeddings. Default: random ones."""
    init_from: InitConfig | None = None
    """Run to fine-tune: training starts from its weights, tokenizer and vocabulary. Default: random weights. If the
    recipe has no `model` or no `tokenizer`, task, tokenizer, model and search also come from that run."""
    batch: BatchConfig = BatchConfig()
    """How training batches are made."""
    training: TrainingConfig
    """How the model is trained."""
    search: AnySearch = BeamConfig()
    """How outputs are generated: `kind` (beam, sampling or mbr), penalties and limits."""
    evaluation: groups.EvaluationConfig = groups.EvaluationConfig()
    """How the model is evaluated on the validation and test sets."""
    stages: list[groups.Stage] = Field(default_factory=list, max_length=groups.MAX_STAGES)
    """Consecutive stages of training, each with a name and the settings that it changes."""

    @field_validator("task")
    @classmethod
    def _task(cls, name: str) -> str:
        if name not in TASKS.names():
            raise ValueError(
                f"there is no task {shorten(name)!r}; {suggest_registered(name, TASKS.names())}"
            )
        return name

    @field_validator("stages")
    @classmethod
    def _stages(cls, stages: list[groups.Stage]) -> list[groups.Stage]:
        names = [stage.name for stage in stages]
        for number, stage in enumerate(stages):
            if stage.name in names[:number]:
                raise ValueError(
                    f"two stages are called {stage.name!r}; give each a different name"
                )
            if stage.name in NAMED_WEIGHTS:
                raise ValueError(
                    f"a stage cannot be called {stage.name!r}, because --checkpoint {stage.name} has a different "
                    "meaning; rename the stage"
                )
            if "test" in stage.data:
                raise ValueError(
                    f"stage {stage.name} sets `data.test`, which applies to all stages; move it to the recipe"
                )
            if "kind" in stage.model:
                raise ValueError(
                    f"stage {stage.name} sets `model.kind`, but all stages train the same model; remove the key"
                )
            for key, value in (stage.batch | stage.training).items():
                if value == "auto":
                    raise ValueError(
                        f"`{key}: auto` is not available for a single stage; remove it from stage {stage.name}, which "
                        "then uses the recipe's value, or set a value"
                    )
        return stages

    @model_validator(mode="before")
    @classmethod
    def _with_dependent_defaults(cls, given: Any) -> Any:
        return groups.with_best_metric(
            with_settings_of_task(groups.with_languages_of_corpora(given))
        )

    @model_validator(mode="after")
    def _tags_are_known(self) -> "Recipe":
        groups.require_known_tags(self.data, self.tokenizer)
        if any(self.data.train.tags) and label_type(TASKS.get(self.task).columns) == "labels":
            raise ValueError(
                "`data.train.tags`: every token of a source needs a label, but tags have none; remove the tags"
            )
        return self

    @model_validator(mode="after")
    def _columns_of_the_task(self) -> "Recipe":
        columns = {column.name: column for column in TASKS.get(self.task).columns}
        if {"src", "features"} <= columns.keys():
            raise ValueError(
                f"`task`: the task {self.task} has both src and features, but a model reads only one of these columns; "
                "remove one of them"
            )
        for split, files in vars(self.data).items():
            if not isinstance(files, SplitFiles):
                continue
            for name, column in columns.items():
                if split in column.required and name not in files.columns:
                    why = f"the task {self.task} requires it in {' and '.join(column.required)}"
                    if name == "tgt" and "test" not in column.required:
                        why = "only a test set may have no targets"
                    raise ValueError(f"`data.{split}`: {name} is missing; {why}")
            if unknown := [name for name in files.columns if name not in columns]:
                empty = f" (set `{unknown[0]}_field` to '')" if files.jsonl else ""
                raise ValueError(
                    f"`data.{split}`: the task {self.task} has no {unknown[0]} column, only {' and '.join(columns)}; "
                    f"remove this column{empty}, or choose another task"
                )
        texts = [name for name, column in columns.items() if column.type == "text"]
        if unknown := [name for name in self.tokenizer.columns if name not in texts]:
            raise ValueError(
                f"`tokenizer.columns.{unknown[0]}`: the task {self.task} has no such text column, only "
                f"{' and '.join(texts)}; remove the key"
            )
        if self.tokenizer.columns and self.tokenizer.joint and len(texts) == 2:
            raise ValueError(
                "`tokenizer.columns` configures the tokenizer of one text column, but both columns share a tokenizer; "
                "set `tokenizer.joint` to false"
            )
        return self

    @model_validator(mode="after")
    def _weights_and_stages(self) -> "Recipe":
        runs = self.init_from.runs if self.init_from else {}
        embedding = getattr(self.model, "src_embedding", None)
        if (
            embedding
            and EMBEDDINGS.get(embedding.kind).is_pretrained
            and not {"run", "src_embedding"} & {*runs}
        ):
            raise ValueError(
                f"`model.src_embedding`: {embedding.kind} needs the weights of another run; "
                "set `init_from.src_embedding`"
            )
        if "run" in runs and self.pretrained_embeddings is not None:
            raise ValueError(
                "`init_from` initializes all weights, including embeddings; remove `pretrained_embeddings`"
            )
        tasks = [stage.task or self.task for stage in self.stages] or [self.task]
        if tasks[-1] != self.task or (not self.tokenizer.joint and {*tasks} != {self.task}):
            if tasks[-1] != self.task:
                fault = f"the last stage must have the same task as the recipe, {self.task}"
            else:
                fault = "stages with different tasks must share a vocabulary; set `tokenizer.joint` to true"
            raise ValueError(f"`stages`: {fault}")
        whole, given = (
            self.training.max_minutes,
            [stage.training.get("max_minutes") for stage in self.stages],
        )
        own = sum(minutes for minutes in given if isinstance(minutes, int | float))
        others = self._without_own_minutes()
        if whole is not None and others and own >= whole:
            raise ValueError(
                f"`training.max_minutes`: the limit is {whole:g} minutes, but stages with their own max_minutes "
                f"already take {own:g}, so none are left for stage {others[0]}; raise the limit, or set max_minutes in "
                "every stage"
            )
        return self

    @model_validator(mode="after")
    def _blocks_and_labels(self) -> "Recipe":
        if (
            label_type(TASKS.get(self.task).columns) == "labels"
            and not self.tokenizer.for_column("src").cuts_words
        ):
            raise ValueError(
                "`tokenizer.kind`: word-level labels require a tokenizer that does not split words; use whitespace, "
                "pieces or word"
            )
        columns = [column.name for column in TASKS.get(self.task).columns]
        cut = any(self.tokenizer.for_column(name).sentences for name in ("src", "tgt"))
        if cut and "tgt" in columns:
            raise ValueError(
                "`tokenizer.sentences`: this key ends every sentence with EOS, but the texts generated in the task "
                f"{self.task} must have a single EOS, at the end; remove the key"
            )
        if reads_sentences(self.model) and not cut:
            raise ValueError(
                f"`model.kind`: {self.model.kind} reads text sentence by sentence; set `tokenizer.sentences` to true"
            )
        if self.batch.block_tokens is None:
            return self
        if columns != ["tgt"]:
            raise ValueError(
                f"`batch.block_tokens`: blocks require a task whose only column is tgt, but {self.task} has "
                f"{' and '.join(columns)}; remove the key"
            )
        if self.data.over_long == "truncate" or self.tokenizer.sampling:
            stored = "blocks are cut from complete documents with a fixed tokenization"
            remedy = "set `data.over_long` to drop, and `tokenizer.sampling` to 0"
            raise ValueError(f"`batch.block_tokens`: {stored}; {remedy}")
        return self

    def _without_own_minutes(self) -> list[str]:
        return [stage.name for stage in self.stages if "max_minutes" not in stage.training]

    @model_validator(mode="after")
    def _best_metric(self) -> "Recipe":
        name = self.training.best_metric
        given = (*self.validation_metrics, "loss", "perplexity")
        if self.evaluation.metrics and not TASKS.get(self.task).references:
            raise ValueError(
                f"`evaluation.metrics`: these metrics compare outputs with references, but {self.task} has no "
                "references; remove the metrics, and set `training.best_metric` to loss or perplexity"
            )
        if name not in given:
            raise ValueError(
                f"`training.best_metric`: validation of {self.task} does not measure {name!r}; "
                f"{suggest_names(name, given)}"
            )
        return self

    @model_validator(mode="after")
    def _attention(self) -> "Recipe":
        kind, training, linked = self.model.kind, self.training, self.data.train.has_links
        losses = training.objectives
        guided = losses.get("guided_alignment")
        attends = (
            MODELS.get(kind).has_attention and label_type(TASKS.get(self.task).columns) is None
        )
        for name in losses:
            reads_attention = (
                OBJECTIVES.get(name).needs in ("attention", "heads") and name != "hard_attention"
            )
            if reads_attention and not attends:
                key = TrainingConfig.key_of(name)
                raise ValueError(
                    f"`{key}`: this loss is computed from the attention of output words, which {kind} does not have; "
                    "remove the key"
                )
        if "reinforce" in losses and not issubclass(MODELS.get(kind), Decoder):
            key = TrainingConfig.key_of("reinforce")
            raise ValueError(
                f"`{key}`: {kind} generates no text that could be rewarded; remove the key"
            )
        if getattr(self.model, "hard_attention", False) != ("hard_attention" in losses):
            key = TrainingConfig.key_of("hard_attention")
            both = f"`model.hard_attention: true` and `{key}` require each other"
            raise ValueError(f"{both}; set both (`{key}: {{}}` uses the defaults), or neither")
        if self.tokenizer.sampling and (linked or self.model.copies):
            raise ValueError(
                f"`{'data.train.alignment' if linked else 'model.kind'}`: alignment links and copied words "
                "require a fixed tokenization; set `tokenizer.sampling` to 0"
            )
        if guided is not None and guided.source == "file" and not linked:
            raise ValueError(
                "`training.objectives.guided_alignment`: `source` is file, but `data.train.alignment` is not set; "
                "set it to files in Pharaoh format (one line of i-j links per pair)"
            )
        if guided is not None and guided.source == "model" and not shows_one_head(self.model):
            must = (
                "so the model must be a transformer, and `model.alignment_heads` must be the number "
                "of a head"
            )
            if getattr(self.model, "copying", None) == "learned":
                must = (
                    "but with `model.copying: learned` the alignment comes from an additional "
                    "attention layer; set `model.copying` to head or none"
                )
            key = "training.objectives.guided_alignment"
            raise ValueError(
                f"`{key}`: `source: model` trains one head on the mean of all heads of its layer, {must}"
            )
        return self

    @model_validator(mode="after")
    def _pretraining(self) -> "Recipe":
        kind, columns = self.model.kind, [column.name for column in TASKS.get(self.task).columns]
        ways, chosen = pretraining_objectives(MODELS.get(kind)), chosen_objectives(self.training)
        if columns == ["tgt"] and ways and not {*ways} & {*chosen} and not self.stages:
            key = TrainingConfig.key_of(ways[0])
            raise ValueError(
                f"`training`: training {kind} on text requires an objective ({' or '.join(ways)}); set `{key}`"
            )
        # A user's model that does not generate text does not have to list its training objectives.
        is_open = not ways and not issubclass(MODELS.get(kind), Decoder)
        for name, one in chosen.items():
            key = TrainingConfig.key_of(name)
            is_named = name in ways and columns == ["tgt"]
            if (
                one.replaces_likelihood
                and not is_named
                and not (is_open and name in self.training.objectives)
            ):
                can = [
                    other
                    for other in MODELS.names()
                    if name in pretraining_objectives(MODELS.get(other))
                ]
                raise ValueError(
                    f"`{key}`: this objective cannot be used with model `{kind}` and task `{self.task}`; it requires "
                    f"task `language-modelling` and one of these models: {', '.join(can)}"
                )
            if one.needs == "output" and auxiliary_objective(self.model) != name:
                raise ValueError(
                    f"`{key}`: the model has no output layer for this objective; `nmtkit recipe explain model.{kind}` "
                    "lists the settings of the model"
                )
            if missing := [
                token for token in one.specials if token not in self.tokenizer.special_tokens
            ]:
                add = f"add {missing} to `tokenizer.specials` (for <extra_id_N>, set `tokenizer.sentinels: 100`)"
                raise ValueError(f"`{key}`: this objective needs special tokens; {add}")
        return self

    def by_stage(self, taken: Sequence[float] = ()) -> dict[str, "Recipe"]:
        """Returns the complete recipe of every stage by name, in order; without stages, "" maps to this recipe.

        The stages that do not set `training.max_minutes` share equally the minutes that earlier stages have not used
        and that no stage has set for itself.

        Args:
            taken: the seconds that each finished stage took; the other stages are assumed to use all of their time.
        """
        if not self.stages:
            return {"": self}
        recipes = {}
        for stage in self.stages:
            changes = stage.changes()
            data = deep_merge(
                groups.without_replaced(self.model_dump(exclude={"stages"}), changes), changes
            )
            recipes[stage.name] = parse(Recipe, data, f"recipe {self.name}, stage {stage.name}")
        whole, sharing = self.training.max_minutes, self._without_own_minutes()
        if whole is None:
            return recipes
        left = whole - sum(
            one.training.max_minutes or 0.0 for name, one in recipes.items() if name not in sharing
        )
        for number, (name, one) in enumerate(recipes.items()):
            minutes = one.training.max_minutes or 0.0
            if name in sharing:
                minutes = max(0.0, left / (len(sharing) - sharing.index(name)))
                training = one.training.model_copy(update={"max_minutes": minutes})
                recipes[name] = one.model_copy(update={"training": training})
                left -= minutes
            if number < len(taken):
                left += minutes - taken[number] / 60
        return recipes

    def texts(self) -> dict[str, "Recipe"]:
        """Returns the recipe of each stored text, by its folder within `data`, with the stages that train on it.

        The recipe's own text has the folder "". A stage with a different task, text or storage format has a folder with
        the name of the stage.
        """
        texts: dict[str, tuple[Recipe, list[groups.Stage]]] = {"": (self, [])}
        for stage, one in zip(
            self.stages, self.by_stage().values() if self.stages else (), strict=True
        ):
            same = [name for name, (other, _) in texts.items() if other._stored() == one._stored()]
            texts.setdefault((same or [stage.name])[0], (one, []))[1].append(
                stage.with_storage_settings(one)
            )
        return {
            name: one.model_copy(update={"stages": stages}) for name, (one, stages) in texts.items()
        }

    def _stored(self) -> tuple[Any, ...]:
        of_stages = {"max_length", "max_tgt_length"} if self.data.truncation else set()
        return self.task, self.data.model_dump(exclude=of_stages), self.batch.block_tokens is None

    @property
    def validation_metrics(self) -> list[str]:
        """The validation metrics in addition to loss and perplexity."""
        return self.evaluation.metrics or [*TASKS.get(self.task).validation_metrics]

    @property
    def test_metrics(self) -> list[str]:
        """The metrics of the test after training: the metrics of the task and the validation metrics."""
        return list(dict.fromkeys((*TASKS.get(self.task).test_metrics, *self.validation_metrics)))

    @property
    def embedding_files(self) -> dict[Side, str]:
        """The word vector files by side."""
        return self.pretrained_embeddings.files() if self.pretrained_embeddings else {}

    @property
    def storage_config(self) -> DataConfig:
        """How text is read and stored: truncated to the largest limits of all stages, or in full for blocks."""
        if self.batch.block_tokens is not None:
            return self.data.model_copy(update={"max_length": sys.maxsize, "max_tgt_length": None})
        if not self.stages:
            return self.data
        src, tgt = zip(*(one.data.limits for one in self.by_stage().values()), strict=True)
        return self.data.model_copy(update={"max_length": max(src), "max_tgt_length": max(tgt)})

    @property
    def max_vocabulary_sizes(self) -> VocabularySizes:
        """Vocabulary sizes by column if they are as large as the recipe allows; 1 for columns that are not text."""
        config, columns = self.tokenizer, TASKS.get(self.task).columns
        texts = {
            one.name: config.for_column(one.name).vocab_size
            for one in columns
            if one.type == "text"
        }
        return VocabularySizes(
            {one.name: 1 for one in columns} | texts, config.joint and len(texts) == 2
        )

    @property
    def copies(self) -> bool:
        """Whether the model copies in any stage, so that the text is stored with extended ids."""
        return any(one.model.copies for one in self.by_stage().values())

    def to_yaml(self) -> str:
        """Returns the recipe as YAML that includes every default; loading it gives an equal recipe."""
        return dump_yaml(self.model_dump(mode="json"))


def deep_merge(
    base: Mapping[str, Any],
    extra: Mapping[str, Any],
    replaced: set[KeyPath] | None = None,
    path: KeyPath = (),
) -> dict[str, Any]:
    """Merges `extra` into a copy of `base`, both at `path`; adds the path of every new value to `replaced`."""
    data = dict(base)
    for key, value in extra.items():
        old: Any = base.get(key)
        groups = isinstance(value, dict) and isinstance(old, dict)
        if groups and (*path, key) == ("search",):
            data[key] = merge_search(old, value)
        elif groups and value.get("kind", old.get("kind")) == old.get("kind"):
            data[key] = deep_merge(old, value, replaced, (*path, key))
        else:
            data[key] = value
            if replaced is not None:
                replaced.add((*path, key))
    return data
