"""The part of `nmtkit check` that needs a recipe, and so all of nmtkit: loaded only where a recipe is named."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmtkit import console, recipe
from nmtkit.data.corpus import FILE_KINDS, Files
from nmtkit.data.reading import require_base
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.diagnosis import tokens
from nmtkit.diagnosis.findings import Diagnosis
from nmtkit.experiment import checks, folder
from nmtkit.experiment.folder import RunFolder
from nmtkit.recipe import Recipe
from nmtkit.settings import beside_package, dump_yaml


@dataclass(frozen=True)
class RecipeCheck:
    """A recipe whose data is checked."""

    recipe: Recipe
    """Loaded, with its overrides."""
    path: Path
    """Its file."""
    run: RunFolder
    """The folder of its run, whether there is one or not."""

    @property
    def splits(self) -> dict[str, Files]:
        """Its files."""
        return self.recipe.data.splits()

    def count_tokens(self, diagnosis: Diagnosis, notify: Callable[[str], None]) -> tokens.TokenReport:
        """Cuts the text into tokens as the run will."""
        require_base(self.splits["train"])
        tokenizers, source = self._tokenizers(notify)
        with console.LineProgress("pairs") as shown:
            return tokens.look(self.recipe.stored, tokenizers, diagnosis, source, shown.advance)

    def _tokenizers(self, notify: Callable[[str], None]) -> tuple[TokenizerPair, str]:
        config = self.recipe.tokenizer
        if self.run.vocabulary.is_dir() and self.run.exists() and self.run.load_recipe().tokenizer == config:
            return self.run.load_tokenizers(), f"The tokenizer ({config.kind}) is that of {self.run.path}."
        notify(f"learning a tokenizer ({config.kind}) for this check, since {self.run.path} has none of these settings")
        files = self.splits["train"]
        return tokens.learn_quickly(config, files), f"The tokenizer ({config.kind}) was learned for this check."

    def write(self, out: Path, splits: Mapping[str, Files]) -> Path:
        """Writes a recipe that is like this one but for its files, and gives its path.

        Args:
            out: the folder of the new files, and of the recipe.
            splits: the new files; their paths begin at the folder, or are whole.
        """
        ours = self.path.resolve().parent == beside_package("recipes").resolve()
        parent = self.path.stem if ours else os.path.relpath(self.path, out)
        data: dict[str, object] = {"folder": "."}
        for name, files in splits.items():
            old: Files = getattr(self.recipe.data, name)
            # All that the old recipe says of files is said anew, so that nothing of it is left.
            keys = [key for key in FILE_KINDS if getattr(files, key) or getattr(old, key)]
            keys += ["src_field", "tgt_field"] if files.jsonl else []
            data[name] = {key: _from(out, getattr(files, key)) for key in keys}
        path = out / f"{self.path.stem}.yaml"
        text = f"# {self.recipe.name} with the files that `nmtkit check --fix` has cleaned.\n"
        text += dump_yaml({"extends": parent, "name": f"{self.recipe.name}-clean", "data": data})
        folder.write_text(path, text)
        return path


def open_recipe(name: str, overrides: Sequence[str], run_path: str | None) -> RecipeCheck:
    """Loads a recipe whose data is to be checked.

    Raises:
        NmtkitError: there is none, it is not valid, or its data is not there.
    """
    loaded = recipe.load(name, overrides)
    checks.require_data(loaded)
    run = RunFolder(Path(run_path) if run_path else folder.RUNS / loaded.name)
    return RecipeCheck(loaded, recipe.locate(name), run)


def _from(out: Path, value: list[str] | str) -> list[str] | str:
    """Paths as the recipe in `out` has to say them: whole ones for files that are not there."""
    if isinstance(value, str):
        return value
    return [path if (out / path).exists() else os.path.abspath(path) for path in value]
