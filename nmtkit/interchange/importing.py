"""Models of Hugging Face as runs: Marian's, and Pegasus's where the tables are Marian's, as `export` writes them.

Their words get other ids here: PAD, UNK, BOS and EOS come first. Marian has no BOS, its decoder begins with PAD; so the
row of BOS is a copy of that of PAD, with a bias by which it is never written.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmtkit.core.errors import CheckpointError
from nmtkit.core.files import new_folder, write_json, write_whole
from nmtkit.core.settings import is_name, parse
from nmtkit.core.task import TASKS
from nmtkit.core.wording import shortened
from nmtkit.data.tokenizer import SentencePieceTokenizer, TokenizerConfig, TokenizerPair
from nmtkit.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary
from nmtkit.interchange.conversion import NEVER
from nmtkit.interchange.marian import NORMS, HuggingFaceConfig, MarianWeights, Table
from nmtkit.interchange.outside import ForeignWeights, foreign_weights, read_foreign, read_foreign_json
from nmtkit.models.base import ModelConfig
from nmtkit.recipe import Recipe
from nmtkit.runs.folder import Notify, RunFolder, quiet
from nmtkit.training.weights import save_weights

_WHY_NOT = {
    "t5": "its attention has relative positions",
    "mt5": "its attention has relative positions",
    "bart": "it normalizes its embeddings, and its tokenizer cuts bytes",
    "mbart": "it normalizes its embeddings",
    "m2m_100": "its positions have other wavelengths",
    "fsmt": "its tokenizer is that of Moses",
}
"""What nmtkit has nothing like."""


_IDLE = {"_from_model_config", "bos_token_id", "transformers_version", "use_cache", "output_attentions"}
"""Generation settings that change no text."""


@dataclass(frozen=True)
class Imported:
    """A model of others as it is here."""

    source: str
    """Who wrote it, as `import` names them."""
    kind: str
    """What they call its architecture."""
    shape: str
    """What it is, in words."""
    model: ModelConfig
    tensors: Mapping[str, Tensor]
    tokenizers: TokenizerPair
    search: Mapping[str, Any]
    """How it is searched, as a recipe says it."""
    task: str = "translation"
    licence: str | None = None
    notes: Sequence[str] = ()
    """Sentences for the user."""


def import_run(
    folder: Path, path: str | None = None, notify: Notify = quiet, read: Callable[[Path], Imported] | None = None
) -> RunFolder:
    """Makes a run of a model of others.

    Args:
        folder: what it is read from.
        path: the run's folder; None is `runs/` and the folder's name.
        notify: told in a sentence what was found.
        read: reads it; by default as Hugging Face's `transformers` wrote it.

    Raises:
        NmtkitError: the folder of the run is not free, or the model is of a kind that is not read, or damaged.
    """
    name = _name(folder)
    run = RunFolder.at(path, name)
    with new_folder(run.path, "name another folder with -o") as beside:
        found = (read or read_hugging_face)(folder)
        told = _write(RunFolder(beside), found, name, run.path.resolve().name)
    how = ", ".join(f"{key} {value}" for key, value in found.search.items())
    for note in (told, f"it searches as {found.source} does: {how}", *found.notes):
        notify(note)
    return run


def _name(folder: Path) -> str:
    name = folder.stem if folder.is_file() else folder.name
    return name if is_name(name) else folder.resolve().name


def _write(run: RunFolder, found: Imported, name: str, title: str) -> str:
    """Writes the run, and says what it is."""
    title = title if is_name(title) else "imported"
    recipe, tokenizers = _recipe(title, f"{found.kind} model {name}", found), found.tokenizers
    tokenizers.save(run.vocabulary)
    save_weights(run.average, found.tensors, tokenizers.sum)
    facts = {"from": found.source, "folder": name, "model_type": found.kind, "license": found.licence}
    write_json(run.imported, facts)
    write_json(run.result, {"reason": "imported", "updates": 0, "best": None, "kept": []})
    write_whole(run.recipe, recipe.to_yaml())
    src, tgt = (len(one.vocabulary) for one in (tokenizers.src, tokenizers.tgt))
    return (
        f"{found.shape}, {src:,} source and {tgt:,} target tokens, "
        f"{sum(map(torch.numel, found.tensors.values())):,} weights"
    )


def read_hugging_face(folder: Path) -> Imported:
    """A model that `transformers` wrote, to be made a run.

    Args:
        folder: with config.json, weights, source.spm, target.spm and vocab.json.

    Raises:
        NmtkitError: it is of a kind that is not read, or damaged; the message names it.
    """
    given = read_foreign_json(folder, "config.json")
    kind, config = _config(folder, given)
    with foreign_weights(folder) as weights:
        tokenizers, tables = _tokenizers(folder, config, weights)
        model, tensors = MarianWeights(kind, config, weights, tokenizers, tables).done()
    search, unread = config.search(int(tables[1].rows[UNK]))
    notes = [_unread(folder, unread)]
    if config.max_new_tokens is None and "max_length" not in config.model_fields_set:
        notes.append("the folder says no max_length, so generate writes 20 tokens at most: raise search.max_length")
    shape = f"a {kind} model of {model.encoder_layers}+{model.decoder_layers} layers of {model.hidden_size}"
    task, licence = task_of(given), license_of(folder)
    notes = [note for note in notes if note]
    return Imported("huggingface", kind, shape, model, tensors, tokenizers, search, task, licence, notes)


def _unread(folder: Path, keys: Sequence[str]) -> str:
    """Says which settings of `generate` are not read; nothing where all are."""
    path = folder / "generation_config.json"
    given = read_foreign_json(folder, path.name) if path.exists() else {}
    others = (key for key, value in given.items() if value and key not in {*HuggingFaceConfig.model_fields, *_IDLE})
    unread = [*keys, *others]
    return (
        f"not read of {path.name}: {shortened(', '.join(unread), 200)}; generate may find other texts" if unread else ""
    )


def task_of(given: Mapping[str, Any]) -> str:
    """What a `config.json` that `nmtkit export` wrote says that its model is for; of others translation."""
    own = given.get("nmtkit")
    task = str(own.get("task")) if isinstance(own, dict) else "translation"
    return task if task in TASKS.names() else "translation"


def _config(folder: Path, given: dict[str, Any]) -> tuple[str, HuggingFaceConfig]:
    """Which architecture it is, and its settings."""
    place, kind = folder / "config.json", str(given.get("model_type"))
    if kind not in NORMS:
        why = f": {_WHY_NOT[kind]}" if kind in _WHY_NOT else ""
        raise CheckpointError(
            f"{place}: a model of type {shortened(kind)!r} is not read{why}; what is read: {', '.join(NORMS)}"
        )
    if (folder / "generation_config.json").exists():
        given = given | read_foreign_json(folder, "generation_config.json")
    known = {key: given[key] for key in HuggingFaceConfig.model_fields if given.get(key) is not None}
    config = parse(HuggingFaceConfig, known, str(place))
    for key in ("attention_heads", "ffn_dim"):
        one, other = (getattr(config, f"{side}_{key}") for side in ("encoder", "decoder"))
        if one != other:
            raise CheckpointError(
                f"{place}: {key} of encoder and decoder differ ({one} and {other}), which is not read"
            )
    return kind, config


# ----------------------------------------------------------------------------------------------------------- tokenizers


def _tokenizers(
    folder: Path, config: HuggingFaceConfig, weights: ForeignWeights
) -> tuple[TokenizerPair, tuple[Table, Table]]:
    """The tokenizers, and for each side which rows its words have."""
    separate = (folder / "target_vocab.json").exists()
    sides = {config.vocab_size, config.decoder_vocab_size or config.vocab_size}
    lying = [rows for rows in sides if (rows, config.d_model) not in weights.shapes.values()]
    if lying or (len(sides) > 1 and not separate):
        what = f"{lying[0]:,} tokens of {config.d_model} numbers" if lying else "two vocabularies"
        raise CheckpointError(f"{folder / 'config.json'}: says {what}, but the other files have none")
    bias = weights.tensor("final_logits_bias").flatten() if "final_logits_bias" in weights.shapes else torch.zeros(0)
    tgt_rows = config.decoder_vocab_size or config.vocab_size
    of_tgt = _words(folder, "target_vocab.json" if separate else "vocab.json", tgt_rows)
    ids = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id)
    if max(ids) >= tgt_rows:
        raise CheckpointError(f"{folder / 'config.json'}: a special token has the id {max(ids)}, of {tgt_rows} tokens")
    dropped = {row for row in (bias <= NEVER).nonzero().flatten().tolist() if row not in of_tgt and row not in ids}
    tgt = table_of(folder, of_tgt, ids, [row for row in range(tgt_rows) if row not in dropped])
    src = tgt
    if separate:
        words = _words(folder, "vocab.json", config.vocab_size)
        by_name = {word: row for row, word in words.items()}
        pad, eos = by_name.get(SPECIALS[PAD], -1), by_name.get(SPECIALS[EOS], -1)
        if min(pad, eos) < 0:
            raise CheckpointError(f"{folder / 'vocab.json'}: {SPECIALS[PAD]} or {SPECIALS[EOS]} is missing in it")
        src = table_of(folder, words, (pad, by_name.get(SPECIALS[BOS], pad), eos), sorted(words))
    how = TokenizerConfig(
        kind="marian",
        vocab_size=len(src.vocabulary),
        tgt_vocab_size=len(tgt.vocabulary) if separate else None,
        joint=not separate,
        normalization="none",
    )
    one, other = (cutter_of(folder, f"{side}.spm", how, of) for side, of in (("source", src), ("target", tgt)))
    return TokenizerPair(one, other), (src, tgt)


def cutter_of(folder: Path, name: str, how: TokenizerConfig, table: Table) -> SentencePieceTokenizer:
    """A sentencepiece model in a folder, with a table of its tokens.

    Raises:
        CheckpointError: it is missing, is no such model, or cuts bytes.
    """
    content = read_foreign(folder, name)
    try:
        found = SentencePieceTokenizer(how, content, table.vocabulary)
    except CheckpointError as fault:
        raise CheckpointError(f"{folder / name}: {fault}") from fault
    if "<0x00>" in found.own_pieces:
        raise CheckpointError(f"{folder / name}: it cuts unknown characters into bytes, which is not read")
    return found


def _words(folder: Path, name: str, rows: int) -> dict[int, str]:
    """The tokens of a table by their ids."""
    given, place = read_foreign_json(folder, name), folder / name
    found: dict[int, str] = {}
    for word, row in given.items():
        if type(row) is not int or not 0 <= row < rows or row in found:
            raise CheckpointError(
                f"{place}: {shortened(repr(word))} has the id {shortened(repr(row))}: not one from 0 to {rows - 1}, "
                "or one that another token has"
            )
        found[row] = word
    return found


def table_of(place: Path, words: Mapping[int, str], ids: tuple[int, int, int], rows: Sequence[int]) -> Table:
    """Puts the special tokens first.

    Args:
        place: what a message calls the table.
        words: by the ids of others.
        ids: theirs of padding, of the decoder's first input, and of the end.
        rows: theirs that are taken.

    Raises:
        CheckpointError: none is the unknown word.
    """
    unknown = [row for row, word in words.items() if word == SPECIALS[UNK]]
    if not unknown:
        raise CheckpointError(f"{place}: its vocabulary has no {SPECIALS[UNK]}, which is not read")
    places = {PAD: ids[0], UNK: unknown[0], BOS: ids[1], EOS: ids[2]}
    first: dict[int, int] = {}
    for ours in (EOS, UNK, PAD, BOS):  # what stands for two keeps its meaning in this order
        first.setdefault(places[ours], ours)
    never = [ours for ours, row in places.items() if first[row] != ours]
    ordinary = [row for row in rows if row not in first]
    taken, tokens = {*SPECIALS}, [*SPECIALS]
    for row in ordinary:
        word = words.get(row, "")
        # Those that a line cannot hold, or that mean something here, are never cut from a text.
        word = f"<unused {row}>" if not word or "\n" in word or word in taken else word
        taken.add(word)
        tokens.append(word)
    order = torch.tensor([*(places[ours] for ours in range(len(SPECIALS))), *ordinary])
    return Table(Vocabulary(tokens), order, torch.tensor(never, dtype=torch.long))


# ---------------------------------------------------------------------------------------------------------- the folder


def _recipe(title: str, about: str, found: Imported) -> Recipe:
    """The recipe of an imported run: how it is searched; what it was trained on and how, nobody has told."""
    data = {
        "name": title,
        "description": f"imported {about}; it was trained elsewhere, so SOURCE and TARGET stand for no files",
        "task": found.task,
        "data": {"train": {"src": "SOURCE", "tgt": "TARGET"}},
        "tokenizer": found.tokenizers.src.config.model_dump(),
        "model": found.model.model_dump(),
        "training": {"lr": 1e-4, "max_epochs": 5, "best_metric": TASKS.get(found.task).validated[0]},
        "search": {**found.search},
    }
    return parse(Recipe, data, "the imported model")


def license_of(folder: Path) -> str | None:
    """The licence that the head of the model card names."""
    try:
        card = read_foreign(folder, "README.md").decode("utf-8")
    except (CheckpointError, UnicodeDecodeError):
        return None
    head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    named = re.search(r"^license: *([\w.-]+) *$", head.group(1), re.MULTILINE) if head else None
    return named.group(1) if named else None
