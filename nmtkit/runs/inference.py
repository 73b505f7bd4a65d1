"""What decoding needs of a run, apart from weights and tokenizers: `inference.json`, so that no recipe is read."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nmtkit.core.errors import NmtkitError
from nmtkit.core.files import bytes_checksum, write_json
from nmtkit.core.formats import parse_json
from nmtkit.core.settings import Settings, TaggedUnion, parse
from nmtkit.core.task import TASKS
from nmtkit.models.base import MODELS, ModelConfig
from nmtkit.runs.folder import RunFolder
from nmtkit.search.rules import SearchConfig

if TYPE_CHECKING:
    from nmtkit.recipe import Recipe

    AnyModelConfig = ModelConfig
else:
    AnyModelConfig = Annotated[Any, TaggedUnion(lambda: [MODELS.get(name).Config for name in MODELS.names()])]


class InferenceConfig(Settings):
    """The settings of a recipe that decoding needs."""

    name: str
    task: str
    model: AnyModelConfig
    search: SearchConfig
    max_source_tokens: int | None = None
    """Tokens of a source that the model reads; None: all."""
    checkpoints: str = ""
    """The folder of the stage, within the run's."""
    recipe_sum: str = ""
    """Checksum of `recipe.yaml`: once that is changed by hand, this file is out of date."""

    @classmethod
    def of(cls, recipe: "Recipe") -> "InferenceConfig":
        """Those of a recipe, or of a stage's recipe."""
        return cls(
            name=recipe.name,
            task=recipe.task,
            model=recipe.model,
            search=recipe.search,
            max_source_tokens=source_token_limit(recipe),
        )


def source_token_limit(recipe: "Recipe") -> int | None:
    """Tokens of a source that a recipe's model reads; None: all."""
    cuts = recipe.data.truncation
    return cuts[0] if cuts is not None and TASKS.get(recipe.task).truncates_sources else None


def write_inference(folder: RunFolder, recipe: "Recipe", checkpoints: Path) -> None:
    """Writes the settings of a stage, whose checkpoints are given, beside the run's recipe."""
    update = {
        "checkpoints": checkpoints.relative_to(folder.path).as_posix(),
        "recipe_sum": bytes_checksum(folder.recipe.read_bytes()),
    }
    write_json(folder.inference, InferenceConfig.of(recipe).model_copy(update=update).model_dump(mode="json"))


def read_inference(folder: RunFolder) -> InferenceConfig | None:
    """What `write_inference` wrote; None if it is missing, damaged or out of date, so that the recipe is to be read."""
    if not folder.inference.is_file():  # a pipe would be waited for
        return None
    with suppress(OSError, NmtkitError, TypeError):
        config = parse(InferenceConfig, parse_json(folder.inference.read_bytes(), ""), str(folder.inference))
        if config.recipe_sum == bytes_checksum(folder.recipe.read_bytes()):
            return config
    return None
