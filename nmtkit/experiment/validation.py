"""How a model is judged while it trains."""

import time
from itertools import islice

import torch

from nmtkit import metrics
from nmtkit.data.batch import batches_of
from nmtkit.data.corpus import Files
from nmtkit.data.reading import read_pairs
from nmtkit.data.store import Store
from nmtkit.data.tokenizer import TokenizerPair
from nmtkit.errors import RecipeError
from nmtkit.experiment.folder import RunFolder
from nmtkit.experiment.opening import source_limit
from nmtkit.models.base import Seq2Seq
from nmtkit.recipe import Recipe
from nmtkit.training.objectives.likelihood import likelihood
from nmtkit.translation.translator import Translator


class Validation:
    """What training calls to judge the model: loss over the validation set, and the metrics of a real search.

    Args:
        folder: of the run, preprocessed.
        recipe: of the run, or of the stage.
        tokenizers: of both sides.
        device: where the model is.

    Raises:
        NmtkitError: the recipe names no validation set, or its text or the preprocessed data cannot be read.
    """

    def __init__(self, folder: RunFolder, recipe: Recipe, tokenizers: TokenizerPair, device: torch.device) -> None:
        self.recipe = recipe
        self.tokenizers = tokenizers
        self.device = device
        pairs = islice(read_pairs(validation_files(recipe)), recipe.evaluation.max_sentences)
        self.store = Store.open(folder.data, "valid")
        self.pairs = [(pair.src, pair.tgt or "") for pair in pairs]

    def __call__(self, model: Seq2Seq) -> dict[str, float]:
        """The metrics of `Recipe.validated`, loss and perplexity, and the seconds that they took."""
        begun = time.monotonic()
        how = self.recipe.evaluation
        nll, tokens = torch.zeros((), dtype=torch.float64), 0
        for batch in batches_of(self.store, how.batch_tokens, self.recipe.data.cuts):
            output = model(batch.to(self.device), keep=batch.tgt_mask)
            loss = likelihood(output, batch, model.sizes.tgt, 0.0)
            nll += loss.nll.cpu()
            tokens += loss.tokens
        config = self.recipe.search.changed({"beam_size": how.beam_size})
        limit = source_limit(self.recipe)
        translator = Translator(model, self.tokenizers, config, name=self.recipe.name, max_source_tokens=limit)
        sources, references = zip(*self.pairs, strict=True) if self.pairs else ((), ())
        options = metrics.Options(tokenize=how.tokenize, lowercase=how.lowercase)
        hypotheses = translator.translate(sources)
        scores = metrics.score_all(hypotheses, [references], self.recipe.validated, options, sources)
        mean = float(nll) / max(tokens, 1)
        return {
            **{name: score.value for name, score in zip(self.recipe.validated, scores, strict=True)},
            "loss": mean,
            "perplexity": metrics.perplexity(-float(nll), tokens).value,
            "seconds": time.monotonic() - begun,
        }


def validation_files(recipe: Recipe) -> Files:
    """The text that training judges the model by.

    Raises:
        RecipeError: the recipe names none.
    """
    files = recipe.data.splits().get("valid")
    if files is None:
        raise RecipeError(f"recipe {recipe.name}: `data.valid` is missing: training judges the model by it")
    return files
