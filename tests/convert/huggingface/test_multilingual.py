"""Multilingual models are fine-tuned in the languages that are named, as `transformers` would fine-tune them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nmtkit import Translator
from nmtkit.config import load as load_recipe
from nmtkit.convert.exporting import export_run
from nmtkit.convert.importing import import_run
from nmtkit.core.errors import RecipeError
from nmtkit.data.batches.store import Store
from nmtkit.runs.folder import RunFolder
from nmtkit.runs.run import Run
from tests.convert.huggingface.fine_tuning import (
    LANGUAGES,
    LR,
    SOURCES,
    TARGETS,
    trained,
    write_recipe,
)
from tests.convert.huggingface.random_models import public
from tests.support.begun_runs import begin_run
from tests.support.commands import Command, refused, succeeded, write_lines

pytest.importorskip("transformers")
import transformers

FAMILIES = ["nllb", "m2m100", "mbart", "mbart50"]


def theirs_in_direction(tokenizer: Any, kind: str, source: str, target: str) -> None:
    """Sets the languages of a tokenizer of `transformers`, which calls __de__ de."""
    tokenizer.src_lang = source.strip("_")
    tokenizer.tgt_lang = target.strip("_")


def their_batch(
    tokenizer: Any, kind: str, sources: list[str], targets: list[str]
) -> dict[str, torch.Tensor]:
    """The batch that `transformers` trains on."""
    read = tokenizer(sources, return_tensors="pt", padding=True)
    labels = tokenizer(text_target=targets, return_tensors="pt", padding=True)
    ids = labels.input_ids.masked_fill(~labels.attention_mask.bool(), -100)
    batch = {"input_ids": read.input_ids, "attention_mask": read.attention_mask, "labels": ids}
    if kind == "mbart":
        # Labels of mBART-25 end with the language, which is the first input. No search reads it after the end.
        batch["decoder_input_ids"] = transformers.models.mbart.modeling_mbart.shift_tokens_right(
            labels.input_ids.clone(), tokenizer.pad_token_id
        )
        ends = labels.attention_mask.sum(1) - 1
        ids[torch.arange(len(targets)), ends] = -100
    return batch


def their_losses(
    model: Any, batches: list[dict[str, torch.Tensor]], updates: int, lr: float
) -> list[float]:
    """Trains a model by gradient descent on the mean loss of all tokens; returns the loss before each update."""
    model.eval()  # without dropout
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    for _ in range(updates):
        optimizer.zero_grad()
        total = 0.0
        for batch in batches:
            logits = model(
                **{key: value for key, value in batch.items() if key != "labels"}
                | given_inputs(model, batch)
            )
            loss = torch.nn.functional.cross_entropy(
                logits.logits.flatten(0, 1),
                batch["labels"].flatten(),
                ignore_index=-100,
                reduction="sum",
            )
            (loss / tokens).backward()
            total += loss.item()
        losses.append(total / tokens)
        optimizer.step()
    return losses


def given_inputs(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The decoder's inputs, which the model makes of labels by itself."""
    if "decoder_input_ids" in batch:
        return {}
    labels = batch["labels"]
    pad = model.config.pad_token_id
    if model.config.model_type == "mbart":
        shift = transformers.models.mbart.modeling_mbart.shift_tokens_right
        return {"decoder_input_ids": shift(labels.masked_fill(labels == -100, pad), pad)}
    shift = transformers.models.m2m_100.modeling_m2m_100.shift_tokens_right
    return {"decoder_input_ids": shift(labels, pad, model.config.decoder_start_token_id)}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    write_lines(tmp_path / "src", SOURCES)
    write_lines(tmp_path / "tgt", TARGETS)
    return tmp_path


