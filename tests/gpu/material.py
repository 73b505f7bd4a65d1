"""What the parts that measure speed work on: made-up captions, and models as they are on a GPU or quick."""

import torch

from nmtkit.checkpoints.weights import get_weights, save_weights
from nmtkit.data.store import Store
from nmtkit.models.transformer import TransformerConfig
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.saved import SavedRun, build_model
from tests.bench import made_text, training

from .results import Part

VOCABULARY, QUICK_VOCABULARY = 32_000, 400
QUICK_PAIRS = {"train": 300, "valid": 10, "test": 20}
BATCH_TOKENS, QUICK_BATCH_TOKENS = 25_000, 500
QUICK = {"hidden_size": 16, "feed_forward_size": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}


def transformer(part: Part) -> TransformerConfig:
    return training.BASE.changed(QUICK) if part.quick else training.BASE


def captions(part: Part) -> RunFolder:
    """A preprocessed run, made by whichever part comes first."""
    folder = part.results.path.parent / "captions"
    if not (folder / "run" / "data" / "test.json").exists():
        folder.mkdir(exist_ok=True)
        sizes = (QUICK_VOCABULARY, QUICK_PAIRS) if part.quick else (VOCABULARY,)
        made_text.make_captions(folder, transformer(part).model_dump(), *sizes)
    return RunFolder(folder / "run")


def untrained_run(part: Part) -> RunFolder:
    """The captions' run with random weights, which translates into nonsense."""
    folder = captions(part)
    run = SavedRun(folder)
    tokenizers = run.load_tokenizers()
    torch.manual_seed(1)
    save_weights(folder.average, get_weights(build_model(run.recipe, tokenizers)), tokenizers.checksum)
    return folder


def training_setup(part: Part, updates: int = 5, blocks: int = 3) -> training.Setup:
    return training.Setup(
        Store.open(captions(part).data, "train"),
        part.scratch,
        part.place,
        torch.get_num_threads(),
        blocks=1 if part.quick else blocks,
        updates=1 if part.quick else updates,
        batch_tokens=QUICK_BATCH_TOKENS if part.quick else BATCH_TOKENS,
    )
