"""What the parts that measure speed work on: made-up captions, and models as they are on a GPU or quick."""

import torch

from nmtkit.data.batches.store import Store
from nmtkit.models.transformer import TransformerConfig
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run, build_model
from nmtkit.training.checkpoints.weights import get_weights, save_weights
from tests.tools.bench import made_text, training

from .results import Part

QUICK_PAIRS = {"train": 300, "valid": 10, "test": 20}
LUONG = "wmt14-en-de-luong-local-p"
"""A recipe."""
QUICK = {
    "hidden_size": 16,
    "feed_forward_size": 32,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
}


def transformer(part: Part) -> TransformerConfig:
    return training.BASE.changed(QUICK) if part.quick else training.BASE


def luong_sizes(part: Part) -> list[str]:
    """Overrides of `LUONG`."""
    return (
        ["model.hidden_size=16", "model.embedding_size=16", "model.layers=1"] if part.quick else []
    )


def captions(part: Part) -> RunFolder:
    """A preprocessed run, made by whichever part comes first."""
    folder = part.out / "captions"
    if not (folder / "run" / "data" / "test.json").exists():
        folder.mkdir(exist_ok=True)
        sizes = (400, QUICK_PAIRS) if part.quick else (32_000,)
        made_text.make_captions(folder, transformer(part).model_dump(), *sizes)
    return RunFolder(folder / "run")


def untrained_run(part: Part) -> RunFolder:
    """The captions' run with random weights, which translates into nonsense."""
    folder = captions(part)
    run = Run(folder)
    tokenizers = run.load_tokenizers()
    torch.manual_seed(1)
    save_weights(
        folder.average, get_weights(build_model(run.recipe, tokenizers)), tokenizers.checksum
    )
    return folder


def training_setup(part: Part, updates: int = 5) -> training.Setup:
    """What is trained on, with three blocks of so many updates."""
    store, threads = Store.open(captions(part).data, "train"), torch.get_num_threads()
    blocks, updates, batch_tokens = (1, 1, 500) if part.quick else (3, updates, 25_000)
    return training.Setup(store, part.scratch, part.place, threads, blocks, updates, batch_tokens)