def require_same_tensors(folder: Path, model: Any) -> None:
    """Compares an exported folder with a model of `transformers`."""
    ours = load_file(folder / "model.safetensors")
    theirs = model.state_dict()
    for name, tensor in ours.items():
        expected = theirs[name]
        if "embed_positions" in name:  # before it come rows that nothing reads
            tensor, expected = tensor[2:], expected[2:]
        torch.testing.assert_close(
            tensor, expected, rtol=0, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert len(ours) > 50


@pytest.mark.parametrize("kind", FAMILIES)
def test_fine_tuning_has_the_losses_and_weights_of_transformers(kind: str, texts: Path) -> None:
    tokenizer, theirs = public(kind, texts / "theirs")
    import_run(texts / "theirs", str(texts / "imported"))
    source, target, _ = LANGUAGES[kind]
    corpora = {"src": "src", "tgt": "tgt", "src_lang": source, "tgt_lang": target}
    run, losses = trained(
        write_recipe(texts / "tuned.yaml", texts / "imported", corpora), texts / "tuned"
    )

    theirs_in_direction(tokenizer, kind, source, target)
    expected = their_losses(theirs, [their_batch(tokenizer, kind, SOURCES, TARGETS)], 2, LR)
    assert losses == pytest.approx(expected, abs=1e-5)
    assert losses[-1] < losses[0] - 0.05

    export_run(Run(run.folder), "huggingface", texts / "exported")
    require_same_tensors(texts / "exported", theirs)


@pytest.mark.parametrize("kind", ["nllb", "mbart50"])
def test_several_directions_have_the_losses_of_transformers(kind: str, texts: Path) -> None:
    tokenizer, theirs = public(kind, texts / "theirs")
    import_run(texts / "theirs", str(texts / "imported"))
    english, french, german = LANGUAGES[kind]
    directions = [(english, french), (german, english)]
    corpora = [
        {"src": "src", "tgt": "tgt", "src_lang": one, "tgt_lang": other}
        for one, other in directions
    ]
    run, losses = trained(
        write_recipe(texts / "tuned.yaml", texts / "imported", corpora), texts / "tuned"
    )
    batches = []
    for source, target in directions:
        theirs_in_direction(tokenizer, kind, source, target)
        batches.append(their_batch(tokenizer, kind, SOURCES, TARGETS))
    assert losses == pytest.approx(their_losses(theirs, batches, 2, LR), abs=1e-5)
    with pytest.raises(RecipeError, match="specify the source language, for example --from"):
        Translator.load(run.folder.path, device="cpu")
    ours = Translator.load(run.folder.path, device="cpu", source_language=german, to=english)
    vocabulary = ours.tokenizers.src.vocabulary
    (source,) = ours.encode_sources(["a"])
    assert (source.ids[:1], [*source.prefix]) == (
        vocabulary.ids([german]),
        vocabulary.ids([english]),
    )


def ids_of(folder: Path, split: str, side: str, number: int = 0) -> list[str]:
    """The tokens of a stored text."""
    run = Run(RunFolder(folder))
    ids = Store.open(run.folder.data, split).ids(side, number).tolist()
    return [run.load_tokenizers()[side].vocabulary.tokens[one] for one in ids]


def test_every_split_of_a_training_has_the_languages(texts: Path) -> None:
    public("nllb", texts / "theirs")
    import_run(texts / "theirs", str(texts / "imported"))
    corpora = {"src": "src", "tgt": "tgt", "src_lang": "eng_Latn", "tgt_lang": "fra_Latn"}
    trained(
        write_recipe(texts / "tuned.yaml", texts / "imported", corpora, updates=1), texts / "tuned"
    )
    for split in ("train", "valid"):
        assert ids_of(texts / "tuned", split, "src")[0] == "eng_Latn"
        assert ids_of(texts / "tuned", split, "tgt")[0] == "fra_Latn"


def test_a_model_needs_its_languages(texts: Path, console: Command) -> None:
    public("nllb", texts / "theirs")
    succeeded(console("import", "theirs", "-o", "runs/nllb"))
    read, write = (
        "specify the source language, for example --from eng_Latn (202 languages",
        "specify the target language, for example --to fra_Latn",
    )
    text = ("--source", "src", "--target", "tgt")
    train = ("train", "--init-from", "runs/nllb", *text, "--run", "runs/tuned", "--device", "cpu")
    for command in (
        train,
        ("translate", "-q", "-m", "runs/nllb", "src"),
        ("rescore", "-q", "-m", "runs/nllb", *text),
        ("align", "-q", "-m", "runs/nllb", *text),
        ("explain", "-q", "-m", "runs/nllb", "src"),
        ("evaluate", "-q", "runs/nllb", "--source", "src", "--ref", "tgt"),
        ("backtranslate", "-q", "-m", "runs/nllb", "src", "-o", "back"),
    ):
        assert "ace_Arab" not in refused(console(*command), read, write).err
    refused(
        console(*train, "--from", "en", "--to", "fra_Latn"),
        "unknown language 'en': did you mean eng_Latn?",
    )
    refused(
        console(*train, "--from", "eng_Latn", "--to", "zh"), "did you mean zho_Hans or zho_Hant?"
    )
    refused(console("translate", "-m", "runs/nllb", "--from", "eng_Latn", "src"), write)
    refused(console("translate", "-m", "runs/nllb", "--to", "list", "src"), "ace_Arab, ace_Latn")
    with pytest.raises(
        RecipeError, match="specify the source language, for example --from eng_Latn"
    ):
        Translator.load("runs/nllb", device="cpu")
    corpora = {"src": "src", "tgt": "tgt", "src_lang": "eng_Latn"}
    path = write_recipe(texts / "tuned.yaml", texts / "runs/nllb", corpora)
    missing = "the model is multilingual, but `data.train` has no `tgt_lang`"
    refused(console("train", path, "--run", "runs/tuned"), missing)
    refused(console("recipe", "check", path), missing)
    path = write_recipe(texts / "tuned.yaml", texts / "runs/nllb", corpora | {"tgt_lang": "xx"})
    refused(
        console("recipe", "check", path),
        "`data.train.tgt_lang`: unknown language 'xx' (the model has 202 languages",
    )


def test_a_tuned_run_remembers_its_languages(texts: Path, console: Command) -> None:
    public("nllb", texts / "theirs")
    succeeded(console("import", "theirs", "-o", "runs/nllb"))
    short = [f"--set={one}" for one in ("training.max_updates=2", "training.validate_every=2")]
    files = ("--source", "src", "--target", "tgt", "--valid", "src", "tgt")
    languages = ("--from", "eng_Latn", "--to", "fra_Latn")
    succeeded(
        console(
            "train",
            "--init-from",
            "runs/nllb",
            *files,
            *languages,
            *short,
            "--run",
            "runs/a",
            "--device",
            "cpu",
        )
    )
    asked = succeeded(console("translate", "-m", "runs/a", "--device", "cpu", *languages, "src"))
    done = succeeded(console("translate", "-m", "runs/a", "--device", "cpu", "src"))
    assert done.out == asked.out
    assert "the model translates from eng_Latn to fra_Latn" in done.err
    other = succeeded(
        console("translate", "-m", "runs/a", "--device", "cpu", "--to", "deu_Latn", "src")
    )
    assert "the model translates from eng_Latn to deu_Latn" in other.err
    assert other.out != done.out
    succeeded(
        console(
            "train", "--init-from", "runs/a", *files, *short, "--run", "runs/b", "--device", "cpu"
        )
    )
    assert ids_of(texts / "runs/b", "train", "tgt")[0] == "fra_Latn"


def test_mbart_25_begins_with_the_language_to_write(texts: Path) -> None:
    tokenizer, theirs = public("mbart", texts / "theirs")
    import_run(texts / "theirs", str(texts / "run"))
    for target in ("ro_RO", "de_DE"):
        ours = Translator.load(texts / "run", device="cpu", source_language="en_XX", to=target)
        asked = tokenizer(SOURCES, return_tensors="pt", padding=True)
        start = tokenizer.convert_tokens_to_ids(target)
        written = theirs.generate(**asked, decoder_start_token_id=start)
        assert ours.translate(SOURCES) == tokenizer.batch_decode(written, skip_special_tokens=True)
    corpora = [
        {"src": "src", "tgt": "tgt", "src_lang": "en_XX", "tgt_lang": target}
        for target in ("ro_RO", "de_DE")
    ]
    path = write_recipe(texts / "tuned.yaml", texts / "run", corpora)
    with pytest.raises(
        RecipeError, match="whose decoder starts with the token of the run's target language"
    ):
        begin_run(load_recipe(path), str(texts / "tuned"))


def test_one_training_teaches_two_languages(texts: Path) -> None:
    """A small NLLB learns to turn sentences round in French, and to say the first word twice in German."""
    public("nllb", texts / "theirs", scale=0.3)
    import_run(texts / "theirs", str(texts / "imported"))
    sources, turned = SOURCES[:5], TARGETS[:5]
    doubled = [" ".join(source.split()[:1] * 2) for source in sources]
    for name, lines in (("src", sources), ("tgt", turned), ("doubled", doubled)):
        write_lines(texts / name, lines)
    corpora = [
        {"src": "src", "tgt": "tgt", "src_lang": "eng_Latn", "tgt_lang": "fra_Latn"},
        {"src": "src", "tgt": "doubled", "src_lang": "eng_Latn", "tgt_lang": "deu_Latn"},
    ]
    path = write_recipe(
        texts / "tuned.yaml", texts / "imported", corpora, updates=200, optimizer="adam", lr=0.004
    )
    run, _ = trained(path, texts / "tuned")
    how: dict[str, Any] = {
        "device": "cpu",
        "source_language": "eng_Latn",
        "search_settings": {"max_length": 60},
    }
    for target, expected in (("fra_Latn", turned), ("deu_Latn", doubled)):
        assert Translator.load(run.folder.path, to=target, **how).translate(sources) == expected
